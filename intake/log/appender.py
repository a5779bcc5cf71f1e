"""Appends entries at the tail of the intake log, and resolves those of unknown outcome.

Entries are appended one at a time, and a reported success is final. After an unknown outcome nothing else is
appended until that entry is resolved (protocol rule L2). After a lost race the log is read to its tail first
(rule L3). It must never append at an index that it has not read up to.

A process that slept while the log was trimmed past it appends nothing. The log refuses an index below the
floor. The state is loaded from the newest checkpoint, and the caller learns that its entry is not in the log.
An entry of unknown outcome below the floor can be resolved, because nothing can be appended there any more:
the ids in the checkpoint show whether it is in the log.

Not thread-safe: its owner, the sequencer, holds a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from archiver.config.groups import LogSettings
from archiver.log.append_retry import append_until_known
from archiver.log.store import Appended, Log
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, InvalidInput, OutcomeUnknown, RetryLater, Trimmed
from archiver.runtime.ids import IdSource, new_entry_id
from intake.log.entries import format_of, parse_entry
from intake.log.fold import NOTHING, Applied
from intake.log.folded_log import FoldedLog

RACES_PER_ATTEMPT = 10
"""Lost races allowed per append attempt. Many, because in each of them another process made progress."""

_log = logging.getLogger(__name__)


class Appender:
    """The only appender to the log in a process. `read` is its fold; appends read it on where needed."""

    def __init__(self, log: Log, read: FoldedLog, ids: IdSource, clock: Clock, settings: LogSettings) -> None:
        self._log = log
        self.read = read
        self._ids = ids
        self._clock = clock
        self._settings = settings
        # Index and bytes of an entry whose append has no known outcome. Nothing is appended before it is
        # resolved.
        self._unresolved: tuple[int, bytes] | None = None
        self.last_unknown: tuple[int, bytes] | None = None
        """Index and bytes of the last entry of unknown outcome; it may be resolved by now."""

    def append(
        self, entry: pb.IntakeEntry, is_needed: Callable[[], object] = lambda: True, *, step: str = ""
    ) -> Applied:
        """Append the entry at the tail and return its result. Gives up without an error as soon as
        `is_needed` is false. `step` names the failpoints before and after it; empty for none.
        """
        failpoints.reach(f"{step}.before")
        applied = self._append(entry, is_needed)
        failpoints.reach(f"{step}.after")
        return applied

    def _append(self, entry: pb.IntakeEntry, is_needed: Callable[[], object]) -> Applied:
        entry.format = format_of(entry)
        # One id for all attempts: after an unknown outcome the same bytes go to the same index (rule L2).
        entry.id = new_entry_id(self._ids)
        # Made once: every retry sends these bytes.
        data = entry.SerializeToString(deterministic=True)
        if len(data) > self._settings.entry_bytes_max:
            raise InvalidInput(
                f"an entry of {len(data)} bytes is larger than log.entry_bytes_max = "
                f"{self._settings.entry_bytes_max}"
            )
        # `append_until_known` bounds the retries of one index; this loop bounds the lost races.
        for race in range(self._settings.append_attempts_max * RACES_PER_ATTEMPT):
            self.resolve_earlier()
            if race:
                # The lock is held during the wait: no other entry of this process may be appended first.
                self._clock.sleep(self._jitter_s(race))
                self.read.read_on()
            # Check after every read of the log: another process may have appended the same change.
            if not is_needed():
                return NOTHING
            index = self.read.fold.next_index
            try:
                outcome = self._append_until_known(index, data)
            # Refused before any attempt was in doubt, so the entry is certainly not in the log.
            except Trimmed as error:
                self.read.reload()
                raise RetryLater(
                    f"the log was trimmed past this process, so nothing was appended ({error}); the "
                    "state was reloaded"
                ) from error
            except OutcomeUnknown as error:
                # `last_unknown` stays after `_unresolved` is cleared: its result may be asked for later.
                self.last_unknown = (index, data)
                self._unresolved = (index, data)
                if isinstance(error.__cause__, Trimmed) and self._proves_absence(error):
                    # The index was trimmed while an attempt was in doubt, but the kept ids prove absence.
                    raise RetryLater(
                        f"nothing was appended: another entry was at index {index} before the log was trimmed"
                    ) from error
                raise
            if outcome is Appended.OK:
                return self.read.apply(index, data)
            # The index is occupied by an entry of another process: read it (rule L3), then try the next
            # index.
            self.read.read_on()
        raise RetryLater(
            f"log {self._log.name}: lost the race for the tail "
            f"{self._settings.append_attempts_max * RACES_PER_ATTEMPT} times; nothing was appended"
        )

    def resolve_earlier(self) -> None:
        """Resolve an entry of unknown outcome before anything else is appended."""
        # The log was read past that index, so the outcome is decided either way.
        if self._unresolved is not None and self.read.fold.next_index > self._unresolved[0]:
            self._unresolved = None
        if self._unresolved is None:
            return
        index, data = self._unresolved
        try:
            # Rule L2: the same bytes at the same index. They are found there, or the index is taken by
            # another entry.
            outcome = self._append_until_known(index, data)
        except Trimmed:
            self._resolve_trimmed()
            return
        except OutcomeUnknown as error:
            if isinstance(error.__cause__, Trimmed):
                self._resolve_trimmed()
                return
            raise RetryLater(
                "an earlier entry of the intake log is not resolved yet, so nothing is appended after "
                f"it ({error})"
            ) from error
        self._unresolved = None
        if outcome is Appended.OK:
            self.read.apply(index, data)
        else:
            self.read.read_on()

    def is_there(self, index: int, data: bytes) -> bool | None:
        """Whether the entry at `index`, which was read already, is this one; None if its id is no longer
        kept.
        """
        known = self.read.fold.entry_id(index)
        return None if known is None else known == parse_entry(index, data).id

    def _proves_absence(self, error: OutcomeUnknown) -> bool:
        """Resolve the entry below the floor; True if it is certainly not in the log. Raises `error` if the
        state cannot be loaded.
        """
        try:
            # None does not prove absence.
            return self._resolve_trimmed() is False
        except ArchiverError as loading:
            raise error from loading

    def _resolve_trimmed(self) -> bool | None:
        """Whether the unresolved entry, which is below the floor, is in the log; None if its id is no longer
        kept. Nothing can be appended below the floor.
        """
        assert self._unresolved is not None, "called only with an unresolved entry"
        index, data = self._unresolved
        self.read.reload()
        # The reloaded state remembers the ids of the newest entries, those of trimmed ones included.
        present = self.is_there(index, data)
        self._unresolved = None
        found = (
            "is too old to be found, so its outcome stays unknown"
            if present is None
            else "is in the log"
            if present
            else "is not in the log"
        )
        _log.warning(
            "log %s was trimmed past entry %d, whose outcome was unknown: it %s", self._log.name, index, found
        )
        return present

    def _append_until_known(self, index: int, data: bytes) -> Appended:
        return append_until_known(
            self._log,
            index,
            data,
            self._settings.append_attempts_max,
            self._settings.append_backoff,
            self._clock,
        )

    def _jitter_s(self, race: int) -> float:
        """A random wait, so that two appenders do not stay in step; grows with the lost races."""
        # From the injected source, so that a simulation can be repeated from its seed.
        share = int.from_bytes(self._ids.random_bytes(2), "big") / 65536
        return self._settings.append_backoff * share * min(1.0, race / 10)
