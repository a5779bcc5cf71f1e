"""How often Python looks for circles in a daemon."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from archiver.daemon.collector import OBJECTS, look_less_often
from intake.sources.kafka_client import PORTION_RECORDS


@pytest.fixture
def looks() -> Iterator[list[str]]:
    """What is told of the collector's looks while the test runs, and its settings put back."""
    before, told = gc.get_threshold(), list[str]()

    def tell(phase: str, info: dict[str, int]) -> None:
        told.append(phase)

    gc.callbacks.append(tell)
    yield told
    gc.callbacks.remove(tell)
    gc.set_threshold(*before)


def test_what_is_taken_at_once_starts_no_look_and_circles_are_found_all_the_same(looks: list[str]) -> None:
    look_less_often()
    for _ in range(20):
        gc.collect()
        looks.clear()
        held: list[Any] = [[] for _ in range(2 * PORTION_RECORDS)]
        assert held and not looks
        del held
    circles: list[Any] = [[] for _ in range(2 * OBJECTS)]
    for circle in circles:
        circle.append(circle)
    assert looks
