"""Packages of Debian, unpacked into a folder, not installed. The machine's own package lists are used where
they have them.

Needs no root. A machine that has never asked for its lists of packages gets private ones, which go again.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.absent import Absent

TIMEOUT_S = 300


def has_debian() -> bool:
    """Whether this machine's packages are Debian's."""
    return bool(shutil.which("apt-get") and shutil.which("dpkg"))


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Their files, below `folder`. Raises `Absent`."""
    if not has_debian():
        raise Absent("this machine has no packages of Debian (apt-get, dpkg)")
    try:
        _run(["apt-get", "download", *packages], folder)
    except Absent:
        _run_with_lists_of_its_own(packages, folder)
    for archive in folder.glob("*.deb"):
        _run(["dpkg", "-x", str(archive), "."], folder)
        archive.unlink()


def _run_with_lists_of_its_own(packages: Sequence[str], folder: Path) -> None:
    state = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    options = [
        "-o",
        f"Dir::State::Lists={state / 'lists'}",
        "-o",
        f"Dir::Cache={state / 'cache'}",
        "-o",
        "APT::Sandbox::User=",
    ]
    _run(["apt-get", *options, "update"], folder)
    _run(["apt-get", *options, "download", *packages], folder)
    shutil.rmtree(state)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Absent(f"{' '.join(command)} took more than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise Absent(f"{' '.join(command)}: {done.stderr[-500:]}")
