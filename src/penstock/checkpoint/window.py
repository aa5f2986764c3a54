"""The beginning and the end of an object, where checkpoint files keep what describes them; read once, then at hand."""

from penstock.errors import IntegrityError
from penstock.store import ObjectMeta, Store

__all__ = ["Window"]

_HEAD_BYTES = 1 << 20
_TAIL_BYTES = 256 << 10


class Window:
    """Reads of one version of an object. What was read is kept; a small object is one request altogether."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        first = store.get_object(key, start=0, stop=_HEAD_BYTES)
        self.meta: ObjectMeta = first.meta
        self._held = [(0, first.data)]

    @property
    def url(self) -> str:
        """The object's, for messages."""
        return f"{self.store.url.rstrip('/')}/{self.key}"

    def held(self, start: int, stop: int) -> memoryview | None:
        """These bytes, if they are at hand."""
        for at, data in self._held:
            if at <= start and stop <= at + len(data):
                return data[start - at : stop - at]
        return None

    def read(self, start: int, stop: int) -> memoryview:
        """These bytes. What lies near the end brings the end along."""
        if not 0 <= start <= stop <= self.meta.size:
            raise IntegrityError(
                f"{self.url}: bytes {start} to {stop} are asked for by its own directory, and it has {self.meta.size}; "
                "the file is damaged, restore it"
            )
        if (found := self.held(start, stop)) is not None:
            return found
        end = self.meta.size
        first = max(end - _TAIL_BYTES, len(self._held[0][1]))
        at, until = (first, end) if start >= first else (start, stop)
        self._held.append((at, self.get(at, until)))
        return self.read(start, stop)

    def get(self, start: int, stop: int) -> memoryview:
        """Reads the range, all of it, and keeps nothing."""
        data = self.store.get(self.key, start=start, stop=stop, if_match=self.meta.etag)
        self.check_whole(start, stop - start, len(data))
        return data

    def get_into(self, view: memoryview, *, start: int) -> None:
        """Fills the view, all of it."""
        got = self.store.get_into(self.key, view, start=start, if_match=self.meta.etag)
        self.check_whole(start, len(view), got)

    def check_whole(self, start: int, wanted: int, got: int) -> None:
        """Refuses a read that ended early."""
        if got != wanted:
            raise IntegrityError(
                f"{self.url}: {wanted} bytes from {start} on were asked for, {got} came; read it again"
            )
