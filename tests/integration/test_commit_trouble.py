"""Does an error of any library stay a problem of one table?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.tables import SwapOutcome
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SeededIds
from tests.contract.test_tables import one_file
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.catalog.failing_io import IMPLEMENTATION, FailingIO
from tests.support.catalog.table_catalogs import loaded, made


@pytest.fixture
def failing() -> Iterator[type[FailingIO]]:
    FailingIO.failing = FailingIO.failed = 0
    yield FailingIO
    FailingIO.failing = 0


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("which", [1, 2])
def test_a_reset_while_manifests_are_written_is_retried(
    tmp_path: Path, failing: type[FailingIO], merge: bool, which: int
) -> None:
    """pyiceberg raises `ValueError("An empty manifest file has been written")`, which hides the error of the
    store."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog/catalog.db",
        "py-io-impl": IMPLEMENTATION,
    }
    tables = IcebergTables("local", properties, SeededIds(7))
    view = made(tables, tmp_path)
    for number in range(3):
        request = tables.prepare(view, [one_file(view, number, number + 1)], lambda _s, _n: {}, {}, False, ())
        assert tables.swap(request).outcome is SwapOutcome.APPLIED
        view = loaded(tables)
    failing.failing = which
    with pytest.raises(RetryLater, match="Connection reset by peer"):
        tables.prepare(view, [one_file(view, 3, 4)], lambda _s, _n: {}, {}, merge, ())
    assert failing.failed >= 1
    failing.failing = 0
    request = tables.prepare(view, [one_file(view, 3, 4)], lambda _s, _n: {}, {}, merge, ())
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    assert len(list(tables.live_files(loaded(tables)))) == 4
    tables.close()


def topic(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": 1,
        "archive": {"kind": "iceberg", "catalog": "local", "table": f"t.{name}"},
    }


def test_an_unexpected_error_in_one_table_does_not_end_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment(tmp_path, overrides={"topics": [topic("good"), topic("bad")]})
    with Driver(deployment) as driver:
        for name in ("good", "bad"):
            driver.send(name, [b"x"] * 3)
        swap = IcebergTables.swap

        def broken(self: IcebergTables, prepared: Any) -> Any:
            if prepared.identifier[-1] == "bad":
                raise KeyError("an error that no adapter knows")
            return swap(self, prepared)

        monkeypatch.setattr(IcebergTables, "swap", broken)
        report = driver.archive()
        assert report.of("good").state == "archived"
        assert "KeyError" in str(report.of("bad").why)
        monkeypatch.undo()
        assert driver.archive().of("bad").state == "archived"
    assert deployment.cli("audit").code == 0
