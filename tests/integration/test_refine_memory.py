"""The memory of a refinement task follows its bounds, not the amount of data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders.deployment import ROOT

MIB = 1 << 20


def program(folder: Path, *bounds: int) -> str:
    """Run it; returns what it printed."""
    command = [sys.executable, "-m", "tests.support.builders.refine_memory", str(folder), *map(str, bounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(("reads_max", "most"), [(0, 180), (4, 230)])
def test_it_is_bounded_by_buffers_and_row_groups(reads_max: int, most: int, tmp_path: Path) -> None:
    """Growth in MiB of a process that refines 320 MB in one task."""
    grown: list[int] = []
    for number, bounds in enumerate([(32 * MIB, 8 * MIB, reads_max), (2048 * MIB, 1024 * MIB, reads_max)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        program(folder)
        grown.append(int(program(folder, *bounds)))
    bounded, unbounded = grown
    print(reads_max, grown)  # the figures of docs/operations/capacity.md, with -s
    assert bounded < most
    assert unbounded > bounded + 100, "without the bounds most of it is held: the measurement shows it"
