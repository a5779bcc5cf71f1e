"""Random files, pieces, faults of log and store, and crashes: in the end the log holds each file once."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.intake.file_sources import FORMATS, Inbox, Taker, file_of
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault

PARTITIONS = 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(FORMATS))
def test_the_log_holds_the_files_each_once(seed: int, form: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        play(random.Random(seed), form, Inbox(Path(root)))


def play(chance: random.Random, form: str, inbox: Inbox) -> None:
    files = {f"{chance.randrange(100):02}": chance.randrange(0, 30) for _ in range(chance.randrange(1, 5))}
    for name, count in files.items():
        inbox.put(name, file_of([f"{name} {number}".encode() for number in range(count)], form))
    takers: list[Taker] = []
    for _ in range(chance.randrange(1, 12)):
        if not takers or chance.random() < 0.4:
            takers.append(
                inbox.process(
                    form,
                    text=form == "jsonl",
                    partitions=PARTITIONS,
                    delay_max_bytes=chance.choice((1, 200, 700, 5000)),
                    checkpoint_entries=chance.choice((2, 5, 1000)),
                )
            )
        inbox.log.script(*[chance.choice(list(AppendFault)) for _ in range(chance.randrange(6))])
        if chance.random() < 0.3:
            inbox.objects.fail(
                "create", chance.choice(list(ObjectFault)), "intake/", skip=chance.randrange(3)
            )
        taker = chance.choice(takers)
        taker.look()
        inbox.objects.heal()
        if chance.random() < 0.3:
            taker.checkpointer.run_if_due()
    inbox.log.heal()
    last = inbox.process(form, text=form == "jsonl", partitions=PARTITIONS)
    assert last.look(2).finished == len(files)
    found = [inbox.values(number) for number in range(PARTITIONS)]
    expected = [f"{name} {number}".encode() for name in sorted(files) for number in range(files[name])]
    assert sorted(value for values in found for value in values if value is not None) == sorted(expected)
    for values in found:
        for name in files:
            numbers = [
                int(value.split()[1])
                for value in values
                if value is not None and value.startswith(f"{name} ".encode())
            ]
            assert numbers == sorted(numbers), "the order of a file is kept within a partition"
    for taker in takers:
        taker.look(2)
    assert [inbox.values(number) for number in range(PARTITIONS)] == found
