"""The etcd that tests run: Debian's, unpacked into the checkout's `.cache/parts` without being installed,
else built with Go.

Owns that folder. Two processes that ask at once fetch once, and a program under its final name is whole. On a
machine that has neither Debian's packages nor Go the tests that need it are skipped by name; continuous
integration skips none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.absent import Absent
from tests.support.deploy import debian

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "parts" / "etcd"
DEBIAN = ("etcd-server", "etcd-client")
"""3.4.23 in Debian 12."""
GO_VERSION = "v3.7.3"
MEMBER, CONTROL, OFFLINE = "etcd", "etcdctl", "etcdutl"
_MODULES = {MEMBER: "server", CONTROL: "etcdctl", OFFLINE: "etcdutl"}
"""Versions before 3.5 have the last one's commands in `etcdctl`."""
BUILD_TIMEOUT_S = 900


def fetch() -> Path:
    """The folder with `etcd` and `etcdctl`, fetched unless they are there. Raises `Absent`."""
    if not _is_whole():
        with _alone():
            if not _is_whole():
                _unpack() if debian.has_debian() else _build()
    return CACHE


def fetch_or_tell() -> None:
    """Before the tests: fetch it, or say why its tests are going to be skipped."""
    try:
        fetch()
    except Absent as error:
        print(f"there is no etcd, and what needs it is skipped: {error}")


def required(program: str = MEMBER) -> Path:
    """One of the programs; the test is skipped where there is none, and fails where none may be skipped."""
    try:
        return fetch() / program
    except Absent as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"there is no etcd: {error}")


def restoring() -> Path:
    """The program that makes a data folder of a snapshot."""
    newer = required(OFFLINE)
    return newer if newer.exists() else required(CONTROL)


def _is_whole() -> bool:
    return all((CACHE / name).exists() for name in (MEMBER, CONTROL))


def _unpack() -> None:
    folder = CACHE / f"fetching-{os.getpid()}"
    folder.mkdir()
    try:
        debian.unpack(DEBIAN, folder)
        _keep([folder / "usr" / "bin" / name for name in (MEMBER, CONTROL)])
    except Absent:
        _build()
    finally:
        shutil.rmtree(folder)


def _build() -> None:
    """Through a module of our own: `go install` refuses modules that replace others."""
    if not shutil.which("go"):
        raise Absent("this machine has no packages of Debian (apt-get, dpkg), and no Go to build it with")
    folder = CACHE / f"building-{os.getpid()}"
    folder.mkdir()
    try:
        _run(["go", "mod", "init", "parts"], folder, BUILD_TIMEOUT_S)
        for name, part in _MODULES.items():
            module = f"go.etcd.io/etcd/{part}/v3"
            _run(["go", "get", f"{module}@{GO_VERSION}"], folder, BUILD_TIMEOUT_S)
            _run(["go", "build", "-o", name, module], folder, BUILD_TIMEOUT_S)
        _keep([folder / name for name in (OFFLINE, CONTROL, MEMBER)])
    finally:
        shutil.rmtree(folder)


def _keep(programs: list[Path]) -> None:
    for program in programs:
        if not program.is_file():
            raise Absent(f"{program.name} is not in what was fetched")
        program.rename(CACHE / program.name)


def _run(command: list[str], folder: Path, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Absent(f"{' '.join(command)} took more than {timeout_s:g} s") from error
    if done.returncode != 0:
        raise Absent(f"{' '.join(command)}: {done.stderr[-500:]}")


@contextmanager
def _alone() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
