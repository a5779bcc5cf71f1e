"""Does the log in etcd stay whole while members die, stop answering, and many processes append at once?"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from archiver.log.etcd.log_store import get
from archiver.log.store import Appended, Entry, entries_from
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.errors import RetryLater
from tests.support.log.etcd_server import Etcd, EtcdThree
from tests.support.log.etcd_stores import access_to, cluster_of, etcd_store, store_of
from tests.support.process.processes import until

REPOSITORY = Path(__file__).parents[2]
APPENDERS_TIMEOUT_S = 240


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdThree]:
    with EtcdThree(tmp_path / "etcd") as members:
        yield members


def appenders(
    addresses: Sequence[str], folder: Path, names: Sequence[str], each: int, pause_s: float
) -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.log.etcd_appender",
                ",".join(addresses),
                str(folder / name),
                name,
                str(each),
                str(pause_s),
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]


def check_all_are_there_once(
    running: Sequence[subprocess.Popen[bytes]],
    names: Sequence[str],
    each: int,
    addresses: Sequence[str],
    folder: Path,
) -> None:
    """Wait for the appenders. The log must be dense, and hold exactly the acknowledged entries at the
    acknowledged indexes."""
    results = [process.communicate(timeout=APPENDERS_TIMEOUT_S) for process in running]
    assert [process.returncode for process in running] == [0] * len(running), [
        error[-2000:] for _, error in results
    ]
    acknowledged = sorted(
        (int(index), name)
        for out, _ in results
        for index, name in (line.split() for line in out.decode().splitlines())
    )
    store = etcd_store(addresses, folder)
    found = [(entry.index, entry.data.decode()) for entry in entries_from(store.log("intake"), 0)]
    store.close()
    assert found == acknowledged
    assert [index for index, _ in found] == list(range(len(names) * each))
    for name in names:
        assert [text for _, text in found if text.startswith(f"{name}-")] == [
            f"{name}-{number}" for number in range(each)
        ]


def while_they_append(progress: Callable[[], int], at: int, fault: Callable[[], None]) -> threading.Thread:
    """Run `fault` once the log has that many entries."""

    def wait() -> None:
        while progress() < at:
            time.sleep(0.02)
        fault()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_eight_processes_append_at_once(tmp_path: Path) -> None:
    names, each = [f"p{number}" for number in range(8)], 40
    with Etcd(tmp_path / "etcd") as etcd:
        running = appenders([etcd.address], tmp_path, names, each, 0)
        check_all_are_there_once(running, names, each, [etcd.address], tmp_path)


def test_the_leader_is_killed_while_processes_append(three: EtcdThree, tmp_path: Path) -> None:
    names, each = ["a", "b", "c"], 120
    store = etcd_store(three.addresses, tmp_path)
    running = appenders(three.addresses, tmp_path, names, each, 0.01)
    killed: list[Etcd] = []

    def tail() -> int:
        try:
            return store.log("intake").tail()
        except RetryLater:
            return 0

    def kill() -> None:
        killed.append(three.leader())
        killed[-1].kill()

    first = while_they_append(tail, 60, kill)
    first.join()
    killed[0].start(wait=False)
    second = while_they_append(tail, 200, kill)
    second.join()
    check_all_are_there_once(running, names, each, three.addresses, tmp_path)
    assert len(killed) == 2
    store.close()


def test_a_member_that_hangs_costs_one_deadline(three: EtcdThree, tmp_path: Path) -> None:
    """Paused, it accepts connections and never answers."""
    timeout_s = 1.5
    paused = next(member for member in three.members if member is not three.leader())
    others = [member for member in three.members if member is not paused]
    store = store_of(access_to([paused.address, *(member.address for member in others)], timeout_s), tmp_path)
    log = store.log("intake")
    assert log.append(0, b"first") is Appended.OK
    store.cluster._current = 0  # another member, where the first was slow to find its leader
    hanging = store.cluster._members[0]
    call, limits = hanging.call, []

    def noted(service: str, method: str, request: object, limit_s: float) -> object:
        limits.append(limit_s)
        return call(service, method, request, limit_s)

    hanging.call = noted  # type: ignore[method-assign,assignment]
    paused.pause()
    began_s = time.monotonic()
    assert log.read(0) == [Entry(0, b"first")]
    assert timeout_s * 0.9 < time.monotonic() - began_s, "the first deadline is waited for"
    assert log.append(1, b"second") is Appended.OK
    assert log.tail() == 2
    assert limits == [timeout_s], "from then on another member is asked"
    paused.go_on()
    store.close()


def test_an_append_that_a_hanging_member_has_is_unknown_and_lands_later(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd") as etcd:
        store = etcd_store([etcd.address], tmp_path)
        log = store.log("intake")
        assert log.append(0, b"first") is Appended.OK
        patient, store.cluster.access = store.cluster.access, access_to([etcd.address], timeout_s=0.5)
        etcd.pause()
        assert log.append(1, b"late") is Appended.UNKNOWN
        with pytest.raises(RetryLater, match="deadline exceeded"):
            log.tail()
        store.cluster.access = patient
        etcd.go_on()

        def known() -> Appended | None:
            outcome = log.append(1, b"late")
            return None if outcome is Appended.UNKNOWN else outcome

        assert until("the outcome is known", known) is Appended.OK
        assert [entry.data for entry in log.read(0)] == [b"first", b"late"]
        store.close()


def test_a_member_without_the_others_says_nothing_old(three: EtcdThree, tmp_path: Path) -> None:
    """A majority answers a read, or the read fails: an old tail would be the tail of a deposed leader."""
    alone, *others = three.members
    store = etcd_store([alone.address], tmp_path)
    log = store.log("intake")
    assert log.append(0, b"first") is Appended.OK
    usual, store.cluster.access = store.cluster.access, access_to([alone.address], timeout_s=1.0)
    for member in others:
        member.pause()
    for work in (log.tail, lambda: log.read(0), log.floor):
        with pytest.raises(RetryLater, match="no member of the metadata store answers"):
            work()
    patient = cluster_of(access_to([alone.address], 120.0), "/a")
    began_s = time.monotonic()
    with pytest.raises(RetryLater, match="no leader"):
        patient.ask(rpc.TxnRequest(success=[get(b"any")]))
    assert time.monotonic() - began_s < 60, "a member that has no leader is not waited for"
    patient.close()
    for member in others:
        member.go_on()
    store.cluster.access = usual

    def answered() -> bool:
        try:
            assert log.tail() == 1
        except RetryLater:
            return False
        return True

    until("a majority answers", answered)
    store.close()
