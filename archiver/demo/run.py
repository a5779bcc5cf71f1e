"""Runs the demo: real data through the whole pipeline, from intake files to an audit.

The caller passes the function that opens an application from a configuration file, so that the demo uses the
same code as every other command. Only loading the data and the queries belong to the demo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from archiver.app.application import Application
from archiver.demo.flights import TOPICS, find_data, load_tables, pieces
from archiver.demo.report import DemoReport, Step, TableReport, ask
from archiver.demo.settings import CATALOG, prepare, table_name
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from archiver.runtime.text import counted
from intake.write.acknowledgements import PendingBatch

ACKNOWLEDGED_WITHIN_S = 60.0
"""Seconds. A closed writer has acknowledged everything; this limits the wait if it has not."""

Progress = Callable[[str], None]
"""Takes one line about work in progress."""


@dataclass
class _Run:
    """Progress lines and timing of one run."""

    clock: Clock
    progress: Progress
    steps: list[Step]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print the start of a step and measure its duration."""
        self.progress(f"[{len(self.steps) + 1}/5] {name}")
        begun = self.clock.monotonic_s()
        yield
        self.steps.append(Step(name, round(self.clock.monotonic_s() - begun, 1)))


def run_demo(
    directory: Path,
    open_application: Callable[[Path], Application],
    clock: Clock,
    progress: Progress,
) -> DemoReport:
    """Run the whole demo in `directory`, which is emptied if an earlier demo made it.

    Raises `InvalidInput` for a folder that no demo made or for missing data, and `Halt`, `RetryLater` or
    `OutcomeUnknown` of the pipeline.
    """
    # Before the folder is emptied, so that missing data destroys nothing.
    folder = find_data()
    run = _Run(clock, progress, [])
    configuration = prepare(directory)
    with run.step("reading the source data"):
        tables = load_tables(folder)
    with open_application(configuration) as application:
        with run.step("sending the data through the intake writer"):
            sent = _produce(application, tables, run)
        with run.step("archiving on Spark and committing to the tables"):
            _archive(application, progress)
        with run.step("querying the tables"):
            # The rows are read from the tables, not from counters of the demo.
            reports = tuple(_table_report(application, topic.name, sent[topic.name]) for topic in TOPICS)
            answers = tuple(ask({report.topic: report.uris for report in reports}))
        with run.step("auditing"):
            audit = application.maintenance.audit(None)
    return DemoReport(directory.resolve(), configuration, tuple(run.steps), reports, answers, audit)


def _produce(application: Application, tables: dict[str, pa.Table], run: _Run) -> dict[str, int]:
    """Send every record and wait for all acknowledgements; returns the number of records per topic."""
    sent = dict.fromkeys((topic.name for topic in TOPICS), 0)
    total = sum(tables[name].num_rows for name in sent)
    pending: list[PendingBatch] = []
    writer = application.intake.writer()
    next_line = total // 4
    try:
        for piece in pieces(tables):
            # Not awaited here: the writer batches records of many calls into one intake file.
            pending.append(writer.send_batch(piece.topic, piece.records))
            sent[piece.topic] += piece.records.num_rows
            done = sum(sent.values())
            if done >= next_line:
                run.progress(f"      {done:,} of {counted(total, 'record')} sent")
                next_line += total // 4
    finally:
        # `close` flushes and waits, so every acknowledgement is there or failed.
        writer.close()
    _check_acknowledged(pending)
    return sent


def _check_acknowledged(pending: Sequence[PendingBatch]) -> None:
    """Raise unless every record has an offset."""
    for batch in pending:
        found = batch.result(ACKNOWLEDGED_WITHIN_S)
        if found.outcome == "ok":
            continue
        # A batch has one verdict per record; the first of that outcome has the reason.
        why = next(verdict.error for verdict in found.verdicts if verdict.outcome == found.outcome)
        if found.outcome == "unknown":
            raise OutcomeUnknown(
                f"it is unknown whether some records of {found.topic} were stored ({why}); run the demo again"
            )
        raise RetryLater(
            f"some records of {found.topic} were not stored ({why}); correct that and run the demo again"
        )


def _archive(application: Application, progress: Progress) -> None:
    report = application.archiving.round(lambda text: progress(f"      {text}")).run(None, everything=True)
    # A round does not raise for a topic: it reports it and continues with the others.
    stuck = [*report.halted, *report.deferred]
    if stuck:
        raise Halt(
            "the demo could not archive everything: "
            + "; ".join(f"{item.topic}: {item.why}" for item in stuck)
        )


def _table_report(application: Application, topic: str, records: int) -> TableReport:
    view = application.table(topic)
    if view is None:
        raise Halt(f"topic {topic} was archived, but its table {table_name(topic)} is not in the catalog")
    files = application.live_files(CATALOG, view)
    return TableReport(
        topic=topic,
        table=table_name(topic),
        records=records,
        rows=sum(file.record_count for file in files),
        files=len(files),
        bytes=sum(file.file_size or 0 for file in files),
        metadata_location=view.metadata_location,
        uris=tuple(file.path for file in files),
    )
