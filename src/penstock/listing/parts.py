"""Keeps account of a walk: which part of the keys is whose, what is left of it, and whether a split is affordable.

No I/O and no locks: walk.py calls this under its own. Positions are keys translated so that they compare as strings
do: for a store that goes by path segment the slash becomes the lowest character.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt

from penstock.errors import InvalidUrl
from penstock.listing.partition import Alphabet, cut
from penstock.store import KeyOrder, Page
from penstock.url import check_key

__all__ = ["OutOfOrder", "Part", "Parts", "positions_of"]

_PAGE_KEYS = 1000
_MAX_REQUEST_RATIO = 1.3
_SAMPLE_STRIDE = 37
_MAX_SAMPLE = 256
_UNNAMED = "\U0010ffff"
"""No real key ends with this noncharacter."""


class OutOfOrder(Exception):
    """The store lists in no order that we know, so its parts cannot be told apart; list it from the beginning."""


@dataclass(slots=True, eq=False)
class Part:
    """The keys after `after` up to and including `end`, both positions; None is the end of the prefix.

    `last` and `page_first` are the newest page's; `reach` is how far its keys may go on, as an `Alphabet`'s number,
    where that is less than to its end; `is_even` says that keys are thought to be spread evenly up to its end.
    """

    after: str | None
    end: str | None
    expected_pages: float = 0.0
    is_even: bool = False
    is_open: bool = True
    pages_read: int = 0
    keys_read: int = 0
    last: str | None = None
    page_first: str = ""
    reach: int | None = None


class Parts:
    """The parts of a prefix, in order. They begin as one; `split` makes them more, `read` and `close` follow them."""

    def __init__(self, prefix: str) -> None:
        self.all = [Part(None, None)]
        self.keys = 0
        self.order: KeyOrder | None = None
        self._prefix = prefix
        self._requests = 0
        self._can_split = True
        self._end_seen = False
        self._before_order: list[Page] = []
        self._first: str | None = None
        self._sample: list[str] = []
        # Four parts that wasted half a page each, until there is experience.
        self._closed = 4
        self._wasted_pages = 2.0

    def set_order(self, order: KeyOrder) -> None:
        """Must come before the first split. What was read so far is compared with it."""
        pages, self._before_order = self._before_order, []
        self.order = order
        try:
            for page in pages:
                positions_of(page, order)
        except OutOfOrder:
            self._can_split = False

    def key(self, position: str) -> str:
        """The key at a position."""
        return position.replace("\0", "/") if self.order is KeyOrder.PATH else position

    def read(self, part: Part, page: Page) -> tuple[Page, bool]:
        """Notes a page; returns what of it is the part's own, and whether the part ends in it."""
        self._requests += 1
        part.pages_read += 1
        if not page.keys:
            return page, False
        own, is_last = page, False
        if self.order is None:
            self._before_order.append(page)
        else:
            own, is_last = self._share(part, page, self.order)
        self.keys += len(own.keys)
        part.keys_read += len(own.keys)
        if own.keys:
            self._learn(part, own)
        return own, is_last

    def close(self, part: Part, *, at_end: bool) -> None:
        """Notes that a part has been read; `at_end` if the store had no more keys, in it or behind it."""
        part.is_open = False
        self._closed += 1
        self._wasted_pages += part.pages_read - part.keys_read / _PAGE_KEYS
        if at_end:
            self._end_seen = True
            for behind in self.all[self.all.index(part) + 1 :]:
                behind.expected_pages = 0.0

    def may_split(self, *, is_full: bool | None = None) -> bool:
        """Whether one more part keeps the requests in bounds, were each to waste the rest of its last page.

        `is_full` says of the part to be split what `_open` does; None is the easiest case.
        """
        if not self._can_split:
            return False
        waste = sum(self._charge(is_full=full) for _, full in self._open())
        waste += self._charge(is_full=is_full is not False and len(self.all) > 1)
        if not self._end_seen:
            # The part that meets the end of the keys wastes no more than a plain listing would.
            waste -= 1
        return self._requests + waste <= _MAX_REQUEST_RATIO * (self.keys // _PAGE_KEYS)

    def split(self) -> Part | None:
        """Halves the part with most left to read and returns the second half; None where it is not worth it."""
        if self.order is None or not self.may_split():
            return None
        alphabet = Alphabet.of(self._within(key) for key in self._sample)
        for part, is_full in self._largest_first(alphabet):
            # Of a part that may end anywhere, less than half is likely to be left.
            share = 0.5 if is_full else 0.25
            half = self._halve(part, alphabet, share) if self.may_split(is_full=is_full) else None
            if half is not None:
                self.all.insert(self.all.index(part) + 1, half)
                return half
        return None

    def _share(self, part: Part, page: Page, order: KeyOrder) -> tuple[Page, bool]:
        try:
            positions = positions_of(page, order)
        except OutOfOrder:
            if len(self.all) > 1:
                raise
            self._can_split = False
            return page, False
        start, stop = 0, len(positions)
        if part.after is not None and positions[0] <= part.after:
            # The store did not start where it was told to; it must not be relied on again.
            self._can_split = False
            start = next((i for i, at in enumerate(positions) if at > part.after), stop)
        if part.end is not None and positions[-1] > part.end:
            stop = next(i for i, at in enumerate(positions) if at > part.end)
        if start == 0 and stop == len(positions):
            return page, False
        own = slice(start, max(start, stop))
        is_last = stop < len(positions)
        return Page(page.keys[own], page.sizes[own], page.etags[own]), is_last

    def _learn(self, part: Part, page: Page) -> None:
        key = page.keys[-1]
        # An empty object may be a folder's placeholder, which stands where its slash would put it.
        part.last = key if page.sizes[-1] else f"{key}/"
        part.page_first = page.keys[0]
        part.expected_pages -= 1
        if self._first is None:
            self._first = page.keys[0]
        self._sample += page.keys[::_SAMPLE_STRIDE]
        if len(self._sample) > _MAX_SAMPLE:
            self._sample = self._sample[::2]

    def _open(self) -> Iterator[tuple[Part, bool]]:
        """The parts being read, from the last to the first, and whether keys are known behind each.

        Such a part has keys up to its end, for all we know; another may end anywhere.
        """
        is_full = False
        for part in reversed(self.all):
            if part.is_open:
                yield part, is_full
            is_full = is_full or part.last is not None

    def _charge(self, *, is_full: bool) -> float:
        """The pages that a part is likely to waste; one that may be empty, a whole one."""
        return self._wasted_pages / self._closed if is_full else 1.0

    def _largest_first(self, alphabet: Alphabet) -> list[tuple[Part, bool]]:
        found = []
        sureness = 0.5
        for part, is_full in self._open():
            if part.last is not None or (is_full and part.is_even):
                self._estimate(part, alphabet)
                if part.expected_pages >= (3 if is_full else 4):
                    weight = part.expected_pages * (1.0 if is_full else sureness)
                    found.append((weight, part, is_full))
            else:
                # What was cut off before has not been heard of yet.
                sureness /= 2
        found.sort(key=lambda row: -row[0])
        return [(part, is_full) for _, part, is_full in found]

    def _estimate(self, part: Part, alphabet: Alphabet) -> None:
        """Foretells a part's pages from how close the keys of its last page are to each other.

        Where that is far more than expected, the part is in a dense spot that may end anywhere: then as much again as
        was found in it, as with the end of the whole prefix, of which nothing is known.
        """
        if part.last is None:
            return
        here = alphabet.number(self._within(part.last))
        if part.end is None:
            part.reach = max(here - alphabet.number(self._within(self._first or "")), 1)
            room = (alphabet.last - here) / part.reach
            others = (other.expected_pages for other, _ in self._open() if other is not part)
            before = self.keys / _PAGE_KEYS + sum(max(pages, 0.0) for pages in others)
            part.expected_pages = min(max(room, 0.25), 1.0) * before
            return
        span = max(here - alphabet.number(self._within(part.page_first)), 1)
        left = alphabet.number(part.end[len(self._prefix) :]) - here
        likely = max(part.expected_pages, part.pages_read)
        part.expected_pages, part.reach = left / span, None
        if part.expected_pages > 4 * likely:
            part.expected_pages, part.reach = likely, span * part.pages_read

    def _halve(self, part: Part, alphabet: Alphabet, share: float) -> Part | None:
        at = len(self._prefix)
        found = cut(
            self._within(part.last) if part.last is not None else (part.after or "")[at:],
            None if part.end is None else part.end[at:],
            alphabet=alphabet,
            first=self._within(self._first or ""),
            reach=part.reach,
            share=share,
        )
        if found is None:
            return None
        end = self._position(self._prefix) + found
        if self.order is KeyOrder.PATH:
            # Told to start after the name of a folder, such a store leaves out what is in it.
            end += _UNNAMED
        if (part.end is not None and end >= part.end) or not _can_travel(self.key(end)):
            return None
        left, right = share * part.expected_pages, (1 - share) * part.expected_pages
        if part.reach is not None:
            left = right = part.expected_pages
        is_even = part.reach is None and share == 0.5
        half = Part(end, part.end, right, is_even)
        part.end, part.expected_pages = end, left
        return half

    def _within(self, key: str) -> str:
        """The position of a key, without the prefix that all have."""
        return self._position(key)[len(self._prefix) :]

    def _position(self, key: str) -> str:
        return _position(key, self.order)


def positions_of(page: Page, order: KeyOrder) -> Sequence[str]:
    """Strings that compare as the store compares the page's keys. Raises `OutOfOrder` where they do not rise."""
    positions = page.keys
    if order is KeyOrder.PATH:
        positions = [_position(key, order) for key in page.keys]
    if all(map(lt, positions, islice(positions, 1, None))):
        return positions
    positions = [*positions]
    for i in range(1, len(positions)):
        if positions[i] <= positions[i - 1] and page.sizes[i] == 0:
            # A folder's placeholder: the engine dropped the slash by which the store has sorted it.
            positions[i] = _position(f"{page.keys[i]}/", order)
        if positions[i] <= positions[i - 1]:
            raise OutOfOrder(f"{page.keys[i]!r} after {page.keys[i - 1]!r}")
    return positions


def _position(key: str, order: KeyOrder | None) -> str:
    return key.replace("/", "\0") if order is KeyOrder.PATH else key


def _can_travel(key: str) -> bool:
    try:
        check_key(key, of=key)
    except InvalidUrl:
        return False
    return True
