"""Which APIs, daemons and topics there are: ApiVersions, Metadata and DescribeCluster.

There is no leadership of partitions: any daemon can accept any record. Each client is given one live daemon
as the leader of every partition, so that an idempotent producer stays with one
(`archiver.log.brokers.leader_of`).
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.kafka.large import sized
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
        threads: Executor,
        create: Callable[[str, str], Awaitable[ErrorCode]] | None = None,
    ) -> None:
        """`brokers` gives the live daemons, and the one that serves the client of a session. `allows` says
        whether a principal may see a topic. `read_on` reads the topics that other daemons created. `threads`
        are for large answers. `create` makes a topic for a principal; None: none is made.
        """
        self._cluster_id = cluster_id
        self._topics = topics
        self._brokers = brokers
        self._allows = allows
        self._read_on = read_on
        self._threads = threads
        self._create = create

    async def __call__(self, session: Session, request: KafkaRequest) -> Body:
        """The daemons and the requested topics."""
        principal, body = session.principal, request.body
        brokers, leader = self._brokers(session)
        missing = await sized(self._threads, request.elements, self._missing, principal, body)
        if missing:
            # Once for the request: a topic that was just created at another daemon must be found.
            await self._read_on()
        codes: dict[str, ErrorCode] = {}
        if self._create is not None and getattr(body, "allow_auto_topic_creation", True):
            for name in missing:
                if name not in self._topics():
                    codes[name] = await self._create(principal, name)
        topics = self._topics()
        elements = request.elements + _partitions(body, topics)
        found = await sized(
            self._threads, elements, self._described, principal, request, topics, leader, codes
        )
        return {
            "brokers": [_broker(one) for one in brokers],
            "cluster_id": self._cluster_id,
            "controller_id": -1 if leader is None else leader.node_id,
            "topics": found,
        }

    def _missing(self, principal: str, body: Any) -> list[str]:
        """The requested names that are not known here. Only those that the principal may see: the time of the
        answer would confirm the others.
        """
        topics = self._topics()
        names = dict.fromkeys(one.name for one in body.topics or ())
        return [
            name
            for name in names
            if name is not None and name not in topics and self._allows(principal, name)
        ]

    def _described(
        self,
        principal: str,
        request: KafkaRequest,
        topics: Mapping[str, TopicState],
        leader: Broker | None,
        codes: Mapping[str, ErrorCode],
    ) -> list[dict[str, Any]]:
        """The requested topics. `codes` are errors of topics that could not be created."""
        asked = request.body.topics
        if asked is None:
            return [_known(topic, leader) for name, topic in topics.items() if self._allows(principal, name)]
        found = []
        names: Mapping[str, str] = {}
        if any(one.name is None for one in asked):
            names = {topic.topic_id: topic.name for topic in topics.values()}
        # Each topic once, as Kafka does: a request that repeats one would get a far larger answer.
        for name, identity in dict.fromkeys((one.name, getattr(one, "topic_id", None)) for one in asked):
            if name is None:
                by_identity = None if identity is None else names.get(identity.hex)
                # The same answer for an id that does not exist: the name must not be shown.
                if by_identity is None or not self._allows(principal, by_identity):
                    nameless = None if request.version >= NAMELESS_VERSION else ""
                    found.append(_unknown(nameless, identity, ErrorCode.unknown_topic_id))
                else:
                    found.append(_known(topics[by_identity], leader))
            # The same answer as for a topic that does not exist: its name must not be confirmed.
            elif not self._allows(principal, name):
                found.append(_unknown(name, None, ErrorCode.topic_authorization_failed))
            elif (topic := topics.get(name)) is not None:
                found.append(_known(topic, leader))
            else:
                code = codes.get(name, ErrorCode.unknown_topic_or_partition)
                found.append(_unknown(name, None, code))
        return found

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


def _partitions(body: Any, topics: Mapping[str, TopicState]) -> int:
    """Partitions of the requested topics; of all topics if some are requested by their ids."""
    if body.topics is None or any(one.name is None for one in body.topics):
        return sum(topic.partitions for topic in topics.values())
    return sum(topics[one.name].partitions for one in body.topics if one.name in topics)


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
