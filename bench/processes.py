"""Reads CPU time and memory of a process and its descendants from the kernel (`/proc`), by kind of
process.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

WORKERS_PARENT = "archiver.spark.pyspark_daemon"
"""The module that Python workers of Spark are forked from; they have its command line."""


@dataclass
class Taken:
    """By processes of one part, together."""

    own_cpu_s: float = 0.0
    ended_cpu_s: float = 0.0
    """Of what they started, has ended and was waited for."""
    rss_bytes: int = 0

    @property
    def cpu_s(self) -> float:
        """All of it, since their start."""
        return self.own_cpu_s + self.ended_cpu_s


def family(pid: int) -> list[psutil.Process]:
    """The process and everything it started, as far as it lives; nothing if it has ended."""
    try:
        own = psutil.Process(pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def taken_by(pid: int, program: str = "program") -> dict[str, Taken]:
    """By part, those that there are: `jvm`; the process itself, called `program`; `workers`, Python workers
    with what starts them.

    What Spark's idle workers took is in none of them once they have ended: nobody waits for them, so the
    kernel forgets it. Who measures for longer than a minute watches each process (`taken_by_each`).
    """
    found: dict[str, Taken] = {}
    for part, taken in taken_by_each(pid, program).values():
        together = found.setdefault(part, Taken())
        together.own_cpu_s += taken.own_cpu_s
        together.ended_cpu_s += taken.ended_cpu_s
        together.rss_bytes += taken.rss_bytes
    return found


def taken_by_each(pid: int, program: str = "program") -> dict[tuple[int, float], tuple[str, Taken]]:
    """By process (its id, and when it began): the part that it belongs to, and what it has taken."""
    found: dict[tuple[int, float], tuple[str, Taken]] = {}
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            part = "jvm" if is_jvm(process) else program if process.pid == pid else "workers"
            times, memory = process.cpu_times(), process.memory_info()
            taken = Taken(times.user + times.system, times.children_user + times.children_system, memory.rss)
            found[process.pid, process.create_time()] = (part, taken)
    return found


def cpu_seconds(pid: int) -> dict[str, float]:
    """By part, what has ended included."""
    return {part: taken.cpu_s for part, taken in taken_by(pid).items()}


def all_cpu_seconds(pid: int) -> float:
    """Of all parts."""
    return sum(cpu_seconds(pid).values())


def own_cpu_seconds() -> float:
    """Of this process and everything it started, also what has ended: the JVM, its Python workers, the
    libraries' processes.
    """
    return all_cpu_seconds(os.getpid())


def is_jvm(process: psutil.Process) -> bool:
    """By its name: its command line is also that of what it starts, until that has begun."""
    return process.name() == "java"


def kind_of(process: psutil.Process, pid: int) -> str | None:
    """What a process is to the command `pid` that refines on this machine; None for the many that only set
    something up.

    The memory of what a JVM starts is the JVM's own for some milliseconds, and its name that of a thread; so
    a parent of workers is known by its command line. The module's name is also part of the JVM's, within a
    property, and all of that of each worker.
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
