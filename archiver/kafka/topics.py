"""Topics that Kafka clients create, delete, extend and truncate: CreateTopics and its relatives.

Every method takes a principal and the body of a request, and returns the body of the response. It may append
to the intake log, so it is called in a thread. An error of one topic stays with that topic. What a principal
may not see has the same answer whether or not it exists.

There are no replicas: records are in the object store. A replication factor is accepted and has no effect.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.app.application import Application
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.config.types import check_topic_name
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.listener import Body, Handlers, Session
from archiver.kafka.log_view import Bounds
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.topic_configs import (
    TIMEOUT_MAX_S,
    Refused,
    TopicConfigs,
    attempted,
    code_of,
    described,
    read_topics,
)
from archiver.runtime.errors import ArchiverError, ConfigInvalid
from archiver.runtime.ids import TopicId
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted
from intake.log.fold import TopicState
from intake.log.sequencer import PARTITIONS_MAX

_log = logging.getLogger(__name__)

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})
"""Topics of Kafka's brokers. Clients read meaning into them, so no client may create one."""
UNSET: Final = -1
"""A client states no number of partitions, or no replication factor."""


class Topics:
    """Answers requests that change topics. Thread-safe."""

    def __init__(
        self,
        application: Application,
        settings: KafkaListenerSettings,
        authorizer: Authorizer,
        bounds: Callable[[TopicId, int], Bounds],
    ) -> None:
        """`bounds` says where a partition begins and ends."""
        self._application = application
        self._settings = settings
        self._authorizer = authorizer
        self._bounds = bounds
        self._log_limit = LogLimit(_log)

    # --- CreateTopics

    def create(self, principal: str, body: Any) -> Body:
        """Answer CreateTopics."""
        twice = _twice(topic.name for topic in body.topics)
        until_s = self._until_s(body)

        def answer(topic: Any) -> dict[str, Any]:
            self._check_turn(topic.name, twice, until_s)
            if not self._may_create(principal, topic.name):
                raise Refused(ErrorCode.topic_authorization_failed)
            return self._created(principal, topic, validate_only=body.validate_only)

        # An error has neither.
        nothing = {"topic_id": None, "configs": None}
        return {"throttle_time": 0, "topics": [{**nothing, **_each(answer, topic)} for topic in body.topics]}

    def auto_create(self, principal: str, name: str) -> ErrorCode:
        """Create a topic that a client asks for in Metadata, with the defaults; the error of its answer."""
        if not self._settings.auto_create_topics:
            return ErrorCode.unknown_topic_or_partition
        if not self._may_create(principal, name):
            return ErrorCode.topic_authorization_failed
        try:
            self._check_new(name)
            self._append(name, self._partitions(name, UNSET), {})
        except Refused as error:
            # Another process created it just now.
            return ErrorCode.none if error.code is ErrorCode.topic_already_exists else error.code
        except ArchiverError as error:
            self._warn("topic %s is not created for a Kafka client: %s", name, error)
            return code_of(error)
        return ErrorCode.none

    def _may_create(self, principal: str, name: str) -> bool:
        return self._authorizer.allows(principal, "create", Resource.CLUSTER) or self._authorizer.allows(
            principal, "create", Resource.TOPIC, name
        )

    def _created(self, principal: str, topic: Any, *, validate_only: bool) -> dict[str, Any]:
        if topic.assignments:
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                "partitions have no replicas, so none can be assigned; state a number of partitions",
            )
        if topic.replication_factor != UNSET and topic.replication_factor < 1:
            raise Refused(ErrorCode.invalid_replication_factor, "the replication factor must be at least 1")
        configs = _configs(topic.configs)
        self._check_new(topic.name)
        partitions = self._partitions(topic.name, topic.num_partitions)
        if validate_only:
            self._check_creation(topic.name, partitions)
            stated = self._application.intake.changed_configs(topic.name, (), lambda _: configs)
            made = TopicState(TopicId(bytes(16).hex()), topic.name, partitions, 0, configs=stated)
        else:
            made = self._append(topic.name, partitions, configs)
        found: dict[str, Any] = {
            "topic_id": uuid.UUID(made.topic_id),
            "num_partitions": made.partitions,
            "replication_factor": 1,
        }
        if not self._authorizer.allows(principal, "describe_configs", Resource.TOPIC, topic.name):
            return {
                **found,
                "num_partitions": UNSET,
                "replication_factor": UNSET,
                "topic_config_error_code": int(ErrorCode.topic_authorization_failed),
                "configs": None,
            }
        return {**found, "configs": described(self._application, made)}

    def _check_new(self, name: str) -> None:
        """Check that a client may create a topic of that name at all."""
        try:
            check_topic_name(name)
        except ValueError as error:
            raise Refused(ErrorCode.invalid_topic_exception, str(error)) from None
        if name in INTERNAL:
            raise Refused(ErrorCode.invalid_request, f"{name} is an internal topic of Kafka's brokers")
        if name in self._application.backlog().topics_by_name:
            raise Refused(ErrorCode.topic_already_exists, f"topic {name} already exists")
        settings = self._application.configured
        if any(one.kafka is not None and one.kafka.matches(name) for one in settings.sources):
            raise Refused(
                ErrorCode.policy_violation, "topics of that name are mirrored: a Kafka source creates them"
            )

    def _partitions(self, name: str, stated: int) -> int:
        """The number of partitions of a new topic."""
        if stated == UNSET:
            configured = self._application.configured
            entry, template = configured.topic(name), configured.template(name)
            if entry is not None:
                return entry.partitions
            if template is not None and template.partitions is not None:
                return template.partitions
            return self._settings.default_partitions
        if not 1 <= stated <= PARTITIONS_MAX:
            raise Refused(
                ErrorCode.invalid_partitions, f"the number of partitions is between 1 and {PARTITIONS_MAX}"
            )
        return stated

    def _check_creation(self, name: str, partitions: int) -> None:
        why = self._application.intake.creation_refused(name, partitions)
        if why is not None:
            # Not for the client: the reason may name a topic that it must not see.
            self._warn("topic %s is not created for a Kafka client: %s", name, why)
            raise Refused(
                ErrorCode.policy_violation,
                "the template for this name does not fit: another topic, or a deleted one, has the table "
                "that the topic would have; choose another name",
            )

    def _append(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicState:
        self._check_creation(name, partitions)
        made = self._application.intake.create_topic(name, partitions, configs)
        if made is None:
            raise Refused(ErrorCode.topic_already_exists, f"topic {name} already exists")
        return made

    # --- DeleteTopics

    def delete(self, principal: str, body: Any) -> Body:
        """Answer DeleteTopics. Up to version 5 the request has names, from 6 on names or ids."""
        named = getattr(body, "topic_names", None)
        asked = (
            [(topic.name, topic.topic_id) for topic in body.topics]
            if named is None
            else [(name, None) for name in named]
        )
        twice = _twice(name if name is not None else topic_id for name, topic_id in asked)
        until_s = self._until_s(body)

        def answer(item: tuple[str | None, uuid.UUID | None]) -> dict[str, Any]:
            name, topic_id = item
            self._check_turn(name if name is not None else topic_id, twice, until_s)
            topic = self._to_delete(principal, name, topic_id)
            self._application.intake.delete_topic(topic)
            _log.info("topic %s is deleted by a Kafka client (%s)", topic.name, principal)
            return {"name": topic.name, "topic_id": uuid.UUID(topic.topic_id)}

        responses = []
        for item in asked:
            found = {"topic_id": item[1], **_each(answer, item, name=item[0])}
            responses.append(found)
        return {"throttle_time": 0, "responses": responses}

    def _to_delete(self, principal: str, name: str | None, topic_id: uuid.UUID | None) -> TopicState:
        if name is None:
            topics_by_id = self._application.backlog().topics_by_id
            topic = None if topic_id is None else topics_by_id.get(TopicId(topic_id.hex))
            # An id that the principal may not see is unknown to it.
            if topic is None or not self._authorizer.allows(
                principal, "describe", Resource.TOPIC, topic.name
            ):
                raise Refused(ErrorCode.unknown_topic_id)
            name = topic.name
        self._require(principal, "delete", name)
        topic = self._application.backlog().topics_by_name.get(name)
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_or_partition)
        if topic.mirrored:
            raise Refused(ErrorCode.policy_violation, "the topic is mirrored; delete it at its Kafka source")
        return topic

    # --- CreatePartitions

    def add_partitions(self, principal: str, body: Any) -> Body:
        """Answer CreatePartitions."""
        twice = _twice(topic.name for topic in body.topics)
        until_s = self._until_s(body)

        def answer(topic: Any) -> dict[str, Any]:
            self._check_turn(topic.name, twice, until_s)
            self._require(principal, "alter", topic.name)
            known = self._application.backlog().topics_by_name.get(topic.name)
            if known is None:
                raise Refused(ErrorCode.unknown_topic_or_partition)
            if topic.assignments:
                raise Refused(
                    ErrorCode.invalid_replica_assignment,
                    "partitions have no replicas, so none can be assigned",
                )
            if known.mirrored:
                raise Refused(
                    ErrorCode.policy_violation, "the topic is mirrored; add partitions at its Kafka source"
                )
            if not known.partitions < topic.count <= PARTITIONS_MAX:
                raise Refused(
                    ErrorCode.invalid_partitions,
                    f"the topic has {known.partitions} partitions; the new number is larger, and at most "
                    f"{PARTITIONS_MAX}",
                )
            if not body.validate_only:
                self._application.intake.grow_topic(topic.name, topic.count)
            return {}

        return {"throttle_time": 0, "results": [_each(answer, topic) for topic in body.topics]}

    # --- DeleteRecords

    def delete_records(self, principal: str, body: Any) -> Body:
        """Answer DeleteRecords."""
        topics = read_topics(self._application)
        twice = _twice(topic.name for topic in body.topics)
        until_s = self._until_s(body)

        def answer(topic: Any) -> list[tuple[ErrorCode, int]]:
            self._check_turn(topic.name, twice, until_s)
            self._require(principal, "delete", topic.name)
            return self._without_records(principal, topics().get(topic.name), topic.partitions)

        found = []
        for topic in body.topics:
            numbers = [part.partition_index for part in topic.partitions]
            results, error, _ = attempted(answer, topic)
            results = results or [(error, UNSET)] * len(numbers)
            partitions = [
                {"partition_index": number, "low_watermark": low, "error_code": int(code)}
                for number, (code, low) in zip(numbers, results, strict=True)
            ]
            found.append({"name": topic.name, "partitions": partitions})
        return {"throttle_time": 0, "topics": found}

    def _without_records(
        self, principal: str, topic: TopicState | None, asked: Sequence[Any]
    ) -> list[tuple[ErrorCode, int]]:
        """Delete the records of a topic's partitions below the offsets that a client states. Returns the
        error and the first offset of each partition.
        """
        if topic is None:
            return [(ErrorCode.unknown_topic_or_partition, UNSET)] * len(asked)
        codes: list[ErrorCode] = []
        below: dict[int, int] = {}
        for part in asked:
            number, offset, code = part.partition_index, part.offset, ErrorCode.none
            if not 0 <= number < topic.partitions:
                code = ErrorCode.unknown_topic_or_partition
            else:
                bounds = self._bounds(topic.topic_id, number)
                # -1 stands for the end of the partition.
                offset = bounds.high_watermark if offset == UNSET else offset
                if not 0 <= offset <= bounds.high_watermark:
                    code = ErrorCode.offset_out_of_range
                # What is gone already needs no entry, and no permission of the configuration.
                elif offset > bounds.log_start:
                    below[number] = max(offset, below.get(number, 0))
            codes.append(code)
        if below:
            self._delete_below(principal, topic, below)
        return [
            (code, self._bounds(topic.topic_id, part.partition_index).log_start)
            if code is ErrorCode.none
            else (code, UNSET)
            for code, part in zip(codes, asked, strict=True)
        ]

    def _delete_below(self, principal: str, topic: TopicState, below: Mapping[int, int]) -> None:
        try:
            self._application.intake.delete_records(topic, below)
        except ConfigInvalid as error:
            # The response has no field for a reason.
            self._warn("records of topic %s are not deleted for a Kafka client: %s", topic.name, error)
            raise
        _log.info(
            "records of topic %s are deleted by a Kafka client (%s), in %s",
            topic.name,
            principal,
            counted(len(below), "partition"),
        )

    # --- shared

    def _warn(self, message: str, *values: object) -> None:
        self._log_limit.log(self._application.clock.monotonic_s(), logging.WARNING, message, *values)

    def _require(self, principal: str, operation: Any, name: str) -> None:
        if not self._authorizer.allows(principal, operation, Resource.TOPIC, name):
            raise Refused(ErrorCode.topic_authorization_failed)

    def _until_s(self, body: Any) -> float:
        allowed_s: float = min(max(body.timeout, 0) / 1000, TIMEOUT_MAX_S)
        return self._application.clock.monotonic_s() + allowed_s

    def _check_turn(self, topic: str | uuid.UUID | None, twice: set[Any], until_s: float) -> None:
        """Refuse a topic that the request names twice, or whose turn comes too late: one request must not
        keep a thread.
        """
        if self._application.clock.monotonic_s() > until_s:
            raise Refused(ErrorCode.request_timed_out, "the time of the request is over")
        if topic in twice:
            raise Refused(ErrorCode.invalid_request, "the topic is twice in the request")


class TopicRequests:
    """Answers the requests of `Topics` and `TopicConfigs` in threads, because they append to the log."""

    def __init__(self, topics: Topics, configs: TopicConfigs, threads: Executor) -> None:
        self._topics = topics
        self._threads = threads
        answers: Mapping[ApiKey, Callable[[str, Any], Body]] = {
            ApiKey.CREATE_TOPICS: topics.create,
            ApiKey.DELETE_TOPICS: topics.delete,
            ApiKey.DELETE_RECORDS: topics.delete_records,
            ApiKey.CREATE_PARTITIONS: topics.add_partitions,
            ApiKey.DESCRIBE_CONFIGS: configs.describe,
            ApiKey.ALTER_CONFIGS: configs.replace,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.alter,
        }
        self.handlers: Handlers = {api: partial(self._answer, answer) for api, answer in answers.items()}

    async def _answer(
        self, answer: Callable[[str, Any], Body], session: Session, request: KafkaRequest
    ) -> Body:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, answer, session.principal, request.body)

    async def auto_create(self, principal: str, name: str) -> ErrorCode:
        """As `Topics.auto_create`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._topics.auto_create, principal, name)


def _configs(stated: Sequence[Any]) -> dict[str, str]:
    """The configs of a new topic by name."""
    found: dict[str, str] = {}
    for one in stated or ():
        if one.name in found or one.value is None:
            why = "is twice in the request" if one.name in found else "has no value"
            raise Refused(ErrorCode.invalid_config, f"{excerpt(one.name)} {why}")
        found[one.name] = one.value
    return found


def _twice(names: Iterable[Any]) -> set[Any]:
    return {name for name, count in Counter(names).items() if count > 1}


def _each(answer: Callable[[Any], dict[str, Any]], item: Any, name: str | None = None) -> dict[str, Any]:
    """The answer for one topic, or its error."""
    found, code, why = attempted(answer, item)
    return {
        "name": name if isinstance(item, tuple) else item.name,
        "error_code": int(code),
        "error_message": None if why is None else excerpt(why),
        **(found or {}),
    }
