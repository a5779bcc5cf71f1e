"""Measures what validating records at the edge of the intake costs the sender.

Measured are CPU seconds of this process with all threads, from the first record to the last
acknowledgement. Record values are Protobuf messages, sent one by one (`send`) and as columns
(`send_batch`). Each case is a topic with other rules: `none`, `reject` and `coerce`. `coerce` is
`reject` and also gives every message an envelope; the newest version of a registry is simulated for
it. Repetitions are interleaved. A ratio is `none` by the case in the same repetition, so 1 means
that validation is free. `added_us` is the added time per record.

Three messages are used. `small` has numbers and texts, for which parsing is a complete check.
`flat` and `nested` of `bench.schema` have timestamps, whose range must be checked as well.

    python -m bench.edge [--quick] [--output bench/results/edge.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from archiver.schema.payload_check import EdgeCheck
from archiver.schema.protobuf.descriptors import Envelope, Source
from bench.outcome import tell
from bench.schema import cases
from bench.writer import spread
from intake.arrow_arrays import binary_lengths
from intake.log.sequencer import Sequencer
from intake.records import Record
from intake.write.schema_validation import EdgeSchemas, Rules
from intake.write.validation import Side, SideRules
from intake.write.writer import IntakeWriter

PARTITIONS = 16
RULES = {"none": SideRules(), "reject": SideRules("reject"), "coerce": SideRules("reject", coerce=True)}
_WAIT_S = 60.0
_REFRESH_S = 3600.0


def messages(rows: int) -> dict[str, tuple[Source, pa.Array[Any]]]:
    """Return schema and values of every message."""
    known = cases()
    made = {
        name: (known[name].source, known[name].make(rows, 0).cast(pa.binary())) for name in ("flat", "nested")
    }
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="small.proto", package="bench", syntax="proto3")
    small = file.message_type.add(name="small")
    small.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    small.field.add(name="customer", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    small.field.add(name="counts", number=3, type=field.TYPE_INT32, label=field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.small"))
    values = [
        make(id=row, customer=f"customer-{row % 9973}", counts=range(row % 7)).SerializeToString()
        for row in range(rows)
    ]
    source = Source("bench.small", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return {"small": (source, pa.array(values, pa.binary()))} | made


def judge_of(sources: dict[str, Source]) -> EdgeSchemas:
    """Return started edge schemas, with a topic for each combination of message and rule."""
    enveloped = {name: replace(source, envelope=Envelope(((7, (0,)),))) for name, source in sources.items()}

    def fetch(topic: str, _side: Side, rules: SideRules) -> EdgeCheck:
        message = topic.split("-", maxsplit=1)[0]
        return EdgeCheck(enveloped[message] if rules.coerce else sources[message])

    edge = EdgeSchemas(fetch, _REFRESH_S, SystemClock())
    rules: Rules = {
        f"{message}-{name}": {"value": rule} for message in sources for name, rule in RULES.items()
    }
    edge.adopt(rules)
    edge.begin()
    return edge


def send_each(writer: IntakeWriter, topic: str, values: pa.Array[Any]) -> bool:
    """Send records one by one; return whether all are stored."""
    pending = [writer.send(topic, record) for record in [Record(None, value) for value in values.to_pylist()]]
    return all(one.result(_WAIT_S).outcome == "ok" for one in pending)


def send_whole(writer: IntakeWriter, topic: str, values: pa.Array[Any]) -> bool:
    """Send the records as one batch; return whether all are stored."""
    return writer.send_batch(topic, pa.record_batch({"value": values})).result(_WAIT_S).outcome == "ok"


def cpu_s(
    send: Callable[[IntakeWriter, str, pa.Array[Any]], bool],
    topic: str,
    values: pa.Array[Any],
    edge: EdgeSchemas,
) -> float:
    """Return the CPU seconds of one run in a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="bench-edge-"))
    logs = SqliteLogStore(folder / "metadata.db", 30, LogSettings().entry_bytes_max)
    try:
        sequencer = Sequencer(logs.log("intake"), SystemIds(), SystemClock(), LogSettings())
        sequencer.declare_topic(topic, PARTITIONS)
        objects = LocalObjectStore(folder / "data")
        with IntakeWriter(objects, sequencer, IntakeSettings(), SystemClock(), SystemIds(), edge) as writer:
            began_s = time.process_time()
            stored = send(writer, topic, values)
            spent_s = time.process_time() - began_s
    finally:
        logs.close()
        shutil.rmtree(folder)
    assert stored, f"some records of {topic} are not stored"
    return spent_s


def measure(singles: int, rows: int, repetitions: int) -> dict[str, Any]:
    """The result document."""
    made = messages(rows)
    edge = judge_of({message: source for message, (source, _) in made.items()})
    results: dict[str, Any] = {}
    try:
        for message, (_, values) in made.items():
            results[message] = {"value_bytes": round(int(binary_lengths(values).sum()) / rows, 1)}
            for way, send, given in (
                ("send", send_each, values.slice(0, singles)),
                ("send_batch", send_whole, values),
            ):
                spent: dict[str, list[float]] = {name: [] for name in RULES}
                for repetition in range(repetitions + 1):
                    for name in RULES:
                        seconds = cpu_s(send, f"{message}-{name}", given, edge)
                        if repetition:  # the first run warms up
                            spent[name].append(seconds / len(given) * 1e6)
                results[message][way] = {"records": len(given)} | {
                    name: figures(spent, name) for name in RULES
                }
    finally:
        edge.close()
    return {
        "what": "CPU microseconds per record from handing it over to its acknowledgement, by what the topic "
        "asks of it",
        "partitions": PARTITIONS,
        "repetitions": repetitions,
        "messages": results,
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
    }


def figures(spent: dict[str, list[float]], name: str) -> dict[str, Any]:
    """Return the figures of one case, compared with `none` within each repetition."""
    shown: dict[str, Any] = {"us": spread(spent[name])}
    if name != "none":
        pairs = list(zip(spent["none"], spent[name], strict=True))
        shown |= {
            "added_us": spread([ours - none for none, ours in pairs]),
            "ratio": spread([none / ours for none, ours in pairs]),
        }
    return shown


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest size: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tell(measure(200, 2000, 1) if options.quick else measure(5000, 50_000, 5), options.output)


if __name__ == "__main__":
    main()
