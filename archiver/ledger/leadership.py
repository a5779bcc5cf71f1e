"""How long a process leads: for one command, or for as long as it lives.

Owns the lease together with the epoch that goes with it. A command takes the lease for its one turn and
starts an epoch of its own. A daemon keeps both from turn to turn, so that a quiet night adds no entries to
the control log, and starts a new epoch only after somebody else's. Only one turn is under way in a process at
a time, and turns come in the order of asking. A long job gives way between its steps (`give_way`, `aside`),
so that a due round of archiving waits for one step and not for the whole job.

The lease saves work and protects nothing (`archiver.log.lease`): whatever is written carries the epoch, and a
stale one is void.

A leader stands down by its own clock. It has to have read the control log within `confirm_max_s`, whatever
the lease says: who finds a newer epoch there (rule L4), or could not look for so long, gives the lease back,
in the middle of a turn too. Who was deposed although it held the lease leaves the newer leader alone for as
long, so that two that both believe in their lease do not end each other's rounds for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from archiver.ledger.leader import Leader
from archiver.log.lease import Lease
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, RetryLater
from archiver.runtime.fair_queue import FairQueue

EPOCH_KEYS_MAX = 1000
"""Archives that one epoch of a lasting leader may make, and those of the round that goes beyond."""


class Leadership:
    """The right to archive and to clean. Safe for several threads; turns wait for each other."""

    def __init__(
        self,
        leader: Leader,
        lease: Lease,
        *,
        lasting: bool = False,
        holding: bool | None = None,
        wait_s: float = threading.TIMEOUT_MAX,
        confirm_max_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """With `lasting`, the epoch is kept from turn to turn. With `holding` (as `lasting`, unless it is
        said) the lease is kept until `resign`; without it others get turns in between, and an epoch of theirs
        ends ours. A turn waits `wait_s` for another one. `confirm_max_s`, by `clock`'s monotonic hand, bounds
        how long a lease is kept without a look at the log; without a clock a look that fails ends nothing.
        """
        self.leader = leader
        self._lease = lease
        self._lasting = lasting
        self._holding = lasting if holding is None else holding
        self._wait_s = wait_s
        self._queue = FairQueue()
        self._ticket: object = None
        """Of the turn that is under way."""
        self._kept = False
        """The lease was held ever since our epoch was last seen to be the newest, as far as this process can
        tell."""
        self._confirm_max_s = confirm_max_s
        self._clock = clock
        self._confirmed_s = 0.0
        """When the log was last known to hold no newer epoch than ours."""
        self._yields_until_s: float | None = None
        """Until then a newer leader is left alone."""
        self._under_way = ""
        """What the turn that is under way, or was last, is for."""

    @contextmanager
    def turn(self, what: str = "work") -> Iterator[None]:
        """Hold the lease inside of the block, for `what`. Raises `LeaseHeld` if another process has it; waits
        for another turn of this process, and raises `RetryLater` if that does not end in time.

        A newer leader (`Deposed`) ends a lasting leadership too: the next turn begins with the lease, if it
        is to be had.
        """
        ticket = object()
        self._enter(ticket, what)
        try:
            self._lease.acquire()
            try:
                self._confirm()
                yield
            except Deposed:
                self._give_back()
                raise
            finally:
                if not self._holding:
                    self._give_back()
        finally:
            self._queue.leave(ticket)

    def _enter(self, ticket: object, what: str) -> None:
        """Wait for the earlier turns of this process. Raises `RetryLater` if they do not end in time."""
        if not self._queue.enter(ticket, self._wait_s):
            raise RetryLater(
                f"{self._under_way} is under way here and has not ended within {self._wait_s:g} s; "
                f"{what} waits no longer"
            )
        self._ticket, self._under_way = ticket, what

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within a turn: run the block outside of it, so that other turns of this process go on in the
        meantime; then go on with the turn. Without `holding` the block is a part of the turn, because other
        processes would get turns too.

        What was read before the end of the block may be stale behind it. Raises as `turn`, and then the turn
        is over: do not catch that within the turn.
        """
        if not self._holding:
            yield
            return
        ticket, what = self._ticket, self._under_way
        self._queue.leave(ticket)
        try:
            yield
        finally:
            self._enter(ticket, what)
            self._lease.acquire()
            self._confirm()

    def give_way(self) -> bool:
        """Within a turn: let those turns of this process go first that wait for it, and no later ones. True
        if there were any: then what was read before is stale. Raises as `aside`.
        """
        if not self._holding or not self._queue.contended:
            return False
        with self.aside():
            return True

    def lead(self) -> int:
        """An epoch that is the newest, within a turn: a lasting leader's own if nobody came after it, else a
        new one.

        One that has used many paths is followed by a new one as well: they are all kept in memory, and looked
        through for every plan. Raises as `Leader.take_over`, and `Deposed` if somebody took over though this
        process has kept the lease: the lease is not what it seems (its file was replaced while this process
        slept), so whoever came later goes on.
        """
        if self._lasting and self.leader.epoch:
            at_s = self._now_s()
            self.leader.refresh()
            fold = self.leader.fold
            if fold.epoch > self.leader.epoch:
                self._yield_to_newer()
            if (
                fold.epoch == self.leader.epoch
                and sum(len(topic.epoch_keys) for topic in fold.topics.values()) < EPOCH_KEYS_MAX
            ):
                # Kept from here on, also where it was given back meanwhile because the log could not be read.
                self._kept, self._confirmed_s = self._holding, at_s
                return self.leader.epoch
        at_s = self._now_s()
        epoch = self.leader.take_over()
        self._confirmed_s, self._yields_until_s = at_s, None
        self._kept = self._holding
        return epoch

    def lead_anew(self) -> int:
        """As `lead`, with an epoch that nobody has used yet, this process included."""
        before = self.leader.epoch
        epoch = self.lead()
        return epoch if epoch != before else self.leader.take_over()

    @property
    def holding(self) -> bool:
        """Whether the lease is kept between turns. If not, others get turns in between, and an epoch of
        theirs ends ours.
        """
        return self._holding

    def heard(self, epoch: int) -> None:
        """Somebody in this process has read the log to its tail, where `epoch` is the newest: stand down if
        it is newer than our own.
        """
        if not self._kept:
            return
        if self.leader.follows(epoch):
            self._deposed()
        else:
            self._confirmed_s = self._now_s()

    def unheard(self) -> None:
        """The log could not be read: stand down if that has been so for too long. What is under way ends
        where it next needs the log.
        """
        if self._kept and self._now_s() - self._confirmed_s > self._confirm_max_s:
            self._give_back()

    def _confirm(self) -> None:
        """Rule L4, before every turn of a kept leadership, also one in which there is nothing to do."""
        if not self._kept:
            return
        at_s = self._now_s()
        try:
            self.leader.refresh()
        except ArchiverError:
            self.unheard()
            raise
        if self.leader.fold.epoch > self.leader.epoch:
            self._yield_to_newer()
        self._confirmed_s = at_s

    def _yield_to_newer(self) -> None:
        """Raise `Deposed` if this process held the lease all the time, or was deposed so a short while
        ago.
        """
        if self._kept:
            self._deposed()
        elif self._yields_until_s is None or self._now_s() >= self._yields_until_s:
            return
        fold = self.leader.fold
        raise Deposed(
            f"epoch {fold.epoch} of {fold.owner} follows epoch {self.leader.epoch} of this leader: step down"
        )

    def _deposed(self) -> None:
        self._yields_until_s = self._now_s() + self._confirm_max_s
        self._give_back()

    def _now_s(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic_s()

    def holder(self) -> str | None:
        """`host:pid` of whoever holds the lease now, None if nobody does."""
        return self._lease.holder()

    def resign(self) -> None:
        """Give the lease back, once the turn that is under way has ended."""
        ticket = object()
        self._queue.enter(ticket, threading.TIMEOUT_MAX)
        try:
            self._give_back()
        finally:
            self._queue.leave(ticket)

    def _give_back(self) -> None:
        self._kept = False
        self._lease.release()
