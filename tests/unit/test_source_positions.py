"""Source positions in the fold of the intake log: an entry counts if all its moves are valid, otherwise none
counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.proto import intake_state_pb2 as state_pb
from archiver.runtime.errors import Corrupted
from intake.log.checkpoint import Checkpoint, decode, encode, same, source_message, source_state
from intake.log.entries import format_of, positions_bytes
from intake.log.fold import Applied, IntakeFold
from intake.log.source_positions import Begun, Finished, Move, SourceState
from tests.support.intake.intake_entries import declared, topic_id_of

KEY = "intake/2026-01-02/03/1767323045678-01KDYMN0XE0000000000000000.parquet"
WHO = b"0123456789"


def move(
    base: int,
    end: int,
    *,
    item: str = "/in/a",
    done: bool = False,
    who: bytes = WHO,
    seen: int = 1 << 40,
    source: str = "s",
) -> Any:
    return pb.SourcePosition(
        source=source, item=item, base=base, end=end, done=done, identity=who, seen=seen, count=end
    )


class Log:
    """A fold and its entries. Topic 1 has two partitions."""

    def __init__(self) -> None:
        self.fold = IntakeFold()
        self.fold.apply(0, declared(1, "t", 2))

    def add(self, **body: Any) -> Applied:
        entry = pb.IntakeEntry(id=self.fold.next_index.to_bytes(16, "big"), **body)
        entry.format = format_of(entry)
        return self.fold.apply(self.fold.next_index, entry.SerializeToString())

    def take(
        self, *moves: Any, partitions: tuple[int, ...] = (0,), topic: int = 1, key: str = KEY
    ) -> Applied:
        """Append a file with two records for each partition, and positions."""
        segments = [pb.Segment(partition=partition, rows=2, accept_max_us=5) for partition in partitions]
        topics = [pb.TopicSegments(topic_id=bytes.fromhex(topic_id_of(topic)), segments=segments)]
        return self.add(
            file=pb.IntakeFile(key=key, size=9, footer_sha256=b"d" * 32, topics=topics, positions=moves)
        )

    def only_move(self, *moves: Any) -> Applied:
        return self.add(file=pb.IntakeFile(positions=moves))

    def forget(self, *items: str, seen: int, source: str = "s") -> None:
        self.add(source_forgotten=pb.SourceForgotten(source=source, items=items, seen=seen))

    def offsets(self) -> list[int]:
        return [self.fold.next_offset((topic_id_of(1), number)) for number in (0, 1)]

    def at(self, item: str = "/in/a") -> Begun | Finished | None:
        return self.fold.positions.get("s", item)


def test_an_item_goes_on_from_where_it_stands() -> None:
    log = Log()
    assert log.take(move(0, 10)).refusal is None
    assert log.at() == Begun(10, 10, WHO)
    assert log.take(move(10, 10)).refusal is None
    assert log.take(move(10, 30, done=True), partitions=(0, 1)).refusal is None
    assert log.at() == Finished(WHO[:4], 3)
    assert log.offsets() == [6, 2]


def test_an_identity_that_is_short_is_kept_in_full_width() -> None:
    log = Log()
    log.take(move(0, 10, done=True, who=b"ab"))
    log.take(move(0, 10, done=True, item="/in/b"))
    assert log.at() == Finished(b"ab\0\0", 1)
    again = decode(encode(Checkpoint(log.fold.state(), ())), "here").fold()
    assert [again.positions.get("s", item) for item in ("/in/a", "/in/b")] == [log.at(), log.at("/in/b")]


class Watched(dict[str, Any]):
    """A dictionary that calls `look` after each step: what another thread could do or see at that moment."""

    def __init__(self, content: dict[str, Any], look: Callable[[], None]) -> None:
        super().__init__(content)
        self.look = look

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.look()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.look()

    def pop(self, key: str, *default: Any) -> Any:
        found = super().pop(key, *default)
        self.look()
        return found

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self.look()
        return found


def test_who_looks_while_the_fold_moves_never_takes_a_known_item_for_a_new_one() -> None:
    seen: list[Any] = []

    def look() -> None:
        state.begun, state.finished = dict(state.begun), dict(state.finished)
        seen.append((log.at(), state.forgotten_below))
        state.begun, state.finished = begun, finished

    log = Log()
    log.take(move(0, 10))
    state = log.fold.positions._sources["s"]
    begun, finished = Watched(state.begun, look), Watched(state.finished, look)
    state.begun, state.finished = begun, finished
    log.fold.positions.move(2, [move(10, 20, done=True)])
    assert seen
    assert all(known is not None for known, _ in seen)
    seen.clear()
    log.fold.positions.forget(3, pb.SourceForgotten(source="s", items=["/in/a"], seen=3))
    assert seen
    assert all(known is not None or forgotten_below == 4 for known, forgotten_below in seen)


def test_who_looks_is_not_overtaken_by_the_fold() -> None:
    """The item is finished between the reads of the two dictionaries that can hold it."""

    def finish() -> None:
        state.begun, state.finished = dict(state.begun), dict(state.finished)
        log.fold.positions.move(2, [move(10, 20, done=True)])

    log = Log()
    log.take(move(0, 10))
    state = log.fold.positions._sources["s"]
    state.begun, state.finished = Watched(state.begun, finish), Watched(state.finished, finish)
    assert log.at() is not None
    assert log.at() == Finished(WHO[:4], 2)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(move(0, 10), id="again from the beginning"),
        pytest.param(move(5, 20), id="from within"),
        pytest.param(move(11, 20), id="with a hole"),
        pytest.param(move(10, 20, who=b"another"), id="of another file of that name"),
    ],
)
def test_what_does_not_follow_counts_for_nothing(wrong: Any) -> None:
    log = Log()
    log.take(move(0, 10))
    refused = log.take(move(0, 7, item="/in/b"), wrong, partitions=(0, 1))
    assert refused.refusal == "position"
    assert [(one.refusal, one.runs, one.segment) for one in refused.landed] == [("position", (), None)] * 2
    assert (log.offsets(), log.at(), log.at("/in/b")) == ([2, 0], Begun(10, 10, WHO), None)
    assert log.take(move(10, 20)).refusal is None


def test_an_item_that_was_never_heard_of_begins_at_0() -> None:
    log = Log()
    assert log.take(move(3, 10)).refusal == "position"
    assert log.take(move(0, 10)).refusal is None
    assert log.take(move(0, 10, source="another")).refusal is None


def test_a_finished_item_takes_nothing_more() -> None:
    log = Log()
    log.take(move(0, 10, done=True))
    for wrong in (move(0, 10), move(10, 20), move(10, 10, done=True)):
        assert log.take(wrong).refusal == "position"
    assert (log.offsets(), log.at()) == ([2, 0], Finished(WHO[:4], 1))


def test_an_entry_without_records_moves_positions() -> None:
    log = Log()
    assert log.only_move(move(0, 0, done=True)).refusal is None
    assert log.only_move(move(0, 0, done=True)).refusal == "position"
    assert log.fold.newest_key == ""
    log.add(barrier=pb.Barrier(written_before_ms=1 << 50))
    assert log.only_move(move(0, 0, done=True, item="/in/b")).refusal is None, "a barrier is about files"


def test_behind_a_barrier_no_position_moves() -> None:
    log = Log()
    log.add(barrier=pb.Barrier(written_before_ms=1767323045679))
    assert log.take(move(0, 10)).refusal == "barrier"
    assert (log.offsets(), log.at()) == ([0, 0], None)


def test_of_a_deleted_topic_no_position_moves_with_any_entry() -> None:
    log = Log()
    log.add(
        topic=pb.TopicDeclared(topic_id=bytes.fromhex(topic_id_of(2)), name="u", partitions=1, created_us=1)
    )
    log.add(deleted=pb.TopicDeleted(topic_id=bytes.fromhex(topic_id_of(2))))
    segments = [pb.Segment(partition=0, rows=2)]
    topics = [
        pb.TopicSegments(topic_id=bytes.fromhex(topic_id_of(number)), segments=segments) for number in (1, 2)
    ]
    refused = log.add(
        file=pb.IntakeFile(key=KEY, size=9, footer_sha256=b"d" * 32, topics=topics, positions=[move(0, 10)])
    )
    assert (refused.refusal, [one.refusal for one in refused.landed]) == ("deleted", ["deleted", "deleted"])
    assert (log.offsets(), log.at()) == ([0, 0], None)


def test_only_finished_items_are_forgotten() -> None:
    log = Log()
    log.take(move(0, 10))
    log.take(move(0, 10, item="/in/b", done=True))
    log.forget("/in/a", "/in/b", "/in/c", seen=3)
    assert (log.at(), log.at("/in/b")) == (Begun(10, 10, WHO), None)
    log.forget("/in/b", seen=9, source="never heard of")


def test_an_item_that_was_finished_after_the_look_is_not_forgotten() -> None:
    """A process paused between finding it absent and saying so. In that time it was forgotten, came again,
    and was ingested again."""
    log = Log()
    log.take(move(0, 10, done=True))
    log.forget("/in/a", seen=2)
    log.take(move(0, 20, done=True))
    log.forget("/in/a", seen=2)
    assert log.at() == Finished(WHO[:4], 3)
    log.forget("/in/a", seen=3)
    assert log.at() == Finished(WHO[:4], 3)
    log.forget("/in/a", seen=4)
    assert log.at() is None


def test_who_looked_before_something_was_forgotten_looks_again() -> None:
    log = Log()
    log.take(move(0, 10, done=True, seen=1))
    log.forget("/in/a", seen=2)
    assert log.take(move(0, 10, seen=2)).refusal == "position", (
        "read before it was removed, named after it was forgotten"
    )
    assert log.take(move(0, 10, item="/in/b", seen=2)).refusal == "position"
    assert log.take(move(0, 10, seen=2, source="another")).refusal is None
    assert log.take(move(0, 10, seen=3)).refusal is None
    assert log.offsets() == [6, 0]


@pytest.mark.parametrize(
    ("moves", "why"),
    [
        ([move(0, 1), move(1, 2)], "moves an item twice"),
        ([move(3, 2)], "from 3 to 2"),
        ([move(0, 1, item="")], "moves '' of 's'"),
        ([move(0, 1, source="")], "moves '/in/a' of ''"),
    ],
)
def test_an_entry_that_contradicts_itself(moves: list[Any], why: str) -> None:
    log = Log()
    with pytest.raises(Corrupted, match=why):
        log.take(*moves)
    assert (log.fold.next_index, log.offsets()) == (1, [0, 0])


def test_no_producer_next_to_positions() -> None:
    log = Log()
    segments = [pb.Segment(partition=0, rows=2, producer=pb.ProducerBatch(producer_id=1))]
    topics = [pb.TopicSegments(topic_id=bytes.fromhex(topic_id_of(1)), segments=segments)]
    with pytest.raises(Corrupted, match="has a producer's batch"):
        log.add(
            file=pb.IntakeFile(
                key=KEY, size=9, footer_sha256=b"d" * 32, topics=topics, positions=[move(0, 1)]
            )
        )
    with pytest.raises(Corrupted, match="without a key or digest"):
        log.add(file=pb.IntakeFile(topics=topics[:0]))


def test_only_what_needs_it_is_of_the_newest_format() -> None:
    plain = pb.IntakeFile(key=KEY)
    assert format_of(pb.IntakeEntry(file=plain)) == 1
    plain.positions.append(move(0, 1))
    assert format_of(pb.IntakeEntry(file=plain)) == 3
    assert format_of(pb.IntakeEntry(source_forgotten=pb.SourceForgotten())) == 3


def test_positions_add_no_more_than_is_counted() -> None:
    largest = Move(
        "files:" + "t" * 249, "/" + "p" * 4095, 1 << 63, 1 << 63, True, b"i" * 32, 1 << 63, 1 << 63
    )
    for count in (1, 2, 50):
        moves = [largest] * count
        entry = pb.IntakeEntry(file=pb.IntakeFile(key=KEY))
        before = entry.ByteSize()
        entry.file.positions.extend(
            pb.SourcePosition(
                source=one.source,
                item=one.item,
                base=one.base,
                end=one.end,
                done=True,
                identity=one.identity,
                seen=one.seen,
                count=one.count,
            )
            for one in moves
        )
        assert entry.ByteSize() - before <= positions_bytes(moves)


# checkpoints

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
STATES = st.builds(
    SourceState,
    NAMES,
    st.integers(0, 1 << 40),
    st.dictionaries(
        NAMES,
        st.builds(Begun, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.binary(max_size=32)),
        max_size=4,
    ),
    st.dictionaries(
        NAMES, st.builds(Finished, st.binary(min_size=4, max_size=4), st.integers(0, 1 << 40)), max_size=30
    ),
)


@given(STATES)
def test_a_checkpoint_keeps_a_source_as_it_is(state: SourceState) -> None:
    message = source_message(state)
    assert source_state(message) == state
    backwards = SourceState(
        state.name,
        state.forgotten_below,
        dict(reversed(state.begun.items())),
        dict(reversed(state.finished.items())),
    )
    assert source_message(backwards).SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )


def test_a_checkpoint_with_positions_is_nothing_for_older_versions() -> None:
    log = Log()
    without = encode(Checkpoint(log.fold.state(), ()))
    assert state_pb.IntakeState.FromString(without[48:]).format == 1
    log.take(move(0, 10, source="z"))
    log.take(move(0, 10, done=True))
    log.forget("/in/a", seen=3)
    log.take(move(0, 10, done=True, item="/in/b"))
    data = encode(Checkpoint(log.fold.state(), ()))
    assert state_pb.IntakeState.FromString(data[48:]).format == 2
    stored = decode(data, "here")
    assert same(stored.state, log.fold.state())
    assert [source.name for source in stored.state.sources] == ["s", "z"]
    again = stored.fold()
    assert again.positions.get("s", "/in/b") == Finished(WHO[:4], 4)
    assert again.positions.source("s").forgotten_below == 4
    log.take(move(10, 20, source="z"))
    assert not same(stored.state, log.fold.state())


def test_a_million_finished_files_in_a_checkpoint_take_some_20_bytes_each() -> None:
    """Here 20,000 names as programs generate them, in order of arrival."""
    state = SourceState("files:orders")
    for number in range(20_000):
        path = f"/var/lib/inbox/2026/{number // 800:03}/orders-2026-11-21T{number % 24:02}-{number * 7919 % 60:02}-{number:07}.jsonl"
        state.finished[path] = Finished(number.to_bytes(4, "big"), 1_000_000 + number)
    size = len(source_message(state).SerializeToString())
    assert size / 20_000 < 40, size / 20_000
