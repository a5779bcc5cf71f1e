"""The stage of a run: a scratch folder with configuration, data and metadata, a disk that can be filled, and
commands as processes; with daemons also folders that files are dropped into.

Never uses the product's code, only its configuration file and its command. Ends no process that it did not
start.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import psutil
import yaml

from tests.harness.places import LocalTables, Tables

ROOT = Path(__file__).resolve().parents[2]
TOPICS: dict[str, dict[str, Any]] = {
    "alpha": {"partitions": 4, "table": "h.alpha"},
    "beta": {"partitions": 3, "table": "h.beta"},
    "gamma": {"partitions": 2, "table": None},
}
"""Without schemas, so that a table's `__raw__` columns hold what was sent. The last one is never archived."""
TRANSACTION_TIMEOUT_S = 3.0
FILE_BYTES_MAX = 56 * 1024
"""The limit that stands in for a full disk: well above a part of a ledger, below what the metadata store and
large intake files need."""
HEAP_MEGABYTES = 512
"""Heap of the daemon's JVM. It is touched whole at the start, so that the memory of the process can only grow
by what is outside of it."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""As the product's own."""
INBOXES = {"files-jsonl": ("beta", "jsonl"), "files-parquet": ("alpha", "parquet")}
"""Per kind of sender, the topic and the format of its source."""
GRACE_S = 30.0
"""How long the daemon may take to stop."""
CLEANUP_S = 60.0
"""The floor of both `cleanup.interval` and `cleanup.grace`."""


@dataclass(frozen=True)
class Scene:
    """One deployment. `folder` keeps the files about the run, `disk` holds what the product stores."""

    folder: Path
    disk: Path

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.folder / "archiver.yaml"

    @property
    def catalog(self) -> Path:
        """The Iceberg catalog's database."""
        return self.disk / "catalog.db"

    @property
    def topics(self) -> Mapping[str, dict[str, Any]]:
        """Every topic of the run; a mirrored one says so, and no sender here sends to it."""
        return TOPICS

    def tables(self) -> Tables:
        """The tables, as other code than the product's gets at them."""
        return LocalTables(self.catalog)

    def prepare(self) -> None:
        """Write the configuration; nothing else is created."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.disk.mkdir(parents=True, exist_ok=True)
        topics = []
        for name, topic in self.topics.items():
            archive: dict[str, Any] = {"kind": "none"}
            if topic["table"] is not None:
                archive = {"kind": "iceberg", "catalog": "local", "table": topic["table"]}
            topics.append({"name": name, "partitions": topic["partitions"], "archive": archive})
        document = {
            "cluster": "harness",
            "data": {"uri": str(self.disk / "data")},
            "metadata": {"sqlite": {"path": str(self.disk / "metadata.db"), "busy_timeout": "5s"}},
            "catalogs": [{"name": "local", "type": "sql", "uri": f"sqlite:///{self.catalog}?timeout=60"}],
            "spark": {"master": "local[2]", "driver_memory": "1g"},
            "intake": {"delay_max": "10ms", "close_timeout": "10s"},
            "log": {"append_backoff": "5ms", "append_attempts_max": 3, "checkpoint_entries": 150},
            "archive": {"max_bytes": "256KiB"},
            "topics": topics,
        }
        self.config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    def start(self, name: str, *arguments: str, stdout: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """`python ARGUMENTS` in a process of its own; its error output goes to `logs/NAME.log`.

        Where the system can do that, the process ends with the thread that starts it, however that ends.
        """
        environ = {key: value for key, value in os.environ.items() if not key.startswith("ARCHIVER_")}
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*_tethered(), sys.executable, *arguments],
                env={
                    **environ,
                    "ARCHIVER_CONFIG": str(self.config),
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(scratch),
                },
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout if stdout is not None else log,
                stderr=log,
            )


@dataclass(frozen=True)
class DaemonScene(Scene):
    """One deployment with a daemon at `port`."""

    port: int = 0

    @property
    def data(self) -> Path:
        """The object store."""
        return self.disk / "data"

    @property
    def metadata(self) -> Path:
        """The metadata store's database."""
        return self.disk / "metadata.db"

    def inbox(self, kind: str) -> Path:
        """Where senders of that kind drop their files."""
        return self.disk / "inbox" / kind

    def prepare(self) -> None:
        super().prepare()
        for kind in INBOXES:
            self.inbox(kind).mkdir(parents=True, exist_ok=True)
        self.configure(0)

    def configure(self, turn: int) -> None:
        """Write the configuration; with another `turn` the settings that can be reloaded are other ones."""
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document |= {
            "spark": {
                "master": "local[2]",
                "driver_memory": f"{HEAP_MEGABYTES}m",
                "conf": {
                    "spark.driver.extraJavaOptions": f"-Xms{HEAP_MEGABYTES}m -XX:+AlwaysPreTouch {_JAVA_OPTIONS}"
                },
            },
            "http": {"listen": f"127.0.0.1:{self.port}"},
            "daemon": {
                "watch_interval": "1s",
                "audit_interval": "20s",
                "shutdown_grace": f"{GRACE_S:g}s",
                "retry_max": "1s",
            },
            "archive": {
                "max_bytes": "512KiB",
                "tick": "2s",
                "start_delay_max": "1s",
                "idle_max": "2s",
                "complete_delay_max": "4s" if turn % 2 == 0 else "6s",
                "snapshots_max": 10,
                "snapshots_age": "30s",
                "merge_every": 5,
            },
            "cleanup": {"interval": f"{CLEANUP_S:g}s", "grace": f"{CLEANUP_S:g}s"},
            "sources": [
                {
                    "files": {
                        "glob": str(self.inbox(kind) / f"*.{form}"),
                        "topic": topic,
                        "format": form,
                        "settle": "0s",
                    }
                }
                for kind, (topic, form) in INBOXES.items()
            ],
        }
        for topic in document["topics"]:
            if topic["archive"]["kind"] == "iceberg":
                topic["archive"]["idle_max"] = "1s" if turn % 2 == 0 else "2s"
        draft = self.config.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        draft.rename(self.config)


@functools.cache
def _tethered() -> tuple[str, ...]:
    """The beginning of a command that the system ends with its parent."""
    prefix = ("setpriv", "--pdeathsig", "KILL")
    return prefix if _succeeds([*prefix, "true"]) else ()


class Beginning:
    """When the faults begin: the supervisor says so in a file, once all workers are at work. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at_s: float | None = None

    def say(self) -> None:
        """Now."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(repr(time.monotonic()), encoding="utf-8")
        draft.rename(self._path)

    def elapsed_s(self) -> float:
        """Seconds since then; -1 before."""
        if self._at_s is None:
            try:
                self._at_s = float(self._path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                return -1.0
        return time.monotonic() - self._at_s


def kill_tree(process: subprocess.Popen[bytes], patience_s: float = 10.0) -> None:
    """SIGKILL to a process and all that it started, and wait until they are gone."""
    try:
        found = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        found = []
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(patience_s)
    psutil.wait_procs(found, patience_s)


class Disk(Protocol):
    """A disk that can be full."""

    def fill(self, processes: Iterable[int]) -> str:
        """From now on there is no room; the ids are of those who write. Says how it was done."""

    def free(self, processes: Iterable[int]) -> None:
        """There is room again."""


class MountedDisk:
    """A small file system, filled to the last block: the real thing."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self, processes: Iterable[int]) -> str:
        """Writes until the system says no."""
        block = bytes(64 * 1024)
        try:
            with self._ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(block)
        except OSError as error:
            return f"the file system is full: {error.strerror}"

    def free(self, processes: Iterable[int]) -> None:
        self._ballast.unlink(missing_ok=True)


class LimitedDisk:
    """A limit on the size of files, which gives every writer the error of a full quota where mounting a file
    system is not allowed."""

    def fill(self, processes: Iterable[int]) -> str:
        _limit(processes, FILE_BYTES_MAX)
        return f"no file may grow past {FILE_BYTES_MAX} bytes"

    def free(self, processes: Iterable[int]) -> None:
        _limit(processes, resource.RLIM_INFINITY)


def _limit(processes: Iterable[int], size: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def mounting_prefix(disk: Path, megabytes: int) -> list[str] | None:
    """The beginning of a command that runs the rest with a small file system at `disk`, which no other
    process sees; None if that cannot be.

    The file system goes when the last process of the command ends.
    """
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        mount = f'mount -t tmpfs -o size={megabytes}m none "$1" && shift && exec "$@"'
        prefix = [*unshare, "sh", "-c", mount, "sh"]
        with tempfile.TemporaryDirectory() as trial:
            if _succeeds([*prefix, trial, "true"]):
                return [*prefix, str(disk)]
    return None


def unmount(disk: Path) -> None:
    """Take the small file system away again, before its time."""
    subprocess.run(["umount", str(disk)], timeout=20, check=True)


def _succeeds(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def partitions() -> dict[str, int]:
    """Of each topic."""
    return {name: topic["partitions"] for name, topic in TOPICS.items()}


def free_port() -> int:
    """A port of the loopback interface that the system just chose, and that no process listens on."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
