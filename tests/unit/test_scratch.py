"""Scratch folders: a living process keeps its own, those of dead processes are deleted, and no other folder
is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from archiver.spark import scratch_dir
from tests.support.builders.deployment import ROOT

PROGRAM = """
import sys
from pathlib import Path
from archiver.spark.scratch_dir import scratch_folder
folder = scratch_folder(Path(sys.argv[1]))
(folder / "local").mkdir()
(folder / "local" / "block").write_bytes(b"x")
print(folder, flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            folder = Path(process.stdout.readline().strip())
            scratch_dir.sweep(tmp_path)
            assert (folder / "local" / "block").exists()
        finally:
            process.kill()
    strange = tmp_path / f"{scratch_dir.PREFIX}strange"
    strange.mkdir()
    link = tmp_path / f"{scratch_dir.PREFIX}link"
    aim = tmp_path / "aim"
    aim.mkdir()
    (aim / scratch_dir.LOCK_NAME).touch()
    link.symlink_to(aim)
    assert folder.exists()
    scratch_dir.sweep(tmp_path)
    assert not folder.exists()
    assert strange.exists(), "without a lock its owner is unknown"
    assert (aim / scratch_dir.LOCK_NAME).exists()
    assert link.is_symlink()
