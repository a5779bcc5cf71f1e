"""What the Kafka listener shows of itself: metrics, status document, and the access log."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any, get_args

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from archiver.config.daemon import MetricsSettings
from archiver.kafka.fetch import Source
from archiver.kafka.protocol import ApiKey
from archiver.runtime.clock import SystemClock
from archiver.runtime.logging import JsonLines
from archiver.runtime.metric_names import KAFKA_APIS, KAFKA_ERRORS, KAFKA_ORIGINS, METRICS
from archiver.status.journal import Journal
from archiver.status.kafka_port import api_name, kafka_document
from archiver.status.metric_registry import Numbers
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until
from tests.support.process.scrapes import series, shown, table_names

pytestmark = pytest.mark.timeout(60)

TOPICS = [{"name": "orders", "partitions": 2}]


def _batch(values: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10**6)
    for offset in range(values):
        assert builder.append(offset, 1_700_000_000_000, None, b"value", []) is not None
    return bytes(builder.build())


def _produce(client: WireClient, records: bytes, partitions: tuple[int, ...], acks: int = -1) -> int:
    body = {
        "acks": acks,
        "timeout": 20_000,
        "topic_data": [
            {
                "name": "orders",
                "partition_data": [{"index": number, "records": records} for number in partitions],
            }
        ],
    }
    return client.send(ApiKey.PRODUCE, 9, body)


def _fetch(client: WireClient) -> None:
    one = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": 10**6,
    }
    body = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 10**6,
        "isolation_level": 0,
        "session_id": 0,
        "topics": [{"topic": "orders", "partitions": [one]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    client.ask(ApiKey.FETCH, 12, body)


def _scrape(found: Listening) -> dict[Any, float]:
    numbers = Numbers(Journal(10), SystemClock(), MetricsSettings(), "0")
    return shown(numbers.families(None, None, found.service.state))


def _access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [json.loads(JsonLines().format(one)) for one in caplog.records]
    return [line for line in lines if line["message"] == "Kafka request"]


def test_closed_sets_are_those_of_the_listener() -> None:
    assert {api_name(one.name) for one in ApiKey} <= set(KAFKA_APIS) - {"other"}
    assert set(KAFKA_ERRORS) - {"other"} <= {one.name.upper() for one in ErrorCode}
    assert set(KAFKA_ORIGINS) == {*get_args(Source), "cache"}


def test_requests_errors_and_records_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = configured(tmp_path / "d", TOPICS, kafka={"access_log": True})
    with listening(path) as found, WireClient(found.address) as client:
        until("it is registered", lambda: found.service.state.registered)
        zero = _scrape(found)
        assert table_names(zero) >= {name for name in METRICS if name.startswith("archiver_kafka_")}
        assert zero[series("archiver_kafka_requests_total", api="Produce")] == 0
        _produce(client, _batch(5), (0, 7))
        client.receive()
        # Its error has no answer.
        _produce(client, _batch(1)[:-1] + b"\xff", (1,), acks=0)
        _fetch(client)
        _fetch(client)
        scraped = _scrape(found)
        document = kafka_document(found.service.state)
        lines = _access_lines(caplog)
    expected = {
        series("archiver_kafka_up"): 1,
        series("archiver_kafka_registered"): 1,
        series("archiver_kafka_live_daemons"): 1,
        series("archiver_kafka_connections"): 1,
        series("archiver_kafka_requests_total", api="Produce"): 2,
        series("archiver_kafka_requests_total", api="Fetch"): 2,
        series("archiver_kafka_errors_total", api="Produce", code="UNKNOWN_TOPIC_OR_PARTITION"): 1,
        series("archiver_kafka_errors_total", api="Produce", code="CORRUPT_MESSAGE"): 1,
        series("archiver_kafka_errors_total", api="Produce", code="UNKNOWN_SERVER_ERROR"): 0,
        series("archiver_kafka_produced_batches_total"): 1,
        series("archiver_kafka_produced_records_total"): 5,
        series("archiver_kafka_fetched_partitions_total", origin="intake"): 1,
        series("archiver_kafka_fetched_partitions_total", origin="cache"): 1,
        series("archiver_kafka_throttled_total"): 0,
    }
    assert {name: scraped[name] for name in expected} == expected
    assert scraped[series("archiver_kafka_received_bytes_total")] > 200
    assert scraped[series("archiver_kafka_sent_bytes_total")] > 200
    assert scraped[series("archiver_kafka_request_seconds_total", api="Produce")] > 0
    assert (document["address"], document["closed_because"]) == (f"127.0.0.1:{found_port(document)}", None)
    assert document["requests"] == {"Fetch": 2, "Produce": 2}
    assert [one["host"] for one in document["live"]] == ["127.0.0.1"]
    assert [(line["api"], line["entries"], line["errors"]) for line in lines] == [
        ("Produce", 2, {"UNKNOWN_TOPIC_OR_PARTITION": 1}),
        ("Produce", 1, {}),
        ("Fetch", 1, {}),
        ("Fetch", 1, {}),
    ]
    assert {line["principal"] for line in lines} == {"User:ANONYMOUS"}
    assert lines[2]["bytes_out"] > 0 and lines[1]["bytes_out"] == 0


def found_port(document: dict[str, Any]) -> int:
    port: int = document["live"][0]["port"]
    return port


def test_without_the_setting_no_request_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with listening(configured(tmp_path / "d", TOPICS)) as found, WireClient(found.address) as client:
        _fetch(client)
        assert found.service.state.counts.requests == {"Fetch": 1}
    assert _access_lines(caplog) == []


def test_a_closed_port_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        with listening(configured(tmp_path / "d", TOPICS, kafka={"listen": address})) as found:
            state = found.service.state
            scraped = _scrape(found)
    assert (state.address, state.registered) == (None, False)
    assert state.closed_because is not None and "kafka.listen" in state.closed_because
    assert scraped[series("archiver_kafka_up")] == scraped[series("archiver_kafka_registered")] == 0
