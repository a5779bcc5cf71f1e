"""Topics that members of consumer groups subscribe to by a pattern (KIP-848).

Patterns come from clients. They are RE2's, so that a match takes time linear in the names, and they run in a
thread. Only the listener's loop may call this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from archiver.kafka.consumer_members import TopicRegex
from archiver.kafka.topic_configs import Refused

PATTERN_MAX: Final = 1000
"""Longest pattern, in characters. RE2 itself bounds the memory of a compiled one to 8 MiB."""
REGEXES_MAX: Final = 1000
"""Most different patterns and principals of all members of a daemon."""


class TopicRegexes:
    """Names of the topics that match, as of the last `resolve` or `refresh`."""

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        allowed: Callable[[str, Sequence[str]], list[str]],
        threads: Executor,
    ) -> None:
        """`names` are those of the topics that exist; `allowed` are those that a principal may see."""
        self._names = names
        self._allowed = allowed
        self._threads = threads
        self._found: dict[TopicRegex, frozenset[str]] = {}
        self._of: tuple[str, ...] = ()
        """The names of which `_found` is."""

    def visible(self, principal: str, names: Iterable[str]) -> frozenset[str]:
        """Those of the names that a principal may see."""
        return frozenset(self._allowed(principal, tuple(names)))

    def matching(self, regex: TopicRegex) -> frozenset[str]:
        """Names that match; none for a pattern that was not resolved."""
        return self._found.get(regex, frozenset())

    async def resolve(self, regex: TopicRegex) -> None:
        """Find the names for a pattern of a member. Raises `Refused` for one that is not accepted."""
        if regex in self._found or not regex.pattern:
            return
        if len(regex.pattern) > PATTERN_MAX:
            raise Refused(ErrorCode.invalid_regular_expression, f"longer than {PATTERN_MAX} characters")
        if len(self._found) >= REGEXES_MAX:
            raise Refused(ErrorCode.coordinator_not_available)
        self._found[regex] = await self._matched(regex, self._of or tuple(self._names()))

    async def refresh(self, used: Collection[TopicRegex]) -> None:
        """Forget the patterns that no member has. Match the others again if topics were added or removed."""
        for regex in self._found.keys() - used:
            del self._found[regex]
        names = tuple(self._names()) if self._found else ()
        if names != self._of:
            self._of = names
            for regex in list(self._found):
                self._found[regex] = await self._matched(regex, names)

    async def _matched(self, regex: TopicRegex, names: Sequence[str]) -> frozenset[str]:
        allowed = self._allowed(regex.principal, names)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, full_matches, regex.pattern, allowed)


def full_matches(pattern: str, names: Sequence[str]) -> frozenset[str]:
    """Those of the names that match as a whole. Raises `Refused` for a pattern that RE2 does not accept."""
    try:
        # Alone first: together with the brackets, `a)(b` would be a pattern. Of one name, because nothing is
        # compiled for none.
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
        found = pc.match_substring_regex(pa.array(["", *names]), pattern=rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise Refused(ErrorCode.invalid_regular_expression, str(error)) from error
    return frozenset(name for name, does in zip(names, found.to_pylist()[1:], strict=True) if does)
