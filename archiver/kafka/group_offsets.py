"""Committed offsets over Kafka's requests: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete and
DeleteGroups.

An answer is given once the log has the offsets. A fetch waits for the commits of its group that are in work,
and reads the log to its tail. So no committed offset goes backwards, also when another daemon took over.

Offsets of a transaction are pending until it ends. A consumer that starts in that time must wait for its end
(`require_stable`), or it would read again what the transaction has processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.app.group_reset import check_pending, check_reset, reset_commit
from archiver.config.kafka_listener import Operation
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.coordinator import TOGETHER, GroupCoordinator
from archiver.kafka.group import CONSUMER, State
from archiver.kafka.large import sized
from archiver.kafka.listener import Body, Handlers, Session
from archiver.kafka.offset_queue import OffsetQueue
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.slot_claims import REJOIN_S
from archiver.kafka.topic_configs import Refused
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicId
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted
from archiver.status.kafka_port import GroupCounts
from intake.log.client_transactions import TRANSACTIONAL_ID_BYTES_MAX
from intake.log.committed_offsets import Commit, HoldOutcome, PendingCommit, Removal, TopicCommit
from intake.log.consumer_groups import (
    NO_LEADER_EPOCH,
    CommittedOffset,
    ConsumerGroup,
    ConsumerGroups,
    slot_of,
)
from intake.log.fold import TopicState

_CODES: Final[Mapping[HoldOutcome, ErrorCode]] = {
    "ok": ErrorCode.none,
    "stale_claim": ErrorCode.not_coordinator,
    # Retriable: offsets of other groups expire, or the limit is raised.
    "full": ErrorCode.coordinator_not_available,
    "too_large": ErrorCode.invalid_commit_offset_size,
    "not_appended": ErrorCode.coordinator_not_available,
    # It may be stored; the client commits again.
    "unknown": ErrorCode.request_timed_out,
    "unknown_producer": ErrorCode.invalid_producer_id_mapping,
    # In every version, as in Kafka.
    "fenced": ErrorCode.invalid_producer_epoch,
}
_EPOCHS_SINCE: Final = 9
"""First version of OffsetCommit for members of the consumer protocol."""
_LOADING_SINCE: Final = 2
"""Version of TxnOffsetCommit from which clients know COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""
Unstable = Mapping[TopicId, Collection[int]]
"""Partitions of a group with offsets of an open transaction."""

_EPOCH_MAX: Final = 2**31 - 2
_NO_GENERATION: Final = -1
_NO_OFFSET: Final = CommittedOffset(-1, NO_LEADER_EPOCH, "", 0)


@dataclass(slots=True)
class _Columns:
    """What a request commits for one topic."""

    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    leader_epochs: list[int] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)


class OffsetRequests:
    """Answers requests about committed offsets."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        queue: OffsetQueue,
        groups: Callable[[], ConsumerGroups],
        topics: Callable[[], Mapping[str, TopicState]],
        read_topics: Callable[[], Awaitable[None]],
        authorizer: Authorizer,
        threads: Executor,
        metadata_bytes_max: int,
        counts: GroupCounts,
    ) -> None:
        """`groups` and `topics` are those of the log as far as it was read; `read_topics` reads on. `threads`
        are for requests with many partitions.
        """
        self._coordinator = coordinator
        self._queue = queue
        self._groups = groups
        self._topics = topics
        self._read_topics = read_topics
        self._authorizer = authorizer
        self._threads = threads
        self._metadata_bytes_max = metadata_bytes_max
        self._counts = counts
        self.handlers: Handlers = {
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_in_transaction,
            ApiKey.OFFSET_FETCH: self._fetch,
            ApiKey.OFFSET_DELETE: self._delete,
            ApiKey.DELETE_GROUPS: self._delete_groups,
        }

    def _may(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return self._authorizer.allows(session.principal, operation, resource, name)

    # --- OffsetCommit and TxnOffsetCommit

    async def _commit(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        codes: dict[tuple[str, int], ErrorCode] = {}
        code = ErrorCode.group_authorization_failed
        if self._may(session, "read", Resource.GROUP, body.group_id):
            code = await self._commit_code(session, request, codes, partial(self._item, request.version))
        return await sized(self._threads, request.elements, _commit_answer, body, codes, code)

    async def _item(self, version: int, body: Any, topics: list[TopicCommit]) -> Commit:
        claim = await self._coordinator.accept_commit(
            body.group_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            body.generation_id_or_member_epoch,
            states_epoch=version >= _EPOCHS_SINCE,
        )
        return Commit(body.group_id, claim, topics)

    async def _commit_in_transaction(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        codes: dict[tuple[str, int], ErrorCode] = {}
        name = body.transactional_id
        if not name or len(name.encode()) > TRANSACTIONAL_ID_BYTES_MAX:
            code = ErrorCode.invalid_request
        elif not self._may(session, "write", Resource.TRANSACTIONAL_ID, name):
            code = ErrorCode.transactional_id_authorization_failed
        elif not self._may(session, "read", Resource.GROUP, body.group_id):
            code = ErrorCode.group_authorization_failed
        else:
            code = await self._commit_code(session, request, codes, self._pending_item)
        if code is ErrorCode.coordinator_load_in_progress and request.version < _LOADING_SINCE:
            code = ErrorCode.coordinator_not_available
        return await sized(self._threads, request.elements, _commit_answer, body, codes, code)

    async def _pending_item(self, body: Any, topics: list[TopicCommit]) -> PendingCommit:
        claim = await self._coordinator.accept_commit(
            body.group_id,
            getattr(body, "member_id", ""),
            getattr(body, "group_instance_id", None),
            getattr(body, "generation_id", _NO_GENERATION),
            transactional=True,
        )
        commit = Commit(body.group_id, claim, topics)
        return PendingCommit(commit, body.transactional_id, body.producer_id, body.producer_epoch)

    async def _commit_code(
        self,
        session: Session,
        request: KafkaRequest,
        codes: dict[tuple[str, int], ErrorCode],
        item: Callable[[Any, list[TopicCommit]], Awaitable[Commit | PendingCommit]],
    ) -> ErrorCode:
        """Commit what can be stored, and count the outcome; the error of the partitions that are not in
        `codes` afterwards.
        """
        body = request.body
        outcome: asyncio.Future[HoldOutcome] | None = None
        try:
            # Free as a rule, and then without a wait.
            async with session.commits:
                await self._know_topics(session, body.topics)
                topics = await sized(self._threads, request.elements, self._committed, session, body, codes)
                if topics:
                    outcome = self._queue.put(await item(body, topics))
            if outcome is None:
                return ErrorCode.none
            found = await outcome
        except Refused as error:
            self._counts.committed("refused")
            return error.code
        self._counts.committed(found)
        return self._code(found)

    def _code(self, outcome: HoldOutcome) -> ErrorCode:
        if outcome == "stale_claim":
            # No effect if the slot was claimed again since.
            self._coordinator.claims.check()
        return _CODES[outcome]

    def _committed(
        self, session: Session, body: Any, codes: dict[tuple[str, int], ErrorCode]
    ) -> list[TopicCommit]:
        """What can be stored; the errors of the other partitions are set in `codes`."""
        topics = self._topics()
        found: dict[TopicId, _Columns] = {}
        for topic in body.topics:
            allowed = self._may(session, "read", Resource.TOPIC, topic.name)
            state = topics.get(topic.name)
            for part in topic.partitions:
                code = ErrorCode.none
                metadata = part.committed_metadata or ""
                if not allowed:
                    code = ErrorCode.topic_authorization_failed
                elif state is None or not 0 <= part.partition_index < state.partitions:
                    code = ErrorCode.unknown_topic_or_partition
                elif len(metadata.encode()) > self._metadata_bytes_max:
                    code = ErrorCode.offset_metadata_too_large
                elif part.committed_offset < 0:
                    code = ErrorCode.invalid_request
                if code is not ErrorCode.none or state is None:
                    codes[topic.name, part.partition_index] = code
                    continue
                columns = found.setdefault(state.topic_id, _Columns())
                columns.partitions.append(part.partition_index)
                columns.offsets.append(part.committed_offset)
                epoch = getattr(part, "committed_leader_epoch", NO_LEADER_EPOCH)
                # The largest number has no successor in the log's form.
                columns.leader_epochs.append(min(max(epoch, NO_LEADER_EPOCH), _EPOCH_MAX))
                columns.metadata.append(metadata)
        return [
            TopicCommit(topic_id, one.partitions, one.offsets, one.leader_epochs, one.metadata)
            for topic_id, one in found.items()
        ]

    async def _know_topics(self, session: Session, topics: Any) -> None:
        """Read the topics that other daemons created, if the request has one that is not known here."""
        known = self._topics()
        # Only for names that the principal may see: the time of the answer would confirm the others.
        if any(
            topic.name not in known and self._may(session, "describe", Resource.TOPIC, topic.name)
            for topic in topics
        ):
            await self._read_topics()

    # --- OffsetFetch

    async def _fetch(self, session: Session, request: KafkaRequest) -> Body:
        body, version = request.body, request.version
        if version >= 8:
            asked = list({one.group_id: one for one in body.groups}.values())
            found: list[dict[str, Any]] = []
            for first in range(0, len(asked), TOGETHER):
                # Those that wait at the same time share a read of the log.
                some = asked[first : first + TOGETHER]
                answers = await asyncio.gather(
                    *(
                        self._fetched(
                            session,
                            one.group_id,
                            one.topics,
                            getattr(one, "member_id", None),
                            getattr(one, "member_epoch", -1),
                            stable=body.require_stable,
                        )
                        for one in some
                    )
                )
                found += [
                    {"group_id": one.group_id, **answer} for one, answer in zip(some, answers, strict=True)
                ]
            return {"groups": found}
        stable = getattr(body, "require_stable", False)
        fetched = await self._fetched(session, body.group_id, body.topics, stable=stable)
        code = fetched["error_code"]
        if version < 2 and code:
            # Only partitions have an error.
            return {
                "topics": [
                    _topic(topic.name, dict.fromkeys(topic.partition_indexes, _NO_OFFSET), ErrorCode(code))
                    for topic in body.topics
                ]
            }
        return fetched

    async def _fetched(
        self,
        session: Session,
        name: str,
        topics: Any,
        member_id: str | None = None,
        epoch: int = -1,
        *,
        stable: bool,
    ) -> dict[str, Any]:
        """The offsets of one group; of all topics if `topics` is None. `stable`: an error instead of an
        offset that an open transaction may replace.
        """
        try:
            if not self._may(session, "describe", Resource.GROUP, name):
                raise Refused(ErrorCode.group_authorization_failed)
            claim = await self._coordinator.require(name, may_be_empty=True)
            await self._queue.settled(name)
            # A commit of the member before may come into the log later.
            await self._queue.resolve()
            await self._coordinator.read_on()
            if not self._groups().is_current(name, claim):
                self._coordinator.claims.check()
                raise Refused(ErrorCode.not_coordinator)
            # Behind the reads: the member may have lost its partitions since.
            self._coordinator.check_fetch(name, member_id, epoch)
        except Refused as error:
            return {"error_code": int(error.code), "topics": ()}
        # Before the offsets: a transaction that ends in between would replace them.
        unstable = self._groups().pending(name) if stable else {}
        group = self._groups().get(name)
        if topics is None:
            count = sum(len(numbers) for numbers in unstable.values())
            count += 0 if group is None else sum(len(one.partitions) for one in group.topics.values())
            found = await sized(self._threads, count, self._all_offsets, session, group, unstable)
        else:
            count = sum(1 + len(one.partition_indexes) for one in topics)
            found = await sized(self._threads, count, self._asked_offsets, session, group, topics, unstable)
        return {"error_code": 0, "topics": found}

    def _asked_offsets(
        self, session: Session, group: ConsumerGroup | None, topics: Any, unstable: Unstable
    ) -> list[dict[str, Any]]:
        known = self._topics()
        return [self._offsets(session, group, topic, known.get(topic.name), unstable) for topic in topics]

    def _offsets(
        self,
        session: Session,
        group: ConsumerGroup | None,
        topic: Any,
        state: TopicState | None,
        unstable: Unstable,
    ) -> dict[str, Any]:
        none = dict.fromkeys(topic.partition_indexes, _NO_OFFSET)
        if not self._may(session, "describe", Resource.TOPIC, topic.name):
            return _topic(topic.name, none, ErrorCode.topic_authorization_failed)
        if state is None:
            return _topic(topic.name, none)
        found = {
            number: (None if group is None else group.offset(state.topic_id, number)) or _NO_OFFSET
            for number in topic.partition_indexes
        }
        return _topic(topic.name, found, unstable=unstable.get(state.topic_id, frozenset()))

    def _all_offsets(
        self, session: Session, group: ConsumerGroup | None, unstable: Unstable
    ) -> list[dict[str, Any]]:
        stored = {} if group is None else group.topics
        names = {topic.topic_id: name for name, topic in self._topics().items()}
        found = []
        for topic_id in dict.fromkeys((*stored, *unstable)):
            if topic_id in names and self._may(session, "describe", Resource.TOPIC, names[topic_id]):
                numbers = unstable.get(topic_id, frozenset())
                # Also those that have no offset yet.
                offsets = dict.fromkeys(sorted(numbers), _NO_OFFSET) | dict(stored.get(topic_id, ()))
                found.append(_topic(names[topic_id], offsets, unstable=numbers))
        return found

    # --- Resets by `archiver groups reset`

    async def reset(self, name: str, topic_id: TopicId, offsets: Mapping[int, int]) -> None:
        """Commit offsets of a topic for a group without members.

        Raises `RetryLater` if the group has members or another daemon coordinates it. Otherwise as
        `check_reset`.
        """
        try:
            claim = await self._coordinator.require_members(name)
        except Refused as error:
            if error.code is ErrorCode.coordinator_load_in_progress:
                raise RetryLater(
                    f"consumer group {excerpt(name)} was not reset: members of its former coordinator may "
                    f"still join, or the metadata store did not answer; try again in {REJOIN_S:.0f} s"
                ) from error
            found = self._coordinator.claims.coordinator(slot_of(name))
            place = "no live daemon" if found is None else f"the daemon at {found.host}:{found.port}"
            raise RetryLater(
                f"consumer group {excerpt(name)} is not coordinated here ({error.code.name.upper()}): "
                f"{place} does; use its configuration, or try again"
            ) from error
        # Before the check: members could not see these commits yet.
        await self._queue.settled(name)
        shown = self._coordinator.shown(name)
        if shown is not None and shown.state is not State.EMPTY:
            members = 0 if shown.group is None else len(shown.group.members)
            raise RetryLater(
                f"consumer group {excerpt(name)} is in use and was not reset: it has "
                f"{counted(members, 'member')}; stop its consumers first"
            )
        check_pending(name, self._groups())
        # No wait since the check. A member that joins from here on fetches its offsets behind this commit.
        outcome = await self._queue.put(reset_commit(name, claim, topic_id, offsets))
        self._code(outcome)
        check_reset(name, outcome)

    # --- OffsetDelete and DeleteGroups

    async def _delete(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        codes: dict[tuple[str, int], ErrorCode] = {}
        try:
            if not self._may(session, "delete", Resource.GROUP, body.group_id):
                raise Refused(ErrorCode.group_authorization_failed)
            claim = await self._coordinator.require_members(body.group_id, may_be_empty=True)
            await self._know_topics(session, body.topics)
            shown = self._coordinator.shown(body.group_id)
            if shown is None:
                raise Refused(ErrorCode.group_id_not_found)
            if shown.state is not State.EMPTY and shown.protocol_type != CONSUMER:
                raise Refused(ErrorCode.non_empty_group)
            named: dict[TopicId, list[int]] = {}
            topics = self._topics()
            for topic in body.topics:
                state = topics.get(topic.name)
                numbers = [one.partition_index for one in topic.partitions]
                for number in numbers:
                    code = ErrorCode.none
                    if not self._may(session, "read", Resource.TOPIC, topic.name):
                        code = ErrorCode.topic_authorization_failed
                    elif state is None or not 0 <= number < state.partitions:
                        code = ErrorCode.unknown_topic_or_partition
                    elif shown.group is not None and shown.group.is_subscribed(topic.name):
                        code = ErrorCode.group_subscribed_to_topic
                    else:
                        named.setdefault(state.topic_id, []).append(number)
                    codes[topic.name, number] = code
            code = ErrorCode.none
            if named:
                partitions = {topic_id: sorted(set(numbers)) for topic_id, numbers in named.items()}
                code = self._code(await self._queue.put(Removal(body.group_id, claim, partitions)))
        except Refused as error:
            return {"error_code": int(error.code), "topics": ()}
        if code is not ErrorCode.none:
            return {"error_code": int(code), "topics": ()}
        return {
            "error_code": 0,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": one.partition_index,
                            "error_code": int(codes[topic.name, one.partition_index]),
                        }
                        for one in topic.partitions
                    ],
                }
                for topic in body.topics
            ],
        }

    async def _delete_groups(self, session: Session, request: KafkaRequest) -> Body:
        return {
            "results": [
                {"group_id": name, "error_code": int(await self._group_deleted(session, name))}
                for name in dict.fromkeys(request.body.groups_names)
            ]
        }

    async def _group_deleted(self, session: Session, name: str) -> ErrorCode:
        if not self._may(session, "delete", Resource.GROUP, name):
            return ErrorCode.group_authorization_failed
        try:
            claim = await self._coordinator.require_members(name, may_be_empty=True)
        except Refused as error:
            return error.code
        # Before the check: a commit in work may be its first one.
        await self._queue.settled(name)
        shown = self._coordinator.shown(name)
        if shown is None:
            return ErrorCode.group_id_not_found
        # A transaction that lost its offsets could still commit its records.
        if shown.state is not State.EMPTY or self._groups().pending(name):
            return ErrorCode.non_empty_group
        code = self._code(await self._queue.put(Removal(name, claim)))
        if code is ErrorCode.none:
            self._coordinator.forget(name)
        return code


def _commit_answer(body: Any, codes: Mapping[tuple[str, int], ErrorCode], code: ErrorCode) -> Body:
    """`code` is of the partitions that are not in `codes`."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": int(codes.get((topic.name, part.partition_index), code)),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def _topic(
    name: str,
    offsets: Mapping[int, CommittedOffset],
    code: ErrorCode = ErrorCode.none,
    unstable: Collection[int] = (),
) -> dict[str, Any]:
    """`code` is of all partitions; those in `unstable` have their own error, and no offset."""
    rows = (
        (number, *((_NO_OFFSET, ErrorCode.unstable_offset_commit) if number in unstable else (one, code)))
        for number, one in offsets.items()
    )
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": number,
                "committed_offset": one.offset,
                "committed_leader_epoch": one.leader_epoch,
                "metadata": one.metadata,
                "error_code": int(found),
            }
            for number, one, found in rows
        ],
    }
