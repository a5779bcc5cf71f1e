"""Asks the demo's questions, and makes its report as values and as lines of text.

Every number was read from the tables or from the audit, not from counters of the demo.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from archiver.catalog.engines import spark_sql
from archiver.demo.settings import CATALOG, catalog_path
from archiver.objects.location import StorePlace
from archiver.runtime.errors import InvalidInput
from archiver.runtime.text import counted


@dataclass(frozen=True)
class Question:
    """A question and its SQL. Each topic is a view with the columns of its message."""

    text: str
    sql: str


@dataclass(frozen=True)
class Answer:
    """Result of a question."""

    question: Question
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


# --- Questions
QUESTIONS = (
    Question(
        "Which airlines leave late most often?",
        """
        SELECT airlines.name AS airline,
               count(*) AS flights,
               round(100.0 * count(*) FILTER (flights.departure_delay_minutes > 15) / count(*), 1)
                   AS late_percent,
               round(avg(flights.departure_delay_minutes), 1) AS mean_delay_minutes
        FROM flights JOIN airlines USING (carrier)
        WHERE flights.status <> 'FLIGHT_STATUS_CANCELLED'
        GROUP BY ALL HAVING count(*) >= 1000
        ORDER BY late_percent DESC, airline LIMIT 5
        """,
    ),
    Question(
        "How much does the weather matter?",
        """
        SELECT CASE WHEN weather.visibility_miles < 2 THEN 'visibility below 2 miles'
                    WHEN weather.precipitation_inches > 0.1 THEN 'heavy rain or snow'
                    WHEN weather.wind.gust_mph > 30 THEN 'gusts above 30 mph'
                    WHEN weather.precipitation_inches > 0 THEN 'some rain or snow'
                    ELSE 'fair' END AS weather,
               count(*) AS flights,
               round(100.0 * count(*) FILTER (flights.status = 'FLIGHT_STATUS_CANCELLED') / count(*), 1)
                   AS cancelled_percent,
               round(avg(flights.departure_delay_minutes), 1) AS mean_delay_minutes
        FROM flights JOIN weather
          ON flights.route.origin = weather.origin
         AND epoch_us(flights.scheduled_departure) // 3600000000 = epoch_us(weather.observed) // 3600000000
        GROUP BY 1 ORDER BY mean_delay_minutes DESC
        """,
    ),
    Question(
        "Which of the oldest planes still work hardest?",
        """
        SELECT planes.tail_number AS plane,
               planes.year_built::VARCHAR AS built,
               planes.manufacturer || ' ' || planes.model AS model,
               count(*) AS flights,
               mode(airports.name) AS most_often_to
        FROM flights JOIN planes USING (tail_number)
        LEFT JOIN airports ON airports.code = flights.route.destination
        WHERE planes.year_built < 1986 AND flights.status = 'FLIGHT_STATUS_ARRIVED'
        GROUP BY ALL ORDER BY flights DESC, plane LIMIT 5
        """,
    ),
)


def ask(files: Mapping[str, Sequence[str]], questions: Sequence[Question] = QUESTIONS) -> list[Answer]:
    """Answer all questions; `files` has the URIs of each topic's data files, at least one each."""
    try:
        # Imported here: DuckDB is optional, and only the demo and `archiver query` need it.
        import duckdb
    except ImportError as error:
        raise InvalidInput(
            "the demo asks its questions with DuckDB, which is not installed: install the Python "
            "package duckdb"
        ) from error
    answers: list[Answer] = []
    with duckdb.connect() as connection:
        # Few threads: the demo may run next to Spark on a laptop.
        connection.execute("SET threads = 2")
        for topic, uris in files.items():
            connection.execute(view_sql(topic, uris))
        for question in questions:
            result = connection.execute(question.sql)
            names = tuple(column[0] for column in result.description or ())
            answers.append(Answer(question, names, tuple(tuple(row) for row in result.fetchall())))
    return answers


def view_sql(name: str, uris: Sequence[str]) -> str:
    """SQL for a view over a topic's data files: the fields of the message, and the `kafka` column."""
    paths = ",\n  ".join("'" + _local(uri).replace("'", "''") + "'" for uri in uris)
    # The name is one of our topics; the paths are quoted.
    return (
        f'CREATE OR REPLACE VIEW "{name}" AS SELECT unnest("value"), kafka FROM read_parquet([\n'  # noqa: S608
        f"  {paths}])"
    )


def _local(uri: str) -> str:
    """Path of a file URI; any other text unchanged."""
    parts = urlsplit(uri)
    # DuckDB reads a path literally, so percent signs of a URI must be decoded.
    return unquote(parts.path) if parts.scheme == "file" else uri


# --- The report
REASONS_MAX = 5
"""Partitions that are not valid and are shown with a reason; `archiver audit` shows all."""


@dataclass(frozen=True)
class TableReport:
    """One table as its current snapshot describes it."""

    topic: str
    table: str
    records: int
    """Number of records sent to the topic."""
    rows: int
    files: int
    bytes: int
    metadata_location: str
    uris: tuple[str, ...]
    """URIs of its data files."""


@dataclass(frozen=True)
class Step:
    """One step of the demo and its duration."""

    name: str
    seconds: float


@dataclass(frozen=True)
class DemoReport:
    """All values of the report."""

    directory: Path
    configuration: Path
    steps: tuple[Step, ...]
    tables: tuple[TableReport, ...]
    answers: tuple[Answer, ...]
    audit: dict[str, object]
    """The document of `archiver audit --output json`."""

    @property
    def verdict(self) -> str:
        """The audit's verdict; invalid also if a table does not have as many rows as records were sent."""
        verdict = str(self.audit["verdict"])
        # The audit cannot see records that never reached the log.
        complete = all(table.rows == table.records for table in self.tables)
        return verdict if complete or verdict != "valid" else "invalid"

    def to_json(self) -> dict[str, object]:
        """The document of `demo --output json`."""
        return {
            "directory": str(self.directory),
            "configuration": str(self.configuration),
            "steps": [vars(step) for step in self.steps],
            "tables": [
                {
                    name: getattr(table, name)
                    for name in ("topic", "table", "records", "rows", "files", "bytes", "metadata_location")
                }
                for table in self.tables
            ],
            "answers": [
                {
                    "question": answer.question.text,
                    "columns": list(answer.columns),
                    "rows": [list(row) for row in answer.rows],
                }
                for answer in self.answers
            ],
            "verdict": self.verdict,
            "audit": self.audit,
        }

    def lines(self, archiver: str = "archiver", spark: str = "spark-sql") -> list[str]:
        """Lines for people; `archiver` and `spark` are the two commands as the user can call them."""
        page = ["", "Tables", *_tables(self.tables)]
        for answer in self.answers:
            page += ["", answer.question.text, *text_table(answer.columns, answer.rows)]
        took = ", ".join(f"{step.name} {step.seconds:.1f} s" for step in self.steps)
        page += ["", *_audit(self), f"Time: {took}", "", "Next commands", *further(self, archiver, spark)]
        return page


def further(report: DemoReport, archiver: str, spark_command: str) -> list[str]:
    """Commands to paste."""
    flights = next(table for table in report.tables if table.topic == "flights")
    configured = f"-c {shlex.quote(str(report.configuration))}"
    query = "SELECT value.status, count(*) FROM nyc.flights GROUP BY 1"
    properties = {"type": "sql", "uri": f"sqlite:///{catalog_path(report.directory)}"}
    spark = spark_sql(
        CATALOG, properties, StorePlace((report.directory / "data").as_uri()), query, spark_command
    )
    return [
        f"  {archiver} consume {configured} --topic flights --partition 0 --max 3 --decode",
        f"  {archiver} audit {configured}",
        f"  {archiver} tables {configured}     (has lines for Trino, Spark SQL and DuckDB)",
        f"  {archiver} ledger show {configured}",
        "  DuckDB (its shell, or duckdb.sql(...) in Python):",
        *(f"    {line}" for line in f"{view_sql('flights', flights.uris)};".splitlines()),
        "    SELECT status, count(*) FROM flights GROUP BY 1;",
        (
            "  Spark SQL (fetches Iceberg's runtime at the first start; leaves derby.log and metastore_db "
            "in the current folder):"
        ),
        *(f"    {line}" for line in spark),
    ]


def text_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A plain table: numbers right-aligned, text left-aligned, two blanks between columns."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[place]) for line in [list(columns), *cells]) for place in range(len(columns))]
    right = [
        # A column without rows has no type; its heading is aligned as text.
        bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        for place in range(len(columns))
    ]

    def aligned(line: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if end else text.ljust(width)
            for text, width, end in zip(line, widths, right, strict=True)
        )
        return ("  " + "  ".join(padded)).rstrip()

    return [aligned(columns), aligned(["-" * width for width in widths]), *(aligned(line) for line in cells)]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _tables(tables: Sequence[TableReport]) -> list[str]:
    rows: list[tuple[object, ...]] = [
        (item.table, item.rows, item.files, item.bytes, round(item.bytes / max(1, item.rows), 1))
        for item in tables
    ]
    rows.append(
        (
            "all",
            sum(item.rows for item in tables),
            sum(item.files for item in tables),
            sum(item.bytes for item in tables),
            None,
        )
    )
    lines = text_table(("table", "rows", "files", "bytes", "bytes/row"), rows)
    short = [item for item in tables if item.rows != item.records]
    return lines + [
        f"  {item.table} holds {counted(item.rows, 'row')}, but {counted(item.records, 'record')} went "
        f"to {item.topic}"
        for item in short
    ]


def _audit(report: DemoReport) -> list[str]:
    partitions = report.audit["partitions"]
    assert isinstance(partitions, list)
    lines = [
        (
            f"Audit: {report.verdict} ({len(partitions)} topic partitions: is every offset in its table "
            "exactly once?)"
        )
    ]
    wrong = [item for item in partitions if item["verdict"] != "valid"]
    lines += [
        f"  {item['topic']} partition {item['partition']}: {item['verdict']}: {item['why']}"
        for item in wrong[:REASONS_MAX]
    ]
    return lines
