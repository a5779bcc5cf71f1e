"""The service that the pages of docs/operations describe, below a scratch folder that takes the place of /:
its daemon is a process of this checkout, its commands are the pages' own.

`play` runs the lines of a block; `systemctl stop` and `start` in it stop and start the daemon.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import ROOT, Deployment, jsonl, sample_records
from tests.support.deploy.installation import Installed
from tests.support.process.serving import Served, quick
from tests.support.schema.orders import DESCRIPTOR_SET

STATE = "var/lib/stream-archiver"
CONFIG = "etc/stream-archiver/archiver.yaml"
PAUSE_S = 0.2
"""Of the load, between what it sends: it goes on for as long as Spark takes to start, and all of it is
compared."""


class Service(Deployment):
    """Its state is the deployment's folder."""

    def __init__(self, root: Path, **overrides: Any) -> None:
        self.machine = Installed(root / "machine", ROOT)
        self.scratch = root / "scratch"
        self.backups = root / "backups"
        self.daemon: Served | None = None
        for folder in (self.config.parent, self.machine.bin, self.scratch, self.backups):
            folder.mkdir(parents=True)
        program = self.machine.bin / "archiver"
        program.write_text(
            f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m "
            'archiver "$@"\n'
        )
        program.chmod(0o755)
        super().__init__(self.machine.root / STATE, overrides=overrides)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        (self.config.parent / "shop.binpb").write_bytes(DESCRIPTOR_SET)
        self.write(quick(self.document()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.daemon is not None:
            self.daemon.__exit__()

    @property
    def config(self) -> Path:
        return self.machine.root / CONFIG

    def document(self) -> dict[str, Any]:
        places = {
            "data": {"uri": f"file://{self.root}/data"},
            "metadata": {"sqlite": {"path": f"{self.root}/metadata.db"}},
        }
        return super().document() | places | self.overrides

    def environ(self, armed: str = "") -> dict[str, str]:
        return super().environ(armed) | {"TMPDIR": str(self.scratch)}

    def start(self, *arguments: str) -> Served:
        """Start the daemon, and wait until it is ready."""
        self.daemon = Served(self, *arguments, scratch=self.scratch)
        self.daemon.until_ready()
        return self.daemon

    def stop(self) -> None:
        """As the service manager does; nothing if it does not run."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            code = daemon.stop()
            assert code == 0, daemon.log_text()
            daemon.__exit__()

    def kill(self) -> None:
        """As a machine that lost its power."""
        daemon, self.daemon = self.daemon, None
        assert daemon is not None
        daemon.kill()
        daemon.__exit__()

    def play(self, commands: Sequence[str], *roles: str) -> str:
        """A block of a page; what it printed. The daemon that is started in it has these arguments."""
        printed = []
        for command in commands:
            if command == "sudo systemctl stop stream-archiver":
                self.stop()
            elif command == "sudo systemctl start stream-archiver":
                self.start(*roles)
            else:
                printed.append(self.machine.shell(command, cwd=self.backups))
        return "".join(printed)


Sent = list[tuple[dict[str, Any], Any]]
"""Records with their acknowledgements."""


def send(daemon: Served, records: Sequence[dict[str, Any]]) -> Sent:
    """Send records of several topics, in their order within each; only those that were acknowledged."""
    found: Sent = []
    for topic in sorted({record["topic"] for record in records}):
        chosen = [record for record in records if record["topic"] == topic]
        try:
            answer = daemon.post(f"/v1/topics/{topic}/records", jsonl(chosen).encode())
        except OSError:
            continue
        if answer.status == 200:
            found += zip(chosen, answer.lines(), strict=True)
    return found


class Load:
    """A producer that never rests; what it could not send, or has no answer for, it leaves."""

    def __init__(self, service: Service, first: int = 0) -> None:
        self._service = service
        self._next = first
        self._found: Sent = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def acknowledged(self) -> Sent:
        """Until now. Waits for an answer that is under way."""
        with self._lock:
            return list(self._found)

    def heard(self) -> int:
        """How many records it had acknowledged a moment ago; waits for nothing."""
        return len(self._found)

    def _run(self) -> None:
        while not self._ended.is_set():
            daemon = self._service.daemon
            if daemon is None or not daemon.running:
                SystemClock().sleep(PAUSE_S)
                continue
            with self._lock:
                self._found += send(daemon, sample_records(6, self._next))
                self._next += 6
            SystemClock().sleep(PAUSE_S)
