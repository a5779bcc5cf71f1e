"""Archiving with the real log, store, ledger and catalog, and refinement in the process of the test instead
of Spark.

One `Driver` is one process's application on a deployment's folder; several may stand on the same folder. Its
clock is the system's, plus what the test adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.publish.report import ArchiveReport
from archiver.publish.round import ArchiveRun, Refine
from archiver.publish.scope import Scope
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import PlanResult, RefineJob, pack, unpack_result, unpack_task
from archiver.runtime import failpoints
from archiver.runtime.clock import SystemClock
from archiver.stream.records import StreamRecord
from intake.records import Record
from intake.write.acknowledgements import Acknowledgement
from tests.support.builders.deployment import Deployment

WAIT_S = 30.0


class AheadClock(SystemClock):
    """The system's clock and what a test adds to it; both hands move, so no writer takes it for a step."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.ahead_s * 1e6)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def refine_here(job: RefineJob) -> list[PlanResult]:
    """The job in this process; tasks and results are packed as on their way to a worker and back."""
    return [
        unpack_result(pack(result))
        for descriptor in job.descriptors()
        for result in run_bundle(unpack_task(pack(descriptor)))
    ]


class Driver:
    """One process's archiver."""

    def __init__(self, deployment: Deployment, clock: AheadClock | None = None) -> None:
        self.deployment = deployment
        self.clock = clock or AheadClock()
        self.reported: list[str] = []
        """Lines of progress."""
        self.jobs: list[RefineJob] = []
        """What was asked of refinement."""
        self.application = Application(load_settings(deployment.config, {}), {}, self.clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything, as the end of a process does."""
        failpoints.arm("")
        self.application.close()

    def run(self, refine: Refine = refine_here) -> ArchiveRun:
        """A run that refines with `refine`."""

        def noted(job: RefineJob) -> Sequence[PlanResult]:
            self.jobs.append(job)
            return refine(job)

        made = self.application.archiving.round(self.reported.append)
        return replace(made, refine=noted, cores=lambda: 2)

    def archive(
        self, scope: Scope | None = None, *, everything: bool = True, refine: Refine = refine_here
    ) -> ArchiveReport:
        """Archive all stable records, or what is due."""
        return self.run(refine).run(scope, everything=everything)

    def send(
        self, topic: str, values: Sequence[bytes | None], partition: int | None = None
    ) -> list[Acknowledgement]:
        """Send values, in one intake file if they are few."""
        with self.application.intake.writer() as writer:
            pending = [writer.send(topic, Record(None, value), partition) for value in values]
            writer.flush()
        return [one.result(WAIT_S) for one in pending]

    def topic_id(self, topic: str) -> Any:
        """A topic's id."""
        return self.application.topic(topic).topic_id

    def records(self, topic: str) -> dict[int, list[StreamRecord]]:
        """Every committed record of a topic, per partition; offsets are checked to be dense, but for those of
        aborted transactions."""
        state, stream, intake = (
            self.application.topic(topic),
            self.application.stream(),
            self.application.backlog(),
        )
        found = {
            partition: list(stream.read(state.topic_id, partition)) for partition in range(state.partitions)
        }
        for partition, records in found.items():
            tp = (state.topic_id, partition)
            gaps = {
                offset
                for low, high in intake.gaps(tp, 0, intake.next_offset(tp))
                for offset in range(low, high)
            }
            assert [record.offset for record in records] == [
                offset for offset in range(intake.stable_offset(tp)) if offset not in gaps
            ]
        return found

    def watermarks(self, topic: str) -> dict[int, int]:
        """As the ledger has them, without zeros."""
        return {
            partition: end
            for partition, end in self.application.ledger().topic(self.topic_id(topic)).watermarks.items()
            if end
        }

    def audit(self) -> dict[str, Any]:
        """The audit's document."""
        return self.application.maintenance.audit(None)

    def check_complete(self, *topics: str) -> None:
        """Valid, and nothing of these topics is left to archive."""
        document = self.audit()
        assert document["verdict"] == "valid", document
        for item in document["partitions"]:
            if item["topic"] in topics:
                gaps = sum(high - low for low, high in item["gaps"])
                assert item["watermark"] == item["stable"] == item["next"] == item["rows"] + gaps, item
                assert item["pending"] == [], item


@contextmanager
def catalog_table(deployment: Deployment, name: str) -> Any:
    """The table as pyiceberg sees it, for external changes."""
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{deployment.root}/catalog.db?timeout=60")
    try:
        yield catalog.load_table(name)
    finally:
        catalog.close()


def append_nothing(table: Table) -> None:
    """A snapshot of an external client that changes no row."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass


def spoiled(wanted: Callable[[PlanResult], bool], error: Any, why: str = "spoilt by the test") -> Refine:
    """Refinement in which the given plans fail."""

    def refine(job: RefineJob) -> list[PlanResult]:
        return [
            replace(result, files=(), error=error, why=why) if wanted(result) else result
            for result in refine_here(job)
        ]

    return refine


def properties_of(deployment: Deployment, name: str) -> Mapping[str, str]:
    """A table's properties."""
    with catalog_table(deployment, name) as table:
        found: dict[str, str] = dict(table.properties)
        return found
