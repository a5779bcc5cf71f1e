"""JSON Schemas of the documents that can be read: the components of the OpenAPI document for the read API."""

from __future__ import annotations

from archiver.web.endpoint import Schema

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
    "attention": {"enum": ["act", "watch", "ok"], "description": "Of the topic, as the overview says it."},
    "attention_why": {**_TEXT_OR_NULL, "description": "What needs attention; null: nothing."},
    "stuck": {**_TEXT_OR_NULL, "description": "Why the last round could not finish the topic."},
    "troubled": {"type": "integer", "description": "Partitions held back by more than not being due yet."},
    "traffic": {
        "type": ["object", "null"],
        "properties": {
            "records_per_s": {"type": "number"},
            "bytes_per_s": {"type": "number", "description": "Raw bytes of the records."},
            "age_seconds": {"type": "number", "description": "Age of the middle of the time."},
        },
        "required": ["records_per_s", "bytes_per_s", "age_seconds"],
        "description": "Mean traffic of the newest step of the charts; null: not known.",
    },
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
                        "why": {
                            **_TEXT_OR_NULL,
                            "description": "Why it could not be read, or why some still do not decode.",
                        },
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
            "left": {"type": "integer", "description": "Topics that come after these."},
            "next": {**_TEXT_OR_NULL, "description": "The value of `after` for them; null: there are none."},
        },
        "required": ["as_of", "topics", "left", "next"],
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
            "template": {
                **_TEXT_OR_NULL,
                "description": "Pattern of the template that the settings are from.",
            },
            "archive": {
                "type": "array",
                "description": "Settings of `archive` in force for the topic; empty without archives.",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "description": "As in archiver.yaml."},
                        "value": {"type": "number", "description": "Times in seconds, sizes in bytes."},
                        "text": {"type": "string", "description": "The value as archiver.yaml has it."},
                        "from": {
                            "enum": ["topic", "template", "archive", "default"],
                            "description": "The topic's entry or its template, the group `archive`, or the "
                            "default.",
                        },
                    },
                    "required": ["name", "value", "text", "from"],
                },
            },
            "table_summary": {
                "type": ["object", "null"],
                "properties": {**_SIZE, "snapshot": {"oneOf": [_SNAPSHOT_REF, {"type": "null"}]}},
                "description": "Size and newest snapshot of the table, at most 10 s old; null: there is "
                "none, or the catalog did not answer at once.",
            },
        },
        "required": [
            *_SUMMARY,
            "as_of",
            "topic_id",
            "partitions",
            "schema_version",
            "table",
            "settings",
            "template",
            "archive",
        ],
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
