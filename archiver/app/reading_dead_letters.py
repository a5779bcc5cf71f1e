"""Documents of the read API about records that could not be decoded, and what a replay would do about them.

Both read archives, so one runs at a time, and each ends at a number of files and at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from archiver.rewrite.undecoded import Search
from archiver.runtime.errors import RetryLater, no_topic
from archiver.runtime.rfc3339 import format_time

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import TopicSettings

FILES_MAX: Final = 200
"""Archives that are read for one answer."""
SEARCH_S: Final = 5.0
"""Time after which the list ends: after the file that is read then."""
REPLAY_S: Final = 10.0
"""The same for the replay, which decodes what it reads."""


class DeadLetters:
    """Searches archives for undecoded records. Safe for several threads, and works in one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def listed(
        self, app: Application, may_read: Callable[[str], bool], topic: str | None, limit: int
    ) -> dict[str, Any]:
        """At most `limit` undecoded keys and values, of one topic or of all that the reader `may_read`."""
        topics = _topics(app, may_read, topic)
        with self._alone():
            search = Search(FILES_MAX, SEARCH_S, app.clock)
            report = app.archiving.search_undecoded(
                topics, None if topic is None else (topic, None), limit, search
            )
        found = report.to_json()
        return {
            "as_of": format_time(app.clock.now_us()),
            "topic": topic,
            **found,
            "topics": [
                {
                    **one,
                    "values": search.counted.get(str(one["topic"])),
                    **_left(search, str(one["topic"])),
                }
                for one in report.topics
            ],
            "topics_left": search.topics_left,
        }

    def replay(self, app: Application, may_read: Callable[[str], bool], topic: str | None) -> dict[str, Any]:
        """What `archiver dlq replay --dry-run` says, within the bounds."""
        topics = _topics(app, may_read, topic)
        if topic is not None:
            # A name that only the configuration has is answered as the other views do.
            app.topic(topic)
        with self._alone():
            ledger = app.ledger()
            search = Search(FILES_MAX, REPLAY_S, app.clock)
            run = app.archiving.replaying(lambda _line: None, dry_run=True)
            report = run.preview(app.backlog(), ledger, topics, FILES_MAX, search)
        return {
            "as_of": format_time(app.clock.now_us()),
            "topic": topic,
            **report.to_json(),
            "topics": [{**vars(one), **_left(search, one.topic)} for one in report.topics],
            "topics_left": search.topics_left,
        }

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # Not in line: each reader that waits would take a thread from the other views.
        if not self._lock.acquire(blocking=False):
            raise RetryLater("another reader searches the archives; try again in some seconds")
        try:
            yield
        finally:
            self._lock.release()


def _topics(app: Application, may_read: Callable[[str], bool], topic: str | None) -> Sequence[TopicSettings]:
    # Reads the log: topics of templates are in the settings once the log has them.
    app.backlog()
    if topic is None:
        return [one for one in app.settings.topics if may_read(one.name)]
    settings = app.settings.topic(topic)
    if settings is None:
        error = no_topic(topic, (one.name for one in app.settings.topics if may_read(one.name)))
        error.parameter = "topic"
        raise error
    return [settings]


def _left(search: Search, topic: str) -> dict[str, Any]:
    # Absent: everything was read. None: more files than were counted.
    return {"complete": topic not in search.files_left, "files_left": search.files_left.get(topic, 0)}
