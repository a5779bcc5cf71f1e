"""`archiver config check --connect`: whether the control topic exists and will accept the archiver's events.

It sends no record and creates nothing. It makes at most three requests, each bounded by `request_timeout`.
"""

from __future__ import annotations

from collections.abc import Iterator

from archiver.config.events import ControlTopicSettings
from archiver.control_topic.kafka_topic import KafkaTopic, TopicLimits, TopicSeen
from archiver.runtime.check_result import Checked, CheckResult, CheckStatus
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt
from archiver.runtime.text import counted

BATCH_OVERHEAD_BYTES = 4096
"""Bytes of a batch in addition to an event: key, headers, and the broker's own overhead."""


def check_control_topic(kafka: ControlTopicSettings, event_bytes_max: int, clock: Clock) -> Checked:
    """`event_bytes_max` is `events.bytes_max`."""
    return Checked(kafka.topic, "kafka", tuple(_findings(kafka, event_bytes_max, clock)))


def _findings(kafka: ControlTopicSettings, event_bytes_max: int, clock: Clock) -> Iterator[CheckResult]:
    """The results in the order of the requests."""
    try:
        client = KafkaTopic(kafka, clock, silent=True)
    except ArchiverError as error:
        yield CheckResult("reachable", CheckStatus.WRONG, str(error))
        return
    asked = "reachable"
    try:
        yield CheckResult(
            asked, CheckStatus.FINE, f"it answers, and has {counted(client.brokers(), 'broker')}"
        )
        asked = f"topic {kafka.topic}"
        seen = client.seen()
        yield _topic(asked, seen)
        yield _rights(seen)
        asked = "limits"
        yield _limits(client.limits(), seen, event_bytes_max)
    except Halt as error:
        yield CheckResult(asked, CheckStatus.WRONG, str(error))
    except ArchiverError as error:
        yield CheckResult(
            asked, CheckStatus.UNKNOWN, f"{error} ({client.last_error})" if client.last_error else str(error)
        )
    finally:
        client.close()


def _topic(asked: str, seen: TopicSeen) -> CheckResult:
    if not seen.replicas:
        return CheckResult(
            asked,
            CheckStatus.UNKNOWN,
            "the cluster describes it without any partition; it may not have loaded the topic yet",
        )
    there = f"it is there, with {counted(len(seen.replicas), 'partition')}"
    if seen.leaderless:
        numbers = ", ".join(map(str, seen.leaderless))
        return CheckResult(
            asked,
            CheckStatus.UNKNOWN,
            f"{there}; without a leader at the moment, so not writable: {numbers}",
        )
    if min(seen.replicas) == 1:
        return CheckResult(
            asked,
            CheckStatus.NOTE,
            f"{there}, some with one replica: their records are lost with one broker",
        )
    return CheckResult(
        asked, CheckStatus.FINE, f"{there} of {counted(min(seen.replicas), 'replica')} or more"
    )


def _rights(seen: TopicSeen) -> CheckResult:
    if seen.may_write is None:
        return CheckResult(
            "rights",
            CheckStatus.NOTE,
            "the cluster does not report the permissions of the user of events.kafka",
        )
    if not seen.may_write:
        return CheckResult(
            "rights",
            CheckStatus.WRONG,
            "the user of events.kafka may describe the topic and not write to it; grant it that right",
        )
    return CheckResult("rights", CheckStatus.FINE, "the user of events.kafka may write to it")


def _limits(limits: TopicLimits | None, seen: TopicSeen, event_bytes_max: int) -> CheckResult:
    if limits is None:
        message = (
            "the user of events.kafka may not read the topic's configuration (DescribeConfigs), or "
            "the cluster does not report it, so its "
            "limits are not compared with ours"
        )
        return CheckResult("limits", CheckStatus.NOTE, message)
    if seen.replicas and limits.replicas_min > min(seen.replicas):
        message = (
            f"min.insync.replicas is {limits.replicas_min}, and there are partitions with "
            f"{counted(min(seen.replicas), 'replica')}"
        )
        return CheckResult("limits", CheckStatus.WRONG, f"{message}: those acknowledge nothing")
    if limits.bytes_max < event_bytes_max + BATCH_OVERHEAD_BYTES:
        message = (
            f"max.message.bytes is {limits.bytes_max}, too little for an event of events.bytes_max "
            f"({event_bytes_max})"
        )
        return CheckResult(
            "limits",
            CheckStatus.WRONG,
            f"{message} and its headers: raise the one to "
            f"{event_bytes_max + BATCH_OVERHEAD_BYTES}, or lower the other",
        )
    return CheckResult("limits", CheckStatus.FINE, "it accepts the largest event")
