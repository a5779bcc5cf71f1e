"""How long a process leads: for one command, or for its lifetime.

Combines the lease and its epoch. A command takes the lease for its one turn and starts its own epoch. A
daemon keeps both from turn to turn, and starts a new epoch only after another leader's (decision 0016). A
process runs one turn at a time, in request order. A long job gives way between its steps (`give_way`,
`aside`), so that a due archiving round does not wait for the whole job.

The lease saves work and protects nothing (`archiver.log.lease`): every write carries the epoch, and a stale
one is void. A leader stands down by its own clock: it must have read the control log within `confirm_max_s`,
regardless of the lease (rule L4).
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
"""Archives that one epoch of a lasting leader may make; the round that exceeds it still ends."""


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
        """With `lasting`, the epoch is kept from turn to turn. With `holding` (default: as `lasting`), the
        lease is kept until `resign`. Without it, other processes get turns in between, and their epoch ends
        this one. A turn waits `wait_s` for another one. `confirm_max_s` limits how long a lease is kept
        without reading the log, by `clock`'s monotonic time. Without a clock, a failed read has no effect.
        """
        self.leader = leader
        self._lease = lease
        self._lasting = lasting
        # A lasting epoch without a held lease is possible: others get turns, and their epoch ends this one.
        self._holding = lasting if holding is None else holding
        self._wait_s = wait_s
        self._queue = FairQueue()
        self._ticket: object = None
        """The ticket of the current turn."""
        self._kept = False
        """Whether, as far as this process knows, the lease was held since its epoch was last seen to be the
        newest."""
        self._confirm_max_s = confirm_max_s
        self._clock = clock
        self._confirmed_s = 0.0
        """When the log was last known to hold no newer epoch."""
        self._yields_until_s: float | None = None
        """Until then this process does not compete with a newer leader."""
        self._under_way = ""
        """The purpose of the current or last turn."""

    @contextmanager
    def turn(self, what: str = "work") -> Iterator[None]:
        """Hold the lease in the block, for `what`. Raises `LeaseHeld` if another process has it. Waits for
        another turn of this process, and raises `RetryLater` if that turn does not end in time.

        A newer leader (`Deposed`) ends a lasting leadership too: the next turn first needs the lease.
        """
        ticket = object()
        self._enter(ticket, what)
        try:
            # The queue comes first: a lease taken by a waiting turn would block other processes for nothing.
            self._lease.acquire()
            try:
                self._confirm()
                yield
            # Also a lasting leadership ends here: the newer leader must get the lease.
            except Deposed:
                self._give_back()
                raise
            finally:
                # A process without a held lease releases it after each turn, also after an error.
                if not self._holding:
                    self._give_back()
        finally:
            # In `finally`, so that a failed turn never blocks the turns behind it.
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
        """Within a turn: run the block outside of the turn, so that other turns of this process can run, then
        continue the turn. Without `holding` the block stays in the turn, because other processes would get
        turns too.

        Data read before the end of the block may be stale after it. Raises like `turn`, and the turn is then
        over: do not catch that within the turn.
        """
        if not self._holding:
            yield
            return
        # Read before the block: the turns in between overwrite both.
        ticket, what = self._ticket, self._under_way
        self._queue.leave(ticket)
        try:
            yield
        finally:
            # In `finally`: the enclosing `turn` leaves the queue with this ticket in any case.
            self._enter(ticket, what)
            self._lease.acquire()
            # Other turns ran in between, and one of them may have found a newer epoch.
            self._confirm()

    def give_way(self) -> bool:
        """Within a turn: let the waiting turns of this process go first, but no later ones. True if there
        were any; data read before is then stale. Raises like `aside`.
        """
        if not self._holding or not self._queue.contended:
            return False
        with self.aside():
            return True

    def lead(self) -> int:
        """The newest epoch, within a turn: a lasting leader's own if none came after it, otherwise a new one.

        An epoch that has used many paths is followed by a new one as well. Raises like `Leader.take_over`.
        Raises `Deposed` if another leader took over although this process kept the lease.
        """
        if self._lasting and self.leader.epoch:
            # Taken before the read: the log is confirmed for the time at which the read began.
            at_s = self._now_s()
            self.leader.refresh()
            fold = self.leader.fold
            if fold.epoch > self.leader.epoch:
                # Raises if the lease was kept. Then the lease is unreliable, for example because its file was
                # replaced, and the later leader continues.
                self._yield_to_newer()
            if (
                fold.epoch == self.leader.epoch
                # The keys of an epoch are all in memory and are searched for every plan.
                and sum(len(topic.epoch_keys) for topic in fold.topics.values()) < EPOCH_KEYS_MAX
            ):
                # Kept from here on, even if it was released in between because the log was unreadable.
                self._kept, self._confirmed_s = self._holding, at_s
                return self.leader.epoch
        at_s = self._now_s()
        epoch = self.leader.take_over()
        # The wait after a deposition is over, because this process leads again.
        self._confirmed_s, self._yields_until_s = at_s, None
        self._kept = self._holding
        return epoch

    def lead_again(self) -> int:
        """Like `lead`, with an epoch that was never used, not even by this process."""
        before = self.leader.epoch
        epoch = self.lead()
        # `lead` may have started a new epoch already. A second one would only add an entry.
        return epoch if epoch != before else self.leader.take_over()

    @property
    def holding(self) -> bool:
        """Whether the lease is kept between turns. If not, other processes get turns in between, and their
        epoch ends this one.
        """
        return self._holding

    def heard(self, epoch: int) -> None:
        """Note that this process has read the log to its tail, where `epoch` is the newest. Stand down if it
        is newer than the own epoch.
        """
        if not self._kept:
            return
        # The poll may have read the EPOCH of a take-over in this process, which is not newer.
        if self.leader.follows(epoch):
            self._deposed()
        else:
            self._confirmed_s = self._now_s()

    def unheard(self) -> None:
        """Note that the log is unreadable. Stand down if that lasts too long. Current work ends where it next
        needs the log.
        """
        # Not at the first failure: a short outage of the log must not cost the leadership.
        if self._kept and self._now_s() - self._confirmed_s > self._confirm_max_s:
            self._give_back()

    def _confirm(self) -> None:
        """Rule L4, before every turn of a kept leadership, even if the turn has nothing to do."""
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
        """Raise `Deposed` if this process held the lease all the time, or was deposed recently."""
        if self._kept:
            self._deposed()
        # Without a kept lease, another leader in between is normal, and this process may lead again.
        elif self._yields_until_s is None or self._now_s() >= self._yields_until_s:
            return
        fold = self.leader.fold
        raise Deposed(
            f"epoch {fold.epoch} of {fold.owner} follows epoch {self.leader.epoch} of this leader: step down"
        )

    def _deposed(self) -> None:
        # Two processes that both believe in their lease would otherwise end each other's rounds forever.
        self._yields_until_s = self._now_s() + self._confirm_max_s
        self._give_back()

    def _now_s(self) -> float:
        # Without a clock no time passes, so a failed read has no effect.
        return 0.0 if self._clock is None else self._clock.monotonic_s()

    def holder(self) -> str | None:
        """`host:pid` of the current lease holder, or None."""
        return self._lease.holder()

    def resign(self) -> None:
        """Release the lease after the current turn."""
        ticket = object()
        # Waits without a limit: releasing within a turn would let another leader start in the middle of it.
        self._queue.enter(ticket, threading.TIMEOUT_MAX)
        try:
            self._give_back()
        finally:
            self._queue.leave(ticket)

    def _give_back(self) -> None:
        self._kept = False
        self._lease.release()
