"""The client processes of a harness run over the Kafka port: each is a visitor that may be killed, paused and started
again.

Ends each by its own id, and notes in the run's ledger how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.daemons import waited
from tests.harness.ledger_file import LedgerFile
from tests.harness.loading import read_ledger
from tests.harness.scene import Scene, kill_tree
from tests.harness.supervisor import ENDING_S

ABORTING_S = 5.0
"""How long a client may take to note where it was."""


@dataclass
class Client:
    """One life of a client process."""

    name: str
    life: int
    options: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    paused: bool = False
    ending: bool = False
    """It got SIGTERM."""

    @property
    def ledger(self) -> str:
        """The name of its ledger."""
        return f"worker-{self.name}-{self.life}"

    def alive(self) -> bool:
        """It has not ended."""
        return self.process.poll() is None


class Clients:
    """Every client of a run."""

    def __init__(self, scene: Scene, common: Callable[[], Mapping[str, Any]], ledger: LedgerFile) -> None:
        """`common`: the settings that all clients share."""
        self._scene = scene
        self._common = common
        self._ledger = ledger
        self._clients: dict[str, Client] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._clients

    def __getitem__(self, name: str) -> Client:
        return self._clients[name]

    def start(self, name: str, life: int = 0, **options: Any) -> None:
        """One life."""
        common = {"folder": str(self._scene.folder), "worker": name, "life": life}
        path = self._scene.folder / "specs" / f"{name}-{life}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**self._common(), **common, **options}), encoding="utf-8")
        process = self._scene.start(name, "-m", "tests.harness.visitor", str(path))
        self._clients[name] = Client(name, life, options, process)

    def again(self, name: str) -> None:
        """The next life of a client that has ended."""
        client = self._clients[name]
        self.start(name, client.life + 1, **client.options)

    def has(self, name: str, event: str) -> bool:
        """Whether its present life has noted such an event."""
        client = self._clients[name]
        return any(one["event"] == event for one in read_ledger(self._scene.folder, client.ledger).events)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        client = self._clients[name]
        client.process.kill()
        client.process.wait()
        self._ended(client, killed=True)

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        client = self._clients[name]
        client.paused = True
        os.kill(client.process.pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        client = self._clients[name]
        client.paused = False
        if client.alive():
            os.kill(client.process.pid, signal.SIGCONT)

    def ask(self, name: str) -> None:
        """SIGTERM, once."""
        client = self._clients[name]
        if client.ending:
            return
        # Until it has a ledger, it does not know what SIGTERM means.
        waited(lambda: any(self._scene.folder.glob(f"{client.ledger}.*")) or not client.alive(), ENDING_S)
        client.ending = True
        client.process.send_signal(signal.SIGTERM)

    def end(self, name: str, within_s: float = ENDING_S) -> None:
        """SIGTERM, and wait until it has ended."""
        self.ask(name)
        client = self._clients[name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(within_s)
        if client.alive():
            # Its log then has the stack of each thread.
            client.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.process.wait(ABORTING_S)
        if client.alive():
            kill_tree(client.process)
        self.note_end(name)

    def note_end(self, name: str) -> None:
        """It has ended after SIGTERM."""
        self._ended(self._clients[name], killed=False)

    def abandon(self) -> None:
        """End what is left, when the run is over or has failed."""
        for client in self._clients.values():
            if client.alive():
                # A paused process could not be waited for.
                client.process.send_signal(signal.SIGCONT)
                kill_tree(client.process)

    def _ended(self, client: Client, *, killed: bool) -> None:
        self._ledger.write("process", ledger=client.ledger, code=client.process.returncode, killed=killed)
