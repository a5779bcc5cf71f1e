"""The one way to a table's swap: look at the log, then ask once.

Owns rule C4 for every commit: the log is read between load and swap. Promises an outcome; a failpoint that
loses the reply counts as unknown, as a lost reply does. Must never ask twice: only the table knows what
became of the first time.
"""

from __future__ import annotations

from collections.abc import Callable

from archiver.catalog.tables import Prepared, SwapOutcome, Swapped, Tables
from archiver.runtime import failpoints
from archiver.runtime.errors import OutcomeUnknown


def swap(tables: Tables, prepared: Prepared, check: Callable[[], None], point: str) -> Swapped:
    """Ask the catalog to point to the prepared snapshot (rules C4, C5). `check` reads the log and raises
    `Deposed` if a newer leader is in it; `point` is what the failpoints around the request are called.
    """
    check()
    try:
        failpoints.reach(f"{point}.before")
        swapped = tables.swap(prepared)
        failpoints.reach(f"{point}.after")
    except OutcomeUnknown as error:
        return Swapped(SwapOutcome.UNKNOWN, prepared.snapshot_id, str(error))
    return swapped
