"""Description of the endpoints that run and cancel queries, and the schemas of queries."""

from __future__ import annotations

from archiver.web.bodies import BodyField, body_schema
from archiver.web.endpoint import HTML, JSON, Answer, Endpoint, Schema
from archiver.web.read_endpoints import PAGE_REFUSALS, refusals

ROWS = 1000
"""Rows of a query that states no number."""
ROWS_MAX = 10_000
FORM = "application/x-www-form-urlencoded"

QUERY_FIELDS: dict[str, BodyField] = {
    "sql": BodyField(
        "text", "One SELECT (or DESCRIBE, SHOW, SUMMARIZE); a table is named shop.orders.", required=True
    ),
    "limit": BodyField(
        "whole number",
        f"Maximum of rows, 1 to {ROWS_MAX}; {ROWS} if it is left out.",
        minimum=1,
        maximum=ROWS_MAX,
    ),
    "wait": BodyField(
        "truth value",
        "Whether to answer when the query has ended; otherwise at once with its id.",
        default=True,
    ),
}
_ID: Schema = {
    "name": "query",
    "in": "path",
    "required": True,
    "description": "The id of the query.",
    "schema": {"type": "string"},
}
_FORM: Schema = {
    "type": "object",
    "properties": {"sql": {"type": "string", "minLength": 1}, "limit": {"type": "string"}},
    "required": ["sql"],
}
_BODY: dict[int, str] = {
    408: "the body did not arrive in time; nothing was done",
    413: "the body is too large; nothing was done",
    415: "the type, charset or content encoding of the body is not accepted; nothing was done",
}
_SEE_OTHER = Answer("see the page of the query", HTML, "string")

QUERIES: tuple[Endpoint, ...] = (
    Endpoint(
        "query_run",
        "POST",
        "/v1/query",
        "Run a query",
        "SQL over the tables by DuckDB, read only, with limits of rows, bytes, time and memory. Reaches only "
        "tables of topics that the reader may read. A client that leaves cancels its query.",
        {
            200: Answer("the result", schema="Query"),
            202: Answer("the query waits or runs", schema="Query"),
            **{status: Answer(text) for status, text in _BODY.items()},
            **refusals({}),
        },
        bodies={JSON: body_schema(QUERY_FIELDS)},
        reads=True,
    ),
    Endpoint(
        "query_cancel",
        "POST",
        "/v1/query/{query}/cancel",
        "Cancel a query",
        "Nothing happens to a query that has ended. Only the reader that started it may cancel it.",
        {200: Answer("the query", schema="Query"), **refusals({})},
        (_ID,),
        reads=True,
    ),
    Endpoint(
        "page_query_run",
        "POST",
        "/query",
        "Run a query, for the form of the page",
        "Needs an Origin header, which browsers send with a form.",
        {
            303: _SEE_OTHER,
            **{status: Answer(text, HTML, "string") for status, text in _BODY.items()},
            **PAGE_REFUSALS,
        },
        bodies={FORM: _FORM},
        reads=True,
    ),
    Endpoint(
        "page_query_cancel",
        "POST",
        "/query/{query}/cancel",
        "Cancel a query, for the button of the page",
        "Needs an Origin header, which browsers send with a form.",
        {303: _SEE_OTHER, **PAGE_REFUSALS},
        (_ID,),
        reads=True,
    ),
)

_SUMMARY: dict[str, Schema] = {
    "id": {"type": "string"},
    "sql": {"type": "string"},
    "state": {"enum": ["waiting", "running", "done", "failed", "cancelled"]},
    "limit": {"type": "integer", "description": "Maximum of rows."},
    "started": {"type": "string", "format": "date-time"},
    "waited_seconds": {"type": "number", "description": "Time until it began to run."},
    "seconds": {"type": ["number", "null"], "description": "Time that it has run; null before."},
    "row_count": {"type": "integer", "description": "Rows of the result that are kept."},
    "error": {"type": ["string", "null"], "description": "Why there is no result."},
}
QUERY_COMPONENTS: dict[str, Schema] = {
    "Queries": {
        "type": "object",
        "properties": {
            "limits": {
                "type": "object",
                "properties": {
                    "seconds_max": {"type": "number"},
                    "memory_max": {"type": "integer"},
                    "answer_bytes_max": {"type": "integer"},
                    "kept_seconds": {"type": "number", "description": "Time for which a result is kept."},
                    "unavailable": {
                        "type": ["string", "null"],
                        "description": "Why there can be no query.",
                    },
                },
                "required": ["seconds_max", "memory_max", "answer_bytes_max", "kept_seconds", "unavailable"],
            },
            "tables": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "table": {"type": "string"},
                        "topic": {"type": "string"},
                        "sql": {"type": "string", "description": "Its name in a query."},
                    },
                    "required": ["table", "topic", "sql"],
                },
            },
            "queries": {
                "type": "array",
                "items": {"type": "object", "properties": _SUMMARY, "required": list(_SUMMARY)},
            },
        },
        "required": ["limits", "tables", "queries"],
    },
    "Query": {
        "type": "object",
        "properties": {
            **_SUMMARY,
            "columns": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "type": {"type": "string", "description": "As DuckDB names it."},
                    },
                    "required": ["name", "type"],
                },
            },
            "first": {"type": "integer", "description": "Number of the first row in `rows`; 0 is the first."},
            "rows": {
                "type": "array",
                "description": "A list of values for each row, as `archiver query --output json` has them.",
                "items": {"type": "array", "items": {}},
            },
            "cut": {
                "enum": ["rows", "bytes", None],
                "description": "The limit after which rows were left out; null if there are no more.",
            },
        },
        "required": [*_SUMMARY, "columns", "first", "rows", "cut"],
    },
}
