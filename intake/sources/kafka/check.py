"""`archiver config check --connect`: whether the cluster of a Kafka source answers, and which topics may be
mirrored.

It changes nothing, and makes at most three requests, each bounded by `request_timeout`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence

from archiver.config.settings import KafkaSourceSettings
from archiver.runtime.check_result import Checked, CheckResult, CheckStatus
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.text import counted
from intake.sources.kafka.client import PER_QUESTION, KafkaClient
from intake.sources.kafka.client_log import ClientLog

NAMES_SHOWN = 5


class _Kept(logging.Handler):
    """Keeps the newest line of the client library for the result instead of the log."""

    def __init__(self) -> None:
        super().__init__()
        # Only the newest: the client repeats one failure many times.
        self.lines: deque[str] = deque(maxlen=1)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def check_source(settings: KafkaSourceSettings, configured: Sequence[str], clock: Clock) -> Checked:
    """`configured` has the names of the configured mirrored topics (`partitions: 0`)."""
    return Checked(settings.name, "kafka", tuple(_findings(settings, configured, clock)))


def _findings(
    settings: KafkaSourceSettings, configured: Sequence[str], clock: Clock
) -> Iterator[CheckResult]:
    kept = _Kept()
    log = logging.Logger(__name__)  # noqa: LOG001 - of this check alone
    # The lines become part of the result, so they must not appear in the log of the command.
    log.addHandler(kept)
    try:
        client = KafkaClient(settings, clock, ClientLog(f"source {settings.name}", clock, log))
    except ArchiverError as error:
        yield CheckResult("reachable", CheckStatus.WRONG, str(error))
        return
    check = "reachable"
    try:
        there = client.topics()
        yield CheckResult(check, CheckStatus.FINE, f"it answers, and has {counted(len(there), 'topic')}")
        check = "topics"
        yield from _topics(
            settings, sorted(name for name in there if settings.matches(name)), configured, client
        )
    except ArchiverError as error:
        yield CheckResult(
            check, CheckStatus.UNKNOWN, f"{error} ({kept.lines[-1]})" if kept.lines else str(error)
        )
    finally:
        client.close()


def _topics(
    settings: KafkaSourceSettings, matching: list[str], configured: Sequence[str], client: KafkaClient
) -> Iterator[CheckResult]:
    missing = [name for name in configured if settings.matches(name) and name not in matching]
    if missing:
        yield CheckResult(
            "topics",
            CheckStatus.NOTE,
            f"the cluster does not show us {_some(missing)}; mirroring begins when it does",
        )
    if not matching:
        yield CheckResult(
            "topics", CheckStatus.NOTE, f"no topic that we may describe matches {settings.topics!r}"
        )
        return
    # At most three requests in all, however many topics match.
    asked = matching[:PER_QUESTION]
    found = [topic for topic in client.describe(asked).values() if topic is not None]
    partitions = sum(topic.partitions for topic in found)
    those = counted(len(matching), "topic matches", "topics match")
    if partitions > settings.partitions_max:
        why = (
            f"{those} and have {counted(partitions, 'partition')} or more, beyond partitions_max = "
            f"{settings.partitions_max}; raise it"
        )
        yield CheckResult("topics", CheckStatus.WRONG, why)
    else:
        first = f" in the first {PER_QUESTION}" if len(matching) > PER_QUESTION else ""
        yield CheckResult(
            "topics", CheckStatus.FINE, f"{those}, with {counted(partitions, 'partition')}{first}"
        )
    # The right to describe does not include the right to read.
    unreadable = client.unreadable(asked)
    if unreadable is None:
        yield CheckResult("rights", CheckStatus.NOTE, "the cluster does not report our user's permissions")
    elif unreadable:
        yield CheckResult(
            "rights",
            CheckStatus.WRONG,
            f"our user may describe and not read {_some(unreadable)}; grant it the right to read",
        )
    else:
        yield CheckResult("rights", CheckStatus.FINE, "our user may read them")


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
