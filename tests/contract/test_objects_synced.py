"""An acknowledged object is on the disk: every sync that a stored object or a new log needs, observed at
`os.fsync`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths of everything that was synced, in order."""
    paths: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_an_object_from_a_spooled_file_is_synced_before_it_is_linked(
    tmp_path: Path, synced: list[Path]
) -> None:
    local = LocalObjectStore(tmp_path / "data")
    spooled = local.spool_dir() / "part"
    spooled.write_bytes(b"one")
    synced.clear()
    local.create_from_file("a/k", spooled)
    assert synced[0] == spooled
    assert synced[-1] == tmp_path / "data" / "a"


def test_an_object_from_another_file_is_synced_in_its_copy(tmp_path: Path, synced: list[Path]) -> None:
    local = LocalObjectStore(tmp_path / "data")
    outside = tmp_path / "outside"
    outside.write_bytes(b"one")
    local.create_from_file("a/k", outside)
    files = [path for path in synced if ".spool" in path.parts and not path.is_dir()]
    assert len(files) == 1
    assert synced[-1] == tmp_path / "data" / "a"


def test_the_folders_of_a_new_log_are_synced_into_their_parents(tmp_path: Path, synced: list[Path]) -> None:
    SqliteLogStore(tmp_path / "new" / "deeper" / "metadata.db", 1, 1 << 16).close()
    assert synced == [tmp_path, tmp_path / "new"]
