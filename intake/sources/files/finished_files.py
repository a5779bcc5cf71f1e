"""Looks after the finished files of a source, some at a time: which have changed, and which are gone and can
be forgotten.

Promises that a finished file is never taken in again while it is there, whatever becomes of it, and that a
file is held for gone only if that is proven (`intake.sources.files.seen_folders`): a file system that is not
mounted is an empty folder. Nothing is deleted here but a name from the log's state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from archiver.runtime import failpoints
from archiver.runtime.text import counted
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Finished
from intake.sources.files.opened_file import mark_of
from intake.sources.files.seen_folders import Homes

LOOKS_MAX = 1000
"""Finished files that one run looks at; the next run goes on behind them."""
FORGOTTEN_BYTES_MAX = 8 * 1024
"""Of names in one entry; the smallest entry that the settings allow is twice that."""
CHANGED = (
    "the file has changed since it was taken in, and is not taken in again; put what is new into a file of "
    "another name"
)

_log = logging.getLogger(__name__)


class Sweep:
    """Of one source. One thread uses it."""

    def __init__(self, source: str, sequencer: Sequencer, homes: Homes) -> None:
        self._source = source
        self._sequencer = sequencer
        self._homes = homes
        self._seen_in: set[str] = set()
        self._left: Iterator[str] = iter(())
        self._changed: set[str] = set()

    @property
    def changed(self) -> list[str]:
        """Finished files that are not what was taken in, ascending; as far as they were looked at."""
        return sorted(self._changed)

    def run(self) -> int:
        """Look at the next `LOOKS_MAX` finished files; how many were forgotten. Raises what the log
        raises.
        """
        seen = self._sequencer.fold.next_index  # before anything is looked at
        finished = self._sequencer.fold.positions.source(self._source).finished
        gone: list[str] = []
        self._seen_in.clear()
        for path in self._next(finished):
            known = finished.get(path)
            if known is None:
                self._changed.discard(path)
            elif self._look(path, known):
                gone.append(path)
        for names in _portions(gone):
            failpoints.reach("source.forget.before")
            self._sequencer.forget_items(self._source, names, seen)
            failpoints.reach("source.forget.after")
            files = counted(len(names), "finished file is", "finished files are")
            _log.info("%s: %s gone and forgotten, %s the first", self._source, files, names[0])
        return len(gone)

    def _next(self, finished: dict[str, Finished]) -> list[str]:
        """Some paths, round and round."""
        paths = list(islice(self._left, LOOKS_MAX))
        if len(paths) < LOOKS_MAX:
            self._left = iter(list(finished))  # a copy at once: the fold may change it meanwhile
            already = set(paths)
            paths += [path for path in islice(self._left, LOOKS_MAX - len(paths)) if path not in already]
        return paths

    def _look(self, path: str, known: Finished) -> bool:
        """Whether the file is gone for good."""
        try:
            unchanged = mark_of(os.lstat(path)) == known.mark
        except (FileNotFoundError, NotADirectoryError):
            self._changed.discard(path)
            return self._homes.prove_gone(path)
        except OSError:
            return False  # nobody knows
        if (folder := str(Path(path).parent)) not in self._seen_in:
            self._seen_in.add(folder)
            self._homes.saw(path)
        if unchanged:
            self._changed.discard(path)
        elif path not in self._changed:
            self._changed.add(path)
            _log.warning("%s: %s", path, CHANGED)
        return False


def _portions(paths: list[str]) -> Iterator[list[str]]:
    """Cut so that each fits an entry."""
    portion: list[str] = []
    size = 0
    for path in paths:
        cost = len(path.encode("utf-8")) + 4
        if portion and size + cost > FORGOTTEN_BYTES_MAX:
            yield portion
            portion, size = [], 0
        portion.append(path)
        size += cost
    if portion:
        yield portion
