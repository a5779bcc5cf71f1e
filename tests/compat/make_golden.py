"""Makes the golden deployment of this version. Run once per stored format, never again: `python -m
tests.compat.make_golden v2`.

It holds records that are archived and committed, archives that are in the ledger and in no table (the
archiver was killed there), and records that are in intake only; from version 2 on also committed, aborted and
repeated batches of producers, checkpoints and shelves, and a log that was trimmed; from version 3 on a topic
that was deleted, and files that a source has finished, begun, and forgotten; from version 4 on a topic whose
schema has changed, and an archive that was made anew after the change; from version 5 on a topic whose oldest
archives retention has taken out of its table; from version 6 on checkpoints of the ledger, and a control log
that was trimmed; from version 7 on a topic with configs, more
partitions, append times and deleted records, batches of a raised epoch that cover more numbers than they have
records, and committed offsets of consumer groups; from version 8 on offsets that transactions commit, drop and
still hold; from version 9 on archives with records digests of version 2; from version 10 on record batches of Kafka
clients as they came; from version 11 on a topic of Avro records.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import shutil
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2

from archiver import Writer
from archiver.app.application import open_application
from archiver.config.settings import FileSourceSettings, SparkSettings, load_settings
from archiver.runtime import failpoints
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from archiver.spark.session import SparkSessions
from intake.batches.decoding import Measured, measure, read_header
from intake.log.committed_offsets import (
    Commit,
    CommittedOffsets,
    OffsetBounds,
    PendingCommit,
    Removal,
    TopicCommit,
)
from intake.log.consumer_groups import GROUP_SLOTS
from intake.producers import Stamp
from intake.records import RECORD_SCHEMA, Record
from intake.sources.files.pump import FileSources
from intake.write.queue import ReceivedBatch
from intake.write.received import MeasuredBatch
from tests.support.builders.deployment import Deployment, jsonl, sample_records, text
from tests.support.builders.driver import AheadClock, Driver
from tests.support.builders.golden import GOLDEN, golden_place
from tests.support.kafka.record_batches import CODECS, RawRecord, batch_bytes, records_bytes
from tests.support.schema.orders import order

FIELD = descriptor_pb2.FieldDescriptorProto
LATIN: list[dict[str, Any]] = [
    {
        "topic": "orders",
        "timestamp": "2026-01-02T03:04:05.678901Z",
        "key": text(b"latin"),
        "value": text(b"\x08\x07\x12\x02\xe9\xe9"),
        "headers": [],
    }
]
"""An order whose customer is not UTF-8."""
AGED = {
    "name": "aged",
    "partitions": 1,
    "retention": "30d",
    "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.aged"},
}
AGED_DAYS = 40
WIRE = {
    "name": "wire",
    "partitions": 2,
    "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.wire"},
}
AVRO = {
    "name": "avro",
    "partitions": 1,
    "value": {"avsc": "readings.avsc"},
    "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.avro"},
}
READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "golden",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "aliases": ["remark"], "default": None},
        {"name": "odd", "type": ["null", "long", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
NUMBERED: list[dict[str, Any]] = [
    {
        "name": "numbered",
        "partitions": 2,
        "value": {
            "descriptor_set": "shop.binpb",
            "message": "shop.Order",
            "validate": "dlq",
            "dlq": "refused",
        },
        "archive": {"kind": "none"},
    },
    {"name": "refused", "partitions": 1, "archive": {"kind": "none"}},
]
EPOCH = 3
TIMEOUT_US = 3600 * 10**6
LOOKS = 20
"""Looks at a folder after which everything in it has been taken in, and what is gone is forgotten."""
KEPT_OUT = (".spool", "metadata.db.lease", "metadata.db.checkpoint", "tmp")


def main(version: str) -> None:
    """Make it; refuses to replace one."""
    target = GOLDEN / version
    if target.exists():
        raise SystemExit(f"{target} exists; a golden deployment is never made again")
    sessions = SparkSessions(SparkSettings(master="local[2]", driver_memory="1g"))
    sessions.session()
    with golden_place(version) as folder:
        make(folder)
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*KEPT_OUT))
    sessions.close()


def make(folder: Path) -> None:
    """The history of the deployment."""
    deployment = Deployment(
        folder, failpoints_asked=True, overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 5}}
    )
    deployment.overrides["topics"] = [*deployment.document()["topics"], AGED, *NUMBERED, WIRE, AVRO]
    (folder / "readings.avsc").write_text(json.dumps(READING), encoding="utf-8")
    deployment.write(deployment.document())
    aged(deployment)
    records = sample_records(120)
    records[60:60] = LATIN
    acknowledged = deployment.produce(records[: 60 + len(LATIN)])
    gaps = transactions(deployment)
    numbered(deployment)
    moved(deployment)
    wired(deployment)
    avro(deployment)
    assert deployment.cli("archive", "--all").code == 0
    taken(deployment, folder / "inbox")
    mended(deployment)
    acknowledged += deployment.produce(records[60 + len(LATIN) : 80]) + deployment.produce(records[80:100])
    killed = deployment.run("archive", "--all", armed="complete.append.after=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    acknowledged += deployment.produce(records[100:])
    gaps += transactions(deployment)
    taken(deployment, folder / "inbox", again=True)
    numbered(deployment, again=True)
    moved(deployment, again=True)
    wired(deployment, again=True)
    avro(deployment, again=True)
    deployment.failpoints_asked = False
    deployment.write(deployment.document())
    (folder / "sent.jsonl").write_text(jsonl(records))
    (folder / "acknowledged.jsonl").write_text("".join(json.dumps(item) + "\n" for item in acknowledged))
    (folder / "gaps.jsonl").write_text("".join(json.dumps(item) + "\n" for item in gaps))


def aged(deployment: Deployment) -> None:
    """Two archives of one topic, of which the first is beyond its retention now and no longer in the
    table."""
    clock = AheadClock()
    for days, values in ((-AGED_DAYS, range(10)), (0, range(10, 16))):
        clock.ahead_s = days * 86_400.0
        with Driver(deployment, clock) as driver:
            driver.send("aged", [b"aged %d" % number for number in values])
            driver.archive()
    done = deployment.cli("clean")
    assert done.code == 0, (done.out, done.err)


def mended(deployment: Deployment) -> None:
    """The orders get a schema that reads what the first one could not, and other changes of every kind; what
    was archived is replayed."""
    files = descriptor_pb2.FileDescriptorSet.FromString((deployment.root / "shop.binpb").read_bytes())
    line, order = files.file[0].message_type
    order.field[1].type = FIELD.TYPE_BYTES  # customer: its new column is customer_v2
    line.field[1].type = FIELD.TYPE_INT64
    line.field[0].name = "article"
    line.field.add(name="note", number=3, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    (deployment.root / "shop.binpb").write_bytes(files.SerializeToString())
    assert deployment.cli("archive", "--all").code == 0
    done = deployment.cli("dlq", "replay", "--topic", "orders", "--output", "json")
    assert done.code == 0, (done.out, done.err)


def transactions(deployment: Deployment) -> list[tuple[str, int, int]]:
    """A committed and an aborted transaction, and a batch that came twice; topic, partition and offset of
    what was aborted."""
    os.environ[failpoints.VARIABLE] = ""
    with Writer(deployment.config) as writer:
        producer = writer.producer("golden")
        with producer.transaction():
            kept = [producer.send("clicks", b"committed", partition=partition) for partition in (0, 1)]
        producer.begin()
        aborted = [producer.send("clicks", b"aborted", partition=partition) for partition in (0, 0, 1)]
        writer.flush()
        producer.abort()
        plain = writer.producer()
        first = plain.send("files", b"once", partition=0, sequence=0).result(30)
        again = plain.send("files", b"once", partition=0, sequence=0).result(30)
        assert (first.outcome, first.offset) == ("ok", again.offset)
        assert all(one.result(30).outcome == "ok" for one in kept)
        reported = [one.result(30) for one in aborted]
    del os.environ[failpoints.VARIABLE]
    return [(one.topic, one.partition, one.offset) for one in reported if one.offset is not None]


def numbered(deployment: Deployment, *, again: bool = False) -> None:
    """A topic that grows and gets configs, a client that numbers its batches itself, and consumer groups. The
    second time the same again, behind the newest checkpoint."""
    os.environ[failpoints.VARIABLE] = ""
    with open_application(load_settings(deployment.config, os.environ), os.environ) as app:
        writer, sequencer = app.intake.writer(), app.sequencer
        topic = sequencer.grow_topic("numbered", 4 if again else 3)
        retention_ms = "172800000" if again else "86400000"
        configs = (("message.timestamp.type", "LogAppendTime"), ("retention.ms", retention_ms))
        sequencer.configure_topic(topic.topic_id, lambda _: configs)
        producer_id, _ = sequencer.open_producer("", 0)
        # The second of three does not decode, and is in the DLQ topic.
        values = [order(1, "first"), b"\xff", order(2, "third")]
        columns = pa.RecordBatch.from_pylist(
            [{"key": None, "value": value, "headers": [], "event_timestamp": None} for value in values],
            schema=RECORD_SCHEMA,
        )
        stamp = Stamp(producer_id, EPOCH, 0)
        # A record through the waiting way first: then the schema is fetched.
        assert writer.send("numbered", Record(None, values[0]), 1).result(30).outcome == "ok"
        pending = writer.send_received(ReceivedBatch(topic, 0, columns, stamp), lambda: None)
        writer.flush()
        assert pending.outcome()[1].outcome == "ok"
        sequencer.delete_records(topic.topic_id, {0: 2 if again else 1})
        offsets = CommittedOffsets(sequencer, SystemClock(), OffsetBounds(2**28, 3600 * 10**6))
        claim = offsets.claim_slots(range(GROUP_SLOTS), 2 if again else 1)
        first = TopicCommit(topic.topic_id, [0, 2], [1, 7], [0, -1], ["a note", ""])
        clicks = TopicCommit(app.topic("clicks").topic_id, [1], [2])
        commits = [Commit("readers", claim, (first, clicks)), Commit("gone", claim, (first,))]
        assert offsets.commit(commits) == ["ok", "ok"]
        assert offsets.remove([Removal("gone", claim)]) == ["ok"]
        second = TopicCommit(topic.topic_id, [0], [2], [0], ["later"])
        assert offsets.commit([Commit("readers", claim, (second,)), Commit("readers", claim)]) == ["ok", "ok"]
        writer.close()
    del os.environ[failpoints.VARIABLE]


def moved(deployment: Deployment, *, again: bool = False) -> None:
    """Transactions that commit offsets: one is committed, one aborted, and one stays open. The second time it is
    opened again, behind the newest checkpoint."""
    os.environ[failpoints.VARIABLE] = ""
    with open_application(load_settings(deployment.config, os.environ), os.environ) as app:
        offsets = CommittedOffsets(app.sequencer, SystemClock(), OffsetBounds(2**28, 3600 * 10**6))
        claim = offsets.claim_slots(range(GROUP_SLOTS), 2 if again else 1)
        topic_id, later = app.topic("clicks").topic_id, 10 * again
        for name, offset, commit in (("mover", 1, True), ("dropper", 2, False), ("leaver", 3, None)):
            producer_id, epoch = app.sequencer.open_producer(name, TIMEOUT_US)
            rows = TopicCommit(topic_id, [0, 1], [later + offset, offset], [0, -1], [name, ""])
            pending = PendingCommit(Commit("movers", claim, (rows,)), name, producer_id, epoch)
            assert offsets.hold([pending]) == ["ok"]
            if commit is not None:
                assert app.sequencer.end_transaction(producer_id, epoch, commit=commit) is None
    del os.environ[failpoints.VARIABLE]


def reading(number: int) -> bytes:
    """A reading in Avro."""
    value = {
        "id": number,
        "clock": dt.time(1, 2, 3, number),
        "amount": Decimal(number) / 4,
        "note": f"note {number}" if number % 2 else None,
        "odd": (None, number, "text")[number % 3],
        "tags": ["a"] * (number % 4),
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(READING), value)
    return out.getvalue()


def avro(deployment: Deployment, *, again: bool = False) -> None:
    """Readings, of which one cannot be decoded. The second time they are in intake alone."""
    first = 12 * again
    values = [reading(number) for number in range(first, first + 12)]
    values[5] += b"!"
    os.environ[failpoints.VARIABLE] = ""
    with Writer(deployment.config) as writer:
        pending = [writer.send("avro", value, partition=0) for value in values]
        assert [one.result(30).offset for one in pending] == list(range(first, first + 12))
    del os.environ[failpoints.VARIABLE]


def wired(deployment: Deployment, *, again: bool = False) -> None:
    """Batches of Kafka clients in each codec, and one of them twice. The second time they are in intake alone."""
    os.environ[failpoints.VARIABLE] = ""
    with open_application(load_settings(deployment.config, os.environ), os.environ) as app:
        writer, topic = app.intake.writer(), app.topic("wire")
        producer_id, epoch = app.sequencer.open_producer("", 0)
        pending = []
        for number, codec in enumerate((*CODECS, "lz4")):
            # The last one repeats the lz4 batch before it.
            place = min(number, len(CODECS) - 2) if number == len(CODECS) else number
            records = [
                RawRecord(
                    b"%d" % place, b"wire %d %d %d" % (again, place, row), (("codec", codec.encode()),), row
                )
                for row in range(3)
            ]
            data = batch_bytes(records_bytes(records), codec=codec)
            header = read_header(data)
            (sizes,) = measure([(header, data)], uncompressed_max=2**20)
            assert isinstance(sizes, Measured)
            stamp = Stamp(producer_id, epoch, 3 * place)
            batch = MeasuredBatch(topic, 1, data, header.count, sizes, stamp)
            pending.append(writer.send_encoded(batch, lambda: None))
            writer.flush()
        outcomes = [one.outcome() for one in pending]
        assert all(verdict.outcome == "ok" for _, verdict in outcomes), outcomes
        assert len({offset for offset, _ in outcomes}) == len(CODECS)
        writer.close()
    del os.environ[failpoints.VARIABLE]


def taken(deployment: Deployment, inbox: Path, *, again: bool = False) -> None:
    """Files that are finished, begun and (the second time) forgotten, and a topic that comes and goes."""
    inbox.mkdir(exist_ok=True)
    names = ("later.jsonl",) if again else ("whole.jsonl", "gone.jsonl")
    for name in names:
        (inbox / name).write_text(
            "".join(json.dumps({"value": f"{name} {number}"}) + "\n" for number in range(20))
        )
    if again:
        (inbox / "gone.jsonl").unlink()
    else:
        (inbox / "begun.jsonl").write_text('{"value": "the good line"}\n{"value": 1}\n')
    os.environ[failpoints.VARIABLE] = ""
    with open_application(load_settings(deployment.config, os.environ), os.environ) as app:
        app.intake.writer().close()
        source = FileSourceSettings(
            glob=f"{inbox}/*.jsonl", topic="kept", format="jsonl", text=True, settle=0
        )
        sources = FileSources(
            [source],
            {"kept": 1},
            app.settings.intake,
            app.sequencer,
            app.objects,
            SystemClock(),
            SystemIds(),
            1.0,
        )
        for _ in range(LOOKS):
            sources.poll()
        state = sources.state()[0]
        assert (state.finished, state.failed) == (2, 1), state
        name = "gone-again" if again else "gone"
        topic = app.sequencer.declare_topic(name, 1)
        app.sequencer.delete_topic(topic.topic_id)
    del os.environ[failpoints.VARIABLE]


if __name__ == "__main__":
    main(sys.argv[1])
