"""Three example queries over the demo's tables, executed by DuckDB on the files of their current
snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from archiver.runtime.errors import InvalidInput


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
        import duckdb
    except ImportError as error:
        raise InvalidInput(
            "the demo asks its questions with DuckDB, which is not installed: install the Python "
            "package duckdb"
        ) from error
    answers: list[Answer] = []
    with duckdb.connect() as connection:
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
    paths = ", ".join("'" + _local(uri).replace("'", "''") + "'" for uri in uris)
    # The name is one of our topics; the paths are quoted.
    return f'CREATE OR REPLACE VIEW "{name}" AS SELECT unnest("value"), kafka FROM read_parquet([{paths}])'  # noqa: S608


def _local(uri: str) -> str:
    """Path of a file URI; any other text unchanged."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri
