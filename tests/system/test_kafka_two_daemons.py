"""The Kafka port judged from outside: two daemons, Kafka clients, and faults by the seed; a longer run is
`python -m tests.harness run --deployment kafka --minutes M`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.group_member import ASSIGNORS
from tests.harness.judging import judge
from tests.harness.kafka_loop import LOOP
from tests.harness.loading import load
from tests.support.kafka.kafka_run import ACTS, kafka_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.turns(4, 3)]

SEED = 3
SECONDS = 12.0


def test_kafka_clients_get_what_they_are_promised(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with kafka_run(folder, SEED, SECONDS, print) as run:
        run.run()
    reported = judge(load(folder))
    assert reported.verdict == "valid", (reported.to_json(), run.reported())
    assert set(ACTS) <= set(reported.counts["faults"])
    assert reported.counts["outcomes"]["ok"] > 200
    assert reported.counts["fetched"] > 200
    assert reported.counts["transactions"]["committed"] > 3
    assert reported.counts["transactions"]["aborted"] > 0
    groups = reported.counts["groups"]
    assert groups.keys() == {*ASSIGNORS, LOOP}
    for group in groups.values():
        assert group["acknowledged"] > 10
        assert group["observed"] > 20
    assert groups[LOOP]["written"] > 200
    assert run.origins["archive"] > 0
    assert run.stopped == [0, 0]
