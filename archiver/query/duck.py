"""Runs one read-only query with DuckDB over the files of the configured tables.

A query can read only the files of its tables: no other file, network, extension, temporary file or Python
variable. It writes nothing, memory and threads are bounded, and Ctrl-C ends it. A view has the table's
current columns. A column is found in a file by its field id, as Iceberg demands; files without field ids, for
example from an external rewrite, are read by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from archiver.query.columns import columns_by_id, columns_of, dotted, fields_named, literal, quoted
from archiver.query.table_names import named
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput, LimitReached

if TYPE_CHECKING:
    import duckdb

BATCH_ROWS = 1024
_INTERRUPT_EVERY_S = 0.1
VERSION_MIN = 2
"""Older versions find fields inside structs only by name."""
NOT_INSTALLED = (
    "a query needs DuckDB, which is not installed; install it with: pip install 'stream-archiver[query]'"
)
TOO_OLD = (
    "a query needs DuckDB 2.0 or newer, this is {}; install it with: pip install --upgrade "
    "'stream-archiver[query]'"
)
READ_OPTIONS = "hive_partitioning = false, can_have_nan = true"
"""Options of `read_parquet`. Bounds in older archives and in external files ignore NaN. DuckDB orders NaN
above every number, so without the option it would skip row groups that have one."""
ONLY_SELECT = "only one SELECT is accepted (or DESCRIBE, SHOW, SUMMARIZE of a table): a query changes nothing"
ONLY_TABLES = "a query reads only tables, by their names: it opens no other file and no address"
"""One text whether the file exists or not."""
_CLOSED = {
    "enable_external_access": "false",
    # Otherwise a name in the query could read a variable of this process.
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Options of a connection that reaches nothing outside of it."""
_PARSE: Final = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true, skip_default := true)"
"""The parsed query as JSON. For one of 64 KiB it is a few MiB; without a SELECT it is an error in JSON."""
_PARSED: Final = '{"error":false,'
"""How the tree of a parsed query begins."""
_PARSED_MAX: Final = 100
_REFUSED: Final = (
    "WITH x AS (COPY (SELECT 1) TO 'x') FROM x",
    "FROM query(upper(''))",
    "FROM query($$FROM json_execute_serialized_sql('')$$)",
)
"""Queries that are refused only if the form of the tree is known here: a newer DuckDB may have another."""
_OWN_VIEWS: Final = (
    "SELECT view_name, schema_name || '.' || view_name, 'system.' || schema_name || '.' || view_name "
    "FROM duckdb_views() WHERE internal"
)
"""DuckDB's views of its own state, by each name."""
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
    is_readable: bool = True
    """Without it the table can be listed and described, and reading it is an error."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one query."""

    memory_bytes: int
    threads: int
    setting: str = "--memory"
    """What gives the query more memory, for messages."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a query."""

    columns: tuple[tuple[str, str], ...]
    """Unique name, and DuckDB type."""
    rows: Iterator[tuple[Any, ...]]
    """Python values, as Arrow gives them; read them before the connection is closed."""


def table_names(sql: str) -> set[str]:
    """Names of the tables in one SELECT, found by parsing alone. Raises `InvalidInput` for anything else."""
    duckdb = require_duckdb()
    with _Interruptible(duckdb, 1, _CLOSED) as database:
        names = _checked_names(duckdb, database, sql)
        own = {name for views in database.rows(_OWN_VIEWS) for name in views}
        return {name for name in names if name.lower() not in own}


@contextmanager
def asked(sql: str, tables: Sequence[QueryTable], limits: Limits) -> Iterator[Result]:
    """Run one SELECT over views of these tables; the result is valid inside the block.

    Raises `ConfigInvalid` if DuckDB is not installed, and `InvalidInput` for an invalid query. Raises `Halt`
    if a file cannot be read or the memory is too small.
    """
    duckdb = require_duckdb()
    with _Interruptible(duckdb, limits.threads) as database:
        # Before any view exists, so that only one SELECT can reach the files.
        _check_form(duckdb, database)
        _checked_names(duckdb, database, sql)
        _bound(database, limits)
        try:
            for table in tables:
                _view(database, table)
        except duckdb.Error as error:
            raise Halt(f"a table cannot be opened: {_words(error)}") from error
        # After the views, which need access to the files. No later statement can lift the restriction.
        _lock(database, tables)
        yield _run(duckdb, database, sql, tables, limits)


class _Interruptible:
    """A connection whose calls Ctrl-C can end: each call runs in a separate thread while the caller waits.

    DuckDB does not check for a signal while all its threads scan, which may take hours. In the main thread it
    raises `RuntimeError` for one. Nothing else in this module uses the connection.
    """

    def __init__(self, module: Any, threads: int, options: Mapping[str, str] | None = None) -> None:
        # Here and not later: a database begins with a thread for each core, whose stacks take address space.
        config = {"threads": max(1, threads), **(options or {})}
        self._connection: duckdb.DuckDBPyConnection = module.connect(":memory:", False, config)
        # One thread: a DuckDB connection must not run two statements at a time.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duckdb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt a running call, wait for its end, and close the connection."""
        try:
            # A call at the end of the queue: it is done when the calls before it are.
            behind = self._pool.submit(int)
            while wait([behind], _INTERRUPT_EVERY_S).not_done:
                # Repeated, because a statement that starts now has missed the previous interrupt.
                self._connection.interrupt()
            self._pool.shutdown()
        finally:
            self._connection.close()

    def run(self, work: Callable[[duckdb.DuckDBPyConnection], _Answer]) -> _Answer:
        """Run a call on the connection; returns or raises what it does."""
        return self._pool.submit(work, self._connection).result()

    def rows(self, sql: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement with these values."""
        return self.run(lambda connection: connection.execute(sql, values or None).fetchall())


def require_duckdb() -> Any:
    """The package DuckDB; raises `ConfigInvalid` if it is missing or too old."""
    try:
        import duckdb
    except ImportError as error:
        raise ConfigInvalid(NOT_INSTALLED) from error
    if int(duckdb.__version__.partition(".")[0]) < VERSION_MIN:
        raise ConfigInvalid(TOO_OLD.format(duckdb.__version__))
    return duckdb


def _checked_names(duckdb: Any, database: _Interruptible, sql: str) -> set[str]:
    """Names of the tables in one SELECT that changes nothing; raises `InvalidInput` for anything else."""
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("the query has characters that are not valid Unicode") from error
    try:
        statements = database.run(lambda connection: connection.extract_statements(sql))
    except duckdb.Error as error:
        raise InvalidInput(f"the query cannot be parsed: {_words(error)}") from error
    # DuckDB makes several statements of a PIVOT without values: it reads the table to find them.
    if len(statements) == 1 and statements[0].type == duckdb.StatementType.MULTI:
        raise InvalidInput(f"{ONLY_SELECT}; a PIVOT needs its values: PIVOT … ON column IN (value, …)")
    # DESCRIBE, SHOW and SUMMARIZE have the type SELECT in DuckDB.
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InvalidInput(ONLY_SELECT)
    try:
        return _names(database, sql)
    except duckdb.Error as error:
        raise Halt(f"the query cannot be checked: {_words(error)}") from error


def _check_form(duckdb: Any, database: _Interruptible) -> None:
    """Raise `Halt` if this version of DuckDB writes parsed queries in a form that is not known here: a query
    that writes files could run.
    """
    for sql in _REFUSED:
        with contextlib.suppress(InvalidInput):
            _names(database, sql)
            raise Halt(f"queries of DuckDB {duckdb.__version__} cannot be checked; install duckdb 2.0")


def _names(database: _Interruptible, sql: str) -> set[str]:
    names, left, parsed = set[str](), [sql], 0
    # A text in a query can hold a query again.
    while left:
        parsed += 1
        if parsed > _PARSED_MAX:
            raise InvalidInput(f"the query has more than {_PARSED_MAX - 1} queries as texts in it")
        tree = database.rows(_PARSE, [left.pop()])[0][0]
        if not tree.startswith(_PARSED):
            raise InvalidInput(f"the query cannot be parsed: {json.loads(tree)['error_message']}")
        found = named(tree)
        if found.refused is not None:
            raise InvalidInput(found.refused)
        names |= {".".join(parts) for parts in found.tables}
        left += found.queries
    return names


def _bound(database: _Interruptible, limits: Limits) -> None:
    settings = {
        "memory_limit": literal(f"{max(1, limits.memory_bytes // 2**20)}MiB"),
        # In DuckDB 2.0 this optimizer applies a filter on a struct field to the whole struct, which is an
        # internal error.
        "disabled_optimizers": "'late_materialization'",
        # Beyond the memory limit: an error instead of a temporary file.
        "temp_directory": "''",
        "TimeZone": "'UTC'",
        # Otherwise a name in the query could read a variable of this process.
        "python_enable_replacements": "false",
        # Extensions are code from the network.
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }
    for name, value in settings.items():
        database.rows(f"SET {name} = {value}")


def _view(database: _Interruptible, table: QueryTable) -> None:
    """Create a view with the table's current columns over its files."""
    columns = columns_of(table.schema_json)
    if not table.is_readable:
        _create_view(database, table, _unreadable(table, columns))
        return
    # `read_parquet` with a schema finds columns only by field id.
    nameless = _without_ids(database, table.files)
    named = [path for path in table.files if path not in nameless]
    chosen = ", ".join(quoted(name) for name, _ in columns)
    parts = [f"SELECT {chosen} FROM {_by_id(named, table.schema_json)}"] if named else []  # noqa: S608 - every name is quoted
    # Without files, the part by name is the empty view.
    parts += [_by_name(database, sorted(nameless), columns)] if nameless or not named else []
    _create_view(database, table, " UNION ALL ".join(parts))


def _create_view(database: _Interruptible, table: QueryTable, select: str) -> None:
    database.rows(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.namespace)}")
    database.rows(f"CREATE VIEW {quoted(table.namespace)}.{quoted(table.name)} AS {select}")


def _unreadable(table: QueryTable, columns: Sequence[tuple[str, str]]) -> str:
    """A view with the columns of the table, from which no row can be read."""
    # Not an empty view: a query that reads it would get a wrong answer. In the columns too, because a
    # condition on NULL alone would be false.
    why = f"the table {table.namespace}.{table.name} is not open: name it in the query, after FROM"
    error = f"error({literal(why)})"
    chosen = ", ".join(f"CAST({error} AS {duck_type}) AS {quoted(name)}" for name, duck_type in columns)
    return f"SELECT {chosen} WHERE {error} IS NULL"


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
    # A column that no file has is null.
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
    # Both spellings: DuckDB compares the text of the path, escaped or not.
    paths = sorted({name for table in tables for path in table.files for name in (path, _unglobbed(path))})
    database.rows(f"SET allowed_paths = [{', '.join(literal(path) for path in paths)}]")
    database.rows("SET enable_external_access = false")
    # Last, because it forbids every later SET.
    database.rows("SET lock_configuration = true")


def _run(
    duckdb: Any, database: _Interruptible, sql: str, tables: Sequence[QueryTable], limits: Limits
) -> Result:
    statement = _listing(tables) if _is_show_tables(sql) else sql
    try:
        found = database.run(lambda connection: connection.sql(statement))
        columns = list(zip(found.columns, found.types, strict=True))
        reader = database.run(lambda _: found.to_arrow_reader(BATCH_ROWS))
    except duckdb.Error as error:
        raise _query_error(duckdb, error, limits, tables) from error
    names: list[str] = []
    for name, _ in columns:
        # Two columns of a query may have the same name; JSON output needs unique ones.
        free = (name if not number else f"{name}_{number}" for number in range(len(columns)))
        names.append(next(candidate for candidate in free if candidate not in names))
    return Result(
        tuple((name, str(found_type)) for name, (_, found_type) in zip(names, columns, strict=True)),
        _rows(duckdb, reader, database, limits),
    )


def _is_show_tables(sql: str) -> bool:
    return sql.strip().removesuffix(";").lower().split() == ["show", "tables"]


def _listing(tables: Sequence[QueryTable]) -> str:
    # DuckDB itself would list only the schema `main`, which has no table.
    names = sorted(dotted(table.namespace, table.name) for table in tables)
    return f"SELECT unnest([{', '.join(map(literal, names))}]::VARCHAR[]) AS name"


def _rows(duckdb: Any, reader: Any, database: _Interruptible, limits: Limits) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    try:
        while (batch := database.run(lambda _: next(reader, None))) is not None:
            yield from zip(
                # Strict: a map with a repeated key is an error, because a dictionary would drop an entry.
                *(column.to_pylist(maps_as_pydicts="strict") for column in batch.columns),
                strict=True,
            )
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
        raise _query_error(duckdb, error, limits) from error
    # KeyError: a map with a repeated key. TypeError: a map whose keys are structs, lists or maps.
    # OverflowError: a date that Python does not have, such as one that is infinite.
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        # The text of a KeyError is quoted as a key.
        why = error.args[0] if isinstance(error, KeyError) else error
        raise InvalidInput(f"a value of the result cannot be shown; cast it to text: {why}") from error


def _query_error(
    duckdb: Any, error: Exception, limits: Limits, tables: Sequence[QueryTable] = ()
) -> InvalidInput | Halt:
    """`InvalidInput` if the query is wrong, `Halt` if files, memory or DuckDB itself are the cause."""
    # Some errors arrive as Arrow errors, with DuckDB's class only in the text.
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or any(
        text in str(error) for text in ("Out of Memory", "bad_alloc")
    ):
        return LimitReached(
            f"the query needs more memory than it may use; give it more with {limits.setting} "
            f"({_words(error).splitlines()[0]})"
        )
    if isinstance(error, duckdb.InternalException) or "INTERNAL Error" in str(error):
        return Halt(
            "internal error of duckdb, caused neither by the query nor by the files; "
            "rephrase the query, or use Spark "
            f"or Trino ({_words(error).splitlines()[0]})"
        )
    if isinstance(error, duckdb.PermissionException):
        return InvalidInput(ONLY_TABLES)
    if isinstance(error, duckdb.IOException | duckdb.FatalException):
        return Halt(f"the tables' files cannot be read: {_words(error)}")
    return InvalidInput(f"the query cannot be answered: {_named_words(error, tables)}")


def _words(error: Exception) -> str:
    """Message of DuckDB."""
    return str(error).strip()


_SUGGESTION = '\nDid you mean "'


def _named_words(error: Exception, tables: Sequence[QueryTable]) -> str:
    """Message of DuckDB; for an unknown name with what these tables have instead."""
    text = _words(error)
    head, _, suggested = text.partition(_SUGGESTION)
    if "Table with name " in head and " does not exist" in head:
        # Most suggestions are DuckDB's own system tables.
        name = suggested.partition('"')[0]
        similar = [one for one in tables if name in (one.name, f"{one.namespace}.{one.name}")]
        more = f"; a similar one is {dotted(similar[0].namespace, similar[0].name)}" if similar else ""
        return f"{head.rstrip('!.')}{more}"
    for before, after in _UNKNOWN_COLUMN:
        unknown = text.partition(before)[2].rpartition(after)[0]
        fields = {path: None for table in tables for path in fields_named(table.schema_json, unknown)}
        if unknown and fields:
            head = text.partition("\nCandidate bindings: ")[0].rstrip("!")
            return f"{head}; it is a field: write {' or '.join(list(fields)[:_FIELDS_SHOWN])}"
    return text


_UNKNOWN_COLUMN = (
    ('Referenced column "', '" not found in FROM clause!'),
    (' does not have a column named "', '"'),
)
"""Texts of DuckDB before and after the name of an unknown column."""
_FIELDS_SHOWN = 3


def _unglobbed(path: str) -> str:
    """A path with its wildcard characters escaped."""
    # DuckDB expands wildcards in a path; a class of one character stands for itself.
    return re.sub(r"([*?\[])", r"[\1]", path)


def default_threads() -> int:
    """Number of cores that this process may use."""
    # Not `os.cpu_count`: a cpuset may allow fewer.
    return len(os.sched_getaffinity(0))
