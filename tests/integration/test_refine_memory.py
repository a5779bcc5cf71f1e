"""The memory of a refinement task follows its bounds, not the amount of data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployment import ROOT

MIB = 1 << 20


def grown_mib(folder: Path, buffer_bytes: int, row_group_bytes: int) -> int:
    """MiB by which a process grew that refined 320 MB in one task."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.refine_memory", str(folder), str(buffer_bytes), str(row_group_bytes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_it_is_bounded_by_buffers_and_row_groups(tmp_path: Path) -> None:
    bounded = grown_mib(tmp_path / "bounded", 32 * MIB, 8 * MIB)
    unbounded = grown_mib(tmp_path / "unbounded", 2048 * MIB, 1024 * MIB)
    assert bounded < 100
    assert unbounded > bounded + 120, "without the bounds most of it is held: the measurement can tell"
