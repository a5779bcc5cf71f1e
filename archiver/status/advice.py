"""What is wrong, in words, the worst first: each with what to do, and the place in the runbook.

Pure, from the standing and the journal. Owns the list of the runbook's anchors: its writer gives every one of
them a heading, and a test holds the two together. Must never hide that something could not be told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from archiver.runtime.text import counted, moment
from archiver.status.ages import age, age_at, numbers
from archiver.status.journal import Check, Cycle, Journal
from archiver.status.reasons import CAUSES, Cause
from intake.log.clock_check import log_ahead_text
from reconcile.findings.finding import IDS, anchor

if TYPE_CHECKING:
    from archiver.status.lag import LagReport, PartitionLag, TopicLag
    from intake.sources.files.source import FilesState
    from intake.sources.kafka.state import MirrorState

Severity = Literal["act", "watch", "note"]
"""act: somebody must do something · watch: the daemon goes on trying, or it ends by itself · note: worth
knowing."""

SEVERITIES: tuple[Severity, ...] = ("act", "watch", "note")
"""The worst first."""

RUNBOOK = "docs/operations/runbook.md"
"""Where the anchors are."""

ANCHORS: Mapping[str, str] = {
    "restored": "the-archives-reach-beyond-the-log",
    "shelf": "a-shelf-is-damaged-or-gone",
    "unreadable": "a-dependency-does-not-answer",
    "stuck": "a-topic-is-halted",
    "deferred": "a-topic-is-deferred",
    "unconfigured": "a-topic-is-not-in-the-configuration",
    "transaction": "an-open-transaction-holds-archiving-back",
    "pending": "archives-are-in-no-table",
    "off": "archiving-is-switched-off",
    "due": "a-topic-falls-behind",
    "differences": "the-configuration-differs-from-the-log",
    "schema": "a-schema-changed-incompatibly",
    "dependency": "a-dependency-does-not-answer",
    "source": "a-file-source-cannot-go-on",
    "mirror": "a-mirrored-topic-cannot-go-on",
    "reload": "a-reload-was-refused",
    "job": "a-scheduled-job-fails",
    "audit": "the-audit-says-invalid",
    "untold": "the-audit-could-not-tell",
    "undecoded": "records-are-not-decoded",
    "stale": "the-look-is-old",
    "starting": "the-daemon-does-not-start",
    "stopping": "the-daemon-is-stopping",
    "follower": "another-process-leads",
    **{anchor(one): anchor(one) for one in IDS},
}
"""The heading in the runbook for each kind of trouble, as an anchor."""

SHORT_SHOWN = 4
"""Of the things that are wrong, so many are named in the first line."""
NAME_MAX = 40
"""Characters of a topic's name in it."""
LATE_S = 900.0
"""Records that are due for longer than this make a topic fall behind."""
FINDINGS_SHOWN = 20
"""Of the reconciler's findings, so many are told one by one."""

_OF_FINDING: Mapping[str, Severity] = {"error": "act", "warning": "watch", "info": "note"}

_ACT: frozenset[Cause] = frozenset({"restored", "shelf", "stuck", "unconfigured"})
_WATCH: frozenset[Cause] = frozenset({"unreadable", "transaction", "pending", "due"})
_SHORT: Mapping[Cause, str] = {
    "restored": "has archives beyond the log",
    "shelf": "has a damaged shelf",
    "unreadable": "cannot be read at the moment",
    "stuck": "is halted",
    "unconfigured": "is not in the configuration",
    "transaction": "waits for an open transaction",
    "pending": "has archives in no table",
    "off": "is not archived",
    "due": "falls behind",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that an operator should know."""

    severity: Severity
    kind: str
    """A key of `ANCHORS`."""
    short: str
    """What is wrong, in a few words."""
    what: str
    """What is wrong, for people."""
    todo: str
    """What to do about it."""
    topic: str | None = None
    """The topic that it concerns."""

    @property
    def section(self) -> str:
        """The runbook's heading of it."""
        return ANCHORS[self.kind].replace("-", " ").capitalize()


def advice(
    standing: LagReport | None,
    journal: Journal,
    now_us: int,
    look_interval_s: float,
    sources: Sequence[FilesState] = (),
    mirrors: Sequence[MirrorState] = (),
) -> list[Advice]:
    """Everything worth saying, the worst first; empty if all is well.

    `sources` are the daemon's file sources, `mirrors` its Kafka sources. `standing` is None while the
    application is not open. A standing older than ten times `look_interval_s` (and a minute) is stale.
    """
    found = list(_of_state(journal))
    found += _of_dependencies(journal.checks(), now_us)
    stuck = (
        set() if standing is None else {topic.topic for topic in standing.topics if topic.stuck is not None}
    )
    found += beside_topics(journal, sources, stuck, mirrors)
    if standing is not None:
        found += _of_age(standing, now_us, look_interval_s)
        if standing.log_ahead_s is not None:
            what = log_ahead_text(standing.newest_us, standing.log_ahead_s)
            todo = (
                "Nothing is lost. Check the clocks of every machine that writes, and read the runbook for "
                "what to expect until then."
            )
            found.append(
                Advice(
                    "watch",
                    anchor("log-ahead"),
                    "the intake log is ahead of the clock",
                    f"{what[:1].upper()}{what[1:]}.",
                    todo,
                )
            )
        deferred = _deferred(journal.newest("tick"))
        for topic in standing.topics:
            found += _of_topic(topic, now_us, deferred)
        found += [
            Advice(
                "note",
                "differences",
                "the configuration differs",
                text,
                "Bring the configuration and the log together.",
            )
            for text in standing.differences
        ]
    found += _of_jobs(journal, found)
    found += of_audits(journal)
    return sorted(found, key=lambda item: SEVERITIES.index(item.severity))


def verdict(found: Sequence[Advice], state: str) -> str:
    """The first line of the page: whether all is well, else what is wrong, the worst first."""
    act, watch = _shorts(found, "act"), _shorts(found, "watch")
    said = ["Starting, not ready yet."] if state == "starting" else []
    if act:
        said.append(f"{_things(act)} {'needs' if len(act) == 1 else 'need'} somebody: {_listed(act)}.")
        said += [f"{_things(watch)} more to keep an eye on."] if watch else []
    elif watch:
        said.append(f"Nobody has to act. To keep an eye on: {_listed(watch)}.")
    elif state == "serving":
        said.append("All is well.")
    return " ".join(said) or "Stopping."


def _shorts(found: Sequence[Advice], severity: Severity) -> list[str]:
    """Each once: several transactions may hold back one topic. That the daemon starts is said by itself."""
    return list(
        dict.fromkeys(item.short for item in found if item.severity == severity and item.kind != "starting")
    )


def _things(items: Sequence[str]) -> str:
    return counted(len(items), "thing")


def _listed(items: Sequence[str]) -> str:
    rest = len(items) - SHORT_SHOWN
    return ", ".join(items[:SHORT_SHOWN]) + (f", and {rest} more" if rest > 0 else "")


def _of_state(journal: Journal) -> Iterable[Advice]:
    if journal.state == "starting":
        missing = [check.name for check in journal.checks() if not check.ok]
        waits = f"it waits for {', '.join(missing)}" if missing else "it opens its logs and its folder"
        todo = "It goes on by itself as soon as what it waits for is there."
        yield Advice("watch", "starting", "starting", f"The daemon is starting: {waits}.", todo)
    elif journal.state == "stopping":
        yield Advice(
            "note",
            "stopping",
            "stopping",
            "The daemon is stopping.",
            "It writes out what it has acknowledged, and ends.",
        )


def _of_dependencies(checks: Iterable[Check], now_us: int) -> Iterable[Advice]:
    for check in checks:
        if not check.ok:
            since = f"{moment(check.since_us)}, {age_at(check.since_us, now_us)} ago"
            yield Advice(
                "act",
                "dependency",
                f"{check.name} does not answer",
                f"{check.name} does not answer since {since}: {check.why}",
                "Bring it back; the daemon goes on by itself.",
            )


def beside_topics(
    journal: Journal,
    sources: Sequence[FilesState],
    stuck: Collection[str] = (),
    mirrors: Sequence[MirrorState] = (),
) -> list[Advice]:
    """What only the daemon knows: files and topics that it cannot take in, a configuration file that it does
    not follow, the findings of the reconciler.

    Of topics that are `stuck` it is told by itself that somebody must act.
    """
    away = any(not check.ok for check in journal.checks())
    found = [one for source in sources for one in _of_source(source, away)]
    found += [one for mirror in mirrors for one in _of_mirror(mirror, away)]
    refusal = journal.refusal
    if refusal is not None:
        what = (
            f"The reload of {moment(refusal.at_us)} was refused"
            + ("" if refusal.whole else " in part")
            + f": {refusal.why}"
        )
        todo = "Correct the file and reload again; until then everything goes on as before."
        if not refusal.whole:
            todo = "Correct those keys and reload again." + (
                " A restart applies the keys that need one." if "restart" in refusal.why else ""
            )
        found.append(Advice("act", "reload", "the configuration file is not in force", what, todo))
    found += _of_schemas(journal)
    return [*found, *_of_findings(journal.newest("reconcile"), stuck)]


def _of_schemas(journal: Journal) -> Iterable[Advice]:
    """Incompatible changes of schemas within the last day."""
    for one in journal.schema_changes():
        rest = one.incompatible - len(one.fields)
        named = ", ".join(one.fields) + (f", and {rest} more" if rest > 0 else "")
        changes = counted(one.incompatible, "incompatible change")
        what = (
            f"Topic {one.topic}: at {moment(one.at_us)} its schema went from version {one.was} to "
            f"{one.now} with {changes}: {named}"
        )
        short = f"{_named(one.topic)} has a schema with {changes}"
        todo = (
            f"`archiver schema show {one.topic}` lists the old and the new columns; queries need both. "
            "`schema_change: compatible` halts a topic before such a change."
        )
        yield Advice("watch", "schema", short, what, todo, one.topic)


def _of_findings(cycle: Cycle | None, stuck: Collection[str]) -> Iterable[Advice]:
    """What the newest reconciling found and left, the worst first."""
    told: list[dict[str, Any]] = [] if cycle is None else cycle.document.get("findings", [])
    # That the log is ahead is known from the standing, without the reconciler.
    left = sorted(
        (item for item in told if not item["fixed"] and item["id"] != "log-ahead"),
        key=lambda item: SEVERITIES.index(_OF_FINDING[item["severity"]]),
    )
    for item in left[:FINDINGS_SHOWN]:
        topic = item["topic"]
        severity: Severity = "note" if topic in stuck else _OF_FINDING[item["severity"]]
        short = f"{'the data folder' if topic is None else _named(topic)} has a finding ({item['id']})"
        where = (
            ""
            if topic is None
            else f"Topic {topic}"
            + ("" if item["partition"] is None else f", partition {item['partition']}")
            + ": "
        )
        yield Advice(
            severity,
            anchor(item["id"]),
            short,
            f"{where}{item['what']}",
            f"{item['repair'][:1].upper()}{item['repair'][1:]}.",
            topic,
        )
    if len(left) > FINDINGS_SHOWN:
        more = counted(len(left) - FINDINGS_SHOWN, "finding")
        yield Advice(
            "watch",
            "job",
            f"{more} more",
            f"The reconciler has {more} more.",
            "`archiver reconcile` names every one.",
        )


def _of_source(source: FilesState, away: bool) -> Iterable[Advice]:
    """`away`: a dependency does not answer, which is told by itself."""
    name = f"File source {source.glob} (topic {source.topic})"
    if source.trouble is not None:
        severity: Severity = "watch" if away else "act"
        short, todo = (
            f"file source {_cut(source.glob)} takes nothing in",
            "Do what the message says; it goes on by itself then.",
        )
        yield Advice(
            severity, "source", short, f"{name} takes nothing in: {source.trouble}", todo, source.topic
        )
    if source.failed:
        cannot = counted(source.failed, "file or folder", "files and folders")
        first = (
            f"{source.problems[0].path}: {source.problems[0].why}" if source.problems else "none is named yet"
        )
        what = f"{name} cannot take in {cannot}; {'the first is ' if source.failed > 1 else ''}{first}"
        todo = "Do what the message says; the other files go on, and what is mended is taken in by itself."
        yield Advice(
            "act",
            "source",
            f"file source {_cut(source.glob)} has files that cannot be taken in",
            what,
            todo,
            source.topic,
        )
    if source.looked_us is not None and not source.folder_found and source.trouble is None:
        todo = (
            "Make the folder, or mount it, if files are to come; else take the source out of the "
            "configuration."
        )
        yield Advice(
            "watch",
            "source",
            f"file source {_cut(source.glob)} has no folder",
            f"{name} finds no folder to look in.",
            todo,
            source.topic,
        )


def _of_mirror(mirror: MirrorState, away: bool) -> Iterable[Advice]:
    """`away`: a dependency of ours does not answer, which is told by itself."""
    name = f"Kafka source {mirror.name}"
    if mirror.trouble is not None:
        severity: Severity = "watch" if away else "act"
        short, todo = (
            f"Kafka source {mirror.name} takes nothing in",
            "Do what the message says; it goes on by itself then.",
        )
        yield Advice(severity, "mirror", short, f"{name} takes nothing in: {mirror.trouble}", todo)
    for one in mirror.findings[:FINDINGS_SHOWN]:
        short, what = (
            f"{_named(one.topic)} is not mirrored on ({one.kind})",
            f"{name} does not read {one.where} on: it {one.why}",
        )
        if one.kind in ("unreadable", "refused", "unstorable"):
            what = f"{name} does not read {one.where} on: {one.why}"
        yield Advice("act", "mirror", short, what, "The other topics and partitions go on.", one.topic)
    if mirror.stopped > FINDINGS_SHOWN:
        more = f"{counted(mirror.stopped - FINDINGS_SHOWN, 'more place')}"
        yield Advice(
            "act",
            "mirror",
            f"{more} not mirrored on",
            f"{name} does not read {more} on.",
            "Its state names them.",
        )


def _of_age(standing: LagReport, now_us: int, look_interval_s: float) -> Iterable[Advice]:
    old_s = abs(now_us - standing.now_us) / 1e6
    if old_s > max(60.0, 10 * look_interval_s):
        yield Advice(
            "act",
            "stale",
            "the look at the topics is old",
            f"What this page shows of the topics is of {moment(standing.now_us)}, {age(old_s)} ago: no "
            "newer look was finished since then.",
            "See the last watch cycle below and the daemon's log.",
        )


def _deferred(tick: Cycle | None) -> frozenset[str]:
    """Topics that the last round left for the next one, by its report."""
    topics: list[dict[str, Any]] = [] if tick is None else tick.document.get("topics", [])
    return frozenset(str(topic.get("topic")) for topic in topics if topic.get("state") == "deferred")


def _of_topic(topic: TopicLag, now_us: int, deferred: frozenset[str]) -> Iterable[Advice]:
    """One advice per cause; of transactions one per transaction."""
    by_cause: dict[tuple[Cause, str], list[PartitionLag]] = {}
    for partition in topic.partitions:
        cause = partition.cause
        if (
            cause is None
            or cause == "waiting"
            or (cause == "due" and (partition.last.seconds or 0) <= LATE_S)
        ):
            continue
        name = (
            partition.held.transactional_id if cause == "transaction" and partition.held is not None else ""
        )
        by_cause.setdefault((cause, name), []).append(partition)
    if topic.stuck is not None and not any(cause == "stuck" for cause, _ in by_cause):
        yield _stuck(
            topic, f"Topic {topic.topic}: the last round could not finish it: {topic.stuck}", deferred
        )
    untouched = all(one.untouched for one in topic.partitions)
    for (cause, _), partitions in sorted(by_cause.items(), key=lambda item: CAUSES.index(item[0][0])):
        worst = max(partitions, key=lambda one: (one.last.seconds is None, one.last.seconds or 0.0))
        where = numbers([one.partition for one in partitions])
        several = len(partitions) > 1
        which = f", partition{'s' * several} {where}" + (
            f" (the worst is {worst.partition})" if several else ""
        )
        what = f"Topic {topic.topic}{which}: {worst.reason}"
        if cause == "stuck":  # of the whole topic, whatever partition waits for it
            yield _stuck(topic, f"Topic {topic.topic}: {worst.reason}", deferred)
        else:
            severity = "watch" if cause == "unconfigured" and untouched else _severity(cause)
            yield Advice(
                severity,
                cause,
                f"{_named(topic.topic)} {_SHORT[cause]}",
                what,
                _todo(cause, worst, now_us),
                topic.topic,
            )


def _stuck(topic: TopicLag, what: str, deferred: frozenset[str]) -> Advice:
    if topic.topic in deferred:
        return Advice(
            "watch",
            "deferred",
            f"{_named(topic.topic)} is deferred",
            what,
            "The next round tries again by itself.",
            topic.topic,
        )
    return Advice(
        "act",
        "stuck",
        f"{_named(topic.topic)} {_SHORT['stuck']}",
        what,
        "Do what the message says; the next round then goes on by itself.",
        topic.topic,
    )


def _named(topic: str) -> str:
    """A topic in the first line, which has to stay one."""
    return f"topic {_cut(topic)}"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}…"


def _severity(cause: Cause) -> Severity:
    if cause in _ACT:
        return "act"
    return "watch" if cause in _WATCH else "note"


def _todo(cause: Cause, worst: PartitionLag, now_us: int) -> str:
    match cause:
        case "restored":
            return "Put the newest copy of the metadata store back before anything else is archived."
        case "shelf":
            return "Restore the object from a copy; until then the topic is not archived."
        case "unreadable":
            return "Bring the object store back; the daemon goes on by itself."
        case "unconfigured":
            return "Put the topic back into the configuration and reload it, or `archiver topics delete` it."
        case "transaction":
            over = worst.held is not None and worst.held.deadline_us <= now_us
            return (
                "Nothing: its time is over, and it is aborted."
                if over
                else "Let its producer end it, or wait until its time is over."
            )
        case "pending":
            return "Nothing at first. If it stays, see the last tick below."
        case "off":
            return "Nothing, if this is wanted; else set archive.min_bytes."
        case _:
            return (
                "See below who leads and what the last ticks did: rounds may take longer than records need "
                "to arrive."
            )


def _of_jobs(journal: Journal, before: Sequence[Advice]) -> Iterable[Advice]:
    """What was not told `before` by its own kind: a halted topic makes a tick fail, a dependency that is away
    any job that needs it.
    """
    told = {item.kind for item in before}
    silent = [check for check in journal.checks() if not check.ok]
    findings = {anchor(one) for one in IDS}
    for job, kinds in (
        ("tick", {"stuck", "deferred"}),
        ("reconcile", findings),
        ("cleanup", set[str]()),
        ("watch", {"dependency"}),
        ("control_topic", set[str]()),
    ):
        cycle = journal.newest(job)
        if cycle is None or cycle.outcome in ("fine", "skipped") or told & kinds:
            continue
        if any(check.why and check.why in cycle.line for check in silent):
            continue
        wrong = cycle.outcome == "wrong"
        todo = "Do what the message says." if wrong else "The next one tries again by itself."
        severity: Severity = "act" if wrong else "watch"
        yield Advice(
            severity,
            "job",
            f"the last {job} {'failed' if wrong else 'could not be carried out'}",
            f"The last {job} of {moment(cycle.began_us)}: {cycle.line}",
            todo,
        )
    tick = journal.newest("tick")
    if tick is not None and tick.outcome == "skipped":
        what = f"The last tick was left to another process: {tick.line}."
        yield Advice(
            "note",
            "follower",
            "another process leads",
            what,
            "Nothing: this daemon takes over when that one stops.",
        )


def of_audits(journal: Journal) -> Iterable[Advice]:
    """Verdicts other than valid of the newest audits, and what the fast one counted."""
    for job, name, option in (("audit", "audit", ""), ("deep_audit", "deep audit", " --deep")):
        audit = journal.newest(job)
        what = "" if audit is None else f"The {name} of {moment(audit.began_us)}: {audit.line}"
        if audit is not None and audit.outcome == "wrong":
            yield Advice(
                "act",
                "audit",
                f"the {name} says invalid",
                what,
                f"`archiver audit{option}` names every finding.",
            )
        elif audit is not None and audit.outcome == "untold":
            yield Advice(
                "watch", "untold", f"the {name} could not tell", what, "The next audit tries again by itself."
            )
    yield from _of_undecoded(journal.newest("audit"))


def _of_undecoded(audit: Cycle | None) -> Iterable[Advice]:
    """Records whose columns are empty because they could not be decoded, as the newest audit counted them."""
    found: list[dict[str, Any]] = [] if audit is None else audit.document.get("undecoded", [])
    found = [item for item in found if item["records"]]
    for item in found[:FINDINGS_SHOWN]:
        topic, count = (
            str(item["topic"]),
            counted(int(item["records"]), "undecoded key or value", "undecoded keys and values"),
        )
        what = (
            f"Topic {topic}: the table has {count}, and keeps their bytes (audit of "
            f"{moment(audit.began_us if audit is not None else 0)})"
        )
        todo = (
            f"`archiver dlq list --topic {topic}` names the records and why; `archiver dlq replay` decodes "
            "them with a schema that fits."
        )
        yield Advice("watch", "undecoded", f"{_named(topic)} has {count}", what, todo, topic)
    if len(found) > FINDINGS_SHOWN:
        more = counted(len(found) - FINDINGS_SHOWN, "more topic")
        yield Advice(
            "watch",
            "undecoded",
            f"{more} with undecoded records",
            f"{more} have undecoded records",
            "See `archiver dlq list`.",
        )
