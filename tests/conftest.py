"""Fixtures every test may use. `object_server` comes from penstock's own pytest plugin."""

import signal

import pytest

# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that: then no test of
# Ctrl-C could pass in a run that nobody watches.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server(object_server):
    """The session's object server, under the short name."""
    return object_server
