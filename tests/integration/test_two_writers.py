"""Two writers in two processes on one log: one dense line of offsets, and each acknowledgement is true."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.support.intake.intake_rig import IntakeRig
from tests.support.intake.intake_sender import ROUND

COUNT = 160


def test_two_processes_share_one_log(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.support.intake.intake_sender", str(tmp_path)]
    senders = [
        subprocess.Popen(
            [*command, name, str(COUNT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for name in ("one", "two")
    ]
    for _ in range(COUNT // ROUND):
        for sender in senders:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "ready\n"
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write("go\n")
            sender.stdin.flush()
    outputs = [sender.communicate(timeout=50)[0] for sender in senders]
    assert [sender.returncode for sender in senders] == [0, 0]
    rig = IntakeRig(tmp_path)
    stored = [rig.values("shared", partition) for partition in range(4)]
    assert sum(map(len, stored)) == 2 * COUNT
    for output in outputs:
        acknowledged = json.loads(output)
        assert len(acknowledged) == COUNT
        for value, partition, offset, outcome in acknowledged:
            assert outcome == "ok"
            assert stored[partition][offset] == value.encode()
    # They really met: in every round both appended, so the owners of the files change at least once per
    # round.
    fold = rig.reread()
    owners: dict[int, str] = {}
    for name in ("one", "two"):
        topic_id = fold.topics_by_name[f"own-{name}"].topic_id
        owners.update(
            {
                segment.file.log_index: name
                for partition in range(2)
                for segment in fold.segments((topic_id, partition))
            }
        )
    changes = sum(before != after for before, after in pairwise(owners[index] for index in sorted(owners)))
    assert changes >= COUNT // ROUND
    assert len(fold.topics_by_name) == 3
    rig.close()
