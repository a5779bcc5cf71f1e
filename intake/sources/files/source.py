"""One folder of files as a source: which files are there, which of them are next, and what is wrong with the
others.

Owns what a process remembers beside the log, all of which it can do without: since when a file has not
changed, which files failed and why. Promises that files are taken in one after the other in the order of
their paths, that one that fails stops no other, and that what is remembered is bounded.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from archiver.runtime.clock import Clock
from archiver.runtime.errors import NotFound, RecordRefused, RetryLater
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from intake.inputs import InputFormat
from intake.log.fold import TopicState
from intake.log.source_positions import Finished
from intake.record_json import Input
from intake.sources.files.finished_files import CHANGED, Sweep
from intake.sources.files.ingest import Failed, Ways, take_in
from intake.sources.files.pattern import Pattern
from intake.sources.files.pieces import Cutting
from intake.write.encode import ENTRY_BYTES, SEGMENT_BYTES, TOPIC_BYTES
from intake.write.partitioner import Placement

FILES_PER_LOOK_MAX = 1000
"""That are taken in before the folder is looked at again."""
FAILED_MAX = 10_000
"""That are remembered with their reason; with as many, nothing is taken in until some of them are gone."""
FAILED_SHOWN_MAX = 100
REASON_MAX = 500
"""Characters of one reason that are remembered: it may repeat what stands in a file, and there are
`FAILED_MAX` of them."""
SHOWN_CHARS_MAX = 64 * 1024
"""Paths and reasons that a source shows, all together, so that a status answer is bounded. The first one is
always shown."""
RETRY_S = 600.0
"""After so long a file that failed is tried again, in case it was not the file's fault; sooner if it
changed."""
_POSITION_BYTES = 5 * 1024
"""More than a position of a file takes in an entry: a path has at most 4,096 bytes."""
GONE = (
    "a part of the file is in, and the file is not there any more; put it back, and it is read on, or "
    "leave it so"
)

_log = logging.getLogger(__name__)


class FileSettings(Protocol):
    """What is set for one folder."""

    @property
    def glob(self) -> str:
        """An absolute pattern."""

    @property
    def topic(self) -> str:
        """Where the records go."""

    @property
    def format(self) -> InputFormat:
        """What the files are made of."""

    @property
    def text(self) -> bool:
        """Whether JSON holds text instead of base64."""

    @property
    def settle(self) -> float:
        """Seconds for which a file must not have changed."""


class PieceSettings(Protocol):
    """What the sources need of the `intake` settings; sizes in bytes."""

    @property
    def delay_max_bytes(self) -> int:
        """Largest piece."""

    @property
    def record_bytes_max(self) -> int:
        """Weight of the largest record."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file, or folder, that is not taken in."""

    path: str
    why: str
    """And what to do."""


@dataclass(frozen=True, slots=True)
class FilesState:
    """One source of files, as of its last look."""

    glob: str
    topic: str
    format: InputFormat
    looked_us: int | None = None
    """When the folder was last looked at; None: not yet."""
    folder_found: bool = False
    """Whether the folder in which the files are is there."""
    waiting: int = 0
    """Files that are not finished and did not fail."""
    in_work: str | None = None
    """The file that is read now."""
    finished: int = 0
    """Finished files of this topic that are not forgotten, of all its patterns together."""
    gone: int = 0
    """Files of this topic of which a part is in and that are not there any more, of all its patterns
    together."""
    failed: int = 0
    """Files and folders that need somebody to act."""
    problems: tuple[FileProblem, ...] = ()
    """The first of them, by path."""
    trouble: str | None = None
    """Why nothing at all is taken in now; None if nothing is wrong but with single files."""
    files: int = 0
    """Finished since the start of this process."""
    records: int = 0
    """Taken in since the start of this process."""
    bytes: int = 0
    """Raw bytes of those records."""


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    shape: tuple[int, ...]
    """Size and times when it failed."""
    again_s: float
    """When it is tried again."""


class FolderSource:
    """Takes in what one pattern means. One thread uses it; `state` may be read from anywhere.

    `sweep` looks after the finished files of the topic; None: another pattern's of the same topic does.
    """

    def __init__(
        self,
        settings: FileSettings,
        pieces: PieceSettings,
        ways: Ways,
        placement: Placement,
        clock: Clock,
        sweep: Sweep | None,
    ) -> None:
        self._settings = settings
        self._pieces = pieces
        self._ways = ways
        self._placement = placement
        self._clock = clock
        self._sweep = sweep
        self._pattern = Pattern.of(settings.glob)
        self._source = source_name(settings.topic)
        self._failures: dict[str, _Failure] = {}
        self._reports: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._gone: frozenset[str] = frozenset()
        self._quiet: dict[str, tuple[tuple[int, ...], float]] = {}
        self.state = FilesState(settings.glob, settings.topic, settings.format)
        """What is known of it."""

    @property
    def topic(self) -> str:
        """Where the records go."""
        return self._settings.topic

    def troubled(self, why: str | None) -> None:
        """Say that nothing can be taken in now, or (None) that it can."""
        why = None if why is None else excerpt(why, MESSAGE_MAX)
        if why is not None and why != self.state.trouble:
            _log.warning("source %s: nothing is taken in: %s", self._settings.glob, why)
        self.state = replace(self.state, trouble=why)

    def look(self, topic: TopicState) -> bool:
        """Take in what is there, at rest and not finished; whether to look again at once. Raises what log and
        store raise.
        """
        if self._sweep is not None:
            self._sweep.run()
        records, paths, done = self.state.records, self._choose(), 0
        cutting = self._cutting(topic)
        try:
            if len(self._failures) >= FAILED_MAX:
                raise RetryLater(
                    f"{counted(len(self._failures), 'file')} of {self._settings.glob} cannot be "
                    "ingested; repair or remove them first"
                )
            for path in paths:
                if self._ways.stopping.is_set():
                    break
                done += self._take(path, topic, cutting)
        finally:
            self._conclude(paths, done)
        if self.state.records > records or done:
            taken = self.state.records - records
            _log.info(
                "source %s: %s finished, %s taken in",
                self._settings.glob,
                counted(done, "file"),
                counted(taken, "record"),
            )
        return done > 0 and len(paths) == FILES_PER_LOOK_MAX

    def _choose(self) -> list[str]:
        """The files that are next, in order of their paths."""
        self._told, self._reports = self._reports, {}
        failed: set[str] = set()
        found = True
        self.state = replace(self.state, waiting=0)
        try:
            paths = heapq.nsmallest(FILES_PER_LOOK_MAX, self._unfinished(failed))
        except FileNotFoundError:
            paths, found = [], False
        self._failures = {path: one for path, one in self._failures.items() if path in failed}
        self._quiet = {path: self._quiet[path] for path in paths if path in self._quiet}
        self.state = replace(self.state, folder_found=found, looked_us=self._clock.now_us())
        return paths

    def _unfinished(self, failed: set[str]) -> Iterator[str]:
        """Every file that is not finished and that is not known to fail; the others go into `failed`."""
        waiting = 0
        for path in self._pattern.files(self._report):
            if self._ways.stopping.is_set():
                return
            if isinstance(self._ways.sequencer.fold.positions.get(self._source, path), Finished):
                continue
            failure = self._failures.get(path)
            if failure is not None:
                failed.add(path)
                if self._clock.monotonic_s() < failure.again_s and _shape(path) == failure.shape:
                    continue
            waiting += 1
            yield path
        self.state = replace(self.state, waiting=waiting)

    def _report(self, path: str, why: str) -> None:
        if len(self._reports) < FAILED_MAX:
            why = excerpt(why, REASON_MAX)
            self._reports[path] = why
            if self._told.get(path) != why:
                _log.warning("%s: %s", path, why)

    def _take(self, path: str, topic: TopicState, cutting: Cutting) -> bool:
        """Take in one file; whether this process finished it."""
        shape = _shape(path)
        if shape is None or not self._is_at_rest(path, shape):
            return False
        self.state = replace(self.state, in_work=path)
        try:
            finished = take_in(path, self._source, topic, cutting, self._ways, self._took)
        except NotFound:
            return False  # it has vanished
        except (Failed, RecordRefused) as error:
            before, why = self._failures.get(path), excerpt(str(error), REASON_MAX)
            if before is None or before.why != why:
                _log.warning("%s: %s", path, why)
            self._failures[path] = _Failure(why, shape, self._clock.monotonic_s() + RETRY_S)
            return False
        self._failures.pop(path, None)
        return finished

    def _is_at_rest(self, path: str, shape: tuple[int, ...]) -> bool:
        """By its times, or, where the clocks do not agree, because it was the same for long enough."""
        settle_s, now_s = self._settings.settle, self._clock.monotonic_s()
        age_s = self._clock.now_us() / 1e6 - max(shape[1:]) / 1e9
        if settle_s <= 0 or age_s >= settle_s:
            return True
        known = self._quiet.get(path)
        if known is None or known[0] != shape:
            self._quiet[path] = (shape, now_s)
            return False
        return now_s - known[1] >= settle_s

    def _cutting(self, topic: TopicState) -> Cutting:
        judge = self._ways.judge
        # Each partition of the topic may give a segment to every topic where its records may go instead.
        topics = 1 if judge is None else 1 + len(judge.elsewhere(topic.name))
        room = self._ways.sequencer.entry_bytes_max - ENTRY_BYTES - topics * TOPIC_BYTES - _POSITION_BYTES

        def place(item: Input, raw_bytes: int) -> int:
            return self._placement.of_record(topic, item.record, raw_bytes, item.partition)

        return Cutting(
            form=self._settings.format,
            topic=topic.name,
            text=self._settings.text,
            record_bytes_max=self._pieces.record_bytes_max,
            piece_bytes_max=self._pieces.delay_max_bytes,
            partitions_max=max(1, room // (topics * SEGMENT_BYTES)),
            place=place,
        )

    def _took(self, records: int, raw_bytes: int) -> None:
        self.state = replace(
            self.state, records=self.state.records + records, bytes=self.state.bytes + raw_bytes
        )

    def _conclude(self, paths: list[str], done: int) -> None:
        """Put the look into `state`."""
        problems = {path: one.why for path, one in self._failures.items()} | self._reports
        gone = 0
        known = self._ways.sequencer.fold.positions.source(self._source)
        if self._sweep is not None:
            problems |= dict.fromkeys(self._sweep.changed, CHANGED)
            gone = self._look_after(list(known.begun))
        over = sum(path in self._failures or path in known.finished for path in paths)
        self.state = replace(
            self.state,
            in_work=None,
            waiting=self.state.waiting - over,
            finished=len(known.finished),
            gone=gone,
            failed=len(problems),
            problems=_shown(problems),
            files=self.state.files + done,
        )

    def _look_after(self, begun: list[str]) -> int:
        """How many files of which a part is in are not there; each is told once."""
        gone = frozenset(path for path in begun if not os.path.lexists(path))
        for path in sorted(gone - self._gone)[:FAILED_SHOWN_MAX]:
            _log.warning("%s: %s", path, GONE)
        self._gone = gone
        return len(gone)


def _shown(problems: Mapping[str, str]) -> tuple[FileProblem, ...]:
    """The first of them by path, as many as fit."""
    found: list[FileProblem] = []
    left = SHOWN_CHARS_MAX
    for path in heapq.nsmallest(FAILED_SHOWN_MAX, problems):
        left -= len(path) + len(problems[path])
        if found and left < 0:
            break
        found.append(FileProblem(path, problems[path]))
    return tuple(found)


def source_name(topic: str) -> str:
    """What the log calls the files that are taken into that topic."""
    return f"files:{topic}"


def _shape(path: str) -> tuple[int, ...] | None:
    """Size and times of a file; None if it cannot be looked at."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
