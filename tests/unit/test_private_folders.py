"""Temporary files in a folder where other users can write: nothing that another user put there is used or
followed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from archiver.objects.location import S3Options, StorePlace
from archiver.objects.s3 import store as s3
from archiver.objects.spool import Spool, remove_abandoned
from archiver.runtime.errors import Halt
from archiver.spark.scratch_dir import LOCK_NAME, scratch_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files, which all users can write to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def store() -> s3.S3ObjectStore:
    """A store that is used for its spool only."""
    return s3.S3ObjectStore(
        StorePlace(
            "s3://bucket/p",
            S3Options(endpoint="http://127.0.0.1:1", access_key_id="a", secret_access_key="b"),
        )
    )


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_spool_of_a_bucket_is_ones_own(shared: Path) -> None:
    (shared / "precious").mkdir()
    folder = store().spool_dir()
    assert folder.is_relative_to(shared)
    assert [mode(one) for one in (folder, folder.parent)] == [0o700, 0o700]


def test_a_link_in_its_place_is_not_followed(shared: Path, tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.mkdir()
    (shared / f"{s3.SPOOL}{os.geteuid()}").symlink_to(aim)
    with pytest.raises(
        Halt, match="belongs to another user, who could change its files; remove it, or set TMPDIR"
    ):
        store().spool_dir()
    assert list(aim.iterdir()) == []


def test_a_folder_of_another_user_in_its_place_is_not_used(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = os.geteuid() + 1
    (shared / f"{s3.SPOOL}{another}").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(Halt, match="belongs to another user"):
        store().spool_dir()


def test_names_below_a_shared_folder_cannot_be_foreseen(shared: Path) -> None:
    made = {scratch_folder(shared).name for _ in range(3)}
    assert len(made) == 3
    for name in made:
        assert mode(shared / name) == 0o700
        assert mode(shared / name / LOCK_NAME) == 0o600


def test_cleaning_up_follows_no_link(shared: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    spool = Spool(shared / "spool")
    folder = spool.folder()
    (shared / "spool" / "process-link").symlink_to(precious)
    abandoned = shared / "spool" / "process-dead"
    abandoned.mkdir()
    (abandoned / "link").symlink_to(precious)
    remove_abandoned(shared / "spool")
    assert (precious / "file").exists()
    assert folder.is_dir(), "one that lives stays"
    assert not abandoned.exists()
