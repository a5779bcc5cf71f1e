"""The file of the users of the Kafka listener: read by the daemon, changed by `archiver users`.

It has SCRAM credentials and no passwords. The line of a user has the name and a verifier for each mechanism,
`SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY` (RFC 5803, as in PostgreSQL). A line that begins
with `#` is a comment. The line `decoy-key KEY` has the secret for answers to unknown users. Without it, the
answers of two daemons differ, which would show a client that the user is unknown.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from archiver.kafka.sasl import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NAME_BYTES_MAX,
    SALT_BYTES,
    SCRAM_HASHES,
    ScramCredentials,
    Users,
    derive_credentials,
)
from archiver.runtime.errors import ConfigInvalid, InvalidInput, NotFound, OutcomeUnknown, RetryLater, passing
from archiver.runtime.ids import IdSource
from archiver.runtime.redaction import excerpt

_log = logging.getLogger(__name__)

BYTES_MAX: Final = 8 * 2**20
"""Largest file of users."""
USERS_MAX: Final = 10_000
"""Most users of a file."""
PASSWORD_BYTES_MAX: Final = 1024
"""Longest password, in UTF-8."""
# A decoy's salt is cut from 64 bytes.
SALT_BYTES_MAX: Final = 64
_SALT_BYTES_MIN: Final = 8
_DECOY_KEY: Final = "decoy-key"
_DECOY_KEY_BYTES: Final = 32
# `User:*` and `User:ANONYMOUS` have their own meaning in rules.
_RESERVED: Final = frozenset({"*", "ANONYMOUS", _DECOY_KEY})

_Identity = tuple[int, int, int, int]


class UsersFile:
    """The users of a file, which is read again when it changes.

    An unusable new file never replaces the users of a usable one, and is logged once. Raises `ConfigInvalid`
    or `RetryLater` if there is no usable file at the start.
    """

    def __init__(self, path: Path, ids: IdSource) -> None:
        self._path = path
        self._lock = threading.Lock()
        # For a file without one. Drawn once, so that it outlives reloads.
        self._decoy_key = ids.random_bytes(_DECOY_KEY_BYTES)
        self._last_problem = ""
        # Before reading: a file that is replaced in between counts as new and is read again.
        self._seen = _identity(path)
        self._users = self._read()

    def current(self) -> Users:
        """Users of the newest usable file. Call it in a thread, at the start of each exchange: it asks the
        file system, and reading a new file of 10,000 users takes about 0.2 s. Raises nothing.
        """
        with self._lock:
            seen = _identity(self._path)
            if seen != self._seen:
                self._reload(seen)
            return self._users

    def _reload(self, seen: _Identity | None) -> None:
        try:
            self._users = self._read()
        except (ConfigInvalid, RetryLater) as error:
            # A lack of memory or descriptors passes without a change of the file, so it is read again.
            if isinstance(error, ConfigInvalid):
                self._seen = seen
            if str(error) != self._last_problem:
                _log.warning("%s; the Kafka listener keeps the users that it had", error)
            self._last_problem = str(error)
            return
        self._seen, self._last_problem = seen, ""
        _log.info("users of the Kafka listener were read again: %s", self._path)

    def _read(self) -> Users:
        return _parse(_text(self._path), self._path, self._decoy_key)


def read_users(path: Path) -> Users:
    """Users of a file; raises `ConfigInvalid` or `RetryLater`."""
    # Only for names and numbers: no client gets an answer from it.
    return _parse(_text(path), path, bytes(_DECOY_KEY_BYTES))


def set_user(path: Path, name: str, password: str, iterations: int, ids: IdSource) -> bool:
    """Write a user with a password, replacing an earlier one; returns whether the user is new. Creates a
    missing file. Slow: PBKDF2 with both hash functions.

    Raises `InvalidInput` for a name, a password or a number that is not allowed, and `ConfigInvalid` or
    `RetryLater` if the file cannot be used. The file is then unchanged.
    """
    _check_name(name)
    data = _checked_password(password)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidInput(f"{iterations} iterations are not between {ITERATIONS_MIN} and {ITERATIONS_MAX:,}")
    verifiers = [
        _verifier(mechanism, derive_credentials(mechanism, data, ids.random_bytes(SALT_BYTES), iterations))
        for mechanism in SCRAM_HASHES
    ]
    line = " ".join((name, *verifiers))
    with _locked_folder(path):
        lines = _lines_for_change(path)
        if not any(one.split()[:1] == [_DECOY_KEY] for one in lines):
            key = base64.b64encode(ids.random_bytes(_DECOY_KEY_BYTES)).decode()
            lines.append(f"{_DECOY_KEY} {key}")
        places = _places_of(name, lines)
        for place in places:
            lines[place] = line
        if not places:
            lines.append(line)
        _replace(path, lines, ids)
    return not places


def delete_user(path: Path, name: str, ids: IdSource) -> None:
    """Remove a user. Raises `NotFound` if there is none, and `ConfigInvalid` or `RetryLater` if the file
    cannot be used. The file is then unchanged.
    """
    with _locked_folder(path):
        lines = _lines_for_change(path)
        places = _places_of(name, lines)
        if not places:
            raise NotFound(f"there is no user {excerpt(name)} in {path}")
        _replace(path, [line for place, line in enumerate(lines) if place not in places], ids)


# --- Reading.
def _identity(path: Path) -> _Identity | None:
    """What changes with the file's content, its owner or its mode; None while it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    # Not the time alone: a replacement within its resolution changes the inode. A change of the mode, after
    # which the file may be usable, changes this time only.
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _text(path: Path) -> str:
    """The file's text; raises `ConfigInvalid` or `RetryLater`."""
    try:
        # Opening a named pipe would block without O_NONBLOCK.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            # Of the open file, not of the path: the file checked is the file read.
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigInvalid(f"{path} is no regular file; kafka.users_file must be one")
            if not is_private(found.st_mode, found.st_uid, os.geteuid()):
                raise ConfigInvalid(
                    f"{path} can be read by others than its owner, or belongs to another user, and "
                    "passwords can be guessed with it; chmod 600 it, and chown it to the archiver's user"
                )
            # One byte more than allowed shows that the file is larger.
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise ConfigInvalid(
            f"there is no users file {path}; create it with: archiver users set NAME --file {path}"
        ) from error
    except OSError as error:
        # Only an operator can change permissions; a lack of descriptors passes.
        lacking = None if isinstance(error, PermissionError) else passing(error, str(path))
        raise lacking or ConfigInvalid(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > BYTES_MAX:
        raise ConfigInvalid(f"{path} is larger than {BYTES_MAX:,} bytes, the most of a users file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # Not chained: the error contains the bytes of the file.
        raise ConfigInvalid(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def is_private(mode: int, owner: int, user: int) -> bool:
    """Whether only `user`, root and a group chosen by root can read a file with this mode and owner."""
    if mode & stat.S_IRWXO or owner not in {user, 0}:
        return False
    # A file of root may be readable by a group, as PostgreSQL allows for keys. Kubernetes mounts secrets in
    # this way.
    return not mode & (stat.S_IWGRP | stat.S_IXGRP if owner == 0 else stat.S_IRWXG)


def _parse(text: str, path: Path, decoy_key: bytes) -> Users:
    """Users of the file's text; raises `ConfigInvalid`, which repeats no credentials."""
    users: dict[str, dict[str, ScramCredentials]] = {}
    seen_key = False
    # Not `splitlines`, which also splits at characters that a comment may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}, line {number}"
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if fields[0] == _DECOY_KEY:
            if seen_key or len(fields) != 2:
                raise ConfigInvalid(f"{where}: {_DECOY_KEY} must be given once, with one value")
            decoy_key, seen_key = _decoded(fields[1], where), True
            if len(decoy_key) < _DECOY_KEY_BYTES:
                raise ConfigInvalid(f"{where}: {_DECOY_KEY} has fewer than {_DECOY_KEY_BYTES} bytes")
            continue
        name, *verifiers = fields
        try:
            _check_name(name)
        except InvalidInput as error:
            raise ConfigInvalid(f"{where}: {error}") from None
        if name in users:
            raise ConfigInvalid(f"{where}: the user {name} was given before; remove one of the lines")
        if len(users) == USERS_MAX:
            raise ConfigInvalid(f"{where}: there are more than {USERS_MAX:,} users")
        users[name] = dict(_credentials(verifier, where) for verifier in verifiers)
        if len(verifiers) != len(SCRAM_HASHES) or len(users[name]) != len(SCRAM_HASHES):
            raise ConfigInvalid(
                f"{where}: the user {name} needs one verifier for each of {', '.join(SCRAM_HASHES)}; write "
                "the line with: archiver users set NAME"
            )
    return Users(users, decoy_key)


def _credentials(verifier: str, where: str) -> tuple[str, ScramCredentials]:
    mechanism, _, rest = verifier.partition("$")
    numbers, _, keys = rest.partition("$")
    count, _, salt_text = numbers.partition(":")
    stored_text, _, server_text = keys.partition(":")
    if mechanism not in SCRAM_HASHES:
        raise ConfigInvalid(f"{where}: a verifier does not begin with {' or '.join(SCRAM_HASHES)}")
    # The length first: a long number takes more than linear time to read.
    iterations = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ConfigInvalid(
            f"{where}: the iterations of {mechanism} are no number from {ITERATIONS_MIN} to "
            f"{ITERATIONS_MAX:,}"
        )
    found = ScramCredentials(
        iterations, _decoded(salt_text, where), _decoded(stored_text, where), _decoded(server_text, where)
    )
    size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    if not (
        _SALT_BYTES_MIN <= len(found.salt) <= SALT_BYTES_MAX
        and len(found.stored_key) == len(found.server_key) == size
    ):
        raise ConfigInvalid(
            f"{where}: {mechanism} needs a salt of {_SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes and two "
            f"keys of {size} bytes"
        )
    return mechanism, found


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        # Not chained, and the text is not repeated: it may be a secret.
        raise ConfigInvalid(f"{where}: a value is not base64") from None


def _check_name(name: str) -> None:
    """Raises `InvalidInput` for a name that a user cannot have."""
    usable = name.isprintable() and " " not in name and not name.startswith("#") and name not in _RESERVED
    if not (usable and name and len(name.encode()) <= NAME_BYTES_MAX):
        raise InvalidInput(
            f"{excerpt(name)!r} is not a user name: 1 to {NAME_BYTES_MAX} bytes of printable characters "
            f"without spaces, no # at the start, and none of {', '.join(sorted(_RESERVED))}"
        )


def _checked_password(password: str) -> bytes:
    """The password's bytes; raises `InvalidInput` without repeating it."""
    if not password or "\0" in password:
        raise InvalidInput("the password must not be empty, and must not contain a zero byte")
    try:
        data = password.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the password is not UTF-8 text") from None
    if len(data) > PASSWORD_BYTES_MAX:
        raise InvalidInput(f"the password is longer than {PASSWORD_BYTES_MAX:,} bytes")
    return data


# --- Writing.
def _verifier(mechanism: str, found: ScramCredentials) -> str:
    salt, stored, server = (
        base64.b64encode(part).decode() for part in (found.salt, found.stored_key, found.server_key)
    )
    return f"{mechanism}${found.iterations}:{salt}${stored}:{server}"


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Keep other commands from changing the file; raises `RetryLater` while another one does."""
    try:
        # The folder, because the file itself is replaced.
        descriptor = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigInvalid(f"the folder of {path} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RetryLater(f"another command changes {path}; try again") from error
        yield
        try:
            # Only now the new file outlives a power failure: a deleted user must not return.
            os.fsync(descriptor)
        except OSError as error:
            raise OutcomeUnknown(
                f"{path} was changed, but may be the earlier one after a power failure: {error.strerror}"
            ) from error
    finally:
        os.close(descriptor)


def _lines_for_change(path: Path) -> list[str]:
    """Lines of the file, which must be valid; none if it is missing."""
    # A link without a target is missing as well, and gets its target.
    if not path.exists():
        return []
    text = _text(path)
    _parse(text, path, bytes(_DECOY_KEY_BYTES))
    return text.rstrip("\n").split("\n") if text.strip() else []


def _places_of(name: str, lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines) if line.split()[:1] == [name]]


def _replace(path: Path, lines: list[str], ids: IdSource) -> None:
    """Replace the file atomically: readers see the earlier file or the new one."""
    target = path.resolve()
    text = "".join(f"{line}\n" for line in lines)
    # The new file must be usable in its turn.
    _parse(text, path, bytes(_DECOY_KEY_BYTES))
    if len(text.encode()) > BYTES_MAX:
        raise ConfigInvalid(f"{path} would be larger than {BYTES_MAX:,} bytes, the most of a users file")
    draft = target.with_name(f"{target.name}.{ids.random_bytes(8).hex()}")
    try:
        # The mode applies from the first moment; a later chmod would leave a gap.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            if target.exists():
                before = target.stat()
                # Root can change a file of the archiver's user, who must still be able to read it.
                os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            # Before the rename: after a power failure the name must not refer to an empty file.
            os.fsync(descriptor)
        draft.replace(target)
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be written: {error.strerror}; it is unchanged") from error
    finally:
        draft.unlink(missing_ok=True)
