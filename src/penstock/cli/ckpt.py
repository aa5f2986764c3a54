"""`penstock ckpt`: the checkpoints of a run, and what is in a file. Imports torch only when it has to."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.ages import age_in_words, parse_age
from penstock.cli.ckpt_target import Target, find_target, open_root
from penstock.cli.sizes import human_bytes
from penstock.cli.terminal import printable
from penstock.errors import ConfigError, IntegrityError, InvalidCheckpoint, NotFound, Unsupported

if TYPE_CHECKING:
    from penstock.checkpoint import Best, Manifest
    from penstock.checkpoint.commit import Root

__all__ = ["ckpt"]

ckpt = typer.Typer(
    name="ckpt", help="The checkpoints of a run, and what is in a file.", no_args_is_help=True
)

_REQUESTS_AT_ONCE = 16

RunUrl = Annotated[str, typer.Argument(metavar="URL", help="Of a CheckpointManager.")]
FileUrl = Annotated[
    str, typer.Argument(metavar="URL", help="Of a file, of a run (its newest step), or of a step.")
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, delete nothing.")]


@dataclass(frozen=True, slots=True)
class _Row:
    """A step, as it is listed."""

    step: int
    state: Literal["committed", "unfinished", "damaged"]
    size: int
    created: datetime | None
    metrics: dict[str, float]

    def line(self, now: datetime) -> str:
        """As a person reads it."""
        age = "-" if self.created is None else age_in_words(now - self.created)
        shown = "  ".join(f"{printable(name)}={v:g}" for name, v in sorted(self.metrics.items()))
        return f"{self.step:>10}  {self.state:<10}  {human_bytes(self.size):>10}  {age:>8}  {shown}".rstrip()

    def json(self) -> str:
        """As a program reads it. What is no number is told as text, which JSON has no other way for."""
        return json.dumps(
            {
                "step": self.step,
                "state": self.state,
                "size": self.size,
                "created": None if self.created is None else self.created.isoformat(),
                "metrics": {k: v if math.isfinite(v) else str(v) for k, v in self.metrics.items()},
            }
        )


@ckpt.command("ls")
def ls(url: RunUrl, *, as_json: AsJson = False) -> None:
    """List the steps of a run: whether committed, sizes, ages, metrics."""
    root = open_root(url)
    rows = _rows(root)
    if not rows:
        raise NotFound(f"{root.store.url.rstrip('/')}/{root.prefix}: no checkpoint; check the URL")
    now = datetime.now(UTC)
    if not as_json:
        typer.echo(f"{'STEP':>10}  {'STATE':<10}  {'SIZE':>10}  {'AGE':>8}  METRICS")
    for row in rows:
        typer.echo(row.json() if as_json else row.line(now))


@ckpt.command("show")
def show(
    url: FileUrl,
    *,
    step: Annotated[int | None, typer.Option(min=0, help="This one of a run.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the tensors of a checkpoint: names, types, shapes, sizes. Downloads none of them."""
    target = find_target(url, step)
    tensors = target.tensors()
    if as_json:
        for tensor in tensors:
            typer.echo(
                json.dumps(
                    {
                        "name": tensor.name,
                        "dtype": tensor.dtype,
                        "shape": tensor.shape,
                        "size": tensor.size_bytes,
                    }
                )
            )
        return
    typer.echo(printable(target.url))
    if target.manifest is not None:
        _show_manifest(target.manifest)
    width = max((len(printable(tensor.name)) for tensor in tensors), default=0)
    for tensor in tensors:
        typer.echo(
            f"{printable(tensor.name):<{width}}  {tensor.dtype:<10}  {human_bytes(tensor.size_bytes):>10}  "
            f"{tensor.shape}"
        )
    total = human_bytes(sum(tensor.size_bytes for tensor in tensors))
    typer.echo(f"{len(tensors):,} tensors, {total}")


@ckpt.command("verify")
def verify(
    url: RunUrl,
    *,
    step: Annotated[list[int] | None, typer.Option(min=0, help="Only these.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of the checkpoints of a run again. Exits with 1 if one is damaged."""
    from penstock.checkpoint import CheckpointManager

    manager = CheckpointManager(url)
    steps = step or manager.steps()
    if not steps:
        raise NotFound(f"{manager.url}: no committed checkpoint; check the URL")
    is_whole = True
    for number in steps:
        problem = None
        size = 0
        try:
            size = sum(found.size for found in manager.verify(number).objects)
        except (IntegrityError, InvalidCheckpoint, NotFound) as exc:
            problem = str(exc)
            is_whole = False
        if as_json:
            typer.echo(json.dumps({"step": number, "ok": problem is None, "problem": problem}))
        elif problem is None:
            typer.echo(f"{number:>10}  ok  {human_bytes(size)}")
        else:
            typer.echo(f"{number:>10}  damaged  {printable(problem)}")
    if not is_whole:
        raise typer.Exit(1)


@ckpt.command("diff")
def diff(
    a: Annotated[str, typer.Argument(help="A file, a run (its newest step), or a step of it.")],
    b: Annotated[str, typer.Argument(help="The same.")],
    *,
    values: Annotated[
        bool,
        typer.Option("--values", help="Contents too: by checksums, or read where there are none."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the tensors of two checkpoints: names, types, shapes. Exits with 1 if they differ."""
    first, second = find_target(a), find_target(b)
    changes = _changes(first, second, values=values)
    for kind, name, before, after in changes:
        if as_json:
            row = {"change": kind, "name": name, "before": before, "after": after}
            typer.echo(json.dumps(row))
            continue
        sign = {"added": "+", "removed": "-"}.get(kind, "~")
        what = before if after is None or before == after else after
        if before is not None and after is not None and before != after:
            what = f"{before} -> {after}"
        suffix = "  values differ" if kind == "values" else ""
        typer.echo(f"{sign} {printable(name)}  {what}{suffix}")
    if changes:
        raise typer.Exit(1)
    if not as_json:
        typer.echo("No difference." if values else "No difference in names, types and shapes.")


@ckpt.command("rm")
def rm(
    url: RunUrl,
    *,
    step: Annotated[list[int], typer.Option(min=0, help="May be given several times.")],
    dry_run: DryRun = False,
) -> None:
    """Delete steps of a run. Deletes nothing if one of them is not there."""
    from penstock.checkpoint import CheckpointManager

    root = open_root(url)
    there = {row.step for row in _rows(root)}
    for number in step:
        if number not in there:
            raise NotFound(f"{root.url(number, '')}: no such checkpoint; see penstock ckpt ls")
    manager = CheckpointManager(url)
    for number in step:
        if not dry_run:
            manager.delete(number)
        typer.echo(f"{'Would delete' if dry_run else 'Deleted'} step {number}.")


@ckpt.command("prune")
def prune(
    url: RunUrl,
    *,
    keep_last: Annotated[int | None, typer.Option(min=1, help="The newest.")] = None,
    keep_every: Annotated[int | None, typer.Option(min=1, help="Multiples of this step.")] = None,
    keep_best: Annotated[
        str | None, typer.Option(metavar="METRIC[:COUNT[:min|max]]", help="As in loss:2:min.")
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Leave unfinished saves alone that are younger.")
    ] = "24h",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete the steps that no rule keeps, and what interrupted saves left behind. Never the newest step."""
    from penstock.checkpoint import CheckpointManager

    manager = CheckpointManager(
        url,
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=None if keep_best is None else _best(keep_best),
    )
    gone = manager.prune(dry_run=dry_run, older_than=parse_age(older_than))
    for found in gone:
        row = {"url": found, "deleted": not dry_run}
        typer.echo(json.dumps(row) if as_json else printable(found))
    if not as_json:
        typer.echo(f"{'Would delete' if dry_run else 'Deleted'} {len(gone):,}.")


def _rows(root: "Root") -> list[_Row]:
    """Every step that a save has begun, in order. One request per 1,000 objects, and one per committed step."""
    from penstock.checkpoint.manifest import MANIFEST, split_key

    at = len(root.prefix)
    sizes: dict[int, int] = {}
    written: dict[int, datetime | None] = {}
    committed: set[int] = set()
    for meta in root.store.list(f"{root.prefix}step-"):
        parts = split_key(meta.key[at:])
        if parts is None:
            continue
        step, name = parts
        sizes[step] = sizes.get(step, 0) + meta.size
        written[step] = meta.last_modified
        if name == MANIFEST:
            committed.add(step)

    def row(step: int) -> _Row:
        if step not in committed:
            return _Row(step, "unfinished", sizes[step], written[step], {})
        try:
            manifest = root.read_manifest(step)
        except (InvalidCheckpoint, Unsupported):
            return _Row(step, "damaged", sizes[step], written[step], {})
        size = sum(found.size for found in manifest.objects)
        return _Row(step, "committed", size, manifest.created, dict(manifest.metrics))

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        return [*threads.map(row, sorted(sizes))]


def _show_manifest(manifest: "Manifest") -> None:
    typer.echo(f"step {manifest.step}, {manifest.created.isoformat()}")
    details: dict[str, Any] = {**manifest.metrics, **manifest.metadata}
    for name, value in details.items():
        typer.echo(f"{printable(name)} = {printable(str(value))}")


def _changes(
    first: Target, second: Target, *, values: bool
) -> list[tuple[str, str, str | None, str | None]]:
    """(change, name, before, after) of each tensor that differs, by name."""
    old = {tensor.name: tensor for tensor in first.tensors()}
    new = {tensor.name: tensor for tensor in second.tensors()}
    changes: list[tuple[str, str, str | None, str | None]] = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            changes.append(("added", name, None, new[name].kind))
        elif name not in new:
            changes.append(("removed", name, old[name].kind, None))
        elif old[name].kind != new[name].kind:
            changes.append(("kind", name, old[name].kind, new[name].kind))
        elif values and not old[name].equals(new[name]):
            changes.append(("values", name, old[name].kind, new[name].kind))
    return changes


def _best(text: str) -> "Best":
    """Reads `loss`, `loss:2` and `accuracy:2:max`. A metric may have colons of its own."""
    from penstock.checkpoint import Best

    metric, count, mode = text, "1", "min"
    if metric.endswith((":min", ":max")):
        metric, _, mode = metric.rpartition(":")
    before, _, number = metric.rpartition(":")
    if before and number.isdigit():
        metric, count = before, number
    if not metric or int(count) < 1:
        raise ConfigError(f"--keep-best must look like loss, loss:2 or loss:2:min, got {text!r}")
    return Best(metric, int(count), "max" if mode == "max" else "min")
