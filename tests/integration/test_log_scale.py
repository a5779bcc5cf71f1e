"""With any length of the intake log and any backlog, the metadata store and a restart stay small.

Entries of 20 segments over 400 partitions, each with an idempotent producer, archiving off. `make sweep-log`
takes a million of them and prints what it measured. `make test` takes a share, and asserts no times.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archiver.config.groups import LogSettings
from intake.log.backlog import Backlog
from tests.support.builders.deployment import ROOT
from tests.support.intake.intake_entries import topic_id_of
from tests.support.log.log_filling import PARTITIONS, SEGMENTS, LongLog, entries, peak_bytes

ENTRIES = int(os.environ.get("ARCHIVER_LOG_ENTRIES", "20000"))
STEP = 2_500
METADATA_BYTES_MAX = 64 * 2**20
RESTART_S_MAX = 10.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400 if ENTRIES > 100_000 else 180)]


def test_metadata_and_restart_stay_small(tmp_path: Path) -> None:
    settings = LogSettings()
    made = entries(seed=7)
    living = LongLog(tmp_path, settings)
    most = filled = 0
    making_s = 0.0
    began_s = time.monotonic()
    # The restart is measured where it has most to do: just before a checkpoint is due.
    wanted = ENTRIES - ENTRIES % settings.checkpoint_entries + settings.checkpoint_entries - 1
    while filled < wanted:
        step = min(STEP, wanted - filled)
        living.fill(made, step)
        filled += step
        living.sequencer.refresh()
        most = max(most, living.metadata_bytes())
        at_s = time.monotonic()
        if living.checkpointer.run_if_due():
            making_s += time.monotonic() - at_s
            most = max(most, living.metadata_bytes())
            assert living.log.tail() - living.log.floor() <= 2 * settings.checkpoint_entries + STEP
            assert most < METADATA_BYTES_MAX, (filled, most)
    whole_s = time.monotonic() - began_s
    held = sum(len(state.segments) for state in living.sequencer.fold.state().partitions.values())
    assert held <= (settings.checkpoint_entries + STEP) * SEGMENTS, "a living process forgets what is shelved"
    assert most < METADATA_BYTES_MAX
    _check_backlog(living.sequencer.backlog(), filled)
    checkpoint_bytes = living.objects.info(
        f"checkpoint/intake/v1/{living.sequencer.checkpoint_index:020}.bin"
    )
    assert checkpoint_bytes is not None
    assert checkpoint_bytes.size < 2 * 2**20
    living.close()
    at_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.log.log_filling", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    restart_s = time.monotonic() - at_s
    report = json.loads(done.stdout)
    assert report["next"] == filled
    assert report["read_entries"] <= settings.checkpoint_entries + 1
    history = sum(path.stat().st_size for path in (tmp_path / "data" / "shelf").rglob("*.parquet"))
    mib = 2**20
    print(
        f"\n{filled:,} entries of {SEGMENTS} segments: metadata store at most {most / mib:.1f} MiB, "
        f"history files {history / mib:.1f} MiB, "
        f"newest checkpoint {checkpoint_bytes.size / mib:.2f} MiB; all of it took {whole_s:.0f} s, of "
        "which the checkpoints "
        f"{making_s:.0f} s; peak memory {peak_bytes() / mib:.0f} MiB. Restart: {report['ready_s']} s "
        f"after the imports, {restart_s:.1f} s "
        f"with them, {report['read_entries']:,} entries read, peak memory "
        f"{report['peak_bytes'] / mib:.0f} MiB"
    )
    if ENTRIES > 100_000:
        assert restart_s < RESTART_S_MAX


def _check_backlog(backlog: Backlog, filled: int) -> None:
    """Nothing of it is archived, and all of it is there."""
    topic_id = topic_id_of(1)
    summaries = [backlog.summary((topic_id, partition), 0) for partition in range(PARTITIONS)]
    assert sum(one.rows for one in summaries) == sum(
        backlog.next_offset((topic_id, partition)) for partition in range(PARTITIONS)
    )
    for partition in (0, 7, PARTITIONS - 1):
        segments = backlog.segments((topic_id, partition), 0, bytes_max=1_000_000)
        assert segments[0].base == 0
        assert all(one.end == two.base for one, two in itertools.pairwise(segments))
        last = backlog.segments((topic_id, partition), backlog.next_offset((topic_id, partition)) - 1)
        assert len(last) == 1
        assert filled - last[0].file.log_index <= PARTITIONS // SEGMENTS
