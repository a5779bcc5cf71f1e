"""Does bench/peers detect a table that differs from the records sent?"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench.peers.__main__ import check
from bench.peers.contender import Contender
from bench.peers.upstream import STATES, decoded, facts

ROWS = 2_000


@pytest.fixture(scope="module")
def orders() -> pa.Table:
    return decoded(ROWS)


class Read(Contender):
    """A contender whose run has ended."""

    def __init__(self, table: pa.Table, unit_us: int) -> None:
        self.table, self.unit_us = table, unit_us

    def settings(self) -> dict[str, Any]:
        raise AssertionError

    def prepare(self, topics: object) -> None:
        raise AssertionError

    def begin(self, topic: str) -> None:
        raise AssertionError

    def rest(self) -> None:
        raise AssertionError

    def read(self, topic: str) -> pa.Table:
        return self.table


def replaced(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    assert values[row] != value
    values[row] = value
    return table.set_column(
        table.schema.get_field_index(name), name, pa.array(values, table.schema.field(name).type)
    )


def in_milliseconds(table: pa.Table) -> pa.Table:
    cut: Any = pc.floor_temporal(table["created"], unit="millisecond")
    return table.set_column(table.schema.get_field_index("created"), "created", cut)


def test_maps_whose_entries_are_a_slice_are_the_same(orders: pa.Table) -> None:
    """Readers return such slices. There, `map_lookup` of pyarrow 26 finds the entries of other rows."""
    maps: Any = orders["tags"].chunk(0)
    before = pa.array(["channel", "campaign"])
    keys, items = (pa.concat_arrays([before, one]).slice(len(before)) for one in (maps.keys, maps.items))
    sliced: Any = pa.MapArray.from_arrays(maps.offsets, keys, items)
    assert sliced.to_pylist() == maps.to_pylist()
    table = orders.set_column(orders.schema.get_field_index("tags"), "tags", sliced)
    check("peer", Read(table, 1), orders)


def test_order_of_rows_and_form_of_states_do_not_matter(orders: pa.Table) -> None:
    turned = orders.take(pa.array(range(ROWS - 1, -1, -1)))
    numbers: list[Any] = turned["state"].to_pylist()
    names = pa.array([STATES[number] for number in numbers])
    check("ours", Read(turned.set_column(turned.schema.get_field_index("state"), "state", names), 1), orders)


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("id", 7, "ids"),
        ("customer", "customer-000001", "customers"),
        ("state", None, "states"),
        ("total", 0.01, "total_cents"),
        ("lines", [{"sku": "sku-1", "quantity": 1, "price_cents": 1}], "price_cents"),
        ("tags", [("channel", "value-999")], "tags"),
    ],
)
def test_one_altered_row_is_noticed(orders: pa.Table, name: str, value: Any, reported: str) -> None:
    if name == "state":
        value = (orders["state"][3].as_py() + 1) % len(STATES)
    with pytest.raises(AssertionError, match=rf"the table of sink is wrong .*'{reported}'"):
        check("sink", Read(replaced(orders, name, 3, value), 1), orders)


def test_a_row_that_is_there_twice_instead_of_another_is_noticed(orders: pa.Table) -> None:
    doubled = pa.concat_tables([orders.slice(0, ROWS - 1), orders.slice(0, 1)])
    with pytest.raises(AssertionError, match="'ids'"):
        check("streaming", Read(doubled, 1), orders)


def test_times_may_be_cut_only_where_a_contender_has_no_finer_ones(orders: pa.Table) -> None:
    cut = in_milliseconds(orders)
    check("sink", Read(cut, 1000), orders)
    with pytest.raises(AssertionError, match="'created_us'"):
        check("sink", Read(cut, 1), orders)
    assert facts(orders, 1000) != facts(orders, 1)
