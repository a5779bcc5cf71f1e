"""The file of the users of the Kafka listener: private, without passwords, and read again when it changes."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.cli.app import run
from archiver.kafka import users as module
from archiver.kafka.sasl import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_HASHES, SaslExchange, Users
from archiver.kafka.users import (
    BYTES_MAX,
    PASSWORD_BYTES_MAX,
    UsersFile,
    delete_user,
    is_private,
    read_users,
    set_user,
)
from archiver.runtime.errors import AuthenticationFailed, ConfigInvalid, InvalidInput, NotFound, RetryLater
from archiver.runtime.ids import SeededIds
from tests.support.fuzzing import fuzzing

IDS = SeededIds(1)
PASSWORD = "pencil ü"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def set_cheaply(path: Path, name: str, password: str = PASSWORD) -> bool:
    return set_user(path, name, password, ITERATIONS_MIN, IDS)


def accepts(users: Users, name: str, password: str = PASSWORD) -> bool:
    try:
        SaslExchange("PLAIN", users, IDS).step(f"\0{name}\0{password}".encode())
    except AuthenticationFailed:
        return False
    return True


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


# --- Changing the file.
def test_users_are_added_changed_and_deleted(path: Path, tmp_path: Path) -> None:
    assert set_cheaply(path, "alice")
    assert set_cheaply(path, "bob")
    assert not set_cheaply(path, "bob", "eraser")
    users = read_users(path)
    assert users.names == ["alice", "bob"]
    assert accepts(users, "alice")
    assert accepts(users, "bob", "eraser")
    assert not accepts(users, "bob")
    delete_user(path, "alice", IDS)
    assert read_users(path).names == ["bob"]
    with pytest.raises(NotFound, match="alice"):
        delete_user(path, "alice", IDS)
    assert list(tmp_path.iterdir()) == [path], "the drafts are gone"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_has_no_password_and_a_salt_for_each_credential(path: Path) -> None:
    set_cheaply(path, "alice")
    set_cheaply(path, "bob")
    text = path.read_text()
    assert "pencil" not in text
    salts = [users.split("$")[1] for users in text.split() if users.startswith("SCRAM-")]
    assert len(salts) == len(set(salts)) == 4


def test_the_rest_of_the_file_stays(path: Path) -> None:
    set_cheaply(path, "alice")
    before = path.read_text()
    write(path, f"# Set by the team\n\n{before}#bob is gone\n")
    kept = path.read_text()
    set_cheaply(path, "bob")
    assert path.read_text().startswith(kept)
    delete_user(path, "bob", IDS)
    assert path.read_text() == kept


def test_mode_and_target_of_a_link_stay(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    path.symlink_to(target)
    set_cheaply(path, "alice")
    target.chmod(0o400)
    set_cheaply(path, "bob")
    assert path.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o400
    assert read_users(path).names == ["alice", "bob"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_root_changes_still_belongs_to_its_owner(path: Path) -> None:
    # As root does it: the check of the owner is of another test.
    set_cheaply(path, "alice")
    os.chown(path, 0, 12345)
    set_cheaply(path, "bob")
    assert (path.stat().st_uid, path.stat().st_gid) == (0, 12345)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a\tb",
        "a\nb",
        "a\0b",
        "#a",
        "*",
        "ANONYMOUS",
        "decoy-key",
        "a" * 256,
        "ü" * 128,
        "\udcff",
    ],
)
def test_names_that_no_user_can_have(name: str, path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a user name"):
        set_cheaply(path, name)
    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["a", "a:b", "a=b,c", "CN=orders,O=Shop", "søren", "ü" * 127, "SCRAM-SHA-256"]
)
def test_names_that_users_can_have(name: str, path: Path) -> None:
    set_cheaply(path, name)
    assert accepts(read_users(path), name)


@pytest.mark.parametrize("password", ["", "a\0b", "x" * (PASSWORD_BYTES_MAX + 1), "secret\udcff"])
def test_passwords_that_are_refused(password: str, path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        set_cheaply(path, "alice", password)
    assert not path.exists()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("iterations", [-1, 0, ITERATIONS_MIN - 1, ITERATIONS_MAX + 1])
def test_iterations_that_are_refused(iterations: int, path: Path) -> None:
    with pytest.raises(InvalidInput, match="4096"):
        set_user(path, "alice", PASSWORD, iterations, IDS)
    assert not path.exists()


def test_an_invalid_file_is_never_replaced(path: Path) -> None:
    write(path, "alice whatever\n")
    for change in (lambda: set_cheaply(path, "bob"), lambda: delete_user(path, "alice", IDS)):
        with pytest.raises(ConfigInvalid, match="line 1"):
            change()
    assert path.read_text() == "alice whatever\n"


def test_two_commands_do_not_lose_a_change(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(RetryLater, match="another command"):
            set_cheaply(path, "alice")
    finally:
        os.close(folder)
    assert not path.exists()
    assert set_cheaply(path, "alice")


def test_a_change_that_fails_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cheaply(path, "alice")
    before = path.read_text()

    def failing(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(ConfigInvalid, match="Read-only file system; it is unchanged"):
        set_cheaply(path, "bob")
    assert list(path.parent.iterdir()) == [path]
    assert path.read_text() == before


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="No such file"):
        set_cheaply(tmp_path / "missing" / "users", "alice")


# --- What a file may be.
def test_who_may_read_the_file() -> None:
    user, other = 1000, 1001
    assert [is_private(mode, user, user) for mode in (0o400, 0o600, 0o700)] == [True] * 3
    for mode in (0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o444):
        assert not is_private(mode, user, user), oct(mode)
    assert [is_private(mode, 0, user) for mode in (0o440, 0o640, 0o400)] == [True] * 3
    for mode in (0o444, 0o460, 0o450, 0o441):
        assert not is_private(mode, 0, user), oct(mode)
    # Another user could have planted it.
    assert not is_private(0o600, other, user)


@pytest.mark.parametrize("mode", [0o604, 0o666, 0o620])
def test_a_file_that_others_can_read_is_refused(mode: int, path: Path) -> None:
    set_cheaply(path, "alice")
    path.chmod(mode)
    for use in (lambda: UsersFile(path, IDS), lambda: read_users(path), lambda: set_cheaply(path, "bob")):
        with pytest.raises(ConfigInvalid, match="chmod 600"):
            use()


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, why in (("fifo", "no regular file"), ("missing", "archiver users set NAME --file")):
        with pytest.raises(ConfigInvalid, match=why):
            UsersFile(tmp_path / name, IDS)
    with pytest.raises(ConfigInvalid):
        UsersFile(tmp_path, IDS)


def test_the_size_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, "#" * BYTES_MAX)
    assert read_users(path).names == []
    write(path, "#" * (BYTES_MAX + 1))
    with pytest.raises(ConfigInvalid, match="larger than"):
        read_users(path)
    path.unlink()
    monkeypatch.setattr(module, "USERS_MAX", 2)
    set_cheaply(path, "alice")
    set_cheaply(path, "bob")
    with pytest.raises(ConfigInvalid, match="more than 2 users"):
        set_cheaply(path, "carol")
    assert read_users(path).names == ["alice", "bob"]


def _replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text + "\n" + text.splitlines()[1], "given before"),
        (lambda text: text.splitlines()[0] + "\n" + text, "must be given once"),
        (lambda text: text.splitlines()[1].rpartition(" ")[0], "one verifier for each"),
        (lambda text: text + " SCRAM-SHA-256$", "no number"),
        (lambda text: "alice " + " ".join([text.split()[3]] * 2), "one verifier for each"),
        (lambda _: "alice", "one verifier for each"),
        (lambda _: "alice secret", "does not begin with"),
        (_replaced("SCRAM-SHA-256", "SCRAM-SHA-1"), "does not begin with"),
        (_replaced("$4096:", "$4095:"), "no number from 4096 to 1,000,000"),
        (_replaced("$4096:", "$1000001:"), "no number from"),
        (_replaced("$4096:", "$-4096:"), "no number from"),
        (_replaced("$4096:", "$٤٠٩٦:"), "no number from"),
        (_replaced("$4096:", f"${'9' * 5000}:"), "no number from"),
        (_replaced("$4096:", "$4096:*"), "not base64"),
        (_replaced("$4096:", "$4096:AAAA$"), "not base64|needs a salt"),
        (_replaced("decoy-key ", "decoy-key secret"), "not base64"),
        (lambda _: "decoy-key c2VjcmV0", "fewer than 32 bytes"),
        (lambda _: "decoy-key", "must be given once"),
    ],
)
def test_lines_that_are_refused(change: Callable[[str], str], why: str, path: Path) -> None:
    set_cheaply(path, "alice")
    write(path, change(path.read_text().removesuffix("\n")))
    with pytest.raises(ConfigInvalid, match=why) as caught:
        UsersFile(path, IDS)
    assert ", line " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_text_that_is_not_utf8(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(b"alice secret\xff")
    with pytest.raises(ConfigInvalid, match=r"not UTF-8 text \(byte 12\)") as caught:
        read_users(path)
    assert "secret" not in str(caught.value)


@fuzzing()
@given(
    st.lists(
        st.sampled_from(
            [*"\n #$:=*", "alice", "decoy-key", *SCRAM_HASHES, "4096", "QUFBQUFBQUFBQUFBQUFBQQ==", "QQ", "ü"]
        ),
        max_size=30,
    )
)
def test_any_text_gives_users_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("any") / "users"
    write(path, "".join(parts))
    with contextlib.suppress(ConfigInvalid):
        assert read_users(path).names in ([], ["alice"])


# --- A daemon that reads the file again.
def test_a_change_counts_from_the_next_exchange(path: Path) -> None:
    set_cheaply(path, "alice")
    file = UsersFile(path, IDS)
    before = file.current()
    assert file.current() is before, "an unchanged file is not read again"
    set_cheaply(path, "bob")
    assert accepts(file.current(), "bob")
    assert not accepts(before, "bob"), "an exchange keeps the users that it began with"
    set_cheaply(path, "alice", "eraser")
    assert not accepts(file.current(), "alice")
    assert accepts(file.current(), "alice", "eraser")
    delete_user(path, "alice", IDS)
    assert not accepts(file.current(), "alice", "eraser")


def _break(path: Path) -> None:
    write(path, "alice whatever\n")


def _remove(path: Path) -> None:
    path.unlink()


def _open_to_others(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.parametrize("spoil", [_break, _remove, _open_to_others])
def test_an_unusable_file_keeps_the_users_and_is_logged_once(
    spoil: Callable[[Path], None],
    path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Path] = []
    real = module._text

    def counted(at: Path) -> str:
        reads.append(at)
        return real(at)

    monkeypatch.setattr(module, "_text", counted)
    caplog.set_level(logging.INFO)
    set_cheaply(path, "alice")
    good = path.read_text()
    file = UsersFile(path, IDS)
    spoil(path)
    for _ in range(3):
        assert accepts(file.current(), "alice")
    assert len(reads) == 2, "at the start, and after the change"
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "keeps the users that it had" in warning.getMessage()
    # Repaired, it counts again, and so does the next fault.
    caplog.clear()
    write(path, good.replace("alice", "bob"))
    assert not accepts(file.current(), "alice")
    assert accepts(file.current(), "bob")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    spoil(path)
    assert accepts(file.current(), "bob")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_a_change_of_the_mode_alone_is_noticed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_cheaply(path, "alice")
    file = UsersFile(path, IDS)
    path.chmod(0o644)
    write(path, path.read_text().replace("alice", "carol"), mode=0o644)
    assert accepts(file.current(), "alice")
    path.chmod(0o600)
    assert accepts(file.current(), "carol")


def test_a_lack_of_descriptors_passes(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cheaply(path, "alice")
    file = UsersFile(path, IDS)
    set_cheaply(path, "bob")
    real = os.open

    def lacking(*arguments: object, **named: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", lacking)
    for _ in range(3):
        assert accepts(file.current(), "alice")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(os, "open", real)
    assert accepts(file.current(), "bob"), "read again, although the file has not changed since"


def test_answers_for_unknown_users_are_the_same_on_every_daemon(path: Path) -> None:
    def salts(seed: int) -> set[bytes]:
        users = UsersFile(path, SeededIds(seed)).current()
        return {users.find("mallory", mechanism)[0].salt for mechanism in SCRAM_HASHES}

    set_cheaply(path, "alice")
    first = salts(1)
    set_cheaply(path, "bob")
    assert salts(2) == first
    # A file without the key, made by hand: stable for the life of the process.
    write(path, path.read_text().partition("\n")[2])
    assert salts(1) == salts(1) != salts(2)
    file = UsersFile(path, IDS)
    found = file.current().find("mallory", "SCRAM-SHA-256")[0].salt
    write(path, path.read_text() + "\n")
    assert file.current().find("mallory", "SCRAM-SHA-256")[0].salt == found


# --- The command.
def cli(monkeypatch: pytest.MonkeyPatch, *arguments: str, text: bytes = b"") -> int:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    with os.fdopen(reading) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        return run(["users", *arguments])


def test_the_command(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--file", str(path))
    for line in (b"pencil\n", b"pencil\r\n", b"pencil", b"pencil\nmore\n"):
        assert cli(monkeypatch, "set", "alice", "--iterations", "4096", *at, text=line) == 0
        assert accepts(read_users(path), "alice", "pencil")
    assert capsys.readouterr().out.startswith(f"user alice added to {path}\n")
    assert cli(monkeypatch, "list", *at, "--output", "json") == 0
    assert '"alice"' in capsys.readouterr().out
    assert cli(monkeypatch, "delete", "alice", *at) == 0
    assert cli(monkeypatch, "delete", "alice", *at) == 3
    assert read_users(path).names == []
    assert "pencil" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("text", [b"", b"\n", b"secret-\xff\n", b"secret-" + b"x" * 2000])
def test_the_command_without_a_usable_password(
    text: bytes, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(monkeypatch, "set", "alice", "--file", str(path), text=text) == 3
    assert "secret" not in "".join(capsys.readouterr())
    assert not path.exists()


def test_the_command_at_a_terminal(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[str] = []

    def prompt(_: str) -> str:
        if not answers:
            raise EOFError
        return answers.pop(0)

    monkeypatch.setattr("getpass.getpass", prompt)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda _: True})())
    command = ["users", "set", "alice", "--file", str(path), "--iterations", "4096"]
    for typed, why in ((["pencil", "pencli"], "differ"), (["pencil"], "no password")):
        answers[:] = typed
        assert run(command) == 3
        assert why in capsys.readouterr().err
        assert not path.exists()
    answers[:] = ["pencil", "pencil"]
    assert run(command) == 0
    assert accepts(read_users(path), "alice", "pencil")


def test_the_command_finds_the_file_by_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "archiver.yaml"
    base = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: m.db}}\n"
    config.write_text(base)
    assert cli(monkeypatch, "list", "-c", str(config)) == 3
    assert "no kafka.users_file" in capsys.readouterr().err
    config.write_text(f"{base}kafka: {{listen: '127.0.0.1:0', sasl: {{}}, users_file: users}}\n")
    assert cli(monkeypatch, "list", "-c", str(config)) == 3
    assert f"archiver users set NAME --file {tmp_path / 'users'}" in capsys.readouterr().err
    set_cheaply(tmp_path / "users", "alice")
    assert cli(monkeypatch, "delete", "alice", "-c", str(config)) == 0
    assert read_users(tmp_path / "users").names == []
