"""How an endpoint of the port is described, and the answers that many endpoints share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

JSON, NDJSON, TEXT, HTML, CSS = (
    "application/json",
    "application/x-ndjson",
    "text/plain",
    "text/html",
    "text/css",
)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of an operation."""

    text: str
    media: str = JSON
    schema: str = "Error"
    """Name of a component, or `string` for plain text."""
    retry_after: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Method of a path."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    summary: str
    text: str
    answers: dict[int, Answer]
    parameters: tuple[Schema, ...] = ()
    bodies: dict[str, Schema] | None = None
    body_required: bool = True
    admin: bool = False
    """Requires the token of administration."""
    sends: bool = False
    """Requires the token of records, if one is set."""
    reads: bool = False
    """Requires a token or a login, unless the port is on loopback."""


NOT_OURS = Answer(
    "the Host or Origin header is not this port's: the request came from another web page; nothing was done"
)
BROKEN = Answer("an error in the daemon; its log says more")
NO_ROOM = Answer("too many requests are open; nothing was done", retry_after=True)
