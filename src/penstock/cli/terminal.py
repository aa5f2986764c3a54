"""What the commands show: names that cannot harm a terminal, and a bar that tells how far a copy is."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.cli.sizes import human_bytes
from penstock.transfer import CopyCounts, CopyProgress

__all__ = ["Rate", "describe", "printable", "show_progress"]

_REFRESHES_PER_S = 8
_RATE_WINDOW_S = 5.0
_MANY_PER_S = 2.0


def printable(text: str) -> str:
    """The text with escapes in place of what is not to be shown: a key may hold anything."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


class Rate:
    """Growth per second over the last five seconds: it falls to zero when nothing arrives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def now(self, total: int) -> float:
        """The rate, given the total so far."""
        at = self._clock()
        while len(self._seen) > 1 and self._seen[1][0] <= at - _RATE_WINDOW_S:
            self._seen.popleft()
        self._seen.append((at, total))
        since, before = self._seen[0]
        return max(0.0, (total - before) / (at - since)) if at > since else 0.0


def describe(counts: CopyCounts, rate: float, objects_rate: float) -> str:
    """`1.2 GiB of 2.1 GiB  17 of 5,001 objects  166.0 MiB/s  0:00:05 left`."""
    estimates_s = [(counts.bytes - counts.bytes_copied) / rate] if rate else []
    if objects_rate >= _MANY_PER_S:
        # Many small objects take as long as their requests do, not as their bytes.
        estimates_s.append((counts.objects - counts.objects_copied) / objects_rate)
    words = [
        f"{human_bytes(counts.bytes_copied)} of {human_bytes(counts.bytes)}",
        f"{counts.objects_copied:,} of {counts.objects:,} objects",
        f"{human_bytes(int(rate))}/s",
        f"{_clock(max(estimates_s))} left" if estimates_s else "-:--:-- left",
    ]
    if counts.identical:
        words.append(f"{counts.identical:,} identical")
    if counts.failed:
        words.append(f"{counts.failed:,} failed")
    return "  ".join(words)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.999), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@contextmanager
def show_progress(progress: CopyProgress, *, quiet: bool) -> Iterator[None]:
    """Draws the bar on standard error while the block runs, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    class Bar(Progress):
        """Reads the counts whenever it is drawn, so that no thread of the copy waits for it."""

        def get_renderables(self) -> Iterator[RenderableType]:
            counts = progress.counts
            rates = bytes_rate.now(counts.bytes_copied), objects_rate.now(counts.objects_copied)
            text = "listing" if counts == CopyCounts() else describe(counts, *rates)
            total, done = counts.bytes, counts.bytes_copied
            if not total and counts != CopyCounts():
                total = done = 1  # All there is to copy is copied: a full bar.
            for task in self.task_ids:
                self.update(task, total=total or None, completed=done, t=text)
            yield from super().get_renderables()

    bytes_rate, objects_rate = Rate(), Rate()
    bar = Bar(
        BarColumn(24),
        TaskProgressColumn(),
        TextColumn("{task.fields[t]}"),
        console=Console(stderr=True),
        refresh_per_second=_REFRESHES_PER_S,
    )
    bar.add_task("", total=None, t="listing")
    with bar:
        yield
