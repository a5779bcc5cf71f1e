"""The whole path works with the objects in a bucket: produce, archive, consume, audit, clean, and a writer
that is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment, check_present, jsonl, sample_records
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import SECRET_ACCESS_KEY, S3Server, data_group
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

LINE = b'{"value": "AAAA"}\n'
REQUESTS_OF_A_ROUND_MAX = 60
"""Of a command that archives two partitions of one topic into its table, its own start and its check of the
other topics included."""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue("s3_server")
    return found


def deployed(folder: Path, server: S3Server, endpoint: str | None = None) -> Deployment:
    """A deployment on a new bucket, its keys in files."""
    data = data_group(folder, server.new_bucket(), endpoint or server.uri)
    return Deployment(folder, failpoints_asked=True, overrides={"data": data})


def test_the_whole_path(tmp_path: Path, server: S3Server, spark_session: object) -> None:
    with S3Faults(server) as faults:
        walk(deployed(tmp_path / "d", server, faults.uri), faults)


def walk(deployment: Deployment, faults: S3Faults) -> None:
    """Every step of the way, in its order."""
    sent = sample_records(120)
    acknowledged = deployment.produce(sent)
    check_present(deployment, sent, acknowledged)
    killed = deployment.run(
        "produce", "--output", "json", stdin=jsonl(sample_records(30, 120)), armed="writer.append.before=kill"
    )
    assert killed.code == -9
    again = sample_records(60, 200)
    sent, acknowledged = sent + again, acknowledged + deployment.produce(again)
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 0, done.err
    check_present(deployment, sent, acknowledged)
    audit = deployment.cli("audit", "--output", "json")
    assert (audit.code, audit.json()["verdict"]) == (0, "valid"), audit.err
    more = [{**record, "topic": "clicks"} for record in sample_records(12, 300)]
    sent, acknowledged = sent + more, acknowledged + deployment.produce(more)
    faults.counts()
    assert deployment.cli("archive", "--all").code == 0
    round_of_one_table = faults.counts()
    print("requests of a round with one table and two archives:", round_of_one_table)
    assert sum(round_of_one_table.values()) <= REQUESTS_OF_A_ROUND_MAX, round_of_one_table
    asked = deployment.cli(
        "query",
        "--output",
        "json",
        "SELECT count(*) AS n, count(DISTINCT kafka.offset) AS o FROM shop.clicks",
    )
    assert asked.code == 0, asked.err
    assert asked.json()["rows"][0]["n"] == sum(record["topic"] == "clicks" for record in sent)
    deep = deployment.cli("audit", "--deep", "--output", "json")
    assert (deep.code, deep.json()["verdict"]) == (0, "valid"), deep.out + deep.err
    assert {part["proof"] for part in deep.json()["partitions"] if part["rows"]} == {"rows"}
    cleaned = deployment.cli("clean", "--output", "json")
    assert cleaned.code == 0, cleaned.err
    reconciled = deployment.cli("reconcile", "--output", "json")
    assert reconciled.code == 0, reconciled.out + reconciled.err
    check_present(deployment, sent, acknowledged)
    for text in (done.out, done.err, json.dumps(audit.json()), cleaned.err, reconciled.out):
        assert SECRET_ACCESS_KEY not in text
    assert not (deployment.root / "data").exists()


def test_a_server_that_ignores_the_condition_gets_nothing(tmp_path: Path) -> None:
    with S3Server(tmp_path / "s3", signed=False) as unsigned, S3Faults(unsigned) as faults:
        deployment = deployed(tmp_path / "d", unsigned, faults.uri)
        faults.ignoring = ("put",)
        done = deployment.cli("produce", stdin=jsonl(sample_records(3)))
        assert done.code == 3
        assert "despite If-None-Match" in done.err
        faults.ignoring = ()
        deployment.produce(sample_records(3))
        faults.ignoring = ("put",)
        done = deployment.cli("produce", stdin=jsonl(sample_records(3)))
        assert (done.code, "despite If-None-Match" in done.err) == (3, True)


def test_a_daemon_outlives_its_server(tmp_path: Path, server: S3Server) -> None:
    """The server goes and comes back, a writer is killed: what was acknowledged is there once, and nothing
    was asked for by hand."""
    with S3Faults(server) as faults:
        deployment = deployed(tmp_path / "d", server, faults.uri)
        document = quick(deployment.document())
        document["data"] |= {"attempts_max": 2, "request_timeout": "5s"}
        deployment.write(document)
        acknowledged = 0
        with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
            daemon.until_ready()
            acknowledged += daemon.post("/v1/topics/kept/records", LINE).status == 200
            faults.refuse()
            until("it is not ready", lambda: not daemon.ready())
            assert daemon.post("/v1/topics/kept/records", LINE).status != 200
            assert daemon.running
            faults.recover()
            daemon.until_ready()
            until(
                "it takes records again", lambda: daemon.post("/v1/topics/kept/records", LINE).status == 200
            )
            acknowledged += 1
            daemon.kill()
        acknowledged += len(deployment.produce([{"topic": "kept", "value": "AAAA"}]))
        assert [record["offset"] for record in deployment.consume("kept")] == list(range(acknowledged))
        assert acknowledged == 3
