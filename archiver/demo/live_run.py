"""Serves the demo with live flights: starts its daemon, sends it flights over HTTP, and stops both in order.

Records go the way of any other client: `POST /v1/topics/{topic}/records`. A request that was certainly not
stored is sent again. One of unknown outcome is counted and not sent again, so no flight is stored twice.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from archiver.app.application import Application
from archiver.config.settings import Settings, load_settings
from archiver.demo.flights import find_data, load_flights
from archiver.demo.live_flights import Batch, LiveFlights, Pace
from archiver.demo.settings import CONFIGURATION, DAEMON_LOCK, LIVE_TOPIC, LOG, PORT, prepare_live
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted

HOST: Final = "127.0.0.1"
BATCH_S: Final = 1.0
"""Interval of requests."""
LINE_S: Final = 10.0
"""Interval of the lines that say what was sent."""
READY_S: Final = 120.0
"""The daemon opens its files and its port in seconds; it starts Spark later."""
POLL_S: Final = 0.2
REQUEST_S: Final = 15.0
"""Longest wait for an answer. An acknowledgement takes milliseconds."""
STOP_S: Final = 15.0
"""The daemon may take so long beyond `daemon.shutdown_grace`; then it is killed."""
_ANSWER_BYTES_MAX: Final = 16 * 2**20
_LOG_BYTES_MAX: Final = 64 * 2**10

Wait = Callable[[float], bool]
"""Waits so many seconds; true at once if a stop is requested."""


# --- What is shown
@dataclass(frozen=True, slots=True)
class LiveProgress:
    """What was sent since the start, and what the table has."""

    seconds: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    """Certainly not stored, and refused for good."""
    unknown: int = 0
    rows: int | None = 0
    """Rows of the table; None if they could not be read."""

    def adding(self, outcome: Outcome) -> LiveProgress:
        """With the outcome of one more request."""
        records = outcome.acknowledged + outcome.failed + outcome.unknown
        return replace(
            self,
            sent=self.sent + records,
            acknowledged=self.acknowledged + outcome.acknowledged,
            failed=self.failed + outcome.failed,
            unknown=self.unknown + outcome.unknown,
        )

    def to_json(self) -> dict[str, Any]:
        """One line of `demo --serve --output json`."""
        names = ("seconds", "sent", "acknowledged", "failed", "unknown", "rows")
        return {name: getattr(self, name) for name in names}

    def line(self) -> str:
        """The same for people."""
        odd = [f"{count:,} {name}" for name in ("failed", "unknown") if (count := getattr(self, name))]
        rows = "the table cannot be read" if self.rows is None else f"{self.rows:,} in the table"
        return f"{self.seconds:6.0f} s: " + ", ".join(
            (f"{counted(self.sent, 'flight')} sent", f"{self.acknowledged:,} acknowledged", *odd, rows)
        )


# --- Requests
@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the records of one request."""

    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    why_not: str | None = None
    """Why nothing was stored; the request may be sent again."""


def outcome_of(status: int, body: bytes, records: int) -> Outcome:
    """What an answer says about a request of so many records (docs/http.md).

    Raises `Halt` for a status by which every further request would be refused too.
    """
    text = body.decode("utf-8", errors="replace")
    if status in (408, 429, 503):
        return Outcome(why_not=f"the daemon answered {status}: {excerpt(text.strip())}")
    if status not in (200, 422, 500):
        raise Halt(f"the daemon refuses live flights with {status}: {excerpt(text.strip())}")
    counts = dict.fromkeys(("ok", "failed", "unknown"), 0)
    for line in text.splitlines()[:records]:
        try:
            found = json.loads(line)
            counts["ok" if found.get("offset") is not None else found["outcome"]] += 1
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            continue
    # An answer without a line for a record says nothing of it.
    left = records - counts["ok"] - counts["failed"]
    return Outcome(counts["ok"], counts["failed"], left)


def _send(port: int, batch: Batch) -> Outcome:
    # A connection for each request: an idle one may be closed just before it is used again.
    connection = http.client.HTTPConnection(HOST, port, timeout=REQUEST_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            return Outcome(why_not=f"the daemon cannot be reached: {error}")
        try:
            connection.request(
                "POST",
                f"/v1/topics/{LIVE_TOPIC}/records",
                batch.body,
                {"Content-Type": "application/x-protobuf"},
            )
            answer = connection.getresponse()
            return outcome_of(answer.status, answer.read(_ANSWER_BYTES_MAX), batch.records)
        except (OSError, http.client.HTTPException):
            return Outcome(unknown=batch.records)
    finally:
        connection.close()


def choose_port(asked: int | None) -> int:
    """The port for the console: the asked one, else the default, else a free one.

    Raises `InvalidInput` if the asked one is in use.
    """
    for port in (PORT, 0) if asked is None else (asked,):
        with socket.socket() as probe:
            # As the daemon's own listener: connections that ended lately are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                why = error
                continue
            return int(probe.getsockname()[1])
    raise InvalidInput(f"port {asked} cannot be used: {why}; choose another one with --port, or leave it out")


# --- The daemon
class LiveDaemon:
    """The running daemon. Leaving the block stops it and waits for its end."""

    def __init__(self, configuration: Path, settings: Settings, port: int) -> None:
        self._port = port
        self._log = configuration.parent / LOG
        self._stop_s = settings.daemon.shutdown_grace + STOP_S
        lock = configuration.parent / DAEMON_LOCK
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "archiver.demo.live_daemon", str(configuration), str(lock)],
                # The daemon stops when this process ends, because the pipe closes then.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # A terminal's Ctrl-C is for this process, which stops sending first.
                process_group=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def until_ready(self, clock: Clock, wait: Wait) -> bool:
        """Wait until it serves; False if a stop is requested first. Raises `Halt` if it ends, and
        `RetryLater` after `READY_S`.
        """
        deadline_s = clock.monotonic_s() + READY_S
        while not self._is_ready():
            self.check()
            if clock.monotonic_s() >= deadline_s:
                raise RetryLater(f"the demo's daemon was not ready within {READY_S:g} s; see {self._log}")
            if wait(POLL_S):
                return False
        return True

    def check(self) -> None:
        """Raise `Halt` if the daemon has ended."""
        code = self._process.poll()
        if code is not None:
            raise Halt(f"the demo's daemon ended with exit code {code}: {self._last_line()}; see {self._log}")

    def stop(self) -> None:
        """Stop it, and kill it if it does not end in time. No effect after its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(self._stop_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # Last: at its end the daemon would stop as well, but without a time after which it is killed.
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=REQUEST_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _last_line(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES_MAX))
            lines = log.read(_LOG_BYTES_MAX).decode("utf-8", errors="replace").splitlines()
        return excerpt(lines[-1]) if lines else "it logged nothing"


# --- The run
@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options of `demo --serve`."""

    rate: int
    """Flights a second."""
    seconds: int | None
    """Time after which it ends; None: at a signal only."""
    port: int | None


@dataclass(frozen=True, slots=True)
class Shown:
    """Receives what the command prints."""

    ready: Callable[[str, Path], None]
    """Called once, with the console's address and the configuration."""
    progress: Callable[[LiveProgress], None]
    """Called every `LINE_S`, and at the end."""
    note: Callable[[str], None]
    """Takes one line about work in progress."""


def serve_demo(
    directory: Path,
    options: LiveOptions,
    open_application: Callable[[Settings], Application],
    environ: Mapping[str, str],
    clock: Clock,
    wait: Wait,
    shown: Shown,
) -> None:
    """Serve the demo of `directory` until a stop is requested, or until `options.seconds`.

    The caller has the folder's lock. Raises `InvalidInput` for an unusable port, configuration or source of
    data. Raises `Halt` if the daemon ends or refuses the flights, and `RetryLater` if it does not get ready.
    """
    flights = load_flights(find_data())
    port = choose_port(options.port)
    # An invalid file is reported as it is, and not as the demo would change it.
    load_settings(directory.resolve() / CONFIGURATION, environ)
    configuration = prepare_live(directory, port)
    settings = load_settings(configuration, environ)
    with LiveDaemon(configuration, settings, port) as daemon:
        shown.note(f"starting the daemon (process {daemon.pid})")
        if not daemon.until_ready(clock, wait):
            return
        shown.ready(f"http://{HOST}:{port}/", configuration)
        with open_application(settings) as application:
            # The place in the year follows from the time, so a second start does not begin the year again.
            first = clock.now_us() * options.rate // 1_000_000
            replay = _Replay(LiveFlights(flights, first), port, options.rate, clock, shown.note)
            _replay(replay, application, daemon, options.seconds, clock, wait, shown)
        shown.note("stopping the daemon")


class _Replay:
    """Sends flights at a steady rate."""

    def __init__(
        self, flights: LiveFlights, port: int, rate: int, clock: Clock, note: Callable[[str], None]
    ) -> None:
        self.progress = LiveProgress()
        self._flights = flights
        self._port = port
        self._clock = clock
        self._note = note
        self._pace = Pace(rate, clock.monotonic_s())
        self._refused: Batch | None = None

    def send(self) -> None:
        """Send what is due, or first what was not stored before."""
        batch = self._refused
        if batch is None:
            due = self._pace.due(self._clock.monotonic_s())
            if not due:
                return
            batch = self._flights.take(due, self._clock.now_us())
        outcome = _send(self._port, batch)
        if outcome.why_not is not None and self._refused is None:
            self._note(f"{outcome.why_not}; the flights are sent again")
        self._refused = None if outcome.why_not is None else batch
        self.progress = self.progress.adding(outcome)


def _replay(
    replay: _Replay,
    application: Application,
    daemon: LiveDaemon,
    seconds: int | None,
    clock: Clock,
    wait: Wait,
    shown: Shown,
) -> None:
    begun_s = clock.monotonic_s()
    next_batch_s, next_line_s = begun_s + BATCH_S, begun_s + LINE_S
    end_s = float("inf") if seconds is None else begun_s + seconds

    def so_far() -> LiveProgress:
        elapsed_s = round(clock.monotonic_s() - begun_s, 1)
        return replace(replay.progress, seconds=elapsed_s, rows=_rows(application))

    while not wait(max(0.0, min(next_batch_s, end_s) - clock.monotonic_s())):
        daemon.check()
        replay.send()
        now_s = clock.monotonic_s()
        if now_s >= end_s:
            break
        if now_s >= next_line_s:
            shown.progress(so_far())
            next_line_s = max(next_line_s + LINE_S, now_s)
        # After a pause one request carries what became due.
        next_batch_s = max(next_batch_s + BATCH_S, now_s)
    shown.progress(so_far())


def _rows(application: Application) -> int | None:
    """Rows of the table, as its current snapshot states them; 0 before the first commit."""
    try:
        view = application.table(LIVE_TOPIC)
    # The catalog may be busy; the next line has the number.
    except ArchiverError:
        return None
    newest = next(iter(view.lineage()), None) if view is not None else None
    if newest is None:
        return 0
    stated = newest.summary.get("total-records", "")
    return int(stated) if stated.isdecimal() else None
