"""Table of all endpoints of the port, and the OpenAPI document generated from it.

The routes are built from the same table (`archiver.web.app`), so document and port agree.
"""

from __future__ import annotations

import re
from typing import Any

from archiver.web.bodies import BodyField, body_schema
from archiver.web.endpoint import (
    BROKEN,
    CSS,
    HTML,
    JSON,
    NDJSON,
    NO_ROOM,
    NOT_OURS,
    TEXT,
    Answer,
    Endpoint,
    Schema,
)
from archiver.web.query_endpoints import QUERIES, QUERY_COMPONENTS
from archiver.web.read_components import READ_COMPONENTS
from archiver.web.read_endpoints import PAGE_REFUSALS, PAGES, READS

API_VERSION = "1.0"
# The first is the common name, the second is our own.
PROTOBUF = ("application/x-protobuf", "application/vnd.archiver.records+protobuf")

# JSON Schema searches, so it needs the anchors; `$` also matches before a line feed, hence `fullmatch`.
CHALLENGE = re.compile("^[0-9a-f]{32,64}$")
"""Form of a challenge; the schema has the same pattern."""

_ADMIN_ANSWERS = {
    401: Answer("no token; send it as Authorization: Bearer TOKEN"),
    403: Answer("the token is wrong, or the Host or Origin header is not this port's; nothing was done"),
    429: NO_ROOM,
    500: BROKEN,
    503: Answer(
        "the daemon knows no token yet, or a dependency does not answer; nothing was done", retry_after=True
    ),
}
_BODY_ANSWERS = {
    400: Answer("the body is invalid; nothing was done"),
    408: Answer("the body did not arrive in time; nothing was done"),
    413: Answer("the body is too large; nothing was done"),
    415: Answer("the type, charset or content encoding of the body is not accepted; nothing was done"),
}
_STREAM = Answer(
    "the work has begun: lines {progress}, {alive} at least every 5 s, and at the end one line {done} "
    "or {error}. The work continues if the "
    "client leaves.",
    NDJSON,
    "AdminLine",
)
_SCOPE = BodyField("text", "Only this topic, or some of its partitions: orders, orders:3, orders:0-3.")
ADMIN_FIELDS: dict[str, dict[str, BodyField]] = {
    "archive": {
        "topic": _SCOPE,
        "all": BodyField("truth value", "All stable records, ignoring the triggers.", default=False),
    },
    "reconcile": {
        "fix": BodyField("truth value", "Apply the repairs, including that of a rollback.", default=False),
        "topic": BodyField("text", "Only this topic."),
    },
    "clean": {"dry_run": BodyField("truth value", "Only report what would be done.", default=False)},
    "replay": {
        "topic": _SCOPE,
        "max_files": BodyField("whole number", "Maximum of archives to rewrite.", minimum=1),
    },
    "audit": {"topic": _SCOPE, "deep": BodyField("truth value", "Read every row, on Spark.", default=False)},
    "reload": {},
    "reset_offsets": {
        "group": BodyField("text", "The id of the consumer group.", required=True),
        "topic": BodyField("text", "The topic's name.", required=True),
        "offsets": BodyField(
            "text",
            "The new offset of each partition, as partition:offset with commas: 0:12,1:40.",
            required=True,
        ),
    },
}
"""Fields of each administration request; the validation uses them too."""


def _admin(name: str, summary: str, text: str, role: str | None = None) -> Endpoint:
    fields = ADMIN_FIELDS[name]
    body, required = {JSON: body_schema(fields)}, any(field.required for field in fields.values())
    answers = {200: _STREAM, **_BODY_ANSWERS, **_ADMIN_ANSWERS}
    # A request without role works on every daemon.
    if role is not None:
        answers[409] = Answer(
            f"this daemon has not the role {role}; nothing was done, another process may do it"
        )
    return Endpoint(
        f"admin_{name}", "POST", f"/v1/admin/{name}", summary, text, answers, (), body, required, True
    )


_RECORDS = Endpoint(
    "produce",
    "POST",
    "/v1/topics/{topic}/records",
    "Send records to a topic",
    "Returns when every record is stored and in the intake log, with its offset. Limits are checked "
    "before anything is parsed, and a "
    "request is accepted whole or not at all: after any status but 200, 422, 500 and 503 with "
    "acknowledgement lines, nothing of it was sent. "
    "A client that loses the connection before the answer, or gets 500 without lines, must treat every "
    "record as of unknown outcome.",
    {
        200: Answer(
            "every record is stored; one line per record, in input order, as `archiver produce "
            "--output json` prints",
            NDJSON,
            "Line",
        ),
        400: Answer(
            "a record, a parameter or a header is wrong; the message names the line or record. Nothing "
            "was sent"
        ),
        401: Answer("http.produce_token is set, and the request has no token; nothing was sent"),
        403: Answer(
            "the token is not http.produce_token, or the Host or Origin header is not this port's; "
            "nothing was sent"
        ),
        404: Answer("there is no such topic; nothing was sent"),
        408: Answer("the body did not arrive within http.request_timeout; nothing was sent"),
        413: Answer("more than http.body_bytes_max bytes or http.records_max records; nothing was sent"),
        415: Answer("a content type, charset or content encoding that is not accepted; nothing was sent"),
        422: Answer(
            "records that do not decode are refused (`validate: reject`), one line per record says "
            "which; the others are stored. Correct "
            "those before sending them again",
            NDJSON,
            "Line",
        ),
        429: Answer(
            "no room in the intake queue, http.requests_max requests open, or intake not open "
            "yet; nothing was sent",
            retry_after=True,
        ),
        500: Answer(
            "some records are stored and others are not, or of some it is unknown: one line per record "
            "says which. Send those that "
            "failed again; check before sending again what is unknown",
            NDJSON,
            "Line",
        ),
        503: Answer(
            "intake is closed or cannot take records (one JSON error), or not one of the records was "
            "stored (one line each): "
            "nothing of the request is in the log",
            NDJSON,
            "Line",
            retry_after=True,
        ),
    },
    (
        {
            "name": "topic",
            "in": "path",
            "required": True,
            "description": "The topic's name.",
            "schema": {"type": "string"},
        },
        {
            "name": "text",
            "in": "query",
            "description": "true: keys, values and header values in JSON are UTF-8 text instead of base64.",
            "schema": {"type": "boolean", "default": False},
        },
    ),
    {
        NDJSON: {"description": "Record JSON, one per line.", "$ref": "#/components/schemas/Record"},
        **{
            kind: {
                "type": "string",
                "description": "archiver.v1.ProduceRecord messages "
                "(archiver/proto/produce.proto), each behind its "
                "length as a varint.",
            }
            for kind in PROTOBUF
        },
    },
    sends=True,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "healthz",
        "GET",
        "/healthz",
        "Whether the process lives",
        "Depends on nothing outside of the process. With a challenge, the header Archiver-Proof "
        "of the answer is the "
        "HMAC-SHA256 of challenge, address and port (blanks between them) under the token of "
        "administration, in hex digits: a client that "
        "has the token can verify that the daemon at that address has it, before sending it.",
        {
            200: Answer("it lives", JSON, "Health"),
            400: Answer("the challenge is not 32 to 64 hex digits"),
            403: NOT_OURS,
            503: Answer("a thread of the daemon has died", JSON, "Health"),
        },
        (
            {
                "name": "challenge",
                "in": "query",
                "description": "Drawn at random for this one request.",
                "schema": {"type": "string", "pattern": CHALLENGE.pattern},
            },
        ),
    ),
    Endpoint(
        "readyz",
        "GET",
        "/readyz",
        "Whether it serves and its dependencies answer",
        "As of the last status poll (daemon.watch_interval).",
        {
            200: Answer("ready", JSON, "Readiness"),
            403: NOT_OURS,
            503: Answer("not ready, and why", JSON, "Readiness"),
        },
    ),
    Endpoint(
        "metrics",
        "GET",
        "/metrics",
        "Every number, for Prometheus",
        "docs/metrics.md lists them.",
        {200: Answer("Prometheus' text format", TEXT, "string"), 403: NOT_OURS, 429: NO_ROOM, 500: BROKEN},
    ),
    Endpoint(
        "page",
        "GET",
        "/",
        "The overview page, for people",
        "A reader who may not read everything gets the list of topics instead.",
        {
            200: Answer("a page without scripts", HTML, "string"),
            303: Answer("see the list of topics", HTML, "string"),
            **PAGE_REFUSALS,
        },
        reads=True,
    ),
    Endpoint(
        "style",
        "GET",
        "/style.css",
        "The style of the pages",
        "",
        {200: Answer("a style sheet", CSS, "string"), 403: NOT_OURS},
    ),
    Endpoint(
        "openapi",
        "GET",
        "/openapi.json",
        "This document",
        "",
        {200: Answer("OpenAPI 3.1", JSON, "Document"), 403: NOT_OURS},
    ),
    _RECORDS,
    Endpoint(
        "admin_status",
        "GET",
        "/v1/admin/status",
        "Where everything stands",
        "As `archiver status --output json`.",
        {200: Answer("the document", JSON, "Document"), **_ADMIN_ANSWERS},
        admin=True,
    ),
    _admin("archive", "Archive now", "As `archiver archive`.", "archive"),
    _admin(
        "reconcile",
        "Compare all views, and repair",
        "As `archiver reconcile`: without `fix` nothing is changed.",
        "reconcile",
    ),
    _admin("clean", "Delete intake that is no longer needed", "As `archiver clean`.", "reconcile"),
    _admin("replay", "Decode again what could not be decoded", "As `archiver dlq replay`.", "archive"),
    _admin("audit", "Compare logs, archives and tables", "As `archiver audit`; changes nothing."),
    _admin("reload", "Read the configuration again", "As SIGHUP: settings of archiving and of topics."),
    _admin(
        "reset_offsets",
        "Change committed offsets of a consumer group",
        "As `archiver groups reset`. Only the daemon that coordinates the group does it, and only while the "
        "group has no members.",
        "intake",
    ),
    *READS,
    *PAGES,
    *QUERIES,
)

_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_HEADER: Schema = {
    "type": "array",
    "prefixItems": [{"type": "string"}, _TEXT_OR_NULL],
    # A header is exactly a name and a value, so further items are invalid.
    "items": False,
    "minItems": 2,
    "maxItems": 2,
}
_OUTCOMES: Schema = {
    "enum": ["failed", "unknown"],
    "description": "failed: certainly not stored; unknown: it may be stored, check first.",
}
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "message": {"type": "string"},
        "exit_code": {"type": "integer"},
        "holder": {"type": "string", "description": "Of the lease, host:pid, where another process leads."},
    },
    "required": ["type", "message"],
}
COMPONENTS: dict[str, Schema] = {
    "Document": {"type": "object"},
    "Error": {"type": "object", "properties": {"error": _ERROR}, "required": ["error"]},
    "Health": {
        "type": "object",
        "properties": {
            "alive": {"type": "boolean"},
            "version": {"type": "string"},
            "roles": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["alive", "version", "roles"],
    },
    "Readiness": {
        "type": "object",
        "properties": {
            "ready": {"type": "boolean"},
            "state": {"enum": ["starting", "serving", "stopping"]},
            "checks": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "ok": {"type": "boolean"},
                        "why": {"type": "string", "description": "Empty while it answers."},
                        "since": {"type": "string", "format": "date-time"},
                    },
                    "required": ["name", "ok", "why", "since"],
                },
            },
        },
        "required": ["ready", "state", "checks"],
    },
    "Record": {
        "type": "object",
        "properties": {
            "topic": {
                **_TEXT_OR_NULL,
                "description": "May be left out; another one than in the address is refused.",
            },
            "partition": {"type": ["integer", "null"], "description": "Left out, the key decides."},
            "timestamp": {
                "type": ["string", "null"],
                "format": "date-time",
                "description": "RFC 3339, years 1 to 9999, cut to microseconds. Left out, the "
                "time of acceptance.",
            },
            "key": {**_TEXT_OR_NULL, "description": "Base64, or text with ?text=true."},
            "value": {**_TEXT_OR_NULL, "description": "As key; null is a tombstone."},
            "headers": {"type": ["array", "null"], "items": _HEADER},
        },
        "required": ["value"],
        "additionalProperties": False,
    },
    "Line": {
        "type": "object",
        "properties": {
            "topic": {"type": "string"},
            "partition": {"type": "integer"},
            "offset": {"type": ["integer", "null"]},
            "outcome": _OUTCOMES,
            "error": {"type": "string"},
        },
        "required": ["topic", "partition", "offset"],
    },
    # Each line is one of four objects with one key, so a client can switch on the key.
    "AdminLine": {
        "oneOf": [
            {"type": "object", "properties": {"progress": {"type": "string"}}, "required": ["progress"]},
            {"type": "object", "properties": {"alive": {"const": True}}, "required": ["alive"]},
            {
                "type": "object",
                "properties": {
                    "done": {
                        "type": "object",
                        "properties": {"document": {"type": "object"}, "exit_code": {"type": "integer"}},
                        "required": ["document", "exit_code"],
                    }
                },
                "required": ["done"],
            },
            {"type": "object", "properties": {"error": _ERROR}, "required": ["error"]},
        ]
    },
    **READ_COMPONENTS,
    **QUERY_COMPONENTS,
}


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stream Archiver",
            "version": API_VERSION,
            "description": "The daemon's port: health, metrics, records, administration, "
            "what the console shows, and its pages.",
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "http.admin_token, or the daemon's own.",
                },
                "sender": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "http.produce_token, if it is set.",
                },
                "reader": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "http.read_token, if it is set.",
                },
                "user": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "A user of the Kafka listener, who may read what kafka.acls allow; or any "
                    "name with a token as the password.",
                },
            },
        },
    }


def _operation(endpoint: Endpoint) -> Schema:
    operation: Schema = {"operationId": endpoint.name, "summary": endpoint.summary}
    if endpoint.text:
        operation["description"] = endpoint.text
    if endpoint.parameters:
        operation["parameters"] = list(endpoint.parameters)
    if endpoint.bodies is not None:
        content = {kind: {"schema": schema} for kind, schema in endpoint.bodies.items()}
        operation["requestBody"] = {"required": endpoint.body_required, "content": content}
    operation["responses"] = {
        str(status): _answer(status, answer) for status, answer in sorted(endpoint.answers.items())
    }
    if endpoint.admin:
        operation["security"] = [{"token": []}]
    if endpoint.reads:
        # The empty object, because a port on loopback asks for nothing.
        operation["security"] = [{}, {"token": []}, {"reader": []}, {"user": []}]
    if endpoint.sends:
        # The empty object makes the token optional: it is required only if one is configured.
        operation["security"] = [{}, {"sender": []}]
    return operation


def _answer(status: int, answer: Answer) -> Schema:
    schema: Schema = (
        {"type": "string"} if answer.schema == "string" else {"$ref": f"#/components/schemas/{answer.schema}"}
    )
    content = {answer.media: {"schema": schema}}
    # A page refuses with a page, but what is refused before it is reached has the one JSON form.
    if answer.media == HTML and status >= 400:
        content[JSON] = {"schema": {"$ref": "#/components/schemas/Error"}}
    # Errors of the daemon itself have the one JSON form there too.
    if answer.media == NDJSON and status >= 500:
        content[JSON] = {"schema": {"$ref": "#/components/schemas/Error"}}
    headers: Schema = {
        "Archiver-Cluster-Id": {
            "description": "Of the data folder, once it is known.",
            "schema": {"type": "string"},
        }
    }
    if answer.retry_after:
        headers["Retry-After"] = {
            "description": "Whole seconds to wait.",
            "schema": {"type": "integer", "minimum": 1},
        }
    return {"description": answer.text, "headers": headers, "content": content}
