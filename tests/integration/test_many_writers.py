"""Eight processes, four hundred partitions, one log: dense offsets, true acknowledgements, the order of every
sender kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from intake.read.reader import IntakeReader
from tests.support.intake.intake_rig import IntakeRig
from tests.support.intake.wide_sender import ROWS_PER_PARTITION, TOPIC, rows_of

PROCESSES = 8
PARTITIONS = 400
BATCHES = 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_processes_share_one_log(tmp_path: Path) -> None:
    names = [f"sender-{number}" for number in range(PROCESSES)]
    command = [sys.executable, "-W", "error", "-m", "tests.support.intake.wide_sender", str(tmp_path)]
    senders = [
        subprocess.Popen(
            [*command, name, str(PARTITIONS), str(BATCHES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for name in names
    ]
    try:
        for sender in senders:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "ready\n"
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write("go\n")
            sender.stdin.flush()
        outputs = [sender.communicate(timeout=100)[0] for sender in senders]
    finally:
        for sender in senders:
            sender.kill()
            sender.wait()
    assert [sender.returncode for sender in senders] == [0] * PROCESSES
    rig = IntakeRig(tmp_path)
    stored = _stored(rig)
    assert sum(map(len, stored)) == PROCESSES * BATCHES * PARTITIONS * ROWS_PER_PARTITION
    for name, output in zip(names, outputs, strict=True):
        lines = output.splitlines()
        assert len(lines) == BATCHES
        for batch, line in enumerate(lines):
            for (partition, value), reported_partition, offset in zip(
                rows_of(name, batch, PARTITIONS), *json.loads(line), strict=True
            ):
                assert reported_partition == partition
                assert stored[partition][offset] == value
    _check_order(stored)
    rig.close()


def _stored(rig: IntakeRig) -> list[list[bytes]]:
    """The values of every partition, by offset; each intake file is read once."""
    fold = rig.reread()
    topic_id = fold.topics_by_name[TOPIC].topic_id
    wanted = defaultdict(list)
    for partition in range(PARTITIONS):
        reached = 0
        for segment in fold.segments((topic_id, partition)):
            assert segment.base == reached
            reached = segment.end
            wanted[segment.file].append((partition, segment))
        assert reached == fold.next_offset((topic_id, partition))
    stored: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    for file, members in wanted.items():
        partition_of = {(segment.row_group, segment.first_row): partition for partition, segment in members}
        for segment, rows in IntakeReader(rig.objects).read(file, [segment for _, segment in members]):
            values: list[bytes] = [row["value"] for row in rows.select(["value"]).to_pylist()]
            stored[partition_of[segment.row_group, segment.first_row]].update(enumerate(values, segment.base))
    return [[rows[offset] for offset in range(len(rows))] for rows in stored]


def _check_order(stored: list[list[bytes]]) -> None:
    """In every partition, each sender's records stand in the order in which it sent them."""
    for values in stored:
        came = defaultdict(list)
        for value in values:
            name, _, number = value.decode().partition("/")
            came[name].append(int(number))
        assert all(numbers == list(range(BATCHES * ROWS_PER_PARTITION)) for numbers in came.values())
        assert len(came) == PROCESSES
