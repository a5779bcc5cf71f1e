"""The page docs/metrics.md: a head written by hand, and the table of all metrics as the code has it."""

from __future__ import annotations

from archiver.config.daemon import MetricsSettings
from archiver.runtime.metric_names import ALIASES, LABELS, METRICS, Metric, series_max

HEAD = """# Metrics

Generated from the code by `make docs`; do not edit.

A daemon shows its numbers at `/metrics` of its port (`http.listen`), in Prometheus' text format and without a token:

```yaml
scrape_configs:
  - job_name: stream-archiver
    static_configs:
      - targets: ["127.0.0.1:8787"]
```

- **A scrape costs nothing and waits for nothing.** It shows what the daemon has counted, and what its last status poll saw
  (`daemon.watch_interval`); `archiver_watch_age_seconds` says how old that is.
- **What is unknown is absent.** A gauge is never 0 because something is unknown; `archiver_lag_unknown_partitions` counts those.
- **Counters begin with 0 when the daemon starts** and only grow. They count what this process did, not what the deployment holds.
- **The number of series is bounded.** The first `metrics.partitions_max` topic partitions, in the order of their names, have series of
  their own; the others are one sum per topic with `partition="_other"` (of seconds: the greatest). Topics beyond `metrics.topics_max` are
  one topic, `_other`. With the defaults, three dependencies and no source a scrape has at most {series} series.
- Every daemon of a deployment reads the same logs, so each shows the same lag; what was archived, committed or cleaned is shown by
  the daemon that did it.

## What to alert on

`deploy/alerts/stream-archiver.rules.yaml` has these as rules, and some more.

| watch | because |
|---|---|
| `archiver_lag_seconds{stage="committed"}` | age of the oldest record that is not in its table: what users notice |
| `archiver_commit_age_seconds`, while `archiver_lag_records{stage="committed"}` is not 0 | records wait and nothing was committed |
| `archiver_topic_stuck`, `archiver_lag_unknown_partitions` | an operator must act |
| `archiver_dependency_up`, `archiver_ready` | something the daemon needs does not answer; the daemon continues by itself when it answers again |
| `archiver_audit_verdict`, `archiver_audit_age_seconds` | whether every offset is in its table exactly once, and when that was checked |
| `archiver_decode_errors_total` | a producer sends records that do not match the schema |
| `archiver_intake_queue_bytes` / `archiver_intake_queue_bytes_max` | near 1, senders wait |
| `archiver_control_topic_lag_seconds`, `archiver_control_topic_up` | control events wait, so triggers come late or not at all |
| `absent(archiver_build_info)`, `archiver_watch_age_seconds` | the daemon is gone, or shows old numbers |

`archiver_lag_seconds` of the stage `stable` alone grows while a transaction is open; `archived` and `committed` include it.
"""

ALIASES_HEAD = """
## Deprecated names

Exported for one release, with the value of the new name. Change queries of your own before the next release.

| name | kind | labels | shown by | meaning |
|---|---|---|---|---|
"""
LABELS_HEAD = """
## Labels

| label | values |
|---|---|
"""
TEXTS = {
    "topic": "a topic's name, or `_other`",
    "partition": "a number, or `_other`",
    "group": "the id of a consumer group",
    "dependency": "as `/readyz` names it, for example `metadata` or `catalog local`",
    "source": "the glob of a source in the configuration",
    "version": "this version",
    "python": "the version of Python",
}

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Where records are",
        (
            "archiver_lag_",
            "archiver_freshness_",
            "archiver_commit_age_",
            "archiver_topic_",
            "archiver_pending_",
        ),
    ),
    ("", ("archiver_held_", "archiver_aggregated_")),
    ("Consumer groups", ("archiver_group_",)),
    ("Archiving", ("archiver_archive_", "archiver_decode_", "archiver_commits_", "archiver_commit_")),
    ("Intake", ("archiver_intake_", "archiver_source_")),
    ("The daemon", ("archiver_",)),
    ("The process", ("process_",)),
)


def page() -> str:
    """The whole page."""
    limits = MetricsSettings()
    head = HEAD.replace(
        "{series}",
        f"{series_max(limits.partitions_max, limits.topics_max, 3, 0, limits.group_partitions_max):,}",
    )
    return head + "".join(_sections()) + LABELS_HEAD + "".join(_label(label) for label in LABELS)


def _sections() -> list[str]:
    left = {name: metric for name, metric in METRICS.items() if name not in ALIASES}
    parts: list[str] = []
    for title, prefixes in SECTIONS:
        here = [name for name in left if name.startswith(prefixes)]
        if title:
            parts.append(
                f"\n## {title}\n\n| name | kind | labels | shown by | meaning |\n|---|---|---|---|---|\n"
            )
        parts += [_row(name, left.pop(name)) for name in here]
    assert not left, left
    parts.append(ALIASES_HEAD)
    return parts + [_row(name, METRICS[name]) for name in ALIASES]


def _row(name: str, metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    shown = "every daemon" if metric.shown == "all" else f"role {metric.shown}"
    return f"| `{name}` | {metric.kind} | {labels} | {shown} | {metric.text} |\n"


def _label(label: str) -> str:
    values = LABELS[label]
    return (
        f"| `{label}` | {TEXTS[label] if values is None else ', '.join(f'`{value}`' for value in values)} |\n"
    )
