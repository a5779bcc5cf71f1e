"""The command in processes of their own, to be stopped in the middle: output read as it comes, and every
descendant known."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment

PATIENCE_S = 270.0
"""Three times what the slowest wait takes on a quiet machine."""
POLL_S = 0.02
POLL_MAX_S = 0.1
POLL_SHARE = 10.0
"""A check that takes long, such as a request or a scan of all processes, is followed by a pause so many times as long:
tests that wait must not take the cores from what they wait for."""
_CLOCK = SystemClock()

Process = tuple[int, str]
"""Id and start time: ids are used again."""


def until(what: str, holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until `holds()` is true; what it returned."""
    began = _CLOCK.monotonic_s()
    deadline = began + patience_s
    while not (found := holds()):
        now = _CLOCK.monotonic_s()
        assert now < deadline, f"{what}: not within {patience_s:g} s"
        _CLOCK.sleep(min(max(POLL_S, POLL_SHARE * (now - began)), POLL_MAX_S))
        began = _CLOCK.monotonic_s()
    return found


def open_sockets() -> set[str]:
    """The sockets that this process has open, by their inodes."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        # The listing's own descriptor is closed by then, and so may be what another thread had open.
        with contextlib.suppress(FileNotFoundError):
            found.add(str(one.readlink()))
    return {link for link in found if link.startswith("socket:")}


class Command:
    """One running command, in a process group of its own as a terminal has it, with its scratch files in
    `scratch`."""

    def __init__(
        self,
        deployment: Deployment,
        *arguments: str,
        scratch: Path,
        program: Sequence[str] = (sys.executable, "-m", "archiver"),
    ) -> None:
        scratch.mkdir(exist_ok=True)
        self.out: list[str] = []
        self.err: list[str] = []
        self._process = subprocess.Popen(
            [*program, *arguments],
            # Unbuffered: output from before a kill is seen.
            env={**deployment.environ(), "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.seen: set[Process] = set()
        """Every descendant that `look` has met."""
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, self.out), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, self.err), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [self.pid, *(pid for pid, _ in alive(self.seen))]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.end()

    def write(self, text: str) -> None:
        """Into its standard input, at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal, to the whole group as Ctrl-C at a terminal does."""
        (os.killpg if group else os.kill)(self.pid, number)

    def look(self) -> list[str]:
        """Note the descendants there are now; their command lines."""
        found = descendants(self.pid)
        self.seen |= {process for process, _ in found}
        return [line for _, line in found]

    def said(self, text: str) -> bool:
        """Whether an error line has said this. Notes the descendants, too."""
        self.look()
        return any(text in line for line in self.err)

    def end(self) -> int:
        """Close its input and wait; the exit code."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        return self.wait()

    def wait(self) -> int:
        """Wait for its end with the input left open; the exit code."""
        code = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(stream)


def descendants(pid: int) -> list[tuple[Process, str]]:
    """Every descendant of a process, with its command line."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (status := _status(int(folder.name))) is not None:
            children.setdefault(status[0], []).append((int(folder.name), status[1]))
    found: list[tuple[Process, str]] = []
    waiting = [pid]
    while waiting:
        for process in children.get(waiting.pop(), ()):
            waiting.append(process[0])
            found.append((process, _line(process[0])))
    return found


def alive(processes: set[Process]) -> set[Process]:
    """Those that still run (a zombie does not)."""
    return {
        process
        for process in processes
        if (status := _status(process[0])) is not None and status[1] == process[1] and status[2] != "Z"
    }


def states_of_threads(pid: int) -> set[str]:
    """The states of a process's threads, such as `S` (waits) and `T` (stopped by a signal)."""
    # A thread may end in between.
    found = (_fields(path) for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {fields[0] for fields in found if fields}


def _status(pid: int) -> tuple[int, str, str] | None:
    """Parent, start time and state."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[1]), fields[19], fields[0]) if fields else None


def _fields(stat: Path) -> list[str]:
    """The fields of such a file behind the name, which may have spaces; none if the process has ended."""
    try:
        return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
