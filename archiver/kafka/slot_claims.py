"""Which daemon coordinates which consumer groups, and this daemon's claims in the intake log.

Groups are spread over slots, and every daemon finds the same one for a slot among those that are live. Lists
of the live daemons may differ for a while, and that of a paused daemon is old. So a daemon claims a slot in
the log before it uses it. A commit under an older claim is void, wherever it comes from.

Only the listener's loop may call this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.kafka.topic_configs import Refused
from archiver.log.brokers import Broker, coordinator_of
from archiver.runtime.errors import ArchiverError
from archiver.runtime.logging import LogLimit
from intake.log.committed_offsets import CommittedOffsets
from intake.log.consumer_groups import GROUP_SLOTS, ConsumerGroups

_log = logging.getLogger(__name__)

RECLAIM_S: Final = 1.0
"""Time after which a lost slot may be claimed again. Two daemons that both believe to coordinate it must not
fill the log with claims, and lists of live daemons agree after about this time."""
REJOIN_S: Final = 10.0
"""Time after a claim in which members of the earlier coordinator may still join. Clients send a heartbeat
every 3 s by default, learn from the answer that the coordinator has changed, and join at the new one."""


class SlotClaims:
    """The slots that this daemon coordinates."""

    def __init__(
        self,
        offsets: CommittedOffsets,
        groups: Callable[[], ConsumerGroups],
        live: Callable[[], Sequence[Broker]],
        own: Callable[[], Broker | None],
        threads: Executor,
        on_lost: Callable[[int], None],
    ) -> None:
        """`groups` are those of the log as far as it was read. `live` are the live daemons, `own` is this one
        if it is registered. `threads` append to the log. `on_lost` is called for each slot that this daemon
        no longer coordinates.
        """
        self._offsets = offsets
        self._groups = groups
        self._live = live
        self._own = own
        self._threads = threads
        self._on_lost = on_lost
        self._claims: dict[int, int] = {}
        """Numbers of the claims that this process made, by slot."""
        self._taken_over_s: dict[int, float] = {}
        """Time of the loop of the claim, of the slots that were claimed before."""
        self._lost_s: dict[int, float] = {}
        self._wanted: set[int] = set()
        self._claiming = asyncio.Lock()
        self._attempts = 0
        """Claims that were begun."""
        self._failed = 0
        """The last of them that failed."""
        self._log_limit = LogLimit(_log)
        self._seen: tuple[Broker, ...] = ()
        self._chosen: list[Broker | None] = [None] * GROUP_SLOTS

    @property
    def held(self) -> Sequence[int]:
        """The slots that this daemon claimed and has not lost."""
        return list(self._claims)

    def coordinator(self, slot: int) -> Broker | None:
        """The daemon that coordinates a slot; None without live daemons."""
        live = tuple(self._live())
        if live != self._seen:
            self._chosen = [
                coordinator_of(live, f"group-slot-{number}") if live else None
                for number in range(GROUP_SLOTS)
            ]
            self._seen = live
        return self._chosen[slot]

    def is_own(self, slot: int) -> bool:
        """Whether this daemon is the one that clients find for a slot."""
        own, chosen = self._own(), self.coordinator(slot)
        return own is not None and chosen is not None and chosen.node_id == own.node_id

    def own_slots(self) -> frozenset[int]:
        """The slots of which `is_own` is true, for a caller that goes over many groups."""
        return frozenset(slot for slot in range(GROUP_SLOTS) if self.is_own(slot))

    async def require(self, slot: int) -> int:
        """The number of this daemon's claim of a slot, which is claimed if needed. Returns without a wait if
        it is claimed already. Raises `Refused` if the slot is not this daemon's.
        """
        number = self.number(slot)
        return await self._claim(slot) if number is None else number

    def number(self, slot: int) -> int | None:
        """As `require`, but None if the slot is not claimed."""
        if not self.is_own(slot):
            self.give_up(slot)
            raise Refused(ErrorCode.not_coordinator)
        number = self._claims.get(slot)
        if number is not None and not self._is_newest(slot, number):
            self.give_up(slot)
            raise Refused(ErrorCode.not_coordinator)
        return number

    def may_rejoin(self, slot: int) -> bool:
        """Whether groups of a claimed slot may have members that have not joined this daemon yet."""
        taken_over_s = self.taken_over_s(slot)
        return taken_over_s is not None and asyncio.get_running_loop().time() < taken_over_s + REJOIN_S

    def taken_over_s(self, slot: int) -> float | None:
        """Time of the loop at which a slot was claimed that had an earlier coordinator; None without one."""
        return self._taken_over_s.get(slot)

    def check(self) -> None:
        """Give up the slots that other daemons coordinate, as far as the log was read."""
        for slot, number in list(self._claims.items()):
            if not (self.is_own(slot) and self._is_newest(slot, number)):
                self.give_up(slot)

    def give_up(self, slot: int) -> None:
        """This daemon no longer coordinates the slot; no effect if it did not."""
        if self._claims.pop(slot, None) is not None:
            self._taken_over_s.pop(slot, None)
            self._lost_s[slot] = asyncio.get_running_loop().time()
            _log.info("consumer groups of slot %d are coordinated by another daemon", slot)
            self._on_lost(slot)

    def _is_newest(self, slot: int, number: int) -> bool:
        newest = self._groups().claim(slot)
        return newest is not None and newest.number == number

    async def _claim(self, slot: int) -> int:
        self._wanted.add(slot)
        attempts = self._attempts
        # The first one claims for all that wait.
        async with self._claiming:
            number = self.number(slot)
            if number is not None:
                return number
            # And fails for all: else each would wait for the attempts of those before it.
            if self._failed > attempts:
                raise Refused(ErrorCode.coordinator_load_in_progress)
            loop, own = asyncio.get_running_loop(), self._own()
            lost_s = self._lost_s.get(slot)
            if own is None or (lost_s is not None and loop.time() < lost_s + RECLAIM_S):
                raise Refused(ErrorCode.not_coordinator)
            slots = [one for one in self._wanted | {slot} if self.is_own(one) and one not in self._claims]
            self._wanted.clear()
            self._attempts += 1
            try:
                claimed, earlier = await loop.run_in_executor(self._threads, self._append, slots, own.node_id)
            except ArchiverError as error:
                # Also without a known outcome: a claim that is in the log and not used here harms nothing.
                self._failed = self._attempts
                self._log_limit.log(
                    loop.time(), logging.WARNING, "consumer groups cannot be coordinated now: %s", error
                )
                raise Refused(ErrorCode.coordinator_load_in_progress) from error
            self._claims.update(dict.fromkeys(slots, claimed))
            self._taken_over_s.update(dict.fromkeys(earlier, loop.time()))
        # Another daemon may have claimed it since.
        if self.number(slot) != claimed:
            raise Refused(ErrorCode.not_coordinator)
        return claimed

    def _append(self, slots: Sequence[int], node_id: int) -> tuple[int, list[int]]:
        """Append a claim; its number, and the slots that were claimed before."""
        groups = self._offsets.read()
        earlier = [slot for slot in slots if groups.claim(slot) is not None]
        return self._offsets.claim_slots(slots, node_id), earlier
