"""Every command on a small deployment, but for `produce` and `consume`: its documents key by key, and its
exit codes."""

from __future__ import annotations

import json
import shlex
import sqlite3
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from archiver.cli.app import run
from archiver.events import codec, json_form
from archiver.log.lease import FileLease
from tests.support.builders.archived import MORE, SENT, archived  # noqa: F401 - fixture
from tests.support.builders.deployment import Deployment

AUDIT = ["verdict", "partitions", "checked_at", "snapshot_ids", "undecoded"]
AUDIT_PARTITION = [
    "topic",
    "topic_id",
    "partition",
    "start",
    "watermark",
    "stable",
    "next",
    "rows",
    "gaps",
    "missing",
    "doubled",
    "removed",
]
AUDIT_PARTITION += ["altered", "pending", "proof", "verdict", "why"]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A deployment without records."""
    return Deployment(tmp_path / "d")


# archive, audit


@pytest.mark.spark
def test_archive_report(deployment: Deployment, spark_session: SparkSession) -> None:
    deployment.produce(SENT)
    done = deployment.cli("archive", "--output", "json")
    assert (done.code, done.json()["rounds"]) == (0, 0), "nothing is due yet"
    done = deployment.cli("archive", "--all", "--output", "json")
    document = done.json()
    assert done.code == 0
    assert list(document) == ["epoch", "rounds", "topics"]
    assert (document["epoch"], document["rounds"]) == (2, 1)
    assert [item["topic"] for item in document["topics"]] == ["clicks", "files", "orders"]
    for item in document["topics"]:
        assert list(item) == [
            "topic",
            "state",
            "archives",
            "rows",
            "raw_bytes",
            "stored_bytes",
            "snapshot_id",
            "why",
            "waiting",
            "misconfigured",
            "notes",
            "gaps",
            "decode_errors",
            "commit_attempts",
            "commit_seconds",
            "schema_change",
            "held",
        ]
        assert (item["state"], item["why"]) == ("archived", None)
        assert item["rows"] == sum(record["topic"] == item["topic"] for record in SENT)
    assert "archived" in deployment.cli("archive", "--all").out


@pytest.mark.spark
def test_archive_while_another_process_does(deployment: Deployment, spark_session: SparkSession) -> None:
    deployment.produce(SENT)
    lease = FileLease(deployment.root / "metadata.db.lease", "elsewhere:4711")
    lease.acquire()
    try:
        done = deployment.cli("archive", "--all")
        assert done.code == 2
        assert "elsewhere:4711" in done.err
        assert deployment.cli("status", "--output", "json").json()["leader"] == "elsewhere:4711"
    finally:
        lease.release()
    assert deployment.cli("status", "--output", "json").json()["leader"] is None
    assert deployment.cli("archive", "--all").code == 0


@pytest.mark.spark
def test_audit_document(archived: Deployment) -> None:  # noqa: F811
    done = archived.cli("audit", "--output", "json")
    document = done.json()
    assert done.code == 0
    assert list(document) == AUDIT
    assert document["verdict"] == "valid"
    assert sorted(document["snapshot_ids"]) == ["clicks", "files", "kept", "orders"]
    assert (
        document["snapshot_ids"]["orders"]
        == archived.cli("tables", "--output", "json").json()["tables"][0]["snapshot_id"]
    )
    assert [(item["topic"], item["partition"]) for item in document["partitions"]] == [
        ("clicks", 0),
        ("clicks", 1),
        ("files", 0),
        ("kept", 0),
        ("orders", 0),
        ("orders", 1),
        ("orders", 2),
    ]
    for item in document["partitions"]:
        assert list(item) == AUDIT_PARTITION
        assert item["verdict"] == "valid"
        assert item["rows"] == item["watermark"] - item["start"] <= item["next"]
        assert [item[name] for name in ("gaps", "missing", "doubled", "removed", "altered", "pending")] == [
            []
        ] * 6
    scoped = archived.cli("audit", "--topic", "orders:1-2", "--output", "json").json()
    assert [(item["topic"], item["partition"]) for item in scoped["partitions"]] == [
        ("orders", 1),
        ("orders", 2),
    ]
    done = archived.cli("audit")
    assert done.code == 0
    assert "valid" in done.out
    deep = archived.cli("audit", "--deep", "--output", "json")
    assert deep.code == 0, deep.err
    assert {item["proof"] for item in deep.json()["partitions"]} == {"rows"}


def test_audit_of_an_empty_deployment(deployment: Deployment) -> None:
    done = deployment.cli("audit", "--output", "json")
    assert (done.code, done.json()["verdict"], done.json()["partitions"]) == (0, "valid", [])


@pytest.mark.spark
@pytest.mark.parametrize("trouble", ["locked", "nobody answers"])
def test_audit_without_its_catalog_is_unknown(trouble: str, archived: Deployment) -> None:  # noqa: F811
    document = archived.document()
    path = archived.root / "catalog.db"
    changed = (
        {"uri": f"sqlite:///{path}?timeout=0.1"}
        if trouble == "locked"
        else {"type": "rest", "uri": "http://127.0.0.1:9"}
    )
    document["catalogs"][0] |= changed
    archived.write(document)
    lock = sqlite3.connect(path, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        done = archived.cli("audit", "--output", "json")
        assert done.code == 2, done.out
        assert done.json()["verdict"] == "unknown"
        verdicts = {item["topic"]: (item["verdict"], item["why"]) for item in done.json()["partitions"]}
        assert verdicts["orders"][0] == "unknown"
        assert "could not be read" in str(verdicts["orders"][1])
        assert verdicts["files"][0] == "valid", "it needs no catalog"
    finally:
        lock.close()
        archived.write(archived.document())
    assert archived.cli("audit").code == 0


@pytest.mark.spark
@pytest.mark.parametrize("harm", ["deleted", "registered twice"])
def test_audit_finds_what_was_done_to_a_table(
    harm: str,
    deployment: Deployment,
    spark_session: SparkSession,
) -> None:
    deployment.produce(SENT)
    assert deployment.cli("archive", "--all").code == 0
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{deployment.root}/catalog.db?timeout=60")
    try:
        table = catalog.load_table("shop.clicks")
        uri = min(task.file.file_path for task in table.scan().plan_files())
        if harm == "deleted":
            Path(uri.removeprefix("file://")).unlink()
        else:
            again = next(task.file for task in table.scan().plan_files() if task.file.file_path == uri)
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
                append.append_data_file(again)
    finally:
        catalog.close()
    done = deployment.cli("audit", "--output", "json")
    assert done.code == 1, done.out
    document = done.json()
    assert document["verdict"] == "invalid"
    (bad,) = [item for item in document["partitions"] if item["verdict"] == "invalid"]
    assert (bad["topic"], bad["partition"]) == ("clicks", 0)
    assert bad["missing" if harm == "deleted" else "doubled"] == [[0, bad["watermark"]]]
    assert bad["why"]
    done = deployment.cli("audit")
    assert done.code == 1
    assert "invalid" in done.out
    if harm == "deleted":
        read = deployment.cli("consume", "--topic", "clicks", "--partition", "0")
        assert read.code == 0, "intake still has the records"
        assert len(read.lines()) == bad["next"]


# topics, tables, status, ledger, config


@pytest.mark.spark
def test_topics(archived: Deployment) -> None:  # noqa: F811
    listed = archived.cli("topics", "list", "--output", "json").json()
    assert list(listed) == ["topics", "attention"]
    assert [item["topic"] for item in listed["topics"]] == ["clicks", "files", "kept", "orders"]
    for item in listed["topics"]:
        assert list(item) == ["topic", "partitions", "records", "archived", "topic_id"]
        assert item["records"] == sum(record["topic"] == item["topic"] for record in [*SENT, *MORE])
        assert item["archived"] == sum(record["topic"] == item["topic"] != "kept" for record in SENT)
    document = archived.cli("topics", "describe", "orders", "--output", "json").json()
    assert list(document) == ["topic", "topic_id", "partitions", "settings", "attention"]
    fields = ["partition", "start", "watermark", "written", "stable", "next", "backlog_rows", "backlog_bytes"]
    for item in document["partitions"]:
        assert list(item) == fields
        assert item["backlog_rows"] == item["stable"] - item["written"]
        assert (item["backlog_bytes"] > 0) == (item["backlog_rows"] > 0)
    assert sum(item["backlog_rows"] for item in document["partitions"]) == sum(
        record["topic"] == "orders" for record in MORE
    )
    assert document["settings"]["archive"]["table"] == "shop.orders"
    assert "orders" in archived.cli("topics", "list").out
    assert document["topic_id"] in archived.cli("topics", "describe", "orders").out
    assert archived.cli("topics", "delete", "orders").code == 3
    assert archived.cli("topics", "describe", "nowhere").code == 3


def test_topics_create(deployment: Deployment) -> None:
    assert deployment.cli("topics", "list", "--output", "json").json() == {"topics": [], "attention": []}
    created = deployment.cli("topics", "create", "orders")
    assert (created.code, "created: 3 partitions" in created.out) == (0, True)
    again = deployment.cli("topics", "create", "orders")
    assert (again.code, "exists already" in again.out) == (0, True)
    missing = deployment.cli("consume", "--topic", "clicks")
    assert (missing.code, missing.out) == (3, "")
    assert missing.err == (
        "error: topic clicks is configured, but not created yet: its first record creates it, and so does "
        "`archiver topics create clicks`\n"
    )
    assert deployment.cli("topics", "create", "nowhere").code == 3
    assert [
        item["topic"] for item in deployment.cli("topics", "list", "--output", "json").json()["topics"]
    ] == ["orders"]
    document = deployment.document()
    document["topics"][0]["partitions"] = 4
    deployment.write(document)
    done = deployment.cli("topics", "create", "orders")
    assert (done.code, "exists already: 4 partitions" in done.out) == (0, True)


def test_topics_alter(deployment: Deployment) -> None:
    assert deployment.cli("topics", "alter", "orders", "--partitions", "4").code == 3, "it is not there yet"
    topic_id = deployment.cli("topics", "create", "orders", "--output", "json").json()["topic_id"]
    behind = "topic orders has 5 partitions, the configuration says 3; set `partitions: 5` in archiver.yaml, "
    behind += "because the topic keeps all of them"
    done = deployment.cli("topics", "alter", "orders", "--partitions", "5", "--output", "json")
    assert (done.code, done.json()) == (
        0,
        {
            "topic": "orders",
            "topic_id": topic_id,
            "partitions": 5,
            "partitions_before": 3,
            "configs": {},
            "attention": [behind],
        },
    )
    again = deployment.cli("topics", "alter", "orders", "--partitions", "5")
    assert (again.code, again.out) == (0, f"topic orders has 5 partitions already\nnote: {behind}\n")
    for count, why in (
        ("4", "topic orders has 5 partitions, and their number is never lowered"),
        ("0", "topic orders cannot have 0 partitions"),
        ("100001", "the number is between 1 and 100000"),
    ):
        done = deployment.cli("topics", "alter", "orders", "--partitions", count)
        assert (done.code, why in done.err, done.out) == (3, True, "")
    places = deployment.cli("topics", "describe", "orders", "--output", "json").json()["partitions"]
    assert [item["partition"] for item in places] == [0, 1, 2, 3, 4]
    assert behind in deployment.cli("status", "--output", "json").json()["attention"]
    document = deployment.document()
    document["topics"][0]["partitions"] = 5
    deployment.write(document)
    assert deployment.cli("topics", "alter", "orders", "--partitions", "6").out == (
        "topic orders has 6 partitions, 5 before\n"
        "note: topic orders has 6 partitions, the configuration says 5; set `partitions: 6` in "
        "archiver.yaml, because the topic keeps all of them\n"
    )


@pytest.mark.spark
def test_tables(archived: Deployment) -> None:  # noqa: F811
    document = archived.cli("tables", "--output", "json").json()
    assert list(document) == ["tables"]
    assert [item["table"] for item in document["tables"]] == ["shop.orders", "shop.clicks"]
    fields = [
        "topic",
        "catalog",
        "table",
        "location",
        "metadata_location",
        "snapshot_id",
        "rows",
        "files",
        "gone",
        "spark",
        "trino",
        "trino_catalog",
        "duckdb",
        "duckdb_secret",
    ]
    for item in document["tables"]:
        assert list(item) == fields
        assert item["gone"] is None
        assert item["rows"] == sum(record["topic"] == item["topic"] for record in SENT)
        assert item["files"] == item["duckdb"].count(".parquet")
        assert Path(item["metadata_location"].removeprefix("file://")).is_file()
    out = archived.cli("tables").out
    assert "spark-sql --packages" in out
    assert 'SELECT * FROM "local"."shop"."orders" LIMIT 10' in out
    assert ".parquet" not in out, "a list of files grows with the table, and is stale after the next commit"
    command = "query 'SELECT * FROM shop.orders LIMIT 10'"
    assert command in out
    assert archived.cli(*shlex.split(command)).code == 0
    item = next(item for item in document["tables"] if item["topic"] == "orders")
    full = archived.cli("tables", "--topic", "orders", "--files").out
    assert item["duckdb"] in full
    assert f"-- in DuckDB, the files of snapshot {item['snapshot_id']}; stale after the next commit" in full


def test_tables_that_are_not_there(deployment: Deployment) -> None:
    for item in deployment.cli("tables", "--output", "json").json()["tables"]:
        assert (item["location"], item["snapshot_id"], item["rows"], item["files"]) == (None, None, 0, 0)
    assert deployment.cli("tables").code == 0


@pytest.mark.spark
def test_status(archived: Deployment, deployment: Deployment) -> None:  # noqa: F811
    document = archived.cli("status", "--output", "json").json()
    fields = [
        "cluster",
        "cluster_id",
        "data",
        "leader",
        "epoch",
        "intake_log",
        "control_log",
        "topics",
        "groups",
        "pinned",
        "metrics",
        "attention",
    ]
    assert list(document) == [*fields, "daemon"]
    pinned = document["pinned"]
    labels = f'{{topic="{pinned["topic"]}",partition="{pinned["partition"]}"}}'
    (name, age_s), (alias, same_s) = document["metrics"].items()
    assert name == f"archiver_intake_oldest_required_age_seconds{labels}"
    assert alias == f"archiver_intake_pinned_age_seconds{labels}"
    assert age_s == same_s > 0
    assert (document["cluster"], document["epoch"], document["leader"], document["attention"]) == (
        "test",
        1,
        None,
        [],
    )
    for item in document["topics"]:
        fields = ["topic", "records", "archived", "backlog_rows", "backlog_bytes", "pending_archives", "held"]
        assert list(item) == [*fields, "kind", "last_commit", "valid_through", "stuck", "partitions"]
        assert item["held"] == []
    assert document["intake_log"]["floor"] == document["control_log"]["floor"] == 0
    assert archived.cli("status", "--exit-code").code == 0
    assert "leader: none" in archived.cli("status").out
    watched = archived.cli("watch", "--count", "1")
    assert (watched.code, watched.err) == (0, "")
    assert [line.split()[0] for line in watched.out.splitlines()[5:9]] == [
        "clicks",
        "files",
        "kept",
        "orders",
    ]
    empty = deployment.cli("status", "--exit-code", "--output", "json")
    assert empty.code == 1
    assert len(empty.json()["attention"]) == 4
    assert deployment.cli("status").code == 0


@pytest.mark.spark
def test_ledger(archived: Deployment) -> None:  # noqa: F811
    document = archived.cli("ledger", "show", "--output", "json").json()
    assert list(document) == [
        "epoch",
        "owner",
        "entries",
        "void_entries",
        "refused_files",
        "topics",
        "rounds",
    ]
    fields = [
        "topic",
        "topic_id",
        "table_uuid",
        "schema_version",
        "snapshot_id",
        "watermarks",
        "valid_through_us",
        "files",
        "rows",
    ]
    for item in document["topics"]:
        assert list(item) == [*fields, "stored_bytes", "pending", "killed"]
        assert item["rows"] == sum(record["topic"] == item["topic"] for record in SENT)
        assert (item["pending"], item["killed"]) == ([], [])
    (round_,) = document["rounds"]
    assert (round_["state"], round_["epoch"]) == ("settled", 1)
    assert round_["commit_id"] in archived.cli("ledger", "show").out.replace("\n", "")


@pytest.mark.spark
def test_ledger_events(archived: Deployment, tmp_path: Path) -> None:  # noqa: F811
    lines = archived.cli("ledger", "events").lines()
    assert all(list(line) == ["index", "event"] for line in lines)
    indexes = [line["index"] for line in lines]
    assert indexes == sorted(set(indexes))
    path = tmp_path / "events.bin"
    assert archived.cli("ledger", "events", "--raw", str(path)).code == 0
    data = path.read_bytes()
    events: list[bytes] = []
    while data:
        length = int.from_bytes(data[:4], "big")
        assert 0 < length <= len(data) - 4
        events.append(data[4 : 4 + length])
        data = data[4 + length :]
    decoded = [codec.decode(event) for event in events]
    names = [type(event.payload).__name__ for event in decoded]
    assert names == [
        "StartCommit",
        "DataWritten",
        "DataWritten",
        "DataComplete",
        "CommitToTable",
        "CommitToTable",
        "CommitComplete",
    ]
    assert len({event.payload.commit_id for event in decoded}) == 1
    assert [json_form.to_json(codec.read(event)) for event in events] == [line["event"] for line in lines]
    assert archived.cli("ledger", "events", "--raw", str(path)).code == 3, (
        "an existing file is not overwritten"
    )
    assert archived.cli("ledger", "events", "--raw", str(tmp_path / "no" / "folder")).code == 3


def test_config(deployment: Deployment) -> None:
    document = deployment.cli("config", "check", "--output", "json").json()
    assert document == {
        "config": str(deployment.config),
        "cluster": "test",
        "topics": ["orders", "clicks", "files", "kept"],
    }
    assert "is valid: cluster test, 4 topics" in deployment.cli("config", "check").out
    shown = json.loads(deployment.cli("config", "show").out)
    assert (shown["cluster"], shown["archive"]["idle_max"], shown["intake"]["delay_max"]) == (
        "test",
        30.0,
        0.02,
    )
    schema = json.loads(deployment.cli("config", "schema").out)
    assert {"cluster", "data", "metadata", "topics"} <= set(schema["properties"])
    assert not deployment.data.exists(), "looking at the configuration creates nothing"


def test_doctor(deployment: Deployment) -> None:
    done = deployment.cli("doctor", "--output", "json")
    document = done.json()
    assert list(document) == ["config", "cluster", "outcomes", "checks"]
    assert (document["config"], document["cluster"]) == (str(deployment.config), "test")
    assert list(document["outcomes"]) == ["problem", "warning", "unknown", "ok", "not applicable"]
    assert all(list(one) == ["name", "outcome", "found", "remedy"] for one in document["checks"])
    assert [one["name"] for one in document["checks"]] == [
        *("configuration", "java", "memory", "open files", "duckdb", "scratch folder", "disk", "schemas"),
        *("http.listen", "kafka.listen", "data folder", "metadata folder", "object store"),
        *("bucket guarantees", "metadata store", "catalog local", "schema registry", "clock"),
    ]
    assert done.code == (1 if document["outcomes"]["problem"] else 0)
    assert (
        deployment.cli("doctor").out.splitlines()[-1].startswith(f"{document['outcomes']['problem']} problem")
    )
    assert not deployment.data.exists(), "it creates nothing"


def test_secrets_are_not_shown(deployment: Deployment) -> None:
    document = deployment.document()
    document["catalogs"].append(
        {"name": "lake", "type": "rest", "uri": "https://me:hunter2@lake.example", "token": "hunter2"}
    )
    deployment.write(document)
    for command in (["config", "show"], ["config", "check"], ["tables", "--output", "json"], ["status"]):
        done = deployment.cli(*command)
        assert done.code == 0
        assert "hunter2" not in done.out + done.err


@pytest.mark.parametrize("command", [[], ["topics"], ["ledger"], ["config"]])
def test_without_a_command_the_help_is_shown(command: list[str], deployment: Deployment) -> None:
    done = deployment.cli(*command)
    assert "Usage: archiver" in done.out + done.err
    assert "error:" not in done.err
    helped = deployment.cli(*command, "--help")
    assert (helped.code, "Usage: archiver" in helped.out) == (0, True)


def test_the_configuration_is_found(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the option, the variable, or its name in the current folder; the option wins."""
    other = Deployment(deployment.root / "other", overrides={"cluster": "second"})
    monkeypatch.chdir(deployment.root)

    def cluster(*arguments: str) -> str:
        assert run(["config", "check", "--output", "json", *arguments]) == 0
        found: str = json.loads(capsys.readouterr().out)["cluster"]
        return found

    monkeypatch.delenv("ARCHIVER_CONFIG", raising=False)
    assert cluster() == "test"
    monkeypatch.setenv("ARCHIVER_CONFIG", str(other.config))
    assert cluster() == "second"
    monkeypatch.setenv("ARCHIVER_CONFIG", str(deployment.config))
    assert cluster("-c", str(other.config)) == "second"
