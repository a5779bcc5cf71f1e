"""The status of all stages: against a model of every single offset, over random histories, with every reason
that exists."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.config.topics import ArchiveSettings, TopicArchiveSettings, TopicSettings
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import PendingFile, TopicLedger
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import history_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import ArchiverError, Corrupted, RetryLater
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.status.lag import STAGES, LagReport, PartitionLag, Stage, StageLag, lag_report
from intake.log import history_file
from intake.log.backlog import Backlog
from intake.log.checkpoint import HistoryRef
from intake.log.fold import IntakeFold
from intake.log.history import History
from tests.support.intake.intake_entries import Run, declared, named, topic_id_of
from tests.support.intake.intake_history import RandomHistory
from tests.support.intake.transaction_entries import HOUR_US, TransactionEntries
from tests.support.intake.unread_history import UnreadHistory

ONE = topic_id_of(1)
NOW_US = 1_767_323_045_000_000
SECOND = 1_000_000
PARQUET = TopicArchiveSettings(kind="parquet")


def orders(
    archive: TopicArchiveSettings = PARQUET, name: str = "orders", partitions: int = 1
) -> TopicSettings:
    return TopicSettings(name=name, partitions=partitions, archive=archive)


def ledger_of(
    watermarks: dict[int, int], archived: dict[int, int] | None = None, topic_id: TopicId = ONE
) -> LedgerFold:
    """A ledger whose archives reach up to `archived` and whose table reaches up to `watermarks`."""
    ledger = LedgerFold()
    topic = ledger.topics[topic_id] = TopicLedger(topic_id, watermarks=dict(watermarks))
    for partition, end in (archived or {}).items():
        base = watermarks.get(partition, 0)
        if end > base:
            key = f"{partition}/{base}"
            archive = ArchiveFile(
                key, 1, bytes(32), bytes(32), partition, base, end, 1, 1, end - base, 1, 1, 7
            )
            topic.add_pending(PendingFile(archive, b"c" * 16, None, 0, 1, None, 0))
    return ledger


def one(
    fold: IntakeFold | Backlog,
    ledger: LedgerFold | None = None,
    *,
    topic: TopicSettings | None = None,
    now_us: int = NOW_US,
    stuck: str | None = None,
    archive: ArchiveSettings | None = None,
) -> PartitionLag:
    """The only partition of the topic `orders`."""
    view = fold if isinstance(fold, Backlog) else Backlog(fold)
    topics = [topic or orders()]
    why = {} if stuck is None else {"orders": stuck}
    found = lag_report(
        view, ledger or LedgerFold(), topics, now_us, why, archive=archive or ArchiveSettings()
    )
    (partition,) = found.topics[0].partitions
    return partition


def filled(*rows: int, raw_bytes: int = 10, apart_us: int = SECOND) -> IntakeFold:
    """A log whose newest record is one second old. Each segment before it is one second older."""
    fold = IntakeFold()
    fold.apply(0, declared(1, "orders", 1))
    for place, count in enumerate(rows):
        accept_us = NOW_US - (len(rows) - place) * apart_us
        fold.apply(
            fold.next_index, named(f"intake/{place}", [Run(ONE, 0, count, raw_bytes * count, accept_us)])
        )
    return fold


def test_start_is_the_first_offset_within_retention() -> None:
    ledger = ledger_of({0: 8})
    assert one(filled(10), ledger).start == 0, "retention has deleted nothing"
    ledger.topics[ONE].starts[0] = 5
    assert one(filled(10), ledger).start == 5


# against a naive model


class Twin:
    """A fold that was never cut, and one of the same entries with decided parts moved into history files."""

    def __init__(self, root: Path) -> None:
        self.whole, self.cut = IntakeFold(), IntakeFold()
        self._objects = LocalObjectStore(root)
        self._refs: tuple[HistoryRef, ...] = ()
        self._history = History(self._objects, lambda: self._refs)
        self.view = Backlog(self.cut, self._history)

    def apply(self, entries: list[bytes], cuts: set[int]) -> None:
        for index, entry in enumerate(entries):
            self.whole.apply(index, entry)
            self.cut.apply(index, entry)
            if index in cuts:
                self._release()

    def _release(self) -> None:
        content = history_file.decided(self.cut)
        data = history_file.encode(content)
        ref = history_file.ref_of(self._refs[-1].end if self._refs else 0, self.cut.next_index, data)
        self._objects.create(history_key(ref.start, ref.end), data)
        self._refs = (*self._refs, ref)
        self._history.learn(self._refs)
        self.cut.release_history({tp: part.end for tp, part in content.items()})


def naive_stable(fold: IntakeFold, tp: TopicPartition) -> int:
    firsts = [
        ranges[0][0] for one in fold.transactions for where, ranges in one.ranges.items() if where == tp
    ]
    return min([*firsts, fold.next_offset(tp)])


def naive_lag(fold: IntakeFold, tp: TopicPartition, start: int, now_us: int) -> StageLag:
    """The naive model: inspects every offset alone."""
    gone = {offset for low, high in fold.partition(tp).gaps for offset in range(low, min(high, 100_000))}
    accepted = {o: s.accept_max_us for s in fold.partition(tp).segments for o in range(s.base, s.end)}
    left = [offset for offset in range(start, fold.next_offset(tp)) if offset not in gone]
    assert all(offset in accepted for offset in left)
    return StageLag(start, len(left), max(0, now_us - accepted[left[0]]) / 1e6 if left else 0.0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60), data=st.data())
def test_every_lag_is_what_a_look_at_every_offset_says(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int, data: st.DataObject
) -> None:
    entries = RandomHistory(random.Random(seed)).grow(steps)
    entries = [entry for entry in entries if len(entry) < 10_000]
    cuts = data.draw(st.sets(st.integers(0, len(entries) - 1), max_size=3))
    twin = Twin(tmp_path_factory.mktemp("shelves"))
    twin.apply(entries, cuts)
    chance = random.Random(seed)
    ledger, topics = LedgerFold(), []
    for state in twin.whole.topics_by_name.values():
        marks: dict[int, int] = {}
        archived: dict[int, int] = {}
        for number in range(state.partitions):
            stable = naive_stable(twin.whole, (state.topic_id, number))
            if stable > 100_000:
                return  # With a producer that wraps, the history is too long to inspect every offset.
            archived[number] = chance.randint(0, stable)
            marks[number] = chance.choice((archived[number], chance.randint(0, archived[number])))
        ledger.topics |= ledger_of(marks, archived, state.topic_id).topics
        kind = chance.choice(("none", "parquet", "parquet"))
        topics.append(orders(TopicArchiveSettings(kind=kind), state.name, state.partitions))
    if any(
        twin.whole.next_offset((state.topic_id, n)) > 100_000
        for state in twin.whole.topics_by_name.values()
        for n in range(state.partitions)
    ):
        return
    now_us = twin.whole.newest_us + chance.randrange(-SECOND, 400 * SECOND)
    found = lag_report(twin.view, ledger, topics, now_us, {}, archive=ArchiveSettings())
    assert found == lag_report(Backlog(twin.whole), ledger, topics, now_us, {}, archive=ArchiveSettings()), (
        "shelves change nothing"
    )
    check(found, twin.whole, ledger, topics)


def check(found: LagReport, fold: IntakeFold, ledger: LedgerFold, topics: list[TopicSettings]) -> None:
    assert [topic.topic for topic in found.topics] == sorted(fold.topics_by_name)
    for topic in found.topics:
        settings_of = next(item for item in topics if item.name == topic.topic)
        for partition in topic.partitions:
            tp = (topic.topic_id, partition.partition)
            held = ledger.topic(topic.topic_id)
            expected: dict[Stage, int] = {"stable": naive_stable(fold, tp)}
            if settings_of.archive.kind != "none":
                expected |= {"archived": held.planned_to(tp[1]), "committed": held.watermark(tp[1])}
            assert partition.stages == {
                stage: naive_lag(fold, tp, offset, found.now_us) for stage, offset in expected.items()
            }
            assert partition.next == fold.next_offset(tp)
            assert (partition.held is not None) == any(tp in one.ranges for one in fold.transactions)
            assert (partition.reason is None) == (partition.cause is None)
            behind = min(expected.values()) < partition.next
            assert (partition.cause is not None) == behind, (
                "exactly the partitions that are behind have a reason"
            )
        for stage in STAGES:
            lags = [partition.stages[stage] for partition in topic.partitions if stage in partition.stages]
            total = topic.lag(stage)
            assert (total is None) == (not lags)
            if total is not None:
                assert total.records == sum(lag.records or 0 for lag in lags)
                assert total.seconds == max(lag.seconds or 0 for lag in lags)


# every reason


def test_what_is_all_in_the_table_has_no_reason() -> None:
    found = one(filled(2, 3), ledger_of({0: 5}))
    assert (found.cause, found.reason, found.held) == (None, None, None)
    assert found.stages == {stage: StageLag(5, 0, 0.0) for stage in STAGES}
    assert found.last == StageLag(5, 0, 0.0)


def test_not_due_yet_says_which_trigger_and_when() -> None:
    archive = ArchiveSettings(idle_max=30, complete_delay_max=300)
    found = one(filled(2, 3), archive=archive)
    assert (found.cause, found.stages["archived"]) == ("waiting", StageLag(0, 5, 2.0))
    assert found.reason == (
        "not due yet: archived at 2026-01-02 03:04:34 UTC if no record arrives before (archive.idle_max), "
        "at the latest at "
        "2026-01-02 03:09:03 UTC; `archiver archive --topic orders --all` does it at once"
    )
    own = orders(TopicArchiveSettings(kind="parquet", complete_delay_max=10))
    assert "archived at 2026-01-02 03:04:13 UTC (archive.complete_delay_max)" in str(
        one(filled(2, 3), topic=own, archive=archive).reason
    )
    small = ArchiveSettings(min_bytes=1000)
    assert "not due: 50 of 1,000 bytes (archive.min_bytes)" in str(one(filled(2, 3), archive=small).reason)


def test_due_and_switched_off() -> None:
    assert one(filled(2, 3), archive=ArchiveSettings(idle_max=1)).cause == "due"
    assert one(filled(2, 3), archive=ArchiveSettings(max_bytes=50)).cause == "due"
    assert (
        one(filled(2, 3), archive=ArchiveSettings(min_bytes=20, complete_delay_max=2, idle_max=900)).cause
        == "due"
    )
    assert (
        one(filled(2, 3), archive=ArchiveSettings(min_bytes=21, complete_delay_max=2, idle_max=900)).cause
        == "waiting"
    ), "opened later"
    off = one(filled(2, 3), archive=ArchiveSettings(min_bytes=-1))
    assert off.cause == "off"
    assert "archive.min_bytes: -1" in str(off.reason)


def test_nothing_but_aborted_records() -> None:
    fold = filled()
    sender = TransactionEntries(fold, "t")
    sender.send(Run(ONE, 0, rows=4, accept_max_us=NOW_US))
    sender.end(commit=False)
    found = one(fold)
    assert found.stages["archived"] == StageLag(0, 0, 0.0)
    assert (found.cause, found.stages["stable"].offset) == ("due", 4)
    ledger = ledger_of({})
    ledger.topics[ONE].written_us = NOW_US - SECOND
    assert (
        one(fold, ledger).reason
        == "only aborted records, skipped with the topic's next archive, at the latest at "
        "2026-01-02 03:09:04 UTC"
    )


def test_archives_that_are_in_no_table() -> None:
    found = one(filled(2, 3), ledger_of({0: 1}, {0: 4}))
    assert (found.cause, found.stages["archived"].records, found.stages["committed"].records) == (
        "pending",
        1,
        4,
    )
    assert found.reason == (
        "archives up to offset 4 are not in the table yet; the next round (`archiver serve`, or `archiver "
        "archive`) commits them"
    )


def test_an_open_transaction_is_named_with_its_end() -> None:
    fold = filled(2)
    sender = TransactionEntries(fold, "billing")
    sender.send(Run(ONE, 0, rows=3, accept_max_us=NOW_US - 60 * SECOND))
    found = one(fold, ledger_of({0: 0}, {0: 2}))
    assert (found.cause, found.stages["stable"]) == ("transaction", StageLag(2, 3, 60.0))
    assert found.held is not None
    assert (found.held.transactional_id, found.held.waiting) == ("billing", 3)
    assert found.reason == (
        f"3 offsets wait for transaction billing (producer {sender.producer_id}, epoch 0), open since "
        "2026-01-02 03:03:05 UTC (1 min); "
        "let its producer end it, or it is aborted at 2026-01-02 04:03:05 UTC"
    )
    late = one(fold, now_us=NOW_US + HOUR_US)
    assert str(late.reason).endswith(
        "it timed out at 2026-01-02 04:03:05 UTC, and a running writer or the next round aborts it"
    )
    assert one(fold, topic=orders(TopicArchiveSettings())).cause == "transaction", (
        "also where nothing is archived"
    )


def test_the_oldest_transaction_of_a_partition_is_not_the_one_that_began_first() -> None:
    fold = IntakeFold()
    fold.apply(0, declared(1, "orders", 2))
    first, second = TransactionEntries(fold, "first"), TransactionEntries(fold, "second")
    first.send(Run(ONE, 1, accept_max_us=NOW_US))
    second.send(Run(ONE, 0, accept_max_us=NOW_US))
    first.send(Run(ONE, 0, accept_max_us=NOW_US))
    (topic,) = lag_report(
        Backlog(fold), LedgerFold(), [orders(partitions=2)], NOW_US, {}, archive=ArchiveSettings()
    ).topics
    assert [
        one.held and (one.held.transactional_id, one.stages["stable"].offset) for one in topic.partitions
    ] == [
        ("second", 0),
        ("first", 0),
    ]


def test_a_stuck_table_comes_before_an_open_transaction_and_only_where_something_waits() -> None:
    fold = filled(2)
    TransactionEntries(fold, "billing").send(Run(ONE, 0, rows=3, accept_max_us=NOW_US))
    found = one(fold, ledger_of({0: 0}, {0: 2}), stuck="the table was dropped")
    assert (found.cause, found.reason) == (
        "stuck",
        "the last round could not finish the topic: the table was dropped",
    )
    assert one(fold, ledger_of({0: 2}), stuck="the table was dropped").cause == "transaction"
    assert one(filled(2), ledger_of({0: 2}), stuck="the table was dropped").cause is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Corrupted("shelf 0-3 is damaged"), "shelf"),
        (RetryLater("the object store gives no answer"), "unreadable"),
    ],
)
def test_a_shelf_that_cannot_be_read_is_the_worst_and_the_rest_is_reported(
    error: ArchiverError, cause: str
) -> None:
    fold = filled(2, 3)
    history_refs = UnreadHistory({(ONE, 0): error})
    view = history_refs.release_history(fold)
    fold.apply(fold.next_index, named("intake/b", [Run(ONE, 0, 4, 40, NOW_US)]))
    found = one(view, ledger_of({0: 0}, {0: 5}), stuck="the table was dropped")
    assert found.cause == cause
    assert str(error) in str(found.reason)
    assert found.stages == {
        "stable": StageLag(9, 0, 0.0),
        "archived": StageLag(5, 4, 0.0),
        "committed": StageLag(0, None, None),
    }
    assert one(view, ledger_of({0: 5})).cause == "waiting", "archived offsets are not read"
    topic = lag_report(view, ledger_of({}), [orders()], NOW_US, {}, archive=ArchiveSettings()).topics[0]
    assert topic.lag("committed") == StageLag(0, None, None)
    assert topic.lag("stable") == StageLag(9, 0, 0.0)


def test_archives_beyond_the_log() -> None:
    found = one(filled(2), ledger_of({0: 7}))
    assert (found.cause, found.stages["committed"]) == ("restored", StageLag(7, 0, 0.0))
    assert "archived up to offset 7, but the intake log ends at 2" in str(found.reason)


def test_a_topic_that_was_taken_out_of_the_configuration() -> None:
    def look(ledger: LedgerFold) -> PartitionLag:
        found = lag_report(Backlog(filled(2)), ledger, [], NOW_US, {}, archive=ArchiveSettings())
        assert found.topics[0].kind == "unconfigured"
        return found.topics[0].partitions[0]

    never = look(LedgerFold())
    assert (never.cause, never.untouched, never.stages["committed"].records) == ("unconfigured", True, 2), (
        "the intention is unknown"
    )
    assert "it was never archived" in str(never.reason)
    assert not look(ledger_of({0: 1})).untouched
    assert (look(ledger_of({0: 1})).cause, set(look(ledger_of({0: 1})).stages)) == (
        "unconfigured",
        set(STAGES),
    )
    assert look(ledger_of({0: 2})).cause is None


def test_what_differs_from_the_configuration() -> None:
    topics = [orders(partitions=2), orders(name="new")]
    found = lag_report(Backlog(filled(1)), ledger_of({}), topics, NOW_US, {}, archive=ArchiveSettings())
    assert found.differences == (
        (
            "topic orders has 1 partition, the configuration says 2; reload the daemon (`systemctl reload "
            "stream-archiver`), which adds them"
        ),
        (
            "topic new is configured but not created yet; send its first record, or run `archiver archive`, "
            "to create it"
        ),
    )
    assert found.topic("orders") is found.topics[0]
    assert found.topic("new") is None


def test_a_topic_that_grew_beyond_its_configuration() -> None:
    intake = filled(1)
    grown = pb.TopicGrown(
        topic_id=bytes.fromhex(intake.topics_by_name["orders"].topic_id), partitions=3, own_offsets=True
    )
    intake.apply(intake.next_index, pb.IntakeEntry(format=5, id=b"g" * 16, grown=grown).SerializeToString())
    found = lag_report(
        Backlog(intake), ledger_of({}), [orders(partitions=1)], NOW_US, {}, archive=ArchiveSettings()
    )
    assert found.differences == (
        (
            "topic orders has 3 partitions, the configuration says 1; set `partitions: 3` in archiver.yaml, "
            "because the topic keeps all of them"
        ),
    )
    assert [item.partition for item in found.topics[0].partitions] == [0, 1, 2]


def test_the_topic_says_when_it_was_committed_and_how_far_it_is_valid() -> None:
    ledger = ledger_of({0: 1}, {0: 2})
    ledger.topics[ONE].committed_us, ledger.topics[ONE].valid_through_us = 5, 4
    topic = lag_report(
        Backlog(filled(2)), ledger, [orders()], NOW_US, {"orders": "why"}, archive=ArchiveSettings()
    ).topics[0]
    assert (topic.last_commit_us, topic.valid_through_us, topic.pending, topic.stuck, topic.kind) == (
        5,
        4,
        1,
        "why",
        "parquet",
    )
    empty = lag_report(
        Backlog(filled(2)), LedgerFold(), [orders()], NOW_US, {}, archive=ArchiveSettings()
    ).topics[0]
    assert (empty.last_commit_us, empty.valid_through_us, empty.pending) == (None, None, 0)


def test_a_thousand_partitions_with_open_transactions_take_a_moment() -> None:
    fold, partitions, segments = IntakeFold(), 1000, 40
    fold.apply(0, declared(1, "orders", partitions))
    for place in range(segments):
        runs = [Run(ONE, number, 5, 50, NOW_US - (segments - place) * SECOND) for number in range(partitions)]
        fold.apply(fold.next_index, named(f"intake/{place}", runs))
    for number in range(300):
        sender = TransactionEntries(fold, f"t{number}")
        sender.send(Run(ONE, number, 1, 1, NOW_US), Run(ONE, 999 - number, 1, 1, NOW_US))
    ledger = ledger_of(dict.fromkeys(range(partitions), 50))
    view, topics = Backlog(fold), [orders(partitions=partitions)]
    began = time.perf_counter()
    found = lag_report(view, ledger, topics, NOW_US, {}, archive=ArchiveSettings())
    seconds = time.perf_counter() - began
    print(
        f"standing of {partitions} partitions with {segments} segments each, 300 open transactions: "
        f"{seconds * 1000:.1f} ms"
    )
    assert len(found.topics[0].partitions) == partitions
    assert seconds < 2, "a hundred times slower than it was"
