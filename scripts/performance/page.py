"""The page docs/performance.md: the aims of the project and what came of them, and a section for each
measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.performance import cost, intake, logs, reading, refinement, tables
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
    logs.sqlite,
    logs.etcd,
    logs.control_topic,
)
HEAD = """# Performance

Generated from `bench/results/` by `make docs`; do not edit. A bench replaces its result, and this page follows.

"""
HOW = """
    Figures are medians (minimum to maximum) of alternating runs: *0.73 (0.62 to 0.82)*. Compared variants alternate because on shared machines
    the same work takes up to 1.5 times as long from one minute to the next. The median decides whether a target was reached. Each section names
    its command, its result, the machine, its load (before or after the run, if measured), and versions. Requests to a bucket are in
    [operations/s3.md](operations/s3.md#requests), bytes and objects for planning in [operations/capacity.md](operations/capacity.md).
"""


def page(folder: Path = RESULTS) -> str:
    """The whole page, of the results in this folder."""
    results = results_in(folder)
    sections = [section(results) for section in SECTIONS]
    summary = table(
        ["aim", "what", "target", "measured", "verdict"],
        [aim.row() for section in sections for aim in section.aims],
    )
    return "\n".join([HEAD + paragraph(HOW), summary, *(section.text() for section in sections)])
