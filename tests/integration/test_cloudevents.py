"""docs/cloudevents.md is true: events in structured mode, in Avro, in Protobuf and in JSON, become columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.pages import ROOT
from tests.support.schema.change_events import avro_envelope, avro_schema, proto_class, queries, titled

PAGE = ROOT / "docs" / "cloudevents.md"
MESSAGE = "io.cloudevents.v1.CloudEvent"


def attributes(number: int) -> dict[str, Any]:
    return {
        "id": f"e{number}",
        "source": "/shop",
        "specversion": "1.0",
        "type": "shop.paid",
        "sequence": number,
        "sampled": True,
        "trace": b"\0\x01",
        "subject": None,
    }


def avro_events() -> list[bytes | None]:
    """Data of each kind."""
    schema = avro_schema(titled("cloudevent.avsc", PAGE))
    nested = {"value": {"deep": [{"value": {"n": 1.5, "t": "x", "none": None}}], "flag": True}}
    data = [
        b'{"customer": "Ann"}',
        {"customer": "Ben", "total": 12.5, "gift": True, "note": None, "lines": nested},
        [nested],
        "text",
        None,
        2.5,
        False,
    ]
    bare = [{"attribute": attributes(number), "data": one} for number, one in enumerate(data)]
    # The topic's schema is a file, so records have no envelope.
    return [avro_envelope(0, schema, one)[5:] for one in bare]


def proto_events() -> list[bytes | None]:
    make = proto_class(titled("protos/cloudevents.proto", PAGE), MESSAGE)
    found: list[bytes | None] = []
    for number in range(3):
        one = make(id=f"e{number}", source="/shop", spec_version="1.0", type="shop.paid")
        one.attributes["time"].ce_timestamp.seconds = 1_772_445_600 + number
        if number == 0:
            one.text_data = '{"customer": "Ann"}'
        elif number == 1:
            one.binary_data = b"\0"
        found.append(one.SerializeToString(deterministic=True))
    return found


DATA = re.findall(
    r"^\| `([^`]+)` \| `([^`]+)` \| `(?:value\.data|CAST)[^`]+` \|$",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""The page's table of data of any shape: as it is sent, and the column."""


def json_events() -> list[bytes | None]:
    """Data of each shape that the page shows, then none, then bytes."""
    head = (
        '{"specversion":"1.0","id":"e%d","source":"/shop","type":"shop.paid","time":"2026-03-02T10:00:0%dZ"'
    )
    tails = [
        *(f',"sequence":{number},"data":{data}' for number, (data, _) in enumerate(DATA)),
        "",
        ',"data_base64":"AAE="',
        ',"data":true,"trace":"ab"',
    ]
    return [(head % (number, number) + tail + "}").encode() for number, tail in enumerate(tails)]


def check_json(deployment: Deployment, found: list[list[Any]]) -> None:
    """What the page says of events in JSON."""
    assert len(DATA) == 5
    data = [column for _, column in DATA] + [None, None, "true"]
    assert found == [
        [
            f"e{number}",
            "shop.paid",
            f"2026-03-02T10:00:0{number}Z",
            number if number < len(DATA) else None,
            "Ann" if number == 0 else None,
            column,
            "\0\x01" if number == 6 else None,
        ]
        for number, column in enumerate(data)
    ]
    more = (
        "SELECT value.data ->> '$[0].sku' AS sku, value.data ->> '$' AS text, value.data = 'null' AS nothing, "
        "decode(value.__unrecognized__) ->> '$.trace' AS trace, value.__raw__ IS NULL AS once "
        "FROM shop.json_events ORDER BY kafka.offset"
    )
    answer = rows(deployment, more)
    assert (answer[1][0], answer[2][1], answer[4][2], answer[7][3]) == ("a", "text", True, "ab")
    assert all(row[4] for row in answer)
    digits = "SELECT CAST(value.data AS decimal(9, 2)) AS n FROM shop.json_events WHERE kafka.offset = 3"
    assert rows(deployment, digits) == [["2.50"]]


def test_events_in_structured_mode(tmp_path: Path) -> None:
    page = yaml.safe_load(titled("archiver.yaml", PAGE))
    page["catalogs"] = [{"name": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path / 'd'}/catalog.db"}]
    deployment = Deployment(tmp_path / "d", overrides=page)
    for title in ("cloudevent.avsc", "protos/cloudevents.proto", "cloudevent.json"):
        target = deployment.root / title
        target.parent.mkdir(exist_ok=True)
        target.write_text(titled(title, PAGE), encoding="utf-8")
    sent = {"events": avro_events(), "proto-events": proto_events(), "json-events": json_events()}
    with Driver(deployment) as driver:
        for topic, values in sent.items():
            driver.send(topic, values, 0)
        report = driver.archive()
        for topic, values in sent.items():
            assert report.of(topic).state == "archived", report.of(topic).why
            driver.check_complete(topic)
            assert [one.value for one in driver.records(topic)[0]] == values
    asked = {name: rows(deployment, sql) for name, sql in queries("duckdb", PAGE).items()}
    assert asked["avro"] == [
        [f"e{number}", "shop.paid", number, {0: "Ann", 1: "Ben"}.get(number)] for number in range(7)
    ]
    assert asked["protobuf"] == [
        [f"e{number}", "shop.paid", f"2026-03-02T10:00:0{number}Z", "Ann" if number == 0 else None]
        for number in range(3)
    ]
    check_json(deployment, asked["json"])
    for table in ("shop.events", "shop.proto_events", "shop.json_events"):
        assert rows(deployment, f"SELECT count(value.__err__) AS n FROM {table}") == [[0]]
    others = (
        "SELECT value.attribute['sampled'].boolean AS a, value.attribute['trace'].bytes AS b, value.data.string "
        "AS c, value.data.double AS d, value.data.boolean AS e FROM shop.events ORDER BY kafka.offset"
    )
    assert [row[2:] for row in rows(deployment, others)] == [
        [None, None, None],
        [None, None, None],
        [None, None, None],
        ["text", None, None],
        [None, None, None],
        [None, 2.5, None],
        [None, None, False],
    ]
    assert {json.dumps(row[:2]) for row in rows(deployment, others)} == {'[true, "AAE="]'}


def rows(deployment: Deployment, sql: str) -> list[list[Any]]:
    done = deployment.cli("query", sql, "--output", "json", "--max-rows", "0")
    assert done.code == 0, done.err
    document = done.json()
    return [[row[column["name"]] for column in document["columns"]] for row in document["rows"]]
