"""Status page: one page of HTML, rendered on the server from values only.

Every text is escaped, and invisible characters are made visible. The page loads nothing from elsewhere and
runs no script. Its size is bounded for any number of topics and partitions.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted, moment, printable_text
from archiver.status.advice import SEVERITIES, Advice, Severity, advice, topic_attention, verdict
from archiver.status.ages import age, age_at, count
from archiver.status.group_lag import GroupLag, GroupReport
from archiver.status.history import LagHistory, LagSample, last_lag
from archiver.status.journal import Cycle, Journal
from archiver.status.kafka_port import KafkaPort
from archiver.status.lag import STAGES, LagReport, PartitionLag, Stage, StageLag, TopicLag, summed
from archiver.status.reasons import CAUSES
from archiver.web.results import results
from archiver.web.svg import Chart, records_chart, seconds_chart, traffic_charts
from intake.sources.files.source import FilesState
from intake.sources.kafka.upstream_changes import MirrorState
from reconcile.snapshot.oldest_required import OldestRequired

# --- Selection of topics and partitions
PARTITIONS_SHOWN = 50
"""Maximum of partitions shown of each topic."""
PARTITIONS_SHOWN_ALONE = 2000
"""Maximum of partitions of a topic that is shown alone."""
TOPICS_SHOWN = 20
"""Maximum of topics shown with partitions; the others are only in the list."""
LISTED_FIRST = 12
TOPICS_LISTED = 300

_CALM = len(CAUSES)
"""Rank of a partition that is not held back."""


@dataclass(frozen=True, slots=True)
class ShownTopic:
    """One topic with its partitions."""

    standing: TopicLag
    lag: StageLag | None
    """Lag of its last stage."""
    stages: tuple[Stage, ...]
    """Stages of the topic."""
    rows: tuple[PartitionLag, ...]
    """All partitions in order, or only the worst, the worst first."""
    left: int
    """Number of partitions not in `rows`."""
    left_lag: StageLag | None
    """Their summed records and greatest age."""
    troubled: int
    """Partitions that are held back by more than not being due yet."""
    attention: tuple[Severity, str] | None
    """What needs attention, by the advice of the page."""
    records: int
    """Offsets that its partitions have given."""
    traffic: LagSample | None
    """The newest known one."""
    charts: tuple[Chart, ...]
    opened: bool
    """Whether its partitions are shown unfolded."""


@dataclass(frozen=True, slots=True)
class ShownTopics:
    """The topics of the page."""

    listed: tuple[tuple[TopicLag, StageLag | None, Severity | None], ...]
    """Listed topics, the worst first, with lag and severity of what needs attention."""
    listed_first: int
    """Number of topics listed unfolded."""
    listed_left: int
    shown: tuple[ShownTopic, ...]
    total: int
    unknown: bool
    """The requested topic is not in the log."""


def chosen_topics(
    standing: LagReport, history: LagHistory, only: str | None, attention: Mapping[str, tuple[Severity, str]]
) -> ShownTopics:
    """Choose what to show; with `only`, one topic with more of its partitions. `attention` has the topics
    that need some.
    """

    def rank(topic: TopicLag) -> tuple[int, int, float, str]:
        needed = attention.get(topic.topic)
        severity = len(SEVERITIES) if needed is None else SEVERITIES.index(needed[0])
        # By name among equals, so that the page does not change its order at each refresh.
        return severity, *_rank(topic), topic.topic

    ordered = sorted(standing.topics, key=rank)
    alone = None if only is None else standing.topic(only)
    chosen = ordered[:TOPICS_SHOWN] if only is None else [alone] if alone is not None else []
    listed = [
        (topic, last_lag(topic), attention.get(topic.topic, (None,))[0]) for topic in ordered[:TOPICS_LISTED]
    ]
    most = PARTITIONS_SHOWN if only is None else PARTITIONS_SHOWN_ALONE
    return ShownTopics(
        listed=tuple(listed) if only is None else (),
        listed_first=LISTED_FIRST,
        listed_left=max(0, len(ordered) - TOPICS_LISTED) if only is None else 0,
        shown=tuple(
            # Topics with trouble are unfolded. On a phone each partition takes half of the screen.
            _shown(
                topic,
                history,
                most,
                attention.get(topic.topic),
                opened=only is not None or topic.troubled > 0,
                traffic=only is not None,
            )
            for topic in chosen
        ),
        total=len(ordered),
        unknown=only is not None and alone is None,
    )


def _rank(topic: TopicLag) -> tuple[int, float]:
    """Sort key among topics of one severity: cause of the worst partition, then age."""
    lag = last_lag(topic)
    worst = min((_severity(partition) for partition in topic.partitions), default=_CALM)
    return worst, -_seconds(lag)


def _severity(partition: PartitionLag) -> int:
    return _CALM if partition.cause is None else CAUSES.index(partition.cause)


def _seconds(lag: StageLag | None) -> float:
    """Age for sorting: an unknown age is worse than any number."""
    if lag is None:
        return 0.0
    # An unknown age sorts before any number: it must not be hidden below the fold.
    return float("inf") if lag.seconds is None else lag.seconds


def _shown(
    topic: TopicLag,
    history: LagHistory,
    most: int,
    attention: tuple[Severity, str] | None,
    *,
    opened: bool,
    traffic: bool,
) -> ShownTopic:
    rows: Sequence[PartitionLag] = topic.partitions
    # Only then by severity: a complete list is easier to read in the order of its numbers.
    if len(rows) > most:
        rows = sorted(
            rows,
            key=lambda one: (_severity(one), -_seconds(one.last), -(one.last.records or 0), one.partition),
        )
    left = rows[most:]
    samples, known_s, span_s = history.samples(topic.topic), history.known_s, history.span_s
    return ShownTopic(
        standing=topic,
        lag=last_lag(topic),
        stages=tuple(stage for stage in STAGES if topic.lag(stage) is not None),
        rows=tuple(rows[:most]),
        left=len(left),
        left_lag=summed([partition.last for partition in left]),
        troubled=topic.troubled,
        attention=attention,
        records=sum(partition.next for partition in topic.partitions),
        traffic=history.newest_traffic(topic.topic),
        charts=(
            seconds_chart(topic.topic, samples, known_s, span_s),
            records_chart(topic.topic, samples, known_s, span_s),
            # Only for a topic that is shown alone: more charts would make a page of many topics too large.
            *(traffic_charts(topic.topic, samples, known_s, span_s) if traffic else ()),
        )
        if samples
        else (),
        opened=opened,
    )


# --- The page
REFRESHES_S = (5, 30, 300)
"""Refresh intervals that the page offers; a request may use any whole number of seconds up to an hour."""
REFRESH_MAX_S = 3600
CYCLES_SHOWN = 30
ADVICE_SHOWN = 100
FILES_SHOWN = 20
"""Maximum of failed files shown of each source."""
BROKERS_SHOWN = 20
"""Maximum of live daemons shown."""
GROUPS_SHOWN = 50
"""Maximum of consumer groups shown, those with the greatest lag in seconds first."""
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
    kafka: KafkaPort | None = None
    """Listener for Kafka clients; None without one."""
    groups: GroupReport | None = None
    """Newest lag of the consumer groups; None while it is not known."""
    renewals: Mapping[str, int | None] = field(default_factory=dict)
    """Wall time of the next run of each scheduled job; None if it runs now."""
    query: Mapping[str, str]
    """`refresh`: seconds; `topic`: show all of one topic. Unknown and invalid ones are ignored."""


def page(values: PageValues) -> str:
    """The page."""
    found = advice(
        values.standing, values.journal, values.now_us, values.look_interval_s, values.sources, values.mirrors
    )
    refresh = refresh_of(values.query)
    only = values.query.get("topic")
    checks = values.journal.checks()
    shown = (
        None
        if values.standing is None
        else chosen_topics(values.standing, values.history, only, topic_attention(found))
    )
    return _template().render(
        path="/",
        style=Markup(style()),  # noqa: S704 - a file of ours
        policy=_META_POLICY,
        values=values,
        verdict=verdict(found, values.journal.state),
        advice=[item for item in found[:ADVICE_SHOWN] if item.severity != "note"],
        notes=[item for item in found[:ADVICE_SHOWN] if item.severity == "note"],
        advice_left=max(0, len(found) - ADVICE_SHOWN),
        worst=_worst(found, values.journal.state),
        files_shown=FILES_SHOWN,
        brokers_shown=BROKERS_SHOWN,
        groups=_late_groups(values.groups),
        groups_shown=GROUPS_SHOWN,
        refresh=refresh,
        refreshes=[(seconds, _link(seconds, only)) for seconds in REFRESHES_S],
        without_refresh=_link(None, only),
        all_topics=_link(refresh, None),
        topic_link=lambda topic: _link(refresh, topic),
        only=only,
        shown=shown,
        checks_failed=[check for check in checks if not check.ok],
        checks_ok=[check for check in checks if check.ok],
        results=results(
            values.journal,
            values.standing,
            0 if values.standing is None else sum(topic.troubled > 0 for topic in values.standing.topics),
            values.renewals,
            values.now_us,
            values.roles,
        ),
        newest=_newest(values.journal),
        cycles=_shown_cycles(values.journal.cycles()),
        counts=values.journal.counts(),
    )


def _late_groups(report: GroupReport | None) -> list[GroupLag]:
    """The groups by lag; an unknown one comes first."""
    if report is None:
        return []
    return sorted(report.groups, key=lambda lag: (lag.lag_s is not None, -(lag.lag_s or 0.0), lag.group))


def _worst(found: Sequence[Advice], state: str) -> str:
    """Badge of the first line."""
    worst = found[0].severity if found else "ok"
    # Notes are no problem, so the badge must agree with "All is well".
    return "ok" if worst == "note" and state == "serving" else worst


def _shown_cycles(cycles: Sequence[Cycle]) -> list[Cycle]:
    """Newest cycles without those of a watch that found nothing."""
    # A watch that found nothing comes every few seconds and would fill the list.
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
        # Both are optional, and an empty line for them would seem like a problem.
        if job not in ("deep_audit", "control_topic") or cycle is not None
    ]


def refresh_of(query: Mapping[str, str]) -> int | None:
    """Seconds after which a page reloads itself; None for no or an invalid number."""
    text = query.get("refresh", "")
    # `isdigit` accepts digits of other scripts, so ASCII is checked first.
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return seconds if 1 <= seconds <= REFRESH_MAX_S else None


def _link(refresh: int | None, topic: str | None) -> str:
    """Link to this page, relative to the port."""
    given = {"refresh": refresh, "topic": topic}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return f"/?{query}" if query else "/"


def visible(value: object) -> object:
    """Text without invisible or direction-changing characters, cut to `TEXT_MAX`; other values unchanged."""
    # Markup is made by the template itself.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable_text(excerpt(value, TEXT_MAX))


def coded(text: str) -> Markup:
    """Escaped text with the parts between backticks as code."""
    shown = str(visible(text))
    parts = shown.split("`")
    # An unpaired backtick: the text is shown as it is.
    if len(parts) % 2 == 0:
        return escape(shown)
    pieces = (
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
    return Markup("").join(pieces)


@cache
def style() -> str:
    """The style of all pages."""
    folder = files("archiver.web") / "templates"
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("page.css", "console.css"))


def link(path: str, *parts: object, **query: object) -> str:
    """Address of a page: `path` with each `{}` replaced by a part, and the query without empty values. An
    underscore at the end of a name is left out.
    """
    # Names of topics and groups are from clients, so each part is quoted whole.
    address = path.format(*(quote(str(part), safe="") for part in parts))
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"{address}?{urlencode(given)}" if given else address


@cache
def environment() -> jinja2.Environment:
    """Templates of all pages, with what makes any text in them harmless."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("archiver.web"),
        # Every text of the page may come from a producer or a server, so nothing is trusted.
        autoescape=True,
        # A misspelt name in the template must fail a test, not show an empty place.
        undefined=jinja2.StrictUndefined,
        # For every value of the template, so that none can be forgotten.
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"link": link}
    found.filters |= {
        "coded": coded,
        "age": age,
        "age_at": age_at,
        "count": count,
        "counted": counted,
        "moment": moment,
    }
    return found


def _template() -> jinja2.Template:
    # The environment keeps compiled templates.
    return environment().get_template("page.html")


def _policy() -> str:
    # By digest: the browser then accepts exactly this style, and no style in an escaped text.
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


_META_POLICY = _policy()

# `frame-ancestors` works only in a header, not in the policy inside the page.
HEADERS: Mapping[str, str] = {"Content-Security-Policy": f"{_META_POLICY}; frame-ancestors 'none'"}
"""Additional headers of the page: the browser uses only its own style and runs nothing."""
