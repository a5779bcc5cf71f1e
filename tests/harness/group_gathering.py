"""What the ledgers of group members and of the observer say together: one reading of each consumer group."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.harness.history import Assigned, GroupCommit, GroupReading, OffsetSeen, Processed


class GatheredGroups:
    """Takes the events of all ledgers, each ledger in its order."""

    def __init__(self) -> None:
        self._commits: dict[str, dict[tuple[str, int, str, int], GroupCommit]] = defaultdict(dict)
        """Per group; by member, number of the commit, topic and partition."""
        self._seen: dict[str, list[OffsetSeen]] = defaultdict(list)
        self._processed: dict[str, list[Processed]] = defaultdict(list)
        self._assigned: dict[str, list[Assigned]] = defaultdict(list)

        self._ends: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)

    def take(self, event: dict[str, Any]) -> None:
        """One event that has a group."""
        group, at_s = event["group"], event["at"]
        match event["event"]:
            case "group-processed":
                self._processed[group] += [
                    Processed(event["member"], topic, partition, offset, digest, at_s)
                    for topic, partition, offset, digest in event["records"]
                ]
            case "group-assigned":
                self._assigned[group] += [
                    Assigned(event["member"], (topic, partition), at_s)
                    for topic, partition in event["places"]
                ]
            case "group-commit":
                for topic, partition, offset in event["offsets"]:
                    key = (event["member"], event["number"], topic, partition)
                    self._commits[group][key] = GroupCommit(
                        (topic, partition), offset, at_s, transaction=event.get("of")
                    )
            case "group-committed":
                for topic, partition, offset in event["offsets"]:
                    key = (event["member"], event["number"], topic, partition)
                    asked_s = self._commits[group][key].asked_s
                    self._commits[group][key] = GroupCommit((topic, partition), offset, asked_s, at_s)
            case "group-offsets":
                self._seen[group] += [
                    OffsetSeen((topic, partition), offset, event["began"], at_s, event["daemon"])
                    for topic, partition, offset in event["offsets"]
                ]

            case "group-ended":
                self._ends[group] = {(topic, partition): end for topic, partition, end in event["ends"]}

    def readings(self) -> dict[str, GroupReading]:
        """Per group."""
        return {
            group: GroupReading(
                tuple(sorted(self._commits[group].values(), key=lambda one: one.asked_s)),
                tuple(sorted(self._seen[group], key=lambda one: one.began_s)),
                tuple(sorted(self._processed[group], key=lambda one: one.at_s)),
                tuple(sorted(self._assigned[group], key=lambda one: one.at_s)),
                self._ends[group],
            )
            for group in sorted({*self._commits, *self._processed, *self._seen})
        }
