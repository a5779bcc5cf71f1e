"""A program of its own: sends records through a writer to a store that is slow, and prints by how many MiB
the process grew.

`python -m tests.support.intake.slow_store_memory FOLDER MEGABYTES QUEUE_BYTES`; then one JSON line with the
growth and the writer's metrics.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from intake.log.sequencer import Sequencer
from intake.records import Record
from intake.write.writer import IntakeWriter
from tests.support.builders.refine_memory import peak_mib
from tests.support.objects.memory_store import MemoryObjectStore

BATCH_ROWS, VALUE_BYTES = 4_000, 2_000
SLOW_S_PER_MB = 0.002


class SlowSink(MemoryObjectStore):
    """Takes every file in its own time, and keeps none."""

    def create(self, key: str, data: bytes) -> None:
        """Slower than records are sent."""
        SystemClock().sleep(len(data) / 1e6 * SLOW_S_PER_MB)


def main(folder: str, megabytes: str, queue_bytes: str) -> None:
    """Send batches of 8 MB and single records between them, without waiting for any acknowledgement."""
    logs = SqliteLogStore(Path(folder) / "metadata.db", 30, LogSettings().entry_bytes_max)
    sequencer = Sequencer(logs.log("intake"), SystemIds(), SystemClock(), LogSettings())
    sequencer.declare_topic("t", 8)
    noise = pa.py_buffer(np.random.default_rng(7).bytes(BATCH_ROWS * VALUE_BYTES))
    offsets = pa.py_buffer((np.arange(BATCH_ROWS + 1, dtype=np.int32) * VALUE_BYTES).tobytes())
    values = pa.Array.from_buffers(pa.binary(), BATCH_ROWS, [None, offsets, noise])
    settings = IntakeSettings.model_validate({"queue_bytes_max": int(queue_bytes), "close_timeout": 100})
    with IntakeWriter(SlowSink(), sequencer, settings, SystemClock(), SystemIds()) as writer:
        writer.send_batch("t", pa.table({"value": values})).result(60)  # the libraries have what they need
        before = peak_mib()
        for number in range(int(megabytes) * 1_000_000 // (BATCH_ROWS * VALUE_BYTES)):
            columns = values.take(
                np.roll(np.arange(BATCH_ROWS), number)
            )  # rows of its own, as a producer would send
            writer.send_batch("t", pa.table({"value": columns}))
            writer.send("t", Record(None, bytes(VALUE_BYTES)))
        grown = peak_mib() - before
        writer.flush()
        print(json.dumps({"grown_mib": max(grown, peak_mib() - before), **asdict(writer.metrics())}))
    logs.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
