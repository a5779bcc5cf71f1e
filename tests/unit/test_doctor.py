"""The decisions of `archiver doctor`: outcomes, order, text, exit code, and the judgement of each measured
value."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from archiver.config.groups import IntakeSettings, SparkSettings
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.doctor import clock, folders, machine, ports, report
from archiver.doctor.report import (
    Finding,
    Outcome,
    Result,
    not_applicable,
    not_checked,
    ok,
    problem,
    unknown,
    warning,
)
from archiver.doctor.run import Check, run_checks
from archiver.runtime.check_result import Checked, CheckResult, CheckStatus
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, RetryLater
from intake.log.clock_check import RESOLUTION_US, certain_skew_us

GIB = 2**30
ROLES = ("intake", "archive", "reconcile")
IN_USE = OSError(errno.EADDRINUSE, "Address already in use")


# the report


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([ok("a")], 0),
        ([ok("a"), warning("b", "c"), not_applicable("d")], 0),
        ([ok("a"), unknown("b", "c"), warning("d", "e")], 2),
        ([unknown("a", "b"), problem("c", "d")], 1),
        ([], 0),
    ],
)
def test_exit_code(findings: list[Finding], code: int) -> None:
    assert report.exit_code(Result("x", finding) for finding in findings) == code


def test_problems_come_first_with_their_remedies_and_what_is_fine_is_short() -> None:
    results = [
        Result("java", ok("Java 17")),
        Result("disk", warning("1 GiB free", "make room")),
        Result("catalog lake", unknown("refused", "start it")),
        Result("configuration", problem("a.yaml has 2 problems\n  line 1\n  line 2", "correct them")),
        Result("kafka.listen", not_applicable("none is configured")),
        Result("metadata store", not_checked("this needs a valid configuration")),
        Result("clock", not_checked("this needs a valid configuration")),
        Result("memory", ok("4 GiB")),
    ]
    assert list(report.lines(results)) == [
        "problem: configuration: a.yaml has 2 problems\n      line 1\n      line 2",
        "    remedy: correct them",
        "warning: disk: 1 GiB free",
        "    remedy: make room",
        "unknown: catalog lake: refused",
        "    remedy: start it",
        "ok:",
        "    java    Java 17",
        "    memory  4 GiB",
        "not applicable: kafka.listen: none is configured",
        "not checked: metadata store, clock: this needs a valid configuration",
        "1 problem, 1 warning, 1 unknown, 2 ok, 1 not applicable, 2 not checked",
    ]
    assert list(report.lines([Result("java", ok("Java 17"))]))[-1] == "0 problems, 1 ok"


def test_document() -> None:
    results = [Result("java", ok("Java 17")), Result("disk", problem("full", "make room"))]
    assert report.document("a.yaml", None, results) == {
        "config": "a.yaml",
        "cluster": None,
        "outcomes": {"problem": 1, "warning": 0, "unknown": 0, "ok": 1, "not applicable": 0},
        "checks": [
            {"name": "java", "outcome": "ok", "found": "Java 17", "remedy": None},
            {"name": "disk", "outcome": "problem", "found": "full", "remedy": "make room"},
        ],
    }


def test_the_most_urgent_part_decides() -> None:
    found = report.combined([ok("a"), warning("b", "x"), warning("c", "x"), not_applicable("d")])
    assert found == warning("b; c", "x")
    assert report.combined([ok("a"), ok("b")]) == ok("a; b")


def test_finding_of_a_connection() -> None:
    def checked(*items: tuple[str, CheckStatus, str]) -> Checked:
        return Checked("lake", "rest", tuple(CheckResult(*item) for item in items))

    fine, note = ("reachable", CheckStatus.FINE, "it answers"), ("table a", CheckStatus.NOTE, "not there yet")
    assert report.finding_of(checked(fine, note), {}, "r") == ok("it answers; not there yet")
    assert report.finding_of(checked(fine, note), {}, "r", brief=True) == ok("it answers")
    away = ("reachable", CheckStatus.UNKNOWN, "refused")
    assert report.finding_of(checked(away), {}, "r") == unknown("refused", "r")
    wrong = [(f"table {number}", CheckStatus.WRONG, "not ours") for number in range(7)]
    found = report.finding_of(checked(away, *wrong), {"table 0": "name another"}, "r")
    assert (found.outcome, found.remedy) == (Outcome.PROBLEM, "name another")
    assert found.found.endswith("table 4: not ours; and 2 more")


# running them


def test_checks_run_together_and_none_stops_the_others() -> None:
    both = threading.Barrier(2, timeout=10)
    released = threading.Event()

    def meet() -> Finding:
        both.wait()
        return ok("met")

    def fails(error: Exception) -> Finding:
        raise error

    checks = [
        Check("a", meet, "r"),
        Check("retry", lambda: fails(RetryLater("away")), "r"),
        Check("wrong", lambda: fails(ConfigInvalid("bad")), "r"),
        Check("bug", lambda: fails(KeyError("x")), "r"),
        Check("late", lambda: ok(str(released.wait(30))), "r"),
        Check("b", meet, "r"),
    ]
    began_s = time.monotonic()
    results = run_checks(checks, 1.0, SystemClock())
    took_s = time.monotonic() - began_s
    released.set()
    assert [result.name for result in results] == ["a", "retry", "wrong", "bug", "late", "b"]
    assert [result.finding for result in results] == [
        ok("met"),
        unknown("away", "r"),
        problem("bad", "r"),
        unknown("the check failed unexpectedly: KeyError: 'x'", "r"),
        unknown("no result within 1 s", "r"),
        ok("met"),
    ]
    assert took_s < 10


# the machine


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", 8), ("local-cluster[2,1,1024]", 8)],
)
def test_cores_of_spark(master: str, cores: int) -> None:
    assert machine.local_cores(SparkSettings(master=master), 8) == cores


def test_memory_that_settings_need() -> None:
    intake = IntakeSettings(workers=2)
    kafka = KafkaListenerSettings(listen="127.0.0.1:9092")
    needs = machine.memory_needs(ROLES, SparkSettings(driver_memory="3g"), intake, kafka, 2)
    assert list(needs.values()) == [
        3 * GIB,
        2 * 432 * 2**20,
        256 * 2**20,
        3 * intake.queue_bytes_max,
        2 * (kafka.requests_bytes_max + kafka.fetch_cache_bytes),
    ]
    assert list(
        machine.memory_needs(("archive",), SparkSettings(remote="sc://localhost"), intake, None, 2)
    ) == ["the daemon"]
    assert len(machine.memory_needs(("intake",), SparkSettings(), intake, None, 2)) == 2


@pytest.mark.parametrize(
    ("has", "outcome"),
    [
        ({"the machine": 8 * GIB}, Outcome.OK),
        ({"the machine": 8 * GIB, "the control group of this process": 3 * GIB}, Outcome.WARNING),
        ({"the machine": 2 * GIB}, Outcome.PROBLEM),
        ({}, Outcome.UNKNOWN),
    ],
)
def test_memory_of_the_machine(has: dict[str, int], outcome: Outcome) -> None:
    needs = machine.memory_needs(ROLES, SparkSettings(), IntakeSettings(), None, 2)
    found = machine.judge_memory(has, needs)
    assert found.outcome is outcome
    assert bool(found.remedy) is (outcome is not Outcome.OK)
    if outcome is Outcome.WARNING:
        assert found.found.startswith("the control group of this process has 3.0 GiB")


def test_memory_limit_of_a_control_group() -> None:
    files = {
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/system.slice/memory.max": f"{4 * GIB}\n",
        "/sys/fs/cgroup/system.slice/a.service/memory.max": f"{6 * GIB}\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{GIB}\n",
    }
    assert machine.cgroup_limit("0::/system.slice/a.service\n", files.get) == 4 * GIB
    assert machine.cgroup_limit("0::/\n", files.get) is None
    assert machine.cgroup_limit("5:cpu:/x\n4:memory:/box\n0::/none\n", files.get) == GIB
    assert machine.cgroup_limit("4:memory:/\n", files.get) is None
    assert machine.cgroup_limit("nonsense\n\n", files.get) is None


def test_open_files() -> None:
    assert machine.judge_open_files(65_536, 2_512).outcome is Outcome.OK
    few = machine.judge_open_files(1024, 2_512)
    assert (few.outcome, "raise the hard limit to 2512" in few.remedy) == (Outcome.WARNING, True)
    assert machine.judge_open_files(65_536, 300_000).outcome is Outcome.OK


def java(folder: Path, said: str) -> dict[str, str]:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_java(tmp_path: Path) -> None:
    found = machine.java(java(tmp_path, 'openjdk version "17.0.1"'), ROLES, SparkSettings())
    assert found.outcome is Outcome.OK
    assert f"Java 17 at {tmp_path}/java, found by PATH" in found.found
    found = machine.java(java(tmp_path, 'openjdk version "11.0.1"'), ROLES, SparkSettings())
    assert (found.outcome, found.remedy) == (Outcome.PROBLEM, machine.INSTALL_JAVA)
    assert found.found.endswith("but Spark needs Java 17 or 21")
    missing = {"PATH": str(tmp_path / "empty")}
    assert machine.java(missing, ROLES, SparkSettings()).outcome is Outcome.PROBLEM
    assert machine.java(missing, ("intake",), SparkSettings()).outcome is Outcome.NOT_APPLICABLE
    remote = SparkSettings(remote="sc://localhost")
    assert machine.java(missing, ROLES, remote).outcome is Outcome.NOT_APPLICABLE
    wrong_home = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": "/bin"}
    found = machine.java(wrong_home, ROLES, SparkSettings())
    assert (found.outcome, found.remedy.startswith("correct or unset JAVA_HOME")) == (Outcome.PROBLEM, True)


# folders


def place(name: str, owner: int = 7, writable: bool = True) -> folders.Place:
    return folders.Place(Path("/srv") / name, owner, f"user{owner}", writable)


@pytest.mark.parametrize(
    ("places", "user", "outcome", "said"),
    [
        ([place("data")], 7, Outcome.OK, "/srv/data can be written, owner user7"),
        ([place("data")], 8, Outcome.OK, "owner user7"),
        ([place("data")], 0, Outcome.WARNING, "root may write everywhere"),
        ([place("data", owner=0)], 0, Outcome.OK, "owner user0"),
        ([place("data", 0), place("m.db")], 7, Outcome.OK, "owner user7"),
        ([place("data"), place("m.db"), place("m.db-wal", 0)], 7, Outcome.WARNING, "/srv/m.db-wal to user0"),
        ([place("data"), place("m.db", 0, writable=False)], 7, Outcome.PROBLEM, "may not write /srv/m.db"),
        ([place(str(n), writable=False) for n in range(5)], 7, Outcome.PROBLEM, "/srv/2 and 2 more"),
    ],
)
def test_rights(places: list[folders.Place], user: int, outcome: Outcome, said: str) -> None:
    found = folders.judge_places(places[0], places[1:], "data.uri", user)
    assert found.outcome is outcome
    assert said in found.found


def test_free_space() -> None:
    def disk(free: int, *uses: str) -> folders.Disk:
        return folders.Disk(free, 100 * GIB, uses)

    assert folders.judge_disks([disk(50 * GIB, "data", "metadata")]) == ok(
        "50.0 GiB of 100.0 GiB free for data, metadata"
    )
    found = folders.judge_disks([disk(50 * GIB, "data"), disk(GIB, "scratch files")])
    assert found.outcome is Outcome.WARNING
    assert found.remedy == "make room for scratch files, or use a larger disk"
    assert folders.judge_disks([disk(0, "data"), disk(GIB, "x")]).outcome is Outcome.PROBLEM
    assert folders.judge_disks([]).outcome is Outcome.NOT_APPLICABLE


# ports


def daemon(**more: Any) -> dict[str, Any]:
    return {"address": "127.0.0.1:1", "state": "serving", "ready": True, "checks": [], **more}


def failed_port() -> dict[str, Any]:
    return daemon(checks=[{"name": "Kafka port", "ok": False, "why": "it is taken"}])


@pytest.mark.parametrize(
    ("setting", "found", "outcome"),
    [
        (ports.HTTP, daemon(), Outcome.OK),
        (ports.HTTP, daemon(ready=False), Outcome.OK),
        (ports.HTTP, None, Outcome.PROBLEM),
        (ports.KAFKA, None, Outcome.PROBLEM),
        # Without its token: only what fails is known.
        (ports.KAFKA, daemon(), Outcome.OK),
        (ports.KAFKA, failed_port(), Outcome.PROBLEM),
        (ports.KAFKA, daemon(kafka={"closed_because": None}), Outcome.OK),
        (ports.KAFKA, daemon(kafka={"closed_because": "it is taken"}), Outcome.PROBLEM),
        (ports.KAFKA, daemon(kafka=None), Outcome.PROBLEM),
    ],
)
def test_a_port_in_use(setting: str, found: dict[str, Any] | None, outcome: Outcome) -> None:
    judged = ports.judge_taken(setting, "127.0.0.1:9092", found, IN_USE)
    assert judged.outcome is outcome
    assert bool(judged.remedy) is (outcome is Outcome.PROBLEM)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EADDRINUSE, "stop it, or set `http.listen` to another port"),
        (errno.EADDRNOTAVAIL, "set `http.listen` to one that it has"),
        (errno.EACCES, "set `http.listen` to a port above 1023"),
        (errno.EIO, "correct `http.listen`"),
    ],
)
def test_a_port_that_cannot_be_opened(number: int, remedy: str) -> None:
    assert ports.closed("http.listen", "127.0.0.1:1", OSError(number, "x")).remedy == remedy


# the clock


def test_difference_of_clocks() -> None:
    at = 1_000_000_000
    assert certain_skew_us(at, at, at) == 0
    assert certain_skew_us(at + RESOLUTION_US, at, at + RESOLUTION_US) == 0, "the second may be almost over"
    assert certain_skew_us(at + RESOLUTION_US + 5, at, at + RESOLUTION_US + 9) == 5
    assert certain_skew_us(at - 50, at, at - 30) == -30
    assert certain_skew_us(at - 50, at, at + 30) == 0, "it may have been stated at any moment of the request"


@pytest.mark.parametrize(
    ("ahead_s", "outcome", "said"),
    [
        (0.0, Outcome.OK, "within a second of the store"),
        (3.0, Outcome.OK, "3 s ahead of the store"),
        (-4.0, Outcome.OK, "4 s behind the store"),
        (3600.0, Outcome.PROBLEM, "3,600 s ahead of the store"),
        (-3600.0, Outcome.WARNING, "3,600 s behind the store"),
    ],
)
def test_skew(ahead_s: float, outcome: Outcome, said: str) -> None:
    found = clock.judge_skew("the store", ahead_s, 10.0)
    assert found.outcome is outcome
    assert said in found.found


@pytest.mark.parametrize(
    ("newest_us", "outcome"),
    [
        (None, Outcome.NOT_APPLICABLE),
        (100_000_000, Outcome.OK),
        (105_000_000, Outcome.OK),
        (200_000_000, Outcome.WARNING),
    ],
)
def test_a_clock_that_was_set_back(newest_us: int | None, outcome: Outcome) -> None:
    assert clock.judge_files(newest_us, 100_000_000, 10.0).outcome is outcome
