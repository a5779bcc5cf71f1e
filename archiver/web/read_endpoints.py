"""Table of what can be read through the port: each view is a JSON document and a page.

A page shows the document of its view and nothing else. Its path is that of the document without `/v1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archiver.web.endpoint import HTML, NO_ROOM, Answer, Endpoint, Schema

RECORDS = 50
"""Records of a list that states no number."""
RECORDS_MAX = 500
ROWS_SHOWN = 200
"""Rows of a result on one page."""
OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class View:
    """One thing that can be read."""

    name: str
    path: str
    """Without `/v1`."""
    summary: str
    text: str
    component: str
    """Schema of the document."""
    parameters: tuple[Schema, ...] = ()
    template: str = ""
    """Of the page; the name of the view with `.html` if it is empty."""


def _in_path(name: str, text: str, kind: str = "string") -> Schema:
    schema: Schema = {"type": kind} if kind == "string" else {"type": kind, "minimum": 0}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def _query(name: str, text: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": text, "schema": schema}


_TOPIC = _in_path("topic", "The topic's name.")
_ONE_TOPIC = _query("topic", "Only this topic; all that may be read without it.", {"type": "string"})
VIEWS: tuple[View, ...] = (
    View(
        "topics",
        "/topics",
        "Topics",
        "As of the newest poll (daemon.watch_interval). A reader sees the topics that it may describe.",
        "Topics",
    ),
    View(
        "topic",
        "/topics/{topic}",
        "A topic",
        "Its partitions with the lag of each stage, its table, and its settings in force.",
        "Topic",
        (_TOPIC,),
    ),
    View(
        "messages",
        "/topics/{topic}/messages",
        "Messages of a partition",
        "Committed records in offset order, decoded where the topic has a schema. Needs permission to read "
        "the topic.",
        "Messages",
        (
            _TOPIC,
            _query("partition", "The partition.", {"type": "integer", "minimum": 0, "default": 0}),
            _query(
                "from",
                "earliest; latest, for the newest records; an offset; or a time such as "
                "2026-11-27T12:00:00Z, for the first record at or after it.",
                {"type": "string", "default": "latest"},
            ),
            _query(
                "limit",
                f"Maximum of records, 1 to {RECORDS_MAX}.",
                {"type": "integer", "minimum": 1, "default": RECORDS},
            ),
            _query("key", "Only records with exactly this key, as text.", {"type": "string"}),
            _query("key_base64", "The same for a key of any bytes.", {"type": "string"}),
        ),
    ),
    View(
        "message",
        "/topics/{topic}/messages/{partition}/{offset}",
        "One message",
        "The record, and where it is: log entry, intake file, archive, snapshot, or why it is not further, "
        "as `archiver explain`. Needs permission to read the topic.",
        "Message",
        (
            _TOPIC,
            _in_path("partition", "The partition.", "integer"),
            _in_path("offset", "The offset.", "integer"),
        ),
    ),
    View(
        "groups",
        "/groups",
        "Consumer groups",
        "By their ids, with the records that they have not committed. A reader sees the groups that it may "
        "describe. Topics that it may not describe are counted and not named, and no sum includes them.",
        "Groups",
        (
            _query("after", "Only groups whose ids come after this text.", {"type": "string"}),
            _query(
                "limit",
                f"Maximum of groups, 1 to {RECORDS_MAX}.",
                {"type": "integer", "minimum": 1, "default": RECORDS},
            ),
        ),
    ),
    View(
        "group",
        "/group",
        "A consumer group",
        "Committed offset and lag of each partition, the coordinator, and the members if this daemon is the "
        "coordinator.",
        "Group",
        ({**_query("group", "The group's id, any text.", {"type": "string"}), "required": True},),
    ),
    View(
        "dead_letters",
        "/dead-letters",
        "Records that could not be decoded",
        "By cause, as `archiver dlq list`. Reads archives, so it ends at a number of files and at a time, "
        "and says what is left. Needs permission to read the topic.",
        "DeadLetters",
        (
            _ONE_TOPIC,
            _query(
                "limit",
                f"Maximum of keys and values, 1 to {RECORDS_MAX}.",
                {"type": "integer", "minimum": 1, "default": RECORDS},
            ),
        ),
    ),
    View(
        "dead_letter_replay",
        "/dead-letters/replay",
        "What a replay would do",
        "As `archiver dlq replay --dry-run`, within a number of files and a time: nothing is written. Needs "
        "permission to read the topic.",
        "DeadLetterReplay",
        (_ONE_TOPIC,),
    ),
    View(
        "audit",
        "/audit",
        "Audits and findings",
        "The verdict of the newest audit and of the newest deep audit for each partition, with what it rests "
        "on, and the findings of the newest comparison. A reader sees the topics that it may describe.",
        "Audits",
        (_query("topic", "Only this topic.", {"type": "string"}),),
    ),
    View(
        "runbook",
        "/runbook",
        "The runbook",
        "What to do about each finding and each message, as sections of Markdown.",
        "Runbook",
    ),
    View(
        "table",
        "/topics/{topic}/table",
        "The table of a topic",
        "Its snapshots, the data files of the current one, its columns with the message fields that they "
        "come from, and the lines with which Spark, Trino and DuckDB read it. `state` and `why` describe a "
        "table that cannot be read; then only `ledger` has its size.",
        "Table",
        (_TOPIC,),
    ),
    View(
        "schema",
        "/topics/{topic}/schema",
        "The schema of a topic",
        "Its recorded versions with their changes, what the newest schema of the source would do to the "
        "table (as `archiver schema plan`), and how many records could not be decoded. The last two say why "
        "they are missing if the source or the catalog does not answer.",
        "TopicSchema",
        (_TOPIC,),
    ),
    View(
        "queries",
        "/query",
        "Tables to query, and queries",
        "Tables that the reader may query, its queries of the last minutes, and the limits of a query.",
        "Queries",
    ),
    View(
        "query",
        "/query/{query}",
        "A query",
        "Its state and its result, for the reader that started it. It is kept for some minutes.",
        "Query",
        (
            _in_path("query", "The id of the query."),
            _query(
                "from",
                f"First row that the page shows, with {ROWS_SHOWN} rows at most. The document has all rows.",
                {"type": "integer", "minimum": 0, "default": 0},
            ),
        ),
    ),
)

_REFUSALS: dict[int, str] = {
    400: "a parameter is wrong; the message names it",
    401: "no valid token or login; see `security`",
    403: "the reader may not see this, or the Host or Origin header is not this port's",
    404: "there is no such thing",
}


def refusals(media: dict[str, Any]) -> dict[int, Answer]:
    """The refusals of a view, in this media type."""
    return {
        **{status: Answer(text, **media) for status, text in _REFUSALS.items()},
        429: Answer(NO_ROOM.text, retry_after=True, **media),
        500: Answer(
            "an error in the daemon, or stored data that is damaged; the message says which", **media
        ),
        503: Answer("a dependency does not answer, or nothing is open yet", retry_after=True, **media),
    }


_HTML: dict[str, Any] = {"media": HTML, "schema": "string"}
PAGE_REFUSALS: dict[int, Answer] = refusals(_HTML)
"""Refusals of a page: a page with the message."""

READS: tuple[Endpoint, ...] = tuple(
    Endpoint(
        f"read_{view.name}",
        "GET",
        f"/v1{view.path}",
        view.summary,
        view.text,
        {200: Answer("the document", schema=view.component), **refusals({})},
        view.parameters,
        reads=True,
    )
    for view in VIEWS
)
PAGES: tuple[Endpoint, ...] = tuple(
    Endpoint(
        f"page_{view.name}",
        "GET",
        view.path,
        f"{view.summary}, for people",
        f"The document of /v1{view.path} as a page without scripts.",
        {200: Answer("a page", **_HTML), **PAGE_REFUSALS},
        view.parameters,
        reads=True,
    )
    for view in VIEWS
)

_COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "description": "null: unknown, or it does not apply."}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
_SUMMARY: dict[str, Schema] = {
    "topic": {"type": "string"},
    "kind": {"enum": ["none", "parquet", "iceberg", "unconfigured"]},
    "partition_count": {"type": "integer"},
    "records": {"type": "integer", "description": "Offsets given so far."},
    "behind_records": {**_COUNT_OR_NULL, "description": "Records that have not reached the last stage."},
    "behind_seconds": {"type": ["number", "null"], "description": "Age of the oldest of them."},
    "last_commit": _TIME_OR_NULL,
    "stuck": {**_TEXT_OR_NULL, "description": "Why the last round could not finish the topic."},
    "troubled": {"type": "integer", "description": "Partitions held back by more than not being due yet."},
}
_BYTES: Schema = {
    "type": ["object", "null"],
    "properties": {
        "base64": {"type": "string"},
        "text": {**_TEXT_OR_NULL, "description": "null if the bytes are not UTF-8."},
        "bytes": {"type": "integer", "description": "Bytes of the whole."},
        "cut": {"type": "boolean", "description": "Whether only the beginning is here."},
    },
    "required": ["base64", "text", "bytes", "cut"],
}
_GROUP: dict[str, Schema] = {
    "group": {"type": "string"},
    "topics": {"type": "array", "items": {"type": "string"}},
    "topic_count": {"type": "integer"},
    "topics_hidden": {"type": "integer", "description": "Topics that the reader may not describe."},
    "partitions": {"type": ["integer", "array"]},
    "lag_records": {**_COUNT_OR_NULL, "description": "Records from the committed offsets on."},
    "lag_seconds": {"type": ["number", "null"], "description": "Age of the oldest of them."},
    "commit_age_seconds": {"type": ["number", "null"]},
}
_SEARCHED: dict[str, Schema] = {
    "topic": {"type": "string"},
    "why": {**_TEXT_OR_NULL, "description": "Why it could not be read."},
    "complete": {"type": "boolean", "description": "Whether all its files were read."},
    "files_left": {**_COUNT_OR_NULL, "description": "Files that were not read to their end; null: some."},
}
_SEARCH: dict[str, Schema] = {
    "as_of": {"type": "string", "format": "date-time"},
    "topic": {**_TEXT_OR_NULL, "description": "The requested topic; null for all."},
    "topics_left": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Topics that were not begun, because the time was over.",
    },
}
_AUDIT: dict[str, Schema] = {
    "kind": {"enum": ["audit", "deep_audit"]},
    "verdict": {**_TEXT_OR_NULL, "description": "The worst of those that are seen; null: there is none yet."},
    "section": {**_TEXT_OR_NULL, "description": "Anchor of the remedy in /runbook."},
    "checked_at": _TIME_OR_NULL,
    "age_seconds": {"type": ["number", "null"]},
    "took_seconds": {"type": ["number", "null"]},
    "interval_seconds": {"type": ["number", "null"], "description": "null: none on schedule."},
    "next_at": _TIME_OR_NULL,
    "error": {**_TEXT_OR_NULL, "description": "Why it has no verdict for each partition."},
    "counts": {"type": "object", "description": "Partitions by verdict."},
    "partitions": {
        "type": "array",
        "items": {"type": "object"},
        "description": "As in `archiver audit --output json`, the worst first; `ranges` has the first ranges "
        "of each kind.",
    },
    "partitions_left": {"type": "integer", "description": "Partitions that are not shown."},
    "partitions_hidden": {"type": "integer", "description": "Those that the reader may not describe."},
    "command": {
        "type": ["object", "null"],
        "description": "A later verdict on the whole deployment that a command found by itself, for readers "
        "that see all of it.",
    },
}
_SIZE: dict[str, Schema] = {
    "rows": {**_COUNT_OR_NULL, "description": "As the snapshot states it, before delete files apply."},
    "bytes": _COUNT_OR_NULL,
    "files": {**_COUNT_OR_NULL, "description": "Data files."},
    "delete_files": {**_COUNT_OR_NULL, "description": "Of another writer: rows may be deleted."},
}
_CHANGE: Schema = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("rows", "files", "bytes")},
    "required": ["rows", "files", "bytes"],
}
_SNAPSHOT: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "parent_id": _COUNT_OR_NULL,
        "sequence_number": {"type": "integer"},
        "time": _TIME_OR_NULL,
        "operation": {"type": "string"},
        "place": {
            "enum": ["current", "ancestor", "aside"],
            "description": "aside: of a branch, rolled back, or older than the place where expiry cut the "
            "history.",
        },
        "by": {"enum": ["archiver", "another writer"]},
        "what": {**_TEXT_OR_NULL, "description": "What the archiver did, if it did not add archives."},
        "added": _CHANGE,
        "removed": _CHANGE,
        "rows": {**_COUNT_OR_NULL, "description": "Rows of the table with this snapshot."},
        "offsets": {**_TEXT_OR_NULL, "description": "What it added, as partition:base-end."},
    },
    "required": ["id", "sequence_number", "time", "operation", "place", "by", "added", "removed", "rows"],
}
_SNAPSHOT_REF: Schema = {"$ref": "#/components/schemas/TableSnapshot"}
_DATA_FILE: Schema = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "partition": {"type": "string", "description": "Of the table: a day, hour or month."},
        "rows": {"type": "integer"},
        "bytes": {"type": "integer"},
        "kafka_partition_min": _COUNT_OR_NULL,
        "kafka_partition_max": _COUNT_OR_NULL,
        "offset_min": _COUNT_OR_NULL,
        "offset_max": _COUNT_OR_NULL,
        "snapshot_id": {"type": "integer", "description": "That added it."},
    },
    "required": ["path", "partition", "rows", "bytes", "offset_min", "offset_max"],
}
_COLUMN: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "description": "With the columns that it is inside of."},
        "type": {"type": "string"},
        "required": {"type": "boolean"},
        "doc": _TEXT_OR_NULL,
        "from": {
            "type": ["object", "null"],
            "description": "The field of the key's or value's message, as in `archiver schema show`.",
            "properties": {
                "side": {"enum": ["key", "value"]},
                "field": {"type": "string"},
                "path": {"type": "string"},
                "type": {"type": "string"},
                "active": {"type": "boolean", "description": "false: the column is no longer filled."},
                "versions": {"type": "array", "items": {"type": "integer"}},
            },
        },
        "holds": {**_TEXT_OR_NULL, "description": "What a column of the archiver holds."},
    },
    "required": ["id", "name", "type", "required", "doc", "from", "holds"],
}
_ENGINE_LINES = ("spark", "trino", "trino_catalog", "duckdb", "duckdb_secret", "archiver", "archiver_files")
_TABLE: dict[str, Schema] = {
    "topic": {"type": "string"},
    "kind": {"enum": ["none", "parquet", "iceberg", "unconfigured"]},
    "state": {
        "enum": ["none", "missing", "gone", "unavailable", "mismatch", "present"],
        "description": "none: the topic has no table. missing: not created yet. gone: it existed. "
        "unavailable: it cannot be read. mismatch: it is not the topic's as the archiver writes it.",
    },
    "why": _TEXT_OR_NULL,
    "catalog": _TEXT_OR_NULL,
    "table": {**_TEXT_OR_NULL, "description": "Namespace and name."},
    "ledger": {
        "type": "object",
        "description": "What the archiver committed so far, whether or not the table can be read.",
        "properties": {
            "rows": {"type": "integer"},
            "files": {"type": "integer"},
            "bytes": {"type": "integer"},
            "snapshot_id": _COUNT_OR_NULL,
            "last_commit": _TIME_OR_NULL,
        },
    },
    "location": _TEXT_OR_NULL,
    "metadata_location": _TEXT_OR_NULL,
    "uuid": _TEXT_OR_NULL,
    "format_version": _COUNT_OR_NULL,
    "partitioned_by": {**_TEXT_OR_NULL, "description": "day, hour or month; null: by something else."},
    **_SIZE,
    "snapshot": {"oneOf": [_SNAPSHOT_REF, {"type": "null"}], "description": "The current one."},
    "snapshots": {"type": "array", "items": _SNAPSHOT_REF, "description": "The newest first."},
    "snapshots_left": {"type": "integer"},
    "data_files": {
        "type": "array",
        "items": _DATA_FILE,
        "description": "Of the current snapshot; those of the newest commits first.",
    },
    "data_files_left": {**_COUNT_OR_NULL, "description": "Not shown; null: unknown."},
    "data_files_why": {**_TEXT_OR_NULL, "description": "Why files are missing here."},
    "columns": {"type": "array", "items": _COLUMN},
    "columns_left": {**_COUNT_OR_NULL, "description": "Not shown; null: some."},
    "columns_why": {**_TEXT_OR_NULL, "description": "Why no column has a field."},
    "engines": {
        "type": ["object", "null"],
        "description": "Lines without secrets, by engine; null for one that cannot read the table this way.",
        "properties": dict.fromkeys(_ENGINE_LINES, _TEXT_OR_NULL),
    },
}
_CHANGES: dict[str, Schema] = {
    "changes": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "what": {"type": "string", "description": "added, dropped, restored, renamed, widened, …"},
                "side": {"enum": ["key", "value"]},
                "field": {"type": "string", "description": "Empty: the whole key or value."},
                "column": {"type": "string"},
                "was": {"type": "string"},
                "now": {"type": "string"},
                "why": {"type": "string"},
                "compatible": {"type": "boolean"},
            },
            "required": ["what", "side", "field", "column", "was", "now", "why", "compatible"],
        },
    },
    "changes_left": {**_COUNT_OR_NULL, "description": "Not shown; null: unknown."},
}
_SIDE: Schema = {
    "type": ["object", "null"],
    "description": "null: without a schema.",
    "properties": {
        "format": {"enum": ["protobuf", "avro", "json"]},
        "message": {"type": "string"},
        "ids": {"type": "array", "items": {"type": "integer"}, "description": "Of the registry, the newest."},
    },
}
_VERSION: Schema = {
    "type": "object",
    "properties": {
        "version": {"type": "integer"},
        "recorded": {**_TIME_OR_NULL, "description": "null: longer ago than the control log reaches."},
        "key": _SIDE,
        "value": _SIDE,
        **_CHANGES,
        "why": {**_TEXT_OR_NULL, "description": "Why there are no changes here."},
    },
    "required": ["version", "recorded", "key", "value", "changes", "changes_left", "why"],
}
_TOPIC_SCHEMA: dict[str, Schema] = {
    "topic": {"type": "string"},
    "schema_change": {**_TEXT_OR_NULL, "description": "The topic's policy; null: not in the configuration."},
    "versions": {"type": "array", "items": _VERSION, "description": "The newest first."},
    "versions_left": {"type": "integer"},
    "plan": {
        "type": ["object", "null"],
        "properties": {
            "recorded_version": _COUNT_OR_NULL,
            "version": {"type": "integer", "description": "That the next archive run has."},
            **_CHANGES,
            "unchanged": {"type": "integer", "description": "Columns without a change."},
            "compatible": {"type": "boolean"},
            "allowed": {"type": "boolean", "description": "false: `schema_change` halts the topic."},
            "schema_change": {"type": "string"},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
    },
    "plan_why": {**_TEXT_OR_NULL, "description": "Why there is no plan."},
    "undecoded": {
        "type": ["object", "null"],
        "description": "Of the current rows; null: there is no table, or see `undecoded_why`.",
        "properties": {
            "key": {**_COUNT_OR_NULL, "description": "null: keys have no schema."},
            "value": {**_COUNT_OR_NULL, "description": "null: values have no schema."},
            "files": {"type": "integer", "description": "Data files that were counted."},
            "complete": {"type": "boolean", "description": "Whether these were all files."},
        },
    },
    "undecoded_why": _TEXT_OR_NULL,
}
READ_COMPONENTS: dict[str, Schema] = {
    "TopicSchema": {"type": "object", "properties": _TOPIC_SCHEMA, "required": list(_TOPIC_SCHEMA)},
    "Audits": {
        "type": "object",
        "properties": {
            "as_of": {"type": "string", "format": "date-time"},
            "topic": _TEXT_OR_NULL,
            "audits": {
                "type": "array",
                "items": {"type": "object", "properties": _AUDIT, "required": list(_AUDIT)},
            },
            "findings": {
                "type": ["object", "null"],
                "description": "null: nothing was compared yet.",
                "properties": {
                    "checked_at": _TIME_OR_NULL,
                    "age_seconds": {"type": "number"},
                    "by": {**_TEXT_OR_NULL, "description": "The command that compared; null: this daemon."},
                    "error": _TEXT_OR_NULL,
                    "findings": {"type": "array", "items": {"type": "object"}},
                    "left": {"type": "integer", "description": "Findings that are not shown."},
                    "hidden": {"type": "integer", "description": "Those that the reader may not see."},
                },
                "required": ["checked_at", "age_seconds", "by", "error", "findings", "left", "hidden"],
            },
        },
        "required": ["as_of", "topic", "audits", "findings"],
    },
    "Runbook": {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "source": {"type": "string", "description": "The file that it is a copy of."},
            "sections": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "heading": {"type": "string"},
                        "anchor": {"type": "string"},
                        "aliases": {"type": "array", "items": {"type": "string"}},
                        "markdown": {"type": "string"},
                    },
                    "required": ["heading", "anchor", "aliases", "markdown"],
                },
            },
        },
        "required": ["title", "source", "sections"],
    },
    "DeadLetters": {
        "type": "object",
        "properties": {
            **_SEARCH,
            "records": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "topic": {"type": "string"},
                        "partition": {"type": "integer"},
                        "offset": {"type": "integer"},
                        "side": {"enum": ["key", "value"]},
                        "cause": {"type": "string"},
                        "error": {"type": "string"},
                        "archive": {"type": "string"},
                    },
                    "required": ["topic", "partition", "offset", "side", "cause", "error", "archive"],
                },
            },
            "more": {"type": "integer", "description": "Further ones that were read and are not shown."},
            "topics": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        **_SEARCHED,
                        "values": {
                            **_COUNT_OR_NULL,
                            "description": "Undecoded keys and values in all files, by the table's counts; "
                            "null: no table.",
                        },
                        "files": {"type": "integer", "description": "Files that were read and have some."},
                        "decode_errors": {"type": "object", "description": "Those that were read, by cause."},
                    },
                    "required": [*_SEARCHED, "values", "files", "decode_errors"],
                },
            },
        },
        "required": [*_SEARCH, "records", "more", "topics"],
    },
    "DeadLetterReplay": {
        "type": "object",
        "properties": {
            **_SEARCH,
            "dry_run": {"const": True},
            "topics": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        **_SEARCHED,
                        "state": {"enum": ["idle", "replayed", "halted", "deferred"]},
                        "archives": {"type": "integer", "description": "Archives that would be rewritten."},
                        "decoded": {"type": "integer", "description": "Keys and values that decode now."},
                        "left": {"type": "integer", "description": "Those that still do not."},
                    },
                    "required": [*_SEARCHED, "state", "archives", "decoded", "left"],
                },
            },
        },
        "required": [*_SEARCH, "dry_run", "topics"],
    },
    "Groups": {
        "type": "object",
        "properties": {
            "as_of": {"type": "string", "format": "date-time"},
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        **_GROUP,
                        "coordinator": {**_TEXT_OR_NULL, "description": "Address of the daemon; null: none."},
                        "here": {"type": "boolean", "description": "Whether that is this daemon."},
                        "state": {**_TEXT_OR_NULL, "description": "null: no member has joined it here."},
                        "members": {**_COUNT_OR_NULL, "description": "null as for `state`."},
                    },
                    "required": [*_GROUP, "coordinator", "here", "state", "members"],
                },
            },
            "next": {**_TEXT_OR_NULL, "description": "`after` of the next groups; null at the end."},
            "trouble": {**_TEXT_OR_NULL, "description": "Why states or coordinators are not known."},
        },
        "required": ["as_of", "groups", "next", "trouble"],
    },
    "Group": {
        "type": "object",
        "properties": {
            **_GROUP,
            "as_of": {"type": "string", "format": "date-time"},
            "coordinator": {"type": "object", "description": "As `archiver groups describe`, and `here`."},
            "membership": {
                "type": ["object", "null"],
                "description": "State and members; null: no member has joined it at this daemon.",
            },
            "partitions": {"type": "array", "items": {"type": "object"}},
            "partitions_left": {"type": "integer", "description": "Partitions that are not shown."},
            "pending": {
                "type": "array",
                "items": {"type": "object"},
                "description": "Partitions whose next offset an open transaction has.",
            },
            "trouble": {**_TEXT_OR_NULL, "description": "Why members or coordinator are not known."},
        },
        "required": [*_GROUP, "as_of", "coordinator", "membership", "partitions_left", "pending", "trouble"],
    },
    "TableSnapshot": _SNAPSHOT,
    "Table": {"type": "object", "properties": _TABLE, "required": list(_TABLE)},
    "Topics": {
        "type": "object",
        "properties": {
            "as_of": {"type": "string", "format": "date-time"},
            "topics": {
                "type": "array",
                "items": {"type": "object", "properties": _SUMMARY, "required": list(_SUMMARY)},
            },
        },
        "required": ["as_of", "topics"],
    },
    "Topic": {
        "type": "object",
        "properties": {
            **_SUMMARY,
            "as_of": {"type": "string", "format": "date-time"},
            "topic_id": {"type": "string"},
            "valid_through": _TIME_OR_NULL,
            "partitions": {"type": "array", "items": {"type": "object"}},
            "schema_version": _COUNT_OR_NULL,
            "catalog": _TEXT_OR_NULL,
            "table": _TEXT_OR_NULL,
            "configs": {"type": "object", "description": "Topic configs set by clients or commands."},
            "settings": {"type": ["object", "null"], "description": "null: not in the configuration."},
            "table_summary": {
                "type": ["object", "null"],
                "properties": {**_SIZE, "snapshot": {"oneOf": [_SNAPSHOT_REF, {"type": "null"}]}},
                "description": "Size and newest snapshot of the table, at most 10 s old; null: there is "
                "none, or the catalog did not answer at once.",
            },
        },
        "required": [*_SUMMARY, "as_of", "topic_id", "partitions", "schema_version", "table", "settings"],
    },
    "ReadRecord": {
        "type": "object",
        "properties": {
            "offset": {"type": "integer"},
            "timestamp": _TIME_OR_NULL,
            "ingest_timestamp": {"type": "string", "format": "date-time"},
            "from": {"enum": ["archive", "intake"]},
            "key": _BYTES,
            "value": _BYTES,
            "headers": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "value": _BYTES},
                    "required": ["name", "value"],
                },
            },
            "headers_left": {"type": "integer"},
            "decoded": {
                "type": ["object", "null"],
                "description": "The message of key and value as JSON, or {error} for one that does not "
                "decode; null for a topic without a schema.",
            },
        },
        "required": ["offset", "timestamp", "ingest_timestamp", "from", "key", "value", "headers", "decoded"],
    },
    "Messages": {
        "type": "object",
        "properties": {
            "topic": {"type": "string"},
            "partition": {"type": "integer"},
            "partitions": {"type": "integer"},
            "from": {"type": "integer", "description": "The offset that reading began at."},
            "first": {"type": "integer", "description": "The first offset that still has a record."},
            "stable": {"type": "integer", "description": "The first offset that is not committed yet."},
            "next_offset": {"type": "integer", "description": "The offset of the next record."},
            "records": {"type": "array", "items": {"$ref": "#/components/schemas/ReadRecord"}},
            "next": {**_COUNT_OR_NULL, "description": "Offset to go on from; null at the end."},
            "previous": {**_COUNT_OR_NULL, "description": "Offset to go back to; null at the beginning."},
            "scanned": {"type": "integer", "description": "Records that were read."},
        },
        "required": [
            "topic",
            "partition",
            "partitions",
            "from",
            "first",
            "stable",
            "records",
            "next",
            "scanned",
        ],
    },
    "Message": {
        "type": "object",
        "properties": {
            "explain": {"type": "object", "description": "As `archiver explain --output json`."},
            "record": {
                "oneOf": [{"$ref": "#/components/schemas/ReadRecord"}, {"type": "null"}],
                "description": "null: there is no committed record at this offset, or it cannot be read.",
            },
            "unreadable": {**_TEXT_OR_NULL, "description": "Why the record cannot be read."},
        },
        "required": ["explain", "record", "unreadable"],
    },
}
