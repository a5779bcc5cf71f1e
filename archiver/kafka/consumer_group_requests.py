"""Requests of the consumer protocol (KIP-848): their fields, their permissions, and their answers by version.

Who may do what is as in Kafka: members need `read` on the group and `describe` on the topics that they name.
Topics that a pattern matches and that they may not see are left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.assignors import ASSIGNORS
from archiver.kafka.consumer_members import LEAVE, LEAVE_STATIC, Beat, ProtocolMember, TopicRegex
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.coordinator import TEXT_MAX, GroupCoordinator
from archiver.kafka.groups import NOT_ASKED, REBALANCE_MIN_S, authorized_operations
from archiver.kafka.listener import Body, Handlers, Session
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import TopicState

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
"""Types of members."""


class ConsumerGroupRequests:
    """Answers ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        settings: KafkaListenerSettings,
        authorizer: Authorizer,
        topics: Callable[[], Mapping[TopicId, TopicState]],
    ) -> None:
        """`topics` are those of the log as far as it was read, by id."""
        self._coordinator = coordinator
        self._settings = settings
        self._authorizer = authorizer
        self._topics = topics
        self.handlers: Handlers = {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self._heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self._describe,
        }

    # --- ConsumerGroupHeartbeat

    async def _heartbeat(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        try:
            if not self._authorizer.allows(session.principal, "read", Resource.GROUP, body.group_id):
                raise Refused(ErrorCode.group_authorization_failed)
            self._check(body, request.version)
            for name in body.subscribed_topic_names or ():
                if not self._authorizer.allows(session.principal, "describe", Resource.TOPIC, name):
                    raise Refused(ErrorCode.topic_authorization_failed)
            beaten = await self._coordinator.beat(body.group_id, self._beat(session, body))
        except Refused as error:
            return {
                "error_code": int(error.code),
                "error_message": error.why,
                "member_epoch": 0,
                "heartbeat_interval": 0,
            }
        return {
            "error_code": 0,
            "member_id": beaten.member_id,
            "member_epoch": beaten.epoch,
            "heartbeat_interval": round(self._settings.group_consumer_heartbeat_interval * 1000),
            "assignment": None if beaten.assignment is None else _assignment(beaten.assignment),
        }

    def _check(self, body: Any, version: int) -> None:
        """Refuse what Kafka refuses before it looks at the group."""
        for text in (body.instance_id, body.rack_id):
            if text == "":
                raise Refused(ErrorCode.invalid_request, "an empty instance id or rack id")
        # Newer versions of the protocol bound no text.
        if max(len(one or "") for one in (body.member_id, body.instance_id, body.rack_id)) > TEXT_MAX:
            raise Refused(ErrorCode.invalid_request, f"an id of more than {TEXT_MAX} characters")
        epoch = body.member_epoch
        if epoch < LEAVE_STATIC:
            raise Refused(ErrorCode.invalid_request, f"member epoch {epoch}")
        # Only before version 1 the coordinator makes the id.
        if not body.member_id and (epoch != 0 or version >= 1):
            raise Refused(ErrorCode.invalid_request, "no member id")
        if epoch == LEAVE_STATIC and body.instance_id is None:
            raise Refused(ErrorCode.invalid_request, "no instance id")
        if epoch == 0:
            if body.rebalance_timeout < 0:
                raise Refused(ErrorCode.invalid_request, "no rebalance timeout in the first heartbeat")
            if body.topic_partitions is None or body.topic_partitions:
                raise Refused(ErrorCode.invalid_request, "a member that joins must own no partitions")
            if not body.subscribed_topic_names and not getattr(body, "subscribed_topic_regex", None):
                raise Refused(ErrorCode.invalid_request, "no topics in the first heartbeat")
        if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise Refused(ErrorCode.unsupported_assignor, f"supported assignors: {known}")
        names = body.subscribed_topic_names or ()
        if sum(map(len, names)) > self._settings.group_metadata_bytes_max:
            raise Refused(ErrorCode.invalid_request, "names of topics over kafka.group_metadata_bytes_max")

    def _beat(self, session: Session, body: Any) -> Beat:
        pattern = getattr(body, "subscribed_topic_regex", None)
        names = body.subscribed_topic_names
        rebalance_s = body.rebalance_timeout / 1000
        longest_s = self._settings.group_rebalance_timeout_max
        leaves = body.member_epoch in (LEAVE, LEAVE_STATIC)
        return Beat(
            member_id=body.member_id,
            epoch=body.member_epoch,
            instance_id=body.instance_id,
            rack_id=body.rack_id,
            client_id=session.client_id,
            client_host="/" + session.peer.rpartition(":")[0],
            rebalance_timeout_s=None
            if rebalance_s < 0
            else min(max(rebalance_s, REBALANCE_MIN_S), longest_s),
            names=None if names is None else frozenset(names),
            regex=None if pattern is None or leaves else TopicRegex(session.principal, pattern),
            assignor=body.server_assignor,
            owned=None if body.topic_partitions is None else self._owned(body.topic_partitions),
        )

    def _owned(self, stated: Any) -> frozenset[TopicPartition]:
        """What a member owns, without partitions that do not exist."""
        topics = self._topics()
        found: set[TopicPartition] = set()
        for one in stated:
            topic = None if one.topic_id is None else topics.get(TopicId(one.topic_id.hex))
            if topic is not None:
                found.update(
                    (topic.topic_id, each) for each in one.partitions if 0 <= each < topic.partitions
                )
        return frozenset(found)

    # --- ConsumerGroupDescribe

    async def _describe(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        return {
            # Each group once: a small request could otherwise get a far larger answer.
            "groups": [
                await self._described(session, name, body.include_authorized_operations)
                for name in dict.fromkeys(body.group_ids)
            ]
        }

    async def _described(self, session: Session, name: str, asks_operations: bool) -> dict[str, Any]:
        found: dict[str, Any] = {
            "error_code": 0,
            "group_id": name,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": (),
            "authorized_operations": NOT_ASKED,
        }
        try:
            if not self._authorizer.allows(session.principal, "describe", Resource.GROUP, name):
                raise Refused(ErrorCode.group_authorization_failed)
            await self._coordinator.require_members(name)
            shown = self._coordinator.shown(name)
            group = None if shown is None else shown.group
            if not isinstance(group, ConsumerProtocolGroup):
                raise Refused(ErrorCode.group_id_not_found, "no group of the consumer protocol")
            names = self._visible(session, group.members)
        except Refused as error:
            return {**found, "error_code": int(error.code), "error_message": error.why}
        if asks_operations:
            found["authorized_operations"] = authorized_operations(self._authorizer, session, name)
        return {
            **found,
            "group_state": group.state.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": group.assignor,
            "members": [_member(one, names) for one in group.members],
        }

    def _visible(self, session: Session, members: Collection[ProtocolMember]) -> Mapping[TopicId, str]:
        """Names of the topics of all members. As in Kafka, none of them is shown if one must not be."""
        topics = self._topics()
        used = {topic for one in members for topic, _ in (*one.assigned, *one.revoking, *one.target)}
        names = {one: topics[one].name for one in used if one in topics}
        subscribed = {name for one in members for name in one.subscription.names}
        for name in subscribed.union(names.values()):
            if not self._authorizer.allows(session.principal, "describe", Resource.TOPIC, name):
                raise Refused(ErrorCode.topic_authorization_failed)
        return names


def _assignment(
    partitions: Collection[TopicPartition], names: Mapping[TopicId, str] | None = None
) -> dict[str, Any]:
    """By topic; only topics with names, if they are given."""
    numbers: dict[TopicId, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return {
        "topic_partitions": [
            {
                "topic_id": uuid.UUID(topic),
                "topic_name": "" if names is None else names[topic],
                "partitions": found,
            }
            for topic, found in numbers.items()
            if names is None or topic in names
        ]
    }


def _member(member: ProtocolMember, names: Mapping[TopicId, str]) -> dict[str, Any]:
    regex = member.subscription.regex
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": LEAVE_STATIC if member.has_left else member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscription.names),
        "subscribed_topic_regex": None if regex is None else regex.pattern,
        "assignment": _assignment(member.assigned, names),
        "target_assignment": _assignment(member.target, names),
        "member_type": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    }
