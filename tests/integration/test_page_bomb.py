"""A page of a few kilobytes that claims hundreds of megabytes: refused by its header, before anything is
decompressed.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.builders.deployment import ROOT


def test_an_altered_page_of_an_intake_file_takes_no_memory() -> None:
    """Before the check, 72 KB took 2.1 GB; this page took the 120 MiB that it claims."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.intake.page_bomb"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "column value: its page headers say" in found["error"]
    assert found["mib"] < 60
