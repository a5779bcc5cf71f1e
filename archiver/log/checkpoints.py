"""Checkpoints of a log: sealed objects in the object store, when they are due, and which one a reader starts
from.

A checkpoint with a wrong bit is detected by its digest and skipped with a warning while an older one can
replace it. If none can, the reader halts. The content of a checkpoint belongs to the fold that makes it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from archiver.config.groups import LogSettings
from archiver.log.store import Log
from archiver.objects.paths import checkpoint_key, checkpoint_prefix, parse_checkpoint_key
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Corrupted, Halt, NotFound, Trimmed

KEPT = 2
"""Number of intact checkpoints to keep. The log is never trimmed past the oldest of them."""
_LISTINGS_MAX = 3
"""How often a reader lists the checkpoints when one is deleted while it reads."""
# SHA-256.
_DIGEST_BYTES = 32

_log = logging.getLogger(__name__)


class AnyCheckpoint(Protocol):
    """The state of a fold before one entry of its log."""

    @property
    def index(self) -> int:
        """Index of the first entry that the state does not contain."""

    @property
    def last_id(self) -> bytes | None:
        """Id of the last entry in the state; None if unknown."""


class Span:
    """Counts entries until a checkpoint is due. The index follows from the log and the settings alone, so all
    processes agree on it.
    """

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._entries = 0
        self._bytes = 0

    def add(self, size: int) -> bool:
        """Count an entry of `size` bytes. True if a checkpoint is due after it; then the next span begins."""
        self._entries += 1
        self._bytes += size
        # Both limits: many small entries take time to fold, and few large ones take time to read.
        if (
            self._entries < self._settings.checkpoint_entries
            and self._bytes < self._settings.checkpoint_bytes
        ):
            return False
        # The next span starts at the entry after the checkpoint.
        self._entries = self._bytes = 0
        return True


C = TypeVar("C", bound=AnyCheckpoint)


class Checkpoints(Generic[C]):
    """The checkpoints of one log in an object store. Stateless; safe to use from several threads.

    `form` is the format number in the key. `decode` takes an object's bytes and its URI (for errors). `id_of`
    returns the id of the entry at an index.
    """

    def __init__(
        self,
        objects: ObjectStore,
        log_name: str,
        form: int,
        decode: Callable[[bytes, str], C],
        id_of: Callable[[int, bytes], bytes],
    ) -> None:
        self.objects = objects
        self._log_name = log_name
        self._form = form
        self._decode = decode
        self._id_of = id_of

    def key(self, index: int) -> str:
        """The key of the checkpoint before the entry at `index`."""
        return checkpoint_key(self._log_name, self._form, index)

    def indexes(self) -> list[int]:
        """Indexes of the checkpoints of this format, ascending."""
        keys = (
            parse_checkpoint_key(info.key) for info in self.objects.list(checkpoint_prefix(self._log_name))
        )
        # A checkpoint of another format is that of another version; its fold differs.
        return sorted(key.index for key in keys if key is not None and key.fold_format == self._form)

    def load(self, index: int) -> C:
        """Read one checkpoint. Raises `NotFound`, `Corrupted`, or `Halt` if a newer version wrote it."""
        key = self.key(index)
        checkpoint = self._decode(self.objects.read(key), self.objects.uri(key))
        # The key is not covered by the digest. A copied or renamed object would start the fold elsewhere.
        if checkpoint.index != index:
            raise Corrupted(f"checkpoint {self.objects.uri(key)} is that of index {checkpoint.index}")
        return checkpoint

    def start(self, log: Log) -> C | None:
        """The newest intact checkpoint from which the log can be read on; None to read the log from its
        beginning.

        Raises `Halt` with the repair if the log does not begin at 0 and no checkpoint covers its floor.
        """
        for _ in range(_LISTINGS_MAX):
            # Read three times: here, with the bounds, and after a failure. Equal values prove that no trim
            # ran in between.
            before = log.floor()
            # Listed before the log's bounds are read, so no listed checkpoint can be ahead of the tail.
            indexes = self.indexes()
            floor, tail = log.floor(), log.tail()
            try:
                # Outside these bounds the log cannot continue: entries are trimmed, or do not exist yet.
                found = self._newest_whole(log, [index for index in indexes if floor <= index <= tail])
            except (NotFound, Trimmed):
                continue  # another process made a checkpoint and trimmed, or deleted old checkpoints
            # A log that begins at 0 needs no checkpoint.
            if found is not None or floor == 0:
                return found
            # If the floor moved, another process made a checkpoint that is not in our list.
            if before == floor == log.floor():
                where = self.objects.uri(self.key(floor)).rpartition("/")[0]
                raise Halt(
                    f"the {self._log_name} log begins at entry {floor} and ends at {tail}, and {where} "
                    "has no intact checkpoint of an entry between them "
                    f"({len(indexes)} exist, the newest is of entry {max(indexes, default='none')}): "
                    "restore a checkpoint of an entry "
                    f"from {floor} to {tail} from a copy of the data folder; if the metadata "
                    "store is an older copy or belongs to another "
                    "deployment, put the newest one in place"
                )
        raise Halt(
            f"the {self._log_name} log was trimmed {_LISTINGS_MAX} times while its checkpoints were "
            "read; try again"
        )

    def _newest_whole(self, log: Log, indexes: Sequence[int]) -> C | None:
        # The newest first, because the fewest entries remain to be read after it.
        for index in reversed(indexes):
            try:
                found = self.load(index)
            except Corrupted as error:
                _log.warning("%s; an older checkpoint is used", error)
                continue
            # A checkpoint of a log that was lost or replaced has the right format and a valid digest.
            if self.is_of(found, log):
                return found
            _log.warning(
                "checkpoint %s belongs to another log; it is ignored",
                self.objects.uri(self.key(index)),
            )
        return None

    def is_of(self, checkpoint: C, log: Log) -> bool:
        """Whether the checkpoint belongs to this log: the log holds its last entry (rule L1: ids are unique).

        True if that entry was trimmed before. Raises `Trimmed` if it is trimmed during the check.
        """
        index, last = checkpoint.index - 1, checkpoint.last_id
        # The entry is trimmed. Only `check_of` permits a trim, after the same comparison.
        if index < log.floor() or last is None:
            return True
        entries = log.read(index, 1)
        return bool(entries) and self._id_of(index, entries[0].data) == last

    def last(self) -> list[C]:
        """The newest intact checkpoints, at most `KEPT`, newest first."""
        found: list[C] = []
        for index in reversed(self.indexes()):
            try:
                found.append(self.load(index))
            except (Corrupted, NotFound) as error:
                _log.warning("%s; it is ignored", error)
            if len(found) == KEPT:
                break
        return found

    def check_of(self, found: Sequence[C], log: Log) -> None:
        """Raise `Halt` unless all of them (newest first, as from `last`) belong to this log, so that it may
        be trimmed.

        After a restore of the metadata store alone, checkpoints of the lost newer log may exist.
        """
        newest = found[0].index
        # Checked before a read at that index, which an older log would refuse.
        if newest > log.tail():
            raise Halt(
                f"checkpoint {self.key(newest)} is beyond the end of the {self._log_name} log; "
                "put the newest metadata store in place"
            )
        # Every kept one: after a trim each of them must be able to start a reader.
        for one in found:
            if not self.is_of(one, log):
                raise Halt(
                    f"checkpoint {self.key(one.index)} is of another {self._log_name} log; put the "
                    "newest metadata store in place, or move the checkpoint away if that store is lost. "
                    "The log is not trimmed until then"
                )

    def older_than(self, index: int) -> list[str]:
        """Keys of the checkpoints before entry `index`, ascending."""
        # Ascending, so that an interrupted deletion leaves the newest ones.
        return [self.key(older) for older in self.indexes() if older < index]


def seal(magic: bytes, payload: bytes) -> bytes:
    """The object of a checkpoint: the magic, the SHA-256 of the payload, the payload."""
    return magic + hashlib.sha256(payload).digest() + payload


def unseal(magic: bytes, data: bytes, where: str) -> bytes:
    """The inverse of `seal`. Raises `Corrupted` with `where` in the message if a bit is wrong."""
    payload = data[len(magic) + _DIGEST_BYTES :]
    if (
        data[: len(magic)] != magic
        or data[len(magic) : len(magic) + _DIGEST_BYTES] != hashlib.sha256(payload).digest()
    ):
        raise Corrupted(
            f"checkpoint {where} is damaged: the digest in its header does not match ({len(data)} bytes)"
        )
    return payload
