"""The intake workers of a daemon as processes: started, replaced, stopped, and given connections and settings."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any, Self

import psutil
import pytest

from archiver.config.settings import Settings, load_settings
from archiver.daemon import worker_pool
from archiver.daemon.worker_channel import (
    READY,
    ChannelClosed,
    receive_numbers,
    receive_settings,
    send_settings,
)
from archiver.daemon.worker_pool import FIRST_WAIT_S, CountingWriter, WorkerPool
from archiver.runtime import redaction
from archiver.runtime.clock import SystemClock
from archiver.runtime.redaction import Redactor, redacted
from archiver.status.kafka_port import ListenerCounts
from intake.write.metrics import WriterMetrics
from tests.support.kafka.listening import configured
from tests.support.process import stand_in_worker
from tests.support.process.processes import until

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

RETRY_MAX_S = 1.0
LEFT_MAX_S = 60.0
NO_METRICS = WriterMetrics(**dict.fromkeys(WriterMetrics.__dataclass_fields__, 0))


def settings_of(root: Path, workers: int = 2, topics: int = 1, **groups: Any) -> Settings:
    """Settings with a listener and workers."""
    named = [{"name": f"topic-{number}", "partitions": 1} for number in range(topics)]
    groups = {"intake": {"workers": workers}, "daemon": {"retry_max": RETRY_MAX_S}, **groups}
    return load_settings(configured(root, named, **groups), os.environ)


def children_of_this_process() -> set[int]:
    return {one.pid for one in psutil.Process().children()}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves a process or a descriptor."""
    # A test of another file must not hide by its leftovers what one of these leaves.
    gc.collect()
    before, children = descriptors(), children_of_this_process()
    yield
    # No child is left, not even one that has ended. Servers of other tests may be children, too.
    assert children_of_this_process() <= children
    # Threads that outlive tests of other files open descriptors for moments.
    until("no descriptor is left", lambda: descriptors() <= before, LEFT_MAX_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "notes"
    found.mkdir()
    return found


def made(
    mode: str,
    folder: Path,
    workers: int = 2,
    settings: Settings | None = None,
    environ: dict[str, str] | None = None,
) -> WorkerPool:
    command = (sys.executable, "-S", stand_in_worker.__file__, mode, str(folder))
    found = settings or settings_of(folder.parent, workers)
    return WorkerPool(found, os.environ if environ is None else environ, SystemClock(), command)


@contextlib.contextmanager
def running(pool: WorkerPool, serving: int = 2, stop_s: float = 20.0) -> Iterator[WorkerPool]:
    pool.start(0.0)
    try:
        until("the workers serve", lambda: pool.shown.serving == serving)
        yield pool
    finally:
        pool.begin_to_stop()
        pool.wait(stop_s)
        assert not any(thread.is_alive() for thread in pool._threads)
        assert not pool._workers


def pids(pool: WorkerPool) -> list[int]:
    with pool._lock:
        return [one.process.pid for one in pool._workers]


class Client:
    """A connection of a client that is given to the pool, with the daemon's end of its pair."""

    def __init__(self, pool: WorkerPool, asked: bytes = b"+") -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.socket = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        self.near, far = socket.socketpair()
        self.socket.sendall(asked)
        with accepted, far:
            self.ended = pool.give(accepted, far)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Both ends; the pool learns it once."""
        self.socket.close()
        self.near.close()
        if self.ended is not None:
            self.ended()
            self.ended = None

    def answer(self) -> bytes:
        self.socket.settimeout(30)
        try:
            return self.socket.recv(100)
        except ConnectionResetError:
            return b""


# --- Processes that end


class Recorded(threading.Event):
    """Remembers how long it was waited for, and waits shortly."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return super().wait(0.001)


def test_a_worker_that_ends_is_started_again_after_growing_waits(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = made("crashes", folder, workers=2)
    pool._count = 1
    pool._threads = pool._threads[:1]
    stopping = pool._stopping = Recorded()
    pool.start(0.0)
    try:
        until("it was started several times", lambda: len(stopping.waits) >= 7)
        assert pool.shown.serving == 0
    finally:
        pool.begin_to_stop()
        pool.wait(20)
    assert stopping.waits[:7] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert pool.shown.restarts >= 6
    assert len(list(folder.glob("started-*"))) == pool.shown.restarts + 1
    assert "exit code 3" in caplog.text


def test_the_wait_is_short_again_after_a_worker_that_served(folder: Path) -> None:
    pool = made("serves", folder)
    stopping = pool._stopping = Recorded()
    with running(pool):
        for turn in range(1, 4):
            os.kill(pids(pool)[0], SIGKILL)
            until("it is replaced", lambda n=turn: pool.shown.restarts == n and pool.shown.serving == 2)  # type: ignore[misc]
        assert stopping.waits == [FIRST_WAIT_S] * 3


def test_a_command_that_cannot_be_run_is_tried_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = WorkerPool(settings_of(folder.parent), {}, SystemClock(), ("/nowhere/to/be/found",))
    stopping = pool._stopping = Recorded()
    pool.start(0.0)
    try:
        until("it was tried several times", lambda: len(stopping.waits) >= 6)
        with Client(pool) as client:
            assert client.ended is None
            assert client.answer() == b""
    finally:
        pool.begin_to_stop()
        pool.wait(20)
    assert "cannot be started" in caplog.text


def test_without_descriptors_for_the_channels_it_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = socket.socketpair
    left = [True, True, False, True, False, False]

    def lacking(*arguments: Any) -> tuple[socket.socket, socket.socket]:
        if left and not left.pop(0):
            raise OSError(24, "Too many open files")
        return pair(*arguments)

    pool = made("serves", folder)
    monkeypatch.setattr(socket, "socketpair", lacking)
    with running(pool):
        assert not left
    assert "Too many open files" in caplog.text


def test_a_silent_worker_is_killed_and_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_pool, "SILENT_S", 2.0)
    with running(made("serves", folder)) as pool:
        paused = pids(pool)[0]
        os.kill(paused, SIGSTOP)
        # On a busy machine the other one may be silent for as long, and be replaced too.
        until("it is replaced", lambda: paused not in pids(pool) and pool.shown.serving == 2)
        assert pool.shown.restarts >= 1
        assert "is silent; it is killed" in caplog.text


def test_a_worker_that_never_serves_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_pool, "START_S", 0.3)
    pool = made("deaf", folder)
    pool.start(0.0)
    try:
        until("both are replaced", lambda: pool.shown.restarts >= 2)
        assert pool.shown.serving == 0
    finally:
        pool.begin_to_stop()
        pool.wait(20)
    assert "is silent; it is killed" in caplog.text
    assert not pool._workers


def test_missing_workers_are_reported_after_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "SHORT_S", 0.0)
    with running(made("serves", folder)) as pool:
        assert pool.trouble is None
        for one in pids(pool):
            os.kill(one, SIGSTOP)
        for one in pids(pool):
            os.kill(one, SIGKILL)
        found = until("it is reported", lambda: pool.trouble)
        assert "of 2 intake workers serve" in found
        until("it is over", lambda: pool.trouble is None)
    assert pool.trouble is None


# --- The stop


def test_workers_end_by_themselves_at_a_stop(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(made("serves", folder)) as pool:
        processes = [one.process for one in pool._workers]
    assert [one.returncode for one in processes] == [0, 0]
    assert "killed" not in caplog.text
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("mode", ["silent", "deaf"])
def test_workers_that_do_not_end_are_killed(
    mode: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = made(mode, folder)
    pool.start(0.0)
    until("both were started", lambda: len(list(folder.glob("settings-*[0-9]"))) == 2)
    pool.begin_to_stop()
    pool.wait(0.1)
    assert not pool._workers
    assert "does not end in time; it is killed" in caplog.text


def test_a_stop_while_a_worker_is_started_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = made("serves", folder)
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def started(*arguments: Any, **named: Any) -> subprocess.Popen[bytes]:
        processes.append(popen(*arguments, **named))
        # It is in no list yet.
        pool.begin_to_stop()
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", started)
    pool.start(0.0)
    until("one was started", lambda: processes)
    pool.wait(30)
    assert {one.returncode for one in processes} == {0}
    assert (pool.shown.serving, pool._workers) == (0, [])


def test_a_stop_ends_the_wait_for_the_next_attempt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "FIRST_WAIT_S", 1000.0)
    pool = made("crashes", folder, settings=settings_of(folder.parent, daemon={"retry_max": 1000}))
    pool.start(0.0)
    until("both have ended", lambda: len(list(folder.glob("started-*"))) == 2 and not pool._workers)
    pool.begin_to_stop()
    pool.wait(20)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_stop_twice_is_no_error(folder: Path) -> None:
    with running(made("serves", folder)) as pool:
        pool.begin_to_stop()
        pool.wait(20)


# --- Connections


def test_the_worker_with_the_fewest_connections_is_given_the_next(folder: Path) -> None:
    with running(made("serves", folder)) as pool, contextlib.ExitStack() as stack:
        held = [stack.enter_context(Client(pool, b".")) for _ in range(6)]
        assert sorted(one.open for one in pool._workers) == [3, 3]
        first = pool._workers[0]
        for one in held:
            if first.open > 1:
                before = first.open
                one.close()
                if first.open == before:
                    continue
        opens = {one.process.pid: one.open for one in pool._workers}
        fewest = min(opens, key=lambda pid: opens[pid])
        with Client(pool) as client:
            assert client.answer() == b"%d" % fewest
        for one in held:
            one.close()
        assert [one.open for one in pool._workers] == [0, 0]


def test_a_silent_worker_is_given_connections_only_if_no_other_takes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(made("serves", folder)) as pool, contextlib.ExitStack() as stack:
        paused, other = pool._workers
        os.kill(paused.process.pid, SIGSTOP)
        # Its connections would wait until it is killed.
        until("the other one has been heard since", lambda: other.heard_s > paused.heard_s + 0.5)
        paused.heard_s -= 2 * worker_pool.LATE_S
        for _ in range(3):
            stack.enter_context(Client(pool, b"."))
        assert (paused.open, other.open) == (0, 3)
        # From now on every worker counts as late.
        monkeypatch.setattr(worker_pool, "LATE_S", -1.0)
        stack.enter_context(Client(pool, b"."))
        assert paused.open == 1
        os.kill(paused.process.pid, SIGCONT)


def test_a_full_channel_passes_to_the_next_worker_and_then_to_none(folder: Path) -> None:
    with running(made("full", folder)) as pool, contextlib.ExitStack() as stack:
        given = 0
        while True:
            client = stack.enter_context(Client(pool))
            if client.ended is None:
                break
            given += 1
        assert client.answer() == b""
        opens = [one.open for one in pool._workers]
        assert sum(opens) == given
        assert min(opens) > 0
        # What waits in the channel of a worker that ends is closed, and nothing waits for ever.
        os.kill(pool._workers[0].process.pid, SIGKILL)
        until("it is replaced", lambda: pool.shown.restarts == 1 and pool.shown.serving == 2)
        with Client(pool) as later:
            assert later.ended is not None


def test_without_a_worker_that_serves_there_is_none(folder: Path) -> None:
    pool = made("deaf", folder)
    with Client(pool) as client:
        assert client.ended is None
        assert client.answer() == b""
    pool.start(0.0)
    until("both were started", lambda: len(list(folder.glob("settings-*[0-9]"))) == 2)
    with Client(pool) as client:
        assert client.ended is None
    pool.begin_to_stop()
    pool.wait(0.1)
    with Client(pool) as client:
        assert client.ended is None


def test_a_stop_gives_no_more_connections(folder: Path) -> None:
    with running(made("serves", folder)) as pool:
        pool.begin_to_stop()
        with Client(pool) as client:
            assert client.ended is None


def test_a_worker_that_dies_costs_its_connections_only(folder: Path) -> None:
    with running(made("serves", folder)) as pool, contextlib.ExitStack() as stack:
        held = [stack.enter_context(Client(pool, b".")) for _ in range(2)]
        with Client(pool, b"x") as killer:
            assert killer.answer() == b""
        until("it is replaced", lambda: pool.shown.restarts == 1 and pool.shown.serving == 2)
        ends = []
        for one in held:
            one.near.settimeout(0.2)
            try:
                ends.append(one.near.recv(1) == b"")
            except TimeoutError:
                ends.append(False)
        assert sorted(ends) == [False, True]
        for one in held:
            # Of the dead one, too: its entry is gone, and nothing counts below zero.
            one.close()
        assert [one.open for one in pool._workers] == [0, 0]


# --- Numbers


def test_counters_never_fall_when_workers_end(folder: Path) -> None:
    with running(made("serves", folder)) as pool:
        own = ListenerCounts()
        own.connections, own.produced_records = 4, 100
        counting = CountingWriter(lambda: NO_METRICS, pool)
        seen: list[tuple[int, int, float]] = []
        watching = threading.Event()

        def watch() -> None:
            while not watching.wait(0.001):
                counts = pool.counts_with(own)
                found = (
                    counts.produced_records,
                    counts.requests.get("Produce", 0),
                    counting.metrics().records_accepted,
                )
                assert counts.connections == 4
                seen.append(found)

        watcher = threading.Thread(target=watch)
        watcher.start()
        answered = 0
        try:
            for turn in range(1, 4):
                by = Counter[bytes]()
                for _ in range(6):
                    with Client(pool) as client:
                        by[client.answer()] += 1
                answered += 6
                until("all are counted", lambda n=answered: pool.counts_with(own).produced_records == 100 + n)  # type: ignore[misc]
                os.kill(int(next(iter(by))), SIGKILL)
                until("it is replaced", lambda n=turn: pool.shown.restarts == n and pool.shown.serving == 2)  # type: ignore[misc]
        finally:
            watching.set()
            watcher.join(30)
        assert pool.counts_with(own).produced_records == 100 + answered
        assert counting.metrics().records_accepted == answered
        # A gauge is of those that run.
        assert counting.metrics().queue_bytes == 14
        assert own.produced_records == 100
    for column in zip(*seen, strict=True):
        assert list(column) == sorted(column)
    assert pool.counts_with(own).produced_records == 100 + answered


# --- Settings and environment


def received(folder: Path, pid: int) -> list[Settings]:
    """What a worker got, in order. Only what the test sent is unpickled."""
    found = sorted(
        (path for path in folder.glob(f"settings-{pid}-*") if path.suffix != ".part"),
        key=lambda path: int(path.name.rpartition("-")[2]),
    )
    return [pickle.loads(path.read_bytes()) for path in found]


def test_settings_reach_workers_that_run_and_those_that_start_later(folder: Path, tmp_path: Path) -> None:
    first = settings_of(tmp_path, topics=1)
    second = settings_of(tmp_path, topics=2)
    with running(made("serves", folder, settings=first)) as pool:
        workers = pids(pool)
        assert [received(folder, one) for one in workers] == [[first], [first]]
        pool.apply_settings(second)
        for one in workers:
            until("it has them", lambda pid=one: received(folder, pid) == [first, second])  # type: ignore[misc]
        os.kill(workers[0], SIGKILL)
        until("it is replaced", lambda: pool.shown.restarts == 1 and pool.shown.serving == 2)
        (new,) = set(pids(pool)) - set(workers)
        assert received(folder, new) == [second]


def test_the_newest_settings_arrive_last_and_whole(folder: Path, tmp_path: Path) -> None:
    """From two threads, and more than a channel keeps."""
    first = settings_of(tmp_path)
    every = [first.model_copy(update={"cluster": f"{number}" * 400_000}) for number in range(2)]
    with running(made("serves", folder, settings=every[0])) as pool:
        threads = [
            threading.Thread(target=pool.apply_settings, args=(every[number % 2],)) for number in range(6)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        for pid in pids(pool):
            found = until("all have arrived", lambda p=pid: len(r := received(folder, p)) == 7 and r)  # type: ignore[misc]
            assert found[-1] == pool._settings


def test_a_worker_does_not_answer_for_the_daemon_to_the_service_manager(folder: Path) -> None:
    environ = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "ARCHIVER_X": "kept"}
    with running(made("serves", folder, environ=environ)) as pool:
        found = json.loads((folder / f"started-{pids(pool)[0]}").read_text(encoding="utf-8"))
        assert found["ARCHIVER_X"] == "kept"
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(found)


def test_a_worker_has_no_descriptor_of_the_daemon(folder: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        running(made("serves", folder)) as pool,
        Client(pool, b".") as client,
    ):
        inodes = {os.fstat(one.fileno()).st_ino for one in (server, client.near)}
        for worker in pool._workers:
            inodes |= {os.fstat(end.fileno()).st_ino for end in (worker.control, worker.connections)}
        for pid in pids(pool):
            links = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
            assert not {f"socket:[{one}]" for one in inodes} & links


# --- The channel


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\x05abc", b"\xff\xff\xff\xff"])
def test_a_message_that_does_not_end_closes_the_channel(data: bytes) -> None:
    near, far = socket.socketpair()
    with near:
        with far:
            far.sendall(data)
        with pytest.raises(ChannelClosed):
            receive_numbers(near)


def test_settings_to_a_worker_that_has_ended_are_an_end_of_the_channel(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    far.close()
    with near, pytest.raises(ChannelClosed):
        send_settings(near, settings_of(tmp_path))
    assert READY


def test_a_worker_redacts_the_secrets_of_its_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no configuration file, so the daemon's redaction does not cover its log."""
    secret = "canary-of-the-port-0123456789"
    monkeypatch.setenv("CANARY", secret)
    settings = settings_of(folder.parent, http={"produce_token": {"env": "CANARY"}})
    monkeypatch.setattr(redaction, "_process", Redactor(frozenset()))
    assert secret in redacted(f"a line with {secret}")
    near, far = socket.socketpair()
    with near, far:
        send_settings(near, settings)
        found = receive_settings(far)
    assert found == settings
    assert secret not in redacted(f"a line with {secret}")
