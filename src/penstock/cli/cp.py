"""`penstock cp`: files and objects from one place to another."""

import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Annotated, NoReturn

import typer

from penstock.cli.sizes import human_bytes
from penstock.cli.terminal import printable, show_progress
from penstock.config import StoreConfig
from penstock.errors import ConfigError
from penstock.transfer import Compare, CopyCounts, CopyProgress, CopyReport, copy_objects

_FAILURES_SHOWN = 20
_SAME_INTERRUPT_S = 0.5


def cp(
    src: Annotated[str, typer.Argument(help="A file, a folder or a URL.")],
    dst: Annotated[
        str, typer.Argument(help="Where to. With a slash at its end, or a folder: into it.")
    ],
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="All that is in SRC, into DST.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compare, say what would be copied, copy nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Copy what is identical already, too.")
    ] = False,
    size_only: Annotated[
        bool, typer.Option("--size-only", help="Take equal sizes for equal contents.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Neither bar nor summary; failures are told.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object at the end instead of the summary.")
    ] = False,
    src_endpoint: Annotated[
        str | None, typer.Option(help="Of the store of SRC, if not the environment's.")
    ] = None,
    dst_endpoint: Annotated[
        str | None, typer.Option(help="Of the store of DST, if not the environment's.")
    ] = None,
    src_anonymous: Annotated[
        bool, typer.Option("--src-anonymous", help="SRC is public: read it without credentials.")
    ] = False,
) -> None:
    """Copy files and objects between this machine and stores, or between stores.

    What is there already with the same content is left alone, so the same command continues an interrupted copy.
    Exits with 1 if anything failed, with 130 if interrupted.
    """
    if force and size_only:
        raise ConfigError("--force and --size-only exclude each other; give one of them")
    compare = Compare.NOTHING if force else Compare.SIZE if size_only else Compare.CONTENT
    _catch_signals()
    progress = CopyProgress()
    try:
        with show_progress(progress, quiet=quiet or as_json):
            report = copy_objects(
                src,
                dst,
                recursive=recursive,
                compare=compare,
                dry_run=dry_run,
                src_config=StoreConfig(endpoint=src_endpoint, anonymous=src_anonymous),
                dst_config=StoreConfig(endpoint=dst_endpoint),
                progress=progress,
            )
    except KeyboardInterrupt:
        _leave(progress.counts)
    for warning in report.warnings:
        typer.echo(f"penstock: {printable(warning)}", err=True)
    if as_json:
        typer.echo(_as_json(report, dry_run=dry_run))
    elif dry_run:
        for copied in report.copied:
            typer.echo(printable(f"{copied.source} -> {copied.target}"))
    if not as_json and not quiet:
        typer.echo(_summary(report, dry_run=dry_run))
    _tell_failures(report)
    if report.failures or report.not_tried:
        raise typer.Exit(1)


def _catch_signals() -> None:
    """Makes a plain kill unwind as Ctrl-C does, and one Ctrl-C one: shells and `timeout` may send it twice at once."""
    last_s = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s > _SAME_INTERRUPT_S:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, interrupt)
    # Ignored where a shell has started us in the background.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)


def _leave(counts: CopyCounts) -> NoReturn:
    done = f"{counts.objects_copied} of {counts.objects} objects" if counts.objects else "nothing"
    typer.echo(f"penstock: interrupted with {done} copied; the same command goes on", err=True)
    sys.stdout.flush()
    # Not in order: that would wait for threads whose requests cannot be interrupted.
    os._exit(130)


def _summary(report: CopyReport, *, dry_run: bool) -> str:
    count = len(report.copied)
    size = report.copied_bytes
    there = f"{report.identical:,} {'was' if report.identical == 1 else 'were'} there already"
    if dry_run:
        return f"Would copy {_objects(count)} ({human_bytes(size)}); {there}."
    rate = human_bytes(int(size / max(report.seconds, 1e-3)))
    return f"Copied {_objects(count)} ({human_bytes(size)}) in {report.seconds:.1f} s, {rate}/s; {there}."


def _objects(count: int) -> str:
    return f"{count:,} object{'' if count == 1 else 's'}"


def _tell_failures(report: CopyReport) -> None:
    failed = len(report.failures)
    if not failed:
        return
    total = failed + len(report.copied) + report.identical + report.not_tried
    rest = f", {report.not_tried} were not tried" if report.not_tried else ""
    typer.echo(f"penstock: {failed} of {total} objects failed{rest}:", err=True)
    for failure in report.failures[:_FAILURES_SHOWN]:
        typer.echo(f"  {printable(failure.url)}: {printable(failure.reason)}", err=True)
    if failed > _FAILURES_SHOWN:
        typer.echo(f"  and {failed - _FAILURES_SHOWN} more; --json lists all", err=True)


def _as_json(report: CopyReport, *, dry_run: bool) -> str:
    row = {
        "dry_run": dry_run,
        "copied": len(report.copied),
        "copied_bytes": report.copied_bytes,
        "identical": report.identical,
        "not_tried": report.not_tried,
        "seconds": round(report.seconds, 3),
        "failures": [{"url": f.url, "reason": f.reason} for f in report.failures],
    }
    if dry_run:
        row["objects"] = [
            {"source": c.source, "target": c.target, "size": c.size} for c in report.copied
        ]
    return json.dumps(row)
