"""Selects the tables of a query and their live files.

A table that cannot be queried is left out with the reason; the others can still be queried. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from archiver.catalog.tables import LiveFile, Tables, TableView, parse_identifier
from archiver.config.settings import TopicSettings
from archiver.ledger.views import TopicLedger
from archiver.query.duck import QueryTable
from archiver.refine.prepare_topic import decide_schema, fetch_schemas
from archiver.registry.fetched import Fetch
from archiver.runtime.errors import ArchiverError, Halt
from archiver.runtime.text import counted

_LOCAL = ("file://", "file:")
Copies = Callable[[Sequence[LiveFile]], list[str]]
"""Returns the paths of local copies, in the order of the files."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a table cannot be queried."""

    why: str
    gone: bool = False
    """The table existed and is gone, so it must not be taken for an empty one."""


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
    configured = {
        topic.archive.table.lower(): topic
        for topic in topics
        if topic.archive.kind == "iceberg" and topic.archive.table is not None
    }
    counts = [topic.archive.table for topic in topics if topic.archive.kind == "iceberg"]
    requested = {name.lower() for name in names}
    if not requested or not requested <= configured.keys():
        requested = set(configured)
    found: list[QueryTable] = []
    troubles: dict[str, Trouble] = {}
    for topic in (configured[name] for name in sorted(requested)):
        table = topic.archive.table or ""
        try:
            if counts.count(table) > 1:
                raise Halt("several catalogs have a table of that name")
            known = ledger(topic.name)
            asked = _table(topic, tables(topic.archive.catalog or ""), known, fetch, copies)
            if asked is None and known is not None:
                troubles[table] = Trouble(gone_text(table, topic.name, known), gone=True)
            elif asked is not None:
                found.append(asked)
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
