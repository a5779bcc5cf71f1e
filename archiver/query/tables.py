"""Finds the files and the present schema of the configured tables, for a query.

The files of a table in a bucket are copied to this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.config.settings import TopicSettings
from archiver.config.types import format_size
from archiver.ledger.views import TopicLedger
from archiver.objects.path_normalization import key_of
from archiver.objects.store import ObjectStore
from archiver.query.duck import QueryTable
from archiver.refine.prepare_topic import decide_schema, fetch_schemas
from archiver.registry.subjects import Fetch
from archiver.runtime.errors import ArchiverError, Halt, NotFound, OutcomeUnknown, RetryLater
from archiver.runtime.text import counted

TABLES_SHOWN = 10
"""Tables that an error names; `archiver tables` lists all."""
_LOCAL = ("file://", "file:")
Copies = Callable[[Sequence[LiveFile]], list[str]]
"""Returns the paths of local copies, in the order of the files."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a table cannot be queried."""

    why: str
    gone: bool = False
    """Whether the table existed. It must not be treated as an empty one."""
    later: bool = False
    """Whether it may be queried later."""


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
    *,
    listed_max: int | None = None,
) -> tuple[list[QueryTable], dict[str, Trouble]]:
    """The configured tables in `names`, or all if a name is not configured; and why some cannot be queried.

    With `listed_max` only the tables in `names` are opened. If there are no names, so many of all tables can
    be listed and described, but not read. `ledger` returns a topic's part of the ledger, or None for a topic
    that the log does not have. `fetch` returns the schemas of topics without archives. `copies` returns local
    copies of files in a bucket; None without a bucket.
    """
    # Several topics under one name, because names are case-insensitive in DuckDB and have no catalog.
    configured: dict[str, list[TopicSettings]] = {}
    for topic in topics:
        if topic.archive.kind == "iceberg" and topic.archive.table is not None:
            configured.setdefault(topic.archive.table.lower(), []).append(topic)
    requested = {name.lower() for name in names}
    # SHOW TABLES names no table, and an unknown name may be a typo: DuckDB then needs all views.
    only_listed = listed_max is not None and not requested
    if listed_max is not None:
        requested = set(sorted(configured)[:listed_max]) if only_listed else requested & configured.keys()
    elif not requested or not requested <= configured.keys():
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
            asked = _table(topic, tables(topic.archive.catalog or ""), known, fetch, copies, only_listed)
            if asked is None and known is not None:
                troubles[table] = Trouble(gone_text(table, topic.name, known), gone=True)
            elif asked is not None:
                found.append(asked)
        # A table that the query does not need must not prevent it.
        except ArchiverError as error:
            later = isinstance(error, RetryLater | OutcomeUnknown)
            troubles[table] = Trouble(f"table {table} cannot be queried: {error}", later=later)
    return found, troubles


def hints(error: ArchiverError, names: Collection[str], topics: Sequence[TopicSettings]) -> list[str]:
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


def _table(
    topic: TopicSettings,
    tables: Tables,
    ledger: TopicLedger | None,
    fetch: Fetch,
    copies: Copies | None,
    only_listed: bool,
) -> QueryTable | None:
    """The present table, or the one that the first archive would create; None if it is gone."""
    identifier = parse_identifier(topic.archive.table or "")
    namespace, name = ".".join(identifier[:-1]), identifier[-1]
    view = tables.load(identifier)
    # An empty result would hide the loss.
    if view is None and is_gone(ledger):
        return None
    if view is None:
        return QueryTable(namespace, name, _future_schema(topic, ledger, fetch), is_readable=not only_listed)
    if only_listed:
        return QueryTable(namespace, name, view.schema_json, is_readable=False)
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

    def __init__(
        self,
        objects: ObjectStore,
        bytes_max: int = FETCHED_MAX,
        folder: Path | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Without a `folder`, the copies stay in the spool folder until the process ends. `check` is called
        for each piece of a file, and may raise to end the copy.
        """
        self._objects = objects
        self._folder = folder
        self._check = check
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
        target = (self._folder or self._objects.spool_dir()) / f"query-{len(self._paths)}"
        try:
            with self._objects.open_input(key) as source, target.open("wb") as copy:
                left = file.file_size
                while data := source.read(_CHUNK_BYTES):
                    self._check()
                    left -= len(data)
                    # The limit counts the sizes that the manifests state.
                    if left < 0:
                        raise Halt(f"{file.path} has more bytes than the table's metadata states")
                    copy.write(data)
        except (NotFound, OSError) as error:
            raise Halt(f"{file.path} cannot be fetched: {error}") from error
        return str(target)
