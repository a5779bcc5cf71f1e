"""Table of all metrics: names, kinds, labels, and the closed set of values of each label.

Only `archiver.status.metric_registry` and `archiver.web.metrics` turn values into samples, and only by this table.
The number of series is bounded by the settings (`series_max`). A label is a name from the configuration, a topic or
partition within `metrics.topics_max` and `metrics.partitions_max`, a consumer group within
`metrics.group_partitions_max`, or one of a closed set; never free text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Shown = Literal["all", "intake", "archive", "reconcile"]

OTHER: Final = "_other"
"""Topic or partition label of the sum over those that have no series of their own."""
# The closed sets below are label values, so dashboards and alerts depend on their spelling.
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
    "/v1/admin/reset_offsets",
    "read",
    "console",
    "other",
)
STATUSES: Final = (
    "200", "202", "204", "303", "400", "401", "403", "404", "405", "408", "409", "411", "413", "415", "422", "429", "500", "503", "504", "other",
)  # fmt: skip
OTHER_VALUE: Final = "other"
"""Value of a closed set for all that it does not have."""
KAFKA_APIS: Final = (
    "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup",
    "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups", "ListGroups", "SaslHandshake", "ApiVersions", "CreateTopics",
    "DeleteTopics", "DeleteRecords", "InitProducerId", "OffsetForLeaderEpoch", "AddPartitionsToTxn", "AddOffsetsToTxn",
    "EndTxn", "WriteTxnMarkers", "TxnOffsetCommit", "DescribeAcls", "DescribeConfigs", "AlterConfigs", "DescribeLogDirs", "SaslAuthenticate",
    "CreatePartitions", "DeleteGroups", "IncrementalAlterConfigs", "OffsetDelete", "DescribeCluster", "DescribeProducers",
    "DescribeTransactions", "ListTransactions", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe", OTHER_VALUE,
)  # fmt: skip
"""Kafka's names of the APIs that clients use."""
KAFKA_ERRORS: Final = (
    "UNKNOWN_SERVER_ERROR", "OFFSET_OUT_OF_RANGE", "CORRUPT_MESSAGE", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT", "MESSAGE_TOO_LARGE", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR",
    "INVALID_TOPIC_EXCEPTION", "NOT_ENOUGH_REPLICAS", "INVALID_REQUIRED_ACKS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION", "INVALID_REQUEST", "OUT_OF_ORDER_SEQUENCE_NUMBER", "DUPLICATE_SEQUENCE_NUMBER",
    "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "KAFKA_STORAGE_ERROR",
    "SASL_AUTHENTICATION_FAILED", "UNKNOWN_PRODUCER_ID", "FETCH_SESSION_ID_NOT_FOUND", "UNSUPPORTED_COMPRESSION_TYPE",
    "INVALID_RECORD", "PRODUCER_FENCED", "INVALID_GROUP_ID", "INCONSISTENT_GROUP_PROTOCOL", "INVALID_SESSION_TIMEOUT",
    "MEMBER_ID_REQUIRED", "GROUP_MAX_SIZE_REACHED", "FENCED_INSTANCE_ID", "OFFSET_METADATA_TOO_LARGE", "NON_EMPTY_GROUP",
    "GROUP_ID_NOT_FOUND", "GROUP_SUBSCRIBED_TO_TOPIC", "UNSTABLE_OFFSET_COMMIT", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH",
    "UNRELEASED_INSTANCE_ID", "UNSUPPORTED_ASSIGNOR", "INVALID_REGULAR_EXPRESSION", OTHER_VALUE,
)  # fmt: skip
"""Kafka's names of the errors that have a series of their own."""
KAFKA_CUTS: Final = ("malformed", "too_large", "slow", "unauthenticated", "failed")
GROUP_STATES: Final = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Assigning",
    "Reconciling",
)
OFFSET_COMMITS: Final = (
    *("ok", "stale_claim", "full", "too_large", "not_appended", "unknown", "unknown_producer", "fenced"),
    "refused",
)
KAFKA_ORIGINS: Final = ("archive", "intake", "cache", "gap")
# From a local catalog to twice the default of `archive.commit_timeout` (60 s).
COMMIT_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

LABELS: Final[dict[str, tuple[str, ...] | None]] = {
    "topic": None,
    "partition": None,
    "group": None,
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
    "api": KAFKA_APIS,
    "code": KAFKA_ERRORS,
    "cut": KAFKA_CUTS,
    "origin": KAFKA_ORIGINS,
    "group_state": GROUP_STATES,
    "commit": OFFSET_COMMITS,
    "version": None,
    "python": None,
}
"""Values of every label; None: names from the configuration, or of this program."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; its name ends with its unit."""

    kind: Kind
    text: str
    """Help text."""
    labels: tuple[str, ...] = ()
    shown: Shown = "all"
    """Role of the daemons that export it."""


def _counter(text: str, *labels: str, shown: Shown = "all") -> Metric:
    return Metric("counter", text, labels, shown)


def _gauge(text: str, *labels: str, shown: Shown = "all") -> Metric:
    return Metric("gauge", text, labels, shown)


_TP = ("topic", "partition")

_LAG: dict[str, Metric] = {
    "archiver_lag_records": _gauge(
        "accepted records that have not reached this stage: stable (no open transaction is before them), archived, "
            "committed", *_TP, "stage",
    ),
    "archiver_lag_seconds": _gauge("age of the oldest accepted record that has not reached this stage; 0: none", *_TP, "stage"),
    "archiver_lag_unknown_partitions": _gauge(
        "partitions for which the lag of some stage is unknown, so that its series is absent", "topic"
    ),
    "archiver_freshness_seconds": _gauge(
        "now minus the time up to which the table is complete: it has every record with an older ingest time; absent "
            "while that is unknown", "topic",
    ),
    "archiver_commit_age_seconds": _gauge(
        "time since a commit last advanced the topic's table; absent before the first commit. It grows while there is "
            "nothing to commit", "topic",
    ),
    "archiver_topic_stuck": _gauge("1: the last round could not finish the topic, see the status page for why; 0: it could", "topic"),
    "archiver_pending_archives": _gauge("archives that are in the ledger but not in a table yet", "topic"),
    "archiver_pending_archive_bytes": _gauge("stored bytes of archives that are in the ledger but not in a table yet", "topic"),
    "archiver_held_partitions": _gauge("partitions that do not advance, by reason; the status page lists them", "reason"),
    "archiver_aggregated_partitions": _gauge("partitions without series of their own (metrics.partitions_max): summed per topic"),
    "archiver_aggregated_topics": _gauge("topics without series of their own (metrics.topics_max): summed as topic _other"),
    "archiver_group_lag_records": _gauge(
        "records that a consumer group has not committed; absent if that is unknown", "group", *_TP
    ),
    "archiver_group_lag_seconds": _gauge(
        "age of the oldest accepted record that a consumer group has not committed; 0: none; absent if that is unknown",
        "group", *_TP,
    ),
    "archiver_group_partitions_left": _gauge(
        "partitions of consumer groups without series of their own (metrics.group_partitions_max)"
    ),
}  # fmt: skip

_ARCHIVE: dict[str, Metric] = {
    "archiver_archive_rounds_total": _counter("rounds that had something to archive or to commit", shown="archive"),
    "archiver_archive_seconds_total": _counter(
        "time spent in each step of rounds: look (find due topics), prepare (their schemas and tables), plan (choose what "
            "becomes an archive), refine (write archives), write (append to the ledger), commit (commit to the tables)",
        "step", shown="archive",
    ),
    "archiver_archive_records_total": _counter(
        "records in archives that this process wrote; an archive that was written again counts again", "topic", shown="archive"
    ),
    "archiver_archive_files_total": _counter("archives that this process wrote", "topic", shown="archive"),
    "archiver_archive_raw_bytes_total": _counter("bytes of key, value and headers of those records", "topic", shown="archive"),
    "archiver_archive_stored_bytes_total": _counter("bytes of those archives in the object store", "topic", shown="archive"),
    "archiver_archive_gap_offsets_total": _counter("offsets of aborted transactions that were skipped", "topic", shown="archive"),
    "archiver_decode_errors_total": _counter(
        "keys and values that could not be decoded; the table has their bytes. malformed: not a message of that type; "
            "not_utf8: a string field that is not UTF-8; time_range: a timestamp outside the years 1 to 9999; "
            "unknown_schema: a registry envelope with a schema id that the topic's subject does not have; "
            "other_message: an envelope that names another message; too_many_values: a record that would become too "
            "large when decoded", "topic", "side", "cause", shown="archive",
    ),
    "archiver_schema_changes_total": _counter(
        "changes of a topic's schema that this process recorded. incompatible: earlier records or queries change their "
            "meaning", "topic", "compatibility", shown="archive",
    ),
    "archiver_commits_total": _counter(
        "commits by result: committed; nothing (nothing to add); retry (catalog not reached, or other commits always won); "
            "unknown (the last request may still apply); halted (needs an operator); deposed (a newer leader exists)",
        "topic", "end", shown="archive",
    ),
    "archiver_commit_attempts_total": _counter(
        "attempts of those commits: more than one each if other writers commit to the table or responses are lost",
        "topic", shown="archive",
    ),
    "archiver_commit_seconds": Metric("histogram", "duration of a commit with all its attempts, of every result", (), "archive"),
    "archiver_control_topic_up": _gauge(
        "1: the control events of the ledger are published; 0: they are not, see the status for why; absent where another "
            "daemon publishes", shown="archive",
    ),
    "archiver_control_topic_events_total": _counter(
        "control events that the topic acknowledged to this process, repetitions included", shown="archive"
    ),
    "archiver_control_topic_lag_entries": _gauge(
        "entries of the control log that are not published yet; absent where another daemon publishes", shown="archive"
    ),
    "archiver_control_topic_lag_seconds": _gauge(
        "age of the first of those entries; 0: none; absent where another daemon publishes", shown="archive"
    ),
}  # fmt: skip

_INTAKE: dict[str, Metric] = {
    "archiver_intake_queue_bytes": _gauge(
        "bytes queued or being written in the intake writer, counted as for intake.queue_bytes_max", shown="intake"
    ),
    "archiver_intake_queue_bytes_max": _gauge(
        "limit of that, intake.queue_bytes_max: a sender that would exceed it waits", shown="intake"
    ),
    "archiver_intake_records_accepted_total": _counter("records accepted into the queue", shown="intake"),
    "archiver_intake_bytes_accepted_total": _counter("raw bytes of the records accepted into the queue", shown="intake"),
    "archiver_intake_records_ok_total": _counter("records acknowledged as stored, with their offset", shown="intake"),
    "archiver_intake_records_failed_total": _counter("records acknowledged as certainly not stored", shown="intake"),
    "archiver_intake_records_unknown_total": _counter("records acknowledged with unknown outcome", shown="intake"),
    "archiver_intake_flushes_total": _counter("flushes started", shown="intake"),
    "archiver_intake_producer_waits_total": _counter(
        "times that a sender found the queue full and waited: the store or the log is too slow", shown="intake"
    ),
    "archiver_intake_producer_wait_seconds_total": _counter("total time that senders waited for a full queue", shown="intake"),
    "archiver_intake_upload_seconds": _gauge("duration of the last upload of an intake file", shown="intake"),
    "archiver_intake_append_seconds": _gauge("duration of the last append to the intake log, retries included", shown="intake"),
    "archiver_intake_oldest_required_age_seconds": _gauge(
        "age of the oldest intake file that is still required, with the partition that requires it; 0: none", *_TP
    ),
    "archiver_intake_log_ahead_seconds": _gauge(
        "how far the newest ingest time in the intake log is ahead of this machine's clock; normally 0"
    ),
    "archiver_intake_producers": _gauge(
        "idempotent producers that the intake log knows; intake.producers_max limits them"
    ),
    "archiver_intake_clock_refusals_total": _counter(
        "requests refused because this machine's clock is ahead of its reference", shown="intake"
    ),
}  # fmt: skip

_DAEMON: dict[str, Metric] = {
    "archiver_build_info": _gauge("always 1; the labels are the versions of this program and of Python", "version", "python"),
    "archiver_ready": _gauge("1: serving, and every dependency answered the last check; 0: not"),
    "archiver_leader": _gauge("1: this process holds the leadership lease; 0: it does not"),
    "archiver_epoch": _gauge("number of the newest leadership in the control log"),
    "archiver_watch_age_seconds": _gauge(
        "age of the last status poll: lag, logs, leadership, oldest required file and sources are as of then"
    ),
    "archiver_dependency_up": _gauge("1: the dependency answered the last check; 0: it did not", "dependency"),
    "archiver_dependency_age_seconds": _gauge("time since that last changed", "dependency"),
    "archiver_cycles_total": _counter(
        "cycles of jobs, scheduled or requested, by outcome: fine; wrong (needs an operator); `untold` (no result: an error "
            "or an audit without a verdict; retried); skipped (another process leads)", "job", "outcome",
    ),
    "archiver_cycle_seconds_total": _counter("total duration of those cycles", "job", "outcome"),
    "archiver_cycle_age_seconds": _gauge("time since the newest cycle of the job began", "job"),
    "archiver_cycle_last_seconds": _gauge("duration of the newest cycle of the job", "job"),
    "archiver_http_requests_total": _counter("requests answered", "route", "status"),
    "archiver_http_request_seconds_total": _counter("total time to answer them", "route"),
    "archiver_log_floor": _gauge("first index that the log still has", "log"),
    "archiver_log_tail": _gauge("index of the next entry", "log"),
    "archiver_log_entries": _gauge("entries in the log", "log"),
    "archiver_checkpoint_index": _gauge("entry of the intake log up to which the newest checkpoint known to this process reaches"),
    "archiver_deletion_pending_objects": _gauge("objects marked for deletion and not known to be deleted"),
    "archiver_clean_marked_total": _counter("objects that this process marked for deletion", shown="reconcile"),
    "archiver_clean_deleted_total": _counter("objects that this process deleted", shown="reconcile"),
    "archiver_clean_compacted_total": _counter("small archives that this process replaced by merged ones", shown="reconcile"),
    "archiver_findings": _gauge(
        "findings of the newest reconciliation that are not repaired; the runbook has a section for each. error: rows are "
            "missing, duplicated or in danger, or a topic does not advance; absent before the first",
        "finding", "severity", shown="reconcile",
    ),
    "archiver_findings_fixed_total": _counter("findings that this process repaired", "finding", shown="reconcile"),
    "archiver_audit_verdict": _gauge("1 for the verdict of the newest audit, 0 for the others; absent before the first", "verdict"),
    "archiver_audit_age_seconds": _gauge("time since the newest audit began"),
    "archiver_undecoded_values": _gauge(
        "undecoded keys and values in the topic's table, by the newest audit; absent for a table without a schema", "topic"
    ),
    "archiver_deep_audit_verdict": _gauge(
        "1 for the verdict of the newest deep audit, 0 for the others; absent before the first since the daemon started",
        "verdict",
    ),
    "archiver_deep_audit_age_seconds": _gauge("time since the newest deep audit began; absent before the first"),
    "archiver_source_up": _gauge("1: the source can ingest; 0: it cannot, see the log for why", "source", shown="intake"),
    "archiver_source_files": _gauge(
        "files of a source that are not ingested: waiting (for their turn), failed (needs an operator)",
        "source", "state", shown="intake",
    ),
    "archiver_source_files_total": _counter("files of a source that this process finished", "source", shown="intake"),
    "archiver_source_records_total": _counter("records that this process ingested from a source", "source", shown="intake"),
    "archiver_source_bytes_total": _counter("raw bytes of those records", "source", shown="intake"),
    "archiver_mirror_stopped": _gauge(
        "topics and partitions of a Kafka source that are no longer read: needs an operator", "source", shown="intake"
    ),
    "archiver_mirror_lag_offsets": _gauge(
        "offsets of the Kafka cluster that are not ingested yet, of the partitions that are read", "source", shown="intake"
    ),
}  # fmt: skip

_KAFKA: dict[str, Metric] = {
    "archiver_kafka_up": _gauge("1: the port for Kafka clients is open; 0: it is not; absent without kafka.listen", shown="intake"),
    "archiver_kafka_registered": _gauge(
        "1: this daemon is among those that Kafka clients are sent to; 0: it is not, see the status for why", shown="intake"
    ),
    "archiver_kafka_live_daemons": _gauge("daemons that Kafka clients are sent to, as this daemon last read them", shown="intake"),
    "archiver_kafka_connections": _gauge("open connections of Kafka clients", shown="intake"),
    "archiver_kafka_connections_refused_total": _counter(
        "connections that were cut off: malformed (no valid request); too_large (kafka.request_bytes_max); slow (no request, or "
            "a slow one); unauthenticated (also a wrong password); failed (a defect, see the log)", "cut", shown="intake",
    ),
    "archiver_kafka_requests_total": _counter("requests of Kafka clients that were answered, by API", "api", shown="intake"),
    "archiver_kafka_request_seconds_total": _counter(
        "total time from those requests to their answers; a Fetch waits for records, so its time is no measure of load",
        "api", shown="intake",
    ),
    "archiver_kafka_errors_total": _counter(
        "errors in those answers, by Kafka's name; an answer may have one for each partition", "api", "code", shown="intake"
    ),
    "archiver_kafka_received_bytes_total": _counter("bytes of requests, as sent", shown="intake"),
    "archiver_kafka_sent_bytes_total": _counter("bytes of answers, as sent", shown="intake"),
    "archiver_kafka_throttled_total": _counter(
        "answers that ask a client to wait, because the intake queue is nearly full", shown="intake"
    ),
    "archiver_kafka_produced_batches_total": _counter(
        "record batches acknowledged as stored; a repeated one counts again", shown="intake"
    ),
    "archiver_kafka_produced_records_total": _counter("records in those batches", shown="intake"),
    "archiver_kafka_fetched_partitions_total": _counter(
        "partitions with records in answers to Fetch, by where the first records came from: archive; intake; cache (read "
            "before, kafka.fetch_cache_bytes); gap (offsets without records)", "origin", shown="intake",
    ),
    "archiver_kafka_groups": _gauge("consumer groups that this daemon coordinates and knows members of, by Kafka's state", "group_state", shown="intake"),
    "archiver_kafka_group_members": _gauge("members of those groups", shown="intake"),
    "archiver_kafka_group_slots": _gauge("slots of consumer groups that this daemon coordinates, of 64", shown="intake"),
    "archiver_kafka_group_slots_lost_total": _counter("slots that another daemon coordinates since", shown="intake"),
    "archiver_kafka_group_rebalances_total": _counter("rebalances of consumer groups that ended", shown="intake"),
    "archiver_kafka_offset_commits_total": _counter(
        "commits of offsets: ok; stale_claim (another daemon coordinates the group); full (kafka.group_offsets_bytes_max); "
            "too_large; not_appended and unknown (the metadata store did not answer in time); unknown_producer and fenced (of a "
            "transaction); refused (the member is unknown, or of another generation)", "commit", shown="intake",
    ),
    "archiver_intake_workers": _gauge("intake workers that serve clients (intake.workers)", shown="intake"),
    "archiver_intake_worker_restarts_total": _counter("intake workers that were started in place of ended ones", shown="intake"),
}  # fmt: skip

_PROCESS: dict[str, Metric] = {
    "process_virtual_memory_bytes": _gauge("virtual memory of the process, without that of Spark"),
    "process_resident_memory_bytes": _gauge("resident memory of the process, without that of Spark"),
    "process_start_time_seconds": _gauge("start time of the process, in seconds since 1970"),
    "process_cpu_seconds_total": _counter("CPU time of the process, without that of Spark"),
    "process_open_fds": _gauge("open file descriptors"),
    "process_max_fds": _gauge("limit of open file descriptors"),
}

_NAMED: dict[str, Metric] = {**_LAG, **_ARCHIVE, **_INTAKE, **_KAFKA, **_DAEMON, **_PROCESS}

ALIASES: Final[dict[str, str]] = {
    "archiver_untold_partitions": "archiver_lag_unknown_partitions",
    "archiver_folded_partitions": "archiver_aggregated_partitions",
    "archiver_folded_topics": "archiver_aggregated_topics",
    "archiver_intake_pinned_age_seconds": "archiver_intake_oldest_required_age_seconds",
    "archiver_condemned_objects": "archiver_deletion_pending_objects",
    "archiver_clean_condemned_total": "archiver_clean_marked_total",
    "archiver_mirror_behind_offsets": "archiver_mirror_lag_offsets",
}
"""Old names, exported for one release with the value of the new name."""

METRICS: Final[dict[str, Metric]] = {
    **_NAMED,
    **{
        old: replace(_NAMED[new], text=f"deprecated alias of {new}, removed in the next release")
        for old, new in ALIASES.items()
    },
}
"""Every metric by its Prometheus name. Names that begin with `process_` are those of all Prometheus clients."""


def series_max(
    partitions_max: int, topics_max: int, dependencies: int, sources: int, group_partitions_max: int = 0
) -> int:
    """Upper bound of the series (lines with a value) of one scrape."""
    # One more for the sum of all other topics.
    topics = topics_max + 1
    names = {
        "topic": topics,
        "partition": 1,
        "dependency": dependencies,
        "source": sources,
        "version": 1,
        "python": 1,
    }
    return sum(
        group_partitions_max
        if "group" in metric.labels
        else _series(name, metric, names, partitions_max + topics)
        for name, metric in METRICS.items()
    )


def _series(name: str, metric: Metric, names: dict[str, int], places: int) -> int:
    if ALIASES.get(name, name) == "archiver_intake_oldest_required_age_seconds":
        return 1  # has labels of a partition, but only of the one that requires the oldest file
    labels = metric.labels
    count = 1
    if "partition" in labels:
        count, labels = places, tuple(label for label in labels if label not in _TP)
    for label in labels:
        values = LABELS[label]
        count *= names[label] if values is None else len(values)
    return count * (len(COMMIT_BUCKETS_S) + 3 if metric.kind == "histogram" else 1)
