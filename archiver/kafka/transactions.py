"""Transactions over Kafka's requests: InitProducerId with a transactional id, AddPartitionsToTxn,
AddOffsetsToTxn, EndTxn and WriteTxnMarkers.

The state of a transaction is in the intake log. A transaction begins with its first batch or its first
offsets (`archiver.kafka.group_offsets`). So AddPartitionsToTxn and AddOffsetsToTxn only check. Requests that
append are processed by the daemon that holds the claim of the transactional id, one after the other, in the
order of their arrival.

A client that got no answer sends EndTxn again, and may then begin its next transaction. A late EndTxn of the
first attempt must not end that one. So it does not count at a daemon that was replaced, because its claim is
old. If the daemon claims the transactional id again, the request may have waited in its connection since
before that. So EndTxn counts only on a connection that had an answer under the claim: its client has sent the
request after that. Otherwise the answer is a retriable error, and a client that still waits sends it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import Operation
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.coordinator import GroupCoordinator
from archiver.kafka.listener import Body, Handlers, Session
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.topic_configs import Refused
from archiver.runtime.errors import ArchiverError, OutcomeUnknown, RetryLater
from archiver.runtime.logging import LogLimit
from intake.log.client_transactions import (
    TRANSACTIONAL_ID_BYTES_MAX,
    ClientTransactions,
    ProducerEpoch,
    ProducerRefusal,
    judge_producer,
)
from intake.log.consumer_groups import slot_of
from intake.log.fold import IntakeFold, TopicState
from intake.producers import Producer

_log = logging.getLogger(__name__)

_NO_ID: Final = -1
SESSION_IDS_MAX: Final = 100
"""Transactional ids of one connection whose claims are remembered."""
FENCED_SINCE: Final[Mapping[ApiKey, int]] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""Versions from which PRODUCER_FENCED is known; earlier ones get INVALID_PRODUCER_EPOCH, as in Kafka."""
_ABORTS: Final[Mapping[ProducerRefusal | None, ErrorCode]] = {
    None: ErrorCode.none,
    "unknown": ErrorCode.invalid_producer_id_mapping,
    "fenced": ErrorCode.invalid_producer_epoch,
    "elsewhere": ErrorCode.invalid_txn_state,
}

_Result = TypeVar("_Result")


class TransactionRequests:
    """Answers the requests of transactional producers, except Produce."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        transactions: ClientTransactions,
        fold: Callable[[], IntakeFold],
        read_on: Callable[[], Awaitable[None]],
        authorizer: Authorizer,
        threads: Executor,
        timeout_max_s: float,
    ) -> None:
        """`coordinator` has the claims. `fold` is that of the log as far as it was read; `read_on` reads on.
        `threads` is one thread, which keeps the order. `timeout_max_s`: of a transaction.
        """
        self._coordinator = coordinator
        self._transactions = transactions
        self._fold = fold
        self._read_on = read_on
        self._authorizer = authorizer
        self._threads = threads
        self._timeout_max_s = timeout_max_s
        self._log_limit = LogLimit(_log)
        self._opened_limit = LogLimit(_log)
        self.handlers: Handlers = {
            ApiKey.INIT_PRODUCER_ID: self._open,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.WRITE_TXN_MARKERS: self._write_markers,
        }

    def _require(self, session: Session, operation: Operation, transactional_id: str) -> None:
        if not transactional_id or len(transactional_id.encode()) > TRANSACTIONAL_ID_BYTES_MAX:
            raise Refused(ErrorCode.invalid_request)
        allowed = self._authorizer.allows(
            session.principal, operation, Resource.TRANSACTIONAL_ID, transactional_id
        )
        if not allowed:
            raise Refused(ErrorCode.transactional_id_authorization_failed)

    def _note_answer(self, session: Session, transactional_id: str, claim: int | None) -> None:
        """What the client sends next for the id, it sends after an answer under this claim."""
        if claim is None:
            return
        # A client that uses more ids on a connection repeats some of its EndTxn requests.
        if len(session.claims) >= SESSION_IDS_MAX:
            session.claims.clear()
        session.claims[transactional_id] = claim

    # --- InitProducerId

    async def _open(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        try:
            producer = await self._opened(session, request)
        except Refused as error:
            return {"error_code": int(error.code), "producer_id": _NO_ID, "producer_epoch": _NO_ID}
        self._opened_limit.log(
            asyncio.get_running_loop().time(),
            logging.INFO,
            "Kafka client %s has producer %d with epoch %d for transactional id %.200r",
            session.peer,
            producer.producer_id,
            producer.epoch,
            body.transactional_id,
        )
        return {"error_code": 0, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}

    async def _opened(self, session: Session, request: KafkaRequest) -> ProducerEpoch:
        body = request.body
        name = body.transactional_id
        self._require(session, "write", name)
        timeout_ms = body.transaction_timeout
        if not 0 < timeout_ms <= self._timeout_max_s * 1000:
            raise Refused(ErrorCode.invalid_transaction_timeout)
        stated = ProducerEpoch(getattr(body, "producer_id", _NO_ID), getattr(body, "producer_epoch", _NO_ID))
        if (stated.producer_id < 0) != (stated.epoch < 0):
            raise Refused(ErrorCode.invalid_request)
        resumed = None if stated.producer_id < 0 else stated
        claim = await self._coordinator.require(name)
        found = await self._run(lambda: self._transactions.open(name, timeout_ms * 1000, claim, resumed))
        if isinstance(found, ProducerEpoch):
            self._note_answer(session, name, claim)
            return found
        raise self._refused(request, found)

    # --- AddPartitionsToTxn

    async def _add_partitions(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        topics = body.v3_and_below_topics
        try:
            self._require(session, "write", body.v3_and_below_transactional_id)
            await self._require_producer(
                request,
                body.v3_and_below_transactional_id,
                ProducerEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
            )
            known = self._fold().topics_by_name
            # The time of the answer would confirm topics that the principal may not see.
            if any(one.name not in known and self._may_write(session, one.name) for one in topics):
                await self._read_on()
            codes = self._partition_codes(session, topics)
            name = body.v3_and_below_transactional_id
            self._note_answer(session, name, self._coordinator.claim(name))
        except Refused as error:
            codes = {(one.name, number): error.code for one in topics for number in one.partitions}
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": one.name,
                    "results_by_partition": [
                        {"partition_index": number, "partition_error_code": int(codes[one.name, number])}
                        for number in one.partitions
                    ],
                }
                for one in topics
            ]
        }

    def _partition_codes(self, session: Session, topics: Any) -> dict[tuple[str, int], ErrorCode]:
        """The error of each partition. As in Kafka, none is added if one has an error."""
        known = self._fold().topics_by_name
        codes = {
            (one.name, number): self._partition_code(session, known.get(one.name), one.name, number)
            for one in topics
            for number in one.partitions
        }
        if any(code is not ErrorCode.none for code in codes.values()):
            return {
                place: ErrorCode.operation_not_attempted if code is ErrorCode.none else code
                for place, code in codes.items()
            }
        return codes

    def _partition_code(
        self, session: Session, topic: TopicState | None, name: str, number: int
    ) -> ErrorCode:
        if not self._may_write(session, name):
            return ErrorCode.topic_authorization_failed
        if topic is None or not 0 <= number < topic.partitions:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.none

    def _may_write(self, session: Session, topic: str) -> bool:
        return self._authorizer.allows(session.principal, "write", Resource.TOPIC, topic)

    async def _require_producer(
        self, request: KafkaRequest, transactional_id: str, stated: ProducerEpoch
    ) -> None:
        """Raise `Refused` unless it is the producer of the transactional id."""
        found = judge_producer(self._fold(), transactional_id, stated)
        if not isinstance(found, Producer):
            # Another daemon may have opened it.
            await self._read_on()
            found = judge_producer(self._fold(), transactional_id, stated)
        if not isinstance(found, Producer):
            raise self._refused(request, found)
        self._transactions.note_begun(stated)

    # --- AddOffsetsToTxn

    async def _add_offsets(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        name = body.transactional_id
        try:
            self._require(session, "write", name)
            if not self._authorizer.allows(session.principal, "read", Resource.GROUP, body.group_id):
                raise Refused(ErrorCode.group_authorization_failed)
            if not self._coordinator.claims.is_own(slot_of(name)):
                raise Refused(ErrorCode.not_coordinator)
            await self._require_producer(request, name, ProducerEpoch(body.producer_id, body.producer_epoch))
            self._note_answer(session, name, self._coordinator.claim(name))
        except Refused as error:
            return {"error_code": int(error.code)}
        return {"error_code": 0}

    # --- EndTxn

    async def _end(self, session: Session, request: KafkaRequest) -> Body:
        body = request.body
        name = body.transactional_id
        stated = ProducerEpoch(body.producer_id, body.producer_epoch)
        try:
            self._require(session, "write", name)
            # Without a wait if the slot is claimed: the order of arrival stays.
            claim = await self._coordinator.require(name)
            if session.claims.get(name) != claim:
                self._note_answer(session, name, claim)
                raise Refused(ErrorCode.coordinator_load_in_progress)
            found = await self._run(
                lambda: self._transactions.end(name, stated, claim, commit=body.committed)
            )
            if found is not None:
                raise self._refused(request, found)
        except Refused as error:
            return {"error_code": int(error.code)}
        return {"error_code": 0}

    # --- WriteTxnMarkers

    async def _write_markers(self, session: Session, request: KafkaRequest) -> Body:
        allowed = self._authorizer.allows(session.principal, "alter", Resource.CLUSTER)
        return {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "topics": await self._written(session, marker)
                    if allowed
                    else _marked(marker, {}, ErrorCode.cluster_authorization_failed),
                }
                for marker in request.body.markers
            ]
        }

    async def _written(self, session: Session, marker: Any) -> list[dict[str, Any]]:
        """Abort the transaction of a marker; the results of its partitions."""
        known = self._fold().topics_by_name
        if any(one.name not in known for one in marker.topics):
            await self._read_on()
            known = self._fold().topics_by_name
        places = {
            (one.name, number): (known[one.name].topic_id, number)
            for one in marker.topics
            for number in one.partition_indexes
            if one.name in known and 0 <= number < known[one.name].partitions
        }
        was_open = self._fold().transactions.get(marker.producer_id) is not None
        # Only a coordinator commits: it knows all partitions of the transaction.
        code = ErrorCode.invalid_request
        if places and not marker.transaction_result:
            stated = ProducerEpoch(marker.producer_id, marker.producer_epoch)
            try:
                refusal = await self._run(lambda: self._transactions.abort(stated, places.values()))
            except Refused:
                # The error on which an admin client asks again.
                code = ErrorCode.not_leader_or_follower
            else:
                code = _ABORTS[refusal]
        if was_open and code is ErrorCode.none:
            _log.warning(
                "Kafka client %s (%.200r) aborted the transaction of producer %d with epoch %d",
                session.peer,
                session.principal,
                marker.producer_id,
                marker.producer_epoch,
            )
        unknown = {
            (one.name, number): ErrorCode.unknown_topic_or_partition
            for one in marker.topics
            for number in one.partition_indexes
            if (one.name, number) not in places
        }
        return _marked(marker, unknown, code)

    def _refused(self, request: KafkaRequest, refusal: ProducerRefusal) -> Refused:
        if refusal == "stale_claim":
            self._coordinator.claims.check()
            return Refused(ErrorCode.not_coordinator)
        if refusal == "unknown":
            return Refused(ErrorCode.invalid_producer_id_mapping)
        if refusal == "ended":
            return Refused(ErrorCode.invalid_txn_state)
        if request.version >= FENCED_SINCE[request.api]:
            return Refused(ErrorCode.producer_fenced)
        return Refused(ErrorCode.invalid_producer_epoch)

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        """Run a call that appends; raises `Refused` if the client must ask again."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, call)
        except ArchiverError as error:
            self._log_limit.log(
                loop.time(), logging.WARNING, "a transaction of a Kafka client waits: %s", error
            )
            # The next attempt finds out what happened, so an unknown outcome is no failure.
            if isinstance(error, RetryLater | OutcomeUnknown):
                raise Refused(ErrorCode.coordinator_load_in_progress) from error
            raise Refused(ErrorCode.coordinator_not_available) from error


def _marked(marker: Any, codes: Mapping[tuple[str, int], ErrorCode], code: ErrorCode) -> list[dict[str, Any]]:
    """`code` is of the partitions that are not in `codes`."""
    return [
        {
            "name": one.name,
            "partitions": [
                {"partition_index": number, "error_code": int(codes.get((one.name, number), code))}
                for number in one.partition_indexes
            ],
        }
        for one in marker.topics
    ]
