"""Reads CPU time and memory of a process and its descendants from the kernel (`/proc`), by kind of
process.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

WORKERS_PARENT = "archiver.spark.pyspark_daemon"
"""The module from which Spark's Python workers are forked; they have its command line."""


@dataclass
class Taken:
    """CPU time and memory of the processes of one part together."""

    own_cpu_s: float = 0.0
    ended_cpu_s: float = 0.0
    """CPU seconds of their children that have ended and were waited for."""
    rss_bytes: int = 0

    @property
    def cpu_s(self) -> float:
        """All CPU seconds since their start."""
        return self.own_cpu_s + self.ended_cpu_s


def family(pid: int) -> list[psutil.Process]:
    """Return the process and its live descendants; empty if it has ended."""
    try:
        own = psutil.Process(pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def taken_by(pid: int, program: str = "program") -> dict[str, Taken]:
    """Return CPU time and memory by part. Parts are `jvm`, the process itself (`program`), and
    `workers`.

    `workers` are Spark's Python workers with their parent. CPU time of idle workers that have ended
    is missing: no process waits for them, so the kernel drops it. Measurements longer than a minute
    must sample each process (`taken_by_each`).
    """
    found: dict[str, Taken] = {}
    for part, taken in taken_by_each(pid, program).values():
        together = found.setdefault(part, Taken())
        together.own_cpu_s += taken.own_cpu_s
        together.ended_cpu_s += taken.ended_cpu_s
        together.rss_bytes += taken.rss_bytes
    return found


def taken_by_each(pid: int, program: str = "program") -> dict[tuple[int, float], tuple[str, Taken]]:
    """Return part, CPU time and memory by process. A process is identified by its id and start
    time.
    """
    found: dict[tuple[int, float], tuple[str, Taken]] = {}
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            part = "jvm" if is_jvm(process) else program if process.pid == pid else "workers"
            times, memory = process.cpu_times(), process.memory_info()
            taken = Taken(times.user + times.system, times.children_user + times.children_system, memory.rss)
            found[process.pid, process.create_time()] = (part, taken)
    return found


def cpu_seconds(pid: int) -> dict[str, float]:
    """Return CPU seconds by part, including ended processes."""
    return {part: taken.cpu_s for part, taken in taken_by(pid).items()}


def all_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all parts."""
    return sum(cpu_seconds(pid).values())


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process and all descendants, including ended ones. These
    include the JVM, its Python workers and the libraries' processes.
    """
    return all_cpu_seconds(os.getpid())


def is_jvm(process: psutil.Process) -> bool:
    """Return whether the process is a JVM, by name. A forked child has the JVM's command line until
    it calls exec.
    """
    return process.name() == "java"


def kind_of(process: psutil.Process, pid: int) -> str | None:
    """Return the kind of a process under the command `pid`, which refines on this machine; None for
    short-lived setup processes.

    A JVM's child shares the JVM's memory for some milliseconds and has the name of a thread. So the
    parent of workers is recognized by its command line. The module's name also occurs in the JVM's
    command line, within a property. It is an argument in that of each worker.
    """
    if process.pid == pid:
        return "driver"
    if is_jvm(process):
        return "jvm"
    parent = process.parent()
    if parent is None:
        return None
    if WORKERS_PARENT in parent.cmdline():
        return "worker"
    return "parent of workers" if is_jvm(parent) and WORKERS_PARENT in process.cmdline() else None
