"""The deep audit in a running daemon: on its schedule, through the port, in the metrics and on the page,
during rounds of archiving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
RECORDS = 40


def test_a_daemon_audits_every_row(tmp_path: Path) -> None:
    topics = [
        {
            "name": "clicks",
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.clicks"},
        }
    ]
    deployment = Deployment(tmp_path / "d", overrides={"topics": topics})
    deployment.write(quick(deployment.document(), deep_audit_interval="2s"))
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        lines = "".join(
            json.dumps({"key": None, "value": None, "headers": []}) + "\n" for _ in range(RECORDS)
        )
        assert daemon.post("/v1/topics/clicks/records", lines.encode()).status == 200
        daemon.until_archived("clicks", RECORDS)
        before = daemon.cycles("deep_audit", "fine")
        until(
            "two more deep audits have run by themselves",
            lambda: daemon.cycles("deep_audit", "fine") >= before + 2,
        )
        text = daemon.get("/metrics").body.decode()
        assert 'archiver_deep_audit_verdict{verdict="valid"} 1.0' in text
        assert "archiver_deep_audit_age_seconds" in text
        page = daemon.get("/").body.decode()
        assert "<strong>deep audit</strong>" in page
        assert "only by command: <code>archiver audit --deep</code>" not in page, "it has a schedule"
        answer = daemon.admin("audit", {"deep": True, "topic": "clicks:0"})
        (found,) = answer["done"]["document"]["partitions"]
        assert (answer["done"]["exit_code"], found["verdict"], found["proof"], found["rows"]) == (
            0,
            "valid",
            "rows",
            RECORDS,
        )
        host, port = daemon.address
        deployment.write({**quick(deployment.document()), "http": {"listen": f"{host}:{port}"}})
        done = deployment.run("audit", "--deep", "--output", "json")
        assert (done.code, done.json()["partitions"][0]["proof"]) == (0, "rows"), done.err
        assert "reading" in done.err, "the daemon tells what it does"
        assert not daemon.logged("deep_audit: an error"), daemon.log_text()
        assert daemon.stop() == 0
