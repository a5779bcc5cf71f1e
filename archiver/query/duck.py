"""DuckDB over the tables' files: one question, read-only.

Owns the connection and what it is forbidden. Promises that a query reads the files it was given and nothing
else: no other file, no network, no extension, no temporary file, no variable of the process; that nothing is
written; that memory and threads are bounded; and that Ctrl-C ends it. A view has the table's current columns.
As Iceberg wants it, a column is found in a file by its field id, whatever the file calls it and whichever
number type it had then; what a file does not have, because it is older, is null. Files without field ids,
which somebody else's rewriting can leave, are read by name.
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
"""Older ones find what is inside of structs by name only."""
READ_OPTIONS = "hive_partitioning = false, can_have_nan = true"
"""Of `read_parquet`. Older archives, and files that others wrote, have minima and maxima that leave NaN out;
DuckDB orders NaN above every number, and would skip the row groups that hold one.
"""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class QueryTable:
    """A table to ask."""

    namespace: str
    name: str
    schema_json: str
    """Iceberg's."""
    files: tuple[str, ...] = ()
    """Paths of the live data files; none: the view is empty."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may use."""

    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a query gave."""

    columns: tuple[tuple[str, str], ...]
    """Name, unlike any other's, and DuckDB's type."""
    rows: Iterator[tuple[Any, ...]]
    """Python values, as Arrow gives them; read them before the connection is closed."""


def table_names(sql: str) -> set[str]:
    """The tables that a query names, as it writes them; empty if that cannot be told."""
    duckdb = _duckdb()
    with _Interruptible(duckdb) as database:
        try:
            found = database.run(lambda connection: connection.get_table_names(sql, qualified=True))
        except duckdb.Error:
            return set()
    return {re.sub(r'"', "", name) for name in found}


@contextmanager
def asked(sql: str, tables: Sequence[QueryTable], limits: Limits) -> Iterator[Result]:
    """Run one SELECT over views of these tables; the result is of use inside of the block.

    Raises `ConfigInvalid` if DuckDB is not installed, `InvalidInput` for a query that is none or does not
    fit, `Halt` if a file cannot be read or the memory does not suffice.
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
    """A connection whose every call can be ended by Ctrl-C: each runs in a thread of its own while the caller
    waits.

    DuckDB does not look for a signal while all its threads scan, which may take hours; and what it raises in
    the main thread for one that it sees is a `RuntimeError`. Nothing else in this module touches the
    connection.
    """

    def __init__(self, module: Any) -> None:
        self._connection: duckdb.DuckDBPyConnection = module.connect(":memory:")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duckdb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt what still runs, wait for its end, and close the connection."""
        try:
            behind = self._pool.submit(int)  # done when the calls before it are
            while wait([behind], _INTERRUPT_EVERY_S).not_done:
                # repeated: a statement that begins only now has missed the one before
                self._connection.interrupt()
            self._pool.shutdown()
        finally:
            self._connection.close()

    def run(self, work: Callable[[duckdb.DuckDBPyConnection], _Answer]) -> _Answer:
        """What a call on the connection returns or raises."""
        return self._pool.submit(work, self._connection).result()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows that a statement gives."""
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
        raise InvalidInput(f"the query is not understood: {_words(error)}") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InvalidInput(
            "only one SELECT can be asked (or DESCRIBE, SHOW, SUMMARIZE of a table): nothing is changed here"
        )


def _bound(database: _Interruptible, limits: Limits) -> None:
    settings = {
        "memory_limit": literal(f"{max(1, limits.memory_bytes // 2**20)}MiB"),
        "threads": str(max(1, limits.threads)),
        # In DuckDB 2.0 its filter on a field of a struct meets the whole struct, and the query ends in an
        # internal error.
        "disabled_optimizers": "'late_materialization'",
        "temp_directory": "''",  # what does not fit into memory is an error, not a file
        "TimeZone": "'UTC'",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }
    for name, value in settings.items():
        database.rows(f"SET {name} = {value}")


def _view(database: _Interruptible, table: QueryTable) -> None:
    """A view with the table's current columns over its files."""
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
    """The files in which no column has a field id; their footers are read one after the other."""
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
    """From here on nothing but these files can be touched, and nobody can change that."""
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
        raise _asked_wrongly(duckdb, error) from error
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
        raise _asked_wrongly(duckdb, error) from error
    except ValueError as error:
        raise InvalidInput(f"a value of the result cannot be shown; cast it to text: {error}") from error


def _asked_wrongly(duckdb: Any, error: Exception) -> InvalidInput | Halt:
    """Whose fault it is: the question's, or the files' and the machine's."""
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
        return Halt(
            "the query needs more memory than it may use; give it more with --memory "
            f"({_words(error).splitlines()[0]})"
        )
    if isinstance(error, duckdb.InternalException) or "INTERNAL Error" in str(error):
        return Halt(
            "duckdb failed inside, which is a fault of DuckDB and neither of the query nor of the "
            "files; ask in other words, or ask Spark "
            f"or Trino ({_words(error).splitlines()[0]})"
        )
    if isinstance(error, duckdb.IOException | duckdb.FatalException):
        return Halt(f"the tables' files cannot be read: {_words(error)}")
    return InvalidInput(f"the query cannot be answered: {_words(error)}")


def _words(error: Exception) -> str:
    """The message of DuckDB, without suggestions of its own system tables."""
    suggestions = ('Did you mean "pg_catalog.', 'Did you mean "information_schema.')
    return "\n".join(
        line for line in str(error).splitlines() if not line.lstrip().startswith(suggestions)
    ).strip()


def _unglobbed(path: str) -> str:
    """A path in which no character stands for others."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def default_threads() -> int:
    """As many as this process may use."""
    return len(os.sched_getaffinity(0))
