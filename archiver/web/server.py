"""The port: a thread in which the web application is served.

Promises that a taken port never stops the daemon: it is said once and tried again, with pauses that double up to a bound. Installs no
signal handler, writes no line per request, and ends only when it is told to; then requests under way get their answers, within a grace.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from archiver.errors import Halt
from archiver.settings_daemon import HttpTlsSettings
from archiver.web.connection import PatientConnection
from archiver.web.listener import PatientLoop, listening
from archiver.web.tls import ServerTls

_log = logging.getLogger(__name__)

BACKLOG = 1024
HEAD_BYTES_MAX = 32 * 1024
"""Of a request: its first line and its headers."""
KEEP_ALIVE_S = 75
"""For a connection between two requests."""
FIRST_RETRY_S = 0.1
CANCELLED_S = 2.0
"""For requests that are cut off at the end of the grace, to say so; no more than half of the grace."""
JOINED_S = 0.5
"""The server looks around every tenth of a second, and lets go of what it has."""


class WebServer:
    """Serves one application on one address, from `start` to `stop`."""

    def __init__(self, app: ASGIApp, listen: str, retry_max_s: float, tls: HttpTlsSettings | None = None) -> None:
        """`listen` is `host:port`; `retry_max_s` bounds the pause between two tries to get the port. Without `tls` in the clear."""
        host, _, port = listen.rpartition(":")
        self._wanted = (host.strip("[]"), int(port))
        self._app = app
        self._tls = None if tls is None else ServerTls(tls)
        self._retry_max_s = retry_max_s
        self._address: tuple[str, int] | None = None
        self._stopping = threading.Event()
        self._tried = threading.Event()
        self._cancelled_s = CANCELLED_S
        self._server: uvicorn.Server | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port while it listens; None if it does not (yet, or any more)."""
        return self._address

    def start(self, wait_s: float = 5.0) -> None:
        """Begin; returns when it listens, or when the first try has failed, or after `wait_s`. Never raises for a port that is taken."""
        self._thread.start()
        self._tried.wait(wait_s)

    def stop(self, grace_s: float) -> None:
        """Take no more connections, let requests under way end, cut off those that do not; all of it within `grace_s`. Stopping twice is no
        error.
        """
        self._cancelled_s = min(CANCELLED_S, grace_s / 2)
        with self._lock:
            self._stopping.set()
            if self._server is not None:
                self._server.config.timeout_graceful_shutdown = grace_s - self._cancelled_s  # type: ignore[assignment]  # any number of seconds will do
                self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(grace_s + JOINED_S)
            if self._thread.is_alive():
                _log.error("the port did not close within %g s", grace_s + JOINED_S)

    def _run(self) -> None:
        pause_s, told = FIRST_RETRY_S, None
        while not self._stopping.is_set():
            try:
                self._serve_once()
                pause_s, told = FIRST_RETRY_S, None
            except (OSError, Halt) as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("cannot listen on %s:%d: %s; tried again until it succeeds", *self._wanted, error)
            except Exception:  # noqa: BLE001
                # The head of the thread: the daemon goes on, and so does its port.
                _log.exception("the port's server ended in an error nobody expected; it is started again")
            self._address = None
            self._tried.set()
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, self._retry_max_s)

    def _serve_once(self) -> None:
        """Until it is told to stop; raises `OSError` if the address cannot be had."""
        with listening(*self._wanted, BACKLOG) as listener:
            server = uvicorn.Server(self._config())
            with self._lock:
                if self._stopping.is_set():
                    return
                self._server = server
            self._address = listener.getsockname()[:2]
            _log.info("listening on %s:%d", *self._address)
            self._tried.set()
            try:
                with asyncio.Runner(loop_factory=PatientLoop) as runner:
                    runner.run(self._until_told(server, listener))
            finally:
                with self._lock:
                    self._server = None
            if not self._stopping.is_set():
                raise Halt("the server ended by itself")

    async def _until_told(self, server: uvicorn.Server, listener: socket.socket) -> None:
        """Serve until `should_exit`; requests that were cut off get the time to say so."""
        await server.serve(sockets=[listener])
        if server.server_state.tasks:
            await asyncio.wait(set(server.server_state.tasks), timeout=self._cancelled_s)

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            http=PatientConnection,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        if self._tls is not None:
            config.load()  # It would make a context of its own, which never looks at its files again.
            config.ssl = self._tls.context()
        return config
