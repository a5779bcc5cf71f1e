"""Transactions and producers as admin clients see them: ListTransactions, DescribeTransactions and
DescribeProducers.

Everything shown is in the intake log's fold. A daemon lists the transactional ids that it coordinates,
because a client asks every daemon and joins the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import Operation
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.listener import Body, Handlers, Session
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.slot_claims import SlotClaims
from archiver.runtime.clock import Clock
from archiver.runtime.ids import TopicPartition
from intake.log.consumer_groups import slot_of
from intake.log.fold import IntakeFold
from intake.producers import SEQUENCE_COUNT, Producer, after

_ONGOING: Final = "Ongoing"
_EMPTY: Final = "Empty"
_STATES: Final = frozenset(
    {
        *(_ONGOING, _EMPTY, "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
        *("Dead", "PrepareEpochFence"),
    }
)
"""Kafka's names of all states."""
_NO_TIME: Final = -1
_NO_OFFSET: Final = -1


class TransactionViews:
    """Answers requests that show transactions."""

    def __init__(
        self,
        fold: Callable[[], IntakeFold],
        read_on: Callable[[], Awaitable[None]],
        claims: SlotClaims,
        authorizer: Authorizer,
        threads: Executor,
        clock: Clock,
    ) -> None:
        """`fold` is that of the log as far as it was read; `read_on` reads on. `threads` go over all
        producers.
        """
        self._fold = fold
        self._read_on = read_on
        self._claims = claims
        self._authorizer = authorizer
        self._threads = threads
        self._clock = clock
        self.handlers: Handlers = {
            ApiKey.LIST_TRANSACTIONS: partial(self._answer, self._list),
            ApiKey.DESCRIBE_TRANSACTIONS: partial(self._answer, self._describe),
            ApiKey.DESCRIBE_PRODUCERS: partial(self._answer, self._producers),
        }

    async def _answer(
        self,
        answer: Callable[[Session, Any, frozenset[int]], Body],
        session: Session,
        request: KafkaRequest,
    ) -> Body:
        await self._read_on()
        # The claims belong to the loop.
        own = self._claims.own_slots()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, answer, session, request.body, own
        )

    def _may(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return self._authorizer.allows(session.principal, operation, resource, name)

    def _list(self, session: Session, body: Any, own: frozenset[int]) -> Body:
        """The transactional ids that this daemon coordinates."""
        fold = self._fold()
        ids, states = set(body.producer_id_filters), set(body.state_filters)
        longest_us = getattr(body, "duration_filter", -1) * 1000
        now_us = self._clock.now_us()
        found = []
        for producer in fold.producers:
            name = producer.transactional_id
            if not name or slot_of(name) not in own or (ids and producer.producer_id not in ids):
                continue
            transaction = fold.transactions.get(producer.producer_id)
            state = _EMPTY if transaction is None else _ONGOING
            if states and state not in states:
                continue
            if longest_us >= 0 and (transaction is None or now_us - transaction.started_us < longest_us):
                continue
            if self._may(session, "describe", Resource.TRANSACTIONAL_ID, name):
                found.append(
                    {
                        "transactional_id": name,
                        "producer_id": producer.producer_id,
                        "transaction_state": state,
                    }
                )
        return {
            "error_code": 0,
            "unknown_state_filters": sorted(states - _STATES),
            "transaction_states": found,
        }

    def _describe(self, session: Session, body: Any, own: frozenset[int]) -> Body:
        # Each id once: a small request could otherwise get a far larger answer.
        names = dict.fromkeys(body.transactional_ids)
        return {"transaction_states": [self._described(session, name, own) for name in names]}

    def _described(self, session: Session, name: str, own: frozenset[int]) -> dict[str, Any]:
        fold = self._fold()
        producer = fold.producers.named(name) if name else None
        code = ErrorCode.none
        if not self._may(session, "describe", Resource.TRANSACTIONAL_ID, name):
            code = ErrorCode.transactional_id_authorization_failed
        elif slot_of(name) not in own:
            code = ErrorCode.not_coordinator
        elif producer is None:
            code = ErrorCode.transactional_id_not_found
        if code is not ErrorCode.none or producer is None:
            # The zeros are Kafka's.
            return {
                "error_code": int(code),
                "transactional_id": name,
                "transaction_state": "",
                "transaction_timeout": 0,
                "transaction_start_time": 0,
                "producer_id": 0,
                "producer_epoch": 0,
                "topics": (),
            }
        transaction = fold.transactions.get(producer.producer_id)
        topics: dict[str, list[int]] = {}
        for topic_id, number in () if transaction is None else sorted(transaction.ranges):
            topic = fold.topics_by_id.get(topic_id)
            if topic is not None and self._may(session, "describe", Resource.TOPIC, topic.name):
                topics.setdefault(topic.name, []).append(number)
        return {
            "error_code": 0,
            "transactional_id": name,
            "transaction_state": _EMPTY if transaction is None else _ONGOING,
            "transaction_timeout": producer.transaction_timeout_us // 1000,
            "transaction_start_time": _NO_TIME if transaction is None else transaction.started_us // 1000,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }

    def _producers(self, session: Session, body: Any, own: frozenset[int]) -> Body:
        """The idempotent producers of partitions. Any daemon answers."""
        del own
        fold = self._fold()
        asked: dict[str, dict[int, ErrorCode]] = {}
        active: dict[TopicPartition, list[dict[str, Any]]] = {}
        for topic in body.topics:
            state = fold.topics_by_name.get(topic.name)
            for number in topic.partition_indexes:
                code = ErrorCode.none
                if not self._may(session, "read", Resource.TOPIC, topic.name):
                    code = ErrorCode.topic_authorization_failed
                elif state is None or not 0 <= number < state.partitions:
                    code = ErrorCode.unknown_topic_or_partition
                else:
                    active[state.topic_id, number] = []
                asked.setdefault(topic.name, {})[number] = code
        # Once over all producers: a request may name many partitions.
        for producer in fold.producers:
            for tp in [tp for tp in list(producer.batches) if tp in active]:
                active[tp].append(_active(fold, producer, tp))
        ids = {name: one.topic_id for name, one in fold.topics_by_name.items() if name in asked}
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": number,
                            "error_code": int(code),
                            "error_message": None,
                            "active_producers": active.get((ids[name], number), ()) if name in ids else (),
                        }
                        for number, code in codes.items()
                    ],
                }
                for name, codes in asked.items()
            ]
        }


def _active(fold: IntakeFold, producer: Producer, tp: TopicPartition) -> dict[str, Any]:
    batches = producer.batches.get(tp)
    # Another thread may have raised its epoch.
    newest = batches[-1] if batches else None
    transaction = fold.transactions.get(producer.producer_id)
    first = None if transaction is None else transaction.first_offset(tp)
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch if newest is None else newest.epoch,
        "last_sequence": -1
        if newest is None
        else (after(newest.sequence, newest.numbers) - 1) % SEQUENCE_COUNT,
        "last_timestamp": producer.last_used_us // 1000,
        "coordinator_epoch": 0,
        "current_txn_start_offset": _NO_OFFSET if first is None else first,
    }
