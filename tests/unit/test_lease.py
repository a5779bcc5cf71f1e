"""Does a dead holder of a file lease release it? tests/contract/test_leases.py has the rules of every lease."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.log.lease import FileLease
from archiver.runtime.errors import Halt, LeaseHeld

REPOSITORY = Path(__file__).parents[2]

HOLDING = """
import sys
from pathlib import Path
from archiver.log.lease import FileLease
lease = FileLease(Path(sys.argv[1]), "elsewhere:4711")
lease.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archiver.lease"


@pytest.fixture
def other_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_another_process_holds_it_and_a_kill_frees_it(
    path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    lease = FileLease(path, "here:1")
    assert lease.holder() == "elsewhere:4711"
    with pytest.raises(LeaseHeld, match="elsewhere:4711"):
        lease.acquire()
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    assert path.read_text() == "elsewhere:4711"
    assert lease.holder() is None, "the text of a killed process does not count"
    lease.acquire()
    assert path.read_text() == "here:1"
    lease.release()
    assert path.read_text() == ""


def test_another_process_that_ends_frees_it(path: Path, other_process: subprocess.Popen[bytes]) -> None:
    other_process.communicate(timeout=120)
    lease = FileLease(path, "here:1")
    lease.acquire()
    lease.release()


def test_a_child_process_does_not_inherit_it(path: Path) -> None:
    """A program that the holder started and that outlives it must not keep the lease."""
    lease = FileLease(path, "here:1")
    lease.acquire()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        lease.release()
        other = FileLease(path, "here:2")
        other.acquire()
        other.release()
        child.kill()


def test_a_removed_lease_file_is_made_again(path: Path) -> None:
    lease = FileLease(path, "here:1")
    lease.acquire()
    lease.release()
    path.unlink()
    assert lease.holder() is None
    lease.acquire()
    assert path.read_text() == "here:1"
    lease.release()


def test_a_file_that_cannot_be_opened_halts(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Halt, match="cannot be opened"):
        FileLease(tmp_path / "file" / "below", "here:1").acquire()
