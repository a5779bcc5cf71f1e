"""What holds for all tests: the order in which files go to the processes that share a run."""

from __future__ import annotations

import pytest

LONGEST = (
    *("tests/system/test_soak.py", "tests/system/test_serve_spark_lost.py", "tests/system/test_installed.py"),
    *("tests/fault/sweep/test_sweep.py", "tests/fault/sweep/test_sweep_spark.py", "tests/integration/test_foreign_spark_tools.py"),
    *(f"tests/simulation/publish/test_publish_{number}_quarter.py" for number in ("first", "second", "third", "fourth")),
)
"""Minutes each: begun last, one of them would run alone at the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order is random otherwise."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
