"""How long a piece of a mirror waits for more records: longer while polls leave more behind, so that fewer
files are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import TopicId
from intake.log.fold import TopicState
from intake.sources.kafka.batch import Cursor
from intake.sources.kafka.mirror import CATCHING_UP, Mirror
from intake.sources.kafka.upstream import Place, Polled

PLACE: Place = ("a", 0)
DELAY_S = 0.25


class Upstream:
    """Returns one record for each poll."""

    def __init__(self, *, more: bool) -> None:
        self._more = more
        self._offset = 0

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        assert records_max > 1 and timeout_s > 0
        self._offset += 1
        return Polled(["a"], [0], [self._offset - 1], [5], [None], [b"v"], [None], more=self._more)


@pytest.mark.parametrize(("more", "waits_s"), [(False, DELAY_S), (True, CATCHING_UP * DELAY_S)])
def test_a_piece_waits_longer_while_there_is_more(more: bool, waits_s: float) -> None:
    clock, parts = ManualClock(), SimpleNamespace
    pieces: Any = parts(delay_max=DELAY_S, delay_max_bytes=10**6, record_bytes_max=10**6)
    sequencer: Any = parts(entry_bytes_max=512 * 1024, fold=parts(newest_us=0))
    accepts: Any = parts(accept_us=lambda newest_us: newest_us + 1)
    settings: Any = parts(name="s", discover_interval=60.0)
    no_one: Any = None
    mirror = Mirror(settings, pieces, sequencer, no_one, accepts, clock, no_one)
    mirror._cursors[PLACE] = Cursor(
        PLACE, TopicState(TopicId("a" * 32), "a", 1, 0, mirrored=True), b"u" * 16, 0, 0, 0
    )
    upstream: Any = Upstream(more=more)
    mirror._read(upstream)
    clock.sleep(waits_s - 0.01)
    mirror._read(upstream)
    assert not mirror._is_due(), "it has still time"
    clock.sleep(0.02)
    assert mirror._is_due()
