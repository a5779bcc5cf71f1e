"""Runs Spark Structured Streaming from Kafka to an Iceberg table as a contender."""

from __future__ import annotations

import base64
import json
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import orders
from bench.deployment import NAMESPACE
from bench.peers.contender import Contender
from bench.peers.parts import spark_classpath

END_S = 60.0


class Streaming(Contender):
    """Structured Streaming with the whole topic in one batch."""

    trigger_records: int | None = None
    """Most records per batch; None: no limit."""

    def settings(self) -> Mapping[str, Any]:
        return {
            "trigger": "availableNow",
            "maxOffsetsPerTrigger": self.trigger_records,
            "master": f"local[{self.cores}]",
            "decoder": "ptars",
        }

    def prepare(self, topics: Sequence[str]) -> None:
        catalog = {f"spark.sql.catalog.local.{name}": value for name, value in self.tables.java().items()}
        conf = {
            "spark.jars": ",".join(map(str, spark_classpath())),
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
            **catalog,
        }
        settings = {
            "master": f"local[{self.cores}]",
            "brokers": self.brokers,
            "conf": conf,
            "descriptor_set": base64.b64encode(orders.descriptor_set()).decode(),
            "message": "bench.Order",
        }
        for topic in topics:
            self.tables.create(topic)
        program = str(Path(__file__).with_name("streaming_program.py"))
        self._answers: queue.Queue[str] = queue.Queue()
        self._start([sys.executable, program, json.dumps(settings)], {"PYSPARK_PYTHON": sys.executable})
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(self, topic: str) -> None:
        self._send(
            {
                "topic": topic,
                "table": f"local.{NAMESPACE}.{topic}",
                "checkpoint": str(self.folder / "checkpoint" / topic),
                "trigger_records": self.trigger_records,
            }
        )

    def check(self) -> None:
        super().check()
        if not self._answers.empty():
            answer = json.loads(self._answers.queue[0])
            assert "error" not in answer, answer["error"]

    def rest(self) -> None:
        answer = json.loads(self._answers.get(timeout=END_S))
        assert "error" not in answer, answer["error"]

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._answers.put(line)


class SmallTriggers(Streaming):
    """Structured Streaming with small batches, as for a stream that is kept fresh."""

    trigger_records = 100_000
