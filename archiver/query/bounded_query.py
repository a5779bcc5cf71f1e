"""Runs a query in a process of its own, which is bounded in time, memory and what it answers.

A query that takes all memory, crashes or never ends affects only that process. This process never imports
DuckDB, and parses no SQL.
"""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from archiver.query.duck import NOT_INSTALLED, QueryTable
from archiver.runtime.errors import ArchiverError, ConfigInvalid, Halt, InvalidInput, LimitReached
from archiver.runtime.redaction import MESSAGE_MAX, excerpt

_ENVIRONMENT: Final = {
    "LC_ALL": "C.UTF-8",
    # Both would reserve address space, which is limited, without need.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}
_PROCESS: Final = Path(__file__).with_name("query_process.py")
NAMES_BYTES_MAX: Final = 2**20
"""Maximum of the answer with the names of the tables in a query."""
_ERROR_MAX: Final = 4 * MESSAGE_MAX
"""Characters of an error that the process sends."""
ENDS_S: Final = 5.0
"""Time for the process to end after it has closed its output."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of one query."""

    time_s: float
    """After it the caller stops the process; here it bounds only the time of the processor."""
    memory_bytes: int
    rows_max: int
    bytes_max: int
    """Of the answer."""
    threads: int


class Stopped(Exception):
    """The process was stopped by `BoundedQuery.stop`."""


def require_installed() -> None:
    """Raise `ConfigInvalid` if there is no DuckDB."""
    _packages()


class BoundedQuery:
    """The process of one query. A context manager: at its end the process has ended too.

    Only `stop` may be called from other threads.
    """

    def __init__(self, sql: str, limits: QueryLimits) -> None:
        """Start the process. Raises `ConfigInvalid` without DuckDB, and `OSError`."""
        self._limits = limits
        self._lock = threading.Lock()
        self._stopped = False
        self._process = subprocess.Popen(
            # Isolated: no variables, no site packages, and no current folder on the path.
            [sys.executable, "-I", "-S", str(_PROCESS), *_packages()],
            cwd="/",
            # Nothing of the daemon's environment, which may hold secrets.
            env=_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A Ctrl-C in the terminal must not reach the process before it reaches the daemon.
            start_new_session=True,
        )
        self._request = {
            "sql": sql,
            "cpu_s": math.ceil(limits.time_s * limits.threads) + 1,
            "memory_bytes": limits.memory_bytes,
            "rows_max": limits.rows_max,
            "bytes_max": limits.bytes_max,
            "threads": limits.threads,
            "setting": "http.query_memory_max",
            "error_max": _ERROR_MAX,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                # The rest of a request that the process has not read.
                pass

    def stop(self) -> None:
        """End the process now. A call that waits for it raises `Stopped`."""
        with self._lock:
            self._stopped = True
        self._process.kill()

    def names(self) -> list[str]:
        """Names of the tables in the query. Raises `InvalidInput` for anything but one SELECT."""
        self._send(self._request)
        found = self._received(NAMES_BYTES_MAX)
        return [str(name) for name in found["names"]]

    def result(self, tables: Sequence[QueryTable]) -> dict[str, Any]:
        """Columns, rows, and the limit that cut them, from these tables; call `names` before.

        Raises `InvalidInput` for a wrong query, `LimitReached` for one that needs too much, and `Halt`.
        """
        self._send({"tables": [asdict(table) for table in tables]})
        # Columns and separators are within the bound of the rows; the rest is a few words.
        return self._received(self._limits.bytes_max + 1024 + 6 * _ERROR_MAX)

    def _send(self, document: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def _received(self, bytes_max: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline(bytes_max)
        if not line.endswith(b"\n"):
            raise self._ended()
        document: dict[str, Any] = json.loads(line)
        if "error" in document:
            raise _error(document["error"]["type"], document["error"]["message"])
        return document

    def _ended(self) -> Exception:
        """Why the process gave no answer."""
        try:
            code = self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        with self._lock:
            if self._stopped:
                return Stopped()
        if code == -signal.SIGXCPU:
            return LimitReached("the query takes longer than it may; http.query_time_max limits it")
        # The kernel ends a process with SIGKILL, and a failed allocation ends C++ with SIGABRT.
        if code in (-signal.SIGKILL, -signal.SIGABRT):
            return LimitReached(
                "the query needs more memory than it may use; give it more with http.query_memory_max"
            )
        why = f"signal {-code}" if code < 0 else f"code {code}"
        return Halt(f"the process of the query ended with {why}; rephrase the query, or use Spark or Trino")


_ERRORS: Final[dict[str, type[ArchiverError]]] = {
    one.__name__: one for one in (ConfigInvalid, InvalidInput, LimitReached)
}


def _error(kind: str, message: str) -> ArchiverError:
    return _ERRORS.get(kind, Halt)(excerpt(message, MESSAGE_MAX))


def _packages() -> list[str]:
    """Folders of the packages that the process needs."""
    folders = [Path(__file__).resolve().parents[2]]
    for name in ("duckdb", "pyarrow"):
        # Only located, because they are imported in the process of the query.
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise ConfigInvalid(NOT_INSTALLED)
        folders.append(Path(found.origin).parent.parent)
    return list(dict.fromkeys(map(str, folders)))
