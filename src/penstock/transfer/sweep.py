"""Finds uploads that somebody began and never finished, and removes them."""

import os
from datetime import UTC, datetime, timedelta

from penstock.config import StoreConfig
from penstock.store import PendingUpload, open_store

__all__ = ["sweep"]


def sweep(
    url: str | os.PathLike[str],
    *,
    older_than: timedelta = timedelta(days=1),
    dry_run: bool = True,
    config: StoreConfig | None = None,
) -> list[PendingUpload]:
    """The unfinished uploads below `url` that were begun before `older_than`; removes them unless it is a dry run.

    They are invisible in listings and cost money until removed. Take an age longer than any upload of yours.
    """
    if older_than < timedelta(0):
        raise ValueError(f"older_than must not be negative, got {older_than}")
    store = open_store(url, config)
    limit = datetime.now(UTC) - older_than
    orphans = [upload for upload in store.pending_uploads() if upload.started <= limit]
    if not dry_run:
        for upload in orphans:
            store.abort_upload(upload)
    return orphans
