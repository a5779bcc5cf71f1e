"""Mirrored topics judged from outside: two daemons, a broker and its producers, and faults by the seed; a
longer run is `python -m tests.harness run --deployment mirror --minutes M`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.judging import judge
from tests.harness.loading import load
from tests.support.kafka.mirror_run import ACTS, MIRRORED, mirror_run

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.turns(4, 1)]

SEED = 8
SECONDS = 30.0


def test_each_committed_record_lands_once_regardless_of_who_dies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with mirror_run(folder, SEED, SECONDS, print) as run:
        run.run()
    history = load(folder)
    reported = judge(history)
    assert reported.verdict == "valid", (reported.to_json(), run.reported())
    assert set(ACTS) <= set(reported.counts["faults"])
    assert reported.counts["mirrored"] > 100
    assert run.seen.stopped == [0] * len(run.seen.stopped) != []
    assert len(set(run.seen.leaders)) > 1, "another daemon took over"
    assert history.mirrors.keys() == MIRRORED.keys()
    for mirror in history.mirrors.values():
        partitions = {row.partition for row in mirror.upstream}
        last = sum(
            1 + max(row.offset for row in mirror.upstream if row.partition == partition)
            for partition in partitions
        )
        assert last > len(mirror.upstream), "there is no gap, so little was shown"
