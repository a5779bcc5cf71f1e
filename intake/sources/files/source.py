"""One file pattern as a source: find its files, ingest them in path order, and report the failed ones.

One failed file stops no other. The process remembers since when a file has not changed, and which files
failed and why. This memory is bounded and not needed for correctness: the log has the positions.
"""

from __future__ import annotations

import fnmatch
import glob
import heapq
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from archiver.config.daemon import FileSourceSettings
from archiver.config.groups import IntakeSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import NotFound, RecordRefused, RetryLater
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from intake.inputs import InputFormat
from intake.log.fold import TopicState
from intake.log.source_positions import Finished
from intake.record_json import Input
from intake.sources.files.finished_files import CHANGED, Sweep
from intake.sources.files.ingest import Cutting, Failed, IngestContext, ingest_file
from intake.write.encode import ENTRY_BYTES, SEGMENT_BYTES, TOPIC_BYTES
from intake.write.partitioner import Placement

# --- patterns

UNFINISHED_SUFFIXES = ("~", ".tmp", ".part", ".partial")
"""Files with these suffixes are skipped, unless the pattern ends with the suffix."""
_ESCAPED = re.compile(r"\[([*?[])\]")
_ANY_DEPTH = "**"

Report = Callable[[str, str], None]
"""Called with a path and the reason why it is not ingested."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An absolute pattern of paths: `*`, `?`, `[…]` within a name, `**` for any number of folders."""

    folder: str
    """The part without wildcards, where the search begins. Links in it are followed."""
    parts: tuple[str, ...]
    """The remaining names."""

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Parse a pattern."""
        names = [name for name in text.split("/") if name not in ("", ".")]
        fixed = 0
        # The last name is always matched, so that a pattern without wildcards finds one file.
        while fixed < len(names) - 1 and _literal(names[fixed]) is not None:
            fixed += 1
        folder = "/" + "/".join(_literal(name) or name for name in names[:fixed])
        parts = tuple(
            name
            for place, name in enumerate(names[fixed:])
            if name != _ANY_DEPTH or names[fixed:][place - 1 : place] != [name]
        )
        # `**` at the end means every file below.
        return cls(folder, (*parts, "*") if parts[-1] == _ANY_DEPTH else parts)

    def files(self, report: Report) -> Iterator[str]:
        """The absolute paths of the matching regular files, in no particular order.

        Raises `FileNotFoundError` if the folder does not exist. Matches that cannot be ingested are reported.
        """
        matcher = _Matcher(self.parts)
        # A stack and no recursion: the depth of folders is not bounded.
        waiting: list[tuple[str, tuple[str, ...]]] = [(self.folder, ())]
        while waiting:
            folder, names = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        inner = (*names, entry.name)
                        # Hidden names are of programs, for example of files that are still being written.
                        if entry.name.startswith("."):
                            continue
                        # Links to folders are not followed: they may lead in a circle, and give a file two
                        # paths.
                        if entry.is_dir(follow_symlinks=False):
                            if matcher.may_hold(inner):
                                waiting.append((entry.path, inner))
                        elif matcher.fits(inner) and _is_takeable(entry, report):
                            yield entry.path
            except FileNotFoundError:
                # Only the folder of the pattern must exist; a folder below may vanish during the listing.
                if not names:
                    raise
            except OSError as error:
                report(
                    folder,
                    f"the folder cannot be read: {error.strerror}; make it one that this process may "
                    "read and enter",
                )


class _Matcher:
    def __init__(self, parts: tuple[str, ...]) -> None:
        self._names = [None if part == _ANY_DEPTH else re.compile(fnmatch.translate(part)) for part in parts]
        self._depth = self._names.index(None) if None in self._names else None
        self._passed_over = tuple(suffix for suffix in UNFINISHED_SUFFIXES if not parts[-1].endswith(suffix))

    def may_hold(self, names: tuple[str, ...]) -> bool:
        """Whether a folder of that path can contain matches, given that its parents can."""
        # Behind `**` every folder may hold matches.
        if self._depth is not None and len(names) > self._depth:
            return True
        pattern = self._names[len(names) - 1] if len(names) < len(self._names) else None
        return pattern is not None and pattern.match(names[-1]) is not None

    def fits(self, names: tuple[str, ...]) -> bool:
        """Whether a file of that path matches."""
        if names[-1].endswith(self._passed_over):
            return False
        return self._fit(names, 0, 0)

    def _fit(self, names: tuple[str, ...], name: int, part: int) -> bool:
        if part == len(self._names):
            return name == len(names)
        pattern = self._names[part]
        if pattern is None:
            return any(self._fit(names, after, part + 1) for after in range(name, len(names)))
        return (
            name < len(names)
            and pattern.match(names[name]) is not None
            and self._fit(names, name + 1, part + 1)
        )


def _literal(name: str) -> str | None:
    """The literal name of a part of a pattern; None if it has a wildcard."""
    plain = _ESCAPED.sub(r"\1", name)
    return (
        plain if name in (plain, glob.escape(plain)) and (name != plain or not glob.has_magic(name)) else None
    )


def _is_takeable(entry: os.DirEntry[str], report: Report) -> bool:
    """Whether a match is a regular file with a usable name; reports the reason if not."""
    if entry.is_symlink():
        report(
            entry.path,
            "a symbolic link is not followed: the file would be known by two names; move the file "
            "itself here",
        )
        return False
    if not entry.is_file(follow_symlinks=False):
        report(
            entry.path,
            "this is no regular file but a pipe, a socket or a device; remove it from the folder, or "
            "narrow the pattern",
        )
        return False
    try:
        # The path is a string in log entries.
        entry.path.encode("utf-8")
    except UnicodeEncodeError:
        report(
            entry.path.encode("utf-8", "backslashreplace").decode(),
            "the name is not valid UTF-8; rename the file",
        )
        return False
    return True


# --- the source

FILES_PER_POLL_MAX = 1000
"""Files to ingest before the folder is polled again."""
FAILED_MAX = 10_000
"""Failed files to remember. At this number nothing is ingested until some of them are gone."""
FAILED_SHOWN_MAX = 100
REASON_MAX = 500
"""Characters of one reason to remember: it may quote a file's content, and there are up to `FAILED_MAX`."""
SHOWN_CHARS_MAX = 64 * 1024
"""Characters of all shown paths and reasons, so that a status response is bounded. The first is always
shown."""
RETRY_S = 600.0
"""Seconds until a failed file is retried, in case the cause was elsewhere; sooner if it changed."""
_POSITION_BYTES = 5 * 1024
"""Upper bound of a file position in an entry: a path has at most 4,096 bytes."""
GONE = "the file is partly ingested and does not exist any more; restore it to continue, or leave it so"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file or folder that is not ingested."""

    path: str
    why: str
    """The reason, and the action for an operator."""


@dataclass(frozen=True, slots=True)
class FilesState:
    """The state of one source at its last poll."""

    glob: str
    topic: str
    format: InputFormat
    looked_us: int | None = None
    """Time of the last poll; None before the first."""
    folder_found: bool = False
    """Whether the pattern's folder exists."""
    waiting: int = 0
    """Unfinished files that have not failed."""
    in_work: str | None = None
    """The file being read."""
    finished: int = 0
    """Finished files of this topic that the log still lists, for all its patterns."""
    gone: int = 0
    """Partly ingested files of this topic that no longer exist, for all its patterns."""
    failed: int = 0
    """Files and folders that need an operator."""
    problems: tuple[FileProblem, ...] = ()
    """The first of the failed ones, by path."""
    trouble: str | None = None
    """Reason why nothing is ingested now; None if only single files have problems."""
    files: int = 0
    """Files finished since the start of this process."""
    records: int = 0
    """Records ingested since the start of this process."""
    bytes: int = 0
    """Raw bytes of those records."""


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    shape: tuple[int, ...]
    """Size and times when it failed."""
    again_s: float
    """Time of the retry."""


class FolderSource:
    """Ingests the files of one pattern. One thread uses it; any thread may read `state`.

    `sweep` checks the finished files of the topic; None if another pattern of the same topic does.
    """

    def __init__(
        self,
        settings: FileSourceSettings,
        pieces: IntakeSettings,
        context: IngestContext,
        placement: Placement,
        clock: Clock,
        sweep: Sweep | None,
    ) -> None:
        self._settings = settings
        self._pieces = pieces
        self._context = context
        self._placement = placement
        self._clock = clock
        self._sweep = sweep
        self._pattern = Pattern.of(settings.glob)
        self._source = source_name(settings.topic)
        self._failures: dict[str, _Failure] = {}
        self._reports: dict[str, str] = {}
        self._reported_before: dict[str, str] = {}
        self._gone: frozenset[str] = frozenset()
        self._quiet: dict[str, tuple[tuple[int, ...], float]] = {}
        self.state = FilesState(settings.glob, settings.topic, settings.format)
        """The state for status and metrics."""

    @property
    def topic(self) -> str:
        """The topic of the records."""
        return self._settings.topic

    def troubled(self, why: str | None) -> None:
        """Set the reason why nothing can be ingested now; None if it can."""
        why = None if why is None else excerpt(why, MESSAGE_MAX)
        if why is not None and why != self.state.trouble:
            _log.warning("source %s: nothing is ingested: %s", self._settings.glob, why)
        self.state = replace(self.state, trouble=why)

    def poll(self, topic: TopicState) -> bool:
        """Ingest the files that are unfinished and no longer change; whether to poll again at once.

        Errors of log and store pass through.
        """
        if self._sweep is not None:
            # First, so that a file under the name of a removed one is new in this poll.
            self._sweep.run()
        records, paths, done = self.state.records, self._choose(), 0
        cutting = self._cutting(topic)
        try:
            # Beyond the bound failed files would be tried again at each poll.
            if len(self._failures) >= FAILED_MAX:
                raise RetryLater(
                    f"{counted(len(self._failures), 'file')} of {self._settings.glob} cannot be "
                    "ingested; repair or remove them first"
                )
            for path in paths:
                if self._context.stopping.is_set():
                    break
                done += self._take(path, topic, cutting)
        finally:
            # Also after an error: the failures of this poll belong into the state.
            self._conclude(paths, done)
        if self.state.records > records or done:
            ingested = self.state.records - records
            _log.info(
                "source %s: %s finished, %s ingested",
                self._settings.glob,
                counted(done, "file"),
                counted(ingested, "record"),
            )
        # Without a finished file another poll at once would find the same files.
        return done > 0 and len(paths) == FILES_PER_POLL_MAX

    def _choose(self) -> list[str]:
        """The next files, in path order."""
        self._reported_before, self._reports = self._reports, {}
        failed: set[str] = set()
        found = True
        self.state = replace(self.state, waiting=0)
        try:
            # A bounded selection: a folder may have a million files.
            paths = heapq.nsmallest(FILES_PER_POLL_MAX, self._unfinished(failed))
        except FileNotFoundError:
            paths, found = [], False
        # Failures of files that are gone are forgotten here.
        self._failures = {path: one for path, one in self._failures.items() if path in failed}
        self._quiet = {path: self._quiet[path] for path in paths if path in self._quiet}
        self.state = replace(self.state, folder_found=found, looked_us=self._clock.now_us())
        return paths

    def _unfinished(self, failed: set[str]) -> Iterator[str]:
        """Every unfinished file that is due; adds the paths of known failures to `failed`."""
        waiting = 0
        for path in self._pattern.files(self._report):
            if self._context.stopping.is_set():
                return
            if isinstance(self._context.sequencer.fold.positions.get(self._source, path), Finished):
                continue
            failure = self._failures.get(path)
            if failure is not None:
                failed.add(path)
                # A changed file is tried again at once.
                if self._clock.monotonic_s() < failure.again_s and _shape(path) == failure.shape:
                    continue
            waiting += 1
            yield path
        self.state = replace(self.state, waiting=waiting)

    def _report(self, path: str, why: str) -> None:
        if len(self._reports) < FAILED_MAX:
            why = excerpt(why, REASON_MAX)
            self._reports[path] = why
            # Each problem is logged once, and again when it changes.
            if self._reported_before.get(path) != why:
                _log.warning("%s: %s", path, why)

    def _take(self, path: str, topic: TopicState, cutting: Cutting) -> bool:
        """Ingest one file; whether this process finished it."""
        shape = _shape(path)
        if shape is None or not self._is_at_rest(path, shape):
            return False
        self.state = replace(self.state, in_work=path)
        try:
            finished = ingest_file(path, self._source, topic, cutting, self._context, self._took)
        except NotFound:
            # The file was removed between the listing and the opening.
            return False
        except (Failed, RecordRefused) as error:
            before, why = self._failures.get(path), excerpt(str(error), REASON_MAX)
            if before is None or before.why != why:
                _log.warning("%s: %s", path, why)
            self._failures[path] = _Failure(why, shape, self._clock.monotonic_s() + RETRY_S)
            return False
        self._failures.pop(path, None)
        return finished

    def _is_at_rest(self, path: str, shape: tuple[int, ...]) -> bool:
        """Whether the file no longer changes: by its times, or by observation where the clocks disagree."""
        settle_s, now_s = self._settings.settle, self._clock.monotonic_s()
        # The later of modification and change time: a file moved here keeps the older modification time.
        age_s = self._clock.now_us() / 1e6 - max(shape[1:]) / 1e9
        if settle_s <= 0 or age_s >= settle_s:
            return True
        # The clock of a file server may be ahead, so that a file never seems old.
        known = self._quiet.get(path)
        if known is None or known[0] != shape:
            self._quiet[path] = (shape, now_s)
            return False
        return now_s - known[1] >= settle_s

    def _cutting(self, topic: TopicState) -> Cutting:
        judge = self._context.judge
        # Undecodable records may go to other topics, so each partition may add a segment to every such topic.
        topics = 1 if judge is None else 1 + len(judge.elsewhere(topic.name))
        room = self._context.sequencer.entry_bytes_max - ENTRY_BYTES - topics * TOPIC_BYTES - _POSITION_BYTES

        def place(item: Input, raw_bytes: int) -> int:
            return self._placement.of_record(topic, item.record, raw_bytes, item.partition)

        return Cutting(
            form=self._settings.format,
            topic=topic.name,
            text=self._settings.text,
            record_bytes_max=self._pieces.record_bytes_max,
            piece_bytes_max=self._pieces.delay_max_bytes,
            # Each partition may need a segment per topic in the one entry of the piece.
            partitions_max=max(1, room // (topics * SEGMENT_BYTES)),
            place=place,
        )

    def _took(self, records: int, raw_bytes: int) -> None:
        self.state = replace(
            self.state, records=self.state.records + records, bytes=self.state.bytes + raw_bytes
        )

    def _conclude(self, paths: list[str], done: int) -> None:
        """Write the result of the poll into `state`."""
        problems = {path: one.why for path, one in self._failures.items()} | self._reports
        gone = 0
        known = self._context.sequencer.fold.positions.source(self._source)
        if self._sweep is not None:
            problems |= dict.fromkeys(self._sweep.changed, CHANGED)
            gone = self._count_gone(list(known.begun))
        # Files of this poll that failed or were finished no longer wait.
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

    def _count_gone(self, begun: list[str]) -> int:
        """Number of partly ingested files that no longer exist; each is logged once."""
        # `lexists`: a dangling link still has the name.
        gone = frozenset(path for path in begun if not os.path.lexists(path))
        for path in sorted(gone - self._gone)[:FAILED_SHOWN_MAX]:
            _log.warning("%s: %s", path, GONE)
        self._gone = gone
        return len(gone)


def _shown(problems: Mapping[str, str]) -> tuple[FileProblem, ...]:
    """The first problems by path, as many as fit."""
    found: list[FileProblem] = []
    left = SHOWN_CHARS_MAX
    for path in heapq.nsmallest(FAILED_SHOWN_MAX, problems):
        left -= len(path) + len(problems[path])
        if found and left < 0:
            break
        found.append(FileProblem(path, problems[path]))
    return tuple(found)


def source_name(topic: str) -> str:
    """The log's source name for files of that topic."""
    return f"files:{topic}"


def _shape(path: str) -> tuple[int, ...] | None:
    """Size and times of a file; None if it cannot be read."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
