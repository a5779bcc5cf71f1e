"""Sessions at a Spark Connect server.

Owns the client. Every request that the server answers at once has a deadline, `spark.answer_timeout`, and is
not retried for longer than that. Pyspark's own client waits without end for a server that hangs, and ten
minutes for one that is gone. A job runs long; its starter bounds it. Imports the packages of Spark Connect,
which an installation may not have.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from archiver.config.settings import SparkSettings
from archiver.runtime.errors import RetryLater
from archiver.runtime.text import first_line
from archiver.spark.watchdog import hang_up

_log = logging.getLogger(__name__)

_WAIT_MAX_S = 1.0
"""Between two requests to a server that does not answer."""
_SPLITS = re.compile(r"Range \(0, 1, step=1, splits=(?:Some\()?(\d+)")
_ANSWERED = "spark.sql.session.timeZone"
"""A property that every session has."""


class _Call(NamedTuple):
    """The properties of a gRPC request that is about to be sent."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Deadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Gives each request with a single response a deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        """The interceptor's method of gRPC."""
        call = client_call_details
        bounded = _Call(
            call.method,
            self._timeout_s,
            call.metadata,
            call.credentials,
            call.wait_for_ready,
            call.compression,
        )
        return continuation(bounded, request)


def connect(settings: SparkSettings) -> SparkSession:
    """A session at the server of `spark.remote`, with the properties of `spark.conf`. Raises `RetryLater` if
    it cannot be reached.
    """
    session: Any = None
    try:
        channels = DefaultChannelBuilder(str(settings.remote))
        channels.add_interceptor(_Deadline(settings.answer_timeout))
        # As pyspark's own builder does, which accepts no channel.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        session = ConnectSession.builder.channelBuilder(channels).create()
        wait_ms, retries = round(_WAIT_MAX_S * 1000), max(1, round(settings.answer_timeout / _WAIT_MAX_S))
        _bound(
            session.client,
            [DefaultPolicy(max_retries=retries, max_backoff=wait_ms, max_server_retry_delay=wait_ms)],
        )
        for name, value in sorted(settings.properties().items()):
            session.conf.set(name, value)
        _log.info("the Spark Connect server runs spark %s", session.version)
    except (PySparkException, OSError) as error:
        leave(session)
        raise RetryLater(
            f"the Spark Connect server {settings.remote} cannot be reached: {first_line(error)}"
        ) from error
    found: SparkSession = session
    return found


def answers(session: Any) -> bool:
    """Whether the server answers, and knows the session. The version would not do: the server returns it for
    a session that has ended.
    """
    try:
        return bool(session.conf.get(_ANSWERED))
    except (PySparkException, OSError):
        return False


def _bound(client: Any, policies: list[DefaultPolicy]) -> None:
    """Remove the client's own waits: its retry policy, its close, and a request about ML models at the end of
    the process.
    """
    client.set_retry_policies(policies)
    # Close waits for a thread pool of all clients. If called by the garbage collector in a thread that holds
    # its lock, it never returns (SPARK-55362).
    # `leave` closes the channel, which is enough.
    client.close = _nothing
    atexit.unregister(client._cleanup_ml_cache)


def _nothing() -> None:
    pass


def parallelism(session: Any) -> int:
    """How many tasks the server runs at the same time. No call returns it, but a plan of the server shows it:
    a range is divided by this number.
    """
    # The text of a plan is no interface, hence the small number where it does not match.
    planned = _SPLITS.search(session.range(1)._explain_string())
    return max(1, int(planned[1])) if planned else 2


def end(session: Any) -> None:
    """Release the session at the server, and close this end of it."""
    # A session that is not released ends after the server's own timeout.
    with contextlib.suppress(PySparkException, grpc.RpcError, OSError):
        session.client.release_session()
    leave(session)


def leave(session: Any) -> None:
    """Close this end of a session. A running server ends its own part after a timeout."""
    if session is not None:
        # First, so that `stop` has no server to wait for.
        hang_up(session)
        session.stop()
