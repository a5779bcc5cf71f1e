"""Do the Java classes of Iceberg read every event we write, find in it what we said, and write the same bytes
themselves?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import SparkSession

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.events import codec, json_form
from tests.support.builders.deployment import Deployment, jsonl, text
from tests.support.builders.golden import GOLDEN, golden_place, unpack
from tests.support.events.event_cases import cases
from tests.support.events.event_judge import CURRENT, OLDER, Judge, judge
from tests.support.schema.orders import DESCRIPTOR_SET, order

_FIELD = descriptor_pb2.FieldDescriptorProto
_SAMPLES = Path(__file__).parent / "golden_events"
_FOLDERS = {CURRENT: "events-1.12", OLDER: "events-1.10"}
_CASES = 40
_PARTITIONS = 48
_LATIN = b"\x08\x07\x12\x02\xe9\xe9"
"""An order whose customer is not UTF-8: it is archived undecoded until the schema says bytes."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def current() -> Judge:
    """The newest release."""
    return judge(CURRENT)


@pytest.fixture(scope="module")
def older() -> Judge:
    """Release 1.10, which stops at `table_uuid`."""
    return judge(OLDER)


def test_the_judge_reads_what_its_own_release_wrote(current: Judge, older: Judge) -> None:
    for one in (current, older):
        verdicts = one.read(
            *sorted((_SAMPLES / _FOLDERS[one.release]).glob("*.bin")), options=("--strict", "--expect")
        )
        assert (verdicts.code, len(verdicts.events)) == (0, 24), verdicts.errors


def test_the_judge_refuses_what_is_wrong(current: Judge, older: Judge, tmp_path: Path) -> None:
    sample = _SAMPLES / _FOLDERS[CURRENT] / "data-written-stats.bin"
    (tmp_path / "cut.bin").write_bytes(sample.read_bytes()[:-1])
    (tmp_path / "longer.bin").write_bytes(sample.read_bytes() + b"\0")
    assert current.read(tmp_path / "cut.bin").code == current.read(tmp_path / "longer.bin").code == 1
    assert older.read(sample).errors, "release 1.10 cannot read table_uuid: this is what the setting is for"


@pytest.mark.parametrize(("release", "table_uuid"), [(CURRENT, True), (CURRENT, False), (OLDER, False)])
def test_java_writes_the_same_bytes_and_reads_the_same_content(
    release: str, table_uuid: bool, tmp_path: Path
) -> None:
    one = judge(release)
    made = cases(_CASES, table_uuid, 7)
    if table_uuid == (release == CURRENT):
        one.write([case for _, case in made], tmp_path)
        for data, case in made:
            assert (tmp_path / f"{case['name']}.bin").read_bytes() == data, json.dumps(case)
            assert json.loads((tmp_path / f"{case['name']}.json").read_text())["event"] == case["event"]
    stream = tmp_path / "events.raw"
    stream.write_bytes(b"".join(len(data).to_bytes(4, "big") + data for data, _ in made))
    verdicts = one.read_stream(stream)
    assert verdicts.code == 0, verdicts.errors
    assert [_named(event) for event in verdicts.events] == [_named(case["event"]) for _, case in made]


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir()))
def golden(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """What an earlier version left behind; from version 4 on with a changed schema and archives made anew."""
    with golden_place(request.param) as folder:
        unpack(request.param, folder)
        yield _Kept(folder)


class _Kept(Deployment):
    """A deployment whose configuration is the one that was stored."""

    def __post_init__(self) -> None:
        """Nothing is written: everything is there."""


def test_java_reads_the_ledger_of_every_earlier_version(
    golden: Deployment, current: Judge, tmp_path: Path
) -> None:
    assert _judged(golden, current, tmp_path / "events.raw")


@pytest.mark.spark
def test_java_reads_our_own_rounds(
    tmp_path: Path,
    current: Judge,
    older: Judge,
    spark_session: SparkSession,
) -> None:
    """A round for readers of release 1.10, one with `table_uuid` and a changed schema, a replay; every
    granularity; split events."""
    deployment = Deployment(
        tmp_path / "d", overrides={"log": {"append_backoff": "5ms", "entry_bytes_max": "16KiB"}}
    )
    _round(deployment, table_uuid=False)
    assert _judged(deployment, older, tmp_path / "older.raw")
    _round(deployment, table_uuid=True, descriptors=_changed())
    replayed = deployment.cli("dlq", "replay", "--topic", "orders", "--output", "json")
    assert replayed.code == 0, (replayed.out, replayed.err)
    events = _judged(deployment, current, tmp_path / "current.raw")
    assert {event["type"] for event in events} == {0, 1, 2, 3, 4}

    written = [event["payload"] for event in events if event["type_name"] == "DATA_WRITTEN"]
    names = {one["table_reference"]["name"]: one["partition_type"][0]["name"] for one in written}
    assert names == {
        "orders": "ingest_day",
        "clicks": "ingest_day",
        "hourly": "ingest_hour",
        "monthly": "ingest_month",
    }
    wide = [one for one in written if one["table_reference"]["name"] == "clicks"]
    rounds = {one["commit_id"] for one in wide}
    assert (len(rounds), len(wide) > len(rounds)) == (2, True), "some were split"
    assert sum(len(one["data_files"]) for one in wide) == 2 * _PARTITIONS
    with Application(load_settings(deployment.config, {}), {}) as app:
        topic = app.ledger().topic(app.topic("orders").topic_id)
        assert sorted(topic.schemas) == [1, 2]
        assert topic.rewrites.replaced, "the replay has exchanged an archive"

    refused = older.read_stream(tmp_path / "current.raw")
    named = [event["payload"].get("table_reference", {}).get("table_uuid") for event in events]
    assert [event is None for event in refused.events] == [uuid is not None for uuid in named], (
        "only those with a uuid"
    )
    assert any(named)


def _round(deployment: Deployment, table_uuid: bool, descriptors: bytes = DESCRIPTOR_SET) -> None:
    """One more round: a record for every partition of a wide topic, one for each other granularity, and a few
    orders."""
    document = deployment.document() | {"events": {"table_uuid": table_uuid}}
    topics = {topic["name"]: topic for topic in document["topics"]}
    topics["clicks"]["partitions"] = _PARTITIONS
    for name, granularity in (("hourly", "hour"), ("monthly", "month")):
        archive = {
            "kind": "iceberg",
            "catalog": "local",
            "table": f"shop.{name}",
            "partition_by": [granularity],
        }
        document["topics"].append({"name": name, "partitions": 1, "archive": archive})
    deployment.write(document)
    (deployment.root / "shop.binpb").write_bytes(descriptors)
    places = [("clicks", partition) for partition in range(_PARTITIONS)] + [("hourly", 0), ("monthly", 0)]
    records: list[dict[str, Any]] = [
        {"topic": topic, "partition": partition, "value": text(b"click")} for topic, partition in places
    ]
    records += [{"topic": "orders", "value": text(value)} for value in (order(1), order(2), _LATIN)]
    done = deployment.cli("produce", "--output", "json", stdin=jsonl(records))
    assert done.code == 0, done.err
    done = deployment.cli("archive", "--all")
    assert done.code == 0, (done.out, done.err)


def _changed() -> bytes:
    """The orders' schema with a new field, and one whose type has changed."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    order_type = files.file[0].message_type[1]
    order_type.field[1].type = _FIELD.TYPE_BYTES
    order_type.field.add(name="note", number=4, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    return files.SerializeToString()


def _judged(deployment: Deployment, one: Judge, raw: Path) -> list[Any]:
    """All events of the ledger as Java reads them, after comparing each with what we read in the same
    bytes."""
    assert deployment.cli("ledger", "events", "--raw", str(raw)).code == 0
    verdicts = one.read_stream(raw)
    assert verdicts.code == 0, verdicts.errors
    ours = [line["event"] for line in deployment.cli("ledger", "events").lines()]
    assert [_named(event) for event in verdicts.events] == [_named(event) for event in ours]
    assert deployment.cli("ledger", "decode", "--raw", str(raw)).lines() == ours
    for event in ours:
        assert json_form.to_json(codec.read(codec.write(json_form.from_document(event)))) == event
    return ours


def _named(event: Any) -> Any:
    """An event without the key `table_uuid` where it is null: whether it stands there depends on the release
    that prints it."""
    reference = event["payload"].get("table_reference")
    if reference is None or reference.get("table_uuid") is not None:
        return event
    kept = {key: value for key, value in reference.items() if key != "table_uuid"}
    return event | {"payload": event["payload"] | {"table_reference": kept}}
