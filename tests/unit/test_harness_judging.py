"""Does the judge of the outside harness find each error, and nothing else? On a synthetic history and on
saved ones of real runs."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.group_mutations import MUTATIONS, NotApplicable
from tests.harness.history import (
    Assigned,
    Attempt,
    Fetched,
    GroupCommit,
    GroupReading,
    History,
    MirrorReading,
    OffsetSeen,
    Outcome,
    Processed,
    Row,
    Source,
    TableReading,
    Transaction,
)
from tests.harness.judging import INVARIANTS, SHOWN_MAX, judge
from tests.harness.loading import load

SAVED = sorted((Path(__file__).parents[1] / "harness" / "histories").iterdir())
TRIES = 8
PARTITIONS = 2


class Log:
    """A correct product, as far as a history shows it."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self.transactions: dict[str, Transaction] = {}
        self.next: dict[tuple[str, int], int] = defaultdict(int)
        self.numbers: dict[str, int] = defaultdict(int)
        self.time_us = 1_000

    def send(
        self,
        sender: str,
        topic: str,
        partition: int,
        outcome: Outcome | None = "ok",
        there: bool = True,
        transaction: str | None = None,
        source: Source | None = None,
    ) -> Attempt:
        """One record with this outcome. With `there` it got an offset, and is visible unless its transaction
        is not committed."""
        number = self.numbers[sender]
        self.numbers[sender] += 1
        offset = self.next[topic, partition]
        idempotent = not sender.startswith("plain")
        attempt = Attempt(
            sender=sender,
            number=number,
            attempt=1,
            topic=topic,
            partition=partition,
            digest=f"{sender}-{number}",
            sequence=number if idempotent else None,
            producer=(7, 0) if idempotent else None,
            transaction=transaction,
            outcome=outcome,
            offset=offset if outcome == "ok" else None,
            source=source,
        )
        self.attempts.append(attempt)
        if there:
            self.next[topic, partition] += 1
            if transaction is None or self.transactions[transaction].fate == "committed":
                self.time_us += number % 2
                self.rows[topic].append(Row(partition, offset, attempt.digest, self.time_us, offset))
        return attempt

    def put(self, file: str, topic: str, partition: int) -> None:
        """One record in a file that a source ingested."""
        self.send(f"plain-files/{file}", topic, partition, None)
        self.attempts[-1] = replace(self.attempts[-1], file=file)

    def again(self, attempt: Attempt, outcome: Outcome = "ok", offset: int | None = None) -> None:
        """Send the same record again."""
        self.attempts.append(replace(attempt, attempt=2, outcome=outcome, offset=offset))

    def transaction(self, name: str, *steps: tuple[str, Outcome | None]) -> str:
        """A transaction with these steps."""
        asked_s = 1.0 if any(step == "commit" for step, _ in steps) else None
        committed_s = 1.1 if ("commit", "ok") in steps else None
        self.transactions[name] = Transaction(name, steps, asked_s, committed_s)
        return name


def good_history() -> History:
    """Every kind of record and transaction in two topics. The table of one is complete to a place in the
    middle."""
    log = Log()
    for turn in range(6):
        for partition in range(PARTITIONS):
            for topic in ("alpha", "gamma"):
                log.send("plain-a", topic, partition)
                log.send("plain-b", topic, partition)
                sent = log.send("counted", topic, partition, "unknown" if turn % 2 else "ok")
                log.again(sent, offset=log.next[topic, partition] - 1)
        log.send("plain-a", "alpha", 0, "failed", there=False)
        log.send("plain-b", "alpha", 1, "unknown", there=False)
        log.send("plain-b", "gamma", 1, None, there=turn % 2 == 0)
        fates: list[tuple[tuple[str, Outcome | None], ...]] = [
            (("commit", "ok"),),
            (("abort", "ok"),),
            (("commit", "unknown"), ("commit", "ok")),
            (("fenced", "ok"), ("commit", "unknown")),
        ]
        name = log.transaction(f"t{turn}", *fates[turn % 4])
        for partition in (0, 0, 1, 1):
            log.send("dealing", "alpha", partition, transaction=name)
        lost = log.transaction(f"lost{turn}")
        log.send("leaving", "gamma", 0, None, there=turn == 1, transaction=lost)
        log.send("leaving", "gamma", 0, None, there=False, transaction=lost)
        for number in range(4):
            log.put(f"drop-{turn}.jsonl", "gamma", number % PARTITIONS)
    half = log.transaction("half", ("commit", None))
    log.send("leaving", "alpha", 1, transaction=half)
    log.send("plain-a", "alpha", 1)
    log.send("plain-a", "gamma", 0)
    loop = looped(log)
    consumed = {
        topic: tuple(sorted(rows, key=lambda row: (row.partition, row.offset)))
        for topic, rows in log.rows.items()
    }
    watermarks = {0: 15, 1: log.next["alpha", 1]}
    table = TableReading(
        tuple(row for row in consumed["alpha"] if row.offset < watermarks[row.partition]), watermarks
    )
    return History(
        topics=("alpha", "gamma", "omega"),
        tabled=("alpha",),
        faults_asked=("kill",),
        rounds_asked=1,
        attempts=tuple(log.attempts),
        transactions=log.transactions,
        dropped=frozenset(attempt.file for attempt in log.attempts if attempt.file is not None),
        faults={"kill": 1},
        settled=True,
        consumed=consumed,
        tables={"alpha": table},
        mirrors={"copied": mirror()},
        groups={"group": group(consumed), "loop": loop},
        fetched={"reader": everything(consumed), "uncommitted": everything(consumed, log)},
    )


def everything(consumed: dict[str, tuple[Row, ...]], log: Log | None = None) -> Fetched:
    """A Kafka reader that got every record, from each partition in turn; with `log` also what was aborted."""
    rows = {
        topic: tuple(replace(row, ingest_us=0, batch_start=None) for row in found)
        for topic, found in consumed.items()
    }
    ends = {(topic, row.partition): row.offset + 1 for topic, found in rows.items() for row in found}
    first_s = {row.digest: 2.0 for found in rows.values() for row in found}
    if log is None:
        return Fetched(rows, ends, "committed", first_s)
    for one in log.attempts:
        fate = log.transactions[one.transaction].fate if one.transaction else None
        if fate == "aborted" and one.offset is not None:
            row = Row(one.partition or 0, one.offset, one.digest, 0, None)
            rows[one.topic] = tuple(
                sorted((*rows[one.topic], row), key=lambda row: (row.partition, row.offset))
            )
    return Fetched(rows, ends, "uncommitted", first_s)


def group(consumed: dict[str, tuple[Row, ...]]) -> GroupReading:
    """Two members that process three records at a time and commit. The second one takes over in the middle, after a
    commit of the first one that got no answer."""
    commits, seen, processed, assigned, now_s = [], [], [], [], 10.0
    ends: dict[tuple[str, int], int] = {}
    for topic, rows in consumed.items():
        for number in range(PARTITIONS):
            got = [row for row in rows if row.partition == number]
            assigned.append(Assigned("one", (topic, number), now_s))
            seen.append(OffsetSeen((topic, number), -1, now_s, now_s + 0.1, 0))
            for at in range(0, len(got), 3):
                member = "one" if at < 6 else "other"
                if at == 6:
                    assigned.append(Assigned(member, (topic, number), now_s))
                part = got[at : at + 3]
                end = part[-1].offset + 1
                processed += [Processed(member, topic, number, row.offset, row.digest, now_s) for row in part]
                answered_s = None if at == 3 else now_s + 0.2
                commits.append(GroupCommit((topic, number), end, now_s + 0.1, answered_s))
                seen.append(OffsetSeen((topic, number), end, now_s + 0.3, now_s + 0.4, at % 2))
                now_s += 1.0
            ends[topic, number] = got[-1].offset + 1
    return GroupReading(tuple(commits), tuple(seen), tuple(processed), tuple(assigned), ends)


def looped(log: Log) -> GroupReading:
    """A loop that writes every record of `alpha` and `gamma`. Each of its transactions is aborted once before."""
    commits, ends = [], {}
    for topic, rows in list(log.rows.items()):
        for number in range(PARTITIONS):
            got = sorted((row for row in rows if row.partition == number), key=lambda row: row.offset)
            for at in range(0, len(got), 4):
                part = got[at : at + 4]
                for step in ("abort", "commit"):
                    name = log.transaction(f"loop-{topic}-{number}-{at}-{step}", (step, "ok"))
                    for row in part:
                        source = (topic, number, row.offset, row.digest)
                        log.send("looping", "omega", number, transaction=name, source=source)
                    # An aborted offset must not be seen.
                    end = part[-1].offset + 1 + (step == "abort")
                    commits.append(GroupCommit((topic, number), end, 0.9, transaction=name))
            ends[topic, number] = got[-1].offset + 1
    seen = [OffsetSeen(partition, -1, 0.5, 0.6, 0) for partition in ends]
    seen += [OffsetSeen(partition, end, 5.0, 5.1, 1) for partition, end in ends.items()]
    return GroupReading(tuple(commits), tuple(seen), ends=ends)


def mirror() -> MirrorReading:
    """A mirrored topic with a gap in each partition, where a transaction was aborted."""
    places = [(partition, offset) for partition in range(PARTITIONS) for offset in (*range(4), *range(7, 12))]
    upstream = tuple(Row(*place, f"upstream-{place}", 0, None) for place in places)
    here = tuple(replace(row, ingest_us=5_000 + row.offset) for row in upstream)
    return MirrorReading(upstream, here, TableReading(here, dict.fromkeys(range(PARTITIONS), 12)))


def violated(history: History) -> set[str]:
    return {violation.invariant for violation in judge(history).violations}


def test_a_good_history_is_valid() -> None:
    judgement = judge(good_history())
    assert judgement.violations == ()
    assert judgement.verdict == "valid", judgement.reasons
    assert judgement.counts["outcomes"].keys() == {"ok", "failed", "unknown"}
    assert judgement.counts["transactions"].keys() == {"committed", "aborted", "undecided"}
    assert judgement.counts["table_rows"] > 10


def test_each_invariant_has_its_mutation() -> None:
    assert {invariant for invariant, _ in MUTATIONS.values()} == set(INVARIANTS)


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("seed", range(TRIES))
def test_a_mistake_is_found_by_its_invariant_alone(name: str, seed: int) -> None:
    invariant, mutate = MUTATIONS[name]
    judgement = judge(mutate(good_history(), random.Random(seed)))
    assert judgement.verdict == "invalid", (name, judgement.reasons)
    assert {violation.invariant for violation in judgement.violations} == {invariant}, judgement.violations


@pytest.mark.parametrize("folder", SAVED, ids=lambda folder: folder.name)
def test_saved_histories_are_valid_and_their_mutations_are_not(folder: Path) -> None:
    history = load(folder)
    judgement = judge(history)
    assert judgement.verdict == "valid", judgement.to_json()
    played = 0
    for name, (invariant, mutate) in MUTATIONS.items():
        for seed in range(TRIES):
            try:
                mutated = mutate(history, random.Random(seed))
            except NotApplicable:
                continue
            assert violated(mutated) == {invariant}, (name, seed)
            played += 1
    assert played > TRIES * 15


def test_every_mutation_can_be_played_on_some_saved_history() -> None:
    left = dict(MUTATIONS)
    for folder in SAVED:
        history = load(folder)
        for name, (_, mutate) in list(left.items()):
            for seed in range(TRIES):
                try:
                    mutate(history, random.Random(seed))
                except NotApplicable:
                    continue
                left.pop(name, None)
    assert not left


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attempts": ()}, "nothing was sent"),
        ({"settled": False}, "did not settle"),
        ({"faults": {}}, "fault kill was asked for and not played"),
        ({"faults": {"stop": 3}}, "fault kill was asked for and not played"),
        ({"consumed": {}}, "consume read nothing back"),
        ({"consumed": {"alpha": ()}}, "consume read nothing back"),
        ({"tables": {}}, "the tables are empty"),
        ({"tables": {"alpha": TableReading((), {})}}, "the tables are empty"),
        (
            {"mirrors": {"copied": MirrorReading((), (), TableReading((), {}))}},
            "copied has no record in its cluster",
        ),
        ({"troubles": ("a ledger is torn",)}, "a ledger is torn"),
        ({"oddities": ("a worker ended by itself",)}, "a worker ended by itself"),
    ],
)
def test_little_or_half_a_history_is_unknown(change: dict[str, object], reason: str) -> None:
    judgement = judge(replace(good_history(), **change))  # type: ignore[arg-type]
    assert judgement.verdict == "unknown"
    assert any(reason in found for found in judgement.reasons), judgement.reasons


def test_a_transaction_left_open_may_have_taken_offsets_that_its_keys_chose() -> None:
    """No response stated the partition. One hole more than there are such records is still one too many."""
    history = good_history()
    _, mutate = MUTATIONS["holed"]
    holed = mutate(history, random.Random(3))
    (violation,) = judge(holed).violations
    empty, explained = map(int, re.findall(r"^\d+|(?<=at most )\d+", violation.what))
    topic = violation.where.partition(":")[0]
    left = [
        Attempt(
            "leaving",
            100 + number,
            1,
            topic,
            None,
            f"left-{number}",
            sequence=number,
            producer=(7, 0),
            transaction="left open",
        )
        for number in range(empty - explained)
    ]
    steps = {**history.transactions, "left open": Transaction("left open")}
    assert judge(replace(holed, attempts=(*holed.attempts, *left), transactions=steps)).verdict == "valid"
    assert (
        judge(replace(holed, attempts=(*holed.attempts, *left[1:]), transactions=steps)).verdict == "invalid"
    )


def test_a_run_in_which_nothing_succeeded_is_unknown() -> None:
    history = good_history()
    failed = tuple(replace(attempt, outcome="failed", offset=None) for attempt in history.attempts)
    judgement = judge(replace(history, attempts=failed))
    assert judgement.verdict == "unknown"
    assert "nothing was acknowledged ok" in judgement.reasons


def test_an_empty_history_is_unknown() -> None:
    assert judge(History()).verdict == "unknown"


def test_what_cannot_be_the_whole_story_is_never_invalid() -> None:
    _, mutate = MUTATIONS["lost"]
    judgement = judge(replace(mutate(good_history(), random.Random(1)), troubles=("half of it is missing",)))
    assert judgement.verdict == "unknown"
    assert judgement.violations, "what is suspicious is reported all the same"


def test_a_fault_that_was_not_played_excuses_nothing() -> None:
    _, mutate = MUTATIONS["lost"]
    weak = replace(good_history(), faults={}, oddities=("a worker ended by itself",))
    assert judge(weak).verdict == "unknown"
    assert judge(mutate(weak, random.Random(1))).verdict == "invalid"


def test_records_that_look_alike_cannot_be_judged() -> None:
    history = good_history()
    same = replace(history.attempts[0], number=999)
    assert judge(replace(history, attempts=(*history.attempts, same))).verdict == "unknown"


def test_the_document_counts_what_it_does_not_list() -> None:
    history = replace(
        good_history(),
        consumed={"alpha": (), "gamma": good_history().consumed["gamma"]},
        tables={},
        rounds_asked=0,
    )
    document = judge(history).to_json()
    assert document["verdict"] == "invalid"
    assert document["violated"]["H1"]["times"] > SHOWN_MAX
    assert sum(item["id"] == "H1" for item in document["violations"]) == SHOWN_MAX


@pytest.mark.parametrize(
    ("steps", "fate"),
    [
        ((), "aborted"),
        ((("commit", "ok"),), "committed"),
        ((("commit", None),), "undecided"),
        ((("commit", "unknown"),), "undecided"),
        ((("commit", "unknown"), ("commit", "failed")), "undecided"),
        ((("commit", "unknown"), ("commit", "ok")), "committed"),
        ((("commit", "failed"),), "aborted"),
        ((("commit", "failed"), ("abort", None)), "aborted"),
        ((("commit", "failed"), ("commit", "ok")), "committed"),
        ((("abort", "unknown"),), "aborted"),
        ((("fenced", "ok"), ("commit", None)), "aborted"),
        ((("fenced", "ok"), ("commit", "ok")), "aborted"),
        ((("fenced", None), ("commit", "ok")), "committed"),
        ((("commit", "unknown"), ("fenced", "ok")), "undecided"),
    ],
)
def test_fates_of_transactions(steps: tuple[tuple[str, Outcome | None], ...], fate: str) -> None:
    assert Transaction("t", steps).fate == fate


def test_more_offsets_are_empty_than_open_ends_explain() -> None:
    """One record of an open transaction without a response may have taken one offset, not two."""
    log = Log()
    log.transaction("open")
    log.send("plain", "alpha", 0)
    log.send("dealing", "alpha", 0, None, transaction="open")
    log.next["alpha", 0] += 1
    log.send("plain", "alpha", 0)
    history = History(
        attempts=tuple(log.attempts),
        transactions=log.transactions,
        consumed={"alpha": tuple(log.rows["alpha"])},
        settled=True,
    )
    assert violated(history) == {"H5"}
    another = replace(log.attempts[1], number=5, digest="another")
    assert violated(replace(history, attempts=(*history.attempts, another))) == set()
    assert violated(replace(history, attempts=(*history.attempts, replace(another, outcome="failed")))) == {
        "H5"
    }
