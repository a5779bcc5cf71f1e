"""The one table of all metrics: what `/metrics` can show, and nothing else.

Owns names, kinds, labels and the values that a closed label can have. Whoever has a number hands it over as a
value; only `archiver.status.metric_registry` and `archiver.web.metrics` turn values into samples, and only by
this table. Promises that the number of series has a bound that follows from the settings (`series_max`): a
label is a topic or a partition, which are bounded by `metrics.topics_max` and `metrics.partitions_max`; a
dependency or a source, which stand in the configuration; or one of a closed set. Never a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Shown = Literal["all", "intake", "archive", "reconcile"]

OTHER: Final = "_other"
"""The topic, or the partition, of what has no series of its own."""
STAGES: Final = ("stable", "archived", "committed")
JOBS: Final = ("tick", "reconcile", "cleanup", "audit", "deep_audit", "watch", "control_topic", "other")
OUTCOMES: Final = ("fine", "wrong", "untold", "skipped")
VERDICTS: Final = ("valid", "invalid", "unknown")
LOGS: Final = ("intake", "control")
COMMIT_ENDS: Final = ("committed", "nothing", "retry", "unknown", "halted", "deposed")
ROUND_STEPS: Final = ("look", "prepare", "plan", "refine", "write", "commit")
SIDES: Final = ("key", "value")
COMPATIBILITIES: Final = ("compatible", "incompatible")
DECODE_CAUSES: Final = (
    "malformed",
    "not_utf8",
    "time_range",
    "unknown_schema",
    "other_message",
    "too_many_values",
)
HELD_CAUSES: Final = (
    "restored", "shelf", "unreadable", "stuck", "unconfigured", "transaction", "pending", "off", "due", "waiting",
)  # fmt: skip
FINDINGS: Final = (
    "table-missing", "table-replaced", "topic-recreated-on-old-table", "format-changed", "spec-changed", "schema-drift",
    "rolled-back", "evidence-doubted", "dangling-reference", "altered-object", "gap", "doubled-file", "overlap",
    "unknown-commit", "missing-in-catalog", "foreign-rows", "stale-lease", "log-ahead", "orphan", "stray-upload", "rows-removed",
)  # fmt: skip
"""Ids of the reconciler's findings (`reconcile.findings.finding`)."""
SEVERITIES: Final = ("error", "warning", "info")
FILE_STATES: Final = ("waiting", "failed")
ROUTES: Final = (
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v1/topics/{topic}/records",
    "/v1/admin/status",
    "/v1/admin/archive",
    "/v1/admin/reconcile",
    "/v1/admin/clean",
    "/v1/admin/audit",
    "/v1/admin/replay",
    "/v1/admin/reload",
    "other",
)
STATUSES: Final = (
    "200", "202", "204", "400", "401", "403", "404", "405", "408", "409", "411", "413", "415", "422", "429", "500", "503", "504", "other",
)  # fmt: skip
COMMIT_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

LABELS: Final[dict[str, tuple[str, ...] | None]] = {
    "topic": None,
    "partition": None,
    "stage": STAGES,
    "job": JOBS,
    "outcome": OUTCOMES,
    "verdict": VERDICTS,
    "log": LOGS,
    "end": COMMIT_ENDS,
    "step": ROUND_STEPS,
    "side": SIDES,
    "cause": DECODE_CAUSES,
    "compatibility": COMPATIBILITIES,
    "reason": HELD_CAUSES,
    "dependency": None,
    "source": None,
    "finding": FINDINGS,
    "severity": SEVERITIES,
    "state": FILE_STATES,
    "route": ROUTES,
    "status": STATUSES,
    "version": None,
    "python": None,
}
"""Every label, with the values that it can have; None: names from the configuration, or of this very
program."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the table. Its unit is in its name."""

    kind: Kind
    text: str
    """What it says, for people."""
    labels: tuple[str, ...] = ()
    shown: Shown = "all"
    """The role in which a daemon shows it."""


def _counter(text: str, *labels: str, shown: Shown = "all") -> Metric:
    return Metric("counter", text, labels, shown)


def _gauge(text: str, *labels: str, shown: Shown = "all") -> Metric:
    return Metric("gauge", text, labels, shown)


_TP = ("topic", "partition")

_LAG: dict[str, Metric] = {
    "archiver_lag_records": _gauge(
        "records that were accepted and have not got to this stage: stable (no open transaction is "
            "before them), archived, committed",
        *_TP, "stage",
    ),
    "archiver_lag_seconds": _gauge("age of the oldest record that was accepted and has not got to this stage; 0: none", *_TP, "stage"),
    "archiver_freshness_seconds": _gauge(
        "age of the time up to which the table is complete: every record with an older ingest time is "
            "in it; absent while it is not known",
        "topic",
    ),
    "archiver_commit_age_seconds": _gauge(
        "time since a commit last brought the topic's table further; absent if none ever did. It grows "
            "while there is nothing to commit",
        "topic",
    ),
    "archiver_topic_stuck": _gauge("1: the last round could not finish the topic, the status page says why; 0: it could", "topic"),
    "archiver_pending_archives": _gauge("archives that are in the ledger and in no table yet", "topic"),
    "archiver_pending_archive_bytes": _gauge("stored bytes of archives that are in the ledger and in no table yet", "topic"),
    "archiver_untold_partitions": _gauge("partitions of which the lag of some stage cannot be told, so that its series is absent", "topic"),
    "archiver_held_partitions": _gauge("partitions that something holds back, by what; the status page says which, and more", "reason"),
    "archiver_folded_partitions": _gauge("partitions without series of their own (metrics.partitions_max): summed per topic"),
    "archiver_folded_topics": _gauge("topics without series of their own (metrics.topics_max): summed under the topic _other"),
}  # fmt: skip

_ARCHIVE: dict[str, Metric] = {
    "archiver_archive_rounds_total": _counter("rounds that had something to archive or to commit", shown="archive"),
    "archiver_archive_seconds_total": _counter(
        "how long the steps of rounds took: look (which topics have something due), prepare (their "
            "schemas and tables), plan (what becomes "
        "an archive), refine (archives are made), write (the ledger is told), commit (the tables are)",
        "step", shown="archive",
    ),
    "archiver_archive_records_total": _counter(
        "records in archives that this process made; those of archives that had to be made anew count "
            "again", "topic", shown="archive"
    ),
    "archiver_archive_files_total": _counter("archives that this process made", "topic", shown="archive"),
    "archiver_archive_raw_bytes_total": _counter("bytes of key, value and headers of those records", "topic", shown="archive"),
    "archiver_archive_stored_bytes_total": _counter("bytes of those archives in the object store", "topic", shown="archive"),
    "archiver_archive_gap_offsets_total": _counter("offsets of aborted transactions that were passed over", "topic", shown="archive"),
    "archiver_decode_errors_total": _counter(
        "keys and values that could not be decoded; their bytes are in the table. malformed: no "
            "message of that type; not_utf8: a text "
        "field that is not UTF-8; time_range: a timestamp outside the years 1 to 9999; unknown_schema: "
            "a registry envelope with a schema "
        "id that is none of the topic's subject; other_message: one that names another message; "
        "too_many_values: a record that would become too large when it is decoded",
        "topic", "side", "cause", shown="archive",
    ),
    "archiver_schema_changes_total": _counter(
        "changes of a topic's schema that this process recorded. incompatible: records or queries of "
            "before mean something else",
        "topic", "compatibility", shown="archive",
    ),
    "archiver_commits_total": _counter(
        "commits that were tried, by their end: committed; nothing (there was nothing to add); retry "
            "(not reached, or others were always "
        "quicker); unknown (the last request may still land); halted (somebody must act); deposed (a "
            "newer leader came)",
        "topic", "end", shown="archive",
    ),
    "archiver_commit_attempts_total": _counter(
        "attempts of those commits: more than one each if others commit to the table too, or answers "
            "are lost", "topic", shown="archive"
    ),
    "archiver_commit_seconds": Metric("histogram", "how long a commit took, all its attempts together, however it ended", (), "archive"),
    "archiver_control_topic_up": _gauge(
        "1: the control events of the ledger are published; 0: they are not, the status says why; "
            "absent where another daemon publishes",
        shown="archive",
    ),
    "archiver_control_topic_events_total": _counter(
        "control events that the topic has acknowledged to this process, repetitions too", shown="archive"
    ),
    "archiver_control_topic_lag_entries": _gauge(
        "entries of the control log that are not published up to; absent where another daemon publishes", shown="archive"
    ),
    "archiver_control_topic_lag_seconds": _gauge(
        "age of the first of those entries; 0: none; absent where another daemon publishes", shown="archive"
    ),
}  # fmt: skip

_INTAKE: dict[str, Metric] = {
    "archiver_intake_queue_bytes": _gauge(
        "bytes that wait in the intake writer or are being written, counted as intake.queue_bytes_max "
            "counts", shown="intake"
    ),
    "archiver_intake_queue_bytes_max": _gauge(
        "the bound of that, intake.queue_bytes_max: a sender that would exceed it waits", shown="intake"
    ),
    "archiver_intake_records_accepted_total": _counter("records that were taken into the queue", shown="intake"),
    "archiver_intake_bytes_accepted_total": _counter("raw bytes of the records that were taken into the queue", shown="intake"),
    "archiver_intake_records_ok_total": _counter("records acknowledged as stored, at their offset", shown="intake"),
    "archiver_intake_records_failed_total": _counter("records acknowledged as certainly not stored", shown="intake"),
    "archiver_intake_records_unknown_total": _counter("records acknowledged as of unknown outcome", shown="intake"),
    "archiver_intake_flushes_total": _counter("flushes that were begun", shown="intake"),
    "archiver_intake_producer_waits_total": _counter(
        "how often a sender found the queue full and had to wait: the store or the log is too slow", shown="intake"
    ),
    "archiver_intake_producer_wait_seconds_total": _counter(
        "how long senders waited before a full queue, all together", shown="intake"
    ),
    "archiver_intake_upload_seconds": _gauge("how long the upload of the last intake file took", shown="intake"),
    "archiver_intake_append_seconds": _gauge("how long the append of the last entry took, retries included", shown="intake"),
    "archiver_intake_pinned_age_seconds": _gauge(
        "age of the oldest intake file that is needed, and which partition needs it; 0: none", *_TP
    ),
    "archiver_intake_log_ahead_seconds": _gauge(
        "how far the newest ingest time in the intake log is ahead of this machine's clock; 0 as a rule"
    ),
    "archiver_intake_clock_refusals_total": _counter(
        "how often something was refused because this machine's clock is ahead of its reference", shown="intake"
    ),
}  # fmt: skip

_DAEMON: dict[str, Metric] = {
    "archiver_build_info": _gauge("always 1; which version this is", "version", "python"),
    "archiver_ready": _gauge("1: serving, and every dependency answered when it was last asked; 0: not"),
    "archiver_leader": _gauge("1: this process holds the leadership lease; 0: it does not"),
    "archiver_epoch": _gauge("number of the newest leadership in the control log"),
    "archiver_watch_age_seconds": _gauge("age of what the last watch saw: lag, logs, leadership, pin and sources are as of then"),
    "archiver_dependency_up": _gauge("1: the dependency answered when it was last asked; 0: it did not", "dependency"),
    "archiver_dependency_age_seconds": _gauge("for how long that has been so", "dependency"),
    "archiver_cycles_total": _counter(
        "cycles of the jobs, asked for or scheduled, by how they ended: fine; wrong (somebody must "
            "act); untold (tried again); skipped "
        "(another leads)",
        "job", "outcome",
    ),
    "archiver_cycle_seconds_total": _counter("how long those cycles took, all together", "job", "outcome"),
    "archiver_cycle_age_seconds": _gauge("time since the newest cycle of the job began", "job"),
    "archiver_cycle_last_seconds": _gauge("how long the newest cycle of the job took", "job"),
    "archiver_http_requests_total": _counter("requests that were answered", "route", "status"),
    "archiver_http_request_seconds_total": _counter("how long answering them took, all together", "route"),
    "archiver_log_floor": _gauge("first index that the log still has", "log"),
    "archiver_log_tail": _gauge("the index the next entry will get", "log"),
    "archiver_log_entries": _gauge("entries that the log has", "log"),
    "archiver_checkpoint_index": _gauge("the intake log's entry up to which the newest checkpoint reaches, as far as this process knows"),
    "archiver_condemned_objects": _gauge("objects that are condemned and not known to be deleted yet"),
    "archiver_clean_condemned_total": _counter("objects that this process condemned", shown="reconcile"),
    "archiver_clean_deleted_total": _counter("objects that this process deleted", shown="reconcile"),
    "archiver_clean_compacted_total": _counter("small archives in whose place this process brought merged ones", shown="reconcile"),
    "archiver_findings": _gauge(
        "findings of the newest reconciling that are not fixed; the runbook has a section for each. "
            "error: rows are missing, doubled or in "
        "danger, or a topic stands still; absent before the first",
        "finding", "severity", shown="reconcile",
    ),
    "archiver_findings_fixed_total": _counter("findings that this process has repaired", "finding", shown="reconcile"),
    "archiver_audit_verdict": _gauge("1 for the verdict of the newest audit, 0 for the others; absent before the first", "verdict"),
    "archiver_audit_age_seconds": _gauge("time since the newest audit began"),
    "archiver_undecoded_values": _gauge(
        "keys and values in the topic's table that could not be decoded, as the newest audit counted "
            "them; absent for a table without a "
        "schema",
        "topic",
    ),
    "archiver_deep_audit_verdict": _gauge(
        "1 for the verdict of the newest deep audit, 0 for the others; absent before the first since "
            "the daemon began", "verdict"
    ),
    "archiver_deep_audit_age_seconds": _gauge("time since the newest deep audit began; absent before the first"),
    "archiver_source_up": _gauge("1: the source takes in what is there; 0: nothing at all, the log says why", "source", shown="intake"),
    "archiver_source_files": _gauge(
        "files of a source that are not in: waiting (for their turn), failed (somebody must act)", "source", "state", shown="intake"
    ),
    "archiver_source_files_total": _counter("files of a source that this process has finished", "source", shown="intake"),
    "archiver_source_records_total": _counter("records that this process took in from a source", "source", shown="intake"),
    "archiver_source_bytes_total": _counter("raw bytes of those records", "source", shown="intake"),
    "archiver_mirror_stopped": _gauge(
        "topics and partitions of a Kafka source that are not read on: somebody must act", "source", shown="intake"
    ),
    "archiver_mirror_behind_offsets": _gauge(
        "offsets that are in the Kafka cluster and not taken in, of the partitions that are read", "source", shown="intake"
    ),
}  # fmt: skip

_PROCESS: dict[str, Metric] = {
    "process_virtual_memory_bytes": _gauge("virtual memory of the process, without Spark's"),
    "process_resident_memory_bytes": _gauge("memory of the process, without Spark's"),
    "process_start_time_seconds": _gauge("when the process began, in seconds since 1970"),
    "process_cpu_seconds_total": _counter("processor time of the process, without Spark's"),
    "process_open_fds": _gauge("file descriptors that are open"),
    "process_max_fds": _gauge("file descriptors that may be open"),
}

METRICS: Final[dict[str, Metric]] = {**_LAG, **_ARCHIVE, **_INTAKE, **_DAEMON, **_PROCESS}
"""Every metric there is, by its Prometheus name. Those that begin with `process_` are named as every
Prometheus client names them."""


def series_max(partitions_max: int, topics_max: int, dependencies: int, sources: int) -> int:
    """The most series (lines with a value) that one scrape can have."""
    topics = topics_max + 1
    names = {
        "topic": topics,
        "partition": 1,
        "dependency": dependencies,
        "source": sources,
        "version": 1,
        "python": 1,
    }
    return sum(_series(name, metric, names, partitions_max + topics) for name, metric in METRICS.items())


def _series(name: str, metric: Metric, names: dict[str, int], places: int) -> int:
    if name == "archiver_intake_pinned_age_seconds":
        return 1
    labels = metric.labels
    count = 1
    if "partition" in labels:
        count, labels = places, tuple(label for label in labels if label not in _TP)
    for label in labels:
        values = LABELS[label]
        count *= names[label] if values is None else len(values)
    return count * (len(COMMIT_BUCKETS_S) + 3 if metric.kind == "histogram" else 1)
