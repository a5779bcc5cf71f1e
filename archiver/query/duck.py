"""Runs one read-only query with DuckDB over the files of the configured tables.

A query can read only the files of its tables: no other file, network, extension, temporary file or Python
variable. It writes nothing, memory and threads are bounded, and Ctrl-C ends it. A view has the table's
current columns. A column is found in a file by its field id, as Iceberg demands; files without field ids, for
example from an external rewrite, are read by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.config.settings import TopicSettings
from archiver.config.types import format_size
from archiver.ledger.views import TopicLedger
from archiver.objects.path_normalization import key_of
from archiver.objects.store import ObjectStore
from archiver.query.columns import columns_by_id, columns_of, literal, quoted
from archiver.refine.prepare_topic import decide_schema, fetch_schemas
from archiver.registry.subjects import Fetch
from archiver.runtime.errors import ArchiverError, ConfigInvalid, Halt, InvalidInput, NotFound
from archiver.runtime.text import counted

if TYPE_CHECKING:
    import duckdb

# --- The tables of a query

_LOCAL = ("file://", "file:")
Copies = Callable[[Sequence[LiveFile]], list[str]]
"""Returns the paths of local copies, in the order of the files."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a table cannot be queried."""

    why: str
    gone: bool = False
    """Whether the table existed. It must not be treated as an empty one."""


def is_gone(ledger: TopicLedger | None) -> bool:
    """Whether a table that the catalog does not have existed: archives were committed to it."""
    return ledger is not None and ledger.table_uuid is not None and ledger.totals.files > 0


def gone_text(table: str, topic: str, ledger: TopicLedger) -> str:
    """Message for a table that is gone."""
    return (
        f"the table {table} is gone: {counted(ledger.totals.rows, 'row')} of topic {topic} went into "
        "it, and its catalog does not have it "
        "any more; it was dropped or renamed: rename it back or restore it"
    )


def query_tables(
    topics: Sequence[TopicSettings],
    names: Collection[str],
    tables: Callable[[str], Tables],
    ledger: Callable[[str], TopicLedger | None],
    fetch: Fetch,
    copies: Copies | None = None,
) -> tuple[list[QueryTable], dict[str, Trouble]]:
    """The configured tables in `names`, or all if a name is not configured; and why some cannot be queried.

    `ledger` returns a topic's part of the ledger, or None for a topic that the log does not have. `fetch`
    returns the schemas of topics without archives. `copies` returns local copies of files in a bucket; None
    without a bucket.
    """
    # Several topics under one name, because names are case-insensitive in DuckDB and have no catalog.
    configured: dict[str, list[TopicSettings]] = {}
    for topic in topics:
        if topic.archive.kind == "iceberg" and topic.archive.table is not None:
            configured.setdefault(topic.archive.table.lower(), []).append(topic)
    requested = {name.lower() for name in names}
    # SHOW TABLES names no table, and an unknown name may be a typo: DuckDB then needs all views.
    if not requested or not requested <= configured.keys():
        requested = set(configured)
    found: list[QueryTable] = []
    troubles: dict[str, Trouble] = {}
    for topic in (topic for name in sorted(requested) for topic in configured[name]):
        table = topic.archive.table or ""
        try:
            if len(configured[table.lower()]) > 1:
                raise Halt(
                    "several tables have that name; a query distinguishes neither catalogs nor upper and "
                    "lower case"
                )
            known = ledger(topic.name)
            asked = _table(topic, tables(topic.archive.catalog or ""), known, fetch, copies)
            if asked is None and known is not None:
                troubles[table] = Trouble(gone_text(table, topic.name, known), gone=True)
            elif asked is not None:
                found.append(asked)
        # A table that the query does not need must not prevent it.
        except ArchiverError as error:
            troubles[table] = Trouble(f"table {table} cannot be queried: {error}")
    return found, troubles


def _table(
    topic: TopicSettings, tables: Tables, ledger: TopicLedger | None, fetch: Fetch, copies: Copies | None
) -> QueryTable | None:
    """The present table, or the one that the first archive would create; None if it is gone."""
    identifier = parse_identifier(topic.archive.table or "")
    namespace, name = ".".join(identifier[:-1]), identifier[-1]
    view = tables.load(identifier)
    # An empty result would hide the loss.
    if view is None and is_gone(ledger):
        return None
    if view is None:
        return QueryTable(namespace, name, _future_schema(topic, ledger, fetch))
    return QueryTable(namespace, name, view.schema_json, tuple(_paths(tables, view, copies)))


def _future_schema(topic: TopicSettings, ledger: TopicLedger | None, fetch: Fetch) -> str:
    """Schema of a table that does not exist yet: from the ledger, else from the topic's newest schemas."""
    entry = None if ledger is None else ledger.schemas.get(ledger.schema_version)
    if entry is not None:
        return entry.iceberg_schema
    return decide_schema(topic.name, (), fetch_schemas(topic, None, fetch), None).schema.iceberg_json


def _paths(tables: Tables, view: TableView, copies: Copies | None) -> list[str]:
    """Paths of the live files; raises `Halt` for files with deleted rows and for files that are not local."""
    # Sorted, so that equal tables give rows in the same order.
    files = sorted(tables.live_files(view), key=lambda file: file.path)
    if any(file.has_deletes for file in files):
        raise Halt(
            "it has delete files, so its data files alone would show rows that were "
            "deleted; use Spark or Trino"
        )
    if copies is not None:
        return copies(files)
    prefixes = {
        file.path: next((prefix for prefix in _LOCAL if file.path.startswith(prefix)), None) for file in files
    }
    remote = next(
        (path for path, prefix in prefixes.items() if prefix is None and not path.startswith("/")), None
    )
    if remote is not None:
        raise Halt(f"{remote} is not a local file; use Spark or Trino")
    return [path.removeprefix(prefix or "") for path, prefix in prefixes.items()]


# --- Local copies of files in a bucket
FETCHED_MAX: Final = 1024**3
"""Most bytes of the files of one query. They need as much space in the spool folder."""
_CHUNK_BYTES: Final = 8 * 1024 * 1024


class FetchedFiles:
    """Local copies of files; each file is fetched once."""

    def __init__(self, objects: ObjectStore, bytes_max: int = FETCHED_MAX) -> None:
        self._objects = objects
        self._left = bytes_max
        self._bytes_max = bytes_max
        self._paths: dict[str, str] = {}

    def paths(self, files: Sequence[LiveFile]) -> list[str]:
        """Paths of the copies. Raises `Halt` for files that are too large together or outside the prefix, and
        what the store raises.
        """
        new = [file for file in files if file.path not in self._paths]
        # Checked before the first request: a query must not fill the disk.
        self._left -= sum(file.file_size for file in new)
        if self._left < 0:
            most = format_size(self._bytes_max)
            raise Halt(f"its files exceed {most}, the limit of a query over a bucket; use Spark or Trino")
        for file in new:
            self._paths[file.path] = self._fetched(file)
        return [self._paths[file.path] for file in files]

    def _fetched(self, file: LiveFile) -> str:
        key = key_of(self._objects, file.path)
        if key is None:
            raise Halt(f"{file.path} is outside of data.uri; use Spark or Trino")
        # The process removes its spool folder; after a crash the next process does
        # (`archiver/objects/spool.py`).
        target = self._objects.spool_dir() / f"query-{len(self._paths)}"
        try:
            with self._objects.open_input(key) as source, target.open("wb") as copy:
                while data := source.read(_CHUNK_BYTES):
                    copy.write(data)
        except (NotFound, OSError) as error:
            raise Halt(f"{file.path} cannot be fetched: {error}") from error
        return str(target)


# --- DuckDB
BATCH_ROWS = 1024
_INTERRUPT_EVERY_S = 0.1
VERSION_MIN = 2
"""Older versions find fields inside structs only by name."""
NOT_INSTALLED = (
    "`archiver query` needs DuckDB, which is not installed; install it with: pip install "
    "'stream-archiver[query]'"
)
TOO_OLD = (
    "`archiver query` needs DuckDB 2.0 or newer, this is {}; install it with: pip install --upgrade "
    "'stream-archiver[query]'"
)
READ_OPTIONS = "hive_partitioning = false, can_have_nan = true"
"""Options of `read_parquet`. Bounds in older archives and in external files ignore NaN. DuckDB orders NaN
above every number, so without the option it would skip row groups that have one."""
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
    duckdb = require_duckdb()
    with _Interruptible(duckdb) as database:
        try:
            found = database.run(lambda connection: connection.get_table_names(sql, qualified=True))
        # The error has a better place and text when the query runs.
        except duckdb.Error:
            return set()
    return {re.sub(r'"', "", name) for name in found}


@contextmanager
def asked(sql: str, tables: Sequence[QueryTable], limits: Limits) -> Iterator[Result]:
    """Run one SELECT over views of these tables; the result is valid inside the block.

    Raises `ConfigInvalid` if DuckDB is not installed, and `InvalidInput` for an invalid query. Raises `Halt`
    if a file cannot be read or the memory is too small.
    """
    duckdb = require_duckdb()
    with _Interruptible(duckdb) as database:
        # Before any view exists, so that only one SELECT can reach the files.
        _check_statement(duckdb, database, sql)
        _bound(database, limits)
        try:
            for table in tables:
                _view(database, table)
        except duckdb.Error as error:
            raise Halt(f"a table cannot be opened: {_words(error)}") from error
        # After the views, which need access to the files. No later statement can lift the restriction.
        _lock(database, tables)
        yield _run(duckdb, database, sql)


class _Interruptible:
    """A connection whose calls Ctrl-C can end: each call runs in a separate thread while the caller waits.

    DuckDB does not check for a signal while all its threads scan, which may take hours. In the main thread it
    raises `RuntimeError` for one. Nothing else in this module uses the connection.
    """

    def __init__(self, module: Any) -> None:
        self._connection: duckdb.DuckDBPyConnection = module.connect(":memory:")
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

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        return self.run(lambda connection: connection.execute(sql).fetchall())


def require_duckdb() -> Any:
    """The package DuckDB; raises `ConfigInvalid` if it is missing or too old."""
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
    # DESCRIBE, SHOW and SUMMARIZE have the type SELECT in DuckDB.
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
    # `read_parquet` with a schema finds columns only by field id.
    nameless = _without_ids(database, table.files)
    named = [path for path in table.files if path not in nameless]
    chosen = ", ".join(quoted(name) for name, _ in columns)
    parts = [f"SELECT {chosen} FROM {_by_id(named, table.schema_json)}"] if named else []  # noqa: S608 - every name is quoted
    # Without files, the part by name is the empty view.
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


def _run(duckdb: Any, database: _Interruptible, sql: str) -> Result:
    try:
        found = database.run(lambda connection: connection.sql(sql))
        columns = list(zip(found.columns, found.types, strict=True))
        reader = database.run(lambda _: found.to_arrow_reader(BATCH_ROWS))
    except duckdb.Error as error:
        raise _query_error(duckdb, error) from error
    names: list[str] = []
    for name, _ in columns:
        # Two columns of a query may have the same name; JSON output needs unique ones.
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
                # Strict: a map with a repeated key is an error, because a dictionary would drop an entry.
                *(column.to_pylist(maps_as_pydicts="strict") for column in batch.columns),
                strict=True,
            )
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise _query_error(duckdb, error) from error
    # KeyError: a map with a repeated key. TypeError: a map whose keys are structs, lists or maps.
    except (ValueError, KeyError, TypeError) as error:
        # The text of a KeyError is quoted as a key.
        why = error.args[0] if isinstance(error, KeyError) else error
        raise InvalidInput(f"a value of the result cannot be shown; cast it to text: {why}") from error


def _query_error(duckdb: Any, error: Exception) -> InvalidInput | Halt:
    """`InvalidInput` if the query is wrong, `Halt` if files, memory or DuckDB itself are the cause."""
    # Some errors arrive as Arrow errors, with DuckDB's class only in the text.
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
    # DuckDB expands wildcards in a path; a class of one character stands for itself.
    return re.sub(r"([*?\[])", r"[\1]", path)


def default_threads() -> int:
    """Number of cores that this process may use."""
    # Not `os.cpu_count`: a cpuset may allow fewer.
    return len(os.sched_getaffinity(0))
