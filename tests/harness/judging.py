"""The judge: from a history to a verdict. Pure.

`valid`: every invariant holds. `invalid`: at least one does not; each violation names it. `unknown`: the
history is not the whole story, or so little happened that nothing was shown; where faults that were asked for
are missing, only a verdict of valid is withheld. An invariant is broken by one kind of mistake and no other,
so that a violation says what went wrong: a record that another invariant already explains is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tests.harness.group_judging import GroupCase
from tests.harness.history import Attempt, Fate, History, Outcome, Place, Row, Source
from tests.harness.loop_judging import committed, is_loop, loop_broken

INVARIANTS: dict[str, str] = {
    "H1": "a record acknowledged ok is at exactly its offset, with its bytes",
    "H2": "no record is there twice",
    "H3": "a record whose every attempt failed is not there",
    "H4": "nothing is there that nobody sent",
    "H5": "the offsets of a partition rise without holes, apart from records of transactions that were not "
    "committed",
    "H6": "the records of one sender in one partition are in the order of sending; of one sent again, any "
    "attempt that did not fail counts",
    "H7": "ingest times never step back in the order of offsets",
    "H8": "a table has the records below its watermark as consume has them, each once, and no others",
    "H9": "of a committed transaction every record acknowledged ok is there",
    "H10": "of a transaction that was not committed nothing is there",
    "H11": "of a transaction whose commit is of unknown outcome all is there or nothing",
    "H12": "a record sent again with its sequence number is acknowledged at the same offset",
    "H13": "an acknowledgement has an offset exactly if it is ok",
    "H14": "every record of a file that was dropped for a source is there",
    "H15": "a mirrored topic has the committed records of its upstream, each once, at its offset, with its "
    "bytes, in stream and table",
    "H16": "a Kafka reader gets the records of a partition by rising offsets, each once, and skips none",
    "H17": "what a Kafka reader gets is what consume has at that offset; a reader of uncommitted records also "
    "gets records of transactions that were not committed, at the offsets that were acknowledged",
    "H18": "a Kafka reader of committed records gets a record of a transaction only after its commit was asked "
    "for",
    "H19": "a producer that a second one has fenced commits nothing",
    "H20": "the committed offset of a consumer group never goes back, for an observer and for the member that gets "
    "the partition, and is one that a member committed",
    "H21": "a consumer group processes each record of a partition before it commits an offset beyond the record, and "
    "every record in the end",
    "H22": "a member of a consumer group gets what consume has at that offset",
    "H23": "a loop that reads, processes and writes exactly once writes one record for each committed record before its "
    "committed offset, in order, and nothing else",
}
SHOWN_MAX = 20
"""Violations of one invariant that are listed; the rest are counted."""

Verdict = Literal["valid", "invalid", "unknown"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where an invariant does not hold."""

    invariant: str
    where: str
    what: str


@dataclass(frozen=True)
class Judgement:
    """The verdict and what it rests on."""

    verdict: Verdict
    violations: tuple[Violation, ...]
    reasons: tuple[str, ...]
    """Why it is unknown, or would be."""
    counts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The document that the program prints."""
        totals = Counter(violation.invariant for violation in self.violations)
        shown: list[Violation] = []
        for name in totals:
            shown += [violation for violation in self.violations if violation.invariant == name][:SHOWN_MAX]
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "violated": {
                name: {"rule": INVARIANTS[name], "times": times} for name, times in sorted(totals.items())
            },
            "violations": [{"id": item.invariant, "where": item.where, "what": item.what} for item in shown],
            "counts": self.counts,
        }


@dataclass
class Sent:
    """One record with all its attempts."""

    sender: str
    number: int
    topic: str
    digest: str
    fate: Fate | None
    """Of its transaction; None without one."""
    transaction: str | None
    partitions: set[int] = field(default_factory=set)
    outcomes: set[Outcome | None] = field(default_factory=set)
    places: set[Place] = field(default_factory=set)
    """Where its attempts were acknowledged."""
    first: int | None = None
    """In the order of sending, the first attempt that may have put it there, and the last one."""
    last: int | None = None
    file: str | None = None
    """The file it was put into."""
    source: Source | None = None
    """The record it was made from."""

    @property
    def outcome(self) -> Outcome:
        """One ok is enough; without it, one attempt that may have succeeded leaves it open."""
        return "ok" if "ok" in self.outcomes else "failed" if self.outcomes == {"failed"} else "unknown"

    @property
    def place(self) -> Place | None:
        """Where it was acknowledged, if its attempts agree."""
        return next(iter(self.places)) if len(self.places) == 1 else None

    def __str__(self) -> str:
        return f"{self.sender} number {self.number} ({self.digest})"


def judge(history: History) -> Judgement:
    """The verdict on a history."""
    case = _Case(history)
    violations = tuple(
        violation
        for check in (
            case.acknowledgements,
            case.repetitions,
            case.present,
            case.transactions,
            case.dropped,
            case.found,
            case.order,
            case.tables,
            case.mirrors,
            case.fetched,
            case.early,
            case.fenced,
            case.groups,
        )
        for violation in check()
    )
    blind = (*history.troubles, *_emptiness(history), *case.doubled_digests())
    weak = (*history.oddities, *_missing(history))
    verdict: Verdict = "unknown" if blind else "invalid" if violations else "unknown" if weak else "valid"
    return Judgement(verdict, violations, (*blind, *weak), case.counts())


def _emptiness(history: History) -> Iterator[str]:
    """Why nothing can be said: little was done, or it was read too early."""
    if not history.attempts:
        yield "nothing was sent"
    elif not any(attempt.outcome == "ok" for attempt in history.attempts):
        yield "nothing was acknowledged ok"
    if not history.settled:
        yield "the run did not settle"
    if not any(history.consumed.values()):
        yield "consume read nothing back"
    for name, mirror in history.mirrors.items():
        if not mirror.upstream:
            yield f"topic {name} has no record in its cluster, so nothing was mirrored"


def _missing(history: History) -> Iterator[str]:
    """Reasons to withhold a verdict of valid; violations count all the same."""
    for kind in history.faults_asked:
        if not history.faults.get(kind):
            yield f"fault {kind} was asked for and not played"
    if history.rounds_asked and not any(table.rows for table in history.tables.values()):
        yield "archiving was asked for, and the tables are empty"


class _Case:
    """A history, arranged to be asked."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent: dict[tuple[str, int], Sent] = {}
        for number, attempt in enumerate(history.attempts):
            self._add(number, attempt)
        self.by_digest = {sent.digest: sent for sent in self.sent.values()}
        self.rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
        self.seen: dict[str, list[Place]] = defaultdict(list)
        """Per digest, where it was read, in order."""
        for topic, rows in history.consumed.items():
            for row in rows:
                self.rows[topic, row.partition].append(row)
                self.seen[row.digest].append((topic, row.partition, row.offset))
        self.taken = {place for places in self.seen.values() for place in places}

    def _add(self, number: int, attempt: Attempt) -> None:
        key = attempt.sender, attempt.number
        if key not in self.sent:
            fate: Fate | None = None
            if attempt.transaction is not None:
                known = self.history.transactions.get(attempt.transaction)
                fate = "aborted" if known is None else known.fate
            self.sent[key] = Sent(
                *key,
                attempt.topic,
                attempt.digest,
                fate,
                attempt.transaction,
                file=attempt.file,
                source=attempt.source,
            )
        sent = self.sent[key]
        sent.outcomes.add(attempt.outcome)
        if attempt.outcome != "failed":
            sent.first, sent.last = number if sent.first is None else sent.first, number
        if attempt.partition is not None:
            sent.partitions.add(attempt.partition)
            if attempt.outcome == "ok" and attempt.offset is not None and attempt.offset >= 0:
                sent.places.add((attempt.topic, attempt.partition, attempt.offset))

    def doubled_digests(self) -> Iterator[str]:
        """The judge identifies records by their digests."""
        if len(self.by_digest) != len(self.sent):
            yield f"{len(self.sent) - len(self.by_digest)} records of the run look like another one"

    def acknowledgements(self) -> Iterator[Violation]:
        """H13."""
        for attempt in self.history.attempts:
            if attempt.outcome == "ok" and (attempt.offset is None or attempt.offset < 0):
                yield Violation(
                    "H13", f"{attempt.sender} number {attempt.number}", f"ok with offset {attempt.offset}"
                )
            if attempt.outcome != "ok" and attempt.offset is not None:
                yield Violation(
                    "H13",
                    f"{attempt.sender} number {attempt.number}",
                    f"{attempt.outcome} with offset {attempt.offset}",
                )

    def repetitions(self) -> Iterator[Violation]:
        """H12."""
        for sent in self.sent.values():
            if len(sent.places) > 1:
                yield Violation(
                    "H12", str(sent), f"acknowledged at {', '.join(map(_text, sorted(sent.places)))}"
                )

    def present(self) -> Iterator[Violation]:
        """H1, H2, H3, H9: what the acknowledgements promise of each record."""
        for sent in self.sent.values():
            seen = self.seen.get(sent.digest, [])
            if len(seen) > 1:
                yield Violation("H2", str(sent), f"read at {', '.join(map(_text, seen))}")
            if sent.fate == "aborted":
                continue
            if sent.outcome == "failed" and seen:
                yield Violation("H3", str(sent), f"read at {_text(seen[0])}")
            if sent.place is None or sent.place in seen or (sent.fate == "undecided" and not seen):
                continue
            if sent.fate == "committed" and not seen and sent.place not in self.taken:
                yield Violation(
                    "H9",
                    str(sent),
                    f"acknowledged at {_text(sent.place)} in {sent.transaction}, and not there",
                )
            else:
                found = (
                    f"read at {_text(seen[0])}"
                    if seen
                    else "another is there"
                    if sent.place in self.taken
                    else "not there"
                )
                yield Violation("H1", str(sent), f"acknowledged at {_text(sent.place)}, {found}")

    def transactions(self) -> Iterator[Violation]:
        """H10, H11."""
        members: dict[str, list[Sent]] = defaultdict(list)
        for sent in self.sent.values():
            if sent.transaction is not None and sent.fate != "committed":
                members[sent.transaction].append(sent)
        for name, records in members.items():
            there = [sent for sent in records if sent.digest in self.seen]
            if not there:
                continue
            if records[0].fate == "aborted":
                yield Violation("H10", name, f"{len(there)} of its records are there, {there[0]} for one")
            elif missing := [
                sent for sent in records if sent.outcome == "ok" and sent.digest not in self.seen
            ]:
                yield Violation(
                    "H11",
                    name,
                    f"{len(there)} of its records are there, {len(missing)} are not, {missing[0]} for one",
                )

    def dropped(self) -> Iterator[Violation]:
        """H14."""
        for sent in self.sent.values():
            if sent.file in self.history.dropped and sent.digest not in self.seen:
                yield Violation("H14", str(sent), f"it stands in {sent.file}, and is not there")

    @cached_property
    def _promised(self) -> set[Place]:
        """Offsets that a sender got as an answer, perhaps in a transaction that was aborted."""
        return {place for sent in self.sent.values() for place in sent.places}

    @cached_property
    def _expected(self) -> set[Place]:
        """Places where a certain record must be; H1 reports if another is there."""
        return {
            place
            for sent in self.sent.values()
            if sent.fate in (None, "committed") or (sent.fate == "undecided" and sent.digest in self.seen)
            for place in sent.places
        }

    def found(self) -> Iterator[Violation]:
        """H4, H5, H7: what is seen in each partition."""
        for (topic, partition), rows in self.rows.items():
            before: Row | None = None
            holes: list[int] = []
            for row in rows:
                place = (topic, partition, row.offset)
                if not self._sent_to(topic, partition, row.digest) and place not in self._expected:
                    yield Violation("H4", _text(place), f"nobody sent {row.digest} there")
                if before is not None and row.offset <= before.offset:
                    if row.digest != before.digest:
                        yield Violation("H5", _text(place), f"read after offset {before.offset}")
                    continue
                if before is not None and row.ingest_us < before.ingest_us:
                    yield Violation(
                        "H7", _text(place), f"ingest time {row.ingest_us} after {before.ingest_us}"
                    )
                holes += range(0 if before is None else before.offset + 1, row.offset)
                before = row
            yield from self._holes(topic, partition, holes)

    def _sent_to(self, topic: str, partition: int, digest: str) -> bool:
        sent = self.by_digest.get(digest)
        return (
            sent is not None and sent.topic == topic and (not sent.partitions or partition in sent.partitions)
        )

    def _holes(self, topic: str, partition: int, holes: list[int]) -> Iterator[Violation]:
        """Holes that no acknowledgement explains must be of records that were sent in transactions and got no
        answer."""
        strange = [offset for offset in holes if (topic, partition, offset) not in self._promised]
        possible = sum(
            sent.topic == topic
            and (
                not sent.partitions or partition in sent.partitions
            )  # none: its key decides, and no answer came
            and sent.outcome == "unknown"
            and sent.digest not in self.seen
            for sent in self.sent.values()
            if sent.fate in ("aborted", "undecided")
        )
        if len(strange) > possible:
            yield Violation(
                "H5",
                f"{topic}:{partition}",
                f"{len(strange)} offsets are empty ({strange[0]} for one) and at most {possible} can "
                "be of open ends",
            )

    def order(self) -> Iterator[Violation]:
        """H6, of the records that are where they were acknowledged, or where they were sent if no answer
        came."""
        for (topic, partition), rows in self.rows.items():
            newest: dict[str, Sent] = {}
            for row in sorted(rows, key=lambda row: row.offset):
                sent, place = self.by_digest.get(row.digest), (topic, partition, row.offset)
                if sent is None or not self._sent_to(topic, partition, row.digest):
                    continue
                if self.seen[row.digest][0] != place or (sent.places and place not in sent.places):
                    continue
                if sent.first is None or sent.last is None:
                    continue
                before = newest.get(sent.sender)
                if before is not None and sent.last < (before.first or 0):
                    yield Violation("H6", _text(place), f"{sent} comes after {before}")
                elif before is None or sent.first > (before.first or 0):
                    newest[sent.sender] = sent

    def tables(self) -> Iterator[Violation]:
        """H8."""
        for topic, table in self.history.tables.items():
            expected = {
                (row.partition, row.offset): row
                for row in self.history.consumed.get(topic, ())
                if row.offset < table.watermarks.get(row.partition, 0)
            }
            seen: set[tuple[int, int]] = set()
            for row in table.rows:
                key = (row.partition, row.offset)
                if key in seen:
                    yield Violation("H8", _text((topic, *key)), "twice in the table")
                elif key not in expected:
                    yield Violation(
                        "H8",
                        _text((topic, *key)),
                        f"in the table, with watermark {table.watermarks.get(row.partition, 0)}",
                    )
                elif row != expected[key]:
                    yield Violation(
                        "H8", _text((topic, *key)), f"the table has {row}, consume {expected[key]}"
                    )
                seen.add(key)
            for key in sorted(set(expected) - seen):
                yield Violation("H8", _text((topic, *key)), "not in the table, though below the watermark")

    def mirrors(self) -> Iterator[Violation]:
        """H15."""
        for topic, mirror in self.history.mirrors.items():
            upstream = {(row.partition, row.offset): row.digest for row in mirror.upstream}
            here = {(row.partition, row.offset): row for row in mirror.consumed}
            yield from _mirrored(topic, "stream", mirror.consumed, upstream)
            yield from _mirrored(topic, "table", mirror.table.rows, upstream)
            for row in mirror.table.rows:
                key = (row.partition, row.offset)
                if key in here and here[key].digest == row.digest and here[key] != row:
                    yield Violation("H15", _text((topic, *key)), f"the table has {row}, consume {here[key]}")

    def fetched(self) -> Iterator[Violation]:
        """H16, H17."""
        for reader, fetched in self.history.fetched.items():
            for topic, rows in fetched.rows.items():
                for partition in {row.partition for row in rows}:
                    got = [row for row in rows if row.partition == partition]
                    end = max(fetched.ends.get((topic, partition), 0), got[-1].offset + 1)
                    open_too = fetched.isolation == "uncommitted"
                    yield from self._followed(reader, topic, partition, got, end, open_too)

    def _followed(
        self, reader: str, topic: str, partition: int, got: Sequence[Row], end: int, open_too: bool
    ) -> Iterator[Violation]:
        there = {row.offset: row.digest for row in self.rows.get((topic, partition), ())}
        newest = -1
        for row in got:
            place = _text((topic, partition, row.offset))
            if row.offset <= newest:
                yield Violation("H16", place, f"{reader} got it after offset {newest}")
            elif there.get(row.offset) != row.digest and not (
                open_too and row.offset not in there and self._uncommitted_at(topic, partition, row)
            ):
                has = there.get(row.offset, "nothing")
                yield Violation("H17", place, f"{reader} got {row.digest}, consume has {has}")
            newest = max(newest, row.offset)
        for offset in sorted(there.keys() - {row.offset for row in got}):
            if offset < end:
                yield Violation("H16", _text((topic, partition, offset)), f"{reader} did not get it")

    def _uncommitted_at(self, topic: str, partition: int, row: Row) -> bool:
        """Whether the log may have this record of a transaction there, and no reader of committed records gets it."""
        sent = self.by_digest.get(row.digest)
        if sent is None or sent.fate not in ("aborted", "undecided"):
            return False
        place = (topic, partition, row.offset)
        return self._sent_to(topic, partition, row.digest) and (not sent.places or place in sent.places)

    def early(self) -> Iterator[Violation]:
        """H18, of the records that are there."""
        for reader, fetched in self.history.fetched.items():
            for digest, first_s in fetched.first_s.items() if fetched.isolation == "committed" else ():
                sent = self.by_digest.get(digest)
                if sent is None or sent.transaction is None or digest not in self.seen:
                    continue
                known = self.history.transactions.get(sent.transaction)
                if known is not None and known.asked_s is not None and first_s < known.asked_s:
                    yield Violation(
                        "H18",
                        str(sent),
                        f"{reader} had it at {first_s} s, the commit was asked for at {known.asked_s} s",
                    )

    def fenced(self) -> Iterator[Violation]:
        """H19."""
        for name, transaction in self.history.transactions.items():
            if transaction.fenced and ("commit", "ok") in transaction.steps:
                yield Violation("H19", name, "its commit was acknowledged after a second producer was open")

    def groups(self) -> Iterator[Violation]:
        """H20, H21, H22, H23."""
        rows = {place: sorted(found, key=lambda row: row.offset) for place, found in self.rows.items()}
        for name, found in self.history.groups.items():
            reading = committed(found, self.history.transactions)
            for invariant, where, what in GroupCase(name, reading, rows).broken():
                yield Violation(invariant, where, what)
            if is_loop(found):
                outputs = [
                    (self.seen[sent.digest][0], sent.source)
                    for sent in self.sent.values()
                    if sent.source is not None and sent.digest in self.seen
                ]
                for where, what in loop_broken(reading, rows, outputs, self._explained):
                    yield Violation("H23", where, what)

    def _explained(self, digest: str) -> bool:
        """Whether another invariant says that this record should not be there."""
        sent = self.by_digest.get(digest)
        return sent is None or sent.fate == "aborted"

    def counts(self) -> dict[str, Any]:
        """How much the verdict rests on."""
        newest = {(attempt.sender, attempt.number): attempt for attempt in self.history.attempts}
        numbered = {key: attempt for key, attempt in newest.items() if attempt.sequence is not None}
        open_ends = [
            key
            for key, attempt in numbered.items()
            if attempt.transaction is None and self.sent[key].outcome == "unknown"
        ]
        return {
            "senders": sorted({sent.sender.partition("/")[0] for sent in self.sent.values()}),
            "records": len(self.sent),
            "attempts": len(self.history.attempts),
            "outcomes": dict(Counter(sent.outcome for sent in self.sent.values())),
            "transactions": dict(
                Counter(transaction.fate for transaction in self.history.transactions.values())
            ),
            "fenced": sum(transaction.fenced for transaction in self.history.transactions.values()),
            "sequenced": len(numbered),
            "files": len(self.history.dropped),
            "unsettled": len(open_ends),
            "repeated": len(self.history.attempts) - len(self.sent),
            "faults": dict(self.history.faults),
            "consumed": sum(map(len, self.history.consumed.values())),
            "table_rows": sum(len(table.rows) for table in self.history.tables.values()),
            "fetched": sum(
                len(rows) for fetched in self.history.fetched.values() for rows in fetched.rows.values()
            ),
            "groups": {
                name: {
                    "processed": len(reading.processed),
                    "written": sum(
                        attempt.source is not None and attempt.digest in self.seen
                        for attempt in (self.history.attempts if is_loop(reading) else ())
                    ),
                    "commits": len(reading.commits),
                    "acknowledged": sum(
                        one.answered_s is not None
                        for one in committed(reading, self.history.transactions).commits
                    ),
                    "assigned": len(reading.assigned),
                    "observed": len(reading.seen),
                }
                for name, reading in self.history.groups.items()
            },
            "mirrored": sum(len(mirror.upstream) for mirror in self.history.mirrors.values()),
        }


def _mirrored(
    topic: str, where: str, rows: Sequence[Row], upstream: Mapping[tuple[int, int], str]
) -> Iterator[Violation]:
    """H15 of one side: the records of the upstream in the order of their offsets, and nothing else."""
    newest: dict[int, Row] = {}
    seen: set[tuple[int, int]] = set()
    for row in rows:
        key, before = (row.partition, row.offset), newest.get(row.partition)
        if key in seen:
            yield Violation("H15", _text((topic, *key)), f"twice in the {where}")
        elif key not in upstream:
            yield Violation("H15", _text((topic, *key)), f"in the {where}, and no committed record upstream")
        elif row.digest != upstream[key]:
            yield Violation(
                "H15", _text((topic, *key)), f"the {where} has {row.digest}, upstream {upstream[key]}"
            )
        if before is not None and row.offset > before.offset and row.ingest_us < before.ingest_us:
            yield Violation(
                "H15",
                _text((topic, *key)),
                f"ingest time {row.ingest_us} after {before.ingest_us} in the {where}",
            )
        if before is not None and row.offset < before.offset:
            yield Violation("H15", _text((topic, *key)), f"after offset {before.offset} in the {where}")
        newest[row.partition] = row
        seen.add(key)
    for key in sorted(upstream.keys() - seen):
        yield Violation("H15", _text((topic, *key)), f"not in the {where}, and committed upstream")


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}:{place[2]}"
