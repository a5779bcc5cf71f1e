"""A full disk: nothing is lost, nothing half done stays, and work goes on once there is room.

A limit on the size of files gives the error of a full quota to any user. A small file system of its own,
mounted where no other process sees it, is the real thing, where the kernel allows it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

PRELUDE = """
import resource, signal, sys
from pathlib import Path
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended
from archiver.objects.local import LocalObjectStore

folder = Path(sys.argv[1])
store = LocalObjectStore(folder / "data")

def refused(work):
    try:
        work()
    except RetryLater as error:
        assert "disk is full" in str(error), error
        return True
    return False

def files():
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())
"""

FILE_SIZE = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
unlimited = resource.RLIM_INFINITY
"""

OBJECTS_LIMIT = (
    PRELUDE
    + FILE_SIZE
    + """
store.create("small", b"x" * 1000)
elsewhere = folder / "elsewhere"
elsewhere.write_bytes(b"z" * 300_000)
limit(100_000)
assert refused(lambda: store.create("new/large", b"y" * 300_000))
assert refused(lambda: store.create_from_file("new/copied", elsewhere))
assert files() == ["small"], files()
store.create("new/fits", b"y" * 50_000)
limit(unlimited)
store.create("new/large", b"y" * 300_000)
store.create_from_file("new/copied", elsewhere)
assert store.read("new/large") == b"y" * 300_000
assert files() == ["new/copied", "new/fits", "new/large", "small"], files()
"""
)

LOG_LIMIT = (
    PRELUDE
    + FILE_SIZE
    + """
path = folder / "metadata.db"
log = SqliteLogStore(path, 5.0, 100_000).log("intake")
assert log.append(0, b"a" * 50_000) is Appended.OK
limit(40_000)
# The error comes with COMMIT, so it cannot be called a failure.
assert log.append(1, b"b" * 50_000) is Appended.UNKNOWN
assert log.append(1, b"b" * 50_000) is Appended.UNKNOWN
assert [entry.data[:1] for entry in log.read(0)] == [b"a"]
limit(unlimited)
assert log.append(1, b"b" * 50_000) is Appended.OK
assert log.append(2, b"c") is Appended.OK
assert [entry.data[:1] for entry in log.read(0)] == [b"a", b"b", b"c"]
"""
)

SMALL_DISK = (
    PRELUDE
    + """
log = SqliteLogStore(folder / "metadata.db", 5.0, 100_000).log("intake")
log.append(0, b"first")
store.create("small", b"s")
free = 0
while not refused(lambda: store.create(f"fill/{free:04}", b"f" * 200_000)):
    free += 1
    assert free < 1000
assert free > 5
assert files() == sorted([*(f"fill/{number:04}" for number in range(free)), "small"]), files()
spool_file = store.spool_dir() / "archive"
try:
    spool_file.write_bytes(b"a" * 400_000)
except OSError:
    spool_file.unlink()
assert refused(lambda: log.append(1, b"second"))
assert [entry.data for entry in log.read(0)] == [b"first"]
for number in range(free):
    store.delete(f"fill/{number:04}")
assert log.append(1, b"second") is Appended.OK
store.create("fill/again", b"f" * 200_000)
assert files() == ["fill/again", "small"]
"""
)


def run(program: str, folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("program", [OBJECTS_LIMIT, LOG_LIMIT], ids=["objects", "log"])
def test_a_write_beyond_the_limit_is_refused_whole(tmp_path: Path, program: str) -> None:
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_full_file_system(tmp_path: Path) -> None:
    """The mount lives in a namespace of the child process and goes with it."""
    mount = 'mount -t tmpfs -o size=4m none "$1" || exit 77; shift; exec "$@"'
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        try:
            done = run(SMALL_DISK, tmp_path, *unshare, "sh", "-c", mount, "sh", str(tmp_path))
        except FileNotFoundError:
            continue
        if done.returncode != 77 and "unshare" not in done.stderr:
            assert done.returncode == 0, done.stderr
            assert list(tmp_path.iterdir()) == [], "nothing may be left outside the mount"
            return
    pytest.skip("this kernel lets nobody mount a file system of his own; the limit on file sizes is tested")
