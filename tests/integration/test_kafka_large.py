"""Requests and answers with many elements leave the listener's loop to other connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka import consume, listener, metadata
from archiver.kafka.large import ELEMENTS_IN_LOOP, elements_of
from archiver.kafka.protocol import ApiKey
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient

pytestmark = pytest.mark.timeout(120)

MANY = ELEMENTS_IN_LOOP + 1
TOPICS = [{"name": "wide", "partitions": MANY}, {"name": "orders", "partitions": 1}]
PARTITIONS = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1} for number in range(MANY)]
FETCH: Mapping[str, Any] = {
    "max_wait": 0,
    "min_bytes": 1,
    "max_bytes": 1,
    "isolation_level": 0,
    "topics": [{"topic": "wide", "partitions": PARTITIONS}],
}
NAMES: Mapping[str, Any] = {"topics": [{"name": f"unknown{number}"} for number in range(MANY)]}
WIDE: Mapping[str, Any] = {"topics": [{"name": "wide"}]}
ALL: Mapping[str, Any] = {"topics": None}
PLACES = [
    (listener, "read_request", ApiKey.FETCH, FETCH),
    (listener, "_written", ApiKey.FETCH, FETCH),
    (consume.ConsumeHandler, "_parts", ApiKey.FETCH, FETCH),
    (consume.ConsumeHandler, "_beyond_end", ApiKey.FETCH, FETCH),
    (consume.ConsumeHandler, "_enough", ApiKey.FETCH, FETCH),
    (consume, "_fetched", ApiKey.FETCH, FETCH),
    (listener, "read_request", ApiKey.METADATA, NAMES),
    (listener, "_written", ApiKey.METADATA, WIDE),
    (metadata.MetadataHandler, "_missing", ApiKey.METADATA, NAMES),
    (metadata.MetadataHandler, "_described", ApiKey.METADATA, NAMES),
    (metadata.MetadataHandler, "_described", ApiKey.METADATA, WIDE),
    (metadata.MetadataHandler, "_described", ApiKey.METADATA, ALL),
]


@pytest.fixture(scope="module")
def open_listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS)) as found:
        yield found


@pytest.mark.parametrize(("owner", "name", "api", "body"), PLACES)
def test_others_are_answered_during_the_work_for_many_elements(
    open_listener: Listening,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    api: ApiKey,
    body: Mapping[str, Any],
) -> None:
    loop = open_listener.service.server.loop
    assert loop is not None

    async def thread() -> int:
        return threading.get_ident()

    loop_thread = asyncio.run_coroutine_threadsafe(thread(), loop).result(30)
    at_work, go_on = threading.Event(), threading.Event()
    work = getattr(owner, name)

    def held(*arguments: Any, **named: Any) -> Any:
        found = work(*arguments, **named)
        # In the loop it would hold all connections.
        if threading.get_ident() != loop_thread:
            at_work.set()
            assert go_on.wait(60)
        return found

    monkeypatch.setattr(owner, name, held)
    with WireClient(open_listener.address) as large, WireClient(open_listener.address) as other:
        sent = large.send(api, 4, body)
        assert at_work.wait(30), "the loop did it"
        try:
            assert other.ask(ApiKey.API_VERSIONS, 0, {}).error_code is ErrorCode.none
        finally:
            go_on.set()
        assert int.from_bytes(large.receive()[:4], "big") == sent


def test_elements_of_an_answer_are_counted_up_to_the_limit() -> None:
    partitions = [{"error_code": 0, "replicas": [1, 2]} for _ in range(3)]
    topics = [{"name": "a", "partitions": partitions}, {"name": "b", "partitions": []}]
    assert elements_of({"error_code": 0, "topics": topics, "one": {"names": ("a", "b")}}) == 2 + 3 + 6 + 2
    assert elements_of({"error_code": 0}) == 0
    assert elements_of({"topics": [{"partitions": [{}] * 1500}] * 1500}) == 3000
