"""A program of its own: refines incompressible records and prints by how many MiB the process grew.

`python -m tests.support.builders.refine_memory FOLDER` makes the records; with `BUFFER_BYTES ROW_GROUP_BYTES`
behind it, another process refines them, so that its peak is refinement's alone.
"""

from __future__ import annotations

import pickle
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from archiver.objects.local import LocalObjectStore
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import RefineOptions
from intake.format import INTAKE_SCHEMA
from tests.support.builders.refining import NOW, task_of
from tests.support.intake.intake_files import Intake

PARTITIONS = 8
FILES = 20
ROWS = 1_000
VALUE_BYTES = 2_000
"""Raw bytes in all: 8 x 20 x 1,000 x 2,000 = 320 MB."""


def fill(intake: Intake) -> Any:
    """Twenty files of 16 MB, each with every partition."""
    random = np.random.default_rng(7)
    topic = intake.topic("raw", PARTITIONS)
    rows = PARTITIONS * ROWS
    for number in range(FILES):
        data = pa.py_buffer(random.bytes(rows * VALUE_BYTES))
        offsets = pa.py_buffer((np.arange(rows + 1, dtype=np.int32) * VALUE_BYTES).tobytes())
        values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data])
        times = pa.array(np.full(rows, NOW + number)).cast(INTAKE_SCHEMA.field("accept_timestamp").type)
        columns: dict[str, Any] = {
            "topic": pa.array(["raw"] * rows),
            "partition": pa.array(np.repeat(np.arange(PARTITIONS, dtype=np.int32), ROWS)),
            "value": values,
            "headers": pa.array([[]] * rows, INTAKE_SCHEMA.field("headers").type),
            "event_timestamp": times,
            "accept_timestamp": times,
            "batch": pa.array(np.zeros(rows, np.int32)),
        }
        arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in INTAKE_SCHEMA]
        table = pa.Table.from_arrays(arrays, schema=INTAKE_SCHEMA)
        intake.table(
            table,
            [((topic, partition), ROWS, ROWS * VALUE_BYTES, NOW + number) for partition in range(PARTITIONS)],
        )
    return topic


def peak_mib() -> int:
    """The process's highest resident size so far. Linux counts the parent's into `ru_maxrss`, but not into
    VmHWM."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 * 1024)


def main(folder: str, *bounds: str) -> None:
    """Fill the folder, or refine what is in it and print."""
    plans_file = Path(folder) / "plans.pickle"
    if not bounds:
        intake = Intake(LocalObjectStore(Path(folder) / "data"))
        topic = fill(intake)
        plans_file.write_bytes(
            pickle.dumps([plan for partition in range(PARTITIONS) for plan in intake.plans(topic, partition)])
        )
        return
    plans = pickle.loads(plans_file.read_bytes())
    options = RefineOptions(
        buffer_bytes=int(bounds[0]), row_group_bytes=int(bounds[1]), reads_max=int(bounds[2])
    )
    task = task_of(Intake(LocalObjectStore(Path(folder) / "data")), plans, options=options, ahead=False)
    before = peak_mib()
    for result in run_bundle(task):
        assert result.error is None, result.why
    print(peak_mib() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
