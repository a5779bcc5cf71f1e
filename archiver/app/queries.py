"""Queries of the console: SQL over the tables, each in a process of its own, and their results for some
minutes.

A query belongs to the reader that started it. It can reach only tables of topics that this reader may read:
its process never learns of the others. Everything is bounded: queries, time, memory, rows and bytes.
"""

from __future__ import annotations

import functools
import json
import logging
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from archiver.config.daemon import HttpSettings
from archiver.query.bounded_query import BoundedQuery, QueryLimits, Stopped, require_installed
from archiver.query.columns import dotted
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    ConfigInvalid,
    Halt,
    InvalidInput,
    LimitReached,
    NotAllowed,
    NotFound,
    RetryLater,
)
from archiver.runtime.ids import IdSource
from archiver.runtime.redaction import MESSAGE_MAX, excerpt, redacted_document
from archiver.runtime.rfc3339 import format_time

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import TopicSettings
    from archiver.query.duck import QueryTable

_log = logging.getLogger(__name__)

RUNNING_MAX: Final = 2
"""Maximum of queries that run at the same time."""
OPEN_MAX: Final = 10
"""Maximum of queries that run or wait."""
OPEN_MAX_OF_ONE: Final = 4
"""Maximum of queries that run or wait of one reader."""
WAITING_S: Final = 60.0
"""Longest time that a query waits for its turn."""
KEPT_S: Final = 600.0
"""Time for which a result is kept."""
KEPT_MAX: Final = 50
KEPT_MAX_OF_ONE: Final = 10
"""Maximum of ended queries that are kept of one reader: the next one replaces its oldest."""
KEPT_BYTES_MAX: Final = 32 * 2**20
"""Maximum of bytes of all results that are kept."""
ANSWER_BYTES_MAX: Final = 4 * 2**20
"""Maximum of bytes of a result; further rows are left out."""
SQL_BYTES_MAX: Final = 64 * 1024
LISTED_MAX: Final = 100
"""Maximum of tables that a query without a name of a table can list and describe."""
_LISTING: Final = ("show", "describe", "information_schema", "duckdb_", "pragma_", "pg_")
"""Parts of queries that list or describe tables."""
THREADS: Final = 2
"""Threads of one query."""

State = Literal["waiting", "running", "done", "failed", "cancelled"]
_ENDED: Final = ("done", "failed", "cancelled")
_NO_ANSWER: Final = b'{"columns":[],"rows":[],"cut":null}'
CELLS_SHOWN_MAX: Final = 5_000
"""Maximum of cells of a part of a result, if it has more than one row."""
CHARACTERS_SHOWN_MAX: Final = 400_000
"""The same for the characters of its values."""


@dataclass(slots=True)
class _Query:
    """One query. Its fields change only under the lock of `Queries`."""

    query_id: str
    owner: str | None
    sql: str
    rows_max: int
    topics: frozenset[str] | None
    """Topics that the owner may read; None: all."""
    started_us: int
    started_s: float
    state: State = "waiting"
    running_s: float | None = None
    """When it began to run."""
    ended_s: float | None = None
    answer: bytes = _NO_ANSWER
    """Columns and rows as JSON: text takes less memory than objects, and its size is known."""
    row_count: int = 0
    error: ArchiverError | None = None
    process: BoundedQuery | None = None
    ended: Future[None] = field(default_factory=Future)


class Queries:
    """Runs queries, and keeps their results. Safe for several threads."""

    def __init__(
        self, application: Callable[[], Application | None], http: HttpSettings, clock: Clock, ids: IdSource
    ) -> None:
        """`application` is None while it is not open."""
        self._application = application
        self._http = http
        self._clock = clock
        self._ids = ids
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """A query has ended, or its turn may have come."""
        self._queries: dict[str, _Query] = {}
        """By id, the oldest first."""
        self._running = 0
        self._runs_of = Counter[str | None]()
        """Running queries by owner; without those that have none."""
        self._closed = False

    def close(self) -> None:
        """Cancel all queries."""
        with self._lock:
            self._closed = True
            running = list(self._queries.values())
        for query in running:
            self._stop(query, "cancelled", RetryLater("the daemon stops, and the query is cancelled"))

    # --- What a reader does
    def limits(self) -> dict[str, Any]:
        """The limits of a query, and why there is none, if so."""
        try:
            require_installed()
        except ConfigInvalid as error:
            return {**self._limits(), "unavailable": str(error)}
        return {**self._limits(), "unavailable": None}

    def tables(self, topics: Collection[str] | None) -> list[dict[str, Any]]:
        """Tables of these topics (None: of all), as a query names them."""
        found = (
            {"table": one.archive.table, "topic": one.name, "sql": _in_sql(one.archive.table)}
            for one in self._opened().settings.topics
            if one.archive.table is not None
            and one.archive.kind == "iceberg"
            and (topics is None or one.name in topics)
        )
        return sorted(found, key=lambda one: str(one["table"]))

    def topics(self) -> list[str]:
        """Topics with a table."""
        return [one.name for one in self._opened().settings.topics if one.archive.kind == "iceberg"]

    def start(self, owner: str | None, sql: str, rows_max: int, topics: frozenset[str] | None) -> str | None:
        """Id of a new query over the tables of these topics (None: of all); None if too many are open."""
        self._opened()
        if not sql.strip():
            raise InvalidInput("there is no query: write one SELECT")
        if len(sql.encode("utf-8", "surrogatepass")) > SQL_BYTES_MAX:
            raise InvalidInput(f"the query has more than {SQL_BYTES_MAX} bytes")
        require_installed()
        now_us, now_s = self._clock.now_us(), self._clock.monotonic_s()
        query = _Query(self._ids.random_bytes(16).hex(), owner, sql, rows_max, topics, now_us, now_s)
        with self._lock:
            if self._closed:
                raise RetryLater("the daemon stops")
            self._forget(now_s)
            still_open = [one for one in self._queries.values() if not one.ended.done()]
            of_owner = sum(one.owner == owner for one in still_open)
            if len(still_open) >= OPEN_MAX or of_owner >= OPEN_MAX_OF_ONE:
                return None
            self._queries[query.query_id] = query
        # A daemon thread: a catalog that does not answer must not delay the end of the process.
        thread = threading.Thread(target=self._run, args=(query,), name="http-query", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._withdraw(query)
            raise RetryLater(f"the query cannot run now: {error}") from error
        return query.query_id

    def _withdraw(self, query: _Query) -> None:
        """Remove a query that has no thread: at the head of the queue it would stop all others."""
        with self._changed:
            self._queries.pop(query.query_id, None)
            self._set_ended(query, "cancelled", None)
            query.ended.set_result(None)

    def list(self, owner: str | None) -> list[dict[str, Any]]:
        """The reader's queries without results, the newest first."""
        with self._lock:
            self._forget(self._clock.monotonic_s())
            found = [self._summary(one) for one in self._queries.values() if one.owner == owner]
        return found[::-1]

    def document(
        self, owner: str | None, query_id: str, may_read: Callable[[str], bool], first: int, rows_max: int
    ) -> dict[str, Any]:
        """One query with a part of its result, from the row `first` on. Raises `NotFound` for an unknown
        query, and for one of another reader. `may_read` says which topics the reader may read now.
        """
        summary, answer = self._found(owner, query_id, may_read)
        result = json.loads(answer)
        most = max(1, min(rows_max, CELLS_SHOWN_MAX // max(1, len(result["columns"]))))
        rows: list[Any] = []
        left = CHARACTERS_SHOWN_MAX
        for row in result["rows"][first : first + most]:
            left -= len(json.dumps(row))
            if rows and left < 0:
                break
            rows.append(row)
        part: dict[str, Any] = redacted_document(summary) | result | {"first": first, "rows": rows}
        return part

    def encoded(self, owner: str | None, query_id: str, may_read: Callable[[str], bool]) -> bytes:
        """The document with all rows as JSON; raises as `document`."""
        summary, answer = self._found(owner, query_id, may_read)
        head = json.dumps(redacted_document(summary) | {"first": 0}, separators=(",", ":")).encode()
        # Joined as text, because parsing megabytes would block other requests.
        return head[:-1] + b"," + answer[1:]

    def _found(
        self, owner: str | None, query_id: str, may_read: Callable[[str], bool]
    ) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            self._forget(self._clock.monotonic_s())
            query = self._of(owner, query_id)
            # A rule may have changed since the query has run.
            if query.topics is not None and not all(map(may_read, query.topics)):
                raise NotAllowed("this reader may read fewer topics than before; run the query again")
            return self._summary(query), query.answer

    def cancel(self, owner: str | None, query_id: str) -> None:
        """End a query that waits or runs; nothing happens to one that has ended."""
        with self._lock:
            query = self._of(owner, query_id)
        self._stop(query, "cancelled", InvalidInput("the query was cancelled"))

    def error(self, owner: str | None, query_id: str) -> ArchiverError | None:
        """Why it has no result."""
        with self._lock:
            return self._of(owner, query_id).error

    def ended(self, owner: str | None, query_id: str) -> Future[None]:
        """Done when the query has ended, and its process too."""
        with self._lock:
            return self._of(owner, query_id).ended

    # --- One query, in a thread
    def _run(self, query: _Query) -> None:
        begins = self._begins(query)
        try:
            if begins:
                self._answer(query)
        except Stopped:
            # `_stop` has set the state.
            pass
        except ArchiverError as error:
            self._end(query, "failed", error)
        except Exception:  # noqa: BLE001
            # The head of the work: the daemon continues.
            _log.exception("a query ended in an unexpected error")
            self._end(query, "failed", Halt("an error in the daemon; its log says more"))
        finally:
            with self._changed:
                self._running -= begins
                # Only the positive counts stay: the keys are the readers with a running query.
                self._runs_of -= Counter({query.owner: int(begins)})
                query.ended.set_result(None)
                self._forget(self._clock.monotonic_s())
                self._changed.notify_all()

    def _begins(self, query: _Query) -> bool:
        """Wait for the turn of the query; whether it was not cancelled before."""
        with self._changed:
            while query.state == "waiting" and not self._is_next(query):
                left_s = query.started_s + WAITING_S - self._clock.monotonic_s()
                if left_s <= 0:
                    why = f"the query got no turn within {WAITING_S:g} s, because others run; ask again later"
                    self._set_ended(query, "failed", RetryLater(why))
                self._changed.wait(max(left_s, 0.0))
            if query.state != "waiting":
                return False
            query.state, query.running_s = "running", self._clock.monotonic_s()
            self._running += 1
            self._runs_of[query.owner] += 1
            # There may be room for the next one too.
            self._changed.notify_all()
            return True

    def _is_next(self, query: _Query) -> bool:
        waiting = [one for one in self._queries.values() if one.state == "waiting"]
        # Readers without a running query come first, so that one reader cannot take all places.
        idle = [one for one in waiting if one.owner not in self._runs_of]
        return self._running < RUNNING_MAX and (idle or waiting)[0] is query

    def _answer(self, query: _Query) -> None:
        limit_s, app = self._http.query_time_max, self._opened()
        why = LimitReached(
            f"the query took longer than {limit_s:g} s (http.query_time_max): let it read less, for example "
            "with a condition on kafka.ingest_timestamp, or use Spark or Trino"
        )
        limits = QueryLimits(limit_s, self._http.query_memory_max, query.rows_max, ANSWER_BYTES_MAX, THREADS)
        timer = threading.Timer(limit_s, self._stop, (query, "failed", why))
        timer.daemon = True
        try:
            with BoundedQuery(query.sql, limits) as process:
                with self._lock:
                    query.process = process
                timer.start()
                # It may have been cancelled before there was a process.
                self._check(query)
                result = self._asked(app, query, process)
        except OSError as error:
            # Too many processes, or no memory for one: the state of the machine.
            raise RetryLater(f"the query cannot run now: {error}") from error
        finally:
            timer.cancel()
            with self._lock:
                query.process = None
        # Errors of libraries and settings in a table's content may carry a secret.
        encoded = json.dumps(redacted_document(result), ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            if query.state not in _ENDED:
                query.answer = encoded.encode("utf-8", "backslashreplace")
                query.row_count = len(result["rows"])
        self._end(query, "done", None)

    def _asked(self, app: Application, query: _Query, process: BoundedQuery) -> dict[str, Any]:
        names = process.names()
        settings = [one for one in app.settings.topics if query.topics is None or one.name in query.topics]
        unknown = _unknown(names, settings)
        if unknown and query.topics is not None:
            raise NotAllowed(
                f"{query.owner} may not read {', '.join(unknown)}, or there is no such table; a rule in "
                "kafka.acls can allow it"
            )
        with _copies(app) as folder:
            check = functools.partial(self._check, query)
            tables, troubles = app.tables_of_query(
                names, query.topics, check, folder=folder, listed_max=_listed_max(query.sql)
            )
            if troubles and names:
                reasons = "; ".join(trouble.why for trouble in troubles.values())
                later = all(trouble.later for trouble in troubles.values())
                raise RetryLater(reasons) if later else Halt(reasons)
            return _result(process, tables, names, settings)

    def _check(self, query: _Query) -> None:
        with self._lock:
            if query.state in _ENDED:
                raise Stopped

    # --- States
    def _stop(self, query: _Query, state: State, error: ArchiverError | None) -> None:
        """End the query from another thread: at once for the reader, and its process with it."""
        with self._lock:
            is_open = query.state not in _ENDED
            if is_open:
                self._set_ended(query, state, error)
            process = query.process
        if is_open and process is not None:
            process.stop()

    def _end(self, query: _Query, state: State, error: ArchiverError | None) -> None:
        with self._lock:
            if query.state not in _ENDED:
                self._set_ended(query, state, error)

    def _set_ended(self, query: _Query, state: State, error: ArchiverError | None) -> None:
        query.state, query.error, query.ended_s = state, error, self._clock.monotonic_s()
        self._changed.notify_all()

    def _forget(self, now_s: float) -> None:
        """Remove old results until the others are within their bounds; the caller holds the lock."""
        ended = [one for one in self._queries.values() if one.ended_s is not None and one.ended.done()]
        kept_bytes, kept, of_owner = 0, 0, dict[str | None, int]()
        for query in sorted(ended, key=lambda one: one.ended_s or 0.0, reverse=True):
            of_owner[query.owner] = of_owner.get(query.owner, 0) + 1
            kept_bytes, kept = kept_bytes + len(query.answer), kept + 1
            if (
                now_s - (query.ended_s or now_s) > KEPT_S
                or kept > KEPT_MAX
                or kept_bytes > KEPT_BYTES_MAX
                or of_owner[query.owner] > KEPT_MAX_OF_ONE
            ):
                del self._queries[query.query_id]

    # --- Documents
    def _summary(self, query: _Query) -> dict[str, Any]:
        now_s = self._clock.monotonic_s()
        ended_s = now_s if query.ended_s is None else query.ended_s
        return {
            "id": query.query_id,
            "sql": query.sql,
            "state": query.state,
            "limit": query.rows_max,
            "started": format_time(query.started_us),
            "waited_seconds": round(
                (ended_s if query.running_s is None else query.running_s) - query.started_s, 3
            ),
            "seconds": None if query.running_s is None else round(ended_s - query.running_s, 3),
            "row_count": query.row_count,
            "error": None if query.error is None else excerpt(str(query.error), MESSAGE_MAX),
        }

    def _of(self, owner: str | None, query_id: str) -> _Query:
        query = self._queries.get(query_id)
        # The same answer for a query of another reader: whether it exists is not said.
        if query is None or query.owner != owner:
            raise NotFound(
                f"there is no such query; results are kept for {KEPT_S / 60:g} minutes, and fewer of them if "
                "there are many"
            )
        return query

    def _limits(self) -> dict[str, Any]:
        return {
            "seconds_max": self._http.query_time_max,
            "memory_max": self._http.query_memory_max,
            "answer_bytes_max": ANSWER_BYTES_MAX,
            "kept_seconds": KEPT_S,
        }

    def _opened(self) -> Application:
        application = self._application()
        if application is None:
            raise RetryLater("the daemon has not opened everything it needs; /readyz says what it waits for")
        return application


def _unknown(names: Iterable[str], topics: Iterable[TopicSettings]) -> list[str]:
    tables = {one.archive.table.lower() for one in topics if one.archive.table is not None}
    return sorted(excerpt(name) for name in names if name.lower() not in tables)


def _result(
    process: BoundedQuery, tables: list[QueryTable], names: list[str], topics: list[TopicSettings]
) -> dict[str, Any]:
    from archiver.query.tables import hints

    try:
        return process.result(tables)
    except InvalidInput as error:
        advice = hints(error, names, topics)
        if not advice:
            raise
        raise type(error)("; ".join([str(error), *advice])) from error


def _listed_max(sql: str) -> int:
    """How many tables to open for a query that names none: each costs a request to its catalog."""
    text = sql.lower()
    return LISTED_MAX if any(word in text for word in _LISTING) else 0


@contextmanager
def _copies(app: Application) -> Iterator[Path]:
    """A folder for the copies of files in a bucket, which is removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="query-", dir=app.objects.spool_dir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_sql(table: str) -> str:
    """A table as a query names it."""
    *namespace, name = table.split(".")
    return dotted(".".join(namespace), name)
