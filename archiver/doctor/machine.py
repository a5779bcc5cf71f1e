"""Checks of the machine: Java, memory, open files, the optional package DuckDB. None needs a network."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from archiver.config.groups import IntakeSettings, SparkSettings
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.daemon.limits import LIMIT_MAX, allowed_limit, files_needed
from archiver.doctor.report import Finding, not_applicable, ok, problem, unknown, warning
from archiver.query.duck import require_duckdb
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.text import human_bytes
from archiver.spark.java import TESTED, JavaUnfit, require_java
from archiver.web.listener import CONNECTIONS_MAX

SPARK_ROLES = frozenset({"archive", "reconcile"})
INSTALL_JAVA = (
    "install OpenJDK 17 or 21 (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless), or set "
    "JAVA_HOME to its folder"
)
_MIB = 2**20
# Measured: 143 MiB after the start with a log of a million entries (docs/operations/capacity.md). The rest
# is for the metadata of tables.
_DAEMON_BYTES = 256 * _MIB
# Measured, for a backlog of any size (docs/performance.md, Memory).
_WORKER_BYTES = 432 * _MIB
_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_NO_LIMIT = 2**60
"""A larger limit of a control group means none."""
_CGROUPS = "/sys/fs/cgroup"
_HEAP = "the JVM's heap (spark.driver_memory)"


# --- Java
def java(environ: Mapping[str, str], roles: Sequence[str], spark: SparkSettings) -> Finding:
    """The Java that Spark will start, and how it is found."""
    if spark.remote is not None:
        return not_applicable("spark.remote names a Spark Connect server, which has its own Java")
    home = environ.get("JAVA_HOME", "")
    try:
        found = require_java(environ)
    except JavaUnfit as error:
        if SPARK_ROLES.isdisjoint(roles):
            return not_applicable("the roles of this machine start no Spark")
        remedy = f"correct or unset JAVA_HOME, or {INSTALL_JAVA}" if home else INSTALL_JAVA
        return problem(error.found, remedy)
    how = "JAVA_HOME" if home else "PATH"
    tested = "" if found.tested else f"; the tests run on Java {', '.join(map(str, TESTED))}"
    return ok(f"Java {found.major} at {found.executable}, found by {how} ({found.version}){tested}")


# --- Memory
def memory_needs(
    roles: Sequence[str],
    spark: SparkSettings,
    intake: IntakeSettings,
    kafka: KafkaListenerSettings | None,
    cores: int,
) -> dict[str, int]:
    """Bytes that these settings let a daemon take, by part."""
    needs: dict[str, int] = {}
    if spark.remote is None and not SPARK_ROLES.isdisjoint(roles):
        needs[_HEAP] = heap_bytes(spark.driver_memory)
        if spark.is_local:
            workers = local_cores(spark, cores)
            needs[f"{workers} Python workers of Spark (spark.master)"] = workers * _WORKER_BYTES
    needs["the daemon"] = _DAEMON_BYTES
    if "intake" in roles:
        writers = intake.workers if intake.workers == 1 else intake.workers + 1
        needs["the queue of records (intake.queue_bytes_max)"] = writers * intake.queue_bytes_max
        if kafka is not None:
            each = kafka.requests_bytes_max + kafka.fetch_cache_bytes
            needs["requests of Kafka clients (kafka.requests_bytes_max, kafka.fetch_cache_bytes)"] = (
                intake.workers * each
            )
    return needs


def heap_bytes(text: str) -> int:
    """Bytes of a size in Java's notation, as `spark.driver_memory` has it."""
    return int(text[:-1]) * _UNITS[text[-1].lower()]


def local_cores(spark: SparkSettings, cores: int) -> int:
    """Tasks that Spark runs at the same time on this machine."""
    master = spark.properties().get("spark.master", spark.master)
    number = master.removeprefix("local[").partition("]")[0].partition(",")[0]
    if master == "local":
        return 1
    return int(number) if number.isascii() and number.isdecimal() else cores


def judge_memory(has: Mapping[str, int], needs: Mapping[str, int], whose: str = "these settings") -> Finding:
    """Compare the smallest of the limits with the needs of `whose` settings."""
    if not has:
        return unknown("the memory of this machine cannot be read", "compare it with `free -h`")
    where, limit = min(has.items(), key=lambda one: one[1])
    total = sum(needs.values())
    parts = ", ".join(f"{human_bytes(size)} for {what}" for what, size in needs.items())
    has_heap = _HEAP in needs
    if limit < needs.get(_HEAP, 0) + _DAEMON_BYTES:
        return problem(
            f"{where} has {human_bytes(limit)}, but {whose} need {human_bytes(total)}: {parts}",
            f"give it {human_bytes(total)}" + (", or lower `spark.driver_memory`" if has_heap else ""),
        )
    if limit < total:
        lower = ", lower `spark.driver_memory`, or set `spark.master: local[N]` to fewer cores"
        return warning(
            f"{where} has {human_bytes(limit)}, but {whose} allow {human_bytes(total)}: {parts}",
            f"give it {human_bytes(total)}" + (lower if has_heap else ""),
        )
    return ok(f"{where} has {human_bytes(limit)}; {whose} need up to {human_bytes(total)}")


def memory_limits(read: Callable[[str], str | None]) -> dict[str, int]:
    """Bytes of the machine and of the control group of this process, as far as each is known."""
    found: dict[str, int] = {}
    try:
        found["the machine"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # a system without these names
        pass
    group = cgroup_limit(read("/proc/self/cgroup") or "", read)
    if group is not None:
        found["the control group of this process"] = group
    return found


def cgroup_limit(own: str, read: Callable[[str], str | None]) -> int | None:
    """The smallest memory limit of a process's control group and of the groups above it; None without one.

    `own` is the text of `/proc/self/cgroup`.
    """
    files: list[str] = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            files += [f"{_CGROUPS}{above}/memory.max" for above in _with_parents(path)]
        elif "memory" in controllers.split(","):
            files += [f"{_CGROUPS}/memory{above}/memory.limit_in_bytes" for above in _with_parents(path)]
    texts = [(read(file) or "").strip() for file in files]
    limits = [int(text) for text in texts if text.isascii() and text.isdecimal()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def _with_parents(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return ["".join(f"/{part}" for part in parts[:length]) for length in range(len(parts) + 1)]


def read_small_file(path: str) -> str | None:
    """The beginning of a file of the kernel; None if it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(64 * 1024)
    except OSError:
        return None


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- Open files
def open_files(kafka: KafkaListenerSettings | None) -> Finding:
    """Whether every connection of the ports can have a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_open_files(
        allowed_limit(soft, hard),
        files_needed(CONNECTIONS_MAX, 0 if kafka is None else kafka.connections_max),
    )


def judge_open_files(allowed: int, needed: int) -> Finding:
    """Compare the limit of open files with what the ports may use."""
    # The daemon raises its limit no further than that.
    needed = min(needed, LIMIT_MAX)
    if allowed < needed:
        return warning(
            f"a process of this user may open {allowed:,} files, so the ports accept fewer connections than "
            f"configured, which need {needed:,}",
            f"raise the hard limit to {needed} (LimitNOFILE= of the systemd unit, ulimit -Hn)",
        )
    return ok(f"a process of this user may open {allowed:,} files; the daemon needs up to {needed:,}")


# --- DuckDB
def duckdb() -> Finding:
    """The optional package of `archiver query`."""
    try:
        version = require_duckdb().__version__
    except ConfigInvalid as error:
        found, _, remedy = str(error).partition("; ")
        return warning(found, f"{remedy}, if you use `archiver query`")
    return ok(f"DuckDB {version}, for `archiver query`")
