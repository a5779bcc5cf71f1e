"""Are the processes of a benchmark distinguished, and is all of their CPU time counted?"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.daemons import Cores
from bench.processes import cpu_seconds, family, kind_of, taken_by
from tests.support.process.processes import until

BURNT_S = 0.3
STARTER = """
import json, os, subprocess, sys
for program, argv in json.loads(sys.argv[1]):
    subprocess.Popen(argv, executable=program)
if sys.argv[2] == "forks":
    os.fork()
os.write(1, b"up\\n")
sys.stdin.read()
"""
"""Starts the given processes, reports that it runs, and stays until their common pipe ends."""
PROPERTY = "spark.python.daemon.module=archiver.spark.pyspark_daemon"


def starter(
    program: Path | str,
    *more: str,
    starts: list[Any] | None = None,
    forks: bool = False,
    called: str | None = None,
) -> Any:
    """A program with its arguments. `called` replaces its name in the command line."""
    return [
        str(program),
        [called or str(program), "-ISc", STARTER, json.dumps(starts or []), "forks" if forks else "", *more],
    ]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="a process has the name of a link only there"
)
def test_a_worker_is_known_from_what_it_is_forked_from_and_neither_from_the_jvm(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(Path(sys.executable).resolve())
    parent_of_a_worker = starter(
        sys.executable, "archiver.spark.pyspark_daemon", "pyspark.worker", forks=True
    )
    # A child of a JVM has the JVM's command line until its own program starts.
    just_started = starter(sys.executable, PROPERTY, called=str(java))
    jvm = starter(java, PROPERTY, starts=[parent_of_a_worker, just_started])
    _, argv = starter(sys.executable, starts=[jvm, starter(sys.executable)])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(6)] == [b"up\n"] * 6
        processes = family(process.pid)
        kinds = sorted(str(kind_of(one, process.pid)) for one in processes)
        taken = taken_by(process.pid, "daemon")
        process.stdin.close()
    assert kinds == ["None", "None", "driver", "jvm", "parent of workers", "worker"]
    assert set(taken) == {"daemon", "jvm", "workers"}
    assert all(one.rss_bytes > 1e6 for one in taken.values())
    assert taken["workers"].rss_bytes > 2 * taken["jvm"].rss_bytes, (
        "they are four, and each is the same program"
    )


def test_cpu_time_of_what_has_ended_is_counted(tmp_path: Path) -> None:
    burn = f"import time\nwhile time.process_time() < {BURNT_S}: pass"
    parent = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint('done', "
        "flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"done\n"
        found = cpu_seconds(process.pid)
        process.stdin.close()
    assert found["program"] >= BURNT_S
    assert set(found) == {"program"}


FORGETS = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as the parent of Spark's workers does: nobody waits for them
if os.fork() == 0:
    while time.process_time() < {BURNT_S + 0.1}: pass
    print("burnt", flush=True)
    sys.stdin.readline()
    os._exit(0)
sys.stdin.readline()
"""


def test_what_a_worker_took_without_a_waiting_parent_is_in_the_cores() -> None:
    with subprocess.Popen(
        [sys.executable, "-ISc", FORGETS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        with Cores(SimpleNamespace(daemon=process), 0.02) as cores:  # type: ignore[arg-type]  # only its id is asked for
            began_s = time.monotonic()
            assert process.stdout.readline() == b"burnt\n"
            time.sleep(0.2)
            (worker,) = family(process.pid)[1:]
            worker.kill()
            until("the worker has ended", lambda: not worker.is_running())
            assert set(taken_by(process.pid)) == {"program"}
            most_s = time.monotonic() - began_s + 0.5
        process.kill()
    found = cores.reported()
    assert found["workers"] * most_s >= BURNT_S
    assert found["all"] == pytest.approx(found["daemon"] + found["workers"], abs=0.001)
    assert found["jvm"] == 0
