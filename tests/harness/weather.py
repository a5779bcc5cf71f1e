"""Bad weather: a layer around the object store and the logs of one process that makes calls slow, fail, or
lose their replies.

It lives in the harness and is put around the real parts where the composition root makes them; the product
has no code for it. When it is bad is a plan (`Spell`s, in seconds since the beginning); which call is hit is
drawn from a seeded source. Every hit is reported, so that a run knows what it has played. Must never do what
a real dependency cannot: a failed call changed nothing, a lost one may have.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from archiver.app import deployment
from archiver.log.store import Appended, Log
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from tests.harness.fault_plan import ERROR, LOST, REPLY_LOST, SLOW, WEATHER, Spell

_CHANGES = ("create", "create_from_file")
_LOOKS = ("read", "read_range", "open_input", "info", "list")
_T = TypeVar("_T")


class Weather:
    """Decides about each call. Thread-safe."""

    def __init__(
        self,
        spells: Sequence[Spell],
        rng: random.Random,
        elapsed_s: Callable[[], float],
        tell: Callable[[str, str], None],
    ) -> None:
        """`elapsed_s` is the time since the beginning; `tell` takes kind and call of each hit.

        Each spell that begins from now on hits at least one call, if only the first after its end.
        """
        self._spells = tuple(spells)
        self._owed = [spell for spell in spells if spell.start_s >= elapsed_s()]
        self._rng = rng
        self._elapsed_s = elapsed_s
        self._tell = tell
        self._lock = threading.Lock()

    def strike(self, call: str, kinds: Sequence[str]) -> str | None:
        """What happens to this call, of these kinds; waits if it is to be slow."""
        now = self._elapsed_s()
        with self._lock:
            hits = [
                spell
                for spell in self._spells
                if spell.start_s <= now < spell.end_s and self._rng.random() < spell.chance
            ]
            owed = [spell for spell in self._owed if spell.start_s <= now]
            hit = next((spell for spell in [*owed, *hits] if spell.kind in kinds), None)
            if hit is None:
                return None
            if hit in self._owed:
                self._owed.remove(hit)
        self._tell(hit.kind, call)
        if hit.kind == SLOW:
            time.sleep(hit.slow_s)
        return hit.kind


class StormyStore:
    """An `ObjectStore` in the weather."""

    def __init__(self, store: ObjectStore, weather: Weather) -> None:
        self._store = store
        self._weather = weather

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in _CHANGES and name not in _LOOKS:
            return method
        kinds = WEATHER if name in _CHANGES else (SLOW, ERROR)

        def call(*arguments: Any, **named: Any) -> Any:
            what = f"objects.{name}"
            return _apply(self._weather.strike(what, kinds), what, lambda: method(*arguments, **named))

        return call


class StormyLog:
    """A `Log` in the weather. A lost append may still arrive: just before the next one does, as from a slow
    network."""

    def __init__(self, log: Log, weather: Weather, rng: random.Random) -> None:
        self._log = log
        self._weather = weather
        self._rng = rng
        self._late: list[tuple[int, bytes]] = []
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, index: int, data: bytes) -> Appended:
        """As the log's; or its reply is lost."""
        with self._lock:
            late, self._late = self._late, []
        for late_index, late_data in late:
            self._log.append(late_index, late_data)
        hit = self._weather.strike(f"{self._log.name}.append", WEATHER)
        if hit == ERROR:
            raise RetryLater("the harness refuses this append")
        if hit == LOST:
            with self._lock:
                if self._rng.random() < 0.5:
                    self._late.append((index, data))
            return Appended.UNKNOWN
        done = self._log.append(index, data)
        return Appended.UNKNOWN if hit == REPLY_LOST else done

    def read(self, *arguments: Any, **named: Any) -> Any:
        """As the log's; or it fails."""
        what = f"{self._log.name}.read"
        return _apply(
            self._weather.strike(what, (SLOW, ERROR)), what, lambda: self._log.read(*arguments, **named)
        )


def _apply(hit: str | None, what: str, work: Callable[[], _T]) -> _T:
    if hit == ERROR:
        raise RetryLater(f"the harness refuses {what}")
    if hit == LOST:
        raise OutcomeUnknown(f"the harness loses {what}")
    done = work()
    if hit == REPLY_LOST:
        raise OutcomeUnknown(f"the harness loses the reply to {what}")
    return done


def put_around(weather: Weather, rng: random.Random) -> None:
    """Every store and log that this process opens from now on is in the weather."""
    real_store, real_metadata = vars(deployment)["open_store"], vars(deployment)["open_metadata"]

    def stormy_store(*arguments: Any, **named: Any) -> Any:
        return StormyStore(real_store(*arguments, **named), weather)

    def stormy_metadata(*arguments: Any, **named: Any) -> Any:
        opened = real_metadata(*arguments, **named)
        real_log = opened.log
        opened.log = lambda name: StormyLog(real_log(name), weather, rng)
        return opened

    setattr(deployment, "open_store", stormy_store)  # noqa: B010 - the checker forbids a plain assignment
    setattr(deployment, "open_metadata", stormy_metadata)  # noqa: B010
