"""An upgrade: a real daemon of this version on what each earlier one left behind, with readers that were
there before it; and the way back.

docs/operations/upgrade.md says what holds; `test_upgrade_page.py` holds its table of formats against the
code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.support.builders.deployment import check_present, sample_records
from tests.support.builders.golden import GOLDEN, Golden, golden_place, unpack
from tests.support.deploy.standing_service import send
from tests.support.process.processes import Command, until
from tests.support.process.serving import Served, quick

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.turns(2)]

STORED = 120
"""Records in a golden deployment, but for one of version 4 on that did not decode."""
VERSIONS = sorted(path.name for path in GOLDEN.iterdir())
WHOLE = os.environ.get("ARCHIVER_UPGRADES") == "whole"
"""Else the oldest, and the newest, which has everything that the others came with."""


@pytest.fixture(params=VERSIONS if WHOLE else (VERSIONS[0], VERSIONS[-1]))
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    """A copy of the golden deployment at its place."""
    with golden_place(request.param) as folder:
        unpack(request.param, folder)
        yield Golden(folder)


def read_by(reader: Command) -> list[Any]:
    return [json.loads(line) for line in list(reader.out) if line.endswith("\n")]


def test_a_daemon_takes_over_what_an_earlier_version_left(
    golden: Golden,
    tmp_path: Path,
    spark_session: SparkSession,
) -> None:
    golden.write(quick(yaml.safe_load(golden.config.read_text(encoding="utf-8"))))
    sent, acknowledged = golden.jsonl("sent.jsonl"), golden.jsonl("acknowledged.jsonl")
    orders = sum(record["topic"] == "orders" for record in sent)
    more = sample_records(24, first=STORED)
    before = golden.digests()
    assert golden.pending(), "the earlier version was killed between the ledger and the table"
    with Command(golden, "consume", "--topic", "orders", "--follow", scratch=tmp_path / "reader") as reader:
        until("the old records are read before the upgrade", lambda: len(read_by(reader)) == orders)
        with Served(golden, scratch=tmp_path / "scratch") as daemon:
            daemon.until_ready()
            pairs = send(daemon, more)
            assert len(pairs) == len(more)
            orders += sum(record["topic"] == "orders" for record in more)
            daemon.until_archived("orders", orders)
            until("the reader goes on", lambda: len(read_by(reader)) == orders)
            assert daemon.stop() == 0, daemon.log_text()
            assert not daemon.logged("Traceback"), daemon.log_text()
    golden.check_taken_over(before)
    sent += [record for record, _ in pairs]
    check_present(golden, sent, [*acknowledged, *(item for _, item in pairs)], golden.gaps())
    for kind in ([], ["--deep"]):
        audit = golden.cli("audit", *kind, "--output", "json")
        assert (audit.code, audit.json()["verdict"]) == (0, "valid"), audit.out
    assert golden.cli("reconcile").code == 0
