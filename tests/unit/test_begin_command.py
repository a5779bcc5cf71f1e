"""Ctrl-C while the command is loaded, and the version that it prints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from archiver import __version__
from archiver.cli.app import run
from tests.support.builders.deployment import ROOT

INTERRUPTED = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "archiver.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from archiver.__main__ import main
main()
"""


def test_ctrl_c_while_it_is_loaded_is_reported_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"archiver {__version__}\n"
