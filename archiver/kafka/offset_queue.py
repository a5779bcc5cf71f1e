"""Commits and removals of committed offsets on their way into the intake log.

They are appended in their order, by one thread. Those that arrive during an append share the next entry.
Only the listener's loop may call this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import Executor

from archiver.runtime.logging import LogLimit
from intake.log.committed_offsets import Commit, CommitOutcome, CommittedOffsets, Removal

_log = logging.getLogger(__name__)


class OffsetQueue:
    """What waits is bounded by the listener: each of its requests is in work until its outcome is known."""

    def __init__(self, offsets: CommittedOffsets, threads: Executor) -> None:
        self._offsets = offsets
        self._threads = threads
        self._waiting: deque[tuple[Commit | Removal, asyncio.Future[CommitOutcome]]] = deque()
        self._last: dict[str, asyncio.Future[CommitOutcome]] = {}
        """Of each group with something in work, the last of it."""
        self._task: asyncio.Task[None] | None = None
        self._log_limit = LogLimit()

    def put(self, item: Commit | Removal) -> asyncio.Future[CommitOutcome]:
        """Append it. The outcome is not cancelled: it goes on if the client leaves."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[CommitOutcome] = loop.create_future()
        self._waiting.append((item, outcome))
        self._last[item.group] = outcome
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return asyncio.shield(outcome)

    async def settled(self, group: str) -> None:
        """Wait until everything of a group that is in work now has its outcome."""
        last = self._last.get(group)
        if last is not None:
            await asyncio.wait((last,))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            are_commits = isinstance(self._waiting[0][0], Commit)
            taken = []
            while self._waiting and isinstance(self._waiting[0][0], Commit) == are_commits:
                taken.append(self._waiting.popleft())
            items = [item for item, _ in taken]
            try:
                outcomes = await loop.run_in_executor(self._threads, self._append, items)
            except Exception:  # noqa: BLE001
                # The queue serves all groups, so it must survive a defect.
                if self._log_limit.allows(loop.time()):
                    _log.exception("unexpected error in %d commits of consumer groups", len(items))
                outcomes = ["unknown"] * len(items)
            for (item, outcome), found in zip(taken, outcomes, strict=True):
                if self._last.get(item.group) is outcome:
                    del self._last[item.group]
                outcome.set_result(found)

    def _append(self, items: list[Commit | Removal]) -> list[CommitOutcome]:
        commits = [item for item in items if isinstance(item, Commit)]
        if commits:
            return self._offsets.commit(commits)
        return self._offsets.remove([item for item in items if isinstance(item, Removal)])
