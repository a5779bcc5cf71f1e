"""A finding of lost records needs two agreeing responses of the cluster. No partition begins at an unknown
offset."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest

from intake.sources.kafka.mirror import INSPECT_AGAIN_S
from intake.sources.kafka.upstream import Bounds, Place
from tests.support.kafka.memory_upstream import MemoryUpstream, records, truncated
from tests.support.kafka.mirroring import Mirroring, Site

PLACE: Place = ("t", 0)
ID = b"i" * 16


def site_of() -> Site:
    return Site("memory:0")


def begun(upstream: MemoryUpstream, site: Site, **chosen: Any) -> Mirroring:
    """A mirror that has ingested the offsets 0 to 9."""
    upstream.polls = [records(PLACE, range(10), 10)]
    mirror = site.process("t", connect=lambda: upstream, delay_max=0.001, **chosen)
    mirror.until(lambda: mirror.state.records == 10, "the records")
    return mirror


def look(mirror: Mirroring) -> list[tuple[str, str]]:
    """Inspect the cluster now; returns the findings."""
    mirror.mirror._inspect_at_s = None
    mirror.mirror._state_at_s = 0.0
    mirror.step()
    # A partition that was read before is read again over a new connection.
    if mirror.mirror._upstream is None:
        mirror.step()
    return mirror.kinds


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        (Bounds(0, 4), "behind"),
        (Bounds(0, 0), "behind"),
        (Bounds(12, 20), "truncated"),
        (Bounds(30, 30), "truncated"),
    ],
)
def test_a_finding_of_lost_records_needs_a_second_answer(bounds: Bounds, kind: str) -> None:
    upstream = MemoryUpstream({PLACE: Bounds(0, 10)}, {"t": ID})
    mirror = begun(upstream, site_of())
    upstream.bounds_now = {PLACE: bounds}
    assert look(mirror) == [("t:0", "unreadable")]
    assert upstream.reading == {}, "nothing is read until it is clear"
    assert "delete" not in mirror.state.findings[0].why, "no remedy for what is not known"
    assert mirror.mirror._inspect_at_s is not None
    assert mirror.mirror._inspect_at_s - mirror.mirror._clock.monotonic_s() <= INSPECT_AGAIN_S
    assert look(mirror) == [("t:0", kind)]
    assert look(mirror) == [("t:0", kind)], "and it stays"


@pytest.mark.parametrize("between", [Bounds(0, 10), None])
def test_an_answer_that_was_wrong_once_is_no_finding(between: Bounds | None) -> None:
    upstream = MemoryUpstream({PLACE: Bounds(0, 10)}, {"t": ID})
    mirror = begun(upstream, site_of())
    for answer in (Bounds(0, 4), between, Bounds(0, 10)):
        upstream.bounds_now = {} if answer is None else {PLACE: answer}
        found = look(mirror)
    assert found == []
    mirror.until(lambda: upstream.reading == {PLACE: (10, 3)}, "to be read on")
    upstream.bounds_now = {PLACE: Bounds(0, 4)}
    assert look(mirror) == [("t:0", "unreadable")], "a suspicion ends with an answer that fits"


def test_what_was_given_up_is_passed_over_after_a_second_answer() -> None:
    upstream = MemoryUpstream({PLACE: Bounds(0, 10)}, {"t": ID})
    site = site_of()
    begun(upstream, site).close()
    mirror = site.process("t", connect=lambda: upstream, lost={"t:0": 15})
    upstream.bounds_now = {PLACE: Bounds(15, 20)}
    assert (look(mirror), site.position("t")) == ([("t:0", "unreadable")], 10)
    assert (look(mirror), site.position("t")) == ([], 15)


@pytest.mark.parametrize("bounds", [Bounds(0, 0), Bounds(30, 30)])
def test_a_partition_without_records_begins_where_it_is(bounds: Bounds) -> None:
    """A partition that was just created, and one whose records were all deleted before the mirror saw it."""
    upstream = MemoryUpstream({PLACE: bounds}, {"t": ID})
    site = site_of()
    mirror = site.process("t", connect=lambda: upstream)
    assert look(mirror) == []
    assert look(mirror) == []
    assert (site.position("t"), upstream.reading) == (bounds.low, {PLACE: (bounds.low, None)})


def test_a_partition_whose_answer_is_missing_does_not_begin() -> None:
    upstream = MemoryUpstream({("t", 1): Bounds(0, 0)}, {"t": ID})
    site = site_of()
    mirror = site.process("t", connect=lambda: upstream)
    assert look(mirror) == [("t:0", "unreadable")]
    upstream.bounds_now[PLACE] = Bounds(0, 5)
    assert (look(mirror), site.position("t")) == ([], 0)


def test_without_an_answer_for_a_time_a_partition_does_not_begin_at_its_end() -> None:
    upstream = MemoryUpstream({PLACE: Bounds(0, 10)}, {"t": ID})
    site = site_of()
    mirror = site.process("t", connect=lambda: upstream, from_="2023-11-14T22:13:24Z")
    assert look(mirror) == [("t:0", "unreadable")]
    upstream.since = {PLACE: 4}
    assert (look(mirror), site.position("t")) == ([], 4)


def test_a_report_of_a_truncated_log_needs_a_second_one() -> None:
    upstream = MemoryUpstream({PLACE: Bounds(0, 20)}, {"t": ID})
    site = site_of()
    begun(upstream, site).close()
    mirror = site.process("t", connect=lambda: upstream)
    upstream.polls = [truncated(PLACE)]
    assert look(mirror) == []
    assert upstream.closed == 2, "it is read again over another connection"
    upstream.polls = [truncated(PLACE)]
    mirror.until(lambda: mirror.kinds == [("t:0", "diverged")], "the finding")


def test_a_description_without_an_id_is_not_another_topic() -> None:
    upstream = MemoryUpstream({PLACE: Bounds(0, 10)}, {"t": ID})
    mirror = begun(upstream, site_of())
    upstream.ids["t"] = b""
    assert look(mirror) == [("t", "unreadable")]
    upstream.ids["t"] = ID
    assert look(mirror) == []
    upstream.ids["t"] = b"j" * 16
    assert look(mirror) == [("t", "recreated")], "an id is a definite answer"


def is_read(upstream: MemoryUpstream) -> bool:
    return PLACE in upstream.reading


def is_at(site: Site, offset: int) -> bool:
    return site.position("t") == offset


def test_two_processes_on_one_source_log_little(caplog: pytest.LogCaptureFixture) -> None:
    """Lost races are normal between two daemons. They log one line, and new partitions are logged once."""
    caplog.set_level(logging.INFO, "intake")
    upstreams = [MemoryUpstream({PLACE: Bounds(0, 0)}, {"t": ID}) for _ in range(2)]
    site = site_of()
    first, second = [site.process("t", connect=lambda one=one: one, delay_max=0.001) for one in upstreams]
    races = 20
    for number in range(races):
        for one, mirror in zip(upstreams, (first, second), strict=True):
            one.bounds_now = {PLACE: Bounds(0, number + 1)}
            mirror.until(partial(is_read, one), "to read")
        for one in upstreams:
            one.polls = [records(PLACE, [number], number + 1)]
        second.mirror._read(upstreams[1])
        first.until(partial(is_at, site, number + 1), "the record")
        second.mirror._publish(upstreams[1])
    assert (first.state.records, second.state.records) == (races, 0)
    assert upstreams[1].closed >= races, "each race is lost"
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) <= 4, lines
    assert sum("another process" in one for one in lines) == 1
