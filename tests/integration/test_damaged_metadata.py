"""What do commands report on a table whose metadata is damaged? "Unknown", with the name of the file; never
"interrupted" or a traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver

pytestmark = pytest.mark.spark

KINDS = ("snap-*.avro", "*-m0.avro", "*.metadata.json")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    found = Deployment(tmp_path_factory.mktemp("damaged"))
    with Driver(found) as driver:
        driver.send("clicks", [b"x"] * 3)
        assert driver.archive().of("clicks").state == "archived"
    return found


def newest(deployment: Deployment, pattern: str) -> Path:
    found = [path for path in deployment.data.rglob(pattern) if path.is_file()]
    return max(
        found, key=lambda path: (path.name if "metadata.json" in pattern else "", path.stat().st_mtime_ns)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_commands_name_the_damaged_file(deployment: Deployment, kind: str, share: float) -> None:
    path = newest(deployment, kind)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    try:
        done = deployment.cli("audit", "--output", "json")
        assert (done.code, done.json()["verdict"]) == (2, "unknown")
        assert "Traceback" not in done.err
        (partition,) = [part["partition"] for part in done.json()["partitions"] if part["next"] > 0]
        whys = " ".join(part["why"] or "" for part in done.json()["partitions"])
        assert path.name in whys or "cannot be read" in whys
        for command in (
            ("reconcile",),
            ("explain", f"clicks:{partition}:1"),
            ("tables",),
            ("query", "SELECT 1"),
            ("clean", "--dry-run"),
        ):
            done = deployment.cli(*command)
            assert done.code in {0, 1, 2}, (command, done.code, done.err)
            assert "Traceback" not in done.err, (command, done.err)
            assert "interrupted" not in done.err, (command, done.err)
    finally:
        path.write_bytes(data)
    assert deployment.cli("audit").code == 0


def test_an_end_of_bytes_is_not_taken_for_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    from archiver.cli import app

    def damaged(*_: object, **__: object) -> None:
        raise typer.Abort from EOFError("no more bytes")

    monkeypatch.setattr(app, "app", damaged)
    with pytest.raises(EOFError):
        app.run(["status"])
