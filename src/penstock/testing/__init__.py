"""Real servers and real faults, for our tests and for yours.

`ObjectServer` is an S3 or GCS server on this machine, `AzureServer` an Azure one, `FaultProxy` stands before any
of them and misbehaves on demand. `penstock.testing.fixtures` gives them to pytest; `penstock.testing.conformance`
is the suite that every store must pass.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.azurite import AzureServer
    from penstock.testing.proxy import Fault, FaultProxy, LoggedRequest
    from penstock.testing.server import ObjectServer

__all__ = ["AzureServer", "Fault", "FaultProxy", "LoggedRequest", "ObjectServer"]

_HOMES = {
    "AzureServer": "azurite",
    "Fault": "proxy",
    "FaultProxy": "proxy",
    "LoggedRequest": "proxy",
    "ObjectServer": "server",
}


def __getattr__(name: str) -> object:
    """Imported when asked for: pytest loads this package in every run of everyone who has it installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
