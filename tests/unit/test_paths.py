"""Checks that object keys are exactly those of the design, and that their parsers return the same parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.objects import paths
from archiver.objects.key_rules import check_key
from archiver.objects.paths import ArchiveKey, Granularity, IntakeKey
from archiver.runtime.errors import InvalidInput
from archiver.runtime.ids import SeededIds, new_ulid

TOPIC = "0123456789abcdef" * 2
ULID = "01KE1A2B3C4D5E6F7G8H9JKMNP"
NEW_YEAR_US = int(datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC).timestamp()) * 1_000_000 + 678_901

granularities: st.SearchStrategy[Granularity] = st.sampled_from(["day", "hour", "month"])
times_us = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999
offsets = st.integers(0, paths.OFFSET_MAX)


@st.composite
def archive_keys(draw: st.DrawFn) -> ArchiveKey:
    granularity = draw(granularities)
    base = draw(st.integers(0, paths.OFFSET_MAX - 1))
    return ArchiveKey(
        topic_id=draw(st.binary(min_size=16, max_size=16)).hex(),
        partition=draw(st.integers(0, paths.PARTITION_MAX)),
        granularity=granularity,
        partition_value=paths.partition_value_of(draw(times_us), granularity),
        base=base,
        end=draw(st.integers(base + 1, paths.OFFSET_MAX)),
        epoch=draw(st.integers(0, paths.EPOCH_MAX)),
    )


def built(key: ArchiveKey) -> str:
    return paths.archive_key(
        key.topic_id, key.partition, key.granularity, key.partition_value, key.base, key.end, key.epoch
    )


def test_keys_are_those_of_the_design() -> None:
    assert paths.cluster_key() == "cluster.json"
    assert paths.intake_key(NEW_YEAR_US, ULID) == f"intake/2026-01-02/03/1767323045678-{ULID}.parquet"
    assert paths.history_key(7, 1200) == "shelf/intake/00000000000000000007-00000000000000001200.parquet"
    assert paths.checkpoint_key("control", 1, 42) == "checkpoint/control/v1/00000000000000000042.bin"
    assert paths.table_prefix(TOPIC) == f"archive/{TOPIC}"
    assert paths.topic_key(TOPIC) == f"archive/{TOPIC}/topic.json"
    assert paths.data_prefix(TOPIC) == f"archive/{TOPIC}/data/"
    assert paths.data_prefix(TOPIC, 3) == f"archive/{TOPIC}/data/partition=00003/"


@pytest.mark.parametrize(
    ("granularity", "value", "path"),
    [
        ("day", 20455, "year=2026/month=01/day=02"),
        ("hour", 20455 * 24 + 3, "year=2026/month=01/day=02/hour=03"),
        ("month", 672, "year=2026/month=01"),
        ("day", 0, "year=1970/month=01/day=01"),
        ("day", -1, "year=1969/month=12/day=31"),
        ("month", -1, "year=1969/month=12"),
    ],
)
def test_archive_keys_are_those_of_the_design(granularity: Granularity, value: int, path: str) -> None:
    key = paths.archive_key(TOPIC, 3, granularity, value, 17, 4200, 5)
    name = "00000000000000000017-00000000000000004200-00000005.parquet"
    assert key == f"archive/{TOPIC}/data/partition=00003/{path}/{name}"
    assert paths.parse_archive_key(key) == ArchiveKey(TOPIC, 3, granularity, value, 17, 4200, 5)


@pytest.mark.parametrize(("granularity", "value"), [("day", 20455), ("hour", 20455 * 24 + 3), ("month", 672)])
def test_partition_values_are_icebergs(granularity: Granularity, value: int) -> None:
    assert paths.partition_value_of(NEW_YEAR_US, granularity) == value
    assert paths.partition_value_of(-1, granularity) == -1


@given(archive_keys())
def test_archive_keys_come_back(key: ArchiveKey) -> None:
    text = built(key)
    check_key(text)
    assert paths.parse_archive_key(text) == key
    assert text.startswith(paths.data_prefix(key.topic_id, key.partition))
    assert paths.parse_intake_key(text) is None


@given(st.integers(0, 9_999_999_999_999), st.integers(0, 2**32), st.integers(0, 999))
def test_intake_keys_come_back(written_ms: int, seed: int, microseconds: int) -> None:
    ulid = new_ulid(SeededIds(seed), written_ms * 1000)
    text = paths.intake_key(written_ms * 1000 + microseconds, ulid)
    check_key(text)
    assert paths.parse_intake_key(text) == IntakeKey(written_ms, ulid)
    assert paths.parse_archive_key(text) is None


@given(st.lists(st.integers(0, 4_102_444_800_000), min_size=2, max_size=5))
def test_a_listing_of_intake_is_in_the_order_of_time(written_ms: list[int]) -> None:
    listed = sorted(paths.intake_key(written * 1000, ULID) for written in written_ms)
    assert [key.written_ms for text in listed if (key := paths.parse_intake_key(text))] == sorted(written_ms)


@given(times_us, times_us, st.lists(offsets, min_size=4, max_size=4, unique=True), granularities)
def test_a_listing_of_a_partition_is_in_the_order_of_time_and_offset(
    one_us: int, two_us: int, bounds: list[int], granularity: Granularity
) -> None:
    first, second = sorted([one_us, two_us])
    a, b, c, d = sorted(bounds)
    early = paths.archive_key(TOPIC, 0, granularity, paths.partition_value_of(first, granularity), a, b, 1)
    late = paths.archive_key(TOPIC, 0, granularity, paths.partition_value_of(second, granularity), c, d, 1)
    assert early < late


@given(archive_keys(), st.data())
def test_parsers_accept_exactly_what_builders_make(key: ArchiveKey, data: st.DataObject) -> None:
    text = built(key)
    position = data.draw(st.integers(0, len(text) - 1))
    changed = text[:position] + data.draw(st.sampled_from("0aZ9/-=.")) + text[position + 1 :]
    parsed = paths.parse_archive_key(changed)
    assert parsed is None or built(parsed) == changed


@pytest.mark.parametrize(
    "key",
    [
        "",
        "cluster.json",
        f"intake/2026-01-02/04/1767323045678-{ULID}.parquet",
        f"intake/2026-01-03/03/1767323045678-{ULID}.parquet",
        f"intake/2026-01-02/03/1767323045678-{ULID.lower()}.parquet",
        f"intake/2026-01-02/03/1767323045678-8{ULID[1:]}.parquet",
        f"intake/2026-01-02/03/1767323045678-{ULID}.parquet\n",
        f"intake/2026-01-02/03/176732304567٣-{ULID}.parquet",
    ],
)
def test_what_is_no_intake_key_is_not_parsed(key: str) -> None:
    assert paths.parse_intake_key(key) is None


GOOD = f"archive/{TOPIC}/data/partition=00003/year=2026/month=01/day=02/{17:020}-{42:020}-{5:08}.parquet"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("partition=00003", "partition=3"),
        ("month=01", "month=13"),
        ("day=02", "day=32"),
        ("day=02", "day=02/hour=24"),
        ("year=2026", "year=0000"),
        (f"{17:020}", f"{42:020}"),
        (f"{42:020}", f"{2**63:020}"),
        (TOPIC, TOPIC.upper()),
        (".parquet", ".parquet\n"),
        ("archive/", "/archive/"),
    ],
)
def test_what_is_no_archive_key_is_not_parsed(old: str, new: str) -> None:
    assert paths.parse_archive_key(GOOD) is not None
    assert paths.parse_archive_key(GOOD.replace(old, new)) is None


@pytest.mark.parametrize(
    "build",
    [
        lambda: paths.intake_key(-1, ULID),
        lambda: paths.intake_key(10**16, ULID),
        lambda: paths.intake_key(0, "../../x"),
        lambda: paths.history_key(5, 4),
        lambda: paths.history_key(-1, 4),
        lambda: paths.checkpoint_key("../x", 1, 0),
        lambda: paths.checkpoint_key("intake", 1, -1),
        lambda: paths.table_prefix("orders"),
        lambda: paths.topic_key(TOPIC + "0"),
        lambda: paths.data_prefix(TOPIC, 100_000),
        lambda: paths.data_prefix(TOPIC, -1),
        lambda: paths.archive_key(TOPIC, 0, "day", 0, 5, 5, 1),
        lambda: paths.archive_key(TOPIC, 0, "day", 0, -1, 5, 1),
        lambda: paths.archive_key(TOPIC, 0, "day", 0, 0, 2**63, 1),
        lambda: paths.archive_key(TOPIC, 0, "day", 0, 0, 5, 10**8),
        lambda: paths.archive_key(TOPIC, 0, "day", 10**7, 0, 5, 1),
        lambda: paths.archive_key(TOPIC, 0, "hour", 10**12, 0, 5, 1),
        lambda: paths.archive_key(TOPIC, 0, "month", -(10**6), 0, 5, 1),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[], str]) -> None:
    with pytest.raises(InvalidInput):
        build()


def test_only_a_terminated_number_separates_partitions() -> None:
    assert re.fullmatch(r".*/", paths.data_prefix(TOPIC, 1))
    assert not paths.data_prefix(TOPIC, 10).startswith(paths.data_prefix(TOPIC, 1))


@given(st.sampled_from(["intake", "control"]), st.integers(0, paths.EPOCH_MAX), offsets)
def test_a_checkpoint_key_comes_back(log: str, fold_format: int, index: int) -> None:
    key = paths.checkpoint_key(log, fold_format, index)
    check_key(key)
    assert key.startswith(paths.checkpoint_prefix(log))
    assert paths.parse_checkpoint_key(key) == paths.CheckpointKey(log, fold_format, index)


@given(offsets, offsets)
def test_a_shelf_key_comes_back(one: int, other: int) -> None:
    start, end = sorted((one, other))
    key = paths.history_key(start, end)
    check_key(key)
    assert paths.parse_history_key(key) == (start, end)


@pytest.mark.parametrize(
    "key",
    [
        "checkpoint/intake/v01/00000000000000000042.bin",
        "checkpoint/intake/v1/42.bin",
        "checkpoint/intake/v1/99999999999999999999.bin",
        "checkpoint/intake/00000000000000000042.bin",
        "checkpoint/Intake/v1/00000000000000000042.bin",
        "x/checkpoint/intake/v1/00000000000000000042.bin",
        "shelf/intake/00000000000000000008-00000000000000000007.parquet",
        "shelf/intake/00000000000000000007-99999999999999999999.parquet",
        "shelf/control/00000000000000000007-00000000000000000008.parquet",
        "shelf/intake/7-8.parquet",
    ],
)
def test_other_keys_are_no_checkpoints_and_no_shelves(key: str) -> None:
    assert paths.parse_checkpoint_key(key) is None
    assert paths.parse_history_key(key) is None


@given(st.lists(st.integers(0, 2_777_775), max_size=100))
def test_prefixes_of_hours_have_all_their_files_once(hours: list[int]) -> None:
    prefixes = paths.intake_hours_prefixes(hours)
    for hour in hours:
        key = paths.intake_key(hour * 3_600_000_000 + 1, ULID)
        assert sum(key.startswith(prefix) for prefix in prefixes) == 1


def test_a_day_of_hours_is_few_prefixes() -> None:
    """From 13 h to 14 h of the next day, and a whole day."""
    prefixes = paths.intake_hours_prefixes(range(13, 39))
    assert prefixes == [
        "intake/1970-01-01/1",
        "intake/1970-01-01/2",
        "intake/1970-01-02/0",
        "intake/1970-01-02/1",
    ]
    assert paths.intake_hours_prefixes(range(24, 49)) == ["intake/1970-01-02/", "intake/1970-01-03/0"]


@given(st.integers(0, 9_999_990_000_000_000))
def test_the_hour_of_an_intake_file(written_us: int) -> None:
    hour = paths.intake_hour_prefix(written_us)
    assert paths.intake_key(written_us, ULID).startswith(hour)
    assert paths.intake_hour_prefix(written_us // 3_600_000_000 * 3_600_000_000) == hour
    assert paths.intake_hour_prefix(written_us + 3_600_000_000) != hour
