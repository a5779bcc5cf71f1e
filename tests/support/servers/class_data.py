"""Archives of loaded classes, so that the JVMs of tests start with two thirds of the processor time.

A JVM spends most of its start on loading and verifying classes. Java can keep the result in a file and map it into
the next process (JEP 350). `make parts` writes one file for each program; a JVM that cannot use its file starts as if
there were none.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from archiver.spark.java import JavaUnfit, require_java
from tests.support.servers.maven import CACHE, SPARK_JARS

CLASSES = CACHE.parent / "classes"
WRITE = "ARCHIVER_TESTS_WRITE_CLASSES"
"""Set while `make parts` runs a program to write its file."""

WRITE_TIMEOUT_S = 600.0
"""Spark takes 40 s on a quiet machine with two cores, and took over 120 s on a busy one."""
SPARK = "spark"
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""`spark-submit` starts a JVM only to print the command line of the next one."""
_QUIET = "-Xlog:cds*=off"
"""The JVM prints to standard output why it cannot use a file, and tests read that output."""


class Server(Protocol):
    """A server of the tests."""

    def start(self) -> None:
        """Start it, and wait until it answers."""

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""


_SPARK_RUN = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
session = builder.getOrCreate()
session.range(1000).selectExpr("id", "id % 7 AS k").groupBy("k").count().collect()
session.sparkContext.parallelize(range(8), 4).mapPartitions(lambda rows: [sum(rows)]).collect()
session.stop()
"""


def archive_of(program: str) -> Path:
    """The program's file: one for each version and path of Java and of Spark's jars, because the file depends on both."""
    return CLASSES / f"{program}-{_place()}.jsa"


@functools.cache
def _place() -> str:
    java = require_java(os.environ)
    found = f"{java.executable.resolve()} {java.version} {SPARK_JARS} {version('pyspark')} {CACHE}"
    return hashlib.sha256(found.encode()).hexdigest()[:12]


def _part_of(program: str) -> Path:
    """What this process writes before it takes its name: tests in several processes may write the same file."""
    path = archive_of(program)
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def options(program: str) -> list[str]:
    """Options of the JVM that use the program's file, or write it; none if there is no file."""
    # Without the folder no file can be there, and unit tests need no Java to know that. Spark splits the options at
    # spaces.
    if not CLASSES.exists() or " " in str(CLASSES):
        return []
    try:
        path = archive_of(program)
    except JavaUnfit:
        return []
    if os.environ.get(WRITE) == program:
        return [f"-XX:ArchiveClassesAtExit={_part_of(program)}", _QUIET]
    return [f"-XX:SharedArchiveFile={path}", _QUIET] if path.exists() else []


def for_spark() -> dict[str, str]:
    """The variables by which a Spark that is started uses its file, if there is one, and starts its launcher quickly."""
    found = options(SPARK)
    return {"SPARK_LAUNCHER_OPTS": _LAUNCHER, **({"SPARK_SUBMIT_OPTS": " ".join(found)} if found else {})}


@contextmanager
def writing(program: str) -> Iterator[None]:
    """JVMs of the program that end within this block write its file, the last one keeps it."""
    CLASSES.mkdir(parents=True, exist_ok=True)
    path = archive_of(program)
    os.environ[WRITE] = program
    try:
        yield
    finally:
        del os.environ[WRITE]
    part = _part_of(program)
    if part.exists():
        part.replace(path)


def write_for_spark() -> None:
    """Run a small job, so that Spark's file is written; nothing if it is there."""
    if archive_of(SPARK).exists():
        return
    with writing(SPARK), tempfile.TemporaryDirectory() as folder:
        # Another process: the JVM writes the file when it ends, and this one would keep it.
        subprocess.run(
            [sys.executable, "-c", _SPARK_RUN],
            cwd=folder,
            env=os.environ | for_spark() | {"SPARK_LOCAL_IP": "127.0.0.1"},
            check=True,
            capture_output=True,
            timeout=WRITE_TIMEOUT_S,
        )


def write_for(program: str, server: Callable[[Path], Server]) -> None:
    """Start and stop a server, so that its file is written; nothing if it is there."""
    if archive_of(program).exists():
        return
    with writing(program), tempfile.TemporaryDirectory() as folder:
        made = server(Path(folder))
        try:
            made.start()
        finally:
            made.stop()
