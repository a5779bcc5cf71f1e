"""A refinement task on a real local store, without Spark: what the archives hold."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import Granularity, archive_key, parse_archive_key
from archiver.refine.archive_file import Uploads, footer_values
from archiver.refine.demultiplexer import refine_batches, run_bundle
from archiver.refine.encodings import ROWS_MIN
from archiver.refine.plan import ROW_OVERHEAD_BYTES
from archiver.refine.plan_writer import PlanWriter, TopicRows, kept
from archiver.refine.task import PlanResult, RefineOptions, pack, unpack_result, unpack_task
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import bounded_columns
from archiver.stream.rebuild import from_intake
from archiver.stream.seal import check_seal
from intake.read.digest import RecordsDigest
from intake.read.reader import IntakeReader
from tests.support.builders.refining import CLUSTER, DAY, NOW, S, kafka, refine, table_of, task_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema, rows_of


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "data")


@pytest.fixture
def intake(store: LocalObjectStore) -> Intake:
    return Intake(store)


def test_offsets_are_dense_and_records_whole(intake: Intake) -> None:
    topic = intake.topic("raw", 2)
    for index in range(3):
        intake.file(
            {(topic, p): [Row(NOW + index, b"%d-%d-%d" % (p, index, i)) for i in range(4)] for p in (0, 1)}
        )
    results = refine(intake, intake.plans(topic, 0) + intake.plans(topic, 1))
    for partition, result in enumerate(results):
        table = table_of(intake, result)
        assert kafka(table, "offset") == list(range(12))
        assert kafka(table, "partition") == [partition] * 12
        assert [row["__raw__"] for row in rows_of(table["value"])] == [
            b"%d-%d-%d" % (partition, n, i) for n in range(3) for i in range(4)
        ]
        (file,) = result.files
        assert (file.archive.base, file.archive.end, file.archive.rows, file.archive.partition) == (
            0,
            12,
            12,
            partition,
        )
        assert file.archive.raw_bytes == 12 * 6


@pytest.mark.parametrize("decode_rows", [1, 100])
def test_ingest_time_is_the_running_maximum_over_files_and_ticks(intake: Intake, decode_rows: int) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW + 5), Row(NOW + 3), Row(NOW + 9)]})
    intake.file({(topic, 0): [Row(NOW + 1), Row(NOW + 10)]})  # a clock that was set back
    intake.tick(NOW + 100)
    intake.file({(topic, 0): [Row(NOW + 50), Row(NOW + 101)]})
    expected = [NOW + n for n in (5, 5, 9, 9, 10, 100, 101)]
    (whole,) = refine(intake, intake.plans(topic), options=RefineOptions(decode_rows=decode_rows))
    assert kafka(table_of(intake, whole), "ingest_timestamp") == expected
    assert (whole.files[0].archive.ingest_min_us, whole.files[0].archive.ingest_max_us) == (
        NOW + 5,
        NOW + 101,
    )
    parts = refine(intake, intake.plans(topic, max_bytes=1, epoch=2))
    assert len(parts) == 3
    assert [time for part in parts for time in kafka(table_of(intake, part), "ingest_timestamp")] == expected


def test_event_time_and_batch_start(intake: Intake) -> None:
    topic = intake.topic("raw")
    intake.file(
        {
            (topic, 0): [
                Row(NOW, event_us=-5, batch=0),
                Row(NOW, event_us=7, batch=1),
                Row(NOW, event_us=NOW, batch=0),
            ]
        }
    )
    intake.file({(topic, 0): [Row(NOW, batch=0), Row(NOW, batch=1)]})
    table = table_of(intake, refine(intake, intake.plans(topic))[0])
    assert kafka(table, "event_timestamp") == [-5, 7, NOW, 0, 0]
    assert kafka(table, "batch_start") == [0, 0, 2, 3, 3]


@pytest.mark.parametrize(
    ("granularity", "times", "ranges", "paths"),
    [
        (
            "day",
            [0, DAY - 1, DAY, DAY, 3 * DAY],
            [(0, 2), (2, 4), (4, 5)],
            ["month=01/day=01", "month=01/day=02", "month=01/day=04"],
        ),
        ("hour", [0, 3600 * S - 1, 3600 * S], [(0, 2), (2, 3)], ["day=01/hour=00", "day=01/hour=01"]),
        (
            "month",
            [0, 31 * DAY - 1, 31 * DAY, 90 * DAY],
            [(0, 2), (2, 3), (3, 4)],
            ["month=01", "month=02", "month=04"],
        ),
        ("day", [5, DAY + 5, 7], [(0, 1), (1, 3)], ["day=01", "day=02"]),  # the third moves over midnight
    ],
)
@pytest.mark.parametrize("per_file", [1, 2, 100])
def test_cut_at_the_boundary_of_the_tables_partition(
    intake: Intake,
    granularity: Granularity,
    times: list[int],
    ranges: list[tuple[int, int]],
    paths: list[str],
    per_file: int,
) -> None:
    topic = intake.topic("raw")
    for first in range(0, len(times), per_file):
        intake.file({(topic, 0): [Row(time) for time in times[first : first + per_file]]})
    (plan,) = intake.plans(topic)
    (result,) = refine(intake, [plan], granularity=granularity)
    assert [(one.archive.base, one.archive.end) for one in result.files] == ranges
    assert sum(one.archive.raw_bytes for one in result.files) == plan.raw_bytes > 0
    each = [
        one.archive.raw_bytes / (end - base) for one, (base, end) in zip(result.files, ranges, strict=True)
    ]
    assert max(each) - min(each) <= 1, "bytes are shared out by records, for these are of one size"
    for one, path in zip(result.files, paths, strict=True):
        key = parse_archive_key(one.archive.key)
        assert key is not None
        assert path in one.archive.key
        assert one.data_file.partition == (key.partition_value,)
        assert (key.granularity, key.base, key.end) == (granularity, one.archive.base, one.archive.end)
    assert kafka(table_of(intake, result), "offset") == list(range(len(times)))


def test_null_and_empty_stay_different(intake: Intake) -> None:
    topic = intake.topic("orders")
    rows = [Row(NOW, None, None), Row(NOW, b"", b""), Row(NOW, order(1), None), Row(NOW, None, b"k")]
    intake.file({(topic, 0): rows})
    table = table_of(intake, refine(intake, intake.plans(topic), schema=order_schema())[0])
    assert [row is None for row in rows_of(table["value"])] == [True, False, False, True]
    assert [None if row is None else row["__raw__"] for row in rows_of(table["key"])] == [
        None,
        b"",
        None,
        b"k",
    ]
    keys, values = RecordCodec(order_schema()).rebuild(table["key"], table["value"])
    assert values.to_pylist() == [row.value for row in rows]
    assert keys.to_pylist() == [row.key for row in rows]


def test_headers_keep_order_repeats_and_nulls(intake: Intake) -> None:
    topic = intake.topic("raw")
    headers: list[tuple[tuple[str, bytes | None], ...]] = [
        (("b", b"1"), ("a", None), ("b", b""), ("é", b"\xff")),
        (),
        (("", b"x"),),
    ]
    intake.file({(topic, 0): [Row(NOW, headers=pairs) for pairs in headers]})
    table = table_of(intake, refine(intake, intake.plans(topic))[0])
    assert [
        tuple((pair["key"], pair["value"]) for pair in row) for row in rows_of(table["headers"])
    ] == headers


def test_records_with_and_without_headers_come_together(intake: Intake) -> None:
    """Files, row groups and parts of row groups without headers between others that have them."""
    topic = intake.topic("raw", 2)
    some: tuple[tuple[str, bytes | None], ...] = (("a", b"1"),)
    has = [(0, 0), (0, 1), (1, 0), (0, 0), (1, 1)]
    for first, second in has:
        rows = [
            Row(NOW, b"%d" % number, headers=some if number % 2 else ())
            if first
            else Row(NOW, b"%d" % number)
            for number in range(4)
        ]
        intake.file({(topic, 0): rows, (topic, 1): [Row(NOW, headers=some if second else ())] * 5})
    for options in (RefineOptions(), RefineOptions(buffer_bytes=1000), RefineOptions(decode_rows=3)):
        epoch = 1 + sum(1 for _ in intake.objects.list("archive/"))
        zero, one = refine(
            intake,
            [*intake.plans(topic, 0, epoch=epoch), *intake.plans(topic, 1, epoch=epoch)],
            options=options,
        )
        assert [len(row) for row in rows_of(table_of(intake, zero)["headers"])] == [
            number % 2 if first else 0 for first, _ in has for number in range(4)
        ]
        assert [len(row) for row in rows_of(table_of(intake, one)["headers"])] == [
            second for _, second in has for _ in range(5)
        ]


def test_a_bad_record_is_kept_and_its_neighbours_are_whole(intake: Intake) -> None:
    topic = intake.topic("orders")
    unknown, padded = b"\x98\x06\x01", b"\x08\x84\x00"  # field 99, and 4 in two bytes
    values = [order(1), b"\xff\xff\xff", order(2, "bo", 3), order(3) + unknown, padded]
    intake.file({(topic, 0): [Row(NOW, value) for value in values]})
    table = table_of(intake, refine(intake, intake.plans(topic), schema=order_schema())[0])
    rows = rows_of(table["value"])
    assert [row["__raw__"] for row in rows] == [None, values[1], None, None, padded]
    assert [row["__unrecognized__"] for row in rows] == [None, None, None, unknown, None]
    assert rows[1]["__err__"] and rows[1]["id"] is None
    assert [row["__err__"] for row in (rows[0], *rows[2:])] == [None] * 4
    assert [row["id"] for row in rows] == [1, None, 2, 3, 4]
    assert rows[2]["lines"][2] == {"sku": "sku-2", "quantity": 3, "__unrecognized__": None}
    assert RecordCodec(order_schema()).rebuild(table["key"], table["value"])[1].to_pylist() == values


def test_footer_keys_and_digests(intake: Intake) -> None:
    topic = intake.topic("raw", 4)
    intake.file({(topic, 3): [Row(NOW, b"a"), Row(NOW, b"b")]})
    (result,) = refine(intake, intake.plans(topic, 3, epoch=9))
    (file,) = result.files
    objects: Any = intake.objects
    data = objects.read(file.archive.key)
    assert (len(data), hashlib.sha256(data).digest()) == (file.archive.size, file.archive.sha256)
    digest = RecordsDigest()
    (segment,) = intake.fold.segments((topic, 3))
    for records in from_intake(IntakeReader(objects), [segment], [], 0, 2):
        digest.update(records)
    assert file.archive.records_digest == digest.digest()
    found = footer_values(pq.read_metadata(pa.BufferReader(data)))
    check_seal(pa.BufferReader(data), file.archive.key)
    assert len(found.pop("footer_sha256")) == 64
    assert found == {
        "version": "2",
        "cluster_id": CLUSTER,
        "topic": "raw",
        "topic_id": topic,
        "partition": "3",
        "base": "0",
        "end": "2",
        "gaps": "[]",
        "epoch": "9",
        "schema": "1",
        "records_digest": digest.digest().hex(),
    }
    assert file.archive.key == archive_key(topic, 3, "day", 20_000, 0, 2, 9)
    assert (file.archive.epoch, file.archive.schema_version, file.archive.gaps) == (9, 1, ())


def test_bounds_are_the_columns_extremes(intake: Intake) -> None:
    topic = intake.topic("orders")
    rows = [
        Row(NOW + i, order(i * 7 - 50, f"customer number {i:04} of many"), b"key-%d" % i, event_us=-i)
        for i in range(500)
    ]
    intake.file({(topic, 0): rows})
    schema = order_schema()
    (file,) = refine(
        intake, intake.plans(topic), schema=schema, options=RefineOptions(decode_rows=64, row_group_rows=150)
    )[0].files
    ids = {column.dotted: column.field_id for column in bounded_columns(schema)}
    objects: Any = intake.objects
    path = str(objects.root / file.archive.key)
    assert file.data_file.lower_bounds is not None
    assert file.data_file.upper_bounds is not None
    for column, select in [
        ("kafka.offset", "kafka.offset"),
        ("value.id", "value.id"),
        ("kafka.ingest_timestamp", "epoch_us(kafka.ingest_timestamp)"),
    ]:
        ((low, high),) = (
            duckdb.connect()
            .execute(
                f"select min({select}), max({select}) from read_parquet('{path}', hive_partitioning=false)"
            )
            .fetchall()
        )
        assert int.from_bytes(file.data_file.lower_bounds[ids[column]], "little", signed=True) == low
        assert int.from_bytes(file.data_file.upper_bounds[ids[column]], "little", signed=True) == high
    assert file.data_file.lower_bounds[ids["value.customer"]] == b"customer number "
    assert file.data_file.upper_bounds[ids["value.customer"]] == b"customer number!"
    assert ids["value.__err__"] not in file.data_file.lower_bounds
    assert set(file.data_file.lower_bounds) <= set(ids.values())
    assert file.data_file.null_value_counts is not None
    assert file.data_file.null_value_counts[ids["value.__raw__"]] == 500
    assert (file.data_file.record_count, file.data_file.file_size) == (500, file.archive.size)
    assert file.data_file.path == f"file://{path}"
    metadata = pq.read_metadata(path)
    assert file.data_file.split_offsets is not None
    assert len(file.data_file.split_offsets) == metadata.num_row_groups == 3
    assert [metadata.row_group(0).sorting_columns[i].column_index for i in (0, 1)] == [
        next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name)
        for name in ("kafka.ingest_timestamp", "kafka.offset")
    ]


def test_field_ids_are_in_the_file(intake: Intake) -> None:
    topic = intake.topic("orders")
    intake.file({(topic, 0): [Row(NOW, order(1))]})
    (file,) = refine(intake, intake.plans(topic), schema=order_schema())[0].files
    objects: Any = intake.objects
    schema = pq.read_schema(objects.root / file.archive.key)
    assert [(field.metadata or {})[b"PARQUET:field_id"] for field in schema] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "options",
    [
        RefineOptions(open_writers_max=2, writer_bytes=1),
        RefineOptions(buffer_bytes=1),
        RefineOptions(decode_rows=1, row_group_rows=2),
    ],
)
def test_many_small_segments_under_tight_bounds(intake: Intake, options: RefineOptions) -> None:
    topic = intake.topic("raw", 7)
    for index in range(20):
        intake.file(
            {
                (topic, p): [Row(NOW + index, b"%d" % (index * 10 + i)) for i in range(p + 1)]
                for p in range(7)
            },
            row_group_bytes=10,
        )
    results = refine(intake, [plan for p in range(7) for plan in intake.plans(topic, p)], options=options)
    for partition, result in enumerate(results):
        table = table_of(intake, result)
        assert kafka(table, "offset") == list(range(20 * (partition + 1)))
        assert [row["__raw__"] for row in rows_of(table["value"])] == [
            b"%d" % (n * 10 + i) for n in range(20) for i in range(partition + 1)
        ]


def test_row_groups_are_bounded_by_rows_and_by_bytes(intake: Intake) -> None:
    topic = intake.topic("raw")
    for _ in range(10):
        intake.file({(topic, 0): [Row(NOW, b"x" * 1000) for _ in range(100)]})
    (by_rows,) = refine(
        intake, intake.plans(topic), options=RefineOptions(decode_rows=50, row_group_rows=250)
    )
    (by_bytes,) = refine(
        intake, intake.plans(topic, epoch=2), options=RefineOptions(decode_rows=50, row_group_bytes=300_000)
    )
    (together,) = refine(
        intake, intake.plans(topic, epoch=3), options=RefineOptions(decode_rows=50, buffer_bytes=300_000)
    )
    objects: Any = intake.objects
    for result, most in ((by_rows, 300), (by_bytes, 400), (together, 400)):
        metadata = pq.read_metadata(objects.root / result.files[0].archive.key)
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        assert sum(sizes) == 1000
        assert max(sizes) <= most
        assert len(sizes) >= 3
    assert len({result.files[0].archive.records_digest for result in (by_rows, by_bytes, together)}) == 1


def test_a_large_segment_is_decoded_in_parts(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW, b"x" * 1000)] * 50})
    decoded: list[int] = []
    real = TopicRows.build

    def build(self: TopicRows, partitions: Any, records: pa.RecordBatch) -> pa.RecordBatch:
        decoded.append(records.num_rows)
        return real(self, partitions, records)

    monkeypatch.setattr(TopicRows, "build", build)
    refine(intake, intake.plans(topic), options=RefineOptions(decode_bytes=10_000))
    assert sum(decoded) == 50
    assert max(decoded) < 10, "of 1,000 bytes and the overhead of a record"


@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [2, 1, 0]])
def test_any_requested_part_of_a_row_group_comes(intake: Intake, wanted: list[int]) -> None:
    topic = intake.topic("raw", 3)
    rows_of_each = (1, 12, 2)
    for index in range(3):
        intake.file(
            {
                (topic, p): [Row(NOW, b"%d-%d-%d" % (p, index, i)) for i in range(rows_of_each[p])]
                for p in range(3)
            }
        )
    results = refine(intake, [plan for p in wanted for plan in intake.plans(topic, p)])
    for partition, result in zip(wanted, results, strict=True):
        expected = [
            b"%d-%d-%d" % (partition, index, i) for index in range(3) for i in range(rows_of_each[partition])
        ]
        assert [row["__raw__"] for row in rows_of(table_of(intake, result)["value"])] == expected


def test_what_records_take_as_columns_is_held(intake: Intake) -> None:
    """Columns may take more memory than the records did."""
    topic = intake.topic("orders")
    for _ in range(10):
        intake.file({(topic, 0): [Row(NOW, b"", None)] * 100})
    (found,) = refine(
        intake,
        intake.plans(topic),
        schema=order_schema(),
        options=RefineOptions(decode_rows=100, buffer_bytes=66_000),
    )
    objects: Any = intake.objects
    assert found.files[0].archive.raw_bytes + ROW_OVERHEAD_BYTES * 1000 < 66_000
    assert pq.read_metadata(objects.root / found.files[0].archive.key).num_row_groups > 1


def test_a_writer_that_is_given_fewer_rows_than_the_log_says_stores_nothing(
    intake: Intake, store: LocalObjectStore
) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW)] * 3})
    (plan,) = intake.plans(topic)
    task = task_of(intake, [plan])
    writer = PlanWriter(
        plan, TopicRows(task.topics[topic], task.options), CLUSTER, store, Uploads(store, 0), task.options
    )
    (records,) = [kept(batch) for _, batch in IntakeReader(store).row_groups(plan.segments[0].file, [0])]
    with pytest.raises(Halt, match="segment 0 of the plan comes next, not 1"):
        writer.add(1, records, 0, 3)
    assert writer.add(0, records, 0, 2)
    with pytest.raises(Corrupted, match="2 rows came for 1 segments from offset 0 on; the log says 3"):
        writer.finish()
    writer.discard()
    assert not list(store.list("archive/"))


def test_what_is_stored_is_held_no_more(intake: Intake) -> None:
    """Writers that end one after the other may take more together than is allowed at a time. None has to
    close its row group early."""
    topic = intake.topic("raw", 8)
    for partition in range(8):
        for _ in range(3):
            intake.file({(topic, partition): [Row(NOW, b"x" * 1000)] * 50})
    plans = [plan for partition in range(8) for plan in intake.plans(topic, partition)]
    objects: Any = intake.objects
    for options, expected in (
        (RefineOptions(buffer_bytes=250_000), 1),
        (RefineOptions(buffer_bytes=90_000), 2),
    ):
        results = refine(intake, [replace(plan, epoch=expected) for plan in plans], options=options)
        groups = [
            pq.read_metadata(objects.root / result.files[0].archive.key).num_row_groups for result in results
        ]
        assert groups == [expected] * 8


def test_small_archives_of_a_topic_share_encodings_within_a_task(intake: Intake) -> None:
    """A topic does not share them with another; and the records are the same for all encodings."""
    one, other = intake.topic("one", 2), intake.topic("other")
    numbered = [Row(NOW, key=b"order-%09d" % number) for number in range(ROWS_MIN)]
    intake.file(
        {
            (one, 0): numbered,
            (one, 1): [Row(NOW, key=b"same")] * ROWS_MIN,
            (other, 0): [Row(NOW, key=b"same")] * ROWS_MIN,
        }
    )
    plans = [*intake.plans(one, 0), *intake.plans(one, 1), *intake.plans(other)]
    first, second, third = refine(intake, plans)
    (alone,) = refine(intake, intake.plans(one, 1, epoch=2))
    assert [_key_encoding(intake, result) for result in (first, second, third)] == [
        "DELTA_BYTE_ARRAY",
        "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY",
    ]
    assert _key_encoding(intake, alone) == "RLE_DICTIONARY"
    assert alone.files[0].archive.records_digest == second.files[0].archive.records_digest
    assert table_of(intake, alone) == table_of(intake, second)


def _key_encoding(intake: Intake, result: PlanResult) -> str:
    objects: Any = intake.objects
    group = pq.read_metadata(objects.root / result.files[0].archive.key).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    (encodings,) = [set(column.encodings) for column in columns if column.path_in_schema == "key.__raw__"]
    (found,) = encodings & {"DELTA_BYTE_ARRAY", "RLE_DICTIONARY"}
    return found


def test_an_archive_written_in_memory_has_the_bytes_of_one_written_to_a_file(
    intake: Intake, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = intake.topic("orders")
    intake.file({(topic, 0): [Row(NOW, order(number)) for number in range(100)]})
    found = []
    for most in (4 * 1024 * 1024, -1):
        monkeypatch.setattr("archiver.refine.archive_file._MEMORY_BYTES_MAX", most)
        (result,) = refine(intake, intake.plans(topic), schema=order_schema())
        key = result.files[0].archive.key
        found.append((result, store.read(key)))
        store.delete(key)
    assert found[0] == found[1]
    assert hashlib.sha256(found[0][1]).digest() == found[0][0].files[0].archive.sha256
    assert not list(store.spool_dir().iterdir())


def test_each_intake_file_is_opened_once(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = intake.topic("raw", 5)
    for _ in range(4):
        intake.file({(topic, p): [Row(NOW)] for p in range(5)})
    opened: list[str] = []
    real = LocalObjectStore.open_input

    def counted(self: LocalObjectStore, key: str) -> pa.NativeFile:
        opened.append(key)
        return real(self, key)

    monkeypatch.setattr(LocalObjectStore, "open_input", counted)
    refine(intake, [plan for p in range(5) for plan in intake.plans(topic, p)])
    assert sorted(opened) == sorted(intake.keys)


def test_descriptors_and_results_travel(intake: Intake) -> None:
    topic = intake.topic("orders")
    intake.file({(topic, 0): [Row(NOW, order(1))]})
    task = task_of(intake, intake.plans(topic), schema=order_schema())
    assert unpack_task(pack(task)) == task
    (result,) = run_bundle(unpack_task(pack(task)))
    assert unpack_result(pack(result)) == result


def test_a_worker_returns_results_in_batches(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = intake.topic("raw", 5)
    intake.file({(topic, p): [Row(NOW)] for p in range(5)})
    task = task_of(intake, [plan for p in range(5) for plan in intake.plans(topic, p)])
    monkeypatch.setattr("archiver.refine.demultiplexer._RESULTS_MAX", 2)
    batches = list(refine_batches([pa.RecordBatch.from_pydict({"task": [pack(task)]})]))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    results = [unpack_result(packed) for batch in batches for packed in rows_of(batch.column("result"))]
    assert sorted(result.partition for result in results) == list(range(5))
    assert [result.error for result in results] == [None] * 5


def test_a_plan_that_begins_and_ends_inside_segments(intake: Intake) -> None:
    topic: TopicId = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW + 9, b"0"), Row(NOW, b"1"), Row(NOW, b"2")]})
    intake.file({(topic, 0): [Row(NOW, b"3"), Row(NOW + 20, b"4"), Row(NOW, b"5")]})
    (plan,) = intake.plans(topic)
    (result,) = refine(intake, [replace(plan, base=1, end=5, rows=4)])
    table = table_of(intake, result)
    assert kafka(table, "offset") == [1, 2, 3, 4]
    assert kafka(table, "ingest_timestamp") == [NOW + 9, NOW + 9, NOW + 9, NOW + 20]
    (file,) = result.files
    assert (file.archive.ingest_min_us, file.archive.ingest_max_us) == (NOW + 9, NOW + 20)
    assert file.archive.raw_bytes == sum(segment.raw_bytes * 2 // 3 for segment in plan.segments)
    assert [row["__raw__"] for row in rows_of(table["value"])] == [b"1", b"2", b"3", b"4"]


def test_gaps_before_the_first_record_and_behind_the_last_belong_to_its_file(intake: Intake) -> None:
    topic: TopicId = intake.topic("raw")
    for records, commit in ((2, False), (3, True), (1, False)):
        producer = intake.producer("sender")
        intake.file({(topic, 0): [Row(NOW, b"%d" % number) for number in range(records)]}, producer=producer)
        intake.end(producer, commit=commit)
    (plan,) = intake.plans(topic)
    (result,) = refine(intake, [plan])
    (file,) = result.files
    assert (file.archive.base, file.archive.end, file.archive.rows) == (0, plan.end, 3)
    assert kafka(table_of(intake, result), "offset") == [2, 3, 4]
