"""Builds the document of `archiver status`, for the command and for the daemon.

It reads both logs and, for the oldest required intake file, the tables. Programs read the document: keys are
added but never removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archiver.publish.progress import HeldBack, positions, troubles, whole_backlog
from archiver.runtime.errors import Halt
from archiver.runtime.rfc3339 import format_time
from archiver.runtime.text import counted, moment
from archiver.status.advice import of_audits, topic_advice
from archiver.status.ages import numbers
from archiver.status.group_lag import group_document, group_report
from archiver.status.journal import Journal
from archiver.status.kafka_port import KafkaPort, kafka_document
from archiver.status.lag import STAGES, PartitionLag, TopicLag, lag_report
from intake.log.clock_check import log_ahead_text

if TYPE_CHECKING:
    from archiver.app.deployment import Deployment
    from archiver.ledger.fold import LedgerFold
    from intake.log.backlog import Backlog
    from intake.sources.files.source import FilesState
    from intake.sources.kafka.upstream_changes import MirrorState

ENDS = (
    "after its time a running writer or the next `archiver archive` aborts it, and opening its "
    "transactional id again does so at once"
)
"""How an open transaction ends if its producer does not end it."""


def status_document(
    at: Deployment,
    now_us: int,
    stuck: Mapping[str, str] | None = None,
    daemon: Mapping[str, Any] | None = None,
    reported: Mapping[str, Any] | None = None,
    *,
    with_tables: bool = True,
) -> dict[str, Any]:
    """State of the logs, the leadership and every topic at `now_us`.

    `stuck` has the reason for each topic that the last round halted or deferred; only a daemon knows it.
    `daemon` is the `daemon_document` of a running daemon, with or without `attention` and `sources`.
    `reported` is the status document of that daemon: its oldest required intake file is reused. Without
    `with_tables` and without that document it is left out, and no table is read.
    Raises what reading the logs and the tables' metadata raises.
    """
    # Before the intake log, or an archive may seem to reach beyond it.
    ledger = at.ledger()
    intake, oldest = at.backlog(), _oldest_required(at, now_us, reported, with_tables=with_tables)
    found = lag_report(
        intake,
        ledger,
        at.settings.topics,
        now_us,
        stuck or {},
        archive=at.settings.archive,
        skew_max_s=at.settings.intake.clock_skew_max,
    )
    lost = _lost(at, intake, now_us)
    # With a lost log every topic differs, which would hide the one cause.
    attention = list(found.differences) if lost is None else [lost]
    attention += [f"topic {name} is not archived: {why}" for name, why in at.refused_topics.items()]
    attention += [
        f"the configs of topic {name} are not applied: {why}" for name, why in at.ignored_configs.items()
    ]
    attention += [log_ahead_text(found.newest_us, found.log_ahead_s)] if found.log_ahead_s is not None else []
    overdue: dict[int, str] = {}
    topics: list[dict[str, Any]] = []
    for topic in found.topics:
        placed = positions(intake, ledger, topic.topic_id)
        if topic.pending:
            pending = counted(topic.pending, "archive that is", "archives that are")
            attention.append(
                f"topic {topic.topic} has {pending} not in the table yet; run `archiver archive --topic "
                f"{topic.topic}`"
            )
        attention += troubles(topic.topic, placed) + _broken(topic)
        # By producer, because one transaction can hold back many partitions.
        overdue |= {
            item.held.producer_id: _overdue(item.held, now_us)
            for item in placed
            if item.held and item.held.deadline_us <= now_us
        }
        backlog_rows, backlog_bytes = whole_backlog(placed)
        topics.append(
            {
                "topic": topic.topic,
                "records": sum(item.next for item in placed),
                "archived": sum(item.watermark for item in placed),
                "backlog_rows": backlog_rows,
                "backlog_bytes": backlog_bytes,
                "pending_archives": topic.pending,
                "held": [
                    {"partition": item.partition, **item.held.to_json()}
                    for item in placed
                    if item.held is not None
                ],
                **standing_of(topic),
            }
        )
    return {
        "cluster": at.cluster.name,
        "cluster_id": at.cluster.cluster_id,
        "data": at.settings.data.uri,
        # The lease names the holder; the epoch of the ledger decides whose writes count.
        "leader": at.lease.holder(),
        "epoch": ledger.epoch,
        "intake_log": {"floor": at.intake_log.floor(), "tail": intake.next_index},
        "control_log": {"floor": at.control_log.floor(), "tail": ledger.next_index},
        "topics": topics,
        "groups": _groups(at, intake, ledger, now_us),
        **oldest,
        "attention": attention + list(overdue.values()) + _daemon_attention(daemon),
        "daemon": None if daemon is None else dict(daemon),
    }


def _groups(at: Deployment, intake: Backlog, ledger: LedgerFold, now_us: int) -> dict[str, Any]:
    """Lag of the consumer groups; `left` counts those beyond `metrics.group_partitions_max`."""
    report = group_report(intake, ledger, now_us, at.settings.metrics.group_partitions_max)
    return {"groups": [group_document(lag) for lag in report.groups], "left": report.groups_left}


def _oldest_required(
    at: Deployment, now_us: int, reported: Mapping[str, Any] | None, *, with_tables: bool = True
) -> dict[str, Any]:
    # Only this part of the document reads tables. To take it from the daemon saves a command half of its
    # time: it opens no catalog and imports no pyiceberg.
    # A daemon of an older version lacks the new metric names: the command then computes the values itself.
    if (
        reported is not None
        and {"pinned", "metrics"} <= reported.keys()
        and any(
            name.startswith("archiver_intake_oldest_required_age_seconds") for name in reported["metrics"]
        )
    ):
        return {"pinned": reported["pinned"], "metrics": reported["metrics"]}
    if not with_tables:
        return {"pinned": None, "metrics": {}}
    # Imported here, because a command with a running daemon does not need it.
    from reconcile.snapshot.oldest_required import metrics_of

    pin = at.oldest_required()
    return {"pinned": None if pin is None else pin.to_json(now_us), "metrics": metrics_of(pin, now_us)}


def daemon_document(
    address: str,
    journal: Journal,
    sources: Sequence[FilesState] = (),
    mirrors: Sequence[MirrorState] = (),
    kafka: KafkaPort | None = None,
) -> dict[str, Any]:
    """State of a daemon for `status_document`; state and checks are as in `/readyz`."""
    checks = [
        {"name": check.name, "ok": check.ok, "why": check.why, "since": format_time(check.since_us)}
        for check in journal.checks()
    ]
    return {
        "address": address,
        "state": journal.state,
        "ready": journal.ready,
        "checks": checks,
        "sources": [_source(source) for source in sources],
        "mirrors": [_mirror(mirror) for mirror in mirrors],
        "kafka": None if kafka is None else kafka_document(kafka),
        "attention": [
            f"{item.what}. {item.todo}"
            # Only what the logs do not show: the command computes the rest of the advice itself.
            for item in [*topic_advice(journal, sources, mirrors=mirrors), *of_audits(journal)]
        ],
    }


def _source(source: FilesState) -> dict[str, Any]:
    return {
        "glob": source.glob,
        "topic": source.topic,
        "looked": None if source.looked_us is None else format_time(source.looked_us),
        "waiting": source.waiting,
        "in_work": source.in_work,
        "finished": source.finished,
        "gone": source.gone,
        "failed": source.failed,
        "problems": [{"path": problem.path, "why": problem.why} for problem in source.problems],
        "trouble": source.trouble,
    }


def _mirror(mirror: MirrorState) -> dict[str, Any]:
    return {
        "name": mirror.name,
        "looked": None if mirror.looked_us is None else format_time(mirror.looked_us),
        "topics": mirror.topics,
        "partitions": mirror.partitions,
        "behind": mirror.behind,
        "stopped": mirror.stopped,
        "findings": [
            {"kind": one.kind, "topic": one.topic, "partition": one.partition, "why": one.why}
            for one in mirror.findings
        ],
        "trouble": mirror.trouble,
    }


def standing_of(topic: TopicLag) -> dict[str, Any]:
    """How far one topic and each of its partitions are."""
    return {
        "kind": topic.kind,
        "last_commit": None if topic.last_commit_us is None else format_time(topic.last_commit_us),
        "valid_through": None if topic.valid_through_us is None else format_time(topic.valid_through_us),
        "stuck": topic.stuck,
        "partitions": [_partition(partition) for partition in topic.partitions],
    }


def _partition(partition: PartitionLag) -> dict[str, Any]:
    lags = {stage: partition.stages[stage] for stage in STAGES if stage in partition.stages}
    return {
        "partition": partition.partition,
        "start": partition.start,
        "next": partition.next,
        "stages": {
            stage: {"offset": lag.offset, "lag_records": lag.records, "lag_seconds": lag.seconds}
            for stage, lag in lags.items()
        },
        "cause": partition.cause,
        "reason": partition.reason,
    }


def _lost(at: Deployment, intake: Backlog, now_us: int) -> str | None:
    """Why an empty intake log is not that of a new deployment, judged by the data folder."""
    # A log with entries is not new. Whether it is the newest, commands that append check.
    if intake.next_index:
        return None
    from archiver.publish.log_rollback_check import check_log_is_newest

    try:
        check_log_is_newest(at.objects, at.intake_log, at.control_log, at.sequencer.refresh, now_us)
    except Halt as error:
        return str(error)
    return None


def _broken(topic: TopicLag) -> list[str]:
    """Reasons that keep the topic from being archived and that no other text has."""
    found = [f"topic {topic.topic}: {topic.stuck}"] if topic.stuck is not None else []
    broken: dict[str | None, list[int]] = {}
    for partition in topic.partitions:
        if partition.cause in ("restored", "unconfigured"):
            # Partitions with the same reason share one text.
            broken.setdefault(partition.reason, []).append(partition.partition)
    several = (
        (reason, f"partition{'s' * (len(places) > 1)} {numbers(places)}") for reason, places in broken.items()
    )
    return [*found, *(f"topic {topic.topic} {where}: {reason}" for reason, where in several)]


def _overdue(held: HeldBack, now_us: int) -> str:
    """Text for an open transaction that has timed out."""
    return (
        f"transaction {held.described(now_us)} holds archiving back, and it timed out at "
        f"{moment(held.deadline_us)}; {ENDS}"
    )


def _daemon_attention(daemon: Mapping[str, Any] | None) -> list[str]:
    """Problems of the daemon, and problems that only the daemon knows."""
    if daemon is None:
        return []
    known = [str(line) for line in daemon.get("attention", ())]
    # A daemon that is not ready names first what it waits for.
    if daemon["ready"]:
        return known
    silent = [f"{check['name']}: {check['why']}" for check in daemon["checks"] if not check["ok"]]
    # First, because a daemon that waits explains most of the lines that follow.
    why = f"the daemon at {daemon['address']} is not ready ({daemon['state']})"
    return [why + (f": {'; '.join(silent)}" if silent else ""), *known]
