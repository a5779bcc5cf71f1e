"""What the web room needs of the rest of the daemon, and nothing more.

Owns names and shapes alone: the daemon's composition root (`archiver.daemon.daemon`) fills them in, a test
fills them in with less. Must never import the daemon, and never hold a connection to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from archiver.config.daemon import HttpSettings
from archiver.runtime.clock import Clock
from archiver.runtime.exit_codes import Done
from archiver.status.journal import Journal
from intake.write.writer import IntakeWriter

Progress = Callable[[str], None]
"""Takes a line about work under way; called in the thread that works."""


class Operations(Protocol):
    """What an administrator can ask for. Every call blocks until it is done, in a worker thread; it raises
    `ArchiverError`.

    `topic` is the scope as on the command line: `orders`, `orders:3`, `orders:0-3`; None is everything.
    """

    def status(self) -> dict[str, Any]:
        """As `archiver status --output json`."""

    def archive(self, topic: str | None, everything: bool, progress: Progress) -> Done:
        """A refinement round now; raises `LeaseHeld` if another process leads."""

    def clean(self, dry_run: bool, progress: Progress) -> Done:
        """Condemn and delete now; raises `LeaseHeld` if another process leads."""

    def reconcile(self, fix: bool, topic: str | None, progress: Progress) -> Done:
        """Compare now, and repair with `fix`; raises `LeaseHeld` if another process leads."""

    def replay(self, topic: str | None, files_max: int | None, progress: Progress) -> Done:
        """Decode again what could not be decoded, in at most so many archives; raises `LeaseHeld` if another
        process leads.
        """

    def audit(self, topic: str | None, progress: Progress, *, deep: bool = False) -> Done:
        """Compare logs, archives and tables now, `deep` by every row; changes nothing."""

    def reload(self) -> Done:
        """Read the configuration again, as on SIGHUP; the document says what changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Everything that the port shows or hands on. Each function is called often, from several threads, and
    must not wait for anything outside of the process; only the `operations` may.
    """

    http: HttpSettings
    journal: Journal
    roles: frozenset[str]
    """Of this daemon: intake, archive, reconcile. Without `intake` no records are taken, without `archive`
    and `reconcile` the operations of the same name are refused, so that a command does the work by itself."""
    writer: Callable[[], IntakeWriter | None]
    """Where records go; None: no intake role, or not open (yet, or any more)."""
    operations: Operations
    token: Callable[[], str | None]
    """What `/v1/admin/` asks for; None: not known yet, then nobody is let in."""
    cluster_id: Callable[[], str | None]
    """Of the data folder; None: not known yet. Every answer carries it in the header
    `Archiver-Cluster-Id`."""
    page: Callable[[Mapping[str, str]], str]
    """The status page, as HTML, for the query parameters of the request (`refresh`, `topic`); unknown and
    wrong ones are passed over."""
    metrics: Callable[[], bytes]
    """Every number, in Prometheus' text format."""
    alive: Callable[[], bool]
    """Whether the daemon's own threads still run; says nothing of any dependency."""
    clock: Clock
    version: str
