"""What the vacuum can delete: its decision against a model that remembers every record."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.objects.paths import parse_intake_key
from intake.log.backlog import Backlog
from intake.log.fold import IntakeFold
from intake.producers import Stamp
from reconcile.snapshot.retention_floor import RetentionFloor
from reconcile.vacuum.clean import choose, needed_files
from tests.support.builders.cleaning import Run, Vacuumed, stamps

TOPICS = {"a": 2, "b": 1}


@dataclass
class Model:
    """Every record that has an offset, with its file, and whether its transaction was aborted."""

    vacuumed: Vacuumed = field(default_factory=Vacuumed)
    records: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """(topic, partition, offset) → key of the file."""
    aborted: set[tuple[str, int, int]] = field(default_factory=set)
    open: set[tuple[str, int, int]] = field(default_factory=set)
    files: list[str] = field(default_factory=list)
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, partitions in TOPICS.items():
            self.vacuumed.topic(name, partitions)
        self.producer = self.vacuumed.sequencer.open_producer("tx", 10**12)

    def upload(self) -> str:
        self.vacuumed.clock.advance(1)
        self.files.append(self.vacuumed.upload())
        return self.files[-1]

    def append(self, runs: list[Run]) -> None:
        key = self.upload()
        for run, landed in zip(runs, self.vacuumed.name(key, *runs), strict=True):
            places = {
                (run.topic, run.partition, offset + number)
                for offset, rows in landed.runs
                for number in range(rows)
            }
            if landed.segment is not None:
                self.records.update(dict.fromkeys(places, key))
                if run.stamp is not None:
                    self.open |= places

    def transactional(self, topic: str, partition: int, repeated: bool) -> None:
        tp = (topic, partition)
        at = self.sequences.get(tp, 0)
        if repeated and at:
            self.append([Run(topic, partition, stamp=Stamp(*self.producer, at - 1, transactional=True))])
            return
        self.sequences[tp] = at + 1
        self.append(
            [Run(topic, partition, stamp=stamp) for stamp in stamps(self.producer, at, 1, transactional=True)]
        )

    def end(self, commit: bool) -> None:
        assert self.vacuumed.sequencer.end_transaction(*self.producer, commit=commit) is None
        self.aborted |= set() if commit else self.open
        self.open.clear()

    def needed(self, lines: dict[tuple[str, int], int]) -> set[str]:
        """The naive model: the files of all records that are not aborted and not below their floor."""
        return {
            key
            for (topic, partition, offset), key in self.records.items()
            if (topic, partition, offset) not in self.aborted and offset >= lines.get((topic, partition), 0)
        }


places = st.sampled_from(
    [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.lists(st.tuples(places, st.integers(1, 3)), min_size=1, max_size=3)),
        st.tuples(st.just("transactional"), st.tuples(places, st.booleans())),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("stray"), st.none()),
    ),
    max_size=15,
)


@settings(max_examples=200)
@given(steps, st.dictionaries(places, st.integers(0, 20)), st.integers(0, 20), st.integers(0, 20))
def test_the_choice_is_what_a_model_that_remembers_everything_chooses(history, lines, age, limit) -> None:  # type: ignore[no-untyped-def]
    model = Model()
    for name, what in history:
        if name == "plain":
            model.append([Run(topic, partition, rows) for (topic, partition), rows in what])
        elif name == "transactional":
            (topic, partition), repeated = what
            model.transactional(topic, partition, repeated)
        elif name == "end":
            model.end(what)
        else:
            model.upload()
    model.vacuumed.lines = lines
    intake = model.vacuumed.backlog()
    found = needed_files(intake, model.vacuumed.topic_lines(intake, model.vacuumed.ledger()))
    wanted = model.needed(lines)
    assert set(found.sure) == wanted
    assert not found.doubted
    before_ms = model.vacuumed.clock.now_us() // 1000 - age * 1000
    choice = choose(reversed(model.files), found, (), before_ms, limit)
    old = [key for key in model.files if written_ms(key) < before_ms and key not in wanted]
    assert list(choice.to_mark) == old[:limit]
    assert choice.over == len(old) - len(choice.to_mark)
    assert choice.needed == len(wanted)
    assert len(choice.to_mark) + choice.over + choice.needed + choice.young == len(model.files)
    assert choice.barrier_ms == (None if not choice.to_mark else written_ms(choice.to_mark[-1]) + 1)
    assert choice.barrier_ms is None or choice.barrier_ms <= before_ms


def written_ms(key: str) -> int:
    parsed = parse_intake_key(key)
    assert parsed is not None
    return parsed.written_ms


def test_what_is_marked_or_no_intake_file_is_not_chosen() -> None:
    model = Model()
    first, second = model.upload(), model.upload()
    stored = [first, second, "intake/readme.txt"]
    choice = choose(stored, needed_files(Backlog(IntakeFold()), {}), {first: None}, 10**15, 10)
    assert (choice.to_mark, choice.strange) == ((second,), 1)


def test_topics_that_keep_everything_and_topics_without_lines_are_needed_and_doubted() -> None:
    vacuumed = Vacuumed(lines={("a", 0): 9})
    ids = [vacuumed.topic(name) for name in ("a", "b", "c")]
    keys = [vacuumed.file(Run(name)) for name in ("a", "b", "c")]
    intake = vacuumed.backlog()
    lines = {
        ids[0]: RetentionFloor(ids[0], "a", (9,), (9,), exact=False),
        ids[1]: RetentionFloor(ids[1], "b", (0,), (9,), "the topic has archive kind none"),
    }
    found = needed_files(intake, lines)
    assert not found.sure
    assert found.doubted == {keys[1], keys[2]}
    lines[ids[0]] = RetentionFloor(ids[0], "a", (0,), (9,), exact=False)
    assert needed_files(intake, lines).doubted == set(keys), (
        "a line that was higher before is no proof that a condemned file is needed"
    )


def test_files_of_a_partition_that_is_younger_than_the_floors_are_needed() -> None:
    """The floors were computed before another process added the partition."""
    vacuumed = Vacuumed()
    topic_id = vacuumed.topic("a")
    vacuumed.file(Run("a"))
    lines = {topic_id: RetentionFloor(topic_id, "a", (1,), (1,))}
    vacuumed.sequencer.grow_topic("a", 3)
    young = vacuumed.file(Run("a", partition=2))
    found = needed_files(vacuumed.backlog(), lines)
    assert found.sure == {young: (topic_id, 2)}
    assert not found.unread
