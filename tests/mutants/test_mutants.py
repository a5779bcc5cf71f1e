"""The mutants fit the code, every one the issue asks for is there, and the run says so when one survives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants import __main__ as playing
from tests.mutants.breaking import ROOT, Mutant, TextGone, broken, broken_text
from tests.mutants.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_fits_the_code(mutant: Mutant) -> None:
    text = broken_text(mutant)
    compile(text, mutant.path, "exec")
    assert text != (ROOT / mutant.path).read_text(encoding="utf-8")
    assert mutant.tests or mutant.simulated, "somebody is to notice it"
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file()


def test_names_are_unlike() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


def test_every_invariant_of_groups_and_loops_has_a_mutant() -> None:
    folder = ROOT / "tests" / "simulation" / "kafka"
    stated = re.compile(r'Violation\(\s*"([^"]+)"')
    invariants = {one: stated.findall(one.read_text(encoding="utf-8")) for one in folder.glob("*.py")}
    judged = {judge for mutant in MUTANTS for judge in mutant.judges}
    assert judged <= {name for names in invariants.values() for name in names}
    expected = {*invariants[folder / "group_watch.py"], *invariants[folder / "loop_watch.py"]}
    assert len(expected) > 10
    assert expected - judged == set()


def test_a_text_that_is_gone_or_there_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for old, count in (("y = 1", 0), ("x = 1", 2)):
        with pytest.raises(TextGone, match=f"its text is {count} times in a.py"):
            broken_text(Mutant("m", "a.py", old, "z"), tmp_path)


def test_the_copy_is_whole_again(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with broken(Mutant("m", "a.py", "x = 1", "x = 2"), tmp_path):
        assert (tmp_path / "a.py").read_text() == "x = 2\n"
    assert (tmp_path / "a.py").read_text() == "x = 1\n"


def test_a_survivor_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A comment changes nothing; a fold that knows no format is noticed."""
    tests = ("tests/unit/test_sequencer.py::test_a_topic_is_declared_once",)
    formats = "ENTRY_FORMATS = (1, 2, 3, 4, 5, 6, 7)"
    harmless = Mutant(
        "harmless", "intake/log/entries.py", formats, f"{formats}  # still", tests, simulated=False
    )
    harmful = Mutant(
        "harmful", "intake/log/entries.py", formats, "ENTRY_FORMATS = (8, 9)", tests, simulated=False
    )
    monkeypatch.setattr(playing, "MUTANTS", (harmless, harmful))
    assert playing.main(["--jobs", "1"]) == 1
    said = capsys.readouterr().out
    assert re.search("^harmless +NOT CAUGHT", said, re.MULTILINE)
    assert re.search("^harmful +caught by tests/unit/test_sequencer.py", said, re.MULTILINE)
    assert "2 mutants, 1 not caught ['harmless']" in said
