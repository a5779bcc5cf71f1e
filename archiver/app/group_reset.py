"""Resets committed offsets of a consumer group: what a reset would do, and the commit without a daemon.

A running coordinator is asked to commit, because only it knows whether the group has members
(`archiver.kafka.group_offsets`). Without any live daemon, a command claims the slot of the group itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from archiver.app.application import Application
from archiver.app.offset_targets import Target, target_offsets
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.runtime.errors import ArchiverError, InvalidInput, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from archiver.runtime.redaction import excerpt
from intake.log.committed_offsets import Commit, CommittedOffsets, HoldOutcome, OffsetBounds, TopicCommit
from intake.log.consumer_groups import ConsumerGroups, slot_of
from intake.log.fold import TopicState

COMMAND_NODE: Final = 0
"""Node id in the claim of a command. Those of daemons begin at 1."""


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """The reset of one partition."""

    partition: int
    start: int
    end: int
    before: int | None
    """The committed offset; None without one."""
    after: int


def planned(
    app: Application, group: str, topic: TopicState, partitions: frozenset[int] | None, target: Target
) -> list[PartitionReset]:
    """What a reset would do. Raises as `target_offsets`."""
    offsets = target_offsets(app, topic, partitions, target)
    held = app.sequencer.fold.consumer_groups.get(group)
    found = []
    for one in offsets:
        committed = None if held is None else held.offset(topic.topic_id, one.partition)
        before = None if committed is None else committed.offset
        found.append(PartitionReset(one.partition, one.start, one.end, before, one.offset))
    return found


def reset_alone(
    app: Application,
    settings: KafkaListenerSettings,
    group: str,
    topic_id: TopicId,
    offsets: Mapping[int, int],
) -> None:
    """Claim the slot of the group and commit these offsets. For a command while no daemon is live.

    A daemon that starts or wakes during it cannot change the group under an earlier claim, and under a later
    one it has read the log up to there.
    """
    app.ready_to_append()
    bounds = OffsetBounds(settings.group_offsets_bytes_max, round(settings.offsets_refresh * 1e6))
    committed = CommittedOffsets(app.sequencer, app.clock, bounds)
    claim = committed.claim_slots([slot_of(group)], COMMAND_NODE)
    # The claim has read the log. From its entry on, no daemon adds offsets of a transaction.
    check_pending(group, app.sequencer.fold.consumer_groups)
    (outcome,) = committed.commit([reset_commit(group, claim, topic_id, offsets)])
    check_reset(group, outcome)


def reset_commit(group: str, claim: int, topic_id: TopicId, offsets: Mapping[int, int]) -> Commit:
    """The commit of a reset: one entry, so it counts as a whole or not at all."""
    return Commit(group, claim, [TopicCommit(topic_id, list(offsets), list(offsets.values()))])


def check_pending(group: str, groups: ConsumerGroups) -> None:
    """Raise `RetryLater` if an open transaction has offsets of the group: a reset would replace them, and the
    transaction could still commit its records.
    """
    if groups.pending(group):
        raise RetryLater(
            f"consumer group {excerpt(group)} was not reset: an open transaction has offsets of it; stop its "
            "producers, and try again when `archiver groups describe` shows no pending offsets"
        )


def check_reset(group: str, outcome: HoldOutcome) -> None:
    """Raise the error of an outcome other than `ok`."""
    name = excerpt(group)
    failures: Mapping[HoldOutcome, ArchiverError] = {
        "stale_claim": RetryLater(
            f"consumer group {name} was not reset: another daemon coordinates it now; try again"
        ),
        "full": RetryLater(
            f"consumer group {name} was not reset: the committed offsets of all groups need "
            "kafka.group_offsets_bytes_max; raise it, or delete groups"
        ),
        "too_large": InvalidInput(
            f"consumer group {name} was not reset: the offsets do not fit an entry of the log; reset fewer "
            "partitions at a time"
        ),
        "not_appended": RetryLater(
            f"consumer group {name} was not reset: the metadata store does not accept entries now; try again"
        ),
        "unknown": OutcomeUnknown(
            f"consumer group {name} may be reset: the metadata store did not answer; see `archiver groups "
            "describe`, or reset it again"
        ),
    }
    if outcome != "ok":
        raise failures[outcome]
