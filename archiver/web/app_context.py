"""Interface between the port and the daemon: values and functions that `archiver.daemon.daemon` supplies.

It holds no connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starlette.responses import Response

from archiver.config.daemon import HttpSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.exit_codes import Done
from archiver.status.journal import Journal
from intake.write.writer import IntakeWriter

Progress = Callable[[str], None]
"""Takes a line about running work; called in the thread that works."""


# A Protocol, because the port may not import the daemon.
class Operations(Protocol):
    """Operations of administration. Each call blocks a worker thread until it is done, and raises
    `ArchiverError`.

    `topic` is the scope as on the command line: `orders`, `orders:3`, `orders:0-3`; None is everything.
    """

    def status(self) -> dict[str, Any]:
        """As `archiver status --output json`."""

    def archive(self, topic: str | None, everything: bool, progress: Progress) -> Done:
        """A refinement round now; raises `LeaseHeld` if another process leads."""

    def clean(self, dry_run: bool, progress: Progress) -> Done:
        """Mark for deletion and delete now; raises `LeaseHeld` if another process leads."""

    def reconcile(self, fix: bool, topic: str | None, progress: Progress) -> Done:
        """Compare now, and repair with `fix`; raises `LeaseHeld` if another process leads."""

    def replay(self, topic: str | None, files_max: int | None, progress: Progress) -> Done:
        """Decode undecoded records of at most `files_max` archives; raises `LeaseHeld` if another process
        leads.
        """

    def audit(self, topic: str | None, progress: Progress, *, deep: bool = False) -> Done:
        """Compare logs, archives and tables now, `deep` by every row; changes nothing."""

    def reload(self) -> Done:
        """Read the configuration again, as on SIGHUP; the document says what changed."""

    def reset_offsets(self, group: str, topic: str, offsets: str) -> Done:
        """Commit `offsets` (`partition:offset`, with commas) for a consumer group without members."""


Resource = Literal["topic", "group"]
Operation = Literal["describe", "read"]
May = Callable[[Resource, str], bool]
"""Whether the reader may describe it."""


class Reads(Protocol):
    """What the console shows, as JSON documents. Each call blocks a worker thread, changes nothing, and
    raises `ArchiverError`.
    """

    def topics(self) -> dict[str, Any]:
        """All topics."""

    def traffic(self, name: str) -> dict[str, float] | None:
        """Newest mean traffic of a topic; None: not known."""

    def topic(self, name: str) -> dict[str, Any]:
        """One topic."""

    def table(self, name: str) -> dict[str, Any]:
        """The table of a topic, and why it cannot be read if it cannot."""

    def table_summary(self, name: str) -> dict[str, Any] | None:
        """Size and newest snapshot of a topic's table; None if there is none."""

    def schema(self, name: str) -> dict[str, Any]:
        """The recorded versions of a topic's schema."""

    def schema_plan(self, name: str) -> dict[str, Any]:
        """What the newest schema of the source would do to the topic's table."""

    def undecoded(self, name: str) -> dict[str, Any] | None:
        """Undecoded keys and values of a topic's table; None without a table."""

    def messages(
        self, name: str, partition: int, start: str, limit: int, key: bytes | None
    ) -> dict[str, Any]:
        """Committed records of a partition, from `earliest`, `latest`, `end`, an offset or a time on."""

    def message(self, name: str, partition: int, offset: int) -> dict[str, Any]:
        """One record, and where it is."""

    def groups(self, may: May, after: str | None, limit: int) -> dict[str, Any]:
        """Consumer groups by their ids beyond `after`, as far as the reader may describe them."""

    def group(self, may: May, name: str) -> dict[str, Any]:
        """One consumer group, as far as the reader may describe its topics."""

    def dead_letters(self, may_read: Callable[[str], bool], topic: str | None, limit: int) -> dict[str, Any]:
        """Undecoded keys and values by cause, of one topic or of all that the reader may read."""

    def dead_letter_replay(self, may_read: Callable[[str], bool], topic: str | None) -> dict[str, Any]:
        """What a replay of them would rewrite."""

    def audit(self, may: May, topic: str | None, *, sees_all: bool) -> dict[str, Any]:
        """The newest audits and findings; `sees_all`: no rule limits the reader."""


class Queries(Protocol):
    """Queries of readers: SQL over the tables. `owner` is the principal of the reader, None for one that may
    see everything. Only `document` takes long. Raises `ArchiverError`; `NotFound` for a query of another
    reader.
    """

    def close(self) -> None:
        """Cancel all queries."""

    def limits(self) -> dict[str, Any]:
        """The limits of a query, and in `unavailable` why there can be none."""

    def topics(self) -> list[str]:
        """Topics with a table."""

    def tables(self, topics: Collection[str] | None) -> list[dict[str, Any]]:
        """Tables of these topics, or all."""

    def start(self, owner: str | None, sql: str, rows_max: int, topics: frozenset[str] | None) -> str | None:
        """Id of a new query over tables of these topics, or of all; None if too many are open."""

    def list(self, owner: str | None) -> list[dict[str, Any]]:
        """Queries of the reader, without results."""

    def document(
        self, owner: str | None, query_id: str, may_read: Callable[[str], bool], first: int, rows_max: int
    ) -> dict[str, Any]:
        """A query and a part of its rows."""

    def encoded(self, owner: str | None, query_id: str, may_read: Callable[[str], bool]) -> bytes:
        """A query and all rows, as JSON."""

    def cancel(self, owner: str | None, query_id: str) -> None:
        """End a query."""

    def error(self, owner: str | None, query_id: str) -> ArchiverError | None:
        """Why a query has no result."""

    def ended(self, owner: str | None, query_id: str) -> Future[None]:
        """Done when the query has ended."""


class Logins(Protocol):
    """The users of the Kafka listener and its rules."""

    def principal(self, name: str, password: str) -> str | None:
        """Principal (`User:NAME`) with that password; None if it is wrong. Blocks for milliseconds."""

    def allows(self, principal: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the rules allow it."""


@dataclass(frozen=True, slots=True)
class Records:
    """A whole produce request."""

    topic: str
    kind: str
    """Media type of the body."""
    text: bool
    """Whether keys and values of JSON lines are text."""
    body: bytes


async def keep(_: Records) -> Response | None:
    """`AppContext.forward` of a daemon without intake workers."""
    return None


def no_logins() -> Logins | None:
    """`AppContext.logins` of a daemon without users."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Everything that the port shows or calls.

    Functions are called often and from several threads. Only `operations`, `reads` and `logins` may wait for
    anything outside of the process.
    """

    http: HttpSettings
    journal: Journal
    roles: frozenset[str]
    """Roles of this daemon: intake, archive, reconcile. Without `intake` it accepts no records. Without
    another role it refuses the operations of that role, and a command does the work itself."""
    # Functions and not values: the daemon serves the port before it has opened anything.
    writer: Callable[[], IntakeWriter | None]
    """Intake writer; None without the role intake, or while it is not open."""
    operations: Operations
    token: Callable[[], str | None]
    """Token of `/v1/admin/`; None: not known yet, then every request is refused."""
    cluster: str
    """The cluster's name."""
    cluster_id: Callable[[], str | None]
    """Cluster id of the data folder; None: not known yet. Every answer has it in the header
    `Archiver-Cluster-Id`."""
    page: Callable[[Mapping[str, str]], str]
    """HTML of the status page for query parameters (`refresh`, `topic`); ignores unknown and invalid ones."""
    metrics: Callable[[], bytes]
    """Metrics in Prometheus' text format."""
    alive: Callable[[], bool]
    """Whether the threads of the daemon run; independent of any dependency."""
    clock: Clock
    version: str
    reads: Reads
    queries: Queries
    logins: Callable[[], Logins | None] = no_logins
    """Users that may log in to read; None without a Kafka listener that authenticates them."""
    forward: Callable[[Records], Awaitable[Response | None]] = keep
    """Lets an intake worker answer a produce request; None if no worker can. Raises a refusal."""
