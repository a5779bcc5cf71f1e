"""What an earlier version left behind: every version reads it all, commits what was pending, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.log.store import entries_from
from archiver.refine.archive_file import footer_values
from archiver.schema.evolution.state import TopicSchema
from intake.log.checkpoint import decode
from intake.log.entries import parse_entry
from tests.compat.make_golden import reading
from tests.support.builders.deployment import check_present, sample_records
from tests.support.builders.golden import GOLDEN, Golden, golden_place, unpack

NEVER_ARCHIVED = ("kept", "numbered", "refused")
VERSIONS = sorted(path.name for path in GOLDEN.iterdir())
LAST_OF_DIGEST_1 = "v8"
"""The newest whose archives have records digests of version 1."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    """A copy of the golden deployment at its place."""
    with golden_place(request.param) as folder:
        unpack(request.param, folder)
        yield Golden(folder)


def test_there_is_one() -> None:
    assert VERSIONS


def test_it_is_read(golden: Golden) -> None:
    check_present(golden, golden.jsonl("sent.jsonl"), golden.jsonl("acknowledged.jsonl"), golden.gaps())
    audit = golden.cli("audit", "--output", "json")
    assert audit.code == 0, audit.out
    document = audit.json()
    assert sum(partition["rows"] for partition in document["partitions"]) > 0
    assert any(partition["pending"] for partition in document["partitions"])
    reported = {
        (partition["topic"], partition["partition"], offset)
        for partition in document["partitions"]
        for base, to in partition["gaps"]
        for offset in range(base, to)
    }
    assert reported == golden.gaps()
    ledger = golden.cli("ledger", "show", "--output", "json").json()
    *settled, last = [item["state"] for item in ledger["rounds"]]
    assert (set(settled), last) == ({"settled"}, "written")
    events = golden.cli("ledger", "events").lines()
    kinds = {item["event"]["type_name"] for item in events}
    every = {"START_COMMIT", "DATA_WRITTEN", "DATA_COMPLETE", "COMMIT_TO_TABLE", "COMMIT_COMPLETE"}
    trimmed = (
        golden.root / "data" / "checkpoint" / "control"
    ).exists()  # then the log has the newest of them alone
    assert kinds <= every if trimmed else kinds == every
    assert "DATA_WRITTEN" in kinds


def test_files_and_deleted_topics_of_version_3_are_known() -> None:
    with golden_place("v3") as folder:
        unpack("v3", folder)
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            fold = app.backlog().fold
            known = fold.positions.source("files:kept")
            assert {Path(path).name for path in known.finished} == {"whole.jsonl", "later.jsonl"}
            begun = {Path(path).name: (state.end, state.count) for path, state in known.begun.items()}
            assert begun == {"begun.jsonl": (27, 1)}
            assert known.forgotten_below > 0, "gone.jsonl was forgotten"
            assert len(fold.deleted_topics) == 2
            assert "gone" not in fold.topics_by_name
            values = [record.value for record in app.stream().read(app.topic("kept").topic_id, 0)]
        for name in ("whole", "gone", "later"):
            taken = [
                value for value in values if value is not None and value.startswith(f"{name}.jsonl".encode())
            ]
            assert taken == [f"{name}.jsonl {number}".encode() for number in range(20)], name


def test_a_changed_schema_and_a_replayed_archive_of_version_4_are_known() -> None:
    with golden_place("v4") as folder:
        unpack("v4", folder)
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            topic = app.ledger().topic(app.topic("orders").topic_id)
            assert sorted(topic.schemas) == [1, 2]
            (old,) = topic.rewrites.replaced
            assert topic.rewrites.replaced[old].by != old
            table = app.table("orders")
            assert table is not None
            paths = {file.path for file in app.live_files("local", table)}
            assert app.objects.uri(topic.rewrites.replaced[old].by) in paths
            assert app.objects.uri(old) not in paths
        done = Golden(folder).cli(
            "query",
            "SELECT value.customer_v2 FROM shop.orders WHERE key.__raw__ = 'latin'::BLOB",
            "--output",
            "json",
        )
        assert done.json()["rows"] == [{"customer_v2": "6ek="}], done


def test_a_start_that_retention_moved_of_version_5_is_known() -> None:
    with golden_place("v5") as folder:
        unpack("v5", folder)
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            topic = app.topic("aged").topic_id
            assert dict(app.ledger().topic(topic).starts) == {0: 10}
            assert [record.value for record in app.stream().read(topic, 0, 10)] == [
                b"aged %d" % number for number in range(10, 16)
            ]
        done = Golden(folder).cli(
            "query", "SELECT count(*) AS n, min(kafka.offset) AS low FROM shop.aged", "--output", "json"
        )
        assert done.json()["rows"] == [{"n": 6, "low": 10}], done


def test_a_ledger_of_version_6_is_read_from_its_checkpoint() -> None:
    with golden_place("v6") as folder:
        unpack("v6", folder)
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            assert app.control_log.floor() > 0
            ledger = app.ledger()
            assert ledger.next_index == app.control_log.tail()
            assert app.leader.checkpoint_index > app.control_log.floor()
            assert (
                sum(len(topic.pending_by_id) for topic in ledger.topics.values())
                == len(Golden(folder).pending())
                > 0
            )


def test_what_version_7_came_with_is_known() -> None:
    append_time = ("message.timestamp.type", "LogAppendTime")
    with golden_place("v7") as folder:
        unpack("v7", folder)
        checkpoints = sorted((folder / "data" / "checkpoint" / "intake").rglob("*.bin"))
        held = decode(checkpoints[-1].read_bytes(), "the newest").state
        assert [topic.name for topic in held.topics if topic.configs] == ["numbered"]
        assert [group.group for group in held.consumer_groups] == ["readers"]
        assert any(state.deleted_below for state in held.partitions.values())
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            fold = app.backlog().fold
            entries = entries_from(app.intake_log, app.intake_log.floor())
            bodies = {parse_entry(entry.index, entry.data).WhichOneof("body") for entry in entries}
            # The checkpoint has their results, and the log has them behind it or before it.
            assert bodies >= {"slots_claimed", "offsets_committed", "offsets_removed", "records_deleted"}
            topic = fold.topics_by_name["numbered"]
            assert (topic.partitions, topic.configs) == (
                4,
                (append_time, ("retention.ms", "172800000")),
            )
            assert {claim.node_id for claim in fold.consumer_groups.claims} == {2}
            (readers,) = fold.consumer_groups
            rows = {partition: row[:3] for partition, row in readers.topics[topic.topic_id]}
            assert rows == {0: (2, 0, "later"), 2: (7, -1, "")}
            clicks = readers.offset(app.topic("clicks").topic_id, 1)
            assert clicks is not None
            assert clicks.offset == 2
            assert readers.active_us >= clicks.time_us
            raised = [one for one in fold.producers if one.newest_epoch > one.epoch]
            assert len(raised) == 2
            for producer in raised:
                batch = producer.batches[topic.topic_id, 0][-1]
                assert (batch.rows, batch.covered, batch.epoch) == (2, 3, 3)
                assert batch.append_us > 0
            assert fold.partition((topic.topic_id, 0)).deleted_below == 2
            values = [record.value for record in app.stream().read(topic.topic_id, 0)]
            refused = [record.value for record in app.stream().read(app.topic("refused").topic_id, 0)]
        assert len(values) == 2, "the first two were deleted"
        assert refused == [b"\xff"] * 2


def test_offsets_of_transactions_of_version_8_are_known() -> None:
    with golden_place("v8") as folder:
        unpack("v8", folder)
        checkpoints = sorted((folder / "data" / "checkpoint" / "intake").rglob("*.bin"))
        held = decode(checkpoints[-1].read_bytes(), "the newest").state
        (before,) = held.pending_offsets
        assert [transaction.transactional_id for transaction in held.transactions] == ["leaver"]
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            fold, clicks = app.backlog().fold, app.topic("clicks").topic_id
            assert fold.next_index > held.next_index, "the log goes on behind the checkpoint"
            movers = fold.consumer_groups.get("movers")
            assert movers is not None
            assert {partition: row[:3] for partition, row in movers.topics[clicks]} == {
                0: (11, 0, "mover"),
                1: (1, -1, ""),
            }
            assert fold.consumer_groups.pending("movers") == {clicks: {0, 1}}
            (transaction,) = fold.transactions
            assert (transaction.transactional_id, transaction.epoch) == ("leaver", 1)
            assert transaction.producer_id == before.producer_id
            # The offsets of the epoch before were dropped when it was opened again.
            (pending,) = fold.consumer_groups.all_pending
            assert pending.index > before.index
            assert app.sequencer.end_transaction(transaction.producer_id, 1, commit=True) is None
            committed = fold.consumer_groups.get("movers")
            assert committed is not None
            assert {partition: row[:3] for partition, row in committed.topics[clicks]} == {
                0: (13, 0, "leaver"),
                1: (3, -1, ""),
            }


def test_archives_of_version_9_have_the_second_digest() -> None:
    found = {
        folder.name: {
            footer_values(pq.read_metadata(path))["version"]
            for path in folder.glob("data/archive/*/data/**/*.parquet")
        }
        for folder in GOLDEN.iterdir()
    }
    assert [found.pop(version) for version in ("v9", "v10", "v11")] == [{"2"}] * 3
    assert set(map(frozenset, found.values())) == {frozenset({"1"})}


def test_record_batches_of_version_10_are_known() -> None:
    with golden_place("v10") as folder:
        unpack("v10", folder)
        stored = [pq.read_metadata(path) for path in (folder / "data" / "intake").rglob("*.parquet")]
        formats = [(one.metadata or {})[b"archiver.intake_format"] for one in stored]
        assert {b"1", b"2"} == set(formats)
        archives = list((folder / "data").glob("archive/*/data/**/*.parquet"))
        assert {footer_values(pq.read_metadata(path))["version"] for path in archives} == {"2"}
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            records = list(app.stream().read(app.topic("wire").topic_id, 1))
        assert {record.source for record in records} == {"archive", "intake"}
        assert [record.value for record in records] == [
            b"wire %d %d %d" % (again, place, row)
            for again in range(2)
            for place in range(5)
            for row in range(3)
        ]
        assert [record.offset for record in records] == list(range(30))
        assert [record.batch_start for record in records] == [3 * (offset // 3) for offset in range(30)]
        assert records[4].headers == (("codec", b"gzip"),)


def test_avro_records_of_version_11_are_known() -> None:
    with golden_place("v11") as folder:
        unpack("v11", folder)
        with Application(load_settings(folder / "archiver.yaml", {}), {}) as app:
            topic = app.topic("avro").topic_id
            source = TopicSchema.from_entry(app.ledger().topic(topic).schemas[1]).value
            assert source is not None
            assert (source.format, source.message) == ("avro", "golden.Reading")
            records = list(app.stream().read(topic, 0))
        assert {record.source for record in records} == {"archive", "intake"}
        sent = [reading(number) + (b"!" if number % 12 == 5 else b"") for number in range(24)]
        assert [record.value for record in records] == sent
        done = Golden(folder).cli(
            "query",
            "SELECT value.id, value.clock, value.amount, value.note, value.odd.long AS odd, value.odd.string AS text, "
            "len(value.tags) AS tags FROM shop.avro ORDER BY kafka.offset",
            "--output",
            "json",
        )
        rows = done.json()["rows"]
        assert len(rows) == 12
        assert rows[7] == {
            "id": 7,
            "clock": 3_723_000_007,
            "amount": "1.75",
            "note": "note 7",
            "odd": 7,
            "text": None,
            "tags": 3,
        }
        assert set(rows[5].values()) == {None}


@pytest.mark.spark
def test_it_goes_on(golden: Golden, spark_session: SparkSession) -> None:
    assert golden.pending()
    before = golden.digests()
    more = sample_records(24, first=120)
    acknowledged = [*golden.jsonl("acknowledged.jsonl"), *golden.produce(more)]
    done = golden.cli("archive", "--all")
    assert done.code == 0, (done.out, done.err)
    audit = golden.cli("audit", "--output", "json")
    assert audit.code == 0, audit.out
    for partition in audit.json()["partitions"]:
        if partition["topic"] not in NEVER_ARCHIVED:
            missing = sum(to - base for base, to in partition["gaps"]) + partition.get("start", 0)
            assert partition["rows"] + missing == partition["watermark"] == partition["next"], partition
    golden.check_taken_over(before)
    check_present(golden, [*golden.jsonl("sent.jsonl"), *more], acknowledged, golden.gaps())
    # Tables with archives of both versions of the records digest.
    if golden.root.name == LAST_OF_DIGEST_1:
        versions = {
            footer_values(pq.read_metadata(path))["version"]
            for path in golden.data.glob("archive/*/data/**/*.parquet")
        }
        assert versions == {"1", "2"}
        deep = golden.cli("audit", "--deep", "--output", "json")
        assert deep.code == 0, deep.out
        assert {item["proof"] for item in deep.json()["partitions"] if item["rows"]} == {"rows"}
