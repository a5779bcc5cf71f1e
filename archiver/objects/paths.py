"""Build and parse every object key.

Numbers are zero-padded so that a plain listing is in order. A number that does not fit is refused
(`InvalidInput`), never widened. A parser accepts exactly the keys that its builder makes. Times are UTC.
Partition values count days, hours or months since 1970-01, as Iceberg's transforms do.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from archiver.runtime.errors import InvalidInput

Granularity = Literal["day", "hour", "month"]

# Each maximum is the largest number that fits into the digits of its key, or a limit of the format.
PARTITION_MAX: Final = 99_999
OFFSET_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 99_999_999
_WRITTEN_MS_MAX: Final = 9_999_999_999_999
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_HOUR_DIGITS: Final = 3
"""Number of possible first digits of a two-digit hour: 0, 1, 2."""
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")
# A ULID: 26 digits of Crockford's base 32. The first is at most 7, because it has only three bits.
_FILE_ID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_PROBE = re.compile(r"Archiver_Probe_[0-9a-f]{16}", re.ASCII)
_LOG: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_INTAKE: Final = re.compile(r"intake/[^/]+/[^/]+/([0-9]{13})-([0-9A-Z]{26})\.parquet")
_ARCHIVE: Final = re.compile(
    r"archive/([0-9a-f]{32})/data/partition=([0-9]{5})/year=([0-9]{4})/month=([0-9]{2})(?:/day=([0-9]{2})(?:/hour=([0-9]{2}))?)?"
    r"/([0-9]{20})-([0-9]{20})-([0-9]{8})\.parquet"
)

_CHECKPOINT: Final = re.compile(r"checkpoint/([a-z][a-z0-9_]{0,39})/v([0-9]+)/([0-9]{20})\.bin")
# Stored name: `shelf/` stays, although the project says history file.
_HISTORY: Final = re.compile(r"shelf/intake/([0-9]{20})-([0-9]{20})\.parquet")

INTAKE_PREFIX: Final = "intake/"
HISTORY_PREFIX: Final = "shelf/"
CHECKPOINT_PREFIX: Final = "checkpoint/"
ARCHIVE_PREFIX: Final = "archive/"


@dataclass(frozen=True, slots=True)
class IntakeKey:
    """The parsed key of an intake file."""

    written_ms: int
    """Write time by the writer's clock, in milliseconds since 1970."""
    file_id: str
    """ULID."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """The parsed key of a checkpoint: the state of a log's fold before the entry at `index`."""

    log: str
    fold_format: int
    index: int


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """The parsed key of an archive: offsets [base, end) of one partition within one day, hour or month of
    ingest time.
    """

    topic_id: str
    partition: int
    granularity: Granularity
    partition_value: int
    base: int
    end: int
    epoch: int

    @property
    def key(self) -> str:
        """The key as text."""
        return archive_key(
            self.topic_id,
            self.partition,
            self.granularity,
            self.partition_value,
            self.base,
            self.end,
            self.epoch,
        )


def cluster_key() -> str:
    """The identity of the cluster that owns the data folder."""
    return "cluster.json"


def probe_key() -> str:
    """The object that tests the store's conditional create."""
    return "probe/conditional-create"


def store_probe_key(name: str) -> str:
    """An object that `config check --connect --probe` creates and deletes; `name` as for a catalog's
    probe.
    """
    return f"{catalog_probe_prefix(name)}.object"


def catalog_probe_prefix(name: str) -> str:
    """Location of the temporary table that tests a catalog, without a trailing slash."""
    if not _PROBE.fullmatch(name):
        raise InvalidInput(f"{name!r} is no name of a probe")
    return f"probe/{name}"


def intake_key(written_us: int, file_id: str) -> str:
    """An intake file written at that time."""
    # Milliseconds, so that a listing is in the order of writing within each hour.
    written_ms = _checked("write time", written_us // 1000, _WRITTEN_MS_MAX)
    if not _FILE_ID.fullmatch(file_id):
        raise InvalidInput(f"file id {file_id!r} is no ULID")
    return f"{intake_hour_prefix(written_us)}{written_ms:013}-{file_id}.parquet"


def intake_hour_prefix(written_us: int) -> str:
    """Key prefix of all intake files written in that hour; ends with a slash."""
    written_ms = _checked("write time", written_us // 1000, _WRITTEN_MS_MAX)
    written = _START + timedelta(milliseconds=written_ms)
    return f"{INTAKE_PREFIX}{written.year:04}-{written:%m-%d/%H}/"


def intake_hours_prefixes(hours: Iterable[int]) -> list[str]:
    """Few key prefixes that cover all intake files written in these hours (counted since 1970).

    Each prefix covers a day, or the hours of a day with the same first digit, so a listing takes few
    requests. It may also cover other hours.
    """
    digits: dict[str, dict[str, None]] = {}
    for hour in hours:
        # The first digit of the hour covers ten hours with one listing.
        day, _, of_day = intake_hour_prefix(hour * _HOUR_US).removesuffix("/").rpartition("/")
        digits.setdefault(f"{day}/", {})[of_day[0]] = None
    return [
        prefix
        for day, some in digits.items()
        # All three digits: the day itself is one prefix instead of three.
        for prefix in ([day] if len(some) == _HOUR_DIGITS else [day + one for one in some])
    ]


def parse_intake_key(key: str) -> IntakeKey | None:
    """The inverse of `intake_key`; None for any other key."""
    match = _INTAKE.fullmatch(key)
    if match is None or not _FILE_ID.fullmatch(match[2]):
        return None
    parsed = IntakeKey(int(match[1]), match[2])
    # The pattern accepts folders that do not agree with the time in the name. Only a rebuilt key is equal.
    return parsed if intake_key(parsed.written_ms * 1000, parsed.file_id) == key else None


def history_key(start: int, end: int) -> str:
    """Key of the history file of intake log entries from index `start` to `end`."""
    if start > end:
        raise InvalidInput(f"a history file of entries {start} to {end} holds nothing")
    first, behind = _checked("log index", start, OFFSET_MAX), _checked("log index", end, OFFSET_MAX)
    return f"{HISTORY_PREFIX}intake/{first:020}-{behind:020}.parquet"


def checkpoint_key(log: str, fold_format: int, index: int) -> str:
    """The state of a log's fold before the entry at `index`."""
    version, position = _checked("format", fold_format, EPOCH_MAX), _checked("log index", index, OFFSET_MAX)
    return f"{checkpoint_prefix(log)}v{version}/{position:020}.bin"


def checkpoint_prefix(log: str) -> str:
    """Key prefix of a log's checkpoints; ends with a slash."""
    if not _LOG.fullmatch(log):
        raise InvalidInput(f"log name {log!r} must match {_LOG.pattern}")
    return f"{CHECKPOINT_PREFIX}{log}/"


def parse_checkpoint_key(key: str) -> CheckpointKey | None:
    """The inverse of `checkpoint_key`; None for any other key."""
    match = _CHECKPOINT.fullmatch(key)
    if match is None:
        return None
    parsed = CheckpointKey(match[1], int(match[2]), int(match[3]))
    if parsed.index > OFFSET_MAX or parsed.fold_format > EPOCH_MAX:
        return None
    # A version with leading zeros would match the pattern.
    return parsed if checkpoint_key(parsed.log, parsed.fold_format, parsed.index) == key else None


def parse_history_key(key: str) -> tuple[int, int] | None:
    """The inverse of `history_key`; None for any other key."""
    match = _HISTORY.fullmatch(key)
    if match is None:
        return None
    start, end = int(match[1]), int(match[2])
    return (start, end) if start <= end <= OFFSET_MAX else None


def table_prefix(topic_id: str) -> str:
    """Location of a topic's table below `data.uri`, without a trailing slash; all objects of the table are
    below it.
    """
    if not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidInput(f"topic id {topic_id!r} is not 32 lower-case hex digits")
    return f"{ARCHIVE_PREFIX}{topic_id}"


def topic_id_of(key: str) -> str | None:
    """The topic whose table folder contains the object; None if it is elsewhere."""
    prefix, _, rest = key.partition("/")
    topic_id = rest.partition("/")[0]
    return topic_id if prefix + "/" == ARCHIVE_PREFIX and _TOPIC_ID.fullmatch(topic_id) else None


def metadata_prefix(topic_id: str) -> str:
    """Key prefix of the table's metadata, if the table is at `table_prefix`; ends with a slash."""
    return f"{table_prefix(topic_id)}/metadata/"


def topic_key(topic_id: str) -> str:
    """Name and identity of a topic."""
    return f"{table_prefix(topic_id)}/topic.json"


def data_prefix(topic_id: str, partition: int | None = None) -> str:
    """Key prefix of a topic's archives, or of one partition's; ends with a slash."""
    data = f"{table_prefix(topic_id)}/data/"
    return (
        data
        if partition is None
        else f"{data}partition={_checked('partition', partition, PARTITION_MAX):05}/"
    )


def archive_key(
    topic_id: str,
    partition: int,
    granularity: Granularity,
    partition_value: int,
    base: int,
    end: int,
    epoch: int,
) -> str:
    """The archive of offsets [base, end), planned under that epoch."""
    if base >= end:
        raise InvalidInput(f"an archive of offsets {base} to {end} would be empty")
    offsets = f"{_checked('offset', base, OFFSET_MAX):020}-{_checked('offset', end, OFFSET_MAX):020}"
    name = f"{offsets}-{_checked('epoch', epoch, EPOCH_MAX):08}.parquet"
    return f"{data_prefix(topic_id, partition)}{day_path(granularity, partition_value)}/{name}"


def parse_archive_key(key: str) -> ArchiveKey | None:
    """The inverse of `archive_key`; None for any other key."""
    match = _ARCHIVE.fullmatch(key)
    if match is None:
        return None
    day = _day_of(*match.group(3, 4, 5, 6))
    if day is None:
        return None
    granularity, value = day
    parsed = ArchiveKey(
        match[1], int(match[2]), granularity, value, int(match[7]), int(match[8]), int(match[9])
    )
    # The builder refuses these, so no object of ours has such a key.
    if parsed.base >= parsed.end or parsed.end > OFFSET_MAX:
        return None
    return parsed


@functools.lru_cache(maxsize=1024)
def _day_of(year: str, month: str, day: str | None, hour: str | None) -> tuple[Granularity, int] | None:
    """The inverse of `day_path`; None if it is no valid time. Cached, because thousands of keys share a
    day.
    """
    granularity: Granularity = "month" if day is None else "day" if hour is None else "hour"
    try:
        time = datetime(int(year), int(month), 1 if day is None else int(day), int(hour or 0), tzinfo=UTC)
    except ValueError:
        return None
    return granularity, partition_value_of((time - _START) // timedelta(microseconds=1), granularity)


def partition_value_of(ingest_us: int, granularity: Granularity) -> int:
    """Days, hours or months since 1970-01 of an ingest time (microseconds since 1970, rounded down also
    before it).
    """
    if granularity == "day":
        # Floor division rounds down before 1970 too, as Iceberg's transforms do.
        return ingest_us // _DAY_US
    if granularity == "hour":
        return ingest_us // _HOUR_US
    time = _START + timedelta(microseconds=ingest_us)
    return (time.year - 1970) * 12 + time.month - 1


def day_path(granularity: Granularity, partition_value: int) -> str:
    """The part of an archive's key that names its day, hour or month:
    `year=2026/month=01[/day=02[/hour=03]]`.
    """
    try:
        if granularity == "month":
            years, month = divmod(partition_value, 12)
            time = datetime(1970 + years, month + 1, 1, tzinfo=UTC)
            return f"year={time.year:04}/month={time.month:02}"
        time = _START + (
            timedelta(days=partition_value) if granularity == "day" else timedelta(hours=partition_value)
        )
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{granularity} {partition_value} since 1970 lies outside the calendar") from error
    day = f"year={time.year:04}/month={time.month:02}/day={time.day:02}"
    return day if granularity == "day" else f"{day}/hour={time.hour:02}"


def _checked(what: str, number: int, maximum: int) -> int:
    if not 0 <= number <= maximum:
        raise InvalidInput(f"{what} {number} does not fit into an object key; it must be from 0 to {maximum}")
    return number
