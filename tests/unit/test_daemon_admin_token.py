"""The token file: made once, whole, readable by its own user only."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from archiver.daemon.admin_token import TOKEN_BYTES, ensure_token, token_path
from archiver.runtime.errors import Halt, RetryLater
from archiver.runtime.ids import SeededIds, SystemIds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return token_path(tmp_path / "metadata.db")


def test_it_is_made_once(path: Path, tmp_path: Path) -> None:
    assert path == tmp_path / "metadata.db.admin-token"
    token = ensure_token(path, SeededIds(1))
    assert len(bytes.fromhex(token)) == TOKEN_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_token(path, SeededIds(2)) == token
    assert list(tmp_path.iterdir()) == [path], "the draft is gone"


def test_all_who_begin_at_once_have_the_same(path: Path, tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure_token(path, SystemIds()))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_can_read_is_refused(mode: int, path: Path) -> None:
    token = ensure_token(path, SeededIds(1))
    path.chmod(mode)
    with pytest.raises(Halt, match="chmod 600") as caught:
        ensure_token(path, SeededIds(1))
    assert token not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hunter2\n", "   fifteen-letters  \n"])
def test_one_that_could_be_guessed_is_refused(text: str, path: Path) -> None:
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(Halt, match=r"fewer than 16 characters, .*; delete it") as caught:
        ensure_token(path, SeededIds(1))
    assert "hunter2" not in str(caught.value)


def test_a_folder_that_is_absent_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(RetryLater, match="neither read nor created"):
        ensure_token(tmp_path / "absent" / "token", SeededIds(1))
    assert list(tmp_path.iterdir()) == []
