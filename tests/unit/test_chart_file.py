"""The file with the charts: it gives back what was written, and any other content is refused."""

from __future__ import annotations

import json
import random
import zlib
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.runtime.ids import TopicId
from archiver.runtime.local_file import NotUsable
from archiver.status import chart_file
from archiver.status.chart_file import FILE_BYTES_MAX, TOPICS_MAX, decode, encode
from archiver.status.history import SERIES, STEPS, KeptHistory, KeptSeries, LagHistory, LagSample
from archiver.status.lag import LagReport, PartitionLag, StageLag, TopicLag
from archiver.status.rates import Accepted

SPAN_S = 480.0
"""With this span a step is one second."""
NOW_US = 1_767_323_045_000_000
CLUSTER = "c" * 32
HOSTILE = "</td><script>\u202e" + "é" * 100


def look(*lags: tuple[str, float | None, int | None]) -> LagReport:
    topics = []
    for name, seconds, records in lags:
        stages = {"stable": StageLag(10, 0, 0.0), "committed": StageLag(0, records, seconds)}
        partition = PartitionLag(name, 0, 0, 10, stages, None, None, None)  # type: ignore[arg-type]
        topics.append(TopicLag(name, TopicId("0" * 32), "iceberg", (partition,), None, None, 0, None))
    return LagReport(0, tuple(topics), ())


def lived(seconds: int = 30, *names: str) -> LagHistory:
    history = LagHistory(SPAN_S, 100)
    for second in range(seconds):
        lags = [(name, None if second == 7 else second / 3, second) for name in names or ("orders", HOSTILE)]
        traffic = {name: Accepted(1.0, second * 10, second * 1000) for name, *_ in lags}
        history.add(look(*lags), 1000.0 + second, traffic if second else None)
    return history


def kept(history: LagHistory, monotonic_s: float) -> KeptHistory:
    found = history.dump(monotonic_s)
    assert found is not None
    return found


def carried(history: LagHistory, saved_s: float, passed_us: int, monotonic_s: float) -> LagHistory:
    data = encode(kept(history, saved_s), NOW_US, CLUSTER)
    following = LagHistory(SPAN_S, 100)
    following.restore(decode(data, NOW_US + passed_us, CLUSTER), monotonic_s)
    return following


def rounded(samples: list[LagSample]) -> list[tuple[float | None, ...]]:
    return [
        tuple(
            None if value is None else round(value, 3)
            for value in (one.seconds, one.records, one.records_per_s, one.bytes_per_s)
        )
        for one in samples
    ]


@pytest.mark.parametrize("monotonic_s", [3.0, 1029.0, 1e6 + 0.5])
def test_a_restarted_daemon_continues_the_line_with_a_hole(monotonic_s: float) -> None:
    """Also right after the machine started, whose monotonic clock is then at 0."""
    before = lived()
    following = carried(before, 1029.0, 10_000_000, monotonic_s)
    for name in ("orders", HOSTILE):
        assert rounded(following.samples(name)) == rounded(before.samples(name))
    assert following.samples("orders")[0].seconds == 0
    assert following.known_s == before.known_s
    following.add(look(("orders", 99.0, 5)), monotonic_s)
    seconds = [sample.seconds for sample in following.samples("orders")]
    assert len(seconds) in (40, 41), "ten seconds passed, and a step may begin between two seconds"
    assert seconds[-1] == 99
    assert set(seconds[31:-1]) == {None}
    assert following.topics() == sorted([HOSTILE, "orders"])


def test_rates_are_the_mean_of_a_step_and_unknown_without_a_count() -> None:
    history = LagHistory(SPAN_S, 10)
    history.add(look(("orders", 0.0, 0)), 10.0)
    history.add(look(("orders", 0.0, 0)), 10.5, {"orders": Accepted(0.5, 10, 100)})
    history.add(look(("orders", 0.0, 0)), 10.9, {"orders": Accepted(0.25, 5, 0)})
    history.add(look(("orders", 0.0, 0)), 11.0, {"other": Accepted(0.1, 1, 1)})
    assert [(one.records_per_s, one.bytes_per_s) for one in history.samples("orders")] == [
        (20, pytest.approx(100 / 0.75)),
        (None, None),
    ]


def test_a_restart_within_a_step_keeps_its_mean() -> None:
    before = lived(30)
    following = carried(before, 1029.0, 0, 1029.0)
    following.add(look(("orders", 0.0, 0)), 1029.5, {"orders": Accepted(1.0, 0, 0)})
    last = following.samples("orders")[-1]
    assert (last.records_per_s, last.bytes_per_s) == (145, 14500), "half of it, and not 0"


def test_what_is_too_old_of_another_span_or_late_is_left_out() -> None:
    before = kept(lived(), 1029.0)
    assert not LagHistory(SPAN_S, 10).restore(replace(before, ago_s=SPAN_S), 5.0)
    assert not LagHistory(SPAN_S * 2, 10).restore(before, 5.0)
    begun = lived(3)
    assert not begun.restore(before, 5.0), "its own samples are newer"
    assert len(begun.samples("orders")) == 3
    assert LagHistory(SPAN_S, 10).dump(1.0) is None
    few = LagHistory(SPAN_S, 1)
    assert few.restore(before, 5.0)
    assert few.topics() == ["orders"]


def test_a_clock_that_was_set_back_puts_nothing_into_the_future() -> None:
    following = carried(lived(), 1029.0, -86_400_000_000, 2000.0)
    assert following.samples("orders")[-1].age_s == 0
    following.add(look(("orders", 1.0, 1)), 2000.0)
    assert len(following.samples("orders")) in (30, 31)


def test_a_full_history_is_carried_over_whole() -> None:
    before = lived(2 * STEPS + 17, "orders")
    following = carried(before, 1000.0 + 2 * STEPS + 16, 0, 77.0)
    assert rounded(following.samples("orders")) == rounded(before.samples("orders"))
    assert len(following.samples("orders")) == STEPS


def head_of(data: bytes) -> dict[str, object]:
    found = json.loads(data.partition(b"\n")[0])
    assert isinstance(found, dict)
    return found


def with_head(data: bytes, **changes: object) -> bytes:
    return json.dumps(head_of(data) | changes).encode() + b"\n" + data.partition(b"\n")[2]


def with_body(data: bytes, body: bytes) -> bytes:
    return with_head(data, crc32=zlib.crc32(body)).partition(b"\n")[0] + b"\n" + zlib.compress(body)


def refused(data: bytes) -> str:
    with pytest.raises(NotUsable) as caught:
        decode(data, NOW_US, CLUSTER)
    return str(caught.value)


def test_a_file_that_is_not_ours_is_refused_with_the_reason() -> None:
    data = encode(kept(lived(), 1029.0), NOW_US, CLUSTER)
    body = zlib.decompress(data.partition(b"\n")[2])
    assert decode(data, NOW_US, CLUSTER).topics.keys() == {"orders", HOSTILE}
    reasons = {
        refused(one)
        for one in (
            b"",
            b"\n",
            b"x" * 5000 + b"\n",
            b"[" * 4000 + b"\n",
            b"[]\n",
            b'{"file": 1}\n',
            with_head(data, format=2),
            with_head(data, format=True),
            with_head(data, steps=481),
            with_head(data, cluster_id="d" * 32),
            with_head(data, newest_us=10**400),
            with_head(data, newest_us=1.5),
            with_head(data, span_s="6h"),
            with_head(data, known_s=float("nan")),
            with_head(data, crc32=None),
            data[:-1],
            data + b"x",
            with_body(data, body[:-1]),
            with_body(data, body + body),
            with_body(data, b"\xff\xff\xff\xff" + body),
            with_body(data, b"\x01\x00\x00\x00\xff" + body),
            with_body(data, body + b"\x00"),
        )
    }
    assert reasons == {
        "it does not begin as such a file does",
        "its first line is not JSON",
        "it holds no charts",
        "it has another format",
        "it is of another cluster",
        "its times are none",
        "its checksum is another one",
        "its samples are cut off or too many",
        "a topic in it is damaged",
    }


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("-inf")])
def test_values_that_no_lag_has_are_refused(value: float) -> None:
    values = {one: array("d", [0.0]) * STEPS for one in SERIES}
    values["records_per_s"][3] = value
    history = KeptHistory(0.0, SPAN_S, 5.0, {"orders": KeptSeries(0, values)})
    assert refused(encode(history, NOW_US, CLUSTER)) == "a sample in it is no number of a lag"


def test_a_small_file_that_inflates_is_read_up_to_its_bound() -> None:
    data = encode(kept(lived(), 1029.0), NOW_US, CLUSTER)
    assert refused(with_body(data, bytes(FILE_BYTES_MAX + 1))) == "its samples are cut off or too many"


def test_the_largest_history_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    values = {one: array("d", [chance.random() for _ in range(STEPS)]) for one in SERIES}
    monkeypatch.setattr(chart_file, "TOPICS_MAX", 20)
    topics = {f"{number:0250}": KeptSeries(0, values) for number in range(30)}
    topics["x" * 2000] = KeptSeries(0, values)
    data = encode(KeptHistory(0.0, SPAN_S, 5.0, topics), NOW_US, CLUSTER)
    assert len(decode(data, NOW_US, CLUSTER).topics) == 20
    assert len(data) * TOPICS_MAX / 20 < FILE_BYTES_MAX


DATA = encode(kept(lived(), 1029.0), NOW_US, CLUSTER)


@given(st.integers(0, len(DATA) - 1), st.integers(0, 255))
def test_any_changed_byte_is_refused_or_changes_nothing(place: int, value: int) -> None:
    changed = DATA[:place] + bytes([value]) + DATA[place + 1 :]
    try:
        found = decode(changed, NOW_US, CLUSTER)
    except NotUsable:
        return
    # Times and white space of the first line have no checksum.
    assert found.topics.keys() == {"orders", HOSTILE}


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    refused(data)
