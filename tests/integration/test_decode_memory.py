"""Memory of records whose decoded form is a hundred times their bytes, when they are refined and when they
are shown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.deployment import ROOT


def program(folder: Path, job: str, kind: str) -> Any:
    """Run it; returns what it printed."""
    command = [sys.executable, "-m", "tests.support.schema.decode_memory", str(folder), job, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("job", ["refine", "consume"])
def test_one_record_beyond_the_bound_is_not_decoded(job: str, tmp_path: Path) -> None:
    """Before the bound, each megabyte took 180 MiB of a task and 200 MiB of `consume`."""
    found = program(tmp_path, job, "one")
    assert [
        str(why).endswith("more than 4194304 values in one record are not decoded") for why in found["errors"]
    ] == [True]
    assert found["mib"] < 80


@pytest.mark.slow
def test_many_records_together_are_decoded_in_parts(tmp_path: Path) -> None:
    """Decoded in one part, they took 800 MiB."""
    found = program(tmp_path, "refine", "many")
    assert set(found["errors"]) == {None}
    assert found["mib"] < 480
