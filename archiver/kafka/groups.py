"""Requests of consumer groups: their fields, their permissions, and their answers by version.

Who may do what is as in Kafka: members need `read` on the group, commits also `read` on the topics. A group
or topic that a principal may not see gets the same answer whether or not it exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import KafkaListenerSettings, Operation
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.consumer_protocol import ConsumerProtocolGroup
from archiver.kafka.coordinator import CLASSIC, GroupCoordinator, GroupShown, Waiting
from archiver.kafka.group import CONSUMER, Join, Member, State, Sync
from archiver.kafka.listener import Body, Handlers, Session
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.topic_configs import Refused
from intake.log.consumer_groups import slot_of

REBALANCE_MIN_S: Final = 1.0
"""Shortest time of a rebalance, also if a client states less."""
NOTHING: Final = b""
_GROUP, _TRANSACTION = 0, 1
"""Types of keys of FindCoordinator."""
_NO_NODE: Final[Mapping[str, Any]] = {"node_id": -1, "host": "", "port": -1}
_OPERATIONS: Final[Mapping[Operation, int]] = {"read": 3, "delete": 6, "describe": 8}
"""Kafka's numbers of the operations with groups."""
NOT_ASKED: Final = -(2**31)


class GroupRequests:
    """Answers the requests of members and of admin clients, except those on offsets."""

    def __init__(
        self, coordinator: GroupCoordinator, settings: KafkaListenerSettings, authorizer: Authorizer
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._authorizer = authorizer
        self.handlers: Handlers = {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.DESCRIBE_GROUPS: self._describe,
            ApiKey.LIST_GROUPS: self._list,
        }

    def _require(self, session: Session, operation: Operation, group: str) -> None:
        if not self._authorizer.allows(session.principal, operation, Resource.GROUP, group):
            raise Refused(ErrorCode.group_authorization_failed)

    # --- Members

    async def _find(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        kind = getattr(body, "key_type", _GROUP)
        if request.version < 4:
            return self._found(session, kind, body.key)
        return {
            "coordinators": [{"key": key, **self._found(session, kind, key)} for key in body.coordinator_keys]
        }

    def _found(self, session: Session, kind: int, key: str) -> dict[str, Any]:
        """The daemon that coordinates a group or the transactions of a transactional id."""
        try:
            if kind == _GROUP:
                self._require(session, "describe", key)
            elif kind != _TRANSACTION:
                raise Refused(ErrorCode.invalid_request)
            elif not self._authorizer.allows(session.principal, "describe", Resource.TRANSACTIONAL_ID, key):
                raise Refused(ErrorCode.transactional_id_authorization_failed)
            found = self._coordinator.claims.coordinator(slot_of(key))
            if found is None:
                raise Refused(ErrorCode.coordinator_not_available)
        except Refused as error:
            return {"error_code": int(error.code), "error_message": error.why, **_NO_NODE}
        return {
            "error_code": 0,
            "error_message": None,
            "node_id": found.node_id,
            "host": found.host,
            "port": found.port,
        }

    async def _join(self, session: Session, request: KafkaRequest) -> Body | None:
        body, version = request.body, request.version
        settings = self._settings
        session_s = body.session_timeout / 1000
        # Version 0 has one time for both.
        rebalance_s = getattr(body, "rebalance_timeout", -1) / 1000
        if rebalance_s < 0:
            rebalance_s = session_s
        # Each assignor once: the first one counts.
        protocols = {one.name: bytes(one.metadata) for one in reversed(body.protocols)}
        join = Join(
            member_id=body.member_id,
            instance_id=getattr(body, "group_instance_id", None),
            client_id=session.client_id,
            client_host="/" + session.peer.rpartition(":")[0],
            principal=session.principal,
            protocol_type=body.protocol_type,
            protocols=tuple((name, protocols[name]) for name in reversed(protocols)),
            session_timeout_s=session_s,
            rebalance_timeout_s=min(max(rebalance_s, REBALANCE_MIN_S), settings.group_rebalance_timeout_max),
            needs_member_id=version >= 4,
            may_skip_assignment=version >= 9,
        )
        # The views of the request would keep its bytes while this waits, and a reason may be as long as it.
        body.protocols, body.reason = (), None
        no_text = "" if version < 7 else None
        try:
            self._require(session, "read", body.group_id)
            joined = await self._coordinator.join(body.group_id, join, self._waiting(session, request))
        except Refused as error:
            return {
                "error_code": int(error.code),
                "protocol_name": no_text,
                "leader": "",
                "member_id": body.member_id,
                "members": (),
            }
        if joined is None:
            return None
        return {
            "error_code": int(joined.code),
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": no_text if joined.protocol is None else joined.protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {
                    "member_id": one.member_id,
                    "group_instance_id": one.instance_id,
                    "metadata": one.metadata,
                }
                for one in joined.members
            ],
        }

    async def _sync(self, session: Session, request: KafkaRequest) -> Body | None:
        body = request.body
        try:
            self._require(session, "read", body.group_id)
            if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
                raise Refused(ErrorCode.inconsistent_group_protocol)
            # Not in a variable, which would keep the assignments while this waits.
            synced = await self._coordinator.sync(
                body.group_id, _sync_of(body), self._waiting(session, request)
            )
        except Refused as error:
            return {"error_code": int(error.code), "assignment": NOTHING}
        if synced is None:
            return None
        return {
            "error_code": int(synced.code),
            "protocol_type": synced.protocol_type,
            "protocol_name": synced.protocol,
            "assignment": synced.assignment,
        }

    async def _heartbeat(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        instance_id = getattr(body, "group_instance_id", None)
        try:
            self._require(session, "read", body.group_id)
            code = await self._coordinator.heartbeat(
                body.group_id, body.member_id, instance_id, body.generation_id
            )
        except Refused as error:
            code = error.code
        return {"error_code": int(code)}

    async def _leave(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        if request.version < 3:
            leaving: list[tuple[str, str | None]] = [(body.member_id, None)]
        else:
            leaving = [(one.member_id, one.group_instance_id) for one in body.members]
        try:
            self._require(session, "read", body.group_id)
            codes = await self._coordinator.leave(body.group_id, leaving)
        except Refused as error:
            return {"error_code": int(error.code), "members": ()}
        # An older answer has only one error.
        return {
            "error_code": int(codes[0]) if request.version < 3 else 0,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "error_code": int(code)}
                for (member_id, instance_id), code in zip(leaving, codes, strict=True)
            ],
        }

    def _waiting(self, session: Session, request: KafkaRequest) -> Waiting:
        return Waiting(session.ended, lambda: session.release(request))

    # --- Administration

    async def _describe(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        asks_operations = getattr(body, "include_authorized_operations", False)
        return {
            # Each group once: a small request could otherwise get a far larger answer.
            "groups": [
                await self._described(session, name, asks_operations) for name in dict.fromkeys(body.groups)
            ]
        }

    async def _described(self, session: Session, name: str, asks_operations: bool) -> dict[str, Any]:
        found = {
            "error_code": 0,
            "group_id": name,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
            "authorized_operations": NOT_ASKED,
        }
        try:
            self._require(session, "describe", name)
            # Kafka's tool resets the offsets of a group that this answer calls empty.
            await self._coordinator.require_members(name)
        except Refused as error:
            return {**found, "error_code": int(error.code)}
        if asks_operations:
            found["authorized_operations"] = authorized_operations(self._authorizer, session, name)
        shown = self._coordinator.shown(name)
        # Groups of the consumer protocol are described by ConsumerGroupDescribe alone, as in Kafka.
        if shown is None or isinstance(shown.group, ConsumerProtocolGroup):
            return {**found, "group_state": State.DEAD.value}
        found |= {"group_state": shown.state.value, "protocol_type": shown.protocol_type}
        group = shown.group
        if group is None:
            return found
        # As in Kafka, the metadata is that of an assignor, which is known in a stable group.
        protocol = group.protocol if group.state is State.STABLE else None
        return {
            **found,
            "protocol_data": protocol or "",
            "members": [_member(one, protocol) for one in group.members],
        }

    async def _list(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        states = {one.lower() for one in getattr(body, "states_filter", ())}
        types = {one.lower() for one in getattr(body, "types_filter", ())}
        shown: Sequence[GroupShown] = ()
        try:
            if not types or types & {CLASSIC, CONSUMER}:
                shown = await self._coordinator.all_shown()
        except Refused as error:
            return {"error_code": int(error.code), "groups": ()}
        if not self._authorizer.allows(session.principal, "describe", Resource.CLUSTER):
            allowed = set(self._allowed(session, [one.name for one in shown]))
            shown = [one for one in shown if one.name in allowed]
        return {
            "error_code": 0,
            "groups": [
                {
                    "group_id": one.name,
                    "protocol_type": one.protocol_type,
                    "group_state": one.state.value,
                    "group_type": _type(one),
                }
                for one in shown
                if (not states or one.state.value.lower() in states) and (not types or _type(one) in types)
            ],
        }

    def _allowed(self, session: Session, names: Sequence[str]) -> list[str]:
        return self._authorizer.allowed_names(session.principal, "describe", Resource.GROUP, names)


def authorized_operations(authorizer: Authorizer, session: Session, name: str) -> int:
    """What a principal may do with a group, as Kafka's bits."""
    return sum(
        1 << number
        for operation, number in _OPERATIONS.items()
        if authorizer.allows(session.principal, operation, Resource.GROUP, name)
    )


def _type(shown: GroupShown) -> str:
    return CONSUMER if shown.is_of_consumer_protocol else CLASSIC


def _sync_of(body: Any) -> Sync:
    """What a SyncGroup asks. Its assignments are removed from the request, as in `GroupRequests._join`."""
    assignments, body.assignments = body.assignments, ()
    return Sync(
        member_id=body.member_id,
        generation=body.generation_id,
        instance_id=getattr(body, "group_instance_id", None),
        protocol_type=getattr(body, "protocol_type", None),
        protocol=getattr(body, "protocol_name", None),
        assignments=[(one.member_id, bytes(one.assignment)) for one in assignments],
    )


def _member(member: Member, protocol: str | None) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": NOTHING if protocol is None else member.metadata(protocol),
        "member_assignment": member.assignment,
    }
