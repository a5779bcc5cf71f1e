"""A small deployment of the real parts in one folder: configuration, descriptor set, data, metadata, catalog.

`Deployment.run` is the command in a process of its own, as a user has it (and as a kill needs it);
`Deployment.cli` is the same command in this process, which is quicker because it shares the tests' Spark
session.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from archiver.cli.app import run as run_command
from archiver.runtime import failpoints
from tests.support.schema.orders import DESCRIPTOR_SET, order

ROOT = Path(__file__).resolve().parents[3]
COMMAND_TIMEOUT_S = 300


@dataclass(frozen=True)
class Done:
    """What a command left: exit code and both outputs."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines() if line.strip()]


@dataclass
class Deployment:
    """One folder with everything; nothing is created before it is used."""

    root: Path
    failpoints_asked: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "shop.binpb").write_bytes(DESCRIPTOR_SET)
        self.write(self.document())

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.root / "archiver.yaml"

    @property
    def data(self) -> Path:
        """The object store's folder."""
        return self.root / "data"

    def stored(self) -> list[tuple[Path, int]]:
        """Its files and when each was written (ns); no folders: an empty one of the spool goes when the
        collector finds its maker."""
        return sorted((path, path.stat().st_mtime_ns) for path in self.data.rglob("*") if path.is_file())

    def document(self) -> dict[str, Any]:
        """The configuration: a Protobuf topic and a raw one with tables, one with archives only, one that is
        never archived."""
        schema = {"descriptor_set": "shop.binpb", "message": "shop.Order"}
        document: dict[str, Any] = {
            "cluster": "test",
            "data": {"uri": "data"},
            "metadata": {"sqlite": {"path": "metadata.db"}},
            "catalogs": [
                {"name": "local", "type": "sql", "uri": f"sqlite:///{self.root}/catalog.db?timeout=60"}
            ],
            "spark": {"master": "local[2]", "driver_memory": "1g"},
            "intake": {"delay_max": "20ms"},
            "log": {"append_backoff": "5ms"},
            "topics": [
                {
                    "name": "orders",
                    "partitions": 3,
                    "value": schema,
                    "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.orders"},
                },
                {
                    "name": "clicks",
                    "partitions": 2,
                    "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.clicks"},
                },
                {"name": "files", "partitions": 1, "archive": {"kind": "parquet"}},
                {"name": "kept", "partitions": 1, "archive": {"kind": "none"}},
            ],
        }
        if self.failpoints_asked:
            document["testing"] = {"failpoints": True}
        return document | self.overrides

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the configuration."""
        self.config.write_text(yaml.safe_dump(dict(document), sort_keys=False), encoding="utf-8")

    def environ(self, armed: str = "") -> dict[str, str]:
        """The environment of a command."""
        found = {
            name: value
            for name, value in os.environ.items()
            if name not in (failpoints.VARIABLE, "ARCHIVER_CONFIG")
        }
        found["ARCHIVER_CONFIG"] = str(self.config)
        found["PYTHONPATH"] = str(ROOT)
        scratch = (
            self.root / "tmp"
        )  # A killed process leaves its temporary files, Spark's among them, where pytest removes them.
        scratch.mkdir(exist_ok=True)
        found["TMPDIR"] = str(scratch)
        if self.failpoints_asked:
            found[failpoints.VARIABLE] = armed
        return found

    def run(
        self,
        *arguments: str,
        stdin: str = "",
        armed: str = "",
        environ: Mapping[str, str] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Done:
        """The command in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "archiver", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.environ(armed), **(environ or {})},
            cwd=self.root,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def cli(self, *arguments: str, armed: str = "", stdin: str = "") -> Done:
        """The command in this process."""
        out, err = io.StringIO(), io.StringIO()
        before, standard_input = dict(os.environ), sys.stdin
        os.environ.clear()
        os.environ.update(self.environ(armed))
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run_command(list(arguments))
        finally:
            sys.stdin = standard_input
            os.environ.clear()
            os.environ.update(before)
            failpoints.arm("")
        return Done(code, out.getvalue(), err.getvalue())

    def produce(self, records: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Send records in this process; their acknowledgements, all of them `ok`."""
        done = self.cli("produce", "--output", "json", stdin=jsonl(records))
        assert done.code == 0, done.err
        return done.lines()

    def consume(self, topic: str) -> list[Any]:
        """Every record of a topic."""
        done = self.cli("consume", "--topic", topic)
        assert done.code == 0, done.err
        return done.lines()


def text(data: bytes | None) -> str | None:
    """Bytes as a record's JSON has them."""
    return None if data is None else base64.b64encode(data).decode()


def jsonl(records: Sequence[Mapping[str, Any]]) -> str:
    """Record JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def sample_records(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Records for every topic of the deployment, `count` in all: keys, tombstones, headers, and values that
    do not decode among them."""
    records: list[dict[str, Any]] = []
    for number in range(first, first + count):
        topic = ("orders", "clicks", "orders", "files", "orders", "kept")[number % 6]
        value: bytes | None = (
            order(number, lines=number % 4) if topic == "orders" else f"click {number}".encode()
        )
        if number % 17 == 4:
            value = b"\xff\xff not a message"
        if number % 19 == 5:
            value = None
        records.append(
            {
                "topic": topic,
                "timestamp": f"2026-01-02T03:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}000Z",
                "key": None if number % 11 == 3 else text(f"key-{number % 29}".encode()),
                "value": text(value),
                "headers": [["trace", text(str(number).encode())], ["trace", None]]
                if number % 5 == 0
                else [],
            }
        )
    return records


def check_present(
    deployment: Deployment,
    sent: Sequence[Mapping[str, Any]],
    acknowledged: Sequence[Mapping[str, Any]],
    gaps: Container[tuple[str, int, int]] = (),
) -> None:
    """Each acknowledged record is exactly where it was acknowledged, byte for byte, and offsets have no hole
    but for the `gaps` (topic, partition, offset).
    """
    found: dict[tuple[str, int, int], Any] = {}
    for topic in ("orders", "clicks", "files", "kept"):
        following: dict[int, int] = {}
        for record in deployment.consume(topic):
            partition, offset = record["partition"], record["offset"]
            due = following.get(partition, 0)
            while (topic, partition, due) in gaps:
                due += 1
            assert offset == due, f"{topic}:{partition}: offset {offset} where {due} was due"
            following[partition] = offset + 1
            found[topic, partition, offset] = record
    places = [
        (item["topic"], item["partition"], item["offset"])
        for item in acknowledged
        if item["offset"] is not None
    ]
    assert len(set(places)) == len(places), "two records were acknowledged at one offset"
    for record, item in zip(sent, acknowledged, strict=False):
        if item["offset"] is None:
            continue
        got = found[item["topic"], item["partition"], item["offset"]]
        for name in ("topic", "timestamp", "key", "value", "headers"):
            assert got[name] == record[name], f"{item}: {name} is {got[name]!r}, sent was {record[name]!r}"
