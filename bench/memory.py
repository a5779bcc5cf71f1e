"""Measures the peak memory of `archiver archive --all` for backlogs of one partition, by process.

Each backlog is of nested orders in a new deployment with default settings. The command runs in its
own process, as a user starts it. Peaks are Linux's figures for each process (VmHWM), polled every
50 ms until it ends. Pages that a worker shares with its parent process count for both. `together`
is the largest sum of resident memory at one time, with shared pages counted once (PSS), sampled
every half second.

    python -m bench.memory [--quick] [--sizes 100MiB,1GiB,10GiB] [--output bench/results/memory.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.config.types import Size
from archiver.refine.task import RefineOptions
from bench.deployment import write_configuration
from bench.intake_files import KEY_BYTES, bytes_of, send
from bench.outcome import tell
from bench.processes import family, kind_of
from bench.shapes import SHAPES, Shape

SIZES = "100MiB,1GiB,10GiB"
QUICK_SIZES = "1MiB,4MiB"
SHAPE = "nested"
LOOK_EVERY_S = 0.05
SUM_EVERY_S = 0.5
TIMEOUT_S = 4 * 3600.0
SAMPLE_ROWS = 10_000
"""Sample that gives the mean bytes of a record."""
MIB = 2**20


class Peaks:
    """Peak memory of a process and its descendants, by kind of process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[tuple[str, int], int] = {}
        self.together = 0
        self._summed_s = 0.0

    def look(self) -> None:
        """Sample every live process."""
        processes = family(self._pid)
        for process in processes:
            try:
                kind = kind_of(
                    process, self._pid
                )  # read first: before exec the process may share its parent's memory
                if kind is not None:
                    self._peaks[kind, process.pid] = max(
                        _peak_bytes(process.pid), self._peaks.get((kind, process.pid), 0)
                    )
            except (OSError, psutil.NoSuchProcess):
                continue  # it has just ended
        if time.monotonic() - self._summed_s >= SUM_EVERY_S:
            self._summed_s = time.monotonic()
            self.together = max(self.together, sum(map(_shared_bytes, processes)))

    def mib(self) -> dict[str, float]:
        """Return the highest peak of a single process of each kind, in MiB."""
        found: dict[str, int] = {}
        for (kind, _), peak in self._peaks.items():
            found[kind] = max(peak, found.get(kind, 0))
        return {kind: round(peak / MIB, 1) for kind, peak in sorted(found.items())}


def _peak_bytes(pid: int) -> int:
    """Return the peak resident bytes; 0 for a zombie process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _shared_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, OSError):
        return 0


def archive(config: Path) -> tuple[Peaks, float]:
    """Archive the whole backlog with the command; return the peaks and the seconds."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "archiver", "archive", "--all", "--config", str(config)], stdout=sys.stderr
    ) as process:
        peaks = Peaks(process.pid)
        try:
            while process.poll() is None and time.monotonic() - began < TIMEOUT_S:
                peaks.look()
                time.sleep(LOOK_EVERY_S)
        finally:
            process.kill()
    assert process.returncode == 0, process.returncode
    return peaks, time.monotonic() - began


def backlog(folder: Path, shape: Shape, size: int) -> dict[str, Any]:
    """Fill one partition of a new deployment with about `size` raw bytes and archive them."""
    config = write_configuration(folder, shape, 1)
    records = max(1, size * SAMPLE_ROWS // (bytes_of(shape.make(SAMPLE_ROWS, 0)) + KEY_BYTES * SAMPLE_ROWS))
    settings = load_settings(config, os.environ)
    with Application(settings, os.environ) as application, application.intake.writer() as writer:
        raw_bytes = send(writer, records, shape.make)
    print(f"{records:,} records, {raw_bytes / MIB:,.0f} MiB", file=sys.stderr, flush=True)
    peaks, seconds = archive(config)
    with Application(settings, os.environ) as application:
        document = application.maintenance.audit(None)
    (partition,) = document["partitions"]
    assert (document["verdict"], partition["rows"]) == ("valid", records), document
    archives = [path.stat().st_size for path in (folder / "data" / "archive").rglob("*.parquet")]
    return {
        "raw_bytes": raw_bytes,
        "records": records,
        "archives": len(archives),
        "stored_bytes": sum(archives),
        "seconds": round(seconds, 1),
        "peak_mib": peaks.mib(),
        "together_mib": round(peaks.together / MIB, 1),
    }


def measure(sizes: Sequence[str], folder: Path) -> dict[str, Any]:
    """The result document."""
    shape = SHAPES[SHAPE]
    found: dict[str, Any] = {}
    for number, size in enumerate(sizes):
        place = folder / str(number)
        found[size] = backlog(place, shape, TypeAdapter(Size).validate_python(size))
        shutil.rmtree(place)
        print(f"{size}: {found[size]['peak_mib']}", file=sys.stderr, flush=True)
    first, last = (found[size]["peak_mib"]["worker"] for size in (sizes[0], sizes[-1]))
    options = RefineOptions()
    return {
        "what": "peak memory of archiving a backlog of one partition",
        "shape": SHAPE,
        "backlogs": found,
        "worker_last_by_first": round(last / first, 3),
        "bounds": {
            "row_group_bytes": options.row_group_bytes,
            "buffer_bytes": options.buffer_bytes,
            "decode_bytes": options.decode_bytes,
        },
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "memory_mib": psutil.virtual_memory().total // MIB,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyarrow", "ptars", "pyspark")},
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="backlogs of a few MiB: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-memory-"))
    try:
        document = measure((QUICK_SIZES if options.quick else options.sizes).split(","), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(document, options.output)


if __name__ == "__main__":
    main()
