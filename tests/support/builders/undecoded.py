"""Archives with records that could not be decoded, a schema that is fixed later, and what a replay of them
must leave as it was.

A codec that refuses some payloads stands for a schema that cannot read them: what it writes is what archives
of such a schema are, and without it the topic's own schema is the fixed one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from archiver.rewrite.replay_report import ReplayReport, TopicReplay
from archiver.schema.protobuf.engine import Decoded
from archiver.schema.protobuf.ptars_engine import PtarsEngine
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.orders import order

NOT_UTF8 = "field note: invalid utf-8"
MALFORMED = "unexpected end of the message"
NEVER = b"\xff\xff never a message"
BAD = (2, 3, 7, 12)
COUNT = 20


@contextmanager
def unmended(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int]) -> Iterator[None]:
    """While it lasts, the orders of these numbers cannot be decoded, every other one of them for another
    cause."""
    refused = {
        order(number, lines=number % 4): (NOT_UTF8, MALFORMED)[place % 2]
        for place, number in enumerate(numbers)
    }
    true = PtarsEngine.decode

    def decode(self: PtarsEngine, payloads: Any) -> Decoded:
        found = true(self, payloads)
        errors = dict(found.errors)
        for row, payload in enumerate(payloads.to_pylist()):
            if payload in refused:
                errors.setdefault(row, refused[payload])
        wrong: Any = pa.array([row in errors for row in range(len(payloads))], pa.bool_())
        columns: Any = found.columns
        return dataclasses.replace(
            found,
            columns=pa.StructArray.from_arrays(columns.flatten(), fields=list(columns.type), mask=wrong),
            errors=errors,
        )

    with monkeypatch.context() as patch:
        patch.setattr(PtarsEngine, "decode", decode)
        yield


def send_unmended(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, first: int = 0, partition: int = 0
) -> None:
    """Twenty orders, one value that never decodes and a tombstone, archived while the orders `BAD` cannot be
    decoded."""
    values: list[bytes | None] = [order(number, lines=number % 4) for number in range(first, first + COUNT)]
    driver.send("orders", [*values, NEVER, None], partition)
    with unmended(monkeypatch, [first + number for number in BAD]):
        driver.archive()


def replay(driver: Driver, files_max: int = 1000, *, dry_run: bool = False) -> TopicReplay:
    """One replay of the orders."""
    report: ReplayReport = driver.application.archiving.replaying(
        driver.reported.append, dry_run=dry_run
    ).run(("orders", None), files_max, dry_run=dry_run)
    return report.topics[0]


def rows_in_table(deployment: Deployment) -> dict[tuple[int, int], Any]:
    """(partition, offset) → the value column, as pyiceberg reads the table of the orders; no row stands there
    twice."""
    with catalog_table(deployment, "shop.orders") as table:
        found = table.scan(selected_fields=("value", "kafka")).to_arrow()
    partitions, offsets = (
        pc.struct_field(found["kafka"], name).to_pylist() for name in ("partition", "offset")
    )
    places = list(zip(partitions, offsets, strict=True))
    assert len(set(places)) == len(places)
    return dict(zip(places, found["value"].to_pylist(), strict=True))


def undecoded_in_table(deployment: Deployment) -> list[tuple[int, int]]:
    """Where values stand that are not decoded."""
    return sorted(
        place
        for place, value in rows_in_table(deployment).items()
        if value is not None and value["__err__"] is not None
    )


def files_of_table(deployment: Deployment) -> set[str]:
    """The paths of the data files of the orders' table."""
    with catalog_table(deployment, "shop.orders") as table:
        return {task.file.file_path for task in table.scan().plan_files()}
