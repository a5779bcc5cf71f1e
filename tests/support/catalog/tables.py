"""Small real tables for tests: a schema, archives with rows, a leader with a log, and catalogs whose replies
get lost."""

from __future__ import annotations

import enum
import hashlib
import json
import struct
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.catalog.commit import CommitOutcome, Committer
from archiver.catalog.identity import TableTarget, ensure_table
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import PARTITION_FIELD_ID, StreamFields, stream_fields
from archiver.catalog.tables import (
    Evolved,
    Identifier,
    LiveFile,
    NewProperties,
    Prepared,
    SwapOutcome,
    Swapped,
    Tables,
    TableView,
)
from archiver.config.groups import LogSettings
from archiver.events.types import DataFile, DataWritten, Event, PartitionField, TableReference
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.bridge import append_files_written
from archiver.ledger.leader import Leader
from archiver.log.store import Log
from archiver.objects.paths import Granularity, archive_key, partition_value_of
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds, TopicId, new_uuid
from tests.support.log.memory_log import MemoryLogStore

TOPIC_ID = TopicId("ab" * 16)
CLUSTER_ID = "cd" * 16
IDENTIFIER: Identifier = ("demo", "flights")
DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
FIELDS = (PartitionField(PARTITION_FIELD_ID, "ingest_day", "date"),)


def schema_json() -> str:
    """A value of one text column, and the stream's coordinates; ids that no catalog would assign by
    itself."""

    def column(number: int, name: str, kind: Any) -> dict[str, Any]:
        return {"id": number, "name": name, "required": False, "type": kind}

    kafka = [
        column(21, "partition", "int"),
        column(22, "offset", "long"),
        column(23, "event_timestamp", "timestamptz"),
        column(24, "ingest_timestamp", "timestamptz"),
    ]
    fields = [
        column(10, "value", {"type": "struct", "fields": [column(11, "text", "string")]}),
        column(20, "kafka", {"type": "struct", "fields": kafka}),
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "identifier-field-ids": [], "fields": fields})


def log_limits(**changed: Any) -> LogSettings:
    """`log:` of the settings with short waits. Not validated, so that a test may have entries of some hundred bytes."""
    assert changed.keys() <= LogSettings.model_fields.keys(), "model_construct ignores a misspelt name"
    chosen = {"append_attempts_max": 5, "append_backoff": 0.01, **changed}
    return LogSettings.model_construct(**chosen)


def target_in(
    folder: Path, partitions: int = 2, identifier: Identifier = IDENTIFIER, granularity: Granularity = "day"
) -> TableTarget:
    """A topic's table with its files under `folder`."""
    return TableTarget(
        "flights",
        TOPIC_ID,
        CLUSTER_ID,
        identifier,
        partitions,
        granularity,
        f"file://{folder}/archive/{TOPIC_ID}",
    )


def bounds_of(
    fields: StreamFields, partition: int, low: int, high: int
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Lower and upper bounds of kafka.partition and kafka.offset, as a manifest carries them."""
    return (
        {fields.partition: struct.pack("<i", partition), fields.offset: struct.pack("<q", low)},
        {fields.partition: struct.pack("<i", partition), fields.offset: struct.pack("<q", high)},
    )


def data_file(
    path: str,
    fields: StreamFields,
    partition: int,
    base: int,
    end: int,
    size: int = 100,
    day: int = 20_000,
    spec_id: int = 0,
) -> DataFile:
    """What a commit says about rows [base, end) of one partition."""
    lower, upper = bounds_of(fields, partition, base, end - 1)
    return DataFile(
        path=path,
        record_count=end - base,
        file_size=size,
        spec_id=spec_id,
        partition=(day,),
        lower_bounds=lower,
        upper_bounds=upper,
        value_counts={fields.offset: end - base},
        null_value_counts={fields.offset: 0},
        split_offsets=(4,),
        sort_order_id=1,
    )


def write_rows(
    path: Path, text: str, partition: int, offsets: Sequence[int], schema: str, ingest_us: int = START_US
) -> int:
    """A Parquet file with field ids as the table has them; returns its size."""
    document = json.loads(schema)
    table = pa.table(
        {
            "value": pa.array(
                [{"text": f"{text} {offset}"} for offset in offsets], pa.struct([("text", pa.string())])
            ),
            "kafka": pa.array(
                [
                    {
                        "partition": partition,
                        "offset": offset,
                        "event_timestamp": ingest_us,
                        "ingest_timestamp": ingest_us,
                    }
                    for offset in offsets
                ],
                pa.struct(
                    [
                        ("partition", pa.int32()),
                        ("offset", pa.int64()),
                        ("event_timestamp", pa.timestamp("us", "UTC")),
                        ("ingest_timestamp", pa.timestamp("us", "UTC")),
                    ]
                ),
            ),
        }
    )
    table = table.cast(
        pa.schema([_with_id(table.schema.field(item["name"]), item) for item in document["fields"]])
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path.stat().st_size


def _with_id(field: pa.Field[Any], item: Mapping[str, Any]) -> pa.Field[Any]:
    kind: Any = field.type
    if isinstance(item["type"], dict):
        kind = pa.struct([_with_id(kind.field(child["name"]), child) for child in item["type"]["fields"]])
    return pa.field(field.name, kind, nullable=True, metadata={"PARQUET:field_id": str(item["id"])})


class Bench:
    """A data folder, a control log, and any number of leaders and catalogs on them."""

    def __init__(self, folder: Path, log: Log | None = None, seed: int = 1) -> None:
        self.folder = folder
        self.clock = ManualClock(START_US)
        self.ids = SeededIds(seed)
        self.log = log or MemoryLogStore(1 << 20).log("control")
        self.target = target_in(folder)

    def leader(self, name: str = "a", limits: LogSettings | None = None, log: Log | None = None) -> Leader:
        """A leader that has taken over."""
        leader = Leader(log or self.log, self.ids, self.clock, f"{name}:1", limits or log_limits())
        leader.take_over()
        return leader

    def committer(self, tables: Tables, leader: Leader, **limits: Any) -> Committer:
        """A committer with small bounds."""
        return Committer(
            tables, leader, replace(CommitLimits(attempts_max=4, backoff_s=0.01), **limits), self.clock
        )

    def table(self, tables: Tables) -> TableView:
        """The topic's table, created if need be."""
        return ensure_table(tables, self.target, None, schema_json())

    def archive(
        self, view: TableView, epoch: int, partition: int, base: int, end: int
    ) -> tuple[ArchiveFile, DataFile]:
        """A real archive with rows [base, end)."""
        key = archive_key(TOPIC_ID, partition, "day", partition_value_of(START_US, "day"), base, end, epoch)
        path = self.folder / key
        size = write_rows(path, "row", partition, range(base, end), view.schema_json)
        archive = ArchiveFile(
            key=key,
            size=size,
            sha256=hashlib.sha256(path.read_bytes()).digest(),
            records_digest=bytes(32),
            partition=partition,
            base=base,
            end=end,
            epoch=epoch,
            schema_version=1,
            rows=end - base,
            raw_bytes=10 * (end - base),
            ingest_min_us=START_US,
            ingest_max_us=max(START_US, self.clock.now_us()),
        )
        return archive, data_file(
            f"file://{path}", stream_fields(view.schema_json), partition, base, end, size
        )

    def write(self, leader: Leader, view: TableView, *ranges: tuple[int, int, int]) -> list[str]:
        """DATA_WRITTEN for archives of (partition, base, end), with the table as `view` shows it as T3 token;
        returns their keys."""
        written = [self.archive(view, leader.epoch, *one) for one in ranges]
        reference = TableReference("local", view.identifier[:-1], view.identifier[-1], view.uuid)
        commit_id = new_uuid(self.ids)

        def event(files: Sequence[DataFile]) -> Event:
            return Event(
                new_uuid(self.ids), START_US, "group", DataWritten(commit_id, reference, tuple(files))
            )

        append_files_written(
            leader,
            written,
            event,
            FIELDS,
            commit_id=commit_id.bytes,
            topic_id=TOPIC_ID,
            table_uuid=view.uuid,
            last_sequence_number=view.sequence_number,
            what="demo.flights",
        )
        return [archive.key for archive, _ in written]

    def settle(self, tables: Tables, leader: Leader) -> CommitOutcome | None:
        """Inspect the table and append the result to the ledger."""
        outcome = self.committer(tables, leader).settle(self.target)
        if outcome is not None:
            self.tell(leader, outcome)
        return outcome

    def commit(self, tables: Tables, leader: Leader, **limits: Any) -> CommitOutcome:
        """Commit what is pending and append the result to the ledger."""
        outcome = self.committer(tables, leader, **limits).commit(
            self.target, new_uuid(self.ids), valid_through_us=START_US
        )
        assert outcome is not None
        self.tell(leader, outcome)
        return outcome

    def tell(self, leader: Leader, outcome: CommitOutcome) -> None:
        """COMMIT_TO_TABLE."""
        leader.append(outcome.to_proto(uuid.UUID(int=1), TOPIC_ID))


def offsets_in(tables: Tables, identifier: Identifier = IDENTIFIER) -> list[tuple[int, int]]:
    """(partition, offset) of every row that the files' bounds mean, sorted; doubled rows appear twice."""
    view = tables.load(identifier)
    assert view is not None
    found: list[tuple[int, int]] = []
    for item in tables.live_files(view):
        assert item.partition_min is not None
        assert item.offset_min is not None
        assert item.offset_max is not None
        found.extend((item.partition_min, offset) for offset in range(item.offset_min, item.offset_max + 1))
    return sorted(found)


def rows(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    """(partition, offset) of the given (partition, base, end)."""
    return sorted((partition, offset) for partition, base, end in ranges for offset in range(base, end))


def topic_bytes() -> bytes:
    """The topic's id as entries hold it."""
    return bytes.fromhex(TOPIC_ID)


def text_entry(text: bytes) -> pb.SchemaText:
    """An interned text."""
    return pb.SchemaText(sha256=hashlib.sha256(text).digest(), text=text)


class SwapFault(enum.Enum):
    """What happens to one swap."""

    NONE = "none"
    REPLY_LOST = "reply lost"
    """Applied; the answer is unknown."""
    DROPPED = "dropped"
    """Never arrives; the answer is unknown."""
    LATE = "late"
    """The answer is unknown; it arrives when `deliver` is called."""
    FALSE_CONFLICT = "false conflict"
    """Applied; the answer is a conflict."""


class FaultyTables:
    """A `Tables` with a script: the first swap gets the first fault, and so on; after the script all is
    well."""

    def __init__(self, tables: Tables, *script: SwapFault) -> None:
        self.swaps = 0
        self._tables = tables
        self._script = list(script)
        self._late: list[Prepared] = []

    def deliver(self) -> list[SwapOutcome]:
        """Let the late requests arrive."""
        late, self._late = self._late, []
        return [self._tables.swap(prepared).outcome for prepared in late]

    def load(self, identifier: Identifier) -> TableView | None:
        return self._tables.load(identifier)

    def create(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        return self._tables.create(identifier, location, schema_json, granularity, properties)

    def prepare(
        self,
        view: TableView,
        files: Sequence[DataFile],
        properties: NewProperties,
        summary: Mapping[str, str],
        merge: bool,
        expire: Sequence[int],
    ) -> Prepared:
        return self._tables.prepare(view, files, properties, summary, merge, expire)

    def swap(self, prepared: Prepared) -> Swapped:
        self.swaps += 1
        fault = self._script.pop(0) if self._script else SwapFault.NONE
        if fault is SwapFault.LATE:
            self._late.append(prepared)
        swapped = self._tables.swap(prepared) if fault not in {SwapFault.LATE, SwapFault.DROPPED} else None
        if fault is SwapFault.NONE:
            assert swapped is not None
            return swapped
        outcome = SwapOutcome.CONFLICT if fault is SwapFault.FALSE_CONFLICT else SwapOutcome.UNKNOWN
        return Swapped(outcome, prepared.snapshot_id, fault.value)

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        return self._tables.evolve(view, schema_json)

    def repartition(self, view: TableView, granularity: Granularity) -> Evolved:
        return self._tables.repartition(view, granularity)

    def prepare_exchange(
        self, view: TableView, removed: Collection[str], added: Sequence[DataFile], summary: Mapping[str, str]
    ) -> Prepared:
        return self._tables.prepare_exchange(view, removed, added, summary)

    def prepare_removal(
        self,
        view: TableView,
        paths: Collection[str],
        properties: NewProperties,
        summary: Mapping[str, str],
        expire: Sequence[int],
    ) -> Prepared:
        return self._tables.prepare_removal(view, paths, properties, summary, expire)

    def named_paths(self, view: TableView) -> Iterator[str]:
        return self._tables.named_paths(view)

    def live_files(
        self, view: TableView, snapshot_id: int | None = None, nulls_of: Collection[int] = ()
    ) -> Iterator[LiveFile]:
        return self._tables.live_files(view, snapshot_id, nulls_of)

    def retained_paths(self, view: TableView, names: Collection[str]) -> frozenset[str]:
        return self._tables.retained_paths(view, names)

    def count_rows(self, view: TableView, partition: int, offset: int) -> int:
        return self._tables.count_rows(view, partition, offset)

    def data_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        return self._tables.data_paths(view, since_sequence)

    def aside_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        return self._tables.aside_paths(view, since_sequence)

    def close(self) -> None:
        self._tables.close()


class Paused(FaultyTables):
    """The leader is not scheduled between its read of the log and its swap, while `meanwhile` happens."""

    def __init__(self, tables: Tables, in_between: Callable[[], object]) -> None:
        super().__init__(tables)
        self._in_between = in_between

    def swap(self, prepared: Prepared) -> Swapped:
        in_between, self._in_between = self._in_between, lambda: None
        in_between()
        return super().swap(prepared)
