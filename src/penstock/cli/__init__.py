"""The `penstock` command. One file per subcommand; this one joins them and turns errors into one line."""

import sys
from typing import Annotated

import typer

from penstock._version import __version__
from penstock.cli.cat import cat
from penstock.cli.ckpt import ckpt
from penstock.cli.cp import cp
from penstock.cli.gcs_clean import gcs_clean
from penstock.cli.index import index
from penstock.cli.ls import ls
from penstock.cli.rm import rm
from penstock.cli.serve import serve
from penstock.cli.sweep import sweep
from penstock.errors import PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Carries data from object storage to PyTorch, and checkpoints back.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with the values of local variables would show credentials.
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(ls)
app.command()(index)
app.command()(cp)
app.command()(cat)
app.command()(rm)
app.command()(sweep)
app.command()(gcs_clean)
app.add_typer(ckpt)


def _print_version(value: bool) -> None:  # noqa: FBT001 - the signature of a typer callback
    if value:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Carries data from object storage to PyTorch, and checkpoints back."""
    del version  # Its callback has done the work.


def main() -> None:
    """Exits with 1 and a line on standard error for our own errors, with 130 on Ctrl-C."""
    try:
        app()
    except PenstockError as exc:
        typer.echo(f"penstock: {exc}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
