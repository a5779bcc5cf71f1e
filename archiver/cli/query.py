"""`archiver query`: SQL over the tables' current snapshots, executed by DuckDB, as text or JSON."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import math
import sys
import uuid
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.completion import complete_sql
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_table, progress
from archiver.runtime.errors import Halt, InvalidInput
from archiver.runtime.exit_codes import FINE
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.config.settings import TopicSettings
    from archiver.query.duck import Result

# --- Values of DuckDB as JSON.
# Beyond this number, readers of JSON that use doubles lose digits.
EXACT_MAX = 2**53


def faithful(value: object) -> object:
    """Convert a value for `json.dumps`."""
    # `bool` before `int`, because it is a subclass.
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -EXACT_MAX <= value <= EXACT_MAX else str(value)
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            # JSON has no such numbers; Protobuf's JSON form writes these texts.
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == 0:
        return faithful(int(value))  # DuckDB's sum of integers is such a decimal
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        # ISO 8601.
        return f"PT{value.total_seconds():f}S"
    if isinstance(value, Mapping):
        return {_key(name): faithful(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [faithful(item) for item in value]
    return str(value)


def _key(name: object) -> str:
    """Key of a map as text, formatted as in JSON."""
    if isinstance(name, bool):
        return "true" if name else "false"
    return str(faithful(name))


def _moment(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    # In UTC, so that the output does not depend on the zone of the machine.
    return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


# --- The command.
ROWS_MAX = 1000
TABLES_SHOWN = 10
"""Tables that an error names; `archiver tables` lists all."""


def query(
    sql: Annotated[
        str,
        typer.Argument(
            help="One SELECT; tables are named as in the configuration: shop.orders.",
            autocompletion=complete_sql,
        ),
    ],
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    rows_max: Annotated[
        int, typer.Option("--max-rows", min=0, help="Maximum number of rows to print; 0: all.")
    ] = ROWS_MAX,
    memory: Annotated[
        str, typer.Option("--memory", help="Memory limit of the query; it fails beyond.")
    ] = "1GiB",
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="Threads that the query may use; 0: one per core.")
    ] = 0,
) -> int:
    """Query the tables with SQL (DuckDB; `pip install 'stream-archiver[query]'`). It reads only the files of
    the tables and writes nothing.
    """
    from archiver.config.types import parse_size

    # DuckDB is an optional dependency, so it is imported by this command only.
    from archiver.query.duck import Limits, asked, default_threads, table_names

    try:
        limits = Limits(parse_size(memory), threads or default_threads())
    except ValueError as error:
        raise InvalidInput(f"--memory {memory}: {error}") from error
    # Only the tables of the query are opened: each costs requests to its catalog.
    names = table_names(sql)
    with application(config) as app:
        tables, troubles = app.query_tables(names)
        topics = app.settings.topics
    try:
        with asked(sql, tables, limits) as result:
            cut = _print_json(result, rows_max) if output is Output.JSON else _print_text(result, rows_max)
    except InvalidInput as error:
        # A table that could not be opened is unknown to DuckDB; its own reason explains more.
        named = [trouble for name, trouble in troubles.items() if name.lower() in sql.lower()]
        gone = [trouble.why for trouble in named if trouble.gone]
        if gone:
            raise Halt("; ".join(gone)) from error
        raise InvalidInput(
            "; ".join([str(error), *(trouble.why for trouble in named), *_hints(error, names, topics)])
        ) from error
    for trouble in troubles.values():
        if trouble.gone:
            progress(trouble.why)
    if cut:
        progress(f"cut off after {counted(rows_max, 'row')}; --max-rows 0 prints all")
    return FINE


def _hints(error: InvalidInput, names: Collection[str], topics: Sequence[TopicSettings]) -> list[str]:
    """Names to use instead, for a query that names a topic or a table that does not exist."""
    of_topics = [
        f"topic {topic.name} has no table (archive.kind: {topic.archive.kind})"
        if topic.archive.table is None
        else f"the table of topic {topic.name} is {topic.archive.table}"
        for topic in topics
        if topic.name in names
    ]
    known = sorted({topic.archive.table for topic in topics if topic.archive.table is not None})
    unknown = {name.casefold() for name in names} - {name.casefold() for name in known}
    if of_topics or not unknown or "does not exist" not in str(error):
        return of_topics
    more = f", and {len(known) - TABLES_SHOWN} more" if len(known) > TABLES_SHOWN else ""
    return [
        f"the tables are {', '.join(known[:TABLES_SHOWN])}{more}"
        if known
        else "the configuration has no table"
    ]


def _print_json(result: Result, rows_max: int) -> bool:
    """Print the document row by row, so that one row is in memory; returns whether rows were left out."""
    names = [name for name, _ in result.columns]
    columns = [{"name": name, "type": duck_type} for name, duck_type in result.columns]
    sys.stdout.write(f'{{"columns": {json.dumps(columns, ensure_ascii=False)}, "rows": [')
    lead = "\n"
    for row in itertools.islice(result.rows, rows_max or None):
        document = {name: faithful(value) for name, value in zip(names, row, strict=True)}
        sys.stdout.write(lead + json.dumps(document, ensure_ascii=False))
        lead = ",\n"
    # One more row is requested, because only that shows whether the output is complete.
    cut = bool(rows_max) and next(result.rows, None) is not None
    sys.stdout.write(f'\n], "cut": {json.dumps(cut)}}}\n')
    return cut


def _print_text(result: Result, rows_max: int) -> bool:
    rows = list(itertools.islice(result.rows, rows_max or None))
    cut = bool(rows_max) and next(result.rows, None) is not None
    print_table(
        f"{len(rows):,} row{'' if len(rows) == 1 else 's'}",
        [name for name, _ in result.columns],
        [[_cell(v) for v in row] for row in rows],
    )
    return cut


def _cell(value: object) -> object:

    shown = faithful(value)
    return json.dumps(shown, ensure_ascii=False) if isinstance(shown, dict | list) else shown
