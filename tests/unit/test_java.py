"""The search for Java, against programs that imitate one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archiver.runtime.exit_codes import WRONG, exit_code
from archiver.spark.java import JavaUnfit, require_java

ROOT = Path(__file__).resolve().parents[2]
OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


def pretend(folder: Path, said: str, *, code: int = 0, before: str = "") -> Path:
    """A program `java` in `folder` that prints `said` on standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{before}\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return program


def path_with(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"}


def test_java_in_path(tmp_path: Path) -> None:
    program = pretend(tmp_path, OPENJDK_17)
    found = require_java(path_with(tmp_path))
    assert (found.executable, found.major, found.version, found.tested) == (
        program,
        17,
        'openjdk version "17.0.15" 2025-04-15',
        True,
    )


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    pretend(tmp_path / "path", OPENJDK_17)
    program = pretend(tmp_path / "home" / "bin", 'openjdk version "21.0.2" 2024-01-16 LTS')
    found = require_java({**path_with(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")})
    assert (found.executable, found.major, found.tested) == (program, 21, False)


def test_an_empty_java_home_counts_as_unset(tmp_path: Path) -> None:
    pretend(tmp_path, OPENJDK_17)
    assert require_java({**path_with(tmp_path), "JAVA_HOME": ""}).major == 17


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('java version "17" 2021-09-14 LTS', 17),
        ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n" + OPENJDK_17, 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
    ],
)
def test_versions_as_vendors_print_them(tmp_path: Path, said: str, major: int) -> None:
    pretend(tmp_path, said)
    found = require_java(path_with(tmp_path))
    assert found.major == major
    assert "version" in found.version


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "1.8.0_392"', 8),
        ('openjdk version "11.0.21"', 11),
        ('openjdk version "25" 2025-09-16', 25),
    ],
)
def test_an_unsupported_version_is_named(tmp_path: Path, said: str, major: int) -> None:
    program = pretend(tmp_path, said)
    with pytest.raises(
        JavaUnfit, match=rf"{program} is Java {major} .*Spark needs Java 17 or 21; install a Java runtime"
    ):
        require_java(path_with(tmp_path))


def test_no_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaUnfit) as caught:
        require_java({"PATH": str(tmp_path)})
    message = str(caught.value)
    assert message.startswith("no java in PATH and JAVA_HOME is not set")
    for line in (
        "sudo apt-get install openjdk-17-jre-headless",
        "sudo dnf install java-21-openjdk-headless",
        "brew install openjdk@17",
        "JAVA_HOME",
    ):
        assert line in message
    assert exit_code(caught.value) == WRONG


def test_a_java_home_without_java_is_not_passed_over(tmp_path: Path) -> None:
    pretend(tmp_path, OPENJDK_17)
    with pytest.raises(
        JavaUnfit,
        match=r"JAVA_HOME is /nowhere, but there is no program /nowhere/bin/java; correct or unset JAVA_HOME",
    ):
        require_java({**path_with(tmp_path), "JAVA_HOME": "/nowhere"})


def test_a_java_that_fails_or_reports_nothing(tmp_path: Path) -> None:
    pretend(tmp_path, "Unable to locate a Java Runtime.", code=1)
    with pytest.raises(JavaUnfit, match=r"failed with exit code 1 \('Unable to locate a Java Runtime.'\)"):
        require_java(path_with(tmp_path))
    pretend(tmp_path, "hello")
    with pytest.raises(JavaUnfit, match=r"does not tell a version but 'hello'"):
        require_java(path_with(tmp_path))


def test_a_java_that_is_not_a_program(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    with pytest.raises(JavaUnfit, match="cannot be started"):
        require_java({"PATH": str(tmp_path)})


def test_a_java_that_hangs(tmp_path: Path) -> None:
    pretend(tmp_path, OPENJDK_17, before="exec sleep 30")
    with pytest.raises(JavaUnfit, match=r"did not answer within 0.2 s"):
        require_java(path_with(tmp_path), timeout_s=0.2)


def run_check(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_java.py")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_the_script_ends_with_3_and_the_message(tmp_path: Path) -> None:
    done = run_check({"PATH": str(tmp_path)})
    assert done.returncode == 3
    assert done.stderr.startswith("error: no java in PATH")
    assert "openjdk-17-jre-headless" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_reports_what_was_not_tested(tmp_path: Path) -> None:
    pretend(tmp_path, 'openjdk version "21.0.2"')
    done = run_check(path_with(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("Java 21: ")
    assert "tests ran on 17" in done.stdout
