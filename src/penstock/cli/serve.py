"""`penstock serve`: an object store of your own, until Ctrl-C."""

import shlex
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import ConfigError, StoreUnavailable
from penstock.testing import FaultProxy, ObjectServer

_POLL_S = 0.2
_GUIDE = """
# Paste the lines above into another shell; then, in Python:
import penstock
print(list(penstock.open_store("{url}").list()))

# Data in {folder}, {fate}. Ctrl-C stops the server.
"""


def serve(
    *,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep data and credentials here, for the next time."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 0,
    bucket: Annotated[
        list[str] | None,
        typer.Option(help="Created if missing. Repeat for more.", show_default="train"),
    ] = None,
    gcs: Annotated[bool, typer.Option("--gcs", help="Serve gs:// instead of s3://.")] = False,
    latency_ms: Annotated[float, typer.Option(min=0, help="Delay of every request.")] = 0,
    bandwidth_mibs: Annotated[
        float | None, typer.Option(min=0.001, help="Cap on all bodies together, in MiB/s.")
    ] = None,
) -> None:
    """Run an object store on this machine until Ctrl-C, and print how to reach it."""
    slowed = latency_ms > 0 or bandwidth_mibs is not None
    if slowed and port:
        raise ConfigError(
            "--port: not together with --latency-ms or --bandwidth-mibs, which choose a port themselves"
        )
    buckets = bucket or ["train"]
    # A plain kill then unwinds as Ctrl-C does, and both also where a shell started us in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as running:
        server = running.enter_context(ObjectServer(buckets, dir=folder, port=port, gcs=gcs))
        endpoint = server.endpoint
        if slowed:
            proxy = FaultProxy(endpoint, latency_ms=latency_ms, bandwidth_mibs=bandwidth_mibs)
            endpoint = running.enter_context(proxy).endpoint
        try:
            _show(
                server,
                endpoint,
                buckets[0],
                fate="removed at the end" if folder is None else "kept",
            )
            _wait_for_the_end(server)
        except KeyboardInterrupt:
            typer.echo("Stopping the server.")
    typer.echo("Stopped.")


def _show(server: ObjectServer, endpoint: str, bucket: str, *, fate: str) -> None:
    for name, value in server.env.items():
        typer.echo(f"export {name}={shlex.quote(endpoint if value == server.endpoint else value)}")
    typer.echo(_GUIDE.format(url=server.url(bucket), folder=server.dir, fate=fate))


def _wait_for_the_end(server: ObjectServer) -> None:
    while server.running:
        time.sleep(_POLL_S)
    raise StoreUnavailable(f"the server has ended by itself; its log:\n{server.log_tail()}")
