"""Which APIs, daemons and topics there are: ApiVersions, Metadata and DescribeCluster.

There is no leadership of partitions: any daemon can accept any record. Each client is given one live daemon
as the leader of every partition, so that an idempotent producer stays with one
(`archiver.log.brokers.leader_of`).
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.kafka.listener import Body, Session
from archiver.kafka.protocol import VERSIONS, KafkaRequest
from archiver.log.brokers import Broker
from intake.log.fold import TopicState

LEADER_EPOCH: Final = 0
"""Constant: it would only change with a leadership of partitions."""
NAMELESS_VERSION: Final = 12
"""From this version on, an answer of Metadata may lack a topic's name."""


def api_versions(request: KafkaRequest) -> Body:
    """The APIs and their versions. A version of this API that is unknown is answered in version 0, with the
    list and UNSUPPORTED_VERSION (KIP-511).
    """
    code = ErrorCode.none if request.known else ErrorCode.unsupported_version
    keys = [
        {"api_key": int(api), "min_version": low, "max_version": high}
        for api, (low, high) in VERSIONS.items()
    ]
    return {"error_code": int(code), "api_keys": keys}


class MetadataHandler:
    """Answers Metadata and DescribeCluster."""

    def __init__(
        self,
        cluster_id: str,
        topics: Callable[[], Mapping[str, TopicState]],
        brokers: Callable[[Session], tuple[Sequence[Broker], Broker | None]],
        allows: Callable[[str, str], bool],
        read_on: Callable[[], Awaitable[None]],
        create: Callable[[str, str], Awaitable[ErrorCode]] | None = None,
    ) -> None:
        """`brokers` gives the live daemons, and the one that serves the client of a session. `allows` says
        whether a principal may see a topic. `read_on` reads the topics that other daemons created. `create`
        makes a topic for a principal; None: none is made.
        """
        self._cluster_id = cluster_id
        self._topics = topics
        self._brokers = brokers
        self._allows = allows
        self._read_on = read_on
        self._create = create

    async def __call__(self, session: Session, request: KafkaRequest) -> Body:
        """The daemons and the requested topics."""
        body = request.body
        may_create = self._create is not None and getattr(body, "allow_auto_topic_creation", True)
        topics = self._topics()
        brokers, leader = self._brokers(session)
        found: list[dict[str, Any]] = []
        if body.topics is None:
            found = [
                _known(topic, leader)
                for name, topic in topics.items()
                if self._allows(session.principal, name)
            ]
        else:
            # Once for the request: a topic that was just created at another daemon must be found. Only for
            # names that the principal may see, because the time of the answer would confirm the others.
            if any(
                one.name is not None and one.name not in topics and self._allows(session.principal, one.name)
                for one in body.topics
            ):
                await self._read_on()
                topics = self._topics()
            # Each topic once, as Kafka does: a request that repeats one would get a far larger answer.
            asked = dict.fromkeys((one.name, getattr(one, "topic_id", None)) for one in body.topics)
            names: Mapping[str, str] = {}
            if any(name is None for name, _ in asked):
                names = {topic.topic_id: topic.name for topic in topics.values()}
            for name, identity in asked:
                if name is None:
                    by_identity = None if identity is None else names.get(identity.hex)
                    # The same answer for an id that does not exist: the name must not be shown.
                    if by_identity is None or not self._allows(session.principal, by_identity):
                        nameless = None if request.version >= NAMELESS_VERSION else ""
                        found.append(_unknown(nameless, identity, ErrorCode.unknown_topic_id))
                    else:
                        found.append(_known(topics[by_identity], leader))
                # The same answer as for a topic that does not exist: its name must not be confirmed.
                elif not self._allows(session.principal, name):
                    found.append(_unknown(name, None, ErrorCode.topic_authorization_failed))
                else:
                    code = ErrorCode.unknown_topic_or_partition
                    if name not in topics and may_create and self._create is not None:
                        code = await self._create(session.principal, name)
                        topics = self._topics()
                    topic = topics.get(name)
                    found.append(_unknown(name, None, code) if topic is None else _known(topic, leader))
        return {
            "brokers": [_broker(one) for one in brokers],
            "cluster_id": self._cluster_id,
            "controller_id": -1 if leader is None else leader.node_id,
            "topics": found,
        }

    async def cluster(self, session: Session, request: KafkaRequest) -> Body:
        """The daemons alone."""
        del request
        brokers, leader = self._brokers(session)
        return {
            "error_code": 0,
            "cluster_id": self._cluster_id,
            "controller_id": -1 if leader is None else leader.node_id,
            "brokers": [
                {"broker_id": one.node_id, "host": one.host, "port": one.port, "rack": one.rack or None}
                for one in brokers
            ],
        }


def _broker(one: Broker) -> dict[str, Any]:
    return {"node_id": one.node_id, "host": one.host, "port": one.port, "rack": one.rack or None}


def _unknown(name: str | None, identity: uuid.UUID | None, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": int(code),
        "name": name,
        "topic_id": identity,
        "is_internal": False,
        "partitions": [],
    }


def _known(topic: TopicState, leader: Broker | None) -> dict[str, Any]:
    node = -1 if leader is None else leader.node_id
    code = ErrorCode.none if leader is not None else ErrorCode.leader_not_available
    nodes = [] if leader is None else [node]
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": uuid.UUID(topic.topic_id),
        "is_internal": False,
        "partitions": [
            {
                "error_code": int(code),
                "partition_index": number,
                "leader_id": node,
                "leader_epoch": LEADER_EPOCH,
                "replica_nodes": nodes,
                "isr_nodes": nodes,
                "offline_replicas": [],
            }
            for number in range(topic.partitions)
        ],
    }
