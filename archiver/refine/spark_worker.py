"""What runs inside a Spark worker process.

Owns the border between Spark's batches and tasks. Needs the Python packages and the object store, nothing of
Spark. Must never let one plan's trouble become an exception: Spark would throw away what the other plans of
the task have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import TaskDescriptor, pack, unpack_task
from archiver.runtime import failpoints

RESULT_SCHEMA = pa.schema([pa.field("result", pa.binary())])

_armed_with: list[str] = [""]


def refine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: rows with a column `task` in, rows with a column `result` out, one per
    plan.
    """
    # Arrow would import it in the middle of a plan, where missing memory would break it for good.
    import pandas  # type: ignore[import-untyped]  # noqa: F401

    for batch in batches:
        for cell in batch.column("task"):
            task = unpack_task(cell.as_py())
            _arm(task)
            for result in run_bundle(task):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([pack(result)], pa.binary())], schema=RESULT_SCHEMA
                )


def _arm(task: TaskDescriptor) -> None:
    """Arm what the driver was asked to arm; a worker process that does several tasks keeps counting."""
    if task.options.failpoints != _armed_with[0]:
        failpoints.arm(task.options.failpoints)
        _armed_with[0] = task.options.failpoints
