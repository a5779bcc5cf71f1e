"""A transaction past its timeout ends although no archiver runs: any running writer aborts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver import Reader, Writer
from archiver.runtime.errors import ProducerFenced
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until


def test_a_writer_ends_what_is_overdue(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Writer(deployment.config) as one, Writer(deployment.config) as two:
        slow = one.producer("slow", transaction_timeout_s=3)
        slow.begin()
        assert slow.send("clicks", b"never committed", partition=0).result(30).outcome == "ok"
        assert two.send("clicks", b"behind it", partition=0).result(30).offset == 1

        def seen() -> list[bytes | None]:
            with Reader(deployment.config) as reader:
                return [record.value for record in reader.read("clicks", [0])]

        until("the transaction is aborted", lambda: seen() == [b"behind it"])
        with pytest.raises(ProducerFenced):
            slow.commit()
        again = one.producer("slow")
        with again.transaction():
            again.send("clicks", b"committed", partition=0)
        assert seen() == [b"behind it", b"committed"]
