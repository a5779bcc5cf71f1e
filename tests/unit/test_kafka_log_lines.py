"""Requests that fail take few lines of the log, however often clients ask; the lines that are left out are counted."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka import topic_configs
from archiver.kafka.acl import Authorizer
from archiver.kafka.authentication import Authenticator
from archiver.kafka.consume import ConsumeHandler
from archiver.kafka.listener import KafkaServer, Session
from archiver.kafka.produce import BatchQueue, ProducerIds, _Job
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.topic_configs import Refused, code_of
from archiver.kafka.transactions import TransactionRequests
from archiver.runtime.clock import Clock, ManualClock
from archiver.runtime.errors import ConfigInvalid, Halt, RetryLater
from archiver.runtime.ids import SeededIds
from archiver.runtime.logging import LIMIT_S, LINES_MAX, LogLimit
from archiver.status.kafka_port import ListenerCounts
from intake.log.client_transactions import ClientTransactions
from tests.support.kafka.wire import WireClient
from tests.support.log.faulty_log import AppendFault
from tests.unit.test_kafka_coordinator import Ground, played

ASKED = 3 * LINES_MAX
LOGGER = logging.getLogger("archiver.kafka.test")


def test_a_limit_counts_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(LOGGER)
    for number in range(ASKED):
        limit.log(5.0, logging.WARNING, "line %d", number)
    assert caplog.messages == [f"line {number}" for number in range(LINES_MAX)]
    limit.log(5.0 + LIMIT_S, logging.ERROR, "line %d", ASKED, exc_info=ValueError("why"))
    last = caplog.records[-1]
    assert last.getMessage() == f"line {ASKED} (lines like this that were left out: {ASKED - LINES_MAX})"
    assert last.levelno == logging.ERROR
    assert last.exc_info is not None
    caplog.clear()
    limit.log(5.0 + LIMIT_S, logging.WARNING, "none is left out now")
    assert caplog.messages == ["none is left out now"]


@pytest.mark.parametrize("error", [RetryLater("the store is away"), ValueError("a defect")])
def test_reads_that_fail_take_few_lines(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        clock = ManualClock()
        handler = _consume_handler(clock)
        for _ in range(ASKED):
            assert handler._failure(Session("peer"), "read", error) is ErrorCode.kafka_storage_error
        assert len(caplog.messages) == LINES_MAX
        clock.advance(LIMIT_S)
        handler._failure(Session("peer"), "read", error)
        assert caplog.messages[-1].endswith(f"left out: {ASKED - LINES_MAX})")

    asyncio.run(play())


def _consume_handler(clock: Clock) -> ConsumeHandler:
    nothing: Any = None
    with ThreadPoolExecutor(1) as threads:
        return ConsumeHandler(
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            threads,
            threads,
            clock,
            nothing,
            bytes_max=1,
            wait_max_s=1,
            counts=ListenerCounts(),
        )


def test_batches_that_fail_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    queue = BatchQueue(2**20, ManualClock(), 0.0)
    nothing: Any = None
    try:
        for _ in range(LINES_MAX):
            assert queue._not_queued(ValueError("a defect")).code is ErrorCode.unknown_server_error
            done = threading.Event()
            batches: Any = [SimpleNamespace(pending=None, answer=None)]
            queue.put(_Job(nothing, batches, 1, done.set))
            assert done.wait(30)
            assert batches[0].answer.code is ErrorCode.unknown_server_error
    finally:
        queue.close()
    assert len(caplog.messages) == LINES_MAX


def test_transactions_that_wait_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    @played
    async def play(ground: Ground) -> None:
        one = ground.daemon()
        nothing: Any = None
        with ThreadPoolExecutor(1) as threads:
            requests = TransactionRequests(one.groups, nothing, nothing, nothing, nothing, threads, 60.0)
            ground.log.script(*[AppendFault.REFUSED] * 1000)
            for _ in range(ASKED):
                with pytest.raises(Refused):
                    await requests._run(lambda: one.sequencer.open_producer("t", 1))
        assert len(caplog.messages) == LINES_MAX
        ground.log.heal()

    play()


def test_producers_that_are_opened_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    @played
    async def play(ground: Ground) -> None:
        one = ground.daemon()
        nothing: Any = None
        requests = TransactionRequests(
            one.groups,
            ClientTransactions(one.sequencer, ground.clock),
            lambda: one.sequencer.fold,
            nothing,
            Authorizer((), authenticates=False),
            ground.threads,
            60.0,
        )
        body = SimpleNamespace(transactional_id="t", transaction_timeout=1000)
        request = KafkaRequest(ApiKey.INIT_PRODUCER_ID, 1, 1, "", body)
        for _ in range(ASKED):
            assert (await requests._open(Session("peer"), request))["error_code"] == 0

    with caplog.at_level(logging.INFO, "archiver.kafka.transactions"):
        play()
    assert sum("has producer" in one for one in caplog.messages) == LINES_MAX


def test_producer_ids_that_cannot_be_assigned_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    @played
    async def play(ground: Ground) -> None:
        one = ground.daemon()
        ids = ProducerIds(ground.threads, ground.clock, 60.0)
        ground.log.script(*[AppendFault.REFUSED] * 1000)
        writer: Any = SimpleNamespace(sequencer=one.sequencer)
        for _ in range(ASKED):
            answer = await ids(Session("peer"), writer, allowed=True)
            assert answer["error_code"] == ErrorCode.coordinator_load_in_progress
        assert len(caplog.messages) == LINES_MAX
        ground.log.heal()

    play()


def test_clients_that_cannot_be_authenticated_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    def users() -> Any:
        raise ConfigInvalid("the users file cannot be read")

    async def play() -> None:
        with ThreadPoolExecutor(1) as threads:
            authenticator = Authenticator(("PLAIN",), users, threads, SeededIds(1))
            request = KafkaRequest(ApiKey.SASL_HANDSHAKE, 1, 1, "", SimpleNamespace(mechanism="PLAIN"))
            for _ in range(ASKED):
                session = Session("peer", authenticated=False)
                answer = await authenticator.handshake(session, request)
                assert answer["error_code"] == ErrorCode.illegal_sasl_state
                assert session.closing == "the users cannot be read"

    asyncio.run(play())
    assert len(caplog.messages) == LINES_MAX


def test_defects_take_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(session: Session, request: KafkaRequest) -> Any:
        raise ValueError("a defect")

    settings = KafkaListenerSettings.model_validate({"listen": "127.0.0.1:0"})
    server = KafkaServer(answer, settings, 1.0, 100, 60.0)
    server.start()
    try:
        assert server.address is not None
        for _ in range(ASKED):
            with WireClient(server.address) as client:
                client.send(ApiKey.LIST_GROUPS, 0, {})
                assert client.closed()
    finally:
        server.stop(5)
    assert sum("its connection is closed" in one for one in caplog.messages) == LINES_MAX


def test_topic_requests_that_fail_take_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_configs, "_FAILURES_LIMIT", LogLimit(LOGGER))
    for _ in range(ASKED):
        assert code_of(Halt("the catalog is away")) is ErrorCode.unknown_server_error
    assert len(caplog.messages) == LINES_MAX
