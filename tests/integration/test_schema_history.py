"""Walks of 200 schema changes: every old record keeps its meaning for every engine, and its bytes for
`consume`.

The archiver archives a topic whose message changes at random. `tests.support.schema.schema_history` derives
from the descriptors alone which values belong to which column. At the end the whole table is read by
pyiceberg, by `archiver query`, and by Spark with Iceberg's runtime. `ARCHIVER_SCHEMA_SEEDS=N` adds a walk for
every five, and archives more often in all of them (`make sweep`).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from archiver.catalog.engines import SPARK_PACKAGES
from archiver.query.duck import Limits, asked
from archiver.schema.evolution.recorded import TopicSchema
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.protos import fill, message_class
from tests.support.schema.schema_history import ALONGSIDE, Level, found, wanted
from tests.support.schema.schema_walks import walk
from tests.support.servers.maven import jars

TIMES = int(os.environ.get("ARCHIVER_SCHEMA_SEEDS", "1"))
SEEDS = range(1 + TIMES // 5)
CHANGES = 200
EVERY = 16 if TIMES == 1 else 4
"""Number of changes between two archives."""

# A walk that archives more often takes about three minutes on two cores, and the first test of a seed makes it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 if TIMES == 1 else 1800)]
RECORDS = 10
"""Number of records in each archive."""
TABLE = "shop.walk"
LIMITS = Limits(2**29, 2)
SPARK_TIMEOUT_S = 240


@dataclass
class History:
    """A topic of which everything is archived, and the expected content of its table."""

    deployment: Deployment
    driver: Driver
    sent: list[bytes | None] = field(default_factory=list)
    """Values by offset."""
    rows: dict[int, dict[int, Any] | None] = field(default_factory=dict)
    """Per offset the expected row of the value. Values that another version of the message made have none."""
    level: Level = field(default_factory=Level)
    owners: dict[int, tuple[int, str]] = field(default_factory=dict)

    def table_type(self) -> Any:
        """The type of the table's `value` column, as Iceberg's JSON."""
        with catalog_table(self.deployment, TABLE) as table:
            return next(
                one["type"] for one in table.schema().model_dump()["fields"] if one["name"] == "value"
            )

    def compare(self, read: Mapping[int, Any]) -> None:
        """Compare what an engine read, by offset, with what was sent: each value in its column, and null
        everywhere else."""
        assert sorted(read) == list(range(len(self.sent)))
        kind = self.table_type()
        for offset, row in self.rows.items():
            assert found(kind, read[offset]) == row, f"offset {offset}"


@contextmanager
def walked(folder: Path, seed: int) -> Iterator[History]:
    """Run a walk, and archive on its way."""
    schema: dict[str, Any] = {"descriptor_set": "walk.binpb", "message": "walk.Root"}
    archive = {"kind": "iceberg", "catalog": "local", "table": TABLE}
    topics = [{"name": "walk", "partitions": 1, "value": schema, "archive": archive}]
    rng, deployment = random.Random(seed), Deployment(folder, overrides={"topics": topics})
    makes: list[Any] = []
    with Driver(deployment) as driver:
        history = History(deployment, driver)
        for number, source in enumerate(walk(seed, CHANGES)):
            if number % EVERY == 0:
                (folder / "walk.binpb").write_bytes(source.descriptor_set)
                makes.append(message_class(source))
                _archive(history, rng, makes)
        yield history


def _archive(history: History, rng: random.Random, makes: list[Any]) -> None:
    """Archive records of the newest message and some of a former one. Check the ids of this version against
    those of all before."""
    driver, make = history.driver, makes[-1]
    sending: list[tuple[bytes | None, Any]] = []
    for _ in range(RECORDS):
        message = make() if rng.random() < 0.85 else rng.choice(makes)()
        fill(rng, message)
        sending.append((None, None) if rng.random() < 0.05 else (message.SerializeToString(), message))
    driver.send("walk", [value for value, _ in sending], 0)
    report = driver.archive(("walk", None)).of("walk")
    assert report.state == "archived", report.why
    ledger = driver.application.ledger().topic(driver.topic_id("walk"))
    side = TopicSchema.from_entry(ledger.schemas[ledger.schema_version]).value
    assert side is not None
    history.level.advance(make.DESCRIPTOR)
    history.level.claim(side.field_ids, history.owners)
    for value, message in sending:
        if value is None or type(message) is make:
            history.rows[len(history.sent)] = None if value is None else wanted(history.level, message)
        history.sent.append(value)


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], History]]:
    """The walk of a seed, made once."""
    with ExitStack() as stack:
        known: dict[int, History] = {}

        def walk_of(seed: int) -> History:
            if seed not in known:
                known[seed] = stack.enter_context(walked(tmp_path_factory.mktemp("walk") / "d", seed))
            return known[seed]

        yield walk_of


def by_offset(rows: pa.Table) -> dict[int, Any]:
    """The values of a table with the columns `offset` and `value`."""
    offsets: list[Any] = rows.column("offset").to_pylist()
    return dict(zip(offsets, rows.column("value").to_pylist(), strict=True))


def with_query(history: History, where: str = "true", schema_json: str | None = None) -> dict[int, Any]:
    """Per offset what `archiver query` returns, optionally under another schema than the table's."""
    (table,), troubles = history.driver.application.query_tables([TABLE])
    assert not troubles
    if schema_json is not None:
        table = replace(table, schema_json=schema_json)
    sql = f'SELECT kafka."offset", value FROM {TABLE} WHERE {where}'
    with asked(sql, [table], LIMITS) as result:
        return dict(result.rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_pyiceberg_reads_all_history(walks: Callable[[int], History], seed: int) -> None:
    history = walks(seed)
    with catalog_table(history.deployment, TABLE) as table:
        rows = table.scan(selected_fields=("kafka", "value")).to_arrow()
    history.compare(
        by_offset(pa.table({"offset": pc.struct_field(rows["kafka"], "offset"), "value": rows["value"]}))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_query_reads_all_history(walks: Callable[[int], History], seed: int) -> None:
    """This includes conditions, which DuckDB checks against the statistics of each file."""
    history = walks(seed)
    history.compare(with_query(history))
    columns = [one for one in history.table_type()["fields"] if one["name"] not in ALONGSIDE]
    for column in random.Random(seed).sample(columns, min(4, len(columns))):
        filled = {offset for offset, row in history.rows.items() if row is not None and column["id"] in row}
        here = with_query(history, f'value."{column["name"]}" IS NOT NULL')
        assert {offset for offset in here if offset in history.rows} == filled, column["name"]


@pytest.mark.parametrize("seed", SEEDS)
def test_consume_gives_every_record_back(walks: Callable[[int], History], seed: int) -> None:
    history = walks(seed)
    assert [record.value for record in history.driver.records("walk")[0]] == history.sent


@pytest.mark.spark
def test_spark_reads_all_history(walks: Callable[[int], History]) -> None:
    """The first walks (at most two), read in a separate process."""
    histories = [walks(seed) for seed in SEEDS[:2]]
    program = Path(__file__).parents[1] / "support" / "spark" / "spark_history.py"
    folders = [str(history.deployment.root) for history in histories]
    done = subprocess.run(
        [sys.executable, str(program), ",".join(map(str, jars(*SPARK_PACKAGES))), TABLE, *folders],
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for history in histories:
        with (
            pa.memory_map(str(history.deployment.root / "spark.arrow")) as file,
            pa.ipc.open_file(file) as reader,
        ):
            history.compare(by_offset(reader.read_all()))


def test_two_swapped_ids_are_noticed(walks: Callable[[int], History]) -> None:
    """The comparison can fail: with the ids of two columns of one type exchanged, the table's schema reads
    wrongly."""
    history = walks(0)
    with catalog_table(history.deployment, TABLE) as table:
        schema = json.loads(table.schema().model_dump_json())
    value = next(one["type"] for one in schema["fields"] if one["name"] == "value")
    filled = {
        number: {offset for offset, row in history.rows.items() if row and number in row}
        for number in (one["id"] for one in value["fields"])
    }
    first, second = next(
        (a, b)
        for a, b in itertools.combinations(
            [one for one in value["fields"] if one["name"] not in ALONGSIDE], 2
        )
        if isinstance(a["type"], str) and a["type"] == b["type"] and filled[a["id"]] != filled[b["id"]]
    )
    first["id"], second["id"] = second["id"], first["id"]
    with pytest.raises(AssertionError, match="offset"):
        history.compare(with_query(history, schema_json=json.dumps(schema)))
