"""Where a case is played: one folder, always the same, into which a prepared scene is copied.

Always the same, because tables name their files by absolute paths. The history that the judge reads lies in
it as well, so that it is copied with the rest.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.fault.sweep.deeds import Daemon, Found, Orders
from tests.fault.sweep.sent_records import PLACES, ByClock, Sender
from tests.support.builders.deployment import Deployment

LEASE_S = 2.0
"""A leader that has not read the log for so long, by its own clock, leads no more."""


class Ground:
    """The folder and what is in it."""

    def __init__(self, folder: Path) -> None:
        self._prepared = folder / "prepared"
        self.root = folder / "d"
        self.history = self.root / "history"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()

    @property
    def deployment(self) -> Found:
        """What is there."""
        return Found(self.root)

    def be(self, name: str, prepare: Callable[[Ground], None]) -> None:
        """Become the scene of that name, which is prepared if it is played for the first time."""
        kept = self._prepared / name
        if self.root.exists():
            shutil.rmtree(self.root)
        if not kept.exists():
            self._begin()
            prepare(self)
            shutil.copytree(self.root, kept)
        else:
            shutil.copytree(kept, self.root)

    def _begin(self) -> None:
        made = Deployment(self.root)
        self.history.mkdir()
        document = made.document()
        document["daemon"] = {"confirm_max": f"{LEASE_S:g}s"}
        document["sources"] = [
            {"files": {"glob": "in/*.jsonl", "topic": "files", "format": "jsonl", "settle": "0s"}}
        ]
        self._write(document)

    def configure(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the configuration, from the next process on."""
        document = yaml.safe_load(self.deployment.config.read_text(encoding="utf-8"))
        change(document)
        self._write(document)

    def _write(self, document: dict[str, Any]) -> None:
        self.deployment.write(document)
        armed = yaml.safe_dump(document | {"testing": {"failpoints": True}}, sort_keys=False)
        self.deployment.armed_config.write_text(armed, encoding="utf-8")

    @contextmanager
    def daemon(self, hours: float = 0.0) -> Iterator[Daemon]:
        """A leading daemon in this process, so many hours ahead of the time."""
        with Daemon(self.deployment, hours * 3600) as daemon:
            yield daemon

    def sender(self, name: str) -> Sender:
        """A sender in this process."""
        return Sender(self.history, name)

    def send(
        self,
        name: str,
        rounds: int = 1,
        hours: float = 0.0,
        places: tuple[tuple[str, int | None], ...] = PLACES,
        by: Daemon | None = None,
    ) -> None:
        """Send, all acknowledged ok."""
        if by is None:
            with self.daemon(hours) as daemon:
                self.send(name, rounds, places=places, by=daemon)
            return
        with self.sender(name) as sender, by.application.intake.writer() as writer:
            assert set(sender.send(ByClock(writer), rounds, places)) == {"ok"}

    def archive(self, hours: float = 0.0) -> None:
        """Archive all stable records."""
        with self.daemon(hours) as daemon:
            daemon.archive()

    def lease_lapses(self) -> None:
        """The holder of the lease loses it unnoticed: another file replaces its lock file, which needs a
        paused holder in practice."""
        for path in self.root.glob("metadata.db.*"):
            if path.suffix in (".lease", ".checkpoint"):
                path.unlink()

    def registrations_lapse(self) -> None:
        """No daemon is registered for Kafka clients: those that are killed or paused let their time pass."""
        with closing(sqlite3.connect(self.root / "metadata.db")) as connection, connection:
            connection.execute("update brokers set incarnation = ''")

    def orders(self, deed: str, armed: str, arguments: Sequence[str] = ()) -> Orders:
        """The orders for an actor that acts here."""
        return Orders(
            root=str(self.root),
            history=str(self.history),
            output=str(self.root / "output.txt"),
            scratch=str(self.scratch),
            deed=deed,
            armed=armed,
            arguments=list(arguments),
        )

    def reported(self) -> dict[str, Any]:
        """What the actor said of its end."""
        found: dict[str, Any] = json.loads((self.history / "actor.json").read_text(encoding="utf-8"))
        return found

    def output(self) -> str:
        """What the actor printed."""
        path = self.root / "output.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
