"""Rounds of archiving against the real REST catalog behind a proxy that fails on request, refinement in the
process of the test.

One topic with a Protobuf value that may change. What a round must not do under any failure is checked from
outside: by pyiceberg on the catalog itself, by DuckDB on the files that it plans, and by the listing of
objects.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import duckdb

from archiver.ledger.views import TopicLedger
from archiver.publish.report import ArchiveReport, TopicReport
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.schema.protos import F, field, file_of, message_class, source
from tests.support.servers.http_faults import HttpFaults

TOPIC = "sales"
TIMEOUT_S = 30.0
HURRIED_S = 2.0
"""The bound on a request where a test waits for it; on a busy machine an answer may take a second."""

PARTITIONS = 2

Fields = tuple[tuple[str, int, Any], ...]
FIRST: Fields = (("price", 1, F.TYPE_INT32), ("city", 2, F.TYPE_STRING))
WIDER: Fields = (*FIRST, ("code", 3, F.TYPE_INT32))


class RestRounds:
    """A deployment in `folder`, with a table of its own in the catalog. Close it."""

    def __init__(
        self,
        folder: Path,
        catalog: RestCatalog,
        archive: dict[str, Any] | None = None,
        others: int = 0,
        faults: HttpFaults | None = None,
        catalog_settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """`archive` are settings of that group; one attempt per commit, unless they say otherwise, so that a
        fault is not outlived. `others` is a number of further topics, `other0` and so on, with tables of
        their own and raw values. `faults` is another kind of proxy before the catalog, `catalog_settings`
        more settings of the catalog.
        """
        self.catalog = catalog
        self.table = f"shop_{folder.name.replace('-', '_')}.sales"
        self.faults = faults or HttpFaults(lambda: catalog.uri)
        self._topic: dict[str, Any] = {
            "name": TOPIC,
            "partitions": PARTITIONS,
            "archive": {"kind": "iceberg", "catalog": "local", "table": self.table},
        }
        further = [
            {
                "name": f"other{number}",
                "partitions": 1,
                "archive": {**self._topic["archive"], "table": f"{self.table}_{number}"},
            }
            for number in range(others)
        ]
        self._catalog = {
            "name": "local",
            "type": "rest",
            "uri": self.faults.uri,
            "request_timeout": TIMEOUT_S,
            **(catalog_settings or {}),
        }
        overrides = {
            "catalogs": [self._catalog],
            "topics": [self._topic, *further],
            "archive": {"commit_attempts_max": 1, **(archive or {})},
            **more,
        }
        self.deployment = Deployment(folder, overrides=overrides)
        self.driver: Driver | None = None
        self.sent: list[tuple[int, int]] = []
        """(partition, offset) of everything that was acknowledged."""
        self._objects: set[Path] = set()
        self.use(FIRST)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.faults.__exit__()

    def close(self) -> None:
        """The end of the process."""
        if self.driver is not None:
            self.driver.close()
        self.driver = None

    def use(self, fields: Fields) -> None:
        """From here on, in a new process, the values have these fields."""
        self.close()
        message = file_of()
        sale = message.message_type.add(name="Sale")
        for name, number, kind in fields:
            field(sale, name, number, kind)
        one = source(message, "Sale")
        (self.deployment.root / "sale.binpb").write_bytes(one.descriptor_set)
        self._topic["value"] = {"descriptor_set": "sale.binpb", "message": "shop.Sale"}
        self._made = message_class(one)
        self._fields = fields
        self.deployment.write(self.deployment.document())

    def hurry(self, *, again: bool = True) -> None:
        """From here on, in a new process, requests are bounded by `HURRIED_S`; without `again`, as they were
        before."""
        self.close()
        self._catalog["request_timeout"] = HURRIED_S if again else TIMEOUT_S
        self.deployment.write(self.deployment.document())

    @property
    def opened(self) -> Driver:
        """The process's archiver."""
        if self.driver is None:
            self.driver = Driver(self.deployment)
        return self.driver

    def send(self, count: int = 3) -> None:
        """So many records into each partition."""
        for partition in range(PARTITIONS):
            values = [
                self._made(price=number, city="x" * number).SerializeToString() for number in range(count)
            ]
            reported = self.opened.send(TOPIC, values, partition)
            self.sent += [(one.partition, one.offset) for one in reported if one.offset is not None]

    def archive(self) -> tuple[TopicReport, ArchiveReport]:
        """One run of everything that is due."""
        report = self.opened.archive()
        return report.of(TOPIC), report

    @property
    def ledger(self) -> TopicLedger:
        """The ledger's state of the topic."""
        return self.opened.application.ledger().topic(self.opened.topic_id(TOPIC))

    # what must hold

    def rows(self) -> list[tuple[int, int]]:
        """(partition, offset) of every row of the table, doubled ones twice: as pyiceberg reads it, and as
        DuckDB reads its files."""
        client = self.catalog.client()
        try:
            if not client.table_exists(self.table):
                return []
            table = client.load_table(self.table)
            one = [
                (row["partition"], row["offset"])
                for row in table.scan().to_arrow()["kafka"].to_pylist()
                if row is not None
            ]
            files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        finally:
            client.close()
        other: list[tuple[int, int]] = []
        if files:
            query = (
                "select kafka.partition, kafka.offset from read_parquet($1, union_by_name = true, "
                "hive_partitioning = false)"
            )
            with duckdb.connect() as connection:
                other = connection.execute(query, [files]).fetchall()
        assert sorted(one) == sorted(other)
        return sorted(one)

    def check_unharmed(self) -> None:
        """Nothing was deleted, the table is readable, and no row in it is doubled or was never sent."""
        found = {
            path for path in self.deployment.data.rglob("*") if path.is_file() and ".spool" not in path.parts
        }
        gone = self._objects - found
        assert not gone, gone
        self._objects = found
        rows = self.rows()
        assert len(set(rows)) == len(rows), "doubled"
        assert set(rows) <= set(self.sent)

    def check_settled(self) -> None:
        """The table has everything, once; nothing is pending, and nothing had to be archived again."""
        self.check_unharmed()
        assert self.rows() == sorted(self.sent)
        assert not self.ledger.pending
        assert not self.ledger.killed
        self.opened.check_complete(TOPIC)

    def columns(self) -> set[str]:
        """Names of the value's columns in the table."""
        client = self.catalog.client()
        try:
            schema = json.loads(client.load_table(self.table).schema().model_dump_json())
        finally:
            client.close()
        (value,) = (item for item in schema["fields"] if item["name"] == "value")
        return {item["name"] for item in value["type"]["fields"]}
