"""How much of the long tests a run plays, and how long it waits: a share in `make test`, everything in `make test-all`.

`ARCHIVER_TESTS=whole` asks for everything. Tests marked `whole` run only then; no test of a real part carries the mark.
Tests marked `turns(n)` are variants of one promise: each of them runs on one day of `n`; with `together=True`, all of a
module on the same day. A file that is named on the command line is played whole, so that a developer or a mutant finds
every test of it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

DAY_S = 86_400
DAY = int(os.environ.setdefault("ARCHIVER_TESTS_DAY", str(int(time.time()) // DAY_S)))
"""The day that chooses the shares. In the environment, so that the processes of a run agree at midnight; set it to
play the shares of another day."""

BUSY = 3
"""Time limits of tests hold for a quiet machine; a busy one takes up to so many times as long."""

WHOLE = os.environ.get("ARCHIVER_TESTS") == "whole"
if "ARCHIVER_RIG_SHARE" in os.environ:
    raise RuntimeError("ARCHIVER_RIG_SHARE is gone; set ARCHIVER_TESTS=whole")


def names_files(arguments: Iterable[str]) -> bool:
    """Whether the command line of a run names files or single tests, and not folders alone."""
    return any(Path(argument.partition("::")[0]).is_file() for argument in arguments)


def not_today(items: Sequence[pytest.Item], day: int = DAY) -> list[pytest.Item]:
    """The tests whose turn is on another day.

    The tests of a module with the same mark take turns in the order of their names. So every day has one of them, if
    there are as many as days, and variants of one test function come on different days. `turns(n, first)` begins with
    another day, for a module with a single test. `together=True` is for tests that share a costly set-up.
    """
    groups: dict[tuple[str, int, int, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("turns"):
            of, first = (*mark.args, mark.kwargs.get("first", 0))[:2]
            together = mark.kwargs.get("together", False)
            groups[item.nodeid.partition("::")[0], of, first, together].append(item)
    return [
        item
        for (_, of, first, together), group in groups.items()
        for place, item in enumerate(sorted(group, key=lambda item: item.nodeid))
        if (first - day if together else place + first - day) % of
    ]
