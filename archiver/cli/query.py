"""`archiver query`: SQL over the tables' current snapshots, executed by DuckDB, in several formats."""

from __future__ import annotations

import enum
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.completion import complete_sql
from archiver.cli.options import ConfigOption, application
from archiver.cli.output import print_cells, progress, width_of_output
from archiver.query.values import csv_line, faithful, readable, table_width, vertical_block
from archiver.runtime.errors import Halt, InvalidInput
from archiver.runtime.exit_codes import FINE
from archiver.runtime.redaction import redacted
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.query.duck import Result


class QueryOutput(enum.StrEnum):
    """Output format of a query."""

    TABLE = "table"
    VERTICAL = "vertical"
    CSV = "csv"
    JSON = "json"
    TEXT = "text"


ROWS_MAX = 1000
BLOCKS_MAX = 100
"""Rows of a table that is printed vertically because it does not fit the terminal."""


def query(
    sql: Annotated[
        str,
        typer.Argument(
            help="One SELECT; tables are named as in the configuration: shop.orders.",
            autocompletion=complete_sql,
        ),
    ],
    config: ConfigOption = None,
    output: Annotated[
        QueryOutput | None,
        typer.Option(
            "--output",
            help="table, or vertical (a line for each column, for wide rows), for people; csv (with a "
            "header) or json for programs; text is the same as table.",
            show_default="table; vertical if the terminal is too narrow for the table",
        ),
    ] = None,
    rows_max: Annotated[
        int | None,
        typer.Option(
            "--max-rows",
            min=0,
            help="Maximum number of rows to print; 0: all.",
            show_default=f"{ROWS_MAX}; {BLOCKS_MAX} if the terminal is too narrow for the table",
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", help="Memory limit of the query; it fails beyond.")
    ] = "1GiB",
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="Threads that the query may use; 0: one per core.")
    ] = 0,
) -> int:
    """Query the tables with SQL, in DuckDB. It needs `pip install 'stream-archiver[query]'`, reads only the
    files of the tables and writes nothing.
    """
    from archiver.config.types import parse_size

    # DuckDB is an optional dependency, so it is imported by this command only.
    from archiver.query.duck import Limits, asked, default_threads, table_names
    from archiver.query.tables import hints

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
            cut = _print(result, rows_max, output)
    except InvalidInput as error:
        # A table that could not be opened is unknown to DuckDB; its own reason explains more.
        named = [trouble for name, trouble in troubles.items() if name.lower() in sql.lower()]
        gone = [trouble.why for trouble in named if trouble.gone]
        if gone:
            raise Halt("; ".join(gone)) from error
        raise InvalidInput(
            "; ".join([str(error), *(trouble.why for trouble in named), *hints(error, names, topics)])
        ) from error
    for trouble in troubles.values():
        if trouble.gone:
            progress(trouble.why)
    if cut is not None:
        progress(f"cut off after {counted(cut, 'row')}; --max-rows 0 prints all")
    return FINE


def _print(result: Result, limit: int | None, output: QueryOutput | None) -> int | None:
    """Print the result; returns after how many rows it was cut off."""
    rows_max = ROWS_MAX if limit is None else limit
    if output is QueryOutput.JSON:
        cut = _print_json(result, rows_max)
    elif output is QueryOutput.CSV:
        cut = _print_csv(result, rows_max)
    elif output is QueryOutput.VERTICAL:
        names = [name for name, _ in result.columns]
        _print_vertical(names, itertools.islice(result.rows, rows_max or None))
        cut = _is_cut(result, rows_max)
    else:
        return _print_table(result, rows_max, is_fixed=output is not None, is_limited=limit is not None)
    return rows_max if cut else None


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
    cut = _is_cut(result, rows_max)
    sys.stdout.write(f'\n], "cut": {json.dumps(cut)}}}\n')
    return cut


def _print_csv(result: Result, rows_max: int) -> bool:
    """Print the rows one by one, values as they are; returns whether rows were left out."""
    sys.stdout.write(csv_line(name for name, _ in result.columns))
    for row in itertools.islice(result.rows, rows_max or None):
        sys.stdout.write(csv_line(row))
    return _is_cut(result, rows_max)


def _print_vertical(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    number, width = 0, width_of_output()
    for number, row in enumerate(rows, 1):
        sys.stdout.write(redacted(vertical_block(number, names, row, width)))
    print(counted(number, "row"))


def _print_table(result: Result, rows_max: int, *, is_fixed: bool, is_limited: bool) -> int | None:
    """Print a table, or vertically if it is wider than the terminal and not `is_fixed`: then fewer rows, if
    their number is not `is_limited`. Returns after how many rows it was cut off.
    """
    names = [name for name, _ in result.columns]
    rows = list(itertools.islice(result.rows, rows_max or None))
    cut = rows_max if _is_cut(result, rows_max) else None
    cells = [[redacted(readable(value)) for value in row] for row in rows]
    # A single column is not easier to read vertically.
    is_free = not is_fixed and len(names) > 1 and sys.stdout.isatty()
    if is_free and table_width(names, cells) > width_of_output():
        shown = rows if is_limited else rows[:BLOCKS_MAX]
        _print_vertical(names, shown)
        return len(shown) if len(shown) < len(rows) else cut
    numeric = {
        position
        for position, values in enumerate(zip(*rows, strict=True))
        if all(value is None or _is_number(value) for value in values) and any(map(_is_number, values))
    }
    print_cells(counted(len(rows), "row"), names, cells, numeric)
    return cut


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_cut(result: Result, rows_max: int) -> bool:
    """Whether there are more rows, after so many were read."""
    # One more row is requested, because only that shows whether the output is complete.
    return bool(rows_max) and next(result.rows, None) is not None
