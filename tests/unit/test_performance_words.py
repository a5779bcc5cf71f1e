"""How docs/performance.md writes figures, paragraphs and tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.performance.measured import FigureMissingError, Measured, Spread
from scripts.performance.sections import Case, at_least, at_most, load, source, verdict
from scripts.performance.words import (
    WIDTH,
    between,
    figure,
    listed,
    paragraph,
    percent,
    ratio,
    seconds,
    shown,
    size,
    table,
    whole,
)


@pytest.mark.parametrize(
    ("how", "value", "written"),
    [
        (figure, 0, "0"),
        (figure, 1234567, "1,230,000"),
        (figure, 9.996, "10.0"),
        (figure, 0.04567, "0.0457"),
        (ratio, 0.0494, "0.049"),
        (ratio, 0.734, "0.73"),
        (ratio, 9.999, "10.0"),
        (ratio, 41.04, "41.0"),
        (whole, 2404160, "2,404,160"),
        (percent, 0.0225, "2.2 %"),
        (seconds, 469.0, "469 s"),
        (seconds, 5.85, "5.85 s"),
        (seconds, 0.0269, "26.9 ms"),
        (seconds, 0.0000044, "4.40 µs"),
        (size, 827, "827 B"),
        (size, 57578911, "57.6 MB"),
        (size, 2.5e9, "2.50 GB"),
    ],
)
def test_a_figure(how: Callable[[float], str], value: float, written: str) -> None:
    assert how(value) == written


@pytest.mark.parametrize(
    ("low", "middle", "high", "written"),
    [
        (0.1, 0.2, 0.3, "200 ms (100 to 300)"),
        (0.5, 0.9, 1.5, "900 ms (500 ms to 1.50 s)"),
        (0.5, 0.5001, 0.5002, "500 ms"),
        (1.0, 1.1, 1.2, "1.10 s (1.00 to 1.20)"),
    ],
)
def test_a_spread_says_a_unit_once(low: float, middle: float, high: float, written: str) -> None:
    assert shown(Spread(low, middle, high), seconds) == written


def test_the_least_and_the_most() -> None:
    assert between([0.3, 0.1, 0.2], seconds) == "100 to 300 ms"
    assert between([4.1, 4.2], whole) == "4"
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_no_line_ends_inside_of_a_link_or_code() -> None:
    for before in range(WIDTH - 40, WIDTH + 5):
        text = paragraph(
            f"{'x' * before} [decision 0012](decisions/0012.md) and `make sweep-log` end\n      here"
        )
        assert "[decision 0012](decisions/0012.md)" in text
        assert "`make sweep-log`" in text
        assert text.endswith("here\n")
        assert "  " not in text


def test_a_table_has_rows_as_long_as_its_head() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |\n"
    with pytest.raises(AssertionError):
        table(["a", "b"], [["1"]])


@pytest.mark.parametrize(
    ("cases", "reported"),
    [
        ([Case("1", reached=True)], "reached"),
        ([Case("1", reached=False)], "**missed**"),
        ([Case("1", reached=None)], "-"),
        ([Case("1", True, "a"), Case("1", True, "b")], "reached"),
        (
            [Case("1", True, "a"), Case("1", False, "b"), Case("1", False, "c")],
            "reached: a; **missed**: b and c",
        ),
    ],
)
def test_a_verdict(cases: list[Case], reported: str) -> None:
    assert verdict(cases) == reported


def test_what_is_judged_is_the_middle() -> None:
    spread = Spread(0.5, 0.9, 1.5)
    assert [at_least(wanted, spread).reached for wanted in (0.9, 0.91)] == [True, False]
    assert [at_most(wanted, spread).reached for wanted in (0.9, 0.89)] == [True, False]
    assert at_least(0.9, spread).measured == "0.90 (0.50 to 1.50)"


def test_a_section_names_target_result_machine_load_and_versions() -> None:
    document = {
        "machine": {"system": "Linux", "cores": 2},
        "load": 1.44,
        "versions": {"python": "3", "packages": ["many"], "etcd": "4"},
    }
    assert (
        source("bench-x", Measured("x", document))
        == "`make bench-x`, `bench/results/x.json`: Linux, 2 cores, load 1.4; python 3, etcd 4."
    )


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ({"machine": {"load_before": 0.22}}, ", load 0.2"),
        ({"load_average": [1.5, 2.0, 3.0], "load_at_end": 9.0}, ", load 1.5"),
        ({"load_average_before": [2.5, 2.0, 3.0]}, ", load 2.5"),
        ({"load_at_end": 5.7}, ", load 5.7"),
        ({}, ""),
    ],
)
def test_the_load_where_a_result_has_it(document: dict[str, object], reported: str) -> None:
    assert load(Measured("x", document)) == reported


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a.c", "bench/results/x.json: there is no a.c"),
        ("a.b.median", "bench/results/x.json: there is no a.b.median"),
        ("a.list.7", "bench/results/x.json: there is no a.list.7"),
        ("a.b", "bench/results/x.json: a.b is not a number but 'text'"),
        ("a.flag", "bench/results/x.json: a.flag is not a number but True"),
    ],
)
def test_what_is_not_there_is_reported_with_file_and_key(path: str, message: str) -> None:
    found = Measured("x", {"a": {"b": "text", "list": [1], "flag": True}})
    with pytest.raises(FigureMissingError) as failed:
        found.number(path)
    assert str(failed.value) == message
    first, _, rest = path.partition(".")
    with pytest.raises(FigureMissingError) as failed:
        found.at(first).number(rest)
    assert str(failed.value) == message, "a part says its whole path"
