"""Two leaders by mistake, and one that was away while another led: no row is lost or doubled, and the stale
one stands down.

Real logs, objects and catalog; refinement in this process. Each `Daemon` keeps its leadership as `archiver
serve` does, with a lease on a file of its own. So it can learn only from the control log that it does not
lead any more.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archiver.app.application import Application
from archiver.config.daemon import MetricsSettings
from archiver.config.settings import load_settings
from archiver.daemon.status_poller import StatusPoller
from archiver.log.lease import FileLease
from archiver.proto import control_log_pb2 as pb
from archiver.refine.triggers import PollState
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Deposed
from archiver.status.history import LagHistory
from archiver.status.journal import Journal
from archiver.status.metric_registry import Numbers
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.reconciling import fixed, left, reconciled, roll_back
from tests.support.schema.orders import order

WAIT_S = 270.0
TOPICS = ("orders", "clicks", "files")

STEPS = (
    "tick.append.before",
    "tick.append.after",
    "epoch.append.before",
    "epoch.append.after",
    "identity.upload.before",
    "identity.upload.after",
    "text.append.before",
    "text.append.after",
    "table.create.before",
    "table.create.after",
    "schema.append.before",
    "schema.append.after",
    "round.start.before",
    "round.start.after",
    "archive.upload.before",
    "archive.upload.after",
    "written.append.before",
    "written.append.after",
    "complete.append.before",
    "complete.append.after",
    "table.swap.before",
    "table.swap.after",
    "committed.append.before",
    "committed.append.after",
    "settled.append.before",
    "settled.append.after",
)
"""Every failpoint of a round of archiving, in the order of a first round."""


class Daemon(Driver):
    """A driver that keeps its leadership, and whose lease has no other candidate."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        super().__init__(deployment)
        self.application.close()
        self.application = Application(load_settings(deployment.config, {}), {}, self.clock, lasting=True)
        self.application.lease = FileLease(deployment.root / f"{name}.lease", f"{name}:1")

    def leads(self) -> bool:
        """By its lease."""
        return self.application.lease.holder() is not None

    def tick(self) -> None:
        """What a daemon does when nothing may be due."""
        self.run().run(polls=PollState())


class Died(BaseException):
    """What no handler of errors takes for an error."""


class Paused:
    """One run of archiving in a thread of its own, which stands still where it first reaches a step."""

    def __init__(self, daemon: Daemon, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self._there, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(daemon,))
        reach = failpoints.reach

        def reached(name: str) -> None:
            if name == step and threading.current_thread() is self._thread and not self._there.is_set():
                self._there.set()
                assert self._go_on.wait(WAIT_S)
            reach(name)

        monkeypatch.setattr(failpoints, "reach", reached)

    def _run(self, daemon: Daemon) -> None:
        try:
            daemon.archive()
        except ArchiverError as error:
            self.error = error

    def wake(self) -> None:
        """Let it go on, and wait for its end."""
        self._go_on.set()
        self._thread.join(WAIT_S)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Inside of the block it stands still; behind it, it has ended."""
        self._thread.start()
        try:
            assert self._there.wait(WAIT_S), f"the step was never reached: {self.error}"
            yield
        finally:
            self.wake()
        assert not self._thread.is_alive()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(
        tmp_path / "d", overrides={"archive": {"uploads_max": 0}}
    )  # every step is one of the thread that stands still


def send(driver: Driver, first: int) -> list[tuple[str, int, int]]:
    """Some records of each topic; where they are."""
    sent = [("orders", 0, 3), ("orders", 2, 2), ("clicks", 1, 2), ("files", 0, 1)]
    done = [
        (topic, one)
        for topic, partition, count in sent
        for one in driver.send(topic, [order(first + number) for number in range(count)], partition)
    ]
    assert all(one.offset is not None for _, one in done)
    return [(topic, one.partition, one.offset or 0) for topic, one in done]


def rows(deployment: Deployment) -> Counter[tuple[str, int, int]]:
    """Every row of every table, as an external client reads it."""
    found: Counter[tuple[str, int, int]] = Counter()
    for topic in ("orders", "clicks"):
        with catalog_table(deployment, f"shop.{topic}") as table:
            places = (
                table.scan(selected_fields=("kafka.partition", "kafka.offset"))
                .to_arrow()["kafka"]
                .to_pylist()
            )
            found.update((topic, place["partition"], place["offset"]) for place in places)
    return found


def check_once(driver: Driver, sent: list[tuple[str, int, int]]) -> None:
    """Each record is in its table once, the ledger agrees, and nothing waits; nor is anything refused that is
    in a table."""
    driver.check_complete(*TOPICS)
    assert rows(driver.deployment) == Counter(place for place in sent if place[0] != "files")
    read = Counter(
        (topic, partition, one.offset)
        for topic in TOPICS
        for partition, found in driver.records(topic).items()
        for one in found
    )
    assert read == Counter(sent)
    for topic in TOPICS:
        ledger = driver.application.ledger().topic(driver.topic_id(topic))
        assert not ledger.pending
        if topic == "files":
            continue
        with catalog_table(driver.deployment, f"shop.{topic}") as table:
            live = {task.file.file_path for task in table.scan().plan_files()}
        assert not [key for key in ledger.killed if any(path.endswith(key) for path in live)]


@pytest.mark.turns(2)
@pytest.mark.parametrize("step", STEPS)
def test_l3_a_leader_that_paused_at_any_step_harms_nothing(
    step: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor works, completes, and goes on; then it is woken, and ends without a word of its own."""
    with Daemon(deployment, "one") as stale, Daemon(deployment, "two") as successor:
        sent = send(successor, 0)
        paused = Paused(stale, step, monkeypatch)
        with paused.standing():
            successor.archive()
            if step != "tick.append.before":  # its reader of the intake log may be further than the ledger's
                check_once(successor, sent)
            sent += send(successor, 100)
        assert isinstance(paused.error, Deposed), paused.error
        assert not stale.leads(), "a lease that nobody took away is given back"
        successor.archive()
        check_once(successor, sent)
        assert successor.application.ledger().epoch == successor.application.leader.epoch, (
            "nobody took the leadership from it"
        )


def test_c3_what_a_stale_leader_committed_is_adopted(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was past its last read of the log when it paused; its swap is good, and its successor accepts it by
    the path."""
    with Daemon(deployment, "one") as stale, Daemon(deployment, "two") as successor:
        sent = send(successor, 0)
        paused = Paused(stale, "table.swap.after", monkeypatch)
        with paused.standing():
            archived = paths(deployment)
            assert archived, "the first table has the rows, the ledger does not know"
            successor.archive()
            check_once(successor, sent)
            assert archived <= paths(deployment), "not made anew"
        assert isinstance(paused.error, Deposed)
        check_once(successor, sent)


def test_t1_a_successor_reports_what_it_finds_before_it_plans(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table has the rows of a predecessor, and the ledger does not know: that goes into the log
    before the first round."""
    with Daemon(deployment, "one") as stale, Daemon(deployment, "two") as successor:
        sent = send(successor, 0)
        with Paused(stale, "table.swap.after", monkeypatch).standing():
            sent += send(successor, 100)
            successor.archive()
        entries = [
            pb.ControlEntry.FromString(entry.data) for entry in successor.application.control_log.read(0)
        ]
        began = next(at for at, entry in enumerate(entries) if entry.epoch == 2)
        kinds = [entry.WhichOneof("body") for entry in entries[began:]]
        assert kinds[:2] == ["epoch_started", "table_committed"], kinds
        assert entries[began + 1].table_committed.committed
        assert kinds.index("table_committed") < kinds.index("round_started")
        check_once(successor, sent)


def test_t3_the_ledger_knows_every_file_and_its_token_before_the_catalog_does(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(deployment) as driver:
        reach, swaps = failpoints.reach, list[int]()

        def reached(name: str) -> None:
            if name == "table.swap.before":
                with Driver(deployment) as other:  # by the log alone, as a successor would see it
                    ledger = other.application.ledger()
                    waiting = [(topic, item) for topic in ledger.topics.values() for item in topic.pending]
                    for topic, item in waiting:
                        assert (item.table_uuid, item.last_sequence_number) == (
                            topic.table_uuid,
                            topic.sequence_number,
                        )
                    swaps.append(len(waiting))
            reach(name)

        monkeypatch.setattr(failpoints, "reach", reached)
        for number in range(2):
            send(driver, 100 * number)
            driver.archive()
        assert swaps == [3, 2, 3, 2], "the files of clicks and orders, then those of orders"


def test_t4_a_repair_does_not_refuse_an_archive_that_is_in_the_table(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the model (`spare`): the swap of a paused leader lands while its successor is at work; the
    successor commits on top and dies before it has appended that to the ledger; then an external client rolls
    the table back to the first of the two commits. One archive of those that wait is in the table then, and
    the ledger has seen neither.
    """
    with Daemon(deployment, "one") as stale, Daemon(deployment, "two") as successor:
        sent = send(successor, 0)
        paused = Paused(stale, "table.swap.before", monkeypatch)
        reach = failpoints.reach

        def reached(name: str) -> None:
            if threading.current_thread() is threading.main_thread():
                if name == "written.append.after":
                    paused.wake()
                elif name == "committed.append.before":
                    raise Died
            reach(name)

        with monkeypatch.context() as patched, paused.standing():
            sent += send(successor, 100)
            patched.setattr(failpoints, "reach", reached)
            with pytest.raises(Died):
                successor.archive()
        assert isinstance(paused.error, Deposed)
    roll_back(deployment)
    report = reconciled(deployment, "everything", "clicks")
    assert (left(report), fixed(report)) == ([], [("rolled-back", "clicks")])
    with Driver(deployment) as after:
        assert after.watermarks("clicks") == {1: 2}, "what the first of the two commits brought"
        after.archive()
        check_once(after, sent)


def paths(deployment: Deployment) -> set[str]:
    """Data files of the table that is committed first."""
    with catalog_table(deployment, "shop.clicks") as table:
        return {task.file.file_path for task in table.scan().plan_files()}


def test_two_daemons_by_mistake_lose_and_double_nothing(deployment: Deployment) -> None:
    """Both hold a lease and archive all the time, each as fast as it can, while records come in."""
    with Daemon(deployment, "one") as one, Daemon(deployment, "two") as two, Driver(deployment) as sender:
        sent = send(sender, 0)
        stop, deposed, others = threading.Event(), Counter[str](), list[Exception]()

        def work(daemon: Daemon, name: str) -> None:
            while not stop.is_set():
                try:
                    daemon.archive()
                except Deposed:
                    deposed[name] += 1
                    daemon.clock.ahead_s += 61  # by its own clock it has waited long enough
                except ArchiverError:
                    pass  # a busy store; the next round goes on
                except Exception as error:  # noqa: BLE001 - the head of a thread
                    others.append(error)
                    return

        threads = [
            threading.Thread(target=work, args=(daemon, name))
            for daemon, name in ((one, "one"), (two, "two"))
        ]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 5):
                sent += send(sender, 100 * number)
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_S)
        assert not others, others
        for daemon in (one, two):
            daemon.application.leadership.resign()
    with Driver(deployment) as after:
        after.archive()
        check_once(after, sent)


def test_l4_a_leader_without_news_of_its_lease_stands_down_with_its_next_tick(deployment: Deployment) -> None:
    """Nothing is due, so it has nothing to append and no table to inspect: it reads the log all the same."""
    with Daemon(deployment, "one") as stale, Daemon(deployment, "two") as successor:
        sent = send(stale, 0)
        stale.archive()
        stale.tick()
        assert stale.leads()
        sent += send(successor, 100)
        successor.archive()
        assert stale.leads(), "so its lease says"
        tail = stale.application.control_log.tail()
        with pytest.raises(Deposed, match="step down"):
            stale.tick()
        assert not stale.leads()
        with pytest.raises(Deposed):
            stale.archive()
        assert stale.application.control_log.tail() == tail, "it leaves the newer leader alone"
        sent += send(successor, 200)
        successor.archive()
        check_once(successor, sent)
        stale.clock.ahead_s += 61
        assert stale.archive().epoch > successor.application.leader.epoch, (
            "by its own clock it has waited; it may lead again"
        )
        check_once(stale, sent)


def test_l4_the_watch_ends_a_stale_leadership_during_any_work(deployment: Deployment) -> None:
    """A round may take hours; the daemon's watch reads the log every few seconds, and the status page says
    the same."""
    with Daemon(deployment, "one") as stale, Daemon(deployment, "two") as successor:
        numbers = Numbers(Journal(50), stale.clock, MetricsSettings(), "0.1.0")
        numbers.declare(stale.application.settings.topics)
        sight = StatusPoller(numbers, LagHistory(3600.0, 10), stale.clock, "one:1")
        send(successor, 0)
        stale.archive()
        with stale.application.leadership.turn("a long round"):
            sight.poll(stale.application, {}, {})
            assert (stale.leads(), sight.snapshot.leader) == (True, "one:1")
            send(successor, 100)
            successor.archive()
            sight.poll(stale.application, {}, {})
            assert (stale.leads(), sight.snapshot.leader) == (False, None)
            with pytest.raises(Deposed):
                stale.application.leader.append(pb.RoundStarted(commit_id=bytes(16)))
