"""Properties of the log in etcd beyond the Protocol, because it lives in servers that other people run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from archiver.log.etcd import log_store as module
from archiver.log.etcd.cluster import PROOF_S, NoSpace
from archiver.log.etcd.keys import Keys
from archiver.log.etcd.log_store import EtcdLog, EtcdLogStore
from archiver.log.store import Appended, Entry
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Corrupted, Halt, InvalidInput, OutcomeUnknown, RetryLater, Trimmed
from tests.support.log.etcd_part import CONTROL, required, restoring
from tests.support.log.etcd_server import Etcd
from tests.support.log.etcd_stores import ENTRY_BYTES_MAX, etcd_store
from tests.support.process.processes import until

KEYS = Keys("/archiver")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "server") as server:
        yield server


@pytest.fixture
def store(etcd: Etcd, tmp_path: Path) -> Iterator[EtcdLogStore]:
    made = etcd_store([etcd.address], tmp_path)
    yield made
    made.close()


@pytest.fixture
def log(store: EtcdLogStore) -> EtcdLog:
    return store.log("intake")


def fill(log: EtcdLog, count: int, size: int = 0) -> list[bytes]:
    entries = [f"entry {number}".encode().ljust(size) for number in range(count)]
    for index, data in enumerate(entries):
        assert log.append(index, data) is Appended.OK
    return entries


def answers(log: EtcdLog) -> bool:
    """Whether a member answers a read."""
    try:
        log.tail()
    except RetryLater:
        return False
    return True


def test_entries_outlive_a_power_cut_of_the_server_and_the_connection_recovers(
    etcd: Etcd, log: EtcdLog
) -> None:
    entries = fill(log, 20)
    log.trim(5)
    etcd.kill()
    with pytest.raises(RetryLater, match="no member of the metadata store answers"):
        log.tail()
    with pytest.raises(RetryLater, match="no member of the metadata store answers"):
        log.append(20, b"not sent")
    etcd.start()
    # The client's connection waits between two attempts, so the first request may still find none.
    until("the connection recovers", lambda: answers(log))
    assert (log.floor(), log.tail(), [entry.data for entry in log.read(5)]) == (5, 20, entries[5:])
    assert log.append(20, b"next") is Appended.OK


def test_a_server_that_ends_under_an_append_leaves_it_unknown(etcd: Etcd, log: EtcdLog) -> None:
    """The connection worked a moment ago, so it is not certain that nothing was sent."""
    for member in log._cluster._members:
        member._clock = ManualClock()  # the moment lasts
    fill(log, 1)
    etcd.kill()
    assert log.append(1, b"mine") is Appended.UNKNOWN
    etcd.start()
    # As above: the client waits up to 1.2 s after a refused attempt, and etcd can start in less time.
    until("the connection recovers", lambda: answers(log))
    assert log.append(1, b"mine") is Appended.OK
    assert log.read(1) == [Entry(1, b"mine")]


def test_a_closed_store_asks_no_one(etcd: Etcd, tmp_path: Path) -> None:
    store = etcd_store([etcd.address], tmp_path)
    log = store.log("intake")
    store.close()
    with pytest.raises(Halt, match="this process closed the connection"):
        log.tail()


def test_pages_of_large_and_small_entries(log: EtcdLog) -> None:
    """Entries beyond the size of one message, and small ones before and after."""
    sizes = [10] * 300 + [ENTRY_BYTES_MAX] * 40 + [10] * 300
    entries = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    for index, data in enumerate(entries):
        assert log.append(index, data) is Appended.OK
    found = log.read(0, limit=10_000)
    assert [entry.index for entry in found] == list(range(len(entries)))
    assert [entry.data for entry in found] == entries
    assert [entry.data for entry in log.read(290, limit=30)] == entries[290:320]
    log._page = module.PAGE_ENTRIES_MAX  # as after small entries
    assert [entry.data for entry in log.read(300, limit=300)] == entries[300:600]


def test_a_trim_between_two_pages_is_reported(log: EtcdLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ENTRIES_MAX", 4)
    log._page = 4
    fill(log, 20)
    asked, pages = log._cluster.ask, []

    def ask(request: rpc.TxnRequest) -> rpc.TxnResponse:
        pages.append(request)
        if len(pages) == 3:
            pages.clear()
            monkeypatch.setattr(log._cluster, "ask", asked)
            log.trim(15)
        return asked(request)

    monkeypatch.setattr(log._cluster, "ask", ask)
    with pytest.raises(Trimmed, match="below 15"):
        log.read(0)


def test_a_trim_that_stops_in_the_middle_hides_what_it_left(
    etcd: Etcd, log: EtcdLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor is moved before anything is deleted, and the oldest entries are deleted first."""
    monkeypatch.setattr(module, "TRIM_ENTRIES", 4)
    entries = fill(log, 20)
    asked = log._cluster.ask
    for deletes in (0, 1, 2):
        left = [deletes]

        def ask(request: rpc.TxnRequest, left: list[int] = left) -> rpc.TxnResponse:
            if request.success[0].HasField("request_delete_range"):
                if not left[0]:
                    raise RetryLater("killed here")
                left[0] -= 1
            return asked(request)

        monkeypatch.setattr(log._cluster, "ask", ask)
        with pytest.raises(OutcomeUnknown, match="trimming it again is harmless"):
            log.trim(18)
        monkeypatch.setattr(log._cluster, "ask", asked)
        assert (log.floor(), log.tail()) == (18, 20)
        for index, data in ((0, b"new"), (17, entries[17]), (17, b"new")):
            with pytest.raises(Trimmed):
                log.append(index, data)
        with pytest.raises(Trimmed):
            log.read(17)
        assert [entry.data for entry in log.read(18)] == entries[18:]
    with etcd.client() as client:
        assert len(list(client.get_prefix("/archiver/intake/e/"))) == 20 - 3 * 4
        log.trim(1)
        assert [metadata.key for _, metadata in client.get_prefix("/archiver/intake/e/")] == [
            KEYS.entry("intake", 18),
            KEYS.entry("intake", 19),
        ]
    assert log.append(20, b"next") is Appended.OK


def test_a_wholly_trimmed_log_whose_entries_are_left_takes_only_the_next(
    log: EtcdLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = fill(log, 3)
    monkeypatch.setattr(log, "_forget", lambda below: None)
    log.trim(3)
    assert (log.floor(), log.tail(), log.read(3)) == (3, 3, [])
    with pytest.raises(Trimmed):
        log.append(2, entries[2])
    with pytest.raises(Halt, match="hole"):
        log.append(4, b"far")
    assert log.append(3, b"next") is Appended.OK


def test_history_that_etcd_forgets_is_not_missed(etcd: Etcd, log: EtcdLog) -> None:
    """etcd is compacted between the pages of a reader, and during the appends of a writer."""
    entries = fill(log, 600)
    with etcd.client() as client:
        reading: list[Entry] = []
        while more := log.read(len(reading), limit=100):
            reading += more
            revision = client.get_response("nothing").header.revision
            client.compact(revision, physical=True)
            if len(entries) < 700:
                entries.append(b"more")
                assert log.append(len(entries) - 1, b"more") is Appended.OK
        assert [entry.data for entry in reading] == entries
        client.defragment()
    assert log.append(len(entries), b"next") is Appended.OK


def test_the_quota_takes_nothing_from_the_log(tmp_path: Path) -> None:
    """Acknowledged entries are there, refused ones are not, until an operator raises the quota."""
    with Etcd(tmp_path / "server", "--quota-backend-bytes", str(6 * 2**20)) as etcd:
        store = etcd_store([etcd.address], tmp_path)
        log = store.log("intake")
        entries, refused = fill_up(log), bytes(400_000)
        assert log.tail() == len(entries) > 5
        assert [entry.data for entry in log.read(0)] == entries
        for work in (
            lambda: log.append(len(entries), refused),
            lambda: log.trim(3),
            lambda: store.log("control"),
        ):
            with pytest.raises(RetryLater, match="used up its quota"):
                work()
        assert (log.floor(), log.tail()) == (0, len(entries))
        # The steps that the message asks for. No entry is old enough to be compacted here, so the quota is
        # raised.
        with etcd.client() as client:
            revision = client.get_response("nothing").header.revision
        control(etcd, "compact", str(revision))
        control(etcd, "defrag")
        etcd.stop()
        etcd.options = ("--quota-backend-bytes", str(64 * 2**20))
        etcd.start()
        with pytest.raises(RetryLater, match="used up its quota"):
            log.append(len(entries), refused)
        control(etcd, "alarm", "disarm")
        assert log.append(len(entries), refused) is Appended.OK
        assert [entry.data for entry in log.read(0)] == [*entries, refused]
        store.close()


def test_an_append_that_etcd_calls_refused_may_be_applied(tmp_path: Path) -> None:
    """Of several requests that exhaust the quota together, some are applied, and their responses say the
    opposite."""
    writers = 8
    with Etcd(tmp_path / "server", "--quota-backend-bytes", str(6 * 2**20)) as etcd:
        store = etcd_store([etcd.address], tmp_path)
        logs = [store.log(f"log_{number}") for number in range(writers)]
        applied: list[str] = []
        for log in logs:
            look = log._without_space

            def counted(
                index: int, data: bytes, error: NoSpace, log: EtcdLog = log, look: Any = look
            ) -> Appended:
                outcome: Appended = look(index, data, error)
                applied.append(log.name)
                return outcome

            log._without_space = counted  # type: ignore[method-assign]
        with ThreadPoolExecutor(writers) as pool:
            written = list(pool.map(fill_up, logs))
        assert len(applied) >= 1, "no answer of that kind was provoked"
        assert [[entry.data for entry in log.read(0)] for log in logs] == written
        store.close()


def fill_up(log: EtcdLog) -> list[bytes]:
    """Append until the quota is exhausted; returns what was acknowledged."""
    entries: list[bytes] = []
    with pytest.raises(RetryLater, match=r"nothing was appended.*etcdctl alarm disarm"):
        append_many(log, entries)
    return entries


def append_many(log: EtcdLog, entries: list[bytes]) -> None:
    for index in range(100):
        data = bytes([index]) * 400_000
        assert log.append(index, data) is Appended.OK
        entries.append(data)


def control(etcd: Etcd, *arguments: str) -> None:
    """Run etcdctl as an operator does."""
    run([str(required(CONTROL)), f"--endpoints={etcd.address}", *arguments])


def run(command: list[str]) -> None:
    done = subprocess.run(
        command, env={"ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_entry_that_etcd_refuses_for_its_size(tmp_path: Path) -> None:
    with Etcd(tmp_path / "server", "--max-request-bytes", "100000") as etcd:
        store = etcd_store([etcd.address], tmp_path)
        log = store.log("intake")
        with pytest.raises(Halt, match=r"--max-request-bytes.*entry_bytes_max"):
            log.append(0, b"x" * 200_000)
        assert log.append(0, b"x" * 50_000) is Appended.OK
        store.close()


def test_refuses_a_prefix_that_is_not_its_own(etcd: Etcd, tmp_path: Path) -> None:
    with etcd.client() as client:
        client.put("/theirs/setting", b"1")
        client.put("/later/format", b"99")
        client.put("/theirs-too", b"1")
    with pytest.raises(Halt, match=r"holds keys below /theirs that are not the archiver's"):
        etcd_store([etcd.address], tmp_path, "/theirs")
    with pytest.raises(Halt, match="has format 99 below /later, this version reads format 1"):
        etcd_store([etcd.address], tmp_path, "/later")
    store = etcd_store([etcd.address], tmp_path, "/their")
    store.log("intake").append(0, b"one")
    store.close()


def test_what_others_did_to_the_keys_is_noticed(etcd: Etcd, log: EtcdLog) -> None:
    fill(log, 4)
    with etcd.client() as client:
        client.delete(KEYS.entry("intake", 2))
        with pytest.raises(Corrupted, match="no entry 2"):
            log.read(1)
        with pytest.raises(Corrupted, match="entry 2 is not there"):
            log.append(2, b"new")
        client.put(KEYS.entry("intake", 4), b"from nowhere")
        with pytest.raises(Corrupted, match="entry 4 is there"):
            log.append(4, b"new")
        client.delete_prefix("/archiver/")
    for work in (log.tail, lambda: log.read(0), lambda: log.append(4, b"new")):
        with pytest.raises(Corrupted, match="has vanished"):
            work()


def test_an_older_copy_of_the_data_takes_nothing(etcd: Etcd, tmp_path: Path) -> None:
    """A restore by etcd's handbook, from a snapshot that lacks the last entry: cluster and members have the
    ids they had."""
    store = etcd_store([etcd.address], tmp_path)
    log = store.log("intake")
    fill(log, 5)
    snapshot = str(tmp_path / "snapshot.db")
    control(etcd, "snapshot", "save", snapshot)
    assert log.append(5, b"the last") is Appended.OK
    etcd.stop()
    (etcd.folder / "data").rename(tmp_path / "lost")
    same = [
        f"--name={etcd.name}",
        f"--initial-cluster={etcd.name}={etcd.peer_url}",
        f"--initial-advertise-peer-urls={etcd.peer_url}",
    ]
    run([str(restoring()), "snapshot", "restore", snapshot, f"--data-dir={etcd.folder / 'data'}", *same])
    etcd.start()
    time.sleep(PROOF_S)
    with pytest.raises(Halt, match="went back from revision"):
        log.append(5, b"another")
    store.close()
    again = etcd_store([etcd.address], tmp_path)
    with pytest.raises(Halt, match=r"etcd\.intake\.tail says that it once had 6"):
        again.log("intake").append(5, b"another")
    again.close()
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    unknowing = etcd_store([etcd.address], elsewhere)
    assert unknowing.log("intake").append(5, b"another") is Appended.OK, (
        "a machine without the earlier entries cannot detect it"
    )
    unknowing.close()


@pytest.mark.parametrize("name", ["", "Intake", "a-b", "1a", "e/", "a" * 41])
def test_refuses_log_names_that_are_no_words(store: EtcdLogStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="log name"):
        store.log(name)
