"""Compares the archiver with Spark Structured Streaming and the Iceberg sink for Kafka Connect.

The same nested orders are produced once into a topic of a real broker. Each contender in turn
writes them into an Iceberg table on a SQL catalog in SQLite, with data in a local folder. Its
processes are new for each repetition and were warmed up with a smaller topic:

- `archiver`: the daemon, mirroring and archiving, with the byte-exact check;
- `own_intake`: the same daemon, with records that were sent to the archiver and not to a broker.
  They are in intake files before it begins;
- `streaming`: Structured Streaming with all records in one batch, decoded by ptars in Python
  workers;
- `small_triggers`: the same with 100,000 records in a batch;
- `sink`: the sink, two tasks on two cores, a commit every 10 s, with a converter written for this
  one message;
- `sink_by_schema`: the same with a converter that works from the schema, by protobuf-java's
  DynamicMessage;
- `libraries`: not a peer, but the lower bound without guarantees. A consumer, ptars and pyarrow run
  in a process per core. They check every message and store nothing in between.

Measured is the time from a contender's start signal until its table has every record. Figures are
wall seconds and the CPU seconds of all its processes, without the broker and the sender. All
contenders run on the same cores. Then pyiceberg reads the table, and it is compared with the orders
(rows, ids, sums); a wrong table ends the measurement. A ratio is of one repetition.

    python -m bench.peers [--quick] [--records 2000000] [--repetitions 5] [--contenders archiver,sink]
    [--output bench/results/peers.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Set
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from archiver.catalog.engines import SPARK_PACKAGES
from bench.outcome import tell
from bench.peers.bare import Libraries
from bench.peers.contender import Contender
from bench.peers.ours import Archiver
from bench.peers.own_intake import OwnIntake
from bench.peers.parts import PROTOBUF, fetch
from bench.peers.sink import Sink, SinkBySchema
from bench.peers.streaming import SmallTriggers, Streaming
from bench.peers.upstream import PARTITIONS, decoded, facts, fill
from bench.processes import all_cpu_seconds
from bench.writer import spread
from tests.support.kafka import kafka_server
from tests.support.kafka.java_programs import CONNECT, ICEBERG_SINK, SPARK_SOURCE
from tests.support.kafka.kafka_server import KafkaServer

OURS, OWN, SMALL, BARE = "archiver", "own_intake", "small_triggers", "libraries"
CONTENDERS: dict[str, type[Contender]] = {
    OURS: Archiver,
    OWN: OwnIntake,
    "streaming": Streaming,
    SMALL: SmallTriggers,
    "sink": Sink,
    "sink_by_schema": SinkBySchema,
    BARE: Libraries,
}
TARGET = {"sink": 3.3, "streaming": 2.5}
"""Factor of their records per core-second that the archiver aims at, mirrored from the same topic."""
TARGET_OWN = {"sink": 5.0, "streaming": 4.0}
"""The same, when records are sent to the archiver."""
WARM, MEASURED = "warm", "orders"
WARM_SHARE = 0.25
FRESH_S = 10
"""Commit interval in seconds, for contenders that commit by time."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For short-lived JVMs; never used in a measurement."""
BROKER = {"group.initial.rebalance.delay.ms": 3000}
"""Kafka's default, which tests do not use. With it both tasks of the sink join its group before it begins."""
POLL_S = 0.5
PATIENCE_S = 600.0
MOST = 0.95
"""Share of the CPU time after which only the last commit remains."""


@dataclass(frozen=True)
class Setup:
    """Parameters of the measurement."""

    contenders: list[str]
    records: int
    repetitions: int
    cores: list[int]
    """Cores of the contenders."""
    fresh_s: int
    java_options: str = ""

    @property
    def warm_records(self) -> int:
        """Number of records for the warm-up."""
        return max(1, int(self.records * WARM_SHARE))


@dataclass(frozen=True)
class Run:
    """Result of one contender in one repetition."""

    settings: dict[str, Any]
    cpu: dict[str, float]
    """CPU seconds by kind of process."""
    broker_cpu_s: float
    wall_s: float
    behind_s: float
    """Seconds from `MOST` of the CPU time to the last commit."""
    commits: int
    stored_bytes: int
    proofs: dict[str, Any]
    before_cpu_s: float = 0.0
    """CPU seconds of the contender before its start."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all its processes."""
        return sum(self.cpu.values())


def until_there(contender: Contender, topic: str, records: int) -> list[tuple[float, float]]:
    """Wait until the table has the records; return samples of time and CPU seconds."""
    samples: list[tuple[float, float]] = []
    deadline = time.monotonic() + PATIENCE_S
    while contender.tables.rows(topic) < records:
        contender.check()
        assert time.monotonic() < deadline, (
            f"{contender.tables.rows(topic)} of {records} rows\n{contender.log()}"
        )
        samples.append((time.perf_counter(), sum(contender.cpu_seconds().values())))
        time.sleep(POLL_S)
    return samples


def run_once(kind: type[Contender], broker: KafkaServer, folder: Path, setup: Setup, wanted: pa.Table) -> Run:
    """Run one contender from start to end; raises if its table is wrong."""
    records = setup.records
    with kind(broker.brokers, folder, len(setup.cores), setup.fresh_s, setup.java_options) as contender:
        contender.prepare((WARM, MEASURED))
        contender.begin(WARM)
        until_there(contender, WARM, setup.warm_records)
        contender.rest()
        time.sleep(1.0)  # for its remaining writes
        cpu, broker_cpu, began = contender.cpu_seconds(), all_cpu_seconds(broker.pid), time.perf_counter()
        contender.begin(MEASURED)
        samples = until_there(contender, MEASURED, records)
        ended, then, broker_then = time.perf_counter(), contender.cpu_seconds(), all_cpu_seconds(broker.pid)
        spent = {part: seconds - cpu.get(part, 0.0) for part, seconds in then.items()}
        contender.rest()
        check(kind.__name__, contender, wanted)
        most = sum(cpu.values()) + MOST * sum(spent.values())
        return Run(
            dict(contender.settings()),
            spent,
            broker_then - broker_cpu,
            ended - began,
            ended - next((at for at, seconds in samples if seconds >= most), ended),
            len(contender.tables.commits(MEASURED)),
            contender.tables.stored_bytes(MEASURED),
            dict(contender.proofs(MEASURED)),
            contender.cpu_seconds_before(MEASURED),
        )


def check(name: str, contender: Contender, wanted: pa.Table) -> None:
    """Raise unless the table has each order exactly once."""
    due, found = facts(wanted, contender.unit_us), facts(contender.read(MEASURED), contender.unit_us)
    wrong = {what: (found[what], due[what]) for what in due if found[what] != due[what]}
    assert not wrong, f"the table of {name} is wrong (found, due): {wrong}"


def measure(setup: Setup, folder: Path) -> dict[str, Any]:
    """The result document."""
    fetch()
    wanted = decoded(setup.records)
    runs: dict[str, list[Run]] = {name: [] for name in setup.contenders}
    load = os.getloadavg()
    everywhere = os.sched_getaffinity(0)
    with KafkaServer(folder / "kafka", BROKER) as broker:
        value_bytes = fill(broker.brokers, MEASURED, setup.records)
        fill(broker.brokers, WARM, setup.warm_records)
        os.sched_setaffinity(0, setup.cores)  # contenders inherit this affinity
        try:
            for repetition in range(setup.repetitions):
                at = repetition % len(setup.contenders)
                for name in setup.contenders[at:] + setup.contenders[:at]:
                    own = folder / f"{name}-{repetition}"
                    run = run_once(CONTENDERS[name], broker, own, setup, wanted)
                    runs[name].append(run)
                    shutil.rmtree(own)
                    said = f"{setup.records / run.cpu_s:,.0f} records per core-second, {run.wall_s:.1f} s"
                    print(f"{repetition + 1} {name}: {said}, {run.cpu}", file=sys.stderr, flush=True)
        finally:
            os.sched_setaffinity(0, everywhere)
    return outcome(setup, runs, value_bytes, facts(wanted), load)


def outcome(
    setup: Setup,
    runs: dict[str, list[Run]],
    value_bytes: int,
    wanted: dict[str, Any],
    load: tuple[float, float, float],
) -> dict[str, Any]:
    """Return the result document of all runs."""
    ratios = _by_peer(runs, OURS, runs.keys() - {OURS})
    own, own_whole = (_by_peer(runs, OWN, TARGET.keys(), before=before) for before in (False, True))
    return {
        "what": "records of a Kafka topic in an Iceberg table, per core-second of all processes of a "
        "contender, warm",
        "records": setup.records,
        "bytes_per_value": round(value_bytes / setup.records, 1),
        "partitions": PARTITIONS,
        "warm_up_records": setup.warm_records,
        "repetitions": setup.repetitions,
        "contenders": {name: _contender(setup.records, found) for name, found in runs.items()},
        "archiver_by_peer": ratios,
        "own_intake_by_peer": own,
        "own_intake_with_its_writer_by_peer": own_whole,
        "libraries_by_peer": _by_peer(runs, BARE, TARGET.keys()),
        "wanted_at_least": TARGET,
        "wanted_at_least_from_own_intake": TARGET_OWN,
        "reached": {
            name: ratios[name]["median"] >= least for name, least in TARGET.items() if name in ratios
        },
        "reached_from_own_intake": {
            name: own[name]["median"] >= least for name, least in TARGET_OWN.items() if name in own
        },
        "verified_in_every_run": wanted,
        "load_average_before": load,
        "machine": {
            "cores": os.cpu_count(),
            "cores_used": len(setup.cores),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{
                name: version(name)
                for name in ("pyarrow", "ptars", "protobuf", "pyspark", "pyiceberg", "confluent-kafka")
            },
            "packages": [
                *ICEBERG_SINK,
                *CONNECT,
                PROTOBUF,
                *SPARK_SOURCE,
                SPARK_PACKAGES[0],
                kafka_server.PACKAGES[0],
            ],
        },
    }


def _by_peer(
    runs: dict[str, list[Run]], whose: str, peers: Set[str], *, before: bool = False
) -> dict[str, dict[str, float]]:
    """Return the ratio of records per core-second to each peer in the same repetition. `before`
    includes the CPU time before the start.
    """
    return {
        name: spread(
            [
                theirs.cpu_s / (own.cpu_s + before * own.before_cpu_s)
                for theirs, own in zip(found, runs[whose], strict=True)
            ]
        )
        for name, found in runs.items()
        if name in peers and whose in runs
    }


def _contender(records: int, found: list[Run]) -> dict[str, Any]:
    parts = sorted({part for run in found for part in run.cpu})
    return {
        "settings": found[-1].settings,
        "records_per_core_second": spread([records / run.cpu_s for run in found]),
        "records_per_second": spread([records / run.wall_s for run in found]),
        "cpu_s": {part: spread([run.cpu.get(part, 0.0) for run in found]) for part in parts},
        "cpu_s_before": spread([run.before_cpu_s for run in found]),
        "broker_cpu_s": spread([run.broker_cpu_s for run in found]),
        "wall_s": spread([run.wall_s for run in found]),
        "last_commit_after_most_of_the_work_s": spread([run.behind_s for run in found]),
        "commits": [run.commits for run in found],
        "stored_bytes": [run.stored_bytes for run in found],
        "proofs": found[-1].proofs,
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--cores", type=int, default=2, help="number of cores for the contenders")
    parser.add_argument(
        "--quick", action="store_true", help="few records, once, without small triggers: a smoke test"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    names = options.contenders.split(",")
    if options.quick and SMALL in names:
        names.remove(SMALL)  # it would start Spark once more
    setup = Setup(names, options.records, options.repetitions, cores, FRESH_S)
    if options.quick:
        setup = Setup(names, 4_000, 1, cores, 1, QUICK_START)
    folder = Path(tempfile.mkdtemp(prefix="bench-peers-"))
    try:
        document = measure(setup, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(document, options.output)


if __name__ == "__main__":
    main()
