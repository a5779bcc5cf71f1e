"""Random histories of producing, archiving and crashing, each repeatable by its seed.

At the end every acknowledgement is true, and every transaction is there as a whole or not at all.
`ARCHIVER_HISTORY_SEEDS=N` runs N histories instead of the few that continuous integration does.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from archiver.refine.task import PlanResult, RefineJob
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, refine_here
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import order

SEEDS = int(os.environ.get("ARCHIVER_HISTORY_SEEDS", "6"))
STEPS = 40
PARTITIONS = {"orders": 3, "clicks": 2}
SETTLING_RUNS_MAX = 5
TIMEOUTS_S = (50.0, 3600.0)

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Died(BaseException):
    """The end of a process at a failpoint, as far as the process itself can simulate it."""


@dataclass
class History:
    """One seed's history, with the outcome of every record."""

    deployment: Deployment
    random: random.Random
    driver: Driver = field(init=False)
    clock: AheadClock = field(default_factory=AheadClock)
    producers: dict[str, Transactional] = field(default_factory=dict)
    in_transaction: dict[str, dict[Place, bytes]] = field(default_factory=dict)
    placed: dict[Place, bytes] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    failed: set[bytes] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        self.driver = Driver(self.deployment, self.clock)
        for topic in self.driver.application.settings.topics:
            self.driver.application.intake.declare_topic(topic)

    def restart(self) -> None:
        """Restart the archiver; producers live elsewhere and continue."""
        self.steps.append("restart")
        self.driver.close()
        self.driver = Driver(self.deployment, self.clock)
        for producer in self.producers.values():
            producer.application = self.driver.application

    def arm(self, prefixes: tuple[str, ...]) -> None:
        """Arm up to two random failpoints."""
        names = [name for name in failpoints.NAMES if name.startswith(prefixes)]
        chosen = self.random.sample(names, self.random.choice((0, 1, 1, 2)))
        text = ",".join(
            f"{name}={self.random.choice(('error', 'unknown'))}@{self.random.choice((1, 1, 2, 3))}"
            for name in chosen
        )
        self.steps.append(f"arm {text}")
        failpoints.arm(text)

    def produce(self) -> None:
        self.arm(("writer.", "topic."))
        topic = self.random.choice(list(PARTITIONS))
        values = [self.value(topic) for _ in range(self.random.randint(1, 12))]
        self.steps.append(f"produce {len(values)} to {topic}")
        try:
            acknowledged = self.driver.send(
                topic, values, self.random.choice([None, *range(PARTITIONS[topic])])
            )
        except ArchiverError:
            self.unknown.update(values)  # declaring the topic, or a full queue
            return
        finally:
            failpoints.arm("")
        for value, item in zip(values, acknowledged, strict=True):
            if item.offset is None:
                (self.unknown if item.outcome == "unknown" else self.failed).add(value)
            else:
                assert (topic, item.partition, item.offset) not in self.placed
                self.placed[topic, item.partition, item.offset] = value

    def value(self, topic: str) -> bytes:
        self.sent += 1
        return (
            order(self.sent, lines=self.sent % 3)
            if topic == "orders" and self.sent % 5
            else b"\xff%d" % self.sent
        )

    # transactions

    def transaction(self) -> None:
        """A producer sends into its transaction, ends it, or is opened again."""
        name = self.random.choice("abc")
        open_ = self.in_transaction.get(name)
        act = self.random.choice(("send", "send", "commit", "abort", "open"))
        self.steps.append(f"{act} {name}")
        if name not in self.producers or act == "open":
            self.open(name)
        elif open_ is None or act == "send":
            self.send(name)
        else:
            self.end(name, commit=act == "commit")

    def open(self, name: str) -> None:
        self.lose(name)
        timeout_s = self.random.choice(TIMEOUTS_S)
        self.producers[name] = Transactional(self.driver.application, self.clock, name, timeout_s)

    def send(self, name: str) -> None:
        places = [(topic, partition) for topic, count in PARTITIONS.items() for partition in range(count)]
        chosen = self.random.sample(places, self.random.randint(1, 4))
        values = {place: [self.value(place[0]) for _ in range(self.random.randint(1, 5))] for place in chosen}
        landed = self.producers[name].try_send(values)
        if any(one.refusal for one in landed):
            assert {one.refusal for one in landed} == {"fenced"}, "its time was over; all of it is refused"
            self.failed.update(value for sent in values.values() for value in sent)
            self.open(name)
            return
        mine = self.in_transaction.setdefault(name, {})
        for (topic, partition), one in zip(sorted(values), landed, strict=True):
            ((base, rows),) = one.runs
            assert rows == len(values[topic, partition])
            for number, value in enumerate(values[topic, partition]):
                mine[topic, partition, base + number] = value

    def end(self, name: str, *, commit: bool) -> None:
        producer = self.producers[name]
        refusal = producer.commit() if commit else producer.abort()
        if refusal is None and commit:
            mine = self.in_transaction.pop(name, {})
            assert not mine.keys() & self.placed.keys()
            self.placed |= mine
        else:
            assert refusal in (None, "fenced")
            self.lose(name)
        if refusal == "fenced":
            self.open(name)

    def lose(self, name: str) -> None:
        """Its open transaction is aborted."""
        self.failed.update(self.in_transaction.pop(name, {}).values())

    def later(self) -> None:
        self.clock.ahead_s += 60
        self.steps.append("a minute later")

    def archive(self) -> None:
        self.arm(
            (
                "epoch.",
                "table.",
                "schema.",
                "round.",
                "archive.",
                "written.",
                "complete.",
                "committed.",
                "settled.",
                "tick.",
            )
        )
        scope = self.random.choice(
            (None, None, ("orders", None), ("orders", frozenset({0, 2})), ("clicks", frozenset({1})))
        )
        dies = self.random.random() < 0.3

        def refine(job: RefineJob) -> list[PlanResult]:
            found = refine_here(job)
            if dies:
                raise Died
            return found

        self.steps.append(f"archive {scope}, dies: {dies}")
        try:
            self.driver.archive(scope, everything=self.random.random() < 0.8, refine=refine)
        except (ArchiverError, Died) as error:
            self.steps.append(f"ended by {error!r}")
        finally:
            failpoints.arm("")

    def look(self) -> None:
        """Read and audit in the middle of everything."""
        self.steps.append("look")
        for topic in self.driver.application.backlog().topics_by_name:
            self.check(topic)
        document = self.driver.audit()
        assert document["verdict"] != "invalid", document

    def check(self, topic: str) -> None:
        found = {
            (topic, partition, item.offset): item.value
            for partition, items in self.driver.records(topic).items()
            for item in items
        }
        state, intake = self.driver.application.topic(topic), self.driver.application.backlog()
        stable = {
            partition: intake.stable_offset((state.topic_id, partition))
            for partition in range(state.partitions)
        }
        mine = {
            place: value
            for place, value in self.placed.items()
            if place[0] == topic and place[2] < stable[place[1]]
        }
        assert {place: found.get(place) for place in mine} == mine
        others = [value for place, value in found.items() if place not in mine]
        assert len(set(others)) == len(others)
        assert set(others) <= self.unknown, "only records of unknown outcome may be there in addition"
        assert not set(found.values()) & self.failed
        still_open = {value for values in self.in_transaction.values() for value in values.values()}
        assert not set(found.values()) & still_open

    def settle(self) -> None:
        """Let every open transaction time out, and archive all that is left."""
        self.clock.ahead_s += max(TIMEOUTS_S)
        for name in self.producers:
            self.lose(name)
        for _ in range(SETTLING_RUNS_MAX):
            report = self.driver.archive()
            if not report.halted and not report.deferred:
                break
        else:
            raise AssertionError(f"not settled after {SETTLING_RUNS_MAX} runs: {report}")
        assert self.driver.archive().rounds == 0, "nothing is left"
        self.driver.check_complete(*PARTITIONS)
        for topic in PARTITIONS:
            self.check(topic)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_history(seed: int, tmp_path: Path) -> None:
    overrides = {
        "archive": {"max_bytes": 100, "round_bytes_max": 400, "idle_max": 0, "tick": 0.001},
        "log": {
            "append_attempts_max": 2,
            "append_backoff": 0.001,
            "checkpoint_entries": 7 if seed % 2 else 10_000,
        },
    }
    history = History(Deployment(tmp_path / "d", overrides=overrides), random.Random(seed))
    document = history.deployment.document()
    document["topics"] = document["topics"][:2]
    history.deployment.write(document)
    try:
        for _ in range(STEPS):
            step = history.random.choice(
                (
                    *(
                        history.produce,
                        history.produce,
                        history.archive,
                        history.archive,
                        history.restart,
                        history.look,
                    ),
                    *(history.transaction, history.transaction, history.transaction, history.later),
                )
            )
            step()
        failpoints.arm("")
        history.settle()
        assert bool(list(history.driver.application.objects.list("shelf/"))) is bool(seed % 2), (
            "half of them with most of the log in shelves"
        )
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *history.steps]))
        raise
    finally:
        history.driver.close()
