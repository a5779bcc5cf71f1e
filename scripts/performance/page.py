"""The page docs/performance.md: a table of targets and results, and a section for each measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.performance import cost, intake, kafka, logs, reading, refinement, tables
from scripts.performance.measured import Results, results_in
from scripts.performance.sections import Section
from scripts.performance.words import paragraph, table

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
SECTIONS: tuple[Callable[[Results], Section], ...] = (
    refinement.limit,
    reading.peers,
    reading.freshness,
    reading.partitions,
    refinement.late_store,
    tables.growth,
    tables.long_log,
    tables.backlog,
    refinement.memory,
    reading.compaction,
    cost.cost,
    refinement.deep_audit,
    refinement.schema,
    refinement.edge,
    intake.writer,
    intake.partitions,
    intake.acknowledgement,
    intake.mirror,
    kafka.listener,
    kafka.fetch,
    kafka.workers,
    kafka.record_batch,
    logs.sqlite,
    logs.etcd,
    logs.group_offsets,
    logs.control_topic,
)
HEAD = """# Performance

Generated from `bench/results/` by `make docs`; do not edit. A bench that runs again replaces its result and this page.

"""
HOW = """
    Figures are medians, with the minimum and maximum of the repetitions in parentheses: *0.73 (0.62 to 0.82)*. The median decides whether a
    target was reached. Compared variants alternate, because on a shared machine the same work takes up to 1.5 times as long from one minute to
    the next. A *core-second* is one second of CPU time, summed over all processes that are counted. Each section names its command, its result
    file, the machine and the versions. The load average, if recorded, is from before or after the run.
    [operations/s3.md](operations/s3.md#requests) lists the requests to a bucket.
    [operations/capacity.md](operations/capacity.md) gives bytes and objects for capacity planning.
"""


def page(folder: Path = RESULTS) -> str:
    """The whole page, from the results in this folder."""
    results = results_in(folder)
    sections = [section(results) for section in SECTIONS]
    summary = table(
        ["area", "figure", "target", "measured", "verdict"],
        [aim.row() for section in sections for aim in section.aims],
    )
    return "\n".join([HEAD + paragraph(HOW), summary, *(section.text() for section in sections)])
