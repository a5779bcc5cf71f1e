"""Check the finished files of a source in batches: report changed ones, and forget removed ones.

A finished file is never ingested again while it exists, even if it changes. A file counts as removed only if
that is proven (`SeenFolders.prove_gone`), because an unmounted file system looks like an empty
folder. Only names in the log's state are deleted here.
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
from intake.sources.files.ingest import SeenFolders, mark_of

CHECKS_MAX = 1000
"""Finished files to check in one run; the next run continues after them."""
FORGOTTEN_BYTES_MAX = 8 * 1024
"""Bytes of names in one entry; the smallest entry limit that the settings allow is twice that."""
CHANGED = (
    "the file has changed since it was ingested, and is not ingested again; put new records into a file of "
    "another name"
)

_log = logging.getLogger(__name__)


class Sweep:
    """Checks the finished files of one source. One thread uses it."""

    def __init__(self, source: str, sequencer: Sequencer, seen_folders: SeenFolders) -> None:
        self._source = source
        self._sequencer = sequencer
        self._seen_folders = seen_folders
        self._seen_in: set[str] = set()
        self._left: Iterator[str] = iter(())
        self._changed: set[str] = set()

    @property
    def changed(self) -> list[str]:
        """Finished files that have changed, ascending; as far as they were checked."""
        return sorted(self._changed)

    def run(self) -> int:
        """Check the next `CHECKS_MAX` finished files; returns how many were forgotten. Errors of the log pass
        through.
        """
        # Read before any file is checked: what is finished later must not be forgotten.
        seen = self._sequencer.fold.next_index
        finished = self._sequencer.fold.positions.source(self._source).finished
        gone: list[str] = []
        self._seen_in.clear()
        for path in self._next(finished):
            known = finished.get(path)
            if known is None:
                self._changed.discard(path)
            elif self._is_gone(path, known):
                gone.append(path)
        # Several entries, because an entry has a limit. A crash between two loses nothing: the rest is found
        # again.
        for names in _portions(gone):
            failpoints.reach("source.forget.before")
            self._sequencer.forget_items(self._source, names, seen)
            failpoints.reach("source.forget.after")
            files = counted(len(names), "finished file is", "finished files are")
            _log.info("%s: %s gone and forgotten, %s the first", self._source, files, names[0])
        return len(gone)

    def _next(self, finished: dict[str, Finished]) -> list[str]:
        """The next paths, cyclically."""
        paths = list(islice(self._left, CHECKS_MAX))
        if len(paths) < CHECKS_MAX:
            # A copy, because the fold may change it between runs.
            self._left = iter(list(finished))
            # The rotation begins again, and must not check a path twice in one run.
            already = set(paths)
            paths += [path for path in islice(self._left, CHECKS_MAX - len(paths)) if path not in already]
        return paths

    def _is_gone(self, path: str, known: Finished) -> bool:
        """Whether the file was certainly removed; notes a changed one."""
        try:
            unchanged = mark_of(os.lstat(path)) == known.mark
        except (FileNotFoundError, NotADirectoryError):
            self._changed.discard(path)
            # An unmounted file system is an empty folder; its files must not be new when it returns.
            return self._seen_folders.prove_gone(path)
        except OSError:
            # Unknown, so it counts as present.
            return False
        # Once per folder and run: remembering it costs several system calls.
        if (folder := str(Path(path).parent)) not in self._seen_in:
            self._seen_in.add(folder)
            self._seen_folders.saw(path)
        if unchanged:
            self._changed.discard(path)
        elif path not in self._changed:
            self._changed.add(path)
            _log.warning("%s: %s", path, CHANGED)
        return False


def _portions(paths: list[str]) -> Iterator[list[str]]:
    """Split the paths so that each portion fits an entry."""
    portion: list[str] = []
    size = 0
    for path in paths:
        # The tag and the length of a string take at most four bytes.
        cost = len(path.encode("utf-8")) + 4
        if portion and size + cost > FORGOTTEN_BYTES_MAX:
            yield portion
            portion, size = [], 0
        portion.append(path)
        size += cost
    if portion:
        yield portion
