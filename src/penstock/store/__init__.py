"""One bucket spoken to: a small interface, every cloud behind it, safe across fork, spawn and pickling.

Never imports torch. Read in the order of the data: `protocol` (what a store can do), `open`, `adapter`,
`direct`, `local` and `web` (what differs), `pages` (listing), `calls` and `translate` (errors), `wire` and `uploads`
(our own connections), `clients` and `credentials` (settings to engine), `engine` (fork safety).
"""

from penstock.store.open import open_object, open_prefix, open_store
from penstock.store.protocol import (
    Checksum,
    Checksums,
    Copies,
    Deletes,
    Folder,
    Gets,
    KeyOrder,
    Lists,
    ObjectMeta,
    Page,
    Pages,
    PartUpload,
    PendingUpload,
    Puts,
    Store,
    StoredObject,
    Uploads,
)

__all__ = [
    "Checksum",
    "Checksums",
    "Copies",
    "Deletes",
    "Folder",
    "Gets",
    "KeyOrder",
    "Lists",
    "ObjectMeta",
    "Page",
    "Pages",
    "PartUpload",
    "PendingUpload",
    "Puts",
    "Store",
    "StoredObject",
    "Uploads",
    "open_object",
    "open_prefix",
    "open_store",
]
