"""The lines of the Kafka client library are bounded in number and carry the time of their event.

The clients are real, and no broker is needed: no server listens at their address.
"""

from __future__ import annotations

import logging
import time

import pytest

from archiver.config.events import ControlTopicSettings
from archiver.config.kafka import KafkaSourceSettings
from archiver.control_topic.kafka_topic import KafkaTopic
from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import RetryLater
from intake.sources.kafka.client import KafkaClient
from intake.sources.kafka.client_log import KINDS_MAX, REPEAT_S, TEXT_MAX, ClientLog
from tests.support.servers.local_server import free_port

LOG = logging.getLogger("client-log-test")


@pytest.fixture
def closed() -> str:
    """The address of a port where nothing listens."""
    return f"127.0.0.1:{free_port()}"


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [
        one for one in caplog.records if "kafka client" in one.getMessage() and one.levelno >= logging.INFO
    ]


def repeated(caplog: pytest.LogCaptureFixture) -> int:
    return sum(one.levelno == logging.DEBUG for one in caplog.records)


def test_a_cluster_that_is_away_is_a_few_lines(closed: str, caplog: pytest.LogCaptureFixture) -> None:
    """The library repeats the same line dozens of times a second, for each of several connections."""
    caplog.set_level(logging.DEBUG, "intake.sources.kafka.client_log")
    settings = KafkaSourceSettings.model_validate({"brokers": closed, "topics": "t", "request_timeout": 1})
    log = ClientLog("source s", SystemClock())
    for _ in range(2):
        client = KafkaClient(settings, SystemClock(), log)
        with pytest.raises(RetryLater, match="does not list its topics"):
            client.topics()
        client.poll(1, 0.1)
        client.close()
    assert 1 <= len(lines(caplog)) <= 4, [one.getMessage() for one in lines(caplog)]
    assert repeated(caplog) > 10, "the library did repeat itself"
    assert closed in lines(caplog)[0].getMessage()


def test_a_line_carries_the_time_at_which_it_happened(closed: str, caplog: pytest.LogCaptureFixture) -> None:
    """A request waits for more than two seconds, while the connection is refused at once. The line must not
    wait as long."""
    settings = KafkaSourceSettings.model_validate({"brokers": closed, "topics": "t", "request_timeout": 3})
    client = KafkaClient(settings, SystemClock())
    began_s = time.time()
    with pytest.raises(RetryLater):
        client.topics()
    ended_s = time.time()
    client.close()
    assert ended_s - began_s > 2.5, "the question has waited"
    assert lines(caplog)[0].created - began_s < 2.0, "and the line was there before its end"


def test_an_idle_publisher_reports_a_broker_that_is_away_once(
    closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "intake.sources.kafka.client_log")
    topic = KafkaTopic(ControlTopicSettings(brokers=closed, topic="events"), SystemClock())
    deadline = time.monotonic() + 120
    while repeated(caplog) < 3:
        assert time.monotonic() < deadline, "nothing polls it"
        time.sleep(0.05)  # no request is sent: the lines come by themselves
    topic.close()
    assert 1 <= len(lines(caplog)) <= 3, [one.getMessage() for one in lines(caplog)]
    assert all("control topic events" in one.getMessage() for one in lines(caplog))


def test_the_same_kind_of_line_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = ClientLog("source s", clock, LOG)
    for number in range(100):
        log.callbacks().log(
            logging.ERROR,
            "FAIL [a#producer-%d] [thrd:b:1/2]: b:1/2: refused (after %dms in state CONNECT)",
            number,
            number,
        )
        log.say(logging.WARNING, f"b:1/2: refused (after {number + 7}ms in state CONNECT)")
    assert [one.getMessage() for one in lines(caplog)] == [
        "source s: kafka client: b:1/2: refused (after 0ms in state CONNECT)"
    ]
    assert lines(caplog)[0].levelno == logging.WARNING, "a broker that is away is no error of this process"
    clock.sleep(REPEAT_S)
    log.say(logging.WARNING, "b:1/2: refused (after 3ms in state CONNECT)")
    assert "199 more like it" in lines(caplog)[-1].getMessage()


def test_after_an_answer_the_next_outage_is_news(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = ClientLog("source s", clock, LOG)
    log.say(logging.WARNING, "refused")
    log.answered()
    log.say(logging.WARNING, "refused")
    assert len(lines(caplog)) == 1, "moments later it is still the same"
    clock.sleep(REPEAT_S / 5)
    log.answered()
    log.say(logging.WARNING, "refused")
    assert len(lines(caplog)) == 2


def test_no_text_of_a_broker_fills_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("source s", ManualClock(), LOG)
    for number in range(10 * KINDS_MAX):
        log.say(logging.WARNING, f"kind {number:c} " + "x" * 10_000 if number > 32 else f"{number}")
    assert len(lines(caplog)) <= KINDS_MAX + 1
    assert all(len(one.getMessage()) < TEXT_MAX + 100 for one in lines(caplog))


def test_a_line_that_waited_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    ear = ClientLog("source s", clock, LOG).callbacks()
    clock.sleep(30)
    ear.log(logging.ERROR, "FAIL [a#consumer-1] refused")
    assert lines(caplog)[0].getMessage() == "source s: kafka client: refused (within the last 30 s)"
