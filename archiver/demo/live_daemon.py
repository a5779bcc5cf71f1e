"""Main program of the demo's daemon: `archiver serve` that stops when the process that started it has ended.

`python -m archiver.demo.live_daemon CONFIG LOCK`, with a pipe as standard input. The parent process keeps the
other end open. The kernel closes it at the parent's end, also after a kill, and then the daemon stops as
after SIGTERM, within `daemon.shutdown_grace`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from pathlib import Path

from archiver.config.settings import load_settings
from archiver.daemon.signals import Signals
from archiver.log.lease import FileLease
from archiver.runtime.errors import ArchiverError
from archiver.runtime.exit_codes import exit_code
from archiver.runtime.logging import setup_logging
from archiver.runtime.pandas_later import put_off_pandas
from archiver.runtime.redaction import guard_tracebacks

_log = logging.getLogger(__name__)


def main(configuration: Path, lock: Path) -> int:
    """Serve until a signal, or until standard input ends; the exit code."""
    guard_tracebacks()
    setup_logging(logging.INFO)
    with Signals() as signals:
        threading.Thread(target=_stop_with_parent, args=(signals,), name="parent", daemon=True).start()
        try:
            # Freed by the end of the process. Until then no other demo may use the folder.
            FileLease(lock, f"{socket.gethostname()}:{os.getpid()}").acquire()
            put_off_pandas()
            # Imported behind the signal handlers, because it takes longest.
            from archiver.daemon.daemon import Daemon

            settings = load_settings(configuration, os.environ)
            return Daemon(settings, configuration, os.environ, frozenset(settings.roles)).run(signals)
        except ArchiverError as error:
            _log.error("%s", error)
            return exit_code(error)


def _stop_with_parent(signals: Signals) -> None:
    """Ask for a stop once the parent has ended."""
    while os.read(sys.stdin.fileno(), 4096):
        pass  # The parent writes nothing; what a person types here means nothing.
    # A stopped daemon has closed its end of the signals.
    with contextlib.suppress(OSError):
        signals.ask("stop")


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
