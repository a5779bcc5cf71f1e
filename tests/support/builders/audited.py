"""A deployment for the audit: real intake files, archives and rows. The test decides what ledger and log
say."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from archiver.catalog.evidence import Evidence
from archiver.catalog.table_layout import COMMIT_ID, WATERMARKS, table_properties
from archiver.catalog.tables import SwapOutcome, Tables, TableView
from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import RefineOptions, RefineTopic, TaskDescriptor, WrittenFile
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds
from intake.log.fold import IntakeFold
from reconcile.audit.report import Audit
from tests.support.builders.refining import identify
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema

CLUSTER = "c" * 32
NOW = 20_000 * 86_400_000_000
TABLE = ("shop", "orders")
Document = dict[str, Any]


class World:
    """Two partitions of 30 records each in three intake files; what is archived, and what the ledger knows,
    is up to the test."""

    def __init__(self, root: Path) -> None:
        self.store = LocalObjectStore(root)
        identify(root, CLUSTER)
        self.clock = ManualClock()
        self.tables = MemoryTables(SeededIds(1), self.clock)
        self.intake = Intake(self.store)
        self.topic = self.intake.topic("orders", 2)
        for number in range(3):
            rows = [Row(NOW + number, order(number * 10 + index)) for index in range(10)]
            self.intake.file({(self.topic, 0): rows, (self.topic, 1): rows})
        self.ledger = LedgerFold()
        self.kind = "iceberg"
        self.topics_configured = True
        self.configured: list[dict[str, Any]] = []
        """More topics of the configuration."""
        schema = order_schema()
        properties = table_properties(CLUSTER, self.topic, "orders")
        view = self.tables.create(
            TABLE, self.store.uri(paths.table_prefix(self.topic)), schema.iceberg_json, "day", properties
        )
        self.mine = TopicLedger(self.topic, table_uuid=view.uuid)
        self.ledger.topics[self.topic] = self.mine

    def refine(self, epoch: int = 1) -> list[WrittenFile]:
        """Every record as archives of ten, in no table yet."""
        plans = [
            plan
            for partition in (0, 1)
            for plan in self.intake.plans(self.topic, partition, max_bytes=1, epoch=epoch)
        ]
        topics = {self.topic: RefineTopic(self.topic, "orders", order_schema(), "day")}
        task = TaskDescriptor(
            CLUSTER, StorePlace(f"file://{self.store.root}"), epoch, topics, tuple(plans), RefineOptions()
        )
        files = [file for result in run_bundle(task) for file in result.files]
        return sorted(files, key=lambda file: (file.archive.partition, file.archive.base))

    def commit(self, files: list[WrittenFile], reached: tuple[int, int]) -> None:
        """Into the table, with evidence."""
        view = self.view()
        commit_id = uuid.UUID(int=1)

        def properties(snapshot_id: int, sequence: int) -> dict[str, str]:
            return {WATERMARKS: Evidence(snapshot_id, sequence, 1, commit_id, reached).to_json()}

        prepared = self.tables.prepare(
            view, [file.data_file for file in files], properties, {COMMIT_ID: str(commit_id)}, False, ()
        )
        assert self.tables.swap(prepared).outcome is SwapOutcome.APPLIED

    def record(self, *reached: int) -> None:
        """The ledger's watermarks."""
        self.mine.watermarks.update(enumerate(reached))

    def archived(self) -> list[WrittenFile]:
        """Everything in archives, table and ledger."""
        files = self.refine()
        self.commit(files, (30, 30))
        self.record(30, 30)
        return files

    def view(self) -> TableView:
        view = self.tables.load(TABLE)
        assert view is not None
        return view

    def audit(
        self,
        scope: tuple[str, frozenset[int] | None] | None = None,
        tables: Callable[[str], Tables] | None = None,
    ) -> Document:
        """The document, as JSON has it."""
        archive: dict[str, Any] = {"kind": self.kind}
        if self.kind == "iceberg":
            archive |= {"catalog": "local", "table": "shop.orders"}
        topics = [{"name": "orders", "partitions": 2, "archive": archive}, *self.configured]
        settings = [TopicSettings.model_validate(topic) for topic in topics] if self.topics_configured else []
        check = Audit(self.store, CLUSTER, tables or (lambda _name: self.tables), settings, self.clock)
        document = check.run(lambda: self.ledger, lambda: self.intake.backlog, scope)
        found: Document = json.loads(json.dumps(document))
        assert found == document
        return found

    def lose_metadata(self) -> None:
        """Both logs are empty from here on."""
        self.intake.fold = IntakeFold()
        self.ledger = LedgerFold()

    def identify(self, topic_id: str, name: str) -> None:
        """The `topic.json` of a topic's folder."""
        self.store.create(
            paths.topic_key(topic_id), json.dumps({"format": 1, "topic": name, "topic_id": topic_id}).encode()
        )


def verdicts(document: Document) -> list[str]:
    """Per partition, in order."""
    return [item["verdict"] for item in document["partitions"]]
