"""`archiver demo --serve` as a user has it: flights become rows, nothing stays behind it, and the next one goes
on where a killed one was."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import Any

import pytest
import yaml

from archiver.demo import settings
from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import Command, alive, until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.turns(2),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

RATE = 40
STOP_S = 90.0
"""For a loaded machine; a stop takes a second or two."""


def configure(directory: Path, delay: str) -> None:
    """Archive flights after this delay, so that one test needs one JVM."""
    path = settings.prepare_live(directory, 1)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["archive"] = {"tick": "500ms"}
    document["spark"] = {"master": "local[2]", "driver_memory": "1g"}
    document["topics"][-1]["archive"] |= {
        "start_delay_max": "100ms",
        "idle_max": delay,
        "complete_delay_max": delay,
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")


class Live(Command):
    """A running `archiver demo --serve`."""

    def __init__(self, deployment: Deployment, directory: Path, scratch: Path) -> None:
        arguments = ("demo", "--serve", "--port", "0", "--rate", str(RATE), "--output", "json")
        super().__init__(deployment, *arguments, "--dir", str(directory), scratch=scratch)

    def lines(self) -> list[Any]:
        """What it has printed."""
        assert self._process.poll() is None or self._process.returncode == 0, self.err
        self.look()
        return [json.loads(line) for line in list(self.out) if line.endswith("\n")]

    def address(self) -> str:
        """Of its console; waits until it is ready."""
        return str(until("the console is ready", self.lines)[0]["console"])


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def stored(address: str) -> int:
    """Records that the daemon acknowledged."""
    found = re.search(r"^archiver_intake_records_ok_total (\S+)$", get(f"{address}metrics"), re.MULTILINE)
    return round(float(found[1])) if found else 0


def test_flights_go_on_after_a_kill_and_end_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    settings.prepare(directory)
    configure(directory, "1h")
    deployment = Deployment(tmp_path / "d")
    with Live(deployment, directory, tmp_path / "scratch") as killed:
        address = killed.address()
        before = until("flights are stored", lambda: stored(address))
        assert any("archiver.demo.live_daemon" in line for line in killed.look())
        refused = deployment.run("demo", "--dir", str(directory))
        assert refused.code == 2
        assert f"its console is {address}" in refused.err
        killed.signal(SIGKILL)
        killed.wait()
        configure(directory, "2s")
        with Live(deployment, directory, tmp_path / "scratch") as live:
            assert settings.LIVE_TOPIC in get(live.address())
            assert not alive(killed.seen), "the next command waited for the daemon of the killed one"
            until("a line says that rows are in the table", lambda: live.lines()[-1].get("rows"))
            live.lines()
            began_s = SystemClock().monotonic_s()
            # As a terminal does: to its whole group, but the daemon is in another one.
            live.signal(SIGINT, group=True)
            assert live.wait() == 0
            assert SystemClock().monotonic_s() - began_s < STOP_S
            assert not alive(live.seen), "nothing is left"
            last = live.lines()[-1]
    assert last["sent"] == last["acknowledged"] > RATE
    assert last["failed"] == last["unknown"] == 0
    audit = deployment.cli("audit", "-c", str(directory / "archiver.yaml"), "--output", "json")
    assert audit.code == 0, audit.out
    document = audit.json()
    partitions = [one for one in document["partitions"] if one["topic"] == settings.LIVE_TOPIC]
    assert sum(one["next"] for one in partitions) >= before + last["acknowledged"]
    assert sum(one["rows"] for one in partitions) >= last["rows"] > 0
