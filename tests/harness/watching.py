"""What is polled all the time: processes, folders, the daemon's pages. One JSON line per poll, in files that
are judged later.

Owns the threads that poll. A value that cannot be had is written as null, never as an old one or as zero.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.harness.daemons import Daemon, Garrison, get
from tests.harness.scene import DaemonScene

SAMPLES, HEAPS, SCRAPES = "samples.jsonl", "heaps.jsonl", "scrapes.jsonl"
SAMPLE_S, SCRAPE_S = 1.0, 1.0
HEAP_S = 10.0
"""Time between two counts of what lives in the heap; each one collects it."""
SCRAPE_TIMEOUT_S = 10.0
PAGES = ("/metrics", "/", "/readyz", "/healthz")
_MEGA = 1e6
_LAG = re.compile(
    rb"^(?P<name>\w*lag\w*seconds)(?:\{(?P<labels>[^}]*)\})? (?P<value>[-+.0-9eE]+)", re.MULTILINE
)
_LIVE = re.compile(rb"^Total\s+\d+\s+(\d+)", re.MULTILINE)


class Watching:
    """Polls until it is stopped."""

    def __init__(self, scene: DaemonScene, garrison: Garrison, elapsed_s: Callable[[], float]) -> None:
        self._scene = scene
        self._garrison = garrison
        self._elapsed_s = elapsed_s
        self._stop = threading.Event()
        looks = (
            (SAMPLES, SAMPLE_S, self._samples),
            (HEAPS, HEAP_S, self._heaps),
            (SCRAPES, SCRAPE_S, self._scrapes),
        )
        self._threads = [threading.Thread(target=self._keep, args=look, name=look[0]) for look in looks]
        self.broken: list[BaseException] = []

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _keep(self, name: str, every_s: float, look: Callable[[], list[dict[str, Any]]]) -> None:
        try:
            with (self._scene.folder / name).open("a", encoding="utf-8") as file:
                while not self._stop.is_set():
                    began = time.monotonic()
                    at = round(self._elapsed_s(), 3)
                    for line in look():
                        file.write(json.dumps({"at": at, **line}) + "\n")
                    file.flush()
                    self._stop.wait(max(0.05, every_s - (time.monotonic() - began)))
        except BaseException as error:  # noqa: BLE001 - reported by the run
            self.broken.append(error)

    def _samples(self) -> list[dict[str, Any]]:
        around = {
            "metadata_mb": _size(self._scene.metadata),
            "intake_files": _files(self._scene.data / "intake"),
        }
        return [
            {"daemon": daemon.name, **_processes(daemon), **around} for daemon in self._garrison.running()
        ]

    def _heaps(self) -> list[dict[str, Any]]:
        return [{"daemon": daemon.name, "heap_mb": _live_heap(daemon)} for daemon in self._garrison.running()]

    def _scrapes(self) -> list[dict[str, Any]]:
        found = []
        for page in PAGES:
            began = time.monotonic()
            status, body = get(self._scene.port, page, SCRAPE_TIMEOUT_S)
            line: dict[str, Any] = {
                "page": page,
                "status": status,
                "seconds": round(time.monotonic() - began, 4),
                "bytes": len(body),
            }
            if page == "/metrics":
                line["lag"] = lags(body)
            elif status != 200:
                line["said"] = body[:300].decode(errors="replace")
            found.append(line)
        return found


def lags(metrics: bytes) -> dict[str, float]:
    """The largest lag in seconds of each stage on a page of metrics."""
    found: dict[str, float] = {}
    for match in _LAG.finditer(metrics):
        stage = re.search(rb'stage="([^"]*)"', match["labels"] or b"")
        name = (stage[1] if stage else match["name"]).decode()
        found[name] = max(found.get(name, 0.0), float(match["value"]))
    return found


def _processes(daemon: Daemon) -> dict[str, Any]:
    """Numbers of a daemon and of what it started."""
    line: dict[str, Any] = {"rss_mb": None, "fds": None, "threads": None, "children": None, "workers": None}
    with contextlib.suppress(psutil.Error):
        own = psutil.Process(daemon.pid)
        with own.oneshot():
            line |= {
                "rss_mb": own.memory_info().rss / _MEGA,
                "fds": own.num_fds(),
                "threads": own.num_threads(),
            }
        below = daemon.descendants()
        line |= {"children": len(below), "workers": sum(part == "worker" for part, _ in below)}
        workers = []
        for part, process in below:
            with contextlib.suppress(psutil.Error), process.oneshot():
                memory = process.memory_info().rss / _MEGA
                if part == "jvm":
                    line |= {
                        "jvm_rss_mb": memory,
                        "jvm_fds": process.num_fds(),
                        "jvm_threads": process.num_threads(),
                    }
                elif part == "worker":
                    workers.append(memory)
        line["worker_rss_mb"] = max(workers, default=None)
    return line


def _live_heap(daemon: Daemon) -> float | None:
    """Megabytes of the JVM's heap that are in use after a collection; None without a JVM, or without a JDK's
    `jcmd`."""
    jvm = daemon.jvm()
    if jvm is None or shutil.which("jcmd") is None:
        return None
    try:
        done = subprocess.run(
            ["jcmd", str(jvm.pid), "GC.class_histogram"], capture_output=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    live = _LIVE.search(done.stdout)
    return int(live[1]) / _MEGA if done.returncode == 0 and live is not None else None


def _size(database: Path) -> float | None:
    """Megabytes of a SQLite database with its journal."""
    try:
        size = database.stat().st_size
    except OSError:
        return None
    for beside in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            size += database.with_name(database.name + beside).stat().st_size
    return size / _MEGA


def _files(folder: Path) -> int | None:
    try:
        return sum(1 for path in folder.rglob("*") if path.is_file())
    except OSError:  # A folder went while it was listed.
        return None
