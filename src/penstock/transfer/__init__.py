"""Bytes moved: parallel reads into the caller's memory, uploads in bounded memory, both verified.

Read in the order of the data: `plan` (pure), `budget`, `tuning`, `hedge`, `fetch` and `upload`, `reader` and `writer`,
`copy`.
"""

from penstock.transfer.budget import ByteBudget
from penstock.transfer.copy import CopiedObject, CopyReport, copy_objects
from penstock.transfer.copy_plan import Compare, Failure
from penstock.transfer.copy_progress import CopyCounts, CopyProgress
from penstock.transfer.fetch import Target, fetch, fetch_many, scatter
from penstock.transfer.plan import ByteRange
from penstock.transfer.reader import ObjectReader, open_reader
from penstock.transfer.sweep import sweep
from penstock.transfer.upload import Upload
from penstock.transfer.writer import ObjectWriter, open_writer

__all__ = [
    "ByteBudget",
    "ByteRange",
    "Compare",
    "CopiedObject",
    "CopyCounts",
    "CopyProgress",
    "CopyReport",
    "Failure",
    "ObjectReader",
    "ObjectWriter",
    "Target",
    "Upload",
    "copy_objects",
    "fetch",
    "fetch_many",
    "open_reader",
    "open_writer",
    "scatter",
    "sweep",
]
