"""Status page: one page of HTML, rendered on the server from values only.

Every text is escaped, and invisible characters are made visible. The page loads nothing from elsewhere and
runs no script. Its size is bounded for any number of topics and partitions.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape

from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted, moment, printable_text
from archiver.status.advice import RUNBOOK, Advice, advice, verdict
from archiver.status.ages import age, age_at, count
from archiver.status.history import LagHistory
from archiver.status.journal import Cycle, Journal
from archiver.status.lag import LagReport
from archiver.web.page_topics import chosen_topics
from intake.sources.files.source import FilesState
from intake.sources.kafka.state import MirrorState
from reconcile.snapshot.oldest_required import OldestRequired

REFRESHES_S = (5, 30, 300)
"""Refresh intervals that the page offers; a request may use any whole number of seconds up to an hour."""
REFRESH_MAX_S = 3600
CYCLES_SHOWN = 30
ADVICE_SHOWN = 100
FILES_SHOWN = 20
"""Maximum of failed files shown of each source."""
TEXT_MAX = 2000
"""Maximum of characters of one text: an error may contain a whole answer of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageValues:
    """Values that the page shows."""

    standing: LagReport | None
    """Newest lag report; None while the application is not open."""
    journal: Journal
    history: LagHistory
    now_us: int
    look_interval_s: float
    """Interval of lag reports (`daemon.watch_interval`)."""
    version: str
    owner: str
    """Name of this process in leases: host:pid."""
    roles: Sequence[str]
    cluster: str
    cluster_id: str | None
    """None while it is not known."""
    data: str
    """Data folder, without secrets."""
    leader: str | None
    """Holder of the leadership lease; None: not held, or not known yet."""
    epoch: int | None
    pin: OldestRequired | None
    """Oldest required intake file; None if no file is required, or not known."""
    pin_known: bool
    sources: Sequence[FilesState] = ()
    """File sources of this daemon."""
    mirrors: Sequence[MirrorState] = ()
    """Kafka sources of this daemon."""
    query: Mapping[str, str]
    """`refresh`: seconds; `topic`: show all of one topic. Unknown and invalid ones are ignored."""


def page(values: PageValues) -> str:
    """The page."""
    found = advice(
        values.standing, values.journal, values.now_us, values.look_interval_s, values.sources, values.mirrors
    )
    refresh = _refresh(values.query)
    only = values.query.get("topic")
    shown = None if values.standing is None else chosen_topics(values.standing, values.history, only)
    return _template().render(
        style=Markup(_style()),  # noqa: S704 - a file of ours
        policy=_META_POLICY,
        values=values,
        verdict=verdict(found, values.journal.state),
        advice=found[:ADVICE_SHOWN],
        advice_left=max(0, len(found) - ADVICE_SHOWN),
        worst=_worst(found, values.journal.state),
        runbook=RUNBOOK,
        files_shown=FILES_SHOWN,
        refresh=refresh,
        refreshes=[(seconds, _link(seconds, only)) for seconds in REFRESHES_S],
        without_refresh=_link(None, only),
        all_topics=_link(refresh, None),
        topic_link=lambda topic: _link(refresh, topic),
        only=only,
        shown=shown,
        checks=values.journal.checks(),
        newest=_newest(values.journal),
        cycles=_shown_cycles(values.journal.cycles()),
        counts=values.journal.counts(),
        audit=_audit(values.journal.newest("audit")),
        deep_audit=_audit(values.journal.newest("deep_audit")),
    )


def _worst(found: Sequence[Advice], state: str) -> str:
    """Badge of the first line; it must agree with its text, for which notes are no problem."""
    worst = found[0].severity if found else "ok"
    return "ok" if worst == "note" and state == "serving" else worst


def _shown_cycles(cycles: Sequence[Cycle]) -> list[Cycle]:
    """Newest cycles without those of a watch that found nothing, which come every few seconds."""
    return [cycle for cycle in cycles if cycle.job != "watch" or cycle.outcome != "fine"][:CYCLES_SHOWN]


def _newest(journal: Journal) -> list[tuple[str, Cycle | None]]:
    """Newest cycle of each job; deep audit and control topic only if there is one."""
    found = [
        (job, journal.newest(job))
        for job in ("tick", "reconcile", "cleanup", "audit", "deep_audit", "watch", "control_topic")
    ]
    return [
        (job, cycle)
        for job, cycle in found
        if job not in ("deep_audit", "control_topic") or cycle is not None
    ]


def _audit(cycle: Cycle | None) -> dict[str, Any] | None:
    """Newest audit: its verdict, and the number of partitions by verdict."""
    if cycle is None:
        return None
    partitions = cycle.document.get("partitions") or []
    verdicts = [str(one.get("verdict")) for one in partitions]
    return {
        "cycle": cycle,
        "verdict": cycle.document.get("verdict")
        or {"fine": "valid", "wrong": "invalid"}.get(cycle.outcome, "unknown"),
        "counts": [
            (name, verdicts.count(name)) for name in ("invalid", "unknown", "valid") if name in verdicts
        ],
    }


def _refresh(query: Mapping[str, str]) -> int | None:
    text = query.get("refresh", "")
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return seconds if 1 <= seconds <= REFRESH_MAX_S else None


def _link(refresh: int | None, topic: str | None) -> str:
    """Link to this page, relative to the port."""
    given = {"refresh": refresh, "topic": topic}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return f"/?{query}" if query else "/"


def visible(value: object) -> object:
    """Text without invisible or direction-changing characters, cut to `TEXT_MAX`; other values unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable_text(excerpt(value, TEXT_MAX))


def coded(text: str) -> Markup:
    """Escaped text with the parts between backticks as code."""
    shown = str(visible(text))
    parts = shown.split("`")
    if len(parts) % 2 == 0:
        return escape(shown)
    pieces = (
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
    return Markup("").join(pieces)


@cache
def _style() -> str:
    return (files("archiver.web") / "templates" / "page.css").read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("archiver.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "coded": coded,
        "age": age,
        "age_at": age_at,
        "count": count,
        "counted": counted,
        "moment": moment,
    }
    return environment.get_template("page.html")


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


_META_POLICY = _policy()

HEADERS: Mapping[str, str] = {"Content-Security-Policy": f"{_META_POLICY}; frame-ancestors 'none'"}
"""Additional headers of the page: the browser uses only its own style and runs nothing."""
