"""Properties of the local object store beyond the Protocol, because objects are files that every program can
see.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.objects.local import LocalObjectStore
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput, KeyExists, OutcomeUnknown, RetryLater
from tests.support.builders.refining import identify

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def local(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "data")


def keys(store: LocalObjectStore) -> list[str]:
    return [info.key for info in store.list("")]


def spooled(root: Path) -> list[Path]:
    return [path for path in (root / ".spool").rglob("*") if path.is_file()]


def test_uris_are_plain_paths(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "with space")
    assert store.uri("archive/partition=00001/x") == f"file://{tmp_path}/with space/archive/partition=00001/x"


def test_reading_creates_nothing(local: LocalObjectStore) -> None:
    assert keys(local) == []
    assert local.info("a") is None
    local.delete("a")
    assert not local.root.exists()


def test_nothing_half_done_is_left(local: LocalObjectStore) -> None:
    local.create("k", b"one")
    with pytest.raises(KeyExists):
        local.create("k", b"two")
    with pytest.raises(InvalidInput):
        local.create("k/below", b"two")
    assert spooled(local.root) == []


def test_syncs_file_and_folders_before_create_returns(
    local: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before the link, and every folder from the object's own up to the one that holds the
    root."""
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), (local.root / "a/b/k").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    local.create("a/b/k", b"one")
    files = [linked for path, linked in synced if "/.spool/" in path]
    assert files == [False]
    folders = [path for path, _ in synced if "/.spool" not in path]
    root = str(local.root)
    assert set(folders) == {str(local.root.parent), root, f"{root}/a", f"{root}/a/b"}
    assert synced[-1] == (f"{root}/a/b", True)
    synced.clear()
    local.create("a/b/other", b"two")
    assert [path for path, _ in synced if "/.spool/" not in path] == [f"{root}/a/b"]


def test_a_folder_that_cannot_be_synced_is_an_unknown_outcome(
    local: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.create("a/first", b"")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()) == str(local.root / "a"):
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutcomeUnknown, match="could not be synced"):
        local.create("a/k", b"one")


def test_makes_a_removed_folder_again(local: LocalObjectStore) -> None:
    local.create("a/b/k", b"one")
    local.delete("a/b/k")
    (local.root / "a/b").rmdir()
    local.create("a/b/k", b"two")
    assert local.read("a/b/k") == b"two"


def test_foreign_names_and_links_are_no_objects(local: LocalObjectStore, tmp_path: Path) -> None:
    local.create("a/k", b"")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"")
    (local.root / "a" / "link").symlink_to(outside)
    (local.root / "a" / "new\nline").write_bytes(b"")
    (local.root / "a" / os.fsdecode(b"\xff")).write_bytes(b"")
    for folder, name in ((["new\nfolder"], "k"), (["d" * 250] * 4, "longer than a key of S3 may be")):
        (local.root / "a").joinpath(*folder).mkdir(parents=True)
        (local.root / "a").joinpath(*folder, name).write_bytes(b"")
    assert keys(local) == ["a/k"]


def test_a_file_as_the_root_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(ConfigInvalid, match="is not a folder"):
        LocalObjectStore(tmp_path / "data").create("k", b"")
    with pytest.raises(InvalidInput, match="absolute"):
        LocalObjectStore(Path("data"))


def test_a_folder_that_refuses_files_halts(local: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*args: object, **kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(Halt, match="hard links"):
        local.create("k", b"")
    assert (keys(local), spooled(local.root)) == ([], [])


SPOOLING = """
import sys
from pathlib import Path
from archiver.objects.local import LocalObjectStore
store = LocalObjectStore(Path(sys.argv[1]))
(store.spool_dir() / "half").write_bytes(b"half an archive")
store.create("by-the-other", b"")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(local: LocalObjectStore) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SPOOLING, str(local.root)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_the_spool_of_a_killed_process_is_removed_by_the_next(
    local: LocalObjectStore, other_process: subprocess.Popen[bytes]
) -> None:
    local.create("one", b"")
    assert [path.name for path in spooled(local.root)] == ["half"], "the spool of a living process must stay"
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    assert [path.name for path in spooled(local.root)] == ["half"]
    LocalObjectStore(local.root).create("two", b"")
    assert spooled(local.root) == []
    assert keys(local) == ["by-the-other", "one", "two"]


def test_a_spool_that_is_cleaned_up_before_it_is_locked_is_made_again(
    local: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that start together clean up after each other: a folder may vanish between its creation and
    its opening."""
    real = os.open
    removed: list[str] = []

    def cleaned_up_first(path: str | Path, flags: int, *more: int) -> int:
        if Path(path).name.startswith("process-") and len(removed) < 2:
            removed.append(str(path))
            Path(path).rmdir()
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", cleaned_up_first)
    local.create("k", b"one")
    assert len(removed) == 2
    assert local.read("k") == b"one"


def test_a_process_that_ends_takes_its_spool_along(
    local: LocalObjectStore, other_process: subprocess.Popen[bytes]
) -> None:
    other_process.communicate(timeout=120)
    assert list((local.root / ".spool").iterdir()) == []


OURS, THEIRS = "a" * 32, "b" * 32
"""Two clusters."""


@pytest.fixture
def restarted(local: LocalObjectStore) -> LocalObjectStore:
    """A store opened as by a process that starts on an existing folder of its cluster; it has stored nothing
    yet."""
    identify(local.root, OURS)
    local.create("one", b"1")
    return LocalObjectStore(local.root, OURS)


def everything(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


def refuses_everything(store: LocalObjectStore, outside: Path, why: str) -> None:
    outside.write_bytes(b"2")
    for work in (
        lambda: store.create("folder/two", b"2"),
        lambda: store.create_from_file("folder/two", outside),
        lambda: store.delete("one"),
        lambda: list(store.list("")),
        lambda: store.info("two"),
        lambda: store.read("two"),
        lambda: store.open_input("two"),
        store.spool_dir,
    ):
        with pytest.raises(RetryLater, match=why):
            work()


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a file"])
def test_a_folder_that_was_unmounted_is_not_begun_again(
    left: str, restarted: LocalObjectStore, tmp_path: Path
) -> None:
    root = restarted.root
    root.rename(tmp_path / "away")
    if left == "an empty folder":
        root.mkdir()
    elif left == "a file":
        root.touch()
    before = everything(tmp_path / "away")
    refuses_everything(restarted, tmp_path / "outside", r"lost its cluster\.json")
    assert root.exists() == (left != "nothing")
    assert everything(root) == []
    assert everything(tmp_path / "away") == before
    if left == "an empty folder":
        root.rmdir()
    elif left == "a file":
        root.unlink()
    (tmp_path / "away").rename(root)
    restarted.create("two", b"2")
    restarted.delete("one")
    assert keys(restarted) == ["cluster.json", "two"]


@pytest.mark.parametrize("identity", ["another", "damaged", "of a later format"])
def test_a_folder_that_was_exchanged_is_left_alone(
    identity: str, restarted: LocalObjectStore, tmp_path: Path
) -> None:
    root = restarted.root
    root.rename(tmp_path / "away")
    identify(root, THEIRS)
    (root / "one").write_bytes(b"theirs")
    if identity != "another":
        (root / "cluster.json").write_text(
            "{" if identity == "damaged" else '{"format": 2}', encoding="utf-8"
        )
    before = everything(root)
    refuses_everything(
        restarted,
        tmp_path / "outside",
        "is another cluster's now" if identity == "another" else r"has another cluster\.json now",
    )
    assert everything(root) == before


@pytest.mark.parametrize("how", ["create", "create_from_file"])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another cluster's"])
def test_a_folder_that_goes_in_the_middle_of_a_write(
    how: str, left: str, restarted: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was there when the write began, and is gone before the object gets its name."""
    root, real = restarted.root, os.fsync
    spooled = restarted.spool_dir() / "two"
    spooled.write_bytes(b"2")

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_file() and root.exists():
            root.rename(tmp_path / "away")
            if left == "an empty folder":
                root.mkdir()
            elif left != "nothing":
                identify(root, THEIRS)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(RetryLater, match="the data folder"):
            restarted.create("folder/two", b"2") if how == "create" else restarted.create_from_file(
                "folder/two", spooled
            )
    assert (tmp_path / "away").is_dir(), "it went in the middle"
    assert root.exists() == (left != "nothing")
    assert [path.name for path in everything(root)] == (
        ["cluster.json"] if left == "another cluster's" else []
    )
    assert not (tmp_path / "away" / "folder" / "two").exists()
