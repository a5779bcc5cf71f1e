"""The share of a day: every test that takes turns has its day, and a run of named files has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.amount import names_files, not_today

VARIANTS = """
import pytest

@pytest.mark.parametrize("number", range(5))
@pytest.mark.turns(2)
def test_variant(number): ...

@pytest.mark.turns(3)
def test_one(): ...

@pytest.mark.turns(3, first=1)
def test_other(): ...

@pytest.mark.turns(2, 1, together=True)
@pytest.mark.parametrize("number", range(2))
def test_shared(number): ...

def test_daily(): ...
"""


@pytest.fixture
def items(tmp_path: Path, request: pytest.FixtureRequest) -> list[pytest.Item]:
    """The tests of a file as pytest collects them."""
    file = tmp_path / "test_variants.py"
    file.write_text(VARIANTS)
    module = pytest.Module.from_parent(request.session, path=file)
    return list(request.session.genitems(module))


def played(items: list[pytest.Item], day: int) -> set[str]:
    left_out = {item.name for item in not_today(items, day)}
    return {item.name for item in items} - left_out


def test_each_has_its_day(items: list[pytest.Item]) -> None:
    for first in (0, 20_783):
        days = [played(items, first + day) for day in range(6)]
        names = [item.name for item in items]
        assert {name: sum(name in day for day in days) for name in names} == {
            **{f"test_variant[{number}]": 3 for number in range(5)},
            "test_one": 2,
            "test_other": 2,
            **{f"test_shared[{number}]": 3 for number in range(2)},
            "test_daily": 6,
        }
        assert all(sum(name.startswith("test_variant") for name in day) in (2, 3) for day in days)
        assert all(not {"test_one", "test_other"} <= day for day in days), "they begin on different days"
        assert all(sum(name.startswith("test_shared") for name in day) in (0, 2) for day in days)


def test_a_file_that_is_named_is_played_whole() -> None:
    assert names_files(["tests", __file__])
    assert names_files([f"{__file__}::test_each_has_its_day"])
    assert not names_files(["tests", str(Path(__file__).parent)])
