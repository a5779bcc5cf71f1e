"""A lake to ask: topics archived to an S3 server's bucket, their tables in a real REST catalog; what every
engine must find in it is known.

`Lake.orders` is the topic of docs/queries.md: three days, two partitions, two archives each, its message
changed each morning. `Lake.types` has one message with a field for each row of docs/schema-mapping.md, as far
as one topic can have them. `Lake.readings` is one archive with so many rows that its encodings are chosen
from them. `Lake.avro_types` has a field for each row of docs/schema-mapping-avro.md, `Lake.json_types` a record
for each row of docs/schema-mapping-json.md, and the topic of docs/debezium.md has its events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import yaml
from google.protobuf import text_format
from grpc_tools import protoc

from archiver.catalog.commit import iso_time
from archiver.catalog.table_layout import VALID_THROUGH
from archiver.refine.encodings import ROWS_MIN
from archiver.schema.protobuf.descriptors import Source
from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import S3Server, data_group
from tests.support.schema import change_events
from tests.support.schema.avro_page import avro_page_rows, payload_of
from tests.support.schema.json_page import documents_of_all, json_page_rows, schema_of_all
from tests.support.schema.mapping_page import PageRow, hexadecimal, page_rows, proto_files
from tests.support.schema.protos import message_class
from tests.support.schema.registry_server import RegistryServer
from tests.support.schema.type_tables import TypeRow
from tests.support.servers.http_faults import Asked, Operation

CATALOG: Final = "lake"
AVRO_TYPES: Final = "avro-types"
JSON_TYPES: Final = "json-types"
DAY_S: Final = 86_400.0
DAYS: Final = 3
ARCHIVES: Final = 2
"""A day and partition."""
ROWS: Final = 20
"""An archive."""
BROKEN: Final = b"\xff\xff"
WAIT_S: Final = 60.0
READINGS: Final = ROWS_MIN + 1000
READING: Final = (
    "int64 id = 1; string name = 2; int32 kind = 3; string city = 4; int64 step = 5; double amount = "
    "6; bytes blob = 7;"
    "repeated int64 parts = 8;"
)
"""Numbers without a pattern, names that begin alike, few numbers, few texts, numbers that count up, the rest
by its type."""
_INCLUDE = Path(protoc.__file__).parent / "_proto"
_LINE = "message Line { string sku = 1; int32 quantity = 2; }\n"
_READINGS = f'syntax = "proto3";\npackage shop;\nmessage Reading {{ {READING} }}\n'
_HEAD = f'syntax = "proto3";\npackage shop;\n{_LINE}'
MESSAGES: Final = (
    "int64 id = 1; string customer = 2; int32 total = 3; int32 state = 4; repeated Line lines = 5;",
    (
        "int64 id = 1; string buyer = 2; int64 total = 3; int32 state = 4; repeated Line lines = 5; string "
        "note = 6;"
    ),
    (
        "int64 id = 1; string buyer = 2; int64 total = 3; string state = 4; repeated Line lines = 5; "
        "string note = 6;"
    ),
)
"""Of the orders of each day: a field renamed, one widened, one added; then one whose new type does not fit
its column."""


class Reads(S3Faults):
    """The proxy before the bucket; it knows which data files were read through it."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self._files: set[str] = set()

    def operation_of(self, asked: Asked) -> Operation:
        path = unquote(urlsplit(asked.path).path)
        if asked.method == "GET" and path.endswith(".parquet"):
            self._files.add(path.removeprefix("/"))
        return super().operation_of(asked)

    def files(self) -> set[str]:
        """The data files that were read since the last call, as `bucket/key`."""
        found, self._files = self._files, set()
        return found


@dataclass(frozen=True)
class Sent:
    """An order that was acknowledged."""

    day: int
    archive: int
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    order: dict[str, Any] | None
    """Its fields; None for a tombstone and for bytes that are no order."""


@dataclass(frozen=True)
class Snapshot:
    """What a commit says of itself."""

    snapshot_id: int
    timestamp_ms: int
    valid_through: str


@dataclass
class Lake:
    """What was sent, and where it is."""

    deployment: Deployment
    reads: Reads
    orders: list[Sent] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    """The dates of the days, in UTC."""
    snapshots: list[Snapshot] = field(default_factory=list)
    """Of the orders' table, one for each round of archiving."""
    types: list[PageRow] = field(default_factory=list)
    """The rows of the mapping's page; the field of each is `r` and its place."""
    types_schema: dict[str, Any] = field(default_factory=dict)
    """Of their table, as Iceberg has it."""
    avro_types: list[TypeRow] = field(default_factory=list)
    """The rows of the mapping's page for Avro; the field of each is `r` and its place, and in it `v`."""
    avro_schema: dict[str, Any] = field(default_factory=dict)
    """Of their table."""
    json_types: list[TypeRow] = field(default_factory=list)
    """The rows of the mapping's page for JSON; each is the record with its place as offset, and has a field
    as a row for Avro has."""
    json_schema: dict[str, Any] = field(default_factory=dict)
    """Of their table."""
    readings: list[dict[str, Any]] = field(default_factory=list)
    """The fields of each, by offset."""
    encodings: dict[str, set[str]] = field(default_factory=dict)
    """Of each column of their archive, as its footer has them."""

    def tables(self, topic: str = "orders") -> dict[str, Any]:
        """What `archiver tables` reports for a topic's table."""
        (found,) = self.deployment.cli("tables", "--topic", topic, "--output", "json").json()["tables"]
        return dict(found)


def compiled(folder: Path, files: dict[str, str]) -> bytes:
    """The descriptor set of these sources and all that they import."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    target = folder / "compiled.binpb"
    arguments = [
        "protoc",
        f"-I{folder}",
        f"-I{_INCLUDE}",
        "--include_imports",
        f"--descriptor_set_out={target}",
        *files,
    ]
    assert protoc.main(arguments) == 0
    return target.read_bytes()


def filled(folder: Path, server: S3Server, catalog: RestCatalog) -> Iterator[Lake]:
    """The lake, as long as its server is asked through the proxy."""
    with Reads(server) as reads, RegistryServer() as registry:
        change_events.register(registry, "avsc", "AVRO")
        lake = Lake(_deployment(folder / "d", server, catalog, reads, registry), reads)
        _fill_types(lake, folder / "protos")
        _fill_avro_and_json_types(lake)
        _fill_change_events(lake)
        _fill_readings(lake)
        clock = AheadClock()
        clock.ahead_s = DAY_S - (clock.now_us() / 1e6 + DAY_S / 2) % DAY_S  # Each day's orders come at noon.
        for day in range(DAYS):
            lake.days.append(iso_time(clock.now_us())[:10])
            _fill_day(lake, day, clock)
            clock.ahead_s += DAY_S
        lake.snapshots = _snapshots(lake)
        reads.files()
        yield lake


def _deployment(
    folder: Path, server: S3Server, catalog: RestCatalog, reads: Reads, registry: RegistryServer
) -> Deployment:
    data = data_group(folder, server.new_bucket(), reads.uri)
    topics = [
        {
            "name": name,
            "partitions": partitions,
            "value": {"descriptor_set": f"{name}.binpb", "message": message},
            "archive": {"kind": "iceberg", "catalog": CATALOG, "table": f"shop.{name}"},
        }
        for name, partitions, message in (
            ("orders", 2, "shop.Order"),
            ("types", 1, "all.All"),
            ("readings", 1, "shop.Reading"),
        )
    ]
    avro = {"avsc": "types.avsc", "recursion_depth": 1}
    topics.append({**topics[1], "name": AVRO_TYPES, "value": avro})
    topics[-1]["archive"] = {"kind": "iceberg", "catalog": CATALOG, "table": "shop.avro_types"}
    topics.append({**topics[1], "name": JSON_TYPES, "value": {"json_schema": "types.json"}})
    topics[-1]["archive"] = {"kind": "iceberg", "catalog": CATALOG, "table": "shop.json_types"}
    page = yaml.safe_load(change_events.titled("archiver.yaml"))
    topics += page["topics"]
    catalogs = [{"name": CATALOG, **catalog.properties}]
    overrides = {
        "data": data,
        "catalogs": catalogs,
        "topics": topics,
        "intake": {"clock_skew_max": "1d"},
        "schema_registry": {"confluent": {"url": registry.url}},
    }
    return Deployment(folder, overrides=overrides)


def _fill_avro_and_json_types(lake: Lake) -> None:
    """Both at once, because a process and a round of archiving take longer than what they archive."""
    lake.avro_types, lake.json_types = avro_page_rows(), json_page_rows()
    root = lake.deployment.root
    (root / "types.avsc").write_text(json.dumps(_avro_schema(lake.avro_types)), encoding="utf-8")
    (root / "types.json").write_bytes(schema_of_all(lake.json_types))
    with Driver(lake.deployment) as driver:
        driver.send(AVRO_TYPES, [b"".join(payload_of(row) for row in lake.avro_types)], 0)
        driver.send(JSON_TYPES, documents_of_all(lake.json_types), 0)
        _archive(driver, AVRO_TYPES, JSON_TYPES)
        lake.avro_schema, lake.json_schema = (_schema(driver, one) for one in (AVRO_TYPES, JSON_TYPES))


def _avro_schema(rows: list[TypeRow]) -> dict[str, Any]:
    """Of one record with all rows: each row's type in a record of a namespace of its own, because rows share
    names."""
    fields = [
        {
            "name": f"r{place}",
            "type": {
                "type": "record",
                "name": "Row",
                "namespace": f"r{place}",
                "fields": [{"name": "v", "type": row.type}],
            },
        }
        for place, row in enumerate(rows)
    ]
    return {"type": "record", "name": "All", "fields": fields}


def _fill_change_events(lake: Lake) -> None:
    with Driver(lake.deployment) as driver:
        with driver.application.intake.writer() as writer:
            waiting = [
                writer.send(change_events.TOPIC, record, partition)
                for partition, record in change_events.avro_records()
            ]
            writer.flush()
        assert all(one.result(WAIT_S).offset is not None for one in waiting)
        _archive(driver, change_events.TOPIC)


def _fill_types(lake: Lake, folder: Path) -> None:
    """Two records: one with every field set as its row's example says, and an empty one."""
    rows = [row for row in page_rows() if row.table.recursion_depth == 2 and not row.table.columns]
    files = proto_files(rows)
    imports = "".join(f'import "{name}";\n' for name in files)
    fields = "".join(f"  shop.{row.message} r{place} = {place + 1};\n" for place, row in enumerate(rows))
    text = f'syntax = "proto3";\npackage all;\n{imports}message All {{\n{fields}}}\n'
    everything = compiled(folder / "types", {**files, "all.proto": text})
    (lake.deployment.root / "types.binpb").write_bytes(everything)
    (lake.deployment.root / "orders.binpb").write_bytes(_orders(folder, 0))
    (lake.deployment.root / "readings.binpb").write_bytes(
        compiled(folder / "readings", {"readings.proto": _READINGS})
    )
    payload = bytearray()
    for place, row in enumerate(rows):
        inner = _example(row, everything)
        payload += _varint((place + 1) << 3 | 2) + _varint(len(inner)) + inner
    with Driver(lake.deployment) as driver:
        driver.send("types", [bytes(payload), b""], 0)
        _archive(driver, "types")
        lake.types, lake.types_schema = rows, _schema(driver, "types")


def _fill_readings(lake: Lake) -> None:
    random = Random(5)
    for number in range(READINGS):
        fields = {
            "id": random.getrandbits(40),
            "name": f"reading-{number:09}",
            "kind": random.randrange(7),
            "city": f"city {number % 11}",
        }
        odd = {"step": number * 10, "amount": random.randrange(10_000) / 4, "parts": [number] * (number % 3)}
        lake.readings.append({**fields, **odd, "blob": random.randbytes(number % 5)})
    make = message_class(Source("shop.Reading", (lake.deployment.root / "readings.binpb").read_bytes()))
    with Driver(lake.deployment) as driver:
        driver.send(
            "readings", [make(**one).SerializeToString(deterministic=True) for one in lake.readings], 0
        )
        _archive(driver, "readings")
        objects, data = driver.application.objects, f"archive/{driver.topic_id('readings')}/data/"
        (archive,) = (info.key for info in objects.list(data))
        with objects.open_input(archive) as source:
            group = pq.read_metadata(source).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    lake.encodings = {one.path_in_schema: {*map(str, one.encodings)} - {"RLE"} for one in columns}


def _example(row: PageRow, everything: bytes) -> bytes:
    """The bytes of a row's example, by the producer's own class."""
    if row.example.startswith("0x"):
        return hexadecimal(row.example)
    message = message_class(Source(f"shop.{row.message}", everything))()
    text_format.Parse(row.example, message, descriptor_pool=message.DESCRIPTOR.file.pool)
    payload: bytes = message.SerializePartialToString(deterministic=True)
    return payload


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _orders(folder: Path, day: int) -> bytes:
    return compiled(
        folder / f"orders-{day}", {"orders.proto": f"{_HEAD}message Order {{ {MESSAGES[day]} }}\n"}
    )


def _fill_day(lake: Lake, day: int, clock: AheadClock) -> None:
    """The orders of one day. The last record of a partition's first archive cannot be decoded, that of its
    second one is a tombstone."""
    schema = _orders(lake.deployment.root / "protos", day)
    (lake.deployment.root / "orders.binpb").write_bytes(schema)
    make = message_class(Source("shop.Order", schema))
    with Driver(lake.deployment, clock) as driver:
        for archive in range(ARCHIVES):
            with driver.application.intake.writer() as writer:
                waiting = []
                for partition in range(2):
                    for place in range(ROWS):
                        order, value = _order(day, archive, partition, place), None
                        if place < ROWS - 1:
                            value = make(**order).SerializeToString(deterministic=True)
                        elif archive == 0:
                            value = BROKEN
                        key = b"customer-%d" % (place % 5)
                        pending = writer.send("orders", Record(key, value), partition)
                        waiting.append((partition, key, value, order if place < ROWS - 1 else None, pending))
                writer.flush()
            for partition, key, value, reported, pending in waiting:
                offset = pending.result(WAIT_S).offset
                assert offset is not None
                lake.orders.append(Sent(day, archive, partition, offset, key, value, reported))
            _archive(driver, "orders")


def _order(day: int, archive: int, partition: int, place: int) -> dict[str, Any]:
    number = ((day * ARCHIVES + archive) * 2 + partition) * ROWS + place
    lines = [{"sku": f"sku-{line}", "quantity": line + 1} for line in range(place % 3)]
    order = {"id": number, "customer" if day == 0 else "buyer": f"customer-{place % 5}", "lines": lines}
    order["total"] = number * 100 if day == 0 else number * 10**8
    order["state"] = place % 4 if day < 2 else ("open", "paid", "sent", "back")[place % 4]
    if day:
        order["note"] = f"note {number}"
    return order


def _snapshots(lake: Lake) -> list[Snapshot]:
    with Driver(lake.deployment) as driver:
        view = driver.application.table("orders")
    assert view is not None
    return [Snapshot(one.snapshot_id, one.timestamp_ms, one.summary[VALID_THROUGH]) for one in view.snapshots]


def _schema(driver: Driver, topic: str) -> dict[str, Any]:
    """The schema of a topic's table, as Iceberg has it."""
    view = driver.application.table(topic)
    assert view is not None
    found: dict[str, Any] = json.loads(view.schema_json)
    return found


def _archive(driver: Driver, *topics: str) -> None:
    report = driver.archive()
    for topic in topics:
        assert report.of(topic).state == "archived", report.of(topic).why
