"""What holds for all tests: the order in which files go to the processes that share a run."""

from __future__ import annotations

import pytest

LONGEST = (
    *("tests/system/test_soak.py", "tests/system/test_serve_spark_lost.py", "tests/system/test_installed.py"),
    *("tests/simulation/publish/test_publish_first_half.py", "tests/simulation/publish/test_publish_second_half.py"),
)
"""Minutes each: begun last, one of them would run alone at the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order is random otherwise."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
