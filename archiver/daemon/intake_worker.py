"""Main program of an intake worker: `python -m archiver.daemon.intake_worker CONTROL CONNECTIONS RECORDS`.

The arguments are descriptors of the daemon's channels. The worker ends when the daemon closes the first one,
so it never outlives the daemon by more than what it needs to acknowledge the records that it accepted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from archiver.app.application import Application, arm_failpoints
from archiver.config.settings import Settings
from archiver.daemon.limits import collect_less_often, kafka_connections, raise_limit
from archiver.daemon.worker_channel import READY, ChannelClosed, receive_settings, send_numbers
from archiver.kafka.worker import KafkaWorker
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError, RetryLater
from archiver.runtime.ids import SystemIds
from archiver.runtime.logging import setup_logging
from archiver.runtime.pandas_later import put_off_pandas
from archiver.web.forward import RecordServer
from intake.log.clock_check import check_start_clock
from intake.write.writer import IntakeWriter

_log = logging.getLogger(__name__)

NUMBERS_S: Final = 1.0
"""Interval at which counters are sent to the daemon."""
ANSWERS_S: Final = 5.0
"""Time for the last answers, once every record has its outcome."""


class IntakeWorker:
    """One worker, from its first settings to the end of its channel."""

    def __init__(self, control: socket.socket, connections: socket.socket, records: socket.socket) -> None:
        self._control = control
        self._connections = connections
        self._records = records
        self._stopping = threading.Event()

    def run(self) -> None:
        """Serve until the daemon closes the channel. Raises what opening the deployment raises."""
        settings = receive_settings(self._control)
        arm_failpoints(settings, os.environ)
        application = Application(
            settings, os.environ, SystemClock(), SystemIds(), lasting=True, holding=False
        )
        with application:
            application.warm()
            check_start_clock(
                application.objects,
                application.clock,
                application.sequencer.fold.newest_us,
                settings.intake.clock_skew_max,
            )
            writer = application.intake.writer()
            open_writer: IntakeWriter | None = writer
            server = RecordServer(self._records, lambda: open_writer, settings.http)
            server.start()
            service = self._kafka(settings, application, writer)
            if service is not None:
                service.start()
            if service is not None and service.ended:
                raise RetryLater("the channel of connections cannot be served")

            def numbers() -> dict[str, Any]:
                listener = {} if service is None else service.counts.to_json()
                return {"listener": listener, "writer": writer.metrics().to_json()}

            send_numbers(self._control, {READY: True, **numbers()})
            for target in (lambda: self._report(numbers, service), lambda: self._follow(application)):
                threading.Thread(target=target, daemon=True).start()
            while not self._stopping.wait(settings.daemon.watch_interval):
                if service is not None and service.ended:
                    break
                # Other processes create topics; those of a template get its settings here.
                with contextlib.suppress(ArchiverError):
                    application.backlog()
            open_writer = None
            if service is not None:
                service.close_intake()
            try:
                writer.close()
            except ArchiverError as error:
                # Records without an acknowledgement are sent again by their producers.
                _log.warning("%s", error)
            server.stop(ANSWERS_S)
            if service is not None:
                service.stop(ANSWERS_S)
            with contextlib.suppress(ChannelClosed):
                send_numbers(self._control, numbers())

    def _kafka(
        self, settings: Settings, application: Application, writer: IntakeWriter
    ) -> KafkaWorker | None:
        if settings.kafka is None:
            return None
        # Two descriptors for each connection: the client's, and one to the daemon. All connections may
        # come to one worker while others are started.
        connections_max = kafka_connections(settings, raise_limit())
        return KafkaWorker(
            settings.kafka,
            application,
            writer,
            settings.daemon.retry_max,
            connections_max,
            self._connections,
        )

    def _report(self, numbers: Callable[[], dict[str, Any]], service: KafkaWorker | None) -> None:
        with contextlib.suppress(ChannelClosed):
            while not self._stopping.wait(NUMBERS_S):
                # The daemon replaces a worker that is silent, so one whose listener hangs must not report.
                if service is None or service.runs(NUMBERS_S) or self._stopping.is_set():
                    send_numbers(self._control, numbers())

    def _follow(self, application: Application) -> None:
        """Use the settings that the daemon sends, until it closes the channel."""
        try:
            while True:
                application.apply_settings(receive_settings(self._control))
        except ArchiverError as error:
            _log.warning("an intake worker ends, because it cannot use new settings: %s", error)
        except ChannelClosed:
            # Closing may hang on a store, and without the daemon nothing else would end this process.
            limit_s = application.settings.intake.close_timeout + 2 * ANSWERS_S
            ending = threading.Timer(limit_s, os._exit, (1,))
            ending.daemon = True
            ending.start()
        finally:
            self._stopping.set()


def main(arguments: list[str]) -> int:
    """Run a worker; the exit code."""
    control, connections, records = (socket.socket(fileno=int(one)) for one in arguments)
    # The service manager and a terminal signal the whole group; the daemon says when to stop.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(os.umask(stat.S_IRWXO) | stat.S_IWOTH)
    setup_logging(logging.INFO)
    collect_less_often()
    put_off_pandas()
    try:
        IntakeWorker(control, connections, records).run()
    except ChannelClosed:
        return 0
    except ArchiverError as error:
        _log.error("an intake worker cannot serve: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
