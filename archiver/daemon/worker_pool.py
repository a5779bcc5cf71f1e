"""The intake workers of a daemon: starts them, hands connections to them, and replaces those that end (0095).

A worker that ends costs its connections. Clients connect again, and send again what was not acknowledged; the
intake log recognizes what idempotent producers repeat.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from archiver.config.settings import Settings
from archiver.daemon.worker_channel import READY, ChannelClosed, receive_numbers, send_settings
from archiver.kafka.handover import send_connection
from archiver.runtime.clock import Clock
from archiver.status.kafka_port import ListenerCounts, WorkersShown
from archiver.web.forward import send_request
from intake.write.metrics import GAUGES, LAST, WriterMetrics

_log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.1
"""Wait before an ended worker is replaced; it doubles until one serves, up to `daemon.retry_max`."""
START_S: Final = 120.0
"""Time in which a worker must serve. The daemon has opened the same logs and stores before."""
SILENT_S: Final = 30.0
"""Time without a message after which a worker is replaced; it sends one every second."""
LATE_S: Final = 5.0
"""Time without a message after which a worker is given connections only if no other one takes them."""
SHORT_S: Final = 10.0
"""Time for which a worker may start before it is reported as missing."""
COMMAND: Final = (sys.executable, "-m", "archiver.daemon.intake_worker")
NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
"""Variables by which a service manager knows the daemon; a worker must not answer for it."""


class CountingWriter:
    """The intake writers of all processes, as one."""

    def __init__(self, own: Callable[[], WriterMetrics], pool: WorkerPool) -> None:
        self._own = own
        self._pool = pool

    def metrics(self) -> WriterMetrics:
        """Sums over the daemon and its workers, also those that have ended."""
        return self._pool.writers_with(self._own())


@dataclass(slots=True, eq=False)
class _Worker:
    """One process."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    connections: socket.socket
    """The daemon's end of the channel of connections."""
    records: socket.socket
    """Its end of the channel of produce requests over HTTP."""
    serves: bool = False
    open: int = 0
    """Connections and requests that it was given and that have not ended."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Its newest counters."""
    heard_s: float = 0.0
    """When they came."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Held while settings are sent, so that the newest arrive last, and whole."""


class WorkerPool:
    """Runs workers from `start` to `wait`. Any thread may call it."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], clock: Clock, command: Sequence[str] = COMMAND
    ) -> None:
        """`command` starts a worker, given three descriptors."""
        self._settings = settings
        self._count = settings.intake.workers
        self._environ = {name: value for name, value in environ.items() if name not in NOT_INHERITED}
        self._clock = clock
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._starts = 0
        self._short_since_s: float | None = None
        """Since when not all workers serve, as `trouble` saw it."""
        self._stopping = threading.Event()
        self._first_served = threading.Event()
        # What workers counted that have ended.
        self._listeners_before = ListenerCounts()
        self._writers_before: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"intake-worker-{number}", daemon=True)
            for number in range(1, self._count + 1)
        ]

    def start(self, wait_s: float = 10.0) -> None:
        """Begin; returns when the first worker serves, or after `wait_s`."""
        for thread in self._threads:
            thread.start()
        self._first_served.wait(wait_s)

    def give(self, client: socket.socket, far: socket.socket) -> Callable[[], None] | None:
        """As `archiver.kafka.handover.Workers`: to the worker with the fewest connections."""
        return self._give(lambda worker: send_connection(worker.connections, client, far))

    def give_records(self, far: socket.socket) -> Callable[[], None] | None:
        """As `archiver.web.forward.RecordWorkers`, likewise."""
        return self._give(lambda worker: send_request(worker.records, far))

    def _give(self, send: Callable[[_Worker], None]) -> Callable[[], None] | None:
        late_s = self._clock.monotonic_s() - LATE_S
        with self._lock:
            serving = sorted(
                (one for one in self._workers if one.serves), key=lambda one: (one.heard_s < late_s, one.open)
            )
            for worker in serving:
                try:
                    send(worker)
                except OSError:
                    # Its channel is full, or it has just ended.
                    continue
                worker.open += 1
                return lambda: self._ended(worker)
        return None

    def apply_settings(self, settings: Settings) -> None:
        """Give every worker new settings."""
        with self._lock:
            self._settings = settings
            workers = list(self._workers)
        for worker in workers:
            # One that has ended is replaced by one with these settings.
            with contextlib.suppress(ChannelClosed):
                self._send_settings(worker)

    def begin_to_stop(self) -> None:
        """Let every worker answer what it accepted, and end."""
        self._stopping.set()
        with self._lock:
            for worker in self._workers:
                worker.serves = False
                with contextlib.suppress(OSError):
                    worker.control.shutdown(socket.SHUT_WR)

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of every worker, and kill what is left after `timeout_s`."""
        until_s = self._clock.monotonic_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - self._clock.monotonic_s()))
        with self._lock:
            left = list(self._workers)
        for worker in left:
            pid = worker.process.pid
            _log.warning("the intake worker of process %d does not end in time; it is killed", pid)
            worker.process.kill()
        for thread in self._threads:
            thread.join(1.0)

    # --- What is shown

    @property
    def shown(self) -> WorkersShown:
        """For status and metrics."""
        with self._lock:
            serving = sum(one.serves for one in self._workers)
            return WorkersShown(self._count, serving, max(0, self._starts - self._count))

    @property
    def trouble(self) -> str | None:
        """Why not all workers serve, for people; None if they do."""
        shown, now_s = self.shown, self._clock.monotonic_s()
        if shown.serving == shown.configured or self._stopping.is_set():
            self._short_since_s = None
            return None
        if self._short_since_s is None:
            self._short_since_s = now_s
        if now_s - self._short_since_s < SHORT_S:
            return None
        return (
            f"{shown.serving} of {shown.configured} intake workers serve; the log says why others ended, and "
            "they are started again"
        )

    def counts_with(self, own: ListenerCounts) -> ListenerCounts:
        """The counters of the listener, over all processes."""
        found = ListenerCounts()
        found.add(own.to_json())
        with self._lock:
            found.add(self._listeners_before.to_json())
            for worker in self._workers:
                found.add(worker.numbers.get("listener", {}))
        # Each connection has an end in the daemon, and it is counted there.
        found.connections = own.connections
        return found

    def writers_with(self, own: WriterMetrics) -> WriterMetrics:
        """The counters of the intake writers, over all processes."""
        with self._lock:
            every = [own.to_json(), *(one.numbers.get("writer", {}) for one in self._workers)]
            found = Counter(self._writers_before)
        for numbers in every:
            found.update({name: value for name, value in numbers.items() if name not in LAST})
        longest = {name: max(one.get(name, 0.0) for one in every) for name in LAST}
        return WriterMetrics(**found, **longest)

    # --- One worker

    def _run(self, number: int) -> None:
        wait_s = FIRST_WAIT_S
        while not self._stopping.is_set():
            worker = self._open()
            if worker is not None:
                self._follow(worker, number)
                if worker.serves:
                    wait_s = FIRST_WAIT_S
                self._close(worker)
            if self._stopping.wait(wait_s):
                return
            wait_s = min(2 * wait_s, self._settings.daemon.retry_max)

    def _open(self) -> _Worker | None:
        with contextlib.ExitStack() as own, contextlib.ExitStack() as theirs:
            try:
                # Without descriptors for them, too, it is tried again.
                control, their_control = _pair(own, theirs)
                connections, their_connections = _pair(own, theirs)
                records, their_records = _pair(own, theirs)
                for one in (connections, records):
                    # The loops of the ports send through them, and must not wait.
                    one.setblocking(False)
                descriptors = [one.fileno() for one in (their_control, their_connections, their_records)]
                process = subprocess.Popen(
                    [*self._command, *map(str, descriptors)],
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    # A terminal's signals are for the daemon, and end a worker that imports its modules.
                    process_group=0,
                )
            except OSError as error:
                _log.error("an intake worker cannot be started: %s", error)
                return None
            own.pop_all()
        worker = _Worker(process, control, connections, records)
        with self._lock:
            self._workers.append(worker)
            self._starts += 1
            if self._stopping.is_set():
                # It ends at once: `begin_to_stop` did not see it.
                control.shutdown(socket.SHUT_WR)
        control.settimeout(START_S)
        with contextlib.suppress(ChannelClosed):
            self._send_settings(worker)
        return worker

    def _send_settings(self, worker: _Worker) -> None:
        with worker.sending:
            with self._lock:
                settings = self._settings
            send_settings(worker.control, settings)

    def _follow(self, worker: _Worker, number: int) -> None:
        """Read what a worker sends until it ends."""
        try:
            while True:
                numbers = receive_numbers(worker.control)
                with self._lock:
                    worker.numbers, worker.heard_s = numbers, self._clock.monotonic_s()
                    if READY in numbers and not self._stopping.is_set():
                        worker.serves = True
                if READY in numbers:
                    worker.control.settimeout(SILENT_S)
                    self._first_served.set()
                    _log.info("intake worker %d serves", number, extra={"worker_pid": worker.process.pid})
        except ChannelClosed:
            pass
        except TimeoutError:
            _log.error("intake worker %d is silent; it is killed", number)
            worker.process.kill()

    def _close(self, worker: _Worker) -> None:
        """Keep what it counted, and reap it."""
        with self._lock:
            self._workers.remove(worker)
            self._listeners_before.add(worker.numbers.get("listener", {}))
            for name, value in worker.numbers.get("writer", {}).items():
                if name not in GAUGES:
                    self._writers_before[name] += value
        for one in (worker.control, worker.connections, worker.records):
            one.close()
        try:
            code = worker.process.wait(SILENT_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        if not self._stopping.is_set():
            _log.error("an intake worker ended with exit code %d; another one is started", code)

    def _ended(self, worker: _Worker) -> None:
        with self._lock:
            worker.open -= 1


def _pair(own: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    """A channel whose ends are closed with these."""
    near, far = socket.socketpair()
    return own.enter_context(near), theirs.enter_context(far)
