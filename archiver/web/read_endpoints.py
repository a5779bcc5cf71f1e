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
TOPICS = 200
"""Topics of a list that states no number."""
TOPICS_MAX = 1000
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
    form: str = ""
    """Template of the page that shows its form again after a wrong value; empty for a page without a form."""


def _in_path(name: str, text: str, kind: str = "string") -> Schema:
    schema: Schema = {"type": kind}
    if kind == "integer":
        schema |= {"minimum": 0, "maximum": OFFSET_MAX}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def _query(name: str, text: str, schema: Schema, *, required: bool = False) -> Schema:
    # A form sends its empty fields too, so an empty value counts as none.
    rule = {"required": True} if required else {"allowEmptyValue": True}
    return {"name": name, "in": "query", "description": text, **rule, "schema": schema}


_TOPIC = _in_path("topic", "The topic's name.")
_ONE_TOPIC = _query("topic", "Only this topic; all that may be read without it.", {"type": "string"})
VIEWS: tuple[View, ...] = (
    View(
        "topics",
        "/topics",
        "Topics",
        "By their names, as of the newest poll (daemon.watch_interval). A reader sees the topics that it may "
        "describe.",
        "Topics",
        (
            _query("after", "Only topics whose names come after this text.", {"type": "string"}),
            _query(
                "limit",
                f"Maximum of topics, 1 to {TOPICS_MAX}.",
                {"type": "integer", "minimum": 1, "maximum": TOPICS_MAX, "default": TOPICS},
            ),
        ),
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
            _query(
                "partition",
                "The partition.",
                {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX, "default": 0},
            ),
            _query(
                "from",
                "earliest; latest, for the newest records; latest-N, for the last N (at most "
                "100,000); end; an offset; or a time such as 2026-11-27T12:00:00Z, for the first "
                "record at or after it, or a duration such as -10m, for the time that long ago.",
                {"type": "string", "default": "latest"},
            ),
            _query(
                "limit",
                f"Maximum of records, 1 to {RECORDS_MAX}.",
                {"type": "integer", "minimum": 1, "maximum": RECORDS_MAX, "default": RECORDS},
            ),
            _query("key", "Only records with exactly this key, as text.", {"type": "string"}),
            _query(
                "key_base64", "The same for a key of any bytes. Not together with key.", {"type": "string"}
            ),
        ),
        form="messages_refused.html",
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
                {"type": "integer", "minimum": 1, "maximum": RECORDS_MAX, "default": RECORDS},
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
        (_query("group", "The group's id, any text.", {"type": "string"}, required=True),),
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
                {"type": "integer", "minimum": 1, "maximum": RECORDS_MAX, "default": RECORDS},
            ),
        ),
        form="dead_letters_refused.html",
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
