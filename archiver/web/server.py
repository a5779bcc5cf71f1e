"""HTTP server of the port, in a thread of its own.

A port that cannot be opened never stops the daemon. At a stop, open requests get their answers within a
deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from archiver.config.daemon import HttpTlsSettings
from archiver.runtime.errors import Halt
from archiver.web.connection import TimeoutProtocol
from archiver.web.listener import UNSENT_BYTES_MAX, Listener, PatientLoop, address_trouble, listening
from archiver.web.tls import ServerTls

_log = logging.getLogger(__name__)

BACKLOG = 1024
KEEP_ALIVE_S = 75
"""Time for which an idle connection stays open between two requests."""
FIRST_RETRY_S = 0.1
REMIND_S = 300.0
"""Interval of the log line on a port that is still closed."""
CANCELLED_S = 2.0
"""Time in which cut-off requests get an answer at the end of the grace; at most half of the grace."""
JOINED_S = 0.5
"""Time for the server to end: its loop runs every 0.1 s and then closes its resources."""


class Port:
    """Opens one address in a thread of its own, and opens it again whenever it was closed, until a stop."""

    def __init__(
        self,
        listen: str,
        retry_max_s: float,
        connections_max: int | None = None,
        *,
        setting: str,
        name: str,
        doing: str,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
        holder: Callable[[], str | None] | None = None,
    ) -> None:
        """`listen` is `host:port`; `setting` is the key that names it, and `doing` begins the log line of an
        open port. `retry_max_s` bounds the pause between two attempts to open it. `connections_max` is given
        if the process has fewer descriptors than the listener's own limit. `unsent_bytes_max` bounds the
        answers that wait for all clients together. `holder` says who has an address that is in use, and what
        to do; None if it does not know. It may take seconds.
        """
        self._holder = holder
        host, _, port = listen.rpartition(":")
        self._listen_at = (host.strip("[]"), int(port))
        self._setting = setting
        self._doing = doing
        self._retry_max_s = retry_max_s
        self._connections_max = connections_max
        self._unsent_bytes_max = unsent_bytes_max
        self._closed_because: str | None = None
        self._address: tuple[str, int] | None = None
        self._stopping = threading.Event()
        self._tried = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port while it listens; None if it does not (yet, or any more)."""
        return self._address

    @property
    def closed_because(self) -> str | None:
        """Why the last attempt to open the port failed, and what to do, for people; None while it is open, or
        before the first attempt.
        """
        return self._closed_because

    def start(self, wait_s: float = 5.0) -> None:
        """Begin; returns when it listens, or when the first try has failed, or after `wait_s`. Never raises
        for a port that is taken.
        """
        self._thread.start()
        self._tried.wait(wait_s)

    def _join(self, grace_s: float) -> None:
        """Wait for the end of the thread, which a subclass has requested."""
        if self._thread.is_alive():
            self._thread.join(grace_s + JOINED_S)
            if self._thread.is_alive():
                _log.error("the port %s did not close within %g s", self._setting, grace_s + JOINED_S)

    def _serve(self, listener: Listener) -> None:
        """Call `_opened` once nothing can fail any more, then serve until a stop is requested. Raises
        `OSError` or `Halt`.
        """
        raise NotImplementedError

    def _opened(self, listener: Listener) -> None:
        self._address, self._closed_because = listener.getsockname()[:2], None
        _log.info("%s on %s:%d", self._doing, *self._address)
        self._tried.set()

    def _run(self) -> None:
        pause_s, silent_s = FIRST_RETRY_S, 0.0
        said: str | None = None
        held_by: str | None = None
        while not self._stopping.is_set():
            try:
                self._serve_once()
                pause_s = FIRST_RETRY_S
            except (OSError, Halt) as error:
                # It was open in between.
                if self._closed_because is None:
                    said = None
                if said is None or silent_s >= REMIND_S:
                    held_by = self._held_by(error)
                self._closed_because = why = self._advice(error, held_by)
                # Logged at once, and then every `REMIND_S`.
                if why != said or silent_s >= REMIND_S:
                    said, silent_s = why, 0.0
                    _log.warning(
                        "%s. It is tried again at least every %g s until it succeeds", why, self._retry_max_s
                    )
            except Exception:  # noqa: BLE001
                # The head of the thread: the daemon continues, and the port is opened again.
                _log.exception("the port's server ended in an unexpected error; it is started again")
            self._address = None
            # `start` waits for the first attempt, not for success.
            self._tried.set()
            self._stopping.wait(pause_s)
            silent_s += pause_s
            # Exponential backoff: the other program may keep the port for hours.
            pause_s = min(2 * pause_s, self._retry_max_s)

    def _held_by(self, error: Exception) -> str | None:
        if self._holder is None or getattr(error, "errno", None) != errno.EADDRINUSE:
            return None
        self._closed_because = self._closed_because or self._advice(error, None)
        # `start` must not wait for the holder of the port to answer. Otherwise it returns after the warning.
        self._tried.set()
        return self._holder()

    def _advice(self, error: Exception, held_by: str | None) -> str:
        host, port = self._listen_at
        trouble = address_trouble(error, self._setting)
        advice = held_by or ("" if trouble is None else ": ".join(trouble))
        return f"cannot listen on {host}:{port}: {error}{'; ' * bool(advice)}{advice}"

    def _listening(self, create: Callable[..., Listener] = Listener) -> Listener:
        """The socket of the port, made by `create` from family, type and protocol; raises `OSError`."""
        return listening(*self._listen_at, BACKLOG, self._connections_max, self._unsent_bytes_max, create)

    def _serve_once(self) -> None:
        """Serve until a stop is requested; raises `OSError` if the address cannot be opened."""
        with self._listening() as listener:
            self._serve(listener)
            if not self._stopping.is_set():
                # uvicorn ends without an error if its lifespan fails.
                raise Halt("the server ended by itself")


class WebServer(Port):
    """Serves one application on one address, from `start` to `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        listen: str,
        retry_max_s: float,
        tls: HttpTlsSettings | None = None,
        connections_max: int | None = None,
        holder: Callable[[], str | None] | None = None,
    ) -> None:
        """Without `tls`, plain HTTP; the other parameters as those of `Port`."""
        super().__init__(
            listen,
            retry_max_s,
            connections_max,
            setting="http.listen",
            name="http",
            doing="listening",
            holder=holder,
        )
        self._app = app
        self._tls = None if tls is None else ServerTls(tls)
        self._cancelled_s = CANCELLED_S
        self._server: uvicorn.Server | None = None
        self._lock = threading.Lock()

    def stop(self, grace_s: float) -> None:
        """Take no more connections, let requests under way end, cut off those that do not; all of it within
        `grace_s`. Stopping twice is no error.
        """
        # The rest of the grace is for requests that end by themselves.
        self._cancelled_s = min(CANCELLED_S, grace_s / 2)
        # Otherwise a server created at this moment would miss the request to stop.
        with self._lock:
            self._stopping.set()
            if self._server is not None:
                self._server.config.timeout_graceful_shutdown = grace_s - self._cancelled_s  # type: ignore[assignment]  # any number of seconds will do
                # uvicorn polls this flag every 0.1 s; it has no function to stop it from another thread.
                self._server.should_exit = True
        self._join(grace_s)

    def _serve(self, listener: Listener) -> None:
        server = uvicorn.Server(self._config())
        with self._lock:
            if self._stopping.is_set():
                return
            self._server = server
        self._opened(listener)
        try:
            # Outside of the main thread neither asyncio nor uvicorn installs signal handlers.
            with asyncio.Runner(loop_factory=PatientLoop) as runner:
                runner.run(self._until_stopped(server, listener))
        finally:
            with self._lock:
                self._server = None

    async def _until_stopped(self, server: uvicorn.Server, listener: Listener) -> None:
        """Serve until `should_exit`; cut-off requests get time to answer."""
        watching = asyncio.create_task(listener.watch.run())
        try:
            await server.serve(sockets=[listener])
            # uvicorn cancels open requests and returns at once; they still send their last lines.
            if server.server_state.tasks:
                await asyncio.wait(set(server.server_state.tasks), timeout=self._cancelled_s)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            http=TimeoutProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            # The default would give uvicorn handlers and a format of its own.
            log_config=None,
            log_level="error",
            # A line for each request would fill the log; the metrics count them.
            access_log=False,
            # uvicorn trusts these headers from loopback by default, and any local program can send them.
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        if self._tls is not None:
            # Load first: uvicorn creates a TLS context of its own here, which never reloads its files.
            config.load()
            config.ssl = self._tls.context()
        return config
