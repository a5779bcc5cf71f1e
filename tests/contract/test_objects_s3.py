"""Properties of the store on S3 beyond the Protocol: correct outcomes when responses are lost, late or
refused, in bounded retries.

A real server stands behind a proxy that loses, refuses and counts requests. Nothing is mocked.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from archiver.objects.location import StorePlace
from archiver.objects.paths import cluster_key
from archiver.objects.s3.store import S3ObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, Halt, KeyExists, NotFound, OutcomeUnknown, RetryLater
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import SECRET_ACCESS_KEY, S3Server
from tests.support.objects.s3_store import new_store, options, place
from tests.support.servers.http_faults import Fault, Operation, Play

CLUSTER = "c" * 32
THREE_PARTS = os.urandom(1024) * 11 * 1024


@pytest.fixture
def store(server: S3Server, faults: S3Faults) -> S3ObjectStore:
    return new_store(server, endpoint=faults.uri)


def alongside(store: S3ObjectStore, server: S3Server, **changed: object) -> S3ObjectStore:
    """The same objects without the proxy, as another process sees them."""
    return S3ObjectStore(StorePlace(store.place.uri, options(server.uri, **changed)))


def identity(cluster_id: str) -> bytes:
    return json.dumps(
        {"format": 1, "cluster_id": cluster_id, "name": "test", "created": "2026-01-02T03:04:05.678901Z"}
    ).encode()


# one key, one winner


def test_sixteen_who_create_one_key_have_one_winner(server: S3Server) -> None:
    stores = [new_store(server)]
    stores += [S3ObjectStore(StorePlace(stores[0].place.uri, options(server.uri))) for _ in range(15)]
    begin = threading.Barrier(len(stores))

    def create(worker: int, key: str) -> bool:
        begin.wait()
        try:
            stores[worker].create(key, bytes([worker]) * 50_000)
        except KeyExists:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(6):
            key = f"races/{number}"
            won = list(pool.map(create, range(len(stores)), [key] * len(stores)))
            assert won.count(True) == 1
            assert stores[0].read(key) == bytes([won.index(True)]) * 50_000


# outcomes of a create in one request


@pytest.mark.parametrize(
    "play", [Fault(Play.RESET_AFTER), Fault(Play.ANSWER_AFTER, 500), Fault(Play.ANSWER_AFTER, 504)]
)
def test_taken_after_a_lost_answer_is_ours(store: S3ObjectStore, faults: S3Faults, play: Fault) -> None:
    faults.arm(play, "put")
    store.create("k", b"ours")
    assert faults.counts() == {"put": 2, "head": 1}
    assert store.read("k") == b"ours"


def test_a_server_that_is_silent_is_given_up_and_looked_at(server: S3Server, faults: S3Faults) -> None:
    store = new_store(server, endpoint=faults.uri, request_timeout_s=0.5)
    faults.arm(Fault(Play.SILENT_AFTER), "put")
    store.create("k", b"ours")
    assert store.read("k") == b"ours"


def test_taken_after_a_lost_answer_is_another_writers_with_the_same_bytes(
    store: S3ObjectStore,
    faults: S3Faults,
    server: S3Server,
) -> None:
    """Of two stores that create the same bytes one wins, also with a lost response."""
    alongside(store, server).create("k", b"same")
    faults.arm(Fault(Play.RESET_BEFORE), "put")
    with pytest.raises(KeyExists):
        store.create("k", b"same")
    assert faults.counts() == {"put": 2, "head": 1}


@pytest.mark.parametrize(("theirs", "taken"), [(b"ours", False), (b"them", True), (b"longer", True)])
def test_without_metadata_the_bytes_decide(
    store: S3ObjectStore,
    faults: S3Faults,
    server: S3Server,
    theirs: bytes,
    taken: bool,
) -> None:
    faults.without = ("x-amz-meta-archiver-create",)
    server.client().put_object(Bucket=bucket(store), Key="pre/fix/k", Body=theirs)
    faults.arm(Fault(Play.RESET_BEFORE), "put")
    if taken:
        with pytest.raises(KeyExists):
            store.create("k", b"ours")
    else:
        store.create("k", b"ours")


def test_taken_without_doubt_costs_one_request(store: S3ObjectStore, faults: S3Faults) -> None:
    store.create("k", b"first")
    faults.counts()
    with pytest.raises(KeyExists):
        store.create("k", b"second")
    assert faults.counts() == {"put": 1}


def test_lost_without_an_answer_is_unknown(store: S3ObjectStore, faults: S3Faults) -> None:
    arm(faults, Fault(Play.RESET_BEFORE), "put", 3)
    with pytest.raises(OutcomeUnknown, match=r"may or may not be stored: .*3 tries"):
        store.create("k", b"lost")
    assert faults.counts() == {"put": 3, "head": 1}
    assert store.info("k") is None


def test_a_late_request_is_why_nothing_there_proves_nothing(
    store: S3ObjectStore, faults: S3Faults, server: S3Server
) -> None:
    slow = S3ObjectStore(
        StorePlace(store.place.uri, options(faults.uri, request_timeout_s=0.3, attempts_max=1))
    )
    faults.arm(Fault(Play.LATE), "put")
    with pytest.raises(OutcomeUnknown):
        slow.create("k", b"late")
    assert store.info("k") is None
    assert [status for _, status in faults.deliver()] == [200]
    assert store.read("k") == b"late"


def test_what_was_stored_at_a_try_without_an_answer_is_found_at_the_end(
    store: S3ObjectStore, faults: S3Faults
) -> None:
    faults.arm(Fault(Play.RESET_AFTER), "put")
    arm(faults, Fault(Play.RESET_BEFORE), "put", 2)
    store.create("k", b"ours")
    assert faults.counts() == {"put": 3, "head": 1}


def test_an_unknown_outcome_stays_unknown_if_the_server_then_refuses(
    store: S3ObjectStore, faults: S3Faults
) -> None:
    faults.arm(Fault(Play.RESET_AFTER), "put")
    faults.arm(Fault(Play.ANSWER_BEFORE, 403), "put")
    arm(faults, Fault(Play.ANSWER_BEFORE, 403), "head", 1)
    with pytest.raises(OutcomeUnknown, match="and it cannot be read"):
        store.create("k", b"stored")
    assert store.read("k") == b"stored"


@pytest.mark.parametrize("status", [409, 503])
def test_a_conflict_or_too_many_requests_is_tried_again(
    store: S3ObjectStore, faults: S3Faults, status: int
) -> None:
    arm(faults, Fault(Play.ANSWER_BEFORE, status), "put", 2)
    store.create("k", b"ours")
    assert faults.counts() == {"put": 3}


@pytest.mark.parametrize("status", [409, 503])
def test_refused_at_every_try_nothing_was_stored(store: S3ObjectStore, faults: S3Faults, status: int) -> None:
    arm(faults, Fault(Play.ANSWER_BEFORE, status), "put", 3)
    with pytest.raises(RetryLater, match="was not stored"):
        store.create("k", b"ours")
    assert faults.counts() == {"put": 3}


def test_a_503_that_is_no_throttling_may_have_been_carried_out(
    store: S3ObjectStore, faults: S3Faults
) -> None:
    faults.codes[503] = "ServiceUnavailable"
    arm(faults, Fault(Play.ANSWER_BEFORE, 503), "put", 3)
    with pytest.raises(OutcomeUnknown):
        store.create("k", b"ours")


def test_a_server_that_is_away_has_stored_nothing(store: S3ObjectStore, faults: S3Faults) -> None:
    faults.refuse()
    for call in (
        lambda: store.create("k", b"x"),
        lambda: store.read("k"),
        lambda: store.delete("k"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(RetryLater):
            call()
    faults.recover()
    store.create("k", b"x")
    nameless = S3ObjectStore(
        StorePlace("s3://bucket", options("http://no-such-host.invalid:1", attempts_max=1))
    )
    with pytest.raises(RetryLater):
        nameless.create("k", b"x")


# without the right to write


def test_a_refusal_says_what_to_do_and_is_not_repeated(store: S3ObjectStore, faults: S3Faults) -> None:
    calls: dict[Operation, Any] = {
        "put": lambda: store.create("k", b"x"),
        "get": lambda: store.read("k"),
        "head": lambda: store.info("k"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete("k"),
    }
    for operation, call in calls.items():
        faults.arm(Fault(Play.ANSWER_BEFORE, 403), operation)
        with pytest.raises(Halt, match=r"docs/operations/s3\.md"):
            call()
        assert faults.counts() == {operation: 1}


def test_a_bucket_that_is_not_there_is_a_wrong_configuration(server: S3Server) -> None:
    store = S3ObjectStore(StorePlace("s3://no-such-bucket/x", options(server.uri)), CLUSTER)
    plain = S3ObjectStore(StorePlace("s3://no-such-bucket/x", options(server.uri)))
    calls = (
        lambda: store.create("k", b""),
        lambda: plain.create("k", b""),
        lambda: plain.read("k"),
        lambda: list(plain.list("")),
    )
    for call in calls:
        with pytest.raises(ConfigInvalid, match="no such bucket; create it, or correct"):
            call()


@pytest.mark.parametrize("changed", [{"secret_access_key": "wrong"}, {"access_key_id": "nobody"}])
def test_wrong_keys_are_a_wrong_configuration(server: S3Server, changed: dict[str, str]) -> None:
    with pytest.raises((ConfigInvalid, Halt), match="credentials") as caught:
        new_store(server, **changed).create("k", b"")
    assert SECRET_ACCESS_KEY not in str(caught.value)


# outcomes of a create in parts


def test_a_large_object_goes_in_parts_and_is_whole(
    store: S3ObjectStore, faults: S3Faults, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    file.write_bytes(THREE_PARTS)
    store.create_from_file("k", file)
    assert faults.counts() == {"begin": 1, "part": 3, "complete": 1}
    assert hashlib.sha256(store.read("k")).digest() == hashlib.sha256(THREE_PARTS).digest()
    with pytest.raises(KeyExists):
        store.create("k", THREE_PARTS[1:])
    assert faults.counts() == {"get": 1, "begin": 1, "part": 3, "complete": 1, "abort": 1}
    assert list(store.open_uploads()) == []
    assert store.read("k") == THREE_PARTS


def test_a_conflict_at_the_end_starts_over(store: S3ObjectStore, faults: S3Faults) -> None:
    faults.arm(Fault(Play.ANSWER_BEFORE, 409), "complete")
    store.create("k", THREE_PARTS)
    assert faults.counts() == {"begin": 2, "part": 6, "complete": 2, "abort": 1}
    assert store.read("k") == THREE_PARTS
    assert list(store.open_uploads()) == []


@pytest.mark.parametrize("play", [Fault(Play.RESET_AFTER), Fault(Play.ANSWER_AFTER, 500)])
def test_a_completion_whose_answer_was_lost_is_found(
    store: S3ObjectStore, faults: S3Faults, play: Fault
) -> None:
    faults.arm(play, "complete")
    store.create("k", THREE_PARTS)
    assert store.read("k") == THREE_PARTS
    assert list(store.open_uploads()) == []


def test_a_completion_in_doubt_is_not_aborted_and_the_vacuum_can(
    store: S3ObjectStore, faults: S3Faults
) -> None:
    arm(faults, Fault(Play.RESET_BEFORE), "complete", 3)
    with pytest.raises(OutcomeUnknown):
        store.create("k", THREE_PARTS)
    assert faults.counts() == {"begin": 1, "part": 3, "complete": 3, "head": 1}
    ((key, upload),) = store.open_uploads()
    assert key == "k"
    assert abs(upload.begun_us - SystemClock().now_us()) < 60_000_000
    store.abort_upload(upload)
    store.abort_upload(upload)
    assert list(store.open_uploads()) == []


def test_parts_that_do_not_arrive_leave_nothing(store: S3ObjectStore, faults: S3Faults) -> None:
    arm(faults, Fault(Play.RESET_BEFORE), "part", 3)
    with pytest.raises(RetryLater, match="was not stored"):
        store.create("k", THREE_PARTS)
    assert faults.counts() == {"begin": 1, "part": 3, "abort": 1}
    assert list(store.open_uploads()) == []
    faults.arm(Fault(Play.RESET_AFTER), "part")
    store.create("k", THREE_PARTS)
    assert store.read("k") == THREE_PARTS


def test_an_upload_that_another_writer_aborted_starts_over(
    store: S3ObjectStore, faults: S3Faults, server: S3Server
) -> None:
    faults.codes[404] = "NoSuchUpload"
    faults.arm(Fault(Play.ANSWER_BEFORE, 404), "complete")
    store.create("k", THREE_PARTS)
    assert faults.counts() == {"begin": 2, "part": 6, "complete": 2, "abort": 1}


# reading


def test_trouble_while_reading_is_repeated_and_then_reported_as_trouble(
    store: S3ObjectStore, faults: S3Faults
) -> None:
    store.create("k", b"0123456789" * 100_000)
    for play in (Fault(Play.RESET_AFTER), Fault(Play.ANSWER_BEFORE, 500), Fault(Play.ANSWER_BEFORE, 503)):
        faults.arm(play, "get")
        assert len(store.read("k")) == 1_000_000
    with store.open_input("k") as source:
        arm(faults, Fault(Play.RESET_BEFORE), "get", 3)
        with pytest.raises(RetryLater):  # through pyarrow, and not as damage
            source.read(10)
        source.seek(5)
        assert source.read(10) == b"5678901234"


def test_reading_ahead_takes_few_requests(store: S3ObjectStore, faults: S3Faults) -> None:
    data = os.urandom(1000) * 10_000
    store.create_from_file("k", spooled(store, data))
    faults.counts()
    with store.open_input("k") as source:
        assert source.size() == len(data)
        for start in range(0, len(data), 10_000):
            source.seek(start)
            assert source.read(10_000) == data[start : start + 10_000]
    assert faults.counts() == {"get": 7}


def test_an_object_that_is_deleted_while_it_is_read_is_not_found(store: S3ObjectStore) -> None:
    store.create("k", b"x" * 1_000_000)
    with store.open_input("k") as source:
        store.delete("k")
        with pytest.raises(NotFound):
            source.read(10)


def test_a_listing_goes_through_its_pages(store: S3ObjectStore, faults: S3Faults, server: S3Server) -> None:
    folder = server.folder_of(bucket(store)) / "pre" / "fix" / "many"
    folder.mkdir(parents=True)
    for number in range(1_100):
        (folder / f"{number:04}").touch()  # a put for each would take a minute
    assert [info.key for info in store.list("many/")] == [f"many/{number:04}" for number in range(1_100)]
    assert faults.counts() == {"list": 2}


# whose bucket


def test_the_bucket_of_another_cluster_is_not_touched(
    server: S3Server, faults: S3Faults, tmp_path: Path
) -> None:
    where = place(server, endpoint=faults.uri)
    theirs = S3ObjectStore(where)
    theirs.create(cluster_key(), identity("d" * 32))
    theirs.create("k", b"theirs")
    faults.counts()
    ours = S3ObjectStore(where, CLUSTER)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    calls = (
        lambda: ours.create("new", b"x"),
        lambda: ours.create_from_file("new", file),
        lambda: ours.delete("k"),
        lambda: ours.list(""),
        lambda: ours.read("missing"),
        lambda: ours.info("missing"),
    )
    for call in calls:
        with pytest.raises(RetryLater, match="another cluster"):
            call()
    assert set(faults.counts()) == {"identity", "get", "head"}
    assert {info.key for info in theirs.list("")} == {cluster_key(), "k"}


def test_whose_bucket_it_is_is_asked_once_and_again_after_trouble(server: S3Server, faults: S3Faults) -> None:
    where = place(server, endpoint=faults.uri)
    plain = S3ObjectStore(where)
    plain.create(cluster_key(), identity(CLUSTER))
    faults.counts()
    store = S3ObjectStore(where, CLUSTER)
    for number in range(20):
        store.create(f"k/{number}", b"x")
    assert faults.counts() == {"identity": 1, "put": 20}
    faults.arm(Fault(Play.RESET_BEFORE), "put")
    store.create("after", b"x")
    faults.counts()
    store.create("later", b"x")
    assert faults.counts() == {"identity": 1, "put": 1}
    store.create("still later", b"x")
    assert faults.counts() == {"put": 1}
    plain.delete(cluster_key())
    faults.arm(Fault(Play.RESET_BEFORE), "get")
    store.read("later")
    with pytest.raises(RetryLater, match=r"lost its cluster\.json"):
        store.create("never", b"x")
    assert plain.info("never") is None


def arm(faults: S3Faults, fault: Fault, operation: Operation, times: int) -> None:
    for _ in range(times):
        faults.arm(fault, operation)


def bucket(store: S3ObjectStore) -> str:
    return store.place.uri.removeprefix("s3://").partition("/")[0]


def spooled(store: S3ObjectStore, data: bytes) -> Path:
    file = store.spool_dir() / "file"
    file.write_bytes(data)
    return file


def test_the_server_states_its_time(store: S3ObjectStore) -> None:
    """From the `Date` of a response, cut to the second."""
    before_us = time.time_ns() // 1000
    stated_us = store.time_us()
    assert stated_us is not None
    assert before_us - 2_000_000 <= stated_us <= time.time_ns() // 1000 + 1_000_000
