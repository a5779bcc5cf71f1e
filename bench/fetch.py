"""Measures what a Kafka consumer's fetches cost, in records per core-second, from archives and from
intake.

The records are the nested orders of the other benches, with their schema and as raw bytes, in one
partition. Each run reads the whole partition in order, 1 MiB a fetch, through its own reader. The
three sources are intake, an archive that is verified during the read, and an archive verified
before. Batches are encoded but not sent.

    python -m bench.fetch [--quick] [--repetitions 5] [--output bench/results/fetch.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archiver.kafka.fetch import FetchLimits, FetchReader
from archiver.kafka.log_view import LogView
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.location import StorePlace
from archiver.objects.store import ObjectStore
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import RefineJob, RefineOptions, RefineTopic
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import TopicId
from archiver.schema.evolution.state import TopicSchema, decide
from archiver.stream.stream import RecordStream
from bench.intake_files import CLUSTER, ZSTD_LEVEL, fill_intake, plans_of
from bench.outcome import tell
from bench.shapes import SHAPES
from bench.writer import spread
from intake.log.sequencer import Sequencer

RECORDS = 1_000_000
QUICK_RECORDS = 20_000
FETCH_BYTES = 2**20
TARGET = 300_000
"""Records per core-second, from archives."""
_LIMITS = FetchLimits(cache_bytes=0, read_s=3600.0)


@dataclass
class Partition:
    """One partition with the same records in intake and in archives."""

    sequencer: Sequencer
    objects: ObjectStore
    topic_id: TopicId
    schema: TopicSchema
    records: int

    @classmethod
    def of(cls, records: int, folder: Path, *, raw: bool) -> Partition:
        """Send the records with the writer and refine them in one task."""
        shape = SHAPES["nested"]
        sequencer, objects, topic_id, _ = fill_intake(records, folder, shape.make, 1)
        schema = decide("orders", (), None, None if raw else shape.source).schema
        topics = {topic_id: RefineTopic(topic_id, "orders", schema, "day")}
        plans = tuple(plans_of(sequencer, topic_id, 1))
        options = RefineOptions(zstd_level=ZSTD_LEVEL)
        place = StorePlace(f"file://{objects.root}")
        for task in RefineJob(CLUSTER, place, 1, topics, [plans], options).descriptors():
            assert all(result.error is None for result in run_bundle(task))
        return cls(sequencer, objects, topic_id, schema, records)

    def reader(self, archived: bool) -> FetchReader:
        """Return a reader that finds the records in archives, or in intake alone."""
        ledger = LedgerFold()
        watermarks = {0: self.records} if archived else {}
        ledger.topics[self.topic_id] = TopicLedger(self.topic_id, watermarks=watermarks)
        sequencer, clock = self.sequencer, SystemClock()
        return FetchReader(
            LogView(lambda: sequencer.view, sequencer.backlog, lambda: ledger, clock),
            self.objects,
            lambda backlog, _ledger, reader, verified: RecordStream(
                self.objects,
                backlog,
                lambda _topic, _version: self.schema,
                cluster_id=CLUSTER,
                reader=reader,
                verified=verified,
            ),
            CLUSTER,
            clock,
            _LIMITS,
        )

    def read(self, reader: FetchReader) -> float:
        """Read the partition as one consumer; return records per CPU second over all threads."""
        began_s, at = time.process_time(), 0
        while at < self.records:
            at = reader.read(self.topic_id, 0, at, FETCH_BYTES, committed=True).next_offset
        return self.records / (time.process_time() - began_s)


def measured(partition: Partition, repetitions: int) -> dict[str, Any]:
    """Measure the cases in turns; the first repetition warms up."""
    found: dict[str, list[float]] = {"intake": [], "archive": [], "verified": []}
    for repetition in range(-1, repetitions):
        intake, archive, verified = (partition.reader(archived) for archived in (False, True, True))
        # The cache has no space, so the second run decodes again.
        partition.read(verified)
        rates = {
            "intake": partition.read(intake),
            "archive": partition.read(archive),
            "verified": partition.read(verified),
        }
        for reader in (intake, archive, verified):
            reader.close()
        print({name: round(rate) for name, rate in rates.items()}, file=sys.stderr, flush=True)
        if repetition >= 0:
            for name, rate in rates.items():
                found[name].append(rate)
    return {name: spread(rates) for name, rates in found.items()}


def measure(records: int, repetitions: int) -> dict[str, Any]:
    """The result document."""
    cases: dict[str, Any] = {}
    for name in ("nested", "raw"):
        with tempfile.TemporaryDirectory(prefix="bench-fetch-") as folder:
            partition = Partition.of(records, Path(folder), raw=name == "raw")
            cases[name] = measured(partition, repetitions)
    return {
        "what": "records per core-second that fetches of a Kafka consumer read and encode",
        "records": records,
        "repetitions": repetitions,
        "fetch_bytes": FETCH_BYTES,
        "wanted_records_per_core_second": TARGET,
        "cases": cases,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyarrow": version("pyarrow")},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="few records: a smoke test, the figures mean little"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    records, repetitions = (QUICK_RECORDS, 1) if options.quick else (RECORDS, options.repetitions)
    tell(measure(records, repetitions), options.output)


if __name__ == "__main__":
    main()
