"""Fixtures every test may use. `object_server` comes from penstock's own pytest plugin."""

import pytest


@pytest.fixture(scope="session")
def server(object_server):
    """The session's object server, under the short name."""
    return object_server
