"""`penstock cat`: an object, or some of it, to standard output."""

import os
import sys
from typing import Annotated

import typer

from penstock.errors import ConfigError
from penstock.transfer import open_reader

_PIECE_BYTES = 8 << 20
_BROKEN_PIPE = 141


def cat(
    url: Annotated[str, typer.Argument(help="An object, or a file.")],
    *,
    start: Annotated[int, typer.Option(min=0, help="The first byte, from 0 on.")] = 0,
    stop: Annotated[
        int | None, typer.Option(min=0, help="The byte before which to stop.", show_default="end")
    ] = None,
) -> None:
    """Write an object's bytes to standard output."""
    if stop is not None and stop < start:
        raise ConfigError(f"--stop must not be before --start, got {stop} and {start}")
    out = sys.stdout.buffer
    try:
        with open_reader(url) as file:
            file.seek(start)
            left = stop - start if stop is not None else None
            while piece := file.read(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES)):
                rest = memoryview(piece)
                # Under PYTHONUNBUFFERED this is a raw file, which may take less than all.
                while rest:
                    rest = rest[out.write(rest) :]
                left = None if left is None else left - len(piece)
        out.flush()
    except BrokenPipeError as exc:
        # Whoever read has seen enough, as head does; the flush at exit must not say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from exc
