"""The status page shows what is wrong: records that were not decoded, and the verdict of an audit at the
command line."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick
from tests.support.schema.orders import order

pytestmark = [pytest.mark.timeout(120), pytest.mark.spark]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """With a port that commands know: bound and never listened on, so that the daemon can have it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        made = Deployment(tmp_path / "d")
        document = quick(made.document())
        document["http"] = {**document.get("http", {}), "listen": f"127.0.0.1:{reserved.getsockname()[1]}"}
        made.write(document)
        yield made


def page(daemon: Served) -> str:
    return " ".join(daemon.get("/").body.decode().split())


def test_undecoded_records_and_a_bad_verdict_are_on_the_page(deployment: Deployment, tmp_path: Path) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [order(1), b"\xff\xff", b"\xff", order(2)])
        assert driver.archive().of("orders").state == "archived"
    with Served(deployment, "--roles", "intake,reconcile", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        done = deployment.cli("audit", "--output", "json")
        assert (done.code, done.json()["verdict"]) == (0, "valid")
        assert {item["topic"]: item["records"] for item in done.json()["undecoded"]}["orders"] == 2
        until(
            "the page says what was not decoded",
            lambda: "topic orders has 2 undecoded keys and values" in page(daemon),
        )
        assert "archiver dlq list --topic orders" in page(daemon)
        assert "All is well" not in page(daemon)
        (note,) = deployment.cli("status", "--output", "json").json()["attention"]
        assert note.startswith(
            "Topic orders: the table has 2 undecoded keys and values and keeps their bytes (audit of "
        )
        assert ".." not in note
        assert 'archiver_undecoded_values{topic="orders"} 2.0' in daemon.get("/metrics").body.decode()

        (moved, *_) = sorted(deployment.data.rglob("archive/*/data/**/*.parquet"))
        moved.rename(tmp_path / "moved.parquet")
        done = deployment.cli("audit", "--output", "json")
        assert (done.code, done.json()["verdict"]) == (1, "invalid")
        until("the page says what the command found", lambda: "the audit says invalid" in page(daemon))
        assert any(
            "invalid" in line for line in deployment.cli("status", "--output", "json").json()["attention"]
        )
        assert daemon.stop() == 0


def test_what_a_command_found_by_itself_is_on_the_page(deployment: Deployment, tmp_path: Path) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [order(1), order(2)])
        assert driver.archive().of("orders").state == "archived"
    apart = yaml.safe_load(deployment.config.read_text(encoding="utf-8"))
    # With this port the command asks no daemon.
    apart["http"]["listen"] = "127.0.0.1:0"
    path = deployment.root / "apart.yaml"
    path.write_text(yaml.safe_dump(apart), encoding="utf-8")
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert "by a command" not in page(daemon)
        assert deployment.cli("audit", "-c", str(path)).code == 0
        until("the page says that it is valid", lambda: "by a command, " in page(daemon))
        assert "All is well" in page(daemon)
        (moved, *_) = sorted(deployment.data.rglob("archive/*/data/**/*.parquet"))
        moved.rename(tmp_path / "moved.parquet")
        assert deployment.cli("audit", "-c", str(path)).code == 1
        until("the page says what it found", lambda: "the audit says invalid" in page(daemon))
        assert deployment.cli("reconcile", "--topic", "orders").code == 1
        assert "finding-dangling-reference" not in page(daemon), "a part is no result of the deployment"
        assert deployment.cli("reconcile").code == 1
        until("the page names the finding", lambda: "#finding-dangling-reference" in page(daemon))
        (note,) = [
            line
            for line in deployment.cli("status", "--output", "json").json()["attention"]
            if line.startswith("The audit of ")
        ]
        assert "(by a command, " in note
        assert "archiver_audit_verdict" not in daemon.get("/metrics").body.decode()
        assert daemon.stop() == 0
    for result in deployment.root.glob("metadata.db.*-result"):
        result.write_text("{}", encoding="utf-8")
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "again") as daemon:
        daemon.until_ready()
        daemon.until_logged("-result is ignored: it is not the result of a command")
        assert "by a command" not in page(daemon)
        assert daemon.stop() == 0


def test_explain_gives_the_reason_of_a_topic_that_the_daemon_halted(
    deployment: Deployment, tmp_path: Path
) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [order(1)], 0)
        assert driver.archive(("orders", None)).of("orders").state == "archived"
        driver.send("orders", [order(2)], 0)
        assert driver.application.explain("orders", 0, 1, "a reason").why.endswith(
            "the last round could not finish the topic: a reason"
        )
    document = quick(yaml.safe_load(deployment.config.read_text(encoding="utf-8")))
    (topic,) = (one for one in document["topics"] if one["name"] == "orders")
    topic["schema_change"], topic["value"]["message"] = "refuse", "shop.Line"
    deployment.write(document)
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        until(
            "the reason is known",
            lambda: (
                "refuse does not allow"
                in deployment.cli("explain", "orders:0:1", "--output", "json").json()["why"]
            ),
        )
        assert "archives it" not in deployment.cli("explain", "orders:0:1").out
        assert daemon.stop() == 0
