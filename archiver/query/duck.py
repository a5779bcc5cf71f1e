"""Runs one read-only query with DuckDB over the files of the tables.

A query can read only the given files: no other file, network, extension, temporary file or Python variable.
It writes nothing, memory and threads are bounded, and Ctrl-C ends it. A view has the table's current columns.
By Iceberg's rules a column is found in a file by its field id, not by its name or former number type. A
column that an older file does not have is null. Files without field ids, for example from an external
rewrite, are read by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from archiver.query.columns import columns_by_id, columns_of, literal, quoted
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput

if TYPE_CHECKING:
    import duckdb

BATCH_ROWS = 1024
_INTERRUPT_EVERY_S = 0.1
VERSION_MIN = 2
NOT_INSTALLED = (
    "`archiver query` needs DuckDB, which is not installed; install it with: pip install "
    "'stream-archiver[query]'"
)
TOO_OLD = (
    "`archiver query` needs DuckDB 2.0 or newer, this is {}; install it with: pip install --upgrade "
    "'stream-archiver[query]'"
)
"""Older versions find fields inside structs only by name."""
READ_OPTIONS = "hive_partitioning = false, can_have_nan = true"
"""Options of `read_parquet`. Bounds in older archives and in external files ignore NaN. DuckDB orders NaN
above every number, so without the option it would skip row groups that have one.
"""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class QueryTable:
    """A table to query."""

    namespace: str
    name: str
    schema_json: str
    """Iceberg schema."""
    files: tuple[str, ...] = ()
    """Paths of the live data files; without files the view is empty."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one query."""

    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a query."""

    columns: tuple[tuple[str, str], ...]
    """Unique name, and DuckDB type."""
    rows: Iterator[tuple[Any, ...]]
    """Python values, as Arrow gives them; read them before the connection is closed."""


def table_names(sql: str) -> set[str]:
    """Table names as the query writes them; empty if DuckDB cannot parse it."""
    duckdb = _duckdb()
    with _Interruptible(duckdb) as database:
        try:
            found = database.run(lambda connection: connection.get_table_names(sql, qualified=True))
        except duckdb.Error:
            return set()
    return {re.sub(r'"', "", name) for name in found}


@contextmanager
def asked(sql: str, tables: Sequence[QueryTable], limits: Limits) -> Iterator[Result]:
    """Run one SELECT over views of these tables; the result is valid inside the block.

    Raises `ConfigInvalid` if DuckDB is not installed, `InvalidInput` for an invalid query, and `Halt` if a
    file cannot be read or the memory is too small.
    """
    duckdb = _duckdb()
    with _Interruptible(duckdb) as database:
        _check_statement(duckdb, database, sql)
        _bound(database, limits)
        try:
            for table in tables:
                _view(database, table)
        except duckdb.Error as error:
            raise Halt(f"a table cannot be opened: {_words(error)}") from error
        _lock(database, tables)
        yield _run(duckdb, database, sql)


class _Interruptible:
    """A connection whose calls Ctrl-C can end: each call runs in a separate thread while the caller waits.

    DuckDB does not check for a signal while all its threads scan, which may take hours. In the main thread it
    raises `RuntimeError` for one. Nothing else in this module uses the connection.
    """

    def __init__(self, module: Any) -> None:
        self._connection: duckdb.DuckDBPyConnection = module.connect(":memory:")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duckdb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt a running call, wait for its end, and close the connection."""
        try:
            behind = self._pool.submit(int)  # done when the calls before it are
            while wait([behind], _INTERRUPT_EVERY_S).not_done:
                # repeated, because a statement that starts now has missed the previous interrupt
                self._connection.interrupt()
            self._pool.shutdown()
        finally:
            self._connection.close()

    def run(self, work: Callable[[duckdb.DuckDBPyConnection], _Answer]) -> _Answer:
        """Run a call on the connection; returns or raises what it does."""
        return self._pool.submit(work, self._connection).result()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        return self.run(lambda connection: connection.execute(sql).fetchall())


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigInvalid(NOT_INSTALLED) from error
    if int(duckdb.__version__.partition(".")[0]) < VERSION_MIN:
        raise ConfigInvalid(TOO_OLD.format(duckdb.__version__))
    return duckdb


def _check_statement(duckdb: Any, database: _Interruptible, sql: str) -> None:
    try:
        statements = database.run(lambda connection: connection.extract_statements(sql))
    except duckdb.Error as error:
        raise InvalidInput(f"the query cannot be parsed: {_words(error)}") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InvalidInput(
            "only one SELECT is accepted (or DESCRIBE, SHOW, SUMMARIZE of a table): a query changes nothing"
        )


def _bound(database: _Interruptible, limits: Limits) -> None:
    settings = {
        "memory_limit": literal(f"{max(1, limits.memory_bytes // 2**20)}MiB"),
        "threads": str(max(1, limits.threads)),
        # In DuckDB 2.0 this optimizer applies a filter on a struct field to the whole struct, which is an
        # internal error.
        "disabled_optimizers": "'late_materialization'",
        "temp_directory": "''",  # beyond the memory limit: an error instead of a temporary file
        "TimeZone": "'UTC'",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }
    for name, value in settings.items():
        database.rows(f"SET {name} = {value}")


def _view(database: _Interruptible, table: QueryTable) -> None:
    """Create a view with the table's current columns over its files."""
    columns = columns_of(table.schema_json)
    nameless = _without_ids(database, table.files)
    named = [path for path in table.files if path not in nameless]
    chosen = ", ".join(quoted(name) for name, _ in columns)
    parts = [f"SELECT {chosen} FROM {_by_id(named, table.schema_json)}"] if named else []  # noqa: S608 - every name is quoted
    parts += [_by_name(database, sorted(nameless), columns)] if nameless or not named else []
    database.rows(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.namespace)}")
    database.rows(
        f"CREATE VIEW {quoted(table.namespace)}.{quoted(table.name)} AS {' UNION ALL '.join(parts)}"
    )


def _without_ids(database: _Interruptible, files: Sequence[str]) -> set[str]:
    """Files in which no column has a field id; reads their footers one after another."""
    if not files:
        return set()
    ids = f"SELECT file_name FROM parquet_schema({_listed(files)}) GROUP BY 1 HAVING count(field_id) = 0"  # noqa: S608 - every path is quoted
    return {row[0] for row in database.rows(ids)}


def _by_id(files: Sequence[str], schema_json: str) -> str:
    return f"read_parquet({_listed(files)}, {READ_OPTIONS}, schema = {columns_by_id(schema_json)})"


def _by_name(database: _Interruptible, files: Sequence[str], columns: Sequence[tuple[str, str]]) -> str:
    source = (
        f" FROM read_parquet({_listed(files)}, union_by_name = true, {READ_OPTIONS})"
        if files
        else " WHERE false"
    )
    there = {row[0] for row in database.rows(f"DESCRIBE SELECT *{source}")} if files else set()
    chosen = ", ".join(
        f"CAST({quoted(name) if name in there else 'NULL'} AS {duck_type}) AS {quoted(name)}"
        for name, duck_type in columns
    )
    return f"SELECT {chosen}{source}"


def _listed(files: Sequence[str]) -> str:
    return f"[{', '.join(literal(_unglobbed(path)) for path in files)}]"


def _lock(database: _Interruptible, tables: Sequence[QueryTable]) -> None:
    """Restrict the connection to these files, and lock that setting."""
    paths = sorted({name for table in tables for path in table.files for name in (path, _unglobbed(path))})
    database.rows(f"SET allowed_paths = [{', '.join(literal(path) for path in paths)}]")
    database.rows("SET enable_external_access = false")
    database.rows("SET lock_configuration = true")


def _run(duckdb: Any, database: _Interruptible, sql: str) -> Result:
    try:
        found = database.run(lambda connection: connection.sql(sql))
        columns = list(zip(found.columns, found.types, strict=True))
        reader = database.run(lambda _: found.to_arrow_reader(BATCH_ROWS))
    except duckdb.Error as error:
        raise _query_error(duckdb, error) from error
    names: list[str] = []
    for name, _ in columns:
        free = (name if not number else f"{name}_{number}" for number in range(len(columns)))
        names.append(next(candidate for candidate in free if candidate not in names))
    return Result(
        tuple((name, str(found_type)) for name, (_, found_type) in zip(names, columns, strict=True)),
        _rows(duckdb, reader, database),
    )


def _rows(duckdb: Any, reader: Any, database: _Interruptible) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    try:
        while (batch := database.run(lambda _: next(reader, None))) is not None:
            yield from zip(
                *(column.to_pylist(maps_as_pydicts="strict") for column in batch.columns), strict=True
            )
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise _query_error(duckdb, error) from error
    except ValueError as error:
        raise InvalidInput(f"a value of the result cannot be shown; cast it to text: {error}") from error


def _query_error(duckdb: Any, error: Exception) -> InvalidInput | Halt:
    """`InvalidInput` if the query is wrong, `Halt` if files, memory or DuckDB itself are the cause."""
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
        return Halt(
            "the query needs more memory than it may use; give it more with --memory "
            f"({_words(error).splitlines()[0]})"
        )
    if isinstance(error, duckdb.InternalException) or "INTERNAL Error" in str(error):
        return Halt(
            "internal error of duckdb, caused neither by the query nor by the files; "
            "rephrase the query, or use Spark "
            f"or Trino ({_words(error).splitlines()[0]})"
        )
    if isinstance(error, duckdb.IOException | duckdb.FatalException):
        return Halt(f"the tables' files cannot be read: {_words(error)}")
    return InvalidInput(f"the query cannot be answered: {_words(error)}")


def _words(error: Exception) -> str:
    """Message of DuckDB, without suggestions of its system tables."""
    suggestions = ('Did you mean "pg_catalog.', 'Did you mean "information_schema.')
    return "\n".join(
        line for line in str(error).splitlines() if not line.lstrip().startswith(suggestions)
    ).strip()


def _unglobbed(path: str) -> str:
    """A path with its wildcard characters escaped."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def default_threads() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
