"""`location: catalog`: the catalog places tables, and archives stay in the data folder. Does everything else
still hold?
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.catalog.rest_catalog import RestCatalog

TABLE = "placed.clicks"
_REST = pytest.param("rest", marks=pytest.mark.spark)


class Placed:
    """A deployment whose one table the catalog places below `warehouse`."""

    def __init__(self, folder: Path, rest: RestCatalog | None) -> None:
        self.warehouse = folder / "warehouse" if rest is None else rest.warehouse
        database = f"sqlite:///{folder}/d/catalog.db?timeout=60"
        plain = (
            {"type": "sql", "uri": database, "warehouse": f"file://{self.warehouse}"}
            if rest is None
            else rest.properties
        )
        self._plain = {name: str(value) for name, value in plain.items()}
        self.catalog: dict[str, Any] = {
            "name": "local",
            **self._plain,
            "location": "catalog",
            "locations": [f"file://{self.warehouse}"],
        }
        topic = {
            "name": "clicks",
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": TABLE},
        }
        self.deployment = Deployment(folder / "d", overrides={"catalogs": [self.catalog], "topics": [topic]})

    def client(self) -> Catalog:
        return load_catalog("local", **self._plain)

    def say(self, **settings: object) -> None:
        self.catalog.update(settings)
        self.deployment.write(self.deployment.document())

    def round(self, count: int = 3) -> Any:
        with Driver(self.deployment) as driver:
            driver.send("clicks", [b"x"] * count)
            return driver.archive().of("clicks")

    def rows(self) -> int:
        client = self.client()
        try:
            return client.load_table(TABLE).scan().to_arrow().num_rows
        finally:
            client.close()

    def files(self, folder: Path) -> set[Path]:
        return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["sql", _REST])
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> Placed:
    rest = None
    if request.param == "rest":
        rest = request.getfixturevalue("rest_catalog")
        rest.empty()
    return Placed(tmp_path, rest)


def test_made_committed_cleaned_audited_and_made_again(placed: Placed) -> None:
    for _ in range(3):
        assert placed.round().state == "archived"
    client = placed.client()
    table = client.load_table(TABLE)
    assert table.location().startswith(f"file://{placed.warehouse}/"), table.location()
    assert f"{placed.warehouse}/" in table.metadata_location
    assert len(placed.files(placed.warehouse)) >= 3
    archives = [task.file.file_path for task in table.scan().plan_files()]
    assert {path.startswith(f"file://{placed.deployment.data}/archive/") for path in archives} == {True}
    assert placed.rows() == 9
    client.close()

    assert audit(placed) == ("valid", 9)
    outside = placed.files(placed.warehouse)
    document = placed.deployment.document()
    # With the shortest ages that the configuration accepts, as much as possible is old enough to delete.
    for _ in range(2):
        done = placed.deployment.cli("clean", "--output", "json")
        assert done.code == 0, done.err
    assert placed.files(placed.warehouse) == outside, "nothing outside of the data folder is ours to delete"
    assert all(Path(path.removeprefix("file://")).exists() for path in archives)
    reconciled = placed.deployment.cli("reconcile", "--output", "json")
    assert reconciled.code == 0, reconciled.out + reconciled.err

    client = placed.client()
    client.drop_table(TABLE)
    client.close()
    done = placed.deployment.cli("reconcile", "--rebuild", "--output", "json")
    assert done.code == 0, done.out + done.err
    assert placed.rows() == 9
    client = placed.client()
    assert client.load_table(TABLE).location().startswith(f"file://{placed.deployment.data}/archive/"), (
        "it is made in the data folder, next to its archives"
    )
    client.close()
    assert placed.round().state == "archived"
    assert audit(placed) == ("valid", 12)
    placed.deployment.write(document)


def test_another_mind_about_the_location_halts_and_can_be_changed_back(placed: Placed) -> None:
    assert placed.round().state == "archived"
    placed.say(location="data")
    report = placed.round()
    assert report.state == "halted"
    assert "or leave it to the catalog where its tables lie" in report.why
    placed.say(location="catalog")
    assert placed.round().state == "archived"
    assert (placed.rows(), audit(placed)) == (9, ("valid", 9))


def audit(placed: Placed) -> tuple[str, int]:
    """Verdict and rows."""
    done = placed.deployment.cli("audit", "--output", "json")
    found = json.loads(done.out)
    return found["verdict"], sum(part["rows"] for part in found["partitions"])
