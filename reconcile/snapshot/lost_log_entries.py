"""Is the intake log an older copy that does not know of files it once named?

To such a log the files of the lost entries look unreferenced, and a vacuum would delete acknowledged records.
Each intake file records up to which entry its writer had read the log before storing it. So the log was once
at least that long. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Halt
from intake.read.reader import log_index_of

FOOTERS_READ_MAX = 100
"""A log loses its newest files first, so the newest of the files to be deleted are opened."""


def check_nothing_is_lost(objects: ObjectStore, keys: Sequence[str], next_index: int) -> None:
    """Raise `Halt` if one of the newest of `keys` (ascending) was written when the log was longer than
    `next_index`.
    """
    for key in reversed(keys[-FOOTERS_READ_MAX:]):
        index = log_index_of(objects, key)
        if index is not None and index > next_index:
            raise Halt(
                f"{objects.uri(key)} was written when the intake log reached entry {index}, and the "
                f"log ends at {next_index}: the metadata "
                "store is an older copy; put the newest one in place. Nothing is deleted until then, "
                "because records that the lost entries "
                "named would go"
            )
