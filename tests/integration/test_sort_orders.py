"""Tables list sort order 0 and their default: other engines' rewrites by an order of their own need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ServerError
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate

from archiver.catalog.iceberg.values import adds_order
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table


def orders(deployment: Deployment) -> tuple[list[int], int]:
    """Ids of the listed orders, and the default one."""
    with catalog_table(deployment, "shop.clicks") as table:
        return sorted(
            order.order_id for order in table.metadata.sort_orders
        ), table.metadata.default_sort_order_id


def archive(driver: Driver) -> str:
    driver.send("clicks", [b"a"], 0)
    return driver.archive().topics["clicks"].state


def test_a_new_table_lists_order_0_and_keeps_its_default(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        for _ in range(2):
            assert archive(driver) == "archived"
            assert orders(deployment) == ([0, 1], 1)


def test_a_table_of_an_older_version_gets_order_0_with_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment(tmp_path / "d")
    with monkeypatch.context() as patched:
        patched.setattr("archiver.catalog.iceberg.adapter.unlisted_orders", lambda metadata: ())
        with Driver(deployment) as driver:
            assert archive(driver) == "archived"
    assert orders(deployment) == ([1], 1)
    with Driver(deployment) as driver:
        assert archive(driver) == "archived"
        assert orders(deployment) == ([0, 1], 1)
        driver.check_complete("clicks")


@pytest.mark.parametrize(
    "refusal",
    [
        CommitFailedException("this catalog adds no sort orders"),
        ServerError("NullPointerException: add-sort-order"),
    ],
)
def test_a_catalog_that_takes_no_sort_orders_holds_up_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    deployment, refused = Deployment(tmp_path / "d"), 0
    real = SqlCatalog.commit_table

    def without_orders(catalog: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        nonlocal refused
        if adds_order(updates):
            refused += 1
            raise refusal
        return real(catalog, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", without_orders)
    with Driver(deployment) as driver:
        archive(driver)  # whether a request that ended with a server's error was applied is not known at once
        assert archive(driver) == "archived"
        driver.check_complete("clicks")
    assert (orders(deployment), refused) == (([1], 1), 1)


def test_an_order_that_another_writer_adds_at_the_same_time_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's own library refuses to read a table that lists an order twice."""
    deployment, raced = Deployment(tmp_path / "d"), False
    real = SqlCatalog.commit_table

    def behind_another(catalog: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        nonlocal raced
        if adds_order(updates) and not raced:
            raced = True
            unordered = (
                AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),
                SetDefaultSortOrderUpdate(sort_order_id=0),
            )
            real(catalog, table, (), unordered)
        return real(catalog, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", behind_another)
    with Driver(deployment) as driver:
        assert archive(driver) == "archived"
        driver.check_complete("clicks")
    assert (orders(deployment), raced) == (([0, 1], 0), True)
