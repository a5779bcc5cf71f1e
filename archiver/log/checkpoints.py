"""Checkpoints of a log: how their objects are sealed, and where they are kept.

Owns finding the newest one that is whole, and naming those that nobody needs. Only reads. Promises that a
single wrong bit is noticed, to pass over a damaged checkpoint, with a warning, as long as an older one can
take its place, and to stop with the repair where none can. What a checkpoint holds, the fold's package knows.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from archiver.log.store import Log
from archiver.objects.paths import checkpoint_key, checkpoint_prefix, parse_checkpoint_key
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Corrupted, Halt, NotFound, Trimmed

KEPT = 2
"""The log is never trimmed beyond the older one of so many checkpoints that are whole."""
_LOOKS_MAX = 3
"""How often the list is read anew when a checkpoint vanishes under the reader."""
_DIGEST_BYTES = 32

_log = logging.getLogger(__name__)


class AnyCheckpoint(Protocol):
    """The state of a fold before one entry of its log."""

    @property
    def index(self) -> int:
        """The first entry that is not in it."""

    @property
    def last_id(self) -> bytes | None:
        """The id of the entry that it took in last; None if it does not say."""


class SpanSettings(Protocol):
    """When the next checkpoint is due."""

    @property
    def checkpoint_entries(self) -> int:
        """Entries since the last one."""

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of entries since the last one."""


class Span:
    """Counts entries until a checkpoint is due. The places follow from the log and the settings, so that all
    who count agree.
    """

    def __init__(self, settings: SpanSettings) -> None:
        self._settings = settings
        self._entries = 0
        self._bytes = 0

    def add(self, size: int) -> bool:
        """Count an entry of so many bytes; True if a checkpoint is due behind it, and then the next span
        begins.
        """
        self._entries += 1
        self._bytes += size
        if (
            self._entries < self._settings.checkpoint_entries
            and self._bytes < self._settings.checkpoint_bytes
        ):
            return False
        self._entries = self._bytes = 0
        return True


C = TypeVar("C", bound=AnyCheckpoint)


class Checkpoints(Generic[C]):
    """The checkpoints of one log in an object store. Holds no state; safe to use from several threads.

    `form` is the format, which is part of the key; `decode` makes a checkpoint of an object's bytes and its
    address (for errors); `id_of` gives the id of the entry at an index.
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
        """Of every checkpoint of this format, ascending."""
        keys = (
            parse_checkpoint_key(info.key) for info in self.objects.list(checkpoint_prefix(self._log_name))
        )
        return sorted(key.index for key in keys if key is not None and key.fold_format == self._form)

    def load(self, index: int) -> C:
        """One checkpoint; raises `NotFound`, `Corrupted`, or `Halt` if a newer version wrote it."""
        key = self.key(index)
        checkpoint = self._decode(self.objects.read(key), self.objects.uri(key))
        if checkpoint.index != index:
            raise Corrupted(f"checkpoint {self.objects.uri(key)} is that of index {checkpoint.index}")
        return checkpoint

    def start(self, log: Log) -> C | None:
        """The newest checkpoint that is whole and from which the log can be read on; None if it is to be read
        from its beginning.

        Raises `Halt`, naming the repair, if the log does not begin at 0 and no checkpoint leads to where it
        begins.
        """
        for _ in range(_LOOKS_MAX):
            before = log.floor()
            indexes = self.indexes()  # before the log is looked at: what is found is not ahead of it then
            floor, tail = log.floor(), log.tail()
            try:
                found = self._newest_whole(log, [index for index in indexes if floor <= index <= tail])
            except (NotFound, Trimmed):
                continue  # somebody made another one, and trimmed, or tidied up
            if found is not None or floor == 0:
                return found
            if before == floor == log.floor():  # else others made one and trimmed, and it is not in the list
                where = self.objects.uri(self.key(floor)).rpartition("/")[0]
                raise Halt(
                    f"the {self._log_name} log begins at entry {floor} and ends at {tail}, and no "
                    f"checkpoint of it in {where} leads there "
                    f"({len(indexes)} exist, the newest is of entry {max(indexes, default='none')}): "
                    "bring the checkpoint of an entry "
                    f"from {floor} to {tail} back from a copy of the data folder; if the metadata "
                    "store is an older copy or another "
                    "deployment's, put the newest one in place"
                )
        raise Halt(
            f"the {self._log_name} log was trimmed {_LOOKS_MAX} times while its checkpoints were "
            "looked for; try again"
        )

    def _newest_whole(self, log: Log, indexes: Sequence[int]) -> C | None:
        for index in reversed(indexes):
            try:
                found = self.load(index)
            except Corrupted as error:
                _log.warning("%s; an older one takes its place", error)
                continue
            if self.is_of(found, log):
                return found
            _log.warning(
                "checkpoint %s is of another log than this one; it does not count",
                self.objects.uri(self.key(index)),
            )
        return None

    def is_of(self, checkpoint: C, log: Log) -> bool:
        """Whether the log holds the entry that the checkpoint took in last (rule L1: ids are unlike each
        other).

        True if that entry was trimmed. Raises `Trimmed` if it is trimmed right now.
        """
        index, last = checkpoint.index - 1, checkpoint.last_id
        if index < log.floor() or last is None:
            return True
        entries = log.read(index, 1)
        return bool(entries) and self._id_of(index, entries[0].data) == last

    def last(self) -> list[C]:
        """The newest checkpoints that are whole, at most `KEPT`, the newest first."""
        found: list[C] = []
        for index in reversed(self.indexes()):
            try:
                found.append(self.load(index))
            except (Corrupted, NotFound) as error:
                _log.warning("%s; it does not count", error)
            if len(found) == KEPT:
                break
        return found

    def check_of(self, found: Sequence[C], log: Log) -> None:
        """Raise `Halt` unless all of them (the newest first, as `last` gives them) are of this log, so that
        it may be trimmed by them.

        After a restore of the metadata store alone there may be some of the log that it had become.
        """
        newest = found[0].index
        if newest > log.tail():
            raise Halt(
                f"checkpoint {self.key(newest)} is beyond the end of the {self._log_name} log; put the "
                "newest metadata store in place"
            )
        for one in found:
            if not self.is_of(one, log):
                raise Halt(
                    f"checkpoint {self.key(one.index)} is of another {self._log_name} log; put the "
                    "newest metadata store in place, or move "
                    "the checkpoint away if that is lost. The log is not trimmed until then"
                )

    def older_than(self, index: int) -> list[str]:
        """Keys of the checkpoints before entry `index`, ascending."""
        return [self.key(older) for older in self.indexes() if older < index]


def seal(magic: bytes, payload: bytes) -> bytes:
    """The object of a checkpoint: the magic, the SHA-256 of all that follows it, the payload."""
    return magic + hashlib.sha256(payload).digest() + payload


def unseal(magic: bytes, data: bytes, where: str) -> bytes:
    """The inverse of `seal`; raises `Corrupted`, naming `where`, if a bit is wrong."""
    payload = data[len(magic) + _DIGEST_BYTES :]
    if (
        data[: len(magic)] != magic
        or data[len(magic) : len(magic) + _DIGEST_BYTES] != hashlib.sha256(payload).digest()
    ):
        raise Corrupted(
            f"checkpoint {where} is damaged ({len(data)} bytes do not have the digest they begin with)"
        )
    return payload
