"""Document of a topic's table: snapshots, data files, columns, and the lines for query engines.

Reads the catalog and some manifests of the current snapshot. What is read and shown is bounded for any table.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from archiver.app.engine_lines import engine_lines, example_query
from archiver.catalog.identity import mismatch, target_of
from archiver.catalog.table_layout import COMMIT_ID, COMPACTED, RANGES, REBUILT, REPLAYED, RETIRED, SET_BACK
from archiver.catalog.tables import LiveFile, SnapshotView, TableView
from archiver.query.tables import gone_text, is_gone
from archiver.refine.prepare_topic import recorded_schemas
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import format_time
from archiver.schema.columns import Json
from archiver.schema.evolution.evolve import type_text
from archiver.schema.evolution.field_history import inside
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED
from archiver.status.mapping import MappedField, mapping_of

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import TopicSettings
    from archiver.ledger.views import TopicLedger
    from archiver.runtime.clock import Clock
    from intake.log.fold import TopicState

SNAPSHOTS_MAX: Final = 100
"""Maximum of snapshots of an answer, the newest."""
FILES_MAX: Final = 200
"""Maximum of data files that are read from the manifests."""
FILES_S: Final = 5.0
"""Time after which no further data file is read."""
COLUMNS_MAX: Final = 2000
_TEXT_MAX: Final = 500
"""Characters of a text that another writer may have put into the table."""
_PATH_MAX: Final = 2000
_COUNT_DIGITS_MAX: Final = 19

_KINDS: Final = {
    REPLAYED: "decoded again",
    COMPACTED: "compaction",
    RETIRED: "retention",
    REBUILT: "rebuilt table",
    SET_BACK: "watermarks set back",
}
"""What a snapshot of ours is, by the key in its summary; without one it adds archives."""
_NONE_SHOWN: Final[dict[str, Any]] = {
    "location": None,
    "metadata_location": None,
    "uuid": None,
    "format_version": None,
    "partitioned_by": None,
    "rows": None,
    "bytes": None,
    "files": None,
    "delete_files": None,
    "snapshot": None,
    "snapshots": [],
    "snapshots_left": 0,
    "data_files": [],
    "data_files_left": 0,
    "data_files_why": None,
    "columns": [],
    "columns_left": 0,
    "columns_why": None,
    "engines": None,
}


# --- The document
def table_document(app: Application, name: str, clock: Clock) -> dict[str, Any]:
    """The table of an existing topic; raises `NotFound` for an unknown one.

    A table that is missing, gone or cannot be read is described by `state` and `why`, and by what the ledger
    has of it.
    """
    topic, settings = app.topic(name), app.settings.topic(name)
    ledger = app.ledger().topic(topic.topic_id)
    document: dict[str, Any] = {
        "topic": name,
        "kind": "unconfigured" if settings is None else settings.archive.kind,
        "catalog": None if settings is None else settings.archive.catalog,
        "table": None if settings is None else settings.archive.table,
        "ledger": {
            "rows": ledger.totals.rows,
            "files": ledger.totals.files,
            "bytes": ledger.totals.stored_bytes,
            "snapshot_id": ledger.snapshot_id,
            "last_commit": format_time(ledger.committed_us) if ledger.committed_us else None,
        },
        **_NONE_SHOWN,
    }
    if settings is None or settings.archive.kind != "iceberg":
        return document | {"state": "none", "why": _why_none(settings)}
    try:
        view = app.table(name)
        if view is None:
            return document | _missing(settings, ledger)
        return document | _present(app, settings, topic, ledger, view, clock)
    # A catalog that is away, or metadata that cannot be read. What the ledger knows is shown all the same.
    except ArchiverError as error:
        return document | {"state": "unavailable", "why": excerpt(str(error), _TEXT_MAX)}


def table_summary(app: Application, name: str) -> dict[str, Any] | None:
    """Size and newest snapshot of a topic's table, from its metadata alone; None if there is none. Raises
    what loading a table raises.
    """
    view = app.table(name)
    return None if view is None else {**_totals(view), "snapshot": _current(view)}


def _why_none(settings: TopicSettings | None) -> str:
    if settings is None:
        return "the topic is not in the configuration, so nothing archives it to a table"
    what = {"parquet": "archived as files without a table", "none": "not archived"}
    return (
        f"the topic is {what.get(settings.archive.kind, 'without a table')} (`archive.kind: "
        f"{settings.archive.kind}`)"
    )


def _missing(settings: TopicSettings, ledger: TopicLedger) -> dict[str, Any]:
    table = settings.archive.table or ""
    # Only the ledger shows whether a table that the catalog does not have existed.
    if is_gone(ledger):
        return {"state": "gone", "why": gone_text(table, settings.name, ledger)}
    return {"state": "missing", "why": f"the first commit creates the table {table}"}


def _present(
    app: Application,
    settings: TopicSettings,
    topic: TopicState,
    ledger: TopicLedger,
    view: TableView,
    clock: Clock,
) -> dict[str, Any]:
    catalog, table = settings.archive.catalog or "", settings.archive.table or ""
    target = target_of(settings, topic.topic_id, topic.partitions, app.cluster.cluster_id, app.objects)
    wrong = mismatch(view, target, ledger.table_uuid)
    totals, files = _totals(view), _files(app, catalog, view, clock)
    shown, left = snapshots_of(view)
    # Metadata of other writers may lack the totals. All files together have them as well.
    if files.complete:
        totals = {**_summed(files.found), **{name: one for name, one in totals.items() if one is not None}}
    return {
        "state": "present" if wrong is None else "mismatch",
        "why": None if wrong is None else f"table {table} {excerpt(wrong, _TEXT_MAX)}",
        "location": excerpt(view.location, _PATH_MAX),
        "metadata_location": excerpt(view.metadata_location, _PATH_MAX),
        "uuid": str(view.uuid),
        "format_version": view.format_version,
        "partitioned_by": view.granularity,
        **totals,
        "snapshot": _current(view),
        "snapshots": shown,
        "snapshots_left": left,
        "data_files": [_file(view, one) for one in sorted(files.found, key=_newest_first)],
        "data_files_left": files.left(totals["files"]),
        "data_files_why": files.why,
        **_columns(ledger, view),
        "engines": {
            **engine_lines(
                app, catalog, table, view, [one.path for one in files.found] if files.complete else None
            ),
            "archiver": f"archiver query {shlex.quote(example_query(table))}",
            "archiver_files": f"archiver tables --topic {shlex.quote(settings.name)} --files",
        },
    }


# --- Snapshots
def snapshots_of(view: TableView) -> tuple[list[dict[str, Any]], int]:
    """The newest snapshots, the newest first, and how many are left out."""
    ancestors = {one.snapshot_id for one in view.lineage()}
    ordered = sorted(view.snapshots, key=lambda one: (-one.sequence_number, -one.timestamp_ms))
    shown = [_snapshot(one, view.snapshot_id, ancestors) for one in ordered[:SNAPSHOTS_MAX]]
    return shown, max(0, len(ordered) - SNAPSHOTS_MAX)


def _snapshot(snapshot: SnapshotView, current: int | None, ancestors: set[int]) -> dict[str, Any]:
    summary = snapshot.summary
    ours = COMMIT_ID in summary
    place = "ancestor" if snapshot.snapshot_id in ancestors else "aside"
    ranges = summary.get(RANGES)
    return {
        "id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_id,
        "sequence_number": snapshot.sequence_number,
        "time": _time(snapshot.timestamp_ms),
        "operation": excerpt(snapshot.operation, _TEXT_MAX),
        "place": "current" if snapshot.snapshot_id == current else place,
        "by": "archiver" if ours else "another writer",
        "what": next((text for key, text in _KINDS.items() if key in summary), None) if ours else None,
        "added": _change(summary, "added-records", "added-data-files", "added-files-size"),
        "removed": _change(summary, "deleted-records", "deleted-data-files", "removed-files-size"),
        "rows": _number(summary, "total-records"),
        "offsets": None if ranges is None else excerpt(ranges, _TEXT_MAX),
    }


def _change(summary: Mapping[str, str], rows: str, files: str, size: str) -> dict[str, int]:
    # A key that is left out means that the snapshot added or removed none.
    return {
        "rows": _number(summary, rows) or 0,
        "files": _number(summary, files) or 0,
        "bytes": _number(summary, size) or 0,
    }


def _current(view: TableView) -> dict[str, Any] | None:
    found = next((one for one in view.snapshots if one.snapshot_id == view.snapshot_id), None)
    return None if found is None else _snapshot(found, view.snapshot_id, {found.snapshot_id})


def _totals(view: TableView) -> dict[str, Any]:
    """Size of the table by the summary of its current snapshot."""
    found = next((one for one in view.snapshots if one.snapshot_id == view.snapshot_id), None)
    if found is None:
        # A table without a snapshot has no rows.
        return {"rows": 0, "bytes": 0, "files": 0, "delete_files": 0}
    return {
        "rows": _number(found.summary, "total-records"),
        "bytes": _number(found.summary, "total-files-size"),
        "files": _number(found.summary, "total-data-files"),
        "delete_files": _number(found.summary, "total-delete-files"),
    }


def _number(summary: Mapping[str, str], key: str) -> int | None:
    text = summary.get(key, "")
    # Other writers write summaries too, so it may be any text.
    if not (text.isascii() and text.isdecimal() and len(text) <= _COUNT_DIGITS_MAX):
        return None
    return int(text)


def _time(timestamp_ms: int) -> str | None:
    try:
        return format_time(timestamp_ms * 1000)
    # Metadata may state any number.
    except OverflowError:
        return None


# --- Data files
@dataclass(frozen=True, slots=True)
class _Files:
    found: list[LiveFile]
    complete: bool
    """Whether the snapshot has no other file."""
    why: str | None = None
    """Why the files could not be read."""

    def left(self, total: int | None) -> int | None:
        """Number of files that are not shown; None if unknown."""
        if self.complete:
            return 0
        return None if total is None or total < len(self.found) else total - len(self.found)


def _files(app: Application, catalog: str, view: TableView, clock: Clock) -> _Files:
    found: list[LiveFile] = []
    deadline_s = clock.monotonic_s() + FILES_S
    try:
        # One more than is shown, which says whether there are more.
        for file in islice(app.tables(catalog).live_files(view), FILES_MAX + 1):
            if len(found) == FILES_MAX or clock.monotonic_s() >= deadline_s:
                return _Files(found, complete=False)
            found.append(file)
    # The metadata is shown although a manifest cannot be read.
    except ArchiverError as error:
        return _Files(found, complete=False, why=excerpt(str(error), _TEXT_MAX))
    return _Files(found, complete=True)


def _summed(files: Sequence[LiveFile]) -> dict[str, Any]:
    return {
        "rows": sum(one.record_count for one in files),
        "bytes": sum(one.file_size for one in files),
        "files": len(files),
        "delete_files": None,
    }


def _newest_first(file: LiveFile) -> tuple[int, int, int, str]:
    return (-file.sequence_number, file.partition_min or 0, file.offset_min or 0, file.path)


def _file(view: TableView, file: LiveFile) -> dict[str, Any]:
    return {
        "path": excerpt(file.path, _PATH_MAX),
        "partition": partition_text(view, file),
        "rows": file.record_count,
        "bytes": file.file_size,
        # A file of another writer may hold several Kafka partitions, or lack the bounds.
        "kafka_partition_min": file.partition_min,
        "kafka_partition_max": file.partition_max,
        "offset_min": file.offset_min,
        "offset_max": file.offset_max,
        "snapshot_id": file.snapshot_id,
    }


def partition_text(view: TableView, file: LiveFile) -> str:
    """The file's partition: `2026-11-28`, `2026-11-28T13`, `2026-11`, or the tuple of another spec."""
    granularity = next((spec.granularity for spec in view.specs if spec.spec_id == file.spec_id), None)
    number = file.partition[0] if len(file.partition) == 1 else None
    if granularity is not None and isinstance(number, int):
        try:
            if granularity == "month":
                return f"{1970 + number // 12:04}-{number % 12 + 1:02}"
            days, hour = (number, 0) if granularity == "day" else divmod(number, 24)
            day = (date(1970, 1, 1) + timedelta(days=days)).isoformat()
            return day if granularity == "day" else f"{day}T{hour:02}"
        # A manifest may state any number.
        except OverflowError:
            pass
    return excerpt(", ".join(str(part) for part in file.partition), _TEXT_MAX)


# --- Columns
_OURS: Final = {
    RAW: "the original bytes, where the other columns do not give them back",
    PREFIX: "a registry's envelope in front of the message",
    ERR: "why the message could not be decoded",
    UNRECOGNIZED: "fields that the schema does not have",
}
_STREAM: Final = {
    "key": "the key of the record",
    f"key.{RAW}": "the original bytes of the key",
    "value": "the value of the record",
    "headers": "the headers of the record",
    "headers.key": "the name of a header",
    "headers.value": "the value of a header",
    "kafka": "where the record is in the stream",
    "kafka.partition": "the partition of the record",
    "kafka.offset": "the offset of the record",
    "kafka.event_timestamp": "the time that the producer gave",
    "kafka.ingest_timestamp": "the time at which the record was accepted",
    "kafka.batch_start": "the first offset of the producer's batch",
}


def _columns(ledger: TopicLedger, view: TableView) -> dict[str, Any]:
    fields: list[MappedField] = []
    why = None
    try:
        fields = mapping_of(recorded_schemas(ledger))
    # The columns are shown without their fields.
    except ArchiverError as error:
        why = excerpt(str(error), _TEXT_MAX)
    found = list(islice(columns_of(view.schema_json, fields), COLUMNS_MAX + 1))
    left = 0 if len(found) <= COLUMNS_MAX else None
    return {"columns": found[:COLUMNS_MAX], "columns_left": left, "columns_why": why}


def columns_of(schema_json: str, fields: Sequence[MappedField]) -> Iterator[dict[str, Any]]:
    """Every column of a table in its order, those inside of a struct behind it, with the message field that
    it comes from.
    """
    # A table has no column twice, but the ids of an older version may stand for another one.
    by_id: dict[tuple[str, int], MappedField] = {(one.side, one.field_id): one for one in fields}
    top: list[Json] = json.loads(schema_json)["fields"]
    # The columns that come next are at the end.
    waiting = [("", one) for one in reversed(top)]
    while waiting:
        above, column = waiting.pop()
        name = f"{above}{column['name']}"
        field = by_id.get((name.partition(".")[0], column["id"]))
        yield {
            "id": column["id"],
            "name": name,
            "type": type_text(column["type"]),
            "required": bool(column.get("required")),
            "doc": None if column.get("doc") is None else excerpt(str(column["doc"]), _TEXT_MAX),
            "from": None if field is None else _source(field),
            "holds": None if field is not None else _STREAM.get(name) or _OURS.get(column["name"]),
        }
        # As stated by the walk, it is a struct or the name of a type.
        below: object = inside(column)[0]
        if isinstance(below, dict) and below["type"] == "struct":
            waiting += [(f"{name}.", one) for one in reversed(below["fields"])]


def _source(field: MappedField) -> dict[str, Any]:
    return {
        "side": field.side,
        "field": field.field,
        "path": field.path,
        "type": field.protobuf_type,
        "active": field.active,
        "versions": list(field.versions),
    }
