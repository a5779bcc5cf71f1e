"""The threads of a daemon that mirror Kafka topics, one per source.

No error ends a thread: problems are in `state`, and the work is retried after at most `discover_interval`.
Every wait is bounded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from archiver.config.groups import IntakeSettings
from archiver.config.kafka import KafkaSourceSettings
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import IdSource
from intake.log.sequencer import Sequencer
from intake.sources.kafka.mirror import Mirror
from intake.sources.kafka.upstream import Upstream
from intake.sources.kafka.upstream_changes import MirrorState
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter

RETRY_FIRST_S = 0.2
"""The first pause after an error; it doubles up to the source's `discover_interval`."""

_log = logging.getLogger(__name__)


def mirror_pump(
    settings: KafkaSourceSettings,
    intake: IntakeSettings,
    sequencer: Sequencer,
    objects: ObjectStore,
    clock: Clock,
    ids: IdSource,
    connect: Callable[[], Upstream],
) -> MirrorPump:
    """Build a source, not started. `connect` opens its connection."""
    # Each source has a flush writer of its own, because that is not thread-safe.
    accept_clock = AcceptClock(clock, intake.clock_skew_max, intake.clock_settle)
    publisher = FlushWriter(objects, sequencer, intake.row_group_bytes, clock, ids, accept_clock)
    mirror = Mirror(settings, intake, sequencer, publisher, accept_clock, clock, connect)
    return MirrorPump(settings.name, mirror, settings.discover_interval)


def stop_all(pumps: Sequence[MirrorPump], timeout_s: float, clock: Clock) -> list[str]:
    """Stop all of them within `timeout_s` in total; returns the names of those still running.

    A late append is complete or absent.
    """
    # All stop at the same time, so the time limit is for all together.
    for pump in pumps:
        pump.begin_to_stop()
    until_s = clock.monotonic_s() + timeout_s
    late = [pump.name for pump in pumps if not pump.stop(max(0.0, until_s - clock.monotonic_s()))]
    for name in late:
        _log.warning(
            "source %s has not stopped within %g s and is abandoned: records that it has not ingested are "
            "read again",
            name,
            timeout_s,
        )
    return late


class MirrorPump:
    """One source and its thread. `start` it, and `stop` it before the log is closed."""

    def __init__(self, name: str, mirror: Mirror, retry_max_s: float) -> None:
        self.name = name
        self._mirror = mirror
        self._retry_max_s = retry_max_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mirror-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin_to_stop(self) -> None:
        """Request the stop; does not wait."""
        self._stopping.set()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; whether it ended in time. Records that are not in the log are read again."""
        self.begin_to_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def state(self) -> MirrorState:
        """The recent state of the source."""
        return self._mirror.state

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            try:
                self._mirror.step()
                pause_s = 0.0
            except ArchiverError as error:
                pause_s = self._after(str(error), pause_s)
            except Exception as error:  # noqa: BLE001
                # Head of the loop: log it and go on. The next step starts from the log's state.
                _log.exception("mirroring ended in an unexpected error")
                pause_s = self._after(f"{type(error).__name__}: {error}", pause_s)
        # In the thread that uses the connection, because it is not thread-safe.
        self._mirror.close()

    def _after(self, why: str, pause_s: float) -> float:
        """Drop what is not in the log; returns the wait before the next attempt."""
        try:
            self._mirror.give_up(why)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("closing the connection ended in an unexpected error")
        # Exponential backoff; a successful step resets it.
        return min(self._retry_max_s, 2 * pause_s or RETRY_FIRST_S)
