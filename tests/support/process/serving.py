"""A real daemon: `archiver serve` in a process of its own, on a port of loopback that the system chose, its
address read from its log.

::

    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        daemon.post("/v1/topics/clicks/records", b'{"value": null}\\n')
        ...
        assert daemon.stop() == 0

Leaving the block kills what is left, the JVM and its workers among them, and waits for it. `quick(document)`
makes a deployment's configuration one that archives within a second or two. The daemon's log is JSON lines on
its standard error: `logged` reads them.
"""

from __future__ import annotations

import http.client
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any, Self

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import Command, alive, states_of_threads, until

REQUEST_TIMEOUT_S = 60.0
PAUSES_MAX = 20
LOCK_WAIT_S = 1.0
"""Longer than the transaction of a running process."""
LISTENING = "listening on "
AUDITS_EVERY_S = 0.5
QUICK_TOPIC = {"start_delay_max": "100ms", "idle_max": "300ms", "complete_delay_max": "2s"}


@dataclass(frozen=True)
class Answered:
    """What a request got."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The body as one JSON document."""
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        """The body as JSON lines."""
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]


def is_locked(database: Path) -> bool:
    """Whether a process holds the lock of writers."""
    with closing(sqlite3.connect(database, timeout=LOCK_WAIT_S, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        connection.execute("rollback")
    return False


def quick(document: Mapping[str, Any], **daemon: Any) -> dict[str, Any]:
    """The configuration, with a free port, and with ticks and polls every few tenths of a second; `daemon`
    adds to that group."""
    found = dict(document)
    found["http"] = {"listen": "127.0.0.1:0", **found.get("http", {})}
    found["daemon"] = {"watch_interval": "300ms", "retry_max": "500ms", **found.get("daemon", {}), **daemon}
    found["archive"] = {"tick": "300ms", **QUICK_TOPIC, **found.get("archive", {})}
    return found


class Served:
    """One running daemon. Use it as a context manager."""

    def __init__(self, deployment: Deployment, *arguments: str, scratch: Path) -> None:
        """`arguments` follow `archiver serve`; `scratch` takes its temporary files. Begins at once and waits
        for nothing."""
        self.deployment = deployment
        self.command = Command(deployment, "serve", *arguments, scratch=scratch)
        self.pid = self.command.pid
        self._address: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.command.look()
        self.command.__exit__()

    # its port

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; waits until it listens."""
        if self._address is None:
            line = until("the daemon listens", self._listening)
            host, _, port = line.removeprefix(LISTENING).rpartition(":")
            self._address = (host, int(port))
        return self._address

    def _listening(self) -> str | None:
        assert self.running, self.log_text()
        return next(
            (line["message"] for line in self.logged() if line["message"].startswith(LISTENING)), None
        )

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answered:
        """One request on a connection of its own; raises `OSError` if no answer comes."""
        connection = http.client.HTTPConnection(*self.address, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answered(
                answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def get(self, path: str) -> Answered:
        """A GET."""
        return self.request("GET", path)

    def post(
        self,
        path: str,
        body: bytes,
        kind: str = "application/x-ndjson",
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """A POST with a body of that media type."""
        return self.request("POST", path, body, {"Content-Type": kind, **(headers or {})})

    @property
    def token(self) -> str:
        """The administration token, from the file the daemon made."""
        return next(self.deployment.root.rglob("metadata.db.admin-token")).read_text(encoding="ascii").strip()

    def admin(self, name: str, document: Mapping[str, Any] | None = None) -> Any:
        """`POST /v1/admin/NAME`; the last line of the answer, which has `done` or `error`."""
        body = json.dumps(document or {}).encode()
        answer = self.post(
            f"/v1/admin/{name}", body, "application/json", {"Authorization": f"Bearer {self.token}"}
        )
        assert answer.status == 200, answer
        return answer.lines()[-1]

    def until_archived(self, topic: str, records: int) -> None:
        """Wait until so many records of the topic are in, all of them archived, and the audit says valid."""

        def holds() -> bool:
            assert self.running, self.log_text()
            answer = self.admin("audit")
            assert "done" in answer, answer
            document = answer["done"]["document"]
            assert document["verdict"] == "valid", document
            found = [item for item in document["partitions"] if item["topic"] == topic]
            assert sum(item["next"] for item in found) == records, found
            done = all(item["watermark"] == item["next"] == item["rows"] for item in found)
            if not done:
                SystemClock().sleep(AUDITS_EVERY_S)
            return done

        until(f"{records} records of {topic} are archived", holds)

    def cycles(self, job: str, outcome: str) -> int:
        """How many cycles of a job have ended so (an outcome of `OUTCOMES`), as /metrics says."""
        wanted = f'archiver_cycles_total{{job="{job}",outcome="{outcome}"}} '
        found = [line for line in self.get("/metrics").body.decode().splitlines() if line.startswith(wanted)]
        return round(float(found[0].removeprefix(wanted))) if found else 0

    # how it is

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.command._process.poll() is None

    def ready(self) -> bool:
        """Whether /readyz says so now; False as well if no answer comes."""
        try:
            return self.get("/readyz").status == 200
        except OSError:
            return False

    def until_ready(self) -> None:
        """Wait for /readyz."""

        def holds() -> bool:
            assert self.running, self.log_text()
            return self.ready()

        until("the daemon is ready", holds)

    def logged(self, text: str = "") -> list[dict[str, Any]]:
        """The lines of its log whose message has this text; what is not JSON (a traceback of the interpreter)
        becomes a message."""
        found: list[dict[str, Any]] = []
        for line in list(self.command.err):
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"level": "", "logger": "", "message": line.rstrip("\n")}
            if text in entry["message"]:
                found.append(entry)
        return found

    def until_logged(self, text: str) -> None:
        """Wait for a line with this text: what the log says arrives after what the port says."""

        def holds() -> bool:
            assert self.running or self.logged(text), self.log_text()
            return bool(self.logged(text))

        try:
            until(f"the log says {text!r}", holds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text()}") from None

    def log_text(self) -> str:
        """Its whole log, for the message of a failed assertion."""
        return "".join(self.command.err)

    def descendants(self) -> list[str]:
        """Command lines of its child processes, and theirs, now; they are noted, and killed at the end."""
        return self.command.look()

    # its end

    def signal(self, number: Signals) -> None:
        """Send it a signal."""
        self.command.signal(number)

    def pause(self) -> None:
        """SIGSTOP it while it does not hold SQLite's lock, with which no other process could append."""
        for _ in range(PAUSES_MAX):
            self.signal(SIGSTOP)
            # On a busy machine other threads run on until one has received the signal.
            until("every thread is stopped", lambda: states_of_threads(self.pid) == {"T"})
            if not is_locked(self.deployment.root / "metadata.db"):
                return
            self.signal(SIGCONT)
            SystemClock().sleep(0.1)
        raise AssertionError(f"the metadata database was locked {PAUSES_MAX} times")

    def stop(self, number: Signals = SIGTERM) -> int:
        """Ask it to stop and wait; the exit code. Its children must be gone soon after."""
        self.command.look()
        self.signal(number)
        code = self.command.wait()
        until("the daemon's children have ended", lambda: not alive(self.command.seen))
        return code

    def kill(self) -> None:
        """SIGKILL, and wait for it and its children to end."""
        self.stop(SIGKILL)
