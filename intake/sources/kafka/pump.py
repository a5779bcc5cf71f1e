"""The threads that mirror Kafka topics for as long as a daemon runs, one for each source.

Promises that no error ends a thread: what cannot be done now is said in `state` and tried again, after the
source's `discover_interval` at the most. Nothing waits for it, and it waits for nothing without a bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import IdSource
from intake.log.sequencer import Sequencer
from intake.sources.kafka.mirror import Mirror, MirrorSettings, PieceSettings
from intake.sources.kafka.state import MirrorState
from intake.sources.kafka.upstream import Upstream
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter

RETRY_FIRST_S = 0.2
"""The first pause after an error; it doubles up to the source's `discover_interval`."""

_log = logging.getLogger(__name__)


class IntakeSettings(PieceSettings, Protocol):
    """What a mirror and its publisher need of the `intake` settings; durations in seconds, sizes in bytes."""

    @property
    def row_group_bytes(self) -> int:
        """Raw bytes at which a row group closes."""

    @property
    def clock_skew_max(self) -> float:
        """How far the clock may be ahead of its reference."""

    @property
    def clock_settle(self) -> float:
        """How long the clock must run evenly before the reference is taken anew."""


def mirror_pump(
    settings: MirrorSettings,
    intake: IntakeSettings,
    sequencer: Sequencer,
    objects: ObjectStore,
    clock: Clock,
    ids: IdSource,
    connect: Callable[[], Upstream],
) -> MirrorPump:
    """A source with everything it needs, not started. `connect` makes its connection."""
    accept_clock = AcceptClock(clock, intake.clock_skew_max, intake.clock_settle)
    publisher = FlushWriter(objects, sequencer, intake.row_group_bytes, clock, ids, accept_clock)
    mirror = Mirror(settings, intake, sequencer, publisher, accept_clock, clock, connect)
    return MirrorPump(settings.name, mirror, settings.discover_interval)


def stop_all(pumps: Sequence[MirrorPump], timeout_s: float, clock: Clock) -> list[str]:
    """End all of them within that time, not each; the names of those that have not ended. What they still
    append is whole or not there.
    """
    for pump in pumps:
        pump.begin_to_stop()
    until_s = clock.monotonic_s() + timeout_s
    late = [pump.name for pump in pumps if not pump.stop(max(0.0, until_s - clock.monotonic_s()))]
    for name in late:
        _log.warning(
            "source %s has not ended within %g s and is left to itself: what it has not taken in is "
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
        """Begin, in a thread."""
        self._thread.start()

    def begin_to_stop(self) -> None:
        """Read nothing more; does not wait."""
        self._stopping.set()

    def stop(self, timeout_s: float) -> bool:
        """End it; whether it has ended within that time. What was read and is not in the log is read
        again.
        """
        self.begin_to_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def state(self) -> MirrorState:
        """The source as of a moment ago."""
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
                # The head of the loop: nobody else would learn of it, and the next step begins with what the
                # log says.
                _log.exception("mirroring ended in an error nobody expected")
                pause_s = self._after(f"{type(error).__name__}: {error}", pause_s)
        self._mirror.close()

    def _after(self, why: str, pause_s: float) -> float:
        """Give up what is not in the log; how long to wait before the next try."""
        try:
            self._mirror.give_up(why)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("letting go of the cluster ended in an error nobody expected")
        return min(self._retry_max_s, 2 * pause_s or RETRY_FIRST_S)
