"""Commits, pending commits and removals of offsets on their way into the intake log.

They are appended in their order, by one thread. Those of a type that arrive during an append are appended
together. Only the listener's loop may call this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor

from kio.schema.errors import ErrorCode

from archiver.kafka.topic_configs import Refused
from archiver.runtime.errors import ArchiverError
from archiver.runtime.logging import LogLimit
from intake.log.committed_offsets import Commit, CommittedOffsets, HoldOutcome, PendingCommit, Removal

_log = logging.getLogger(__name__)

Item = Commit | PendingCommit | Removal


class OffsetQueue:
    """What waits is bounded by the listener: each of its requests is in work until its outcome is known."""

    def __init__(self, offsets: CommittedOffsets, threads: Executor) -> None:
        self._offsets = offsets
        self._threads = threads
        self._waiting: deque[tuple[Item, asyncio.Future[HoldOutcome]]] = deque()
        self._last: dict[str, asyncio.Future[HoldOutcome]] = {}
        """Of each group with something in work, the last of it."""
        self._unresolved = False
        """The last append is of unknown outcome, so it may come into the log later."""
        self._task: asyncio.Task[None] | None = None
        self._log_limit = LogLimit(_log)
        self._defects_limit = LogLimit(_log)

    def put(self, item: Item) -> asyncio.Future[HoldOutcome]:
        """Append it. The outcome is not cancelled: it goes on if the client leaves."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[HoldOutcome] = loop.create_future()
        self._waiting.append((item, outcome))
        self._last[_group(item)] = outcome
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return asyncio.shield(outcome)

    async def settled(self, group: str) -> None:
        """Wait until everything of a group that is in work now has its outcome."""
        last = self._last.get(group)
        if last is not None:
            await asyncio.wait((last,))

    async def resolve(self) -> None:
        """Wait until what was appended with an unknown outcome is in the log, or never will be. Raises
        `Refused` if that is not known yet.
        """
        if not self._unresolved:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._offsets.resolve)
        except ArchiverError as error:
            self._log_limit.log(
                loop.time(), logging.WARNING, "a commit of unknown outcome is not resolved yet: %s", error
            )
            raise Refused(ErrorCode.coordinator_load_in_progress) from error
        self._unresolved = False

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            kind = type(self._waiting[0][0])
            taken = []
            while self._waiting and isinstance(self._waiting[0][0], kind):
                taken.append(self._waiting.popleft())
            items = [item for item, _ in taken]
            try:
                outcomes = await loop.run_in_executor(self._threads, self._append, items)
            except Exception:  # noqa: BLE001
                # The queue serves all groups, so it must survive a defect.
                self._defects_limit.log(
                    loop.time(),
                    logging.ERROR,
                    "unexpected error in %d commits of consumer groups",
                    len(items),
                    exc_info=True,
                )
                outcomes = ["unknown"] * len(items)
            # Every append resolves an earlier one first. What is not appended shows nothing.
            if "unknown" in outcomes or not all(one == "not_appended" for one in outcomes):
                self._unresolved = "unknown" in outcomes
            for (item, outcome), found in zip(taken, outcomes, strict=True):
                if self._last.get(_group(item)) is outcome:
                    del self._last[_group(item)]
                outcome.set_result(found)

    def _append(self, items: Sequence[Item]) -> Sequence[HoldOutcome]:
        """Append items of one type."""
        commits = [item for item in items if isinstance(item, Commit)]
        pending = [item for item in items if isinstance(item, PendingCommit)]
        if commits:
            return self._offsets.commit(commits)
        if pending:
            return self._offsets.hold(pending)
        return self._offsets.remove([item for item in items if isinstance(item, Removal)])


def _group(item: Item) -> str:
    return item.commit.group if isinstance(item, PendingCommit) else item.group
