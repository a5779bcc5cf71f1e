"""Advice for operators, the worst first: what is wrong, what to do, and the section of the runbook.

Pure: it follows from the lag report and the journal. An unknown state must be reported, never hidden. An
action is in the imperative and names the command, or the setting and its file; `Nothing:` and `Wait` are
actions too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from archiver.runtime.text import counted, moment
from archiver.status.actions import (
    FILE,
    RELOAD,
    of_dependency,
    of_difference,
    of_job,
    of_mirror,
    of_partition,
    of_topic,
)
from archiver.status.ages import age, age_at, numbers
from archiver.status.journal import Check, Cycle, Journal
from archiver.status.reasons import CAUSES, Cause
from intake.log.clock_check import log_ahead_text
from reconcile.findings.finding import IDS, anchor

if TYPE_CHECKING:
    from archiver.status.lag import LagReport, PartitionLag, TopicLag
    from intake.sources.files.source import FilesState
    from intake.sources.kafka.upstream_changes import MirrorState

Severity = Literal["act", "watch", "note"]
"""act: an operator must act · watch: the daemon retries, or it ends by itself · note: information."""

SEVERITIES: tuple[Severity, ...] = ("act", "watch", "note")
"""The worst first."""

RUNBOOK = "docs/operations/runbook.md"
"""The page that has the anchors."""

# A test compares this table with the headings of the runbook.
ANCHORS: Mapping[str, str] = {
    "restored": "the-archives-reach-beyond-the-log",
    "shelf": "a-history-file-is-damaged-or-gone",
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
    "source": "a-file-source-cannot-continue",
    "mirror": "a-mirrored-topic-cannot-continue",
    "reload": "a-reload-was-refused",
    "job": "a-scheduled-job-fails",
    "audit": "the-audit-says-invalid",
    "untold": "the-audit-says-unknown",
    "undecoded": "records-are-not-decoded",
    "stale": "the-status-is-stale",
    "starting": "the-daemon-does-not-start",
    "stopping": "the-daemon-is-stopping",
    "follower": "another-process-leads",
    # Each finding has a section of its own name, so a new finding cannot lack its advice.
    **{anchor(one): anchor(one) for one in IDS},
}
"""Anchor of the runbook's heading for each kind of advice."""

SHORT_SHOWN = 4
"""Problems that the first line names."""
# A topic name can have hundreds of characters, and the first line has up to `SHORT_SHOWN` of them.
NAME_MAX = 40
"""Characters of a topic's name in the first line."""
# Records are due for a moment in every round, so being due is no problem by itself.
LATE_S = 900.0
"""Age of due records from which on a topic falls behind."""
# A damaged folder can have thousands, and the page must stay readable.
FINDINGS_SHOWN = 20
"""Findings that have an advice each; the others are counted."""

_OF_FINDING: Mapping[str, Severity] = {"error": "act", "warning": "watch", "info": "note"}

_ACT: frozenset[Cause] = frozenset({"restored", "shelf", "stuck", "unconfigured"})
_WATCH: frozenset[Cause] = frozenset({"unreadable", "transaction", "pending", "due"})
_SHORT: Mapping[Cause, str] = {
    "restored": "has archives beyond the log",
    "shelf": "has a damaged history file",
    "unreadable": "cannot be read at the moment",
    "stuck": "is halted",
    "unconfigured": "is not in the configuration",
    "transaction": "waits for an open transaction",
    "pending": "has pending archives",
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
    """The problem in a few words."""
    what: str
    """The problem in a sentence."""
    todo: str
    """The action."""
    topic: str | None = None
    """The topic that it concerns."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Topics that it counts without their names, and the problem of each."""

    @property
    def section(self) -> str:
        """Heading in the runbook."""
        return ANCHORS[self.kind].replace("-", " ").capitalize()

    @property
    def runbook(self) -> str:
        """Page and anchor of that heading."""
        return f"{RUNBOOK}#{ANCHORS[self.kind]}"


def advice(
    standing: LagReport | None,
    journal: Journal,
    now_us: int,
    look_interval_s: float,
    sources: Sequence[FilesState] = (),
    mirrors: Sequence[MirrorState] = (),
) -> list[Advice]:
    """All advice, the worst first; empty if all is well.

    `sources` are the daemon's file sources, `mirrors` its Kafka sources. `standing` is None while the
    application is not open. It is stale after ten times `look_interval_s`, but not before a minute.
    """
    # Collected by source; the sort at the end is stable and keeps this order among equals.
    found = list(_of_state(journal))
    found += _of_dependencies(journal.checks(), now_us)
    stuck = (
        # Topics with an advice of their own; their findings would repeat it.
        set() if standing is None else {topic.topic for topic in standing.topics if topic.stuck is not None}
    )
    found += topic_advice(journal, sources, stuck, mirrors)
    if standing is not None:
        found += _of_age(standing, now_us, look_interval_s)
        if standing.log_ahead_s is not None:
            what = log_ahead_text(standing.newest_us, standing.log_ahead_s)
            todo = (
                "Check the time service of every machine that writes (`chronyc tracking`) and repair it. "
                "Nothing is lost, and it ends by itself at that time."
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
        # The lag report has only the reason. Whether it is temporary is in the report of the last round.
        deferred = _deferred(journal.newest("tick"))
        for topic in standing.topics:
            found += _of_topic(topic, now_us, deferred)
        found += [
            Advice("note", "differences", "the configuration differs", *of_difference(text))
            for text in standing.differences
        ]
    # After the others: a job that failed for a reported cause needs no second advice.
    found += _of_jobs(journal, found)
    found += of_audits(journal)
    return sorted(found, key=lambda item: SEVERITIES.index(item.severity))


def topic_attention(found: Iterable[Advice]) -> dict[str, tuple[Severity, str]]:
    """Topics that need attention by the same advice as the first line: act or watch, and what it is."""
    of_topic: dict[str, list[tuple[Severity, str]]] = {}
    for item in found:
        # Notes are no problem, here as in the first line.
        if item.severity == "note":
            continue
        named = {} if item.topic is None else {item.topic: item.short}
        for topic, short in (named | dict(item.others)).items():
            # The name stands next to it already.
            what = short.removeprefix(f"{_named(topic)} ")
            of_topic.setdefault(topic, []).append((item.severity, what))
    return {
        topic: (
            min((severity for severity, _ in items), key=SEVERITIES.index),
            _listed(list(dict.fromkeys(what for _, what in items))),
        )
        for topic, items in of_topic.items()
    }


def verdict(found: Sequence[Advice], state: str) -> str:
    """First line of the status page: all is well, or what is wrong, the worst first."""
    # Notes are no problem, so the first line does not mention them.
    act, watch = _shorts(found, "act"), _shorts(found, "watch")
    said = ["Starting, not ready yet."] if state == "starting" else []
    if act:
        said.append(f"{_things(act)} {'needs' if len(act) == 1 else 'need'} an operator: {_listed(act)}.")
        said += [f"{_things(watch)} more to watch."] if watch else []
    elif watch:
        said.append(f"No action is needed. To watch: {_listed(watch)}.")
    elif state == "serving":
        said.append("All is well.")
    return " ".join(said) or "Stopping."


def _shorts(found: Sequence[Advice], severity: Severity) -> list[str]:
    """Each text once."""
    # Several transactions can hold back one topic. The starting state has a text of its own.
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
        todo = (
            f"Start {', '.join(missing)}, or correct {FILE} and restart the daemon; "
            "`archiver config check --connect` tests each. It continues by itself."
            if missing
            else "Wait: this takes seconds. If it stays, read `journalctl -u stream-archiver`."
        )
        yield Advice("watch", "starting", "starting", f"The daemon is starting: {waits}.", todo)
    elif journal.state == "stopping":
        yield Advice(
            "note",
            "stopping",
            "stopping",
            "The daemon is stopping.",
            "Wait: it writes what it has acknowledged, and ends within `daemon.shutdown_grace`.",
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
                of_dependency(check.name),
            )


def topic_advice(
    journal: Journal,
    sources: Sequence[FilesState],
    stuck: Collection[str] = (),
    mirrors: Sequence[MirrorState] = (),
) -> list[Advice]:
    """Advice from what only the daemon knows: sources, a refused reload, schema changes and findings.

    Findings of `stuck` topics become notes, because such a topic has its own advice.
    """
    # A source usually fails because of the dependency, which needs the operator.
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
        todo = (
            f"Run `archiver config check`, correct the lines of {FILE} that it names, and {RELOAD}. Until "
            "then the previous settings are in force."
        )
        # The valid part is in force already, so the previous settings are not.
        if not refusal.whole:
            todo = f"Correct those keys in {FILE} and {RELOAD}." + (
                " Keys that need a restart: restore them, or `systemctl restart stream-archiver`."
                if "restart" in refusal.why
                else ""
            )
        found.append(Advice("act", "reload", "the configuration file is not in force", what, todo))
    found += _of_schemas(journal)
    return [*found, *_of_findings(journal.latest("reconcile"), stuck)]


def _of_schemas(journal: Journal) -> Iterable[Advice]:
    """Incompatible schema changes of the last day."""
    for one in journal.schema_changes():
        # The journal keeps the first names only.
        rest = one.incompatible - len(one.fields)
        named = ", ".join(one.fields) + (f", and {rest} more" if rest > 0 else "")
        changes = counted(one.incompatible, "incompatible change")
        what = (
            f"Topic {one.topic}: at {moment(one.at_us)} its schema went from version {one.was} to "
            f"{one.now} with {changes}: {named}"
        )
        short = f"{_named(one.topic)} has a schema with {changes}"
        todo = (
            f"Run `archiver schema show {one.topic}` and change the queries to read the old and the new "
            f"columns. Set `schema_change: compatible` for the topic in {FILE} to halt it before such a "
            "change."
        )
        yield Advice("watch", "schema", short, what, todo, one.topic)


def _of_findings(cycle: Cycle | None, stuck: Collection[str]) -> Iterable[Advice]:
    """Open findings of the newest reconcile run, the worst first."""
    reported: list[dict[str, Any]] = [] if cycle is None else cycle.document.get("findings", [])
    # The lag report has its own advice if the log is ahead of the clock.
    left = sorted(
        (item for item in reported if not item["fixed"] and item["id"] != "log-ahead"),
        key=lambda item: SEVERITIES.index(_OF_FINDING[item["severity"]]),
    )
    for item in left[:FINDINGS_SHOWN]:
        topic = item["topic"]
        # The halt of the topic is the problem; the finding only explains it.
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
    # Counted and not dropped, so that the page never seems complete when it is not.
    # A command keeps the worst ones only, and counts the others.
    beyond = len(left) - FINDINGS_SHOWN + (0 if cycle is None else cycle.document.get("findings_left", 0))
    if beyond > 0:
        more = counted(beyond, "finding")
        yield Advice(
            "watch",
            "job",
            f"{more} more",
            f"The reconciler has {more} more.",
            "Run `archiver reconcile`: it lists all of them with their repairs.",
            others={
                item["topic"]: f"has a finding ({item['id']})"
                for item in left[FINDINGS_SHOWN:]
                if item["topic"]
            },
        )


def _of_source(source: FilesState, away: bool) -> Iterable[Advice]:
    """`away`: a dependency does not answer, which has its own advice."""
    name = f"File source {source.glob} (topic {source.topic})"
    if source.trouble is not None:
        severity: Severity = "watch" if away else "act"
        short, todo = (
            f"file source {_cut(source.glob)} ingests nothing",
            (
                f"Make the folder readable for the daemon's user, or correct `sources` in {FILE} and "
                "`systemctl restart stream-archiver`. An unreadable folder is tried again by itself."
            ),
        )
        yield Advice(
            severity, "source", short, f"{name} ingests nothing: {source.trouble}", todo, source.topic
        )
    if source.failed:
        cannot = counted(source.failed, "file or folder", "files and folders")
        first = (
            f"{source.problems[0].path}: {source.problems[0].why}" if source.problems else "none is named yet"
        )
        what = f"{name} cannot ingest {cannot}; {'the first is ' if source.failed > 1 else ''}{first}"
        todo = (
            f"Correct {f'`{source.problems[0].path}`' if source.problems else 'the file'} in place if "
            "nothing of it is ingested; else put its rest into a file of another name and remove it. A "
            "changed file is tried again at the next poll. `archiver status --output json` names them."
        )
        yield Advice(
            "act",
            "source",
            f"file source {_cut(source.glob)} has files that cannot be ingested",
            what,
            todo,
            source.topic,
        )
    # Only after the first poll, and not while the source itself fails: then its folder is unknown.
    if source.looked_us is not None and not source.folder_found and source.trouble is None:
        todo = (
            "Create or mount the folder if files are to come; else remove the source from `sources` in "
            f"{FILE} and `systemctl restart stream-archiver`."
        )
        yield Advice(
            "watch",
            "source",
            f"file source {_cut(source.glob)} has no folder",
            f"{name} finds no folder for its pattern.",
            todo,
            source.topic,
        )


def _of_mirror(mirror: MirrorState, away: bool) -> Iterable[Advice]:
    """`away`: a dependency of the daemon does not answer, which has its own advice."""
    name = f"Kafka source {mirror.name}"
    if mirror.trouble is not None:
        severity: Severity = "watch" if away else "act"
        short, todo = (
            f"Kafka source {mirror.name} ingests nothing",
            (
                f"Start the cluster, or correct `sources[].kafka` (`brokers`, `properties`) in {FILE} and "
                "`systemctl restart stream-archiver`; `archiver config check --connect` tests it."
            ),
        )
        yield Advice(severity, "mirror", short, f"{name} ingests nothing: {mirror.trouble}", todo)
    for one in mirror.findings[:FINDINGS_SHOWN]:
        short, what = (
            f"mirroring of {_named(one.topic)} has stopped ({one.kind})",
            f"{name} has stopped reading {one.where}: it {one.why}",
        )
        # Their text is a whole clause; that of the other kinds continues after "it".
        if one.kind in ("unreadable", "refused", "unstorable"):
            what = f"{name} has stopped reading {one.where}: {one.why}"
        yield Advice("act", "mirror", short, what, of_mirror(one), one.topic)
    if mirror.stopped > FINDINGS_SHOWN:
        more = f"{counted(mirror.stopped - FINDINGS_SHOWN, 'more place')}"
        yield Advice(
            "act",
            "mirror",
            f"{more} not mirrored",
            f"{name} has stopped reading {more}.",
            "Run `archiver status --output json`: `daemon.mirrors` names the first of them with the reason.",
        )


def _of_age(standing: LagReport, now_us: int, look_interval_s: float) -> Iterable[Advice]:
    # The absolute value: a clock that was set back must not make an old state seem fresh.
    old_s = abs(now_us - standing.now_us) / 1e6
    # A single slow watch is normal, also with a short interval.
    if old_s > max(60.0, 10 * look_interval_s):
        yield Advice(
            "act",
            "stale",
            "the state of the topics is old",
            f"The shown state of the topics is of {moment(standing.now_us)}, {age(old_s)} ago: no "
            "watch cycle has completed since then.",
            "Read the line of the job watch below, and `journalctl -u stream-archiver`, for what does not "
            "answer, and restore that. If nothing is named, `systemctl restart stream-archiver`: it is safe.",
        )


def _deferred(tick: Cycle | None) -> frozenset[str]:
    """Topics that the last round deferred, by its report."""
    topics: list[dict[str, Any]] = [] if tick is None else tick.document.get("topics", [])
    return frozenset(str(topic.get("topic")) for topic in topics if topic.get("state") == "deferred")


def _of_topic(topic: TopicLag, now_us: int, deferred: frozenset[str]) -> Iterable[Advice]:
    """One advice per cause, and one per open transaction."""
    by_cause: dict[tuple[Cause, str], list[PartitionLag]] = {}
    for partition in topic.partitions:
        cause = partition.cause
        if (
            # Waiting is the ordinary state, and so is being due for a short time.
            cause is None
            or cause == "waiting"
            # An unknown age counts as not late here: its cause then has an advice of its own.
            or (cause == "due" and (partition.last.seconds or 0) <= LATE_S)
        ):
            continue
        name = (
            partition.held.transactional_id if cause == "transaction" and partition.held is not None else ""
        )
        # Partitions with the same cause share one advice; each transaction has its own.
        by_cause.setdefault((cause, name), []).append(partition)
    # A halted topic without backlog has no partition with this cause, and must be reported too.
    if topic.stuck is not None and not any(cause == "stuck" for cause, _ in by_cause):
        yield _stuck(
            topic, f"Topic {topic.topic}: the last round could not finish it: {topic.stuck}", deferred
        )
    untouched = all(one.untouched for one in topic.partitions)
    for (cause, _), partitions in sorted(by_cause.items(), key=lambda item: CAUSES.index(item[0][0])):
        # An unknown age counts as the worst.
        worst = max(partitions, key=lambda one: (one.last.seconds is None, one.last.seconds or 0.0))
        where = numbers([one.partition for one in partitions])
        several = len(partitions) > 1
        which = f", partition{'s' * several} {where}" + (
            f" (the worst is {worst.partition})" if several else ""
        )
        what = f"Topic {topic.topic}{which}: {worst.reason}"
        # A halt concerns the whole topic, so its advice names no partitions.
        if cause == "stuck":
            yield _stuck(topic, f"Topic {topic.topic}: {worst.reason}", deferred)
        else:
            # Nothing of it was ever archived: its records may be meant to stay in intake.
            severity = "watch" if cause == "unconfigured" and untouched else _severity(cause)
            yield Advice(
                severity,
                cause,
                f"{_named(topic.topic)} {_SHORT[cause]}",
                what,
                of_partition(cause, worst, now_us),
                topic.topic,
            )


def _stuck(topic: TopicLag, what: str, deferred: frozenset[str]) -> Advice:
    if topic.topic in deferred:
        return Advice(
            "watch",
            "deferred",
            f"{_named(topic.topic)} is deferred",
            what,
            of_topic(topic.topic, deferred=True),
            topic.topic,
        )
    return Advice(
        "act",
        "stuck",
        f"{_named(topic.topic)} {_SHORT['stuck']}",
        what,
        of_topic(topic.topic, deferred=False),
        topic.topic,
    )


def _named(topic: str) -> str:
    """Name of a topic for the first line."""
    return f"topic {_cut(topic)}"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}…"


def _severity(cause: Cause) -> Severity:
    if cause in _ACT:
        return "act"
    return "watch" if cause in _WATCH else "note"


def _of_jobs(journal: Journal, before: Sequence[Advice]) -> Iterable[Advice]:
    """Failed jobs whose cause has no advice in `before`."""
    reported = {item.kind for item in before}
    silent = [check for check in journal.checks() if not check.ok]
    findings = {anchor(one) for one in IDS}
    for job, kinds in (
        # A halted or deferred topic makes the whole tick fail.
        ("tick", {"stuck", "deferred"}),
        ("reconcile", findings),
        ("cleanup", set[str]()),
        ("watch", {"dependency"}),
        ("control_topic", set[str]()),
    ):
        cycle = journal.newest(job)
        if cycle is None or cycle.outcome in ("fine", "skipped") or reported & kinds:
            continue
        # An unreachable dependency fails every job that needs it, with the same message.
        if any(check.why and check.why in cycle.line for check in silent):
            continue
        wrong = cycle.outcome == "wrong"
        severity: Severity = "act" if wrong else "watch"
        yield Advice(
            severity,
            "job",
            f"the last {job} {'failed' if wrong else 'could not be carried out'}",
            f"The last {job} of {moment(cycle.began_us)}: {cycle.line}",
            of_job(job, retried=not wrong),
        )
    tick = journal.newest("tick")
    # A standby is healthy; the note explains why nothing is archived here.
    if tick is not None and tick.outcome == "skipped":
        what = f"The last tick was left to another process: {tick.line}."
        yield Advice(
            "note",
            "follower",
            "another process leads",
            what,
            "Nothing: this daemon takes over when the other stops.",
        )


def of_audits(journal: Journal) -> Iterable[Advice]:
    """Newest verdicts other than valid, and the undecoded records that the fast audit counted."""
    for job, name, option in (("audit", "audit", ""), ("deep_audit", "deep audit", " --deep")):
        audit = journal.latest(job)
        what = "" if audit is None else f"The {name} of {moment(audit.began_us)}{_by(audit)}: {audit.line}"
        if audit is not None and audit.outcome == "wrong":
            yield Advice(
                "act",
                "audit",
                f"the {name} says invalid",
                what,
                f"Run `archiver audit{option}` to list the offsets and `archiver explain "
                "TOPIC:PARTITION:OFFSET` for the snapshot; undo that with the engine that made it. "
                "Repair nothing by hand.",
            )
        # An audit without a verdict proves nothing in either direction.
        elif audit is not None and audit.outcome == "untold":
            yield Advice(
                "watch",
                "untold",
                f"the {name} has no verdict",
                what,
                f"Wait for the next {name}, or restore what the line names and run `archiver audit{option}`.",
            )
    # Only the fast audit of all topics counts them.
    yield from _of_undecoded(journal.newest("audit"))


def _by(cycle: Cycle) -> str:
    return f" (by a command, {cycle.by})" if cycle.by else ""


def _of_undecoded(audit: Cycle | None) -> Iterable[Advice]:
    """Records with empty columns because they could not be decoded, as counted by the newest audit."""
    found: list[dict[str, Any]] = [] if audit is None else audit.document.get("undecoded", [])
    found = [item for item in found if item["records"]]
    for item in found[:FINDINGS_SHOWN]:
        topic, count = (
            str(item["topic"]),
            counted(int(item["records"]), "undecoded key or value", "undecoded keys and values"),
        )
        what = (
            f"Topic {topic}: the table has {count} and keeps their bytes (audit of "
            f"{moment(audit.began_us if audit is not None else 0)})"
        )
        todo = (
            f"Run `archiver dlq list --topic {topic}` for the records and why. If the schema is wrong, "
            f"correct it under `topics` in {FILE} or in the registry, then run `archiver dlq replay --topic "
            f"{topic}`. If the sender was wrong, a replay decodes nothing: send the records again. The old "
            "ones stay in the table as raw bytes, without loss, and this note stays until the topic's "
            "`retention` removes them."
        )
        yield Advice("watch", "undecoded", f"{_named(topic)} has {count}", what, todo, topic)
    if len(found) > FINDINGS_SHOWN:
        more = counted(len(found) - FINDINGS_SHOWN, "more topic")
        yield Advice(
            "watch",
            "undecoded",
            f"{more} with undecoded records",
            f"{more} have undecoded records",
            "Run `archiver dlq list`: it counts the records of every topic.",
            others={str(item["topic"]): "has undecoded keys and values" for item in found[FINDINGS_SHOWN:]},
        )
