"""One Kafka source: finds the topics that are mirrored, reads them, and takes in what was read, each record
once.

Owns the order of steps. The position of every partition is what the log says (`intake.log.source_positions`),
not what the cluster or this process remembers: a piece is published with the positions behind it in the same
entry, and after anything but a plain success all partitions are read on from where the log says they stand.
Before a piece is published the cluster is asked once more which topics these are, so that no record of a
topic that was made anew is taken for one of its predecessor. What stops a topic or a partition is a finding,
and stops no other.

Has no thread (`intake.sources.kafka.pump` has); nothing in it waits without a bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, InvalidInput, NotFound, RecordRefused, RetryLater
from archiver.runtime.ids import TopicPartition
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from intake.log.fold import TopicState, mirror_source
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Begun, Move
from intake.sources.kafka.batch import Cursor, MirrorPiece
from intake.sources.kafka.poll import (
    ASKED_AGAIN,
    LOOK_AGAIN_S,
    NOT_TOLD,
    UNCONFIRMED,
    Look,
    LookPace,
    SecondAnswers,
)
from intake.sources.kafka.start_offsets import FOLLOWED, begin, has_begun
from intake.sources.kafka.state import MirrorState
from intake.sources.kafka.upstream import Place, Polled, Upstream, UpstreamTopic
from intake.sources.kafka.upstream_changes import (
    GoOn,
    MirrorFinding,
    fits,
    identity_of,
    judge_partition,
    judge_topic,
)
from intake.sources.outage import Outage
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter

POLL_RECORDS_MAX = 10_000
POLL_WAIT_S = 0.1
"""How long one poll waits for records: it bounds how long stopping takes."""
CATCHING_UP = 5
"""While polls leave more behind, a piece may wait so many times `delay_max`: fewer and larger files, sooner
level."""
STATE_EVERY_S = 1.0
FINDINGS_SHOWN_MAX = 100
LOGGED_MAX = 50
"""Findings of one look that are logged one by one."""
DAMAGED = (
    "it is damaged there; give the partition a leader that has it whole, or delete it and give it up by "
    "the source's lost, and restart"
)
RACES_APART_S = 3600.0
"""Another process that is faster is logged at INFO if none was for so long: two daemons with one source lose
races all the time."""

_log = logging.getLogger(__name__)


class MirrorSettings(Protocol):
    """What a mirror needs of its source's settings; durations in seconds."""

    @property
    def name(self) -> str:
        """Of the source."""

    @property
    def beginning(self) -> str:
        """`earliest`, `latest` or a time."""

    @property
    def since_ms(self) -> int | None:
        """The time, if it is one."""

    @property
    def discover_interval(self) -> float:
        """Time between two looks at what there is."""

    @property
    def partitions_max(self) -> int:
        """Partitions that are mirrored at most."""

    @property
    def lost(self) -> dict[str, int]:
        """Records that were given up: up to which offset, by TOPIC:PARTITION."""

    def matches(self, topic: str) -> bool:
        """Whether a topic is mirrored."""


class PieceSettings(Protocol):
    """What it needs of the `intake` settings; durations in seconds, sizes in bytes."""

    @property
    def delay_max(self) -> float:
        """How long a record may wait for company."""

    @property
    def delay_max_bytes(self) -> int:
        """Largest piece."""

    @property
    def record_bytes_max(self) -> int:
        """Weight of the largest record."""


class Mirror:
    """One source. One thread uses it; `state` may be read from anywhere."""

    def __init__(
        self,
        settings: MirrorSettings,
        pieces: PieceSettings,
        sequencer: Sequencer,
        publisher: FlushWriter,
        accept_clock: AcceptClock,
        clock: Clock,
        connect: Callable[[], Upstream],
    ) -> None:
        """`connect` makes the connection; called anew when it was given up."""
        self._settings = settings
        self._pieces = pieces
        self._sequencer = sequencer
        self._publisher = publisher
        self._accept_clock = accept_clock
        self._clock = clock
        self._connect = connect
        self._upstream: Upstream | None = None
        self._cursors: dict[Place, Cursor] = {}
        self._read_topics: set[str] = set()
        self._proven: set[Place] = set()
        self._sticky: dict[TopicPartition, MirrorFinding] = {}  # by our topic: it ends with it
        self._first: frozenset[Place] | None = None
        self._findings: dict[Place | str, MirrorFinding] = {}
        self._refused_more = 0
        self._piece = self._new_piece()
        self._piece_since_s = 0.0
        self._is_behind = False
        self._pace = LookPace(settings.discover_interval)
        self._look_at_s: float | None = None
        self._second_answers = SecondAnswers()
        self._outage = Outage(settings.name, clock, _log)
        self._seen: set[Place] = set()
        """Partitions that this process has read before, perhaps over another connection."""
        self._raced_s: float | None = None
        self._told_s = 0.0
        self.state = MirrorState(settings.name)
        """What is known of it."""

    def step(self) -> None:
        """Look if it is time to, read a little, and publish what is due. Raises errors of ours: then
        `give_up`, and later this again.
        """
        upstream = self._upstream or self._connect()
        self._upstream = upstream
        for part in (self._look_if_due, self._read, self._publish_if_due, self._tell):
            part(upstream)
            if self._upstream is not upstream:
                return  # let go of: the next step begins with a new connection
        self._outage.worked()

    def _look_if_due(self, upstream: Upstream) -> None:
        if self._look_at_s is not None and self._clock.monotonic_s() < self._look_at_s:
            return
        if self._piece.moved:
            self._publish(
                upstream
            )  # a look begins with nothing in hand: what is read and what is in the log is the same
        if self._upstream is upstream:
            self._look(upstream)

    def _publish_if_due(self, upstream: Upstream) -> None:
        if self._is_due():
            self._publish(upstream)

    def give_up(self, why: str) -> None:
        """Nothing can be taken in now: let go of everything that is not in the log."""
        why = excerpt(why, MESSAGE_MAX)
        self._outage.failed(why)
        self.state = replace(self.state, trouble=why, partitions=0)
        self.close()

    def close(self) -> None:
        """Let go of the cluster. What was read and is not in the log is read again."""
        upstream, self._upstream = self._upstream, None
        self._cursors.clear()
        self._read_topics.clear()
        self._proven.clear()
        self._piece = self._new_piece()
        self._look_at_s = None
        if upstream is not None:
            upstream.close()

    # looking

    def _look(self, upstream: Upstream) -> None:
        """Ask the cluster what there is, compare it with the log, and read what can be read."""
        self._sequencer.resolve()
        names = {name for name in upstream.topics() if self._settings.matches(name)}
        described = upstream.describe(names)
        found = {name: topic for name, topic in described.items() if topic is not None}
        look = Look()
        topics = self._topics(found, look)
        self._add_sticky(topics, look)
        if not self._followed():
            self._follow_beginning(upstream, topics, found, is_whole=len(found) == len(described))
        else:
            self._begin(upstream, topics, found, "earliest")
        self._add_missing(described, look)
        self._judge(upstream, topics, found, look)
        self._adopt(upstream, look)
        self._look_at_s = self._clock.monotonic_s() + self._pace.wait_s(look)
        self.state = replace(
            self.state,
            topics=len({place[0] for place in self._cursors}),
            looked_us=self._clock.now_us(),
            trouble=None,
        )

    def _topics(self, found: Mapping[str, UpstreamTopic], look: Look) -> dict[str, TopicState]:
        """Our topics of those names, declared and grown; those that cannot be mirrors are findings."""
        states: dict[str, TopicState] = {}
        room = self._settings.partitions_max
        for name, topic in sorted(
            found.items(), key=lambda one: (not self._is_begun(one[0]), one[0])
        ):  # what came first stays
            room -= topic.partitions
            try:
                if room < 0:
                    raise ConfigInvalid(
                        f"would be more than partitions_max = {self._settings.partitions_max} "
                        "partitions; raise it"
                    )
                states[name] = self._sequencer.declare_topic(name, topic.partitions, mirrored=True)
            except (ConfigInvalid, InvalidInput, NotFound) as error:
                look.refuse(name, str(error))
        return states

    def _is_begun(self, name: str) -> bool:
        state = self._sequencer.fold.topics_by_name.get(name)
        return state is not None and state.mirrored and bool(self._begun(state))

    def _add_sticky(self, topics: Mapping[str, TopicState], look: Look) -> None:
        """What was found and stays so as long as our topic is the same."""
        self._sticky = {
            tp: one for tp, one in self._sticky.items() if tp[0] in self._sequencer.fold.topics_by_id
        }
        for (topic_id, partition), finding in self._sticky.items():
            state = topics.get(finding.topic)
            if state is not None and state.topic_id == topic_id:
                look.findings[finding.topic, partition] = finding

    def _followed(self) -> bool:
        """Whether `from` was followed: that is done once."""
        return has_begun(self._sequencer.fold.positions, self._settings.name)

    def _follow_beginning(
        self,
        upstream: Upstream,
        topics: Mapping[str, TopicState],
        found: Mapping[str, UpstreamTopic],
        *,
        is_whole: bool,
    ) -> None:
        """Follow `from`, and note it as done once it is for all that there was when this process looked
        first. `is_whole`: the cluster told of every topic.
        """
        places = frozenset(
            (name, partition) for name in topics for partition in range(found[name].partitions)
        )
        if self._first is None and is_whole:
            self._first = places
        first = places if self._first is None else self._first
        is_done = self._begin(upstream, topics, found, self._settings.beginning, first)
        self._begin(upstream, topics, found, "earliest", places - first)
        if is_done and is_whole:
            self._sequencer.append_moves(
                [FOLLOWED.move(self._settings.name, self._sequencer.fold.next_index)]
            )

    def _begin(
        self,
        upstream: Upstream,
        topics: Mapping[str, TopicState],
        found: Mapping[str, UpstreamTopic],
        beginning: str,
        among: frozenset[Place] | None = None,
    ) -> bool:
        """Put down where the partitions (of these) begin of which nothing is in; whether all have a beginning
        now.
        """
        fresh: dict[Place, tuple[TopicState, bytes]] = {}
        for name, state in topics.items():
            begun = self._begun(state)
            for partition in range(found[name].partitions):
                if partition not in begun and (among is None or (name, partition) in among):
                    fresh[name, partition] = state, identity_of(found[name])
        if fresh:
            begin(fresh, upstream, self._sequencer, beginning, self._settings.since_ms)
        return all(place[1] in self._begun(state) for place, (state, _) in fresh.items())

    def _begun(self, state: TopicState) -> dict[int, Begun]:
        source = self._sequencer.fold.positions.source(mirror_source(state.topic_id))
        return {int(item): one for item, one in source.begun.items()}

    def _add_missing(self, found: Mapping[str, UpstreamTopic | None], look: Look) -> None:
        """Topics that were mirrored and are not in the cluster, and those that it does not tell of."""
        for name in [name for name, topic in found.items() if topic is None]:
            look.findings[name] = MirrorFinding(
                "unreadable", name, None, "is not described by the cluster now; it is asked again"
            )
        for name, state in self._sequencer.fold.topics_by_name.items():
            if state.mirrored and name not in found and self._settings.matches(name) and self._begun(state):
                finding = judge_topic(name, None, {})
                assert finding is not None, "a topic that is not there is a finding"
                look.findings[name] = finding

    def _judge(
        self,
        upstream: Upstream,
        topics: Mapping[str, TopicState],
        found: Mapping[str, UpstreamTopic],
        look: Look,
    ) -> None:
        """What can be read, and why the rest cannot."""
        asked: dict[Place, Cursor] = {}
        for name, state in topics.items():
            begun = self._begun(state)
            finding = judge_topic(name, found[name], begun)
            if finding is not None:
                look.findings[name] = finding
                continue
            for partition in set(range(found[name].partitions)) - begun.keys():
                look.findings[name, partition] = MirrorFinding("unreadable", name, partition, NOT_TOLD)
            for partition, one in begun.items():
                place = (name, partition)
                if place not in look.findings and partition < found[name].partitions:
                    known = self._cursors.get(place)
                    asked[place] = Cursor(place, state, one.identity, one.end, one.end, one.count)
                    if known is not None and known.is_where(asked[place]):
                        # which may have grown; nothing in hand was numbered by what it was, as a look begins
                        # with nothing
                        known.topic = state
                        asked[place] = known
        bounds = upstream.bounds(asked)
        for place, cursor in asked.items():
            if place not in bounds:
                look.findings[place] = MirrorFinding("unreadable", *place, NOT_TOLD)
                continue
            verdict = judge_partition(
                *place, cursor.base, bounds[place], self._settings.lost.get(f"{place[0]}:{place[1]}")
            )
            if not self._second_answers.confirmed(cursor, verdict):
                look.findings[place] = MirrorFinding("unreadable", *place, UNCONFIRMED)
            elif isinstance(verdict, GoOn):
                look.ready[place] = ready = self._gone_on(cursor, verdict.offset)
                # What lies between the last record and the position are markers, perhaps of a later epoch:
                # they prove nothing.
                behind = self._sequencer.fold.next_offset((ready.topic.topic_id, place[1]))
                proves = ready.epoch > 0 and behind >= bounds[place].low
                look.reads[place] = (behind, ready.epoch - 1) if proves else (ready.end, None)
                if ready is not self._cursors.get(place):
                    ready.read_from = look.reads[place][0]
            else:
                look.findings[place] = verdict

    def _gone_on(self, cursor: Cursor, offset: int) -> Cursor:
        """The cursor behind records that were given up, if any were."""
        if offset == cursor.base:
            return cursor
        given_up = replace(cursor, end=offset, epoch=0)
        _log.warning(
            "source %s: %s:%d goes on at offset %d, as lost says", self._settings.name, *cursor.place, offset
        )
        self._sequencer.append_moves([given_up.move(self._sequencer.fold.next_index)])
        return replace(given_up, base=offset)

    def _adopt(self, upstream: Upstream, look: Look) -> None:
        """Read what can be read, and nothing else."""
        news = [finding for key, finding in look.findings.items() if self._findings.get(key) != finding]
        for finding in news[:LOGGED_MAX]:
            level = logging.WARNING if finding.why in ASKED_AGAIN else logging.ERROR
            _log.log(
                level, "source %s: %s: %s: %s", self._settings.name, finding.where, finding.kind, finding.why
            )
        if len(news) > LOGGED_MAX:
            _log.error("source %s: %s more", self._settings.name, counted(len(news) - LOGGED_MAX, "finding"))
        self._findings, self._refused_more = look.findings, look.refused_more
        leaving = [place for place, cursor in self._cursors.items() if look.ready.get(place) is not cursor]
        if leaving:
            upstream.stop_reading(leaving)
            for place in leaving:
                del self._cursors[place]
        coming = {place: cursor for place, cursor in look.ready.items() if place not in self._cursors}
        if any(cursor.epoch and place[0] in self._read_topics for place, cursor in coming.items()):
            # Whether what was read is still there is only compared when a connection first hears of a topic
            # (`KafkaClient.topics`).
            self.close()
            return
        if coming:
            upstream.read({place: look.reads[place] for place in coming})
            self._cursors |= coming
            self._read_topics |= {topic for topic, _ in coming}
            new = coming.keys() - self._seen
            self._seen |= new
            if new:  # the others are read again after a lost race or a reconnect, which is no news
                _log.info("source %s: %s more", self._settings.name, counted(len(new), "partition"))

    # reading

    def _read(self, upstream: Upstream) -> None:
        room = min(POLL_RECORDS_MAX, self._piece.records_max(len(self._cursors)))
        if not self._cursors or room < 1 or self._piece.raw_bytes >= self._pieces.delay_max_bytes:
            if not self._cursors:
                upstream.poll(1, POLL_WAIT_S)  # what the client has to say is heard
            return
        was_empty = not self._piece.moved
        polled = upstream.poll(room, min(POLL_WAIT_S, max(0.001, self._pieces.delay_max / 2)))
        self._is_behind = polled.more
        if polled.offsets or polled.ends:
            accept_us = self._accept_clock.accept_us(self._sequencer.fold.newest_us)
            for one in self._piece.add(polled, self._cursors, accept_us):
                why = f"the record at offset {one.offset} {one.why}"
                self._stop_for_good(upstream, MirrorFinding(one.kind, *one.place, why), one.place)
        if was_empty and self._piece.moved:
            self._piece_since_s = self._clock.monotonic_s()
        self._proven.update(polled.epochs, polled.ends)
        self._hear(upstream, polled)

    def _hear(self, upstream: Upstream, polled: Polled) -> None:
        """Partitions that the client cannot read on: why, is what the next look finds."""
        for one in polled.stopped:
            if one.place not in self._cursors:
                continue
            cursor = self._cursors[one.place]
            if one.trouble == "truncated" and (
                one.place in self._proven or not self._second_answers.truncation_confirmed(cursor)
            ):
                _log.warning(
                    "source %s: %s:%d is read again from where the log stands: %s",
                    self._settings.name,
                    *one.place,
                    one.why,
                )
                # markers of another epoch, or a late answer, may have misled the client: the last record is
                # what proves it
                self.close()
                return
            if one.trouble == "truncated":
                why = (
                    f"what was read is not in the cluster any more ({one.why}); delete the topic here and "
                    "mirror it anew"
                )
                self._stop_for_good(upstream, MirrorFinding("diverged", *one.place, why), one.place)
            elif (
                one.trouble == "damaged"
            ):  # not again and again: the library may end the process over it (its assertion in rdbuf.c)
                self._stop_for_good(
                    upstream, MirrorFinding("unreadable", *one.place, f"{one.why}; {DAMAGED}"), one.place
                )
            elif one.trouble == "other":
                self._stop(
                    upstream,
                    one.place,
                    MirrorFinding("unreadable", *one.place, f"{one.why}; it is tried again"),
                )
            else:
                _log.warning("source %s: %s:%d is not read on: %s", self._settings.name, *one.place, one.why)
                self._stop(upstream, one.place, None)
                if self._look_at_s is not None:
                    self._look_at_s = min(self._look_at_s, self._clock.monotonic_s() + LOOK_AGAIN_S)

    def _stop_for_good(self, upstream: Upstream, finding: MirrorFinding, place: Place) -> None:
        """Read a partition no longer, as long as our topic is the one it is."""
        self._sticky[self._cursors[place].topic.topic_id, place[1]] = finding
        self._stop(upstream, place, finding)

    def _stop(self, upstream: Upstream, place: Place, finding: MirrorFinding | None) -> None:
        """Read a partition no longer; what was read of it before is good."""
        if finding is not None:
            _log.error("source %s: %s: %s: %s", self._settings.name, finding.where, finding.kind, finding.why)
            self._findings = {**self._findings, place: finding}
        upstream.stop_reading([place])
        self._cursors.pop(place, None)

    # publishing

    def _is_due(self) -> bool:
        if not self._piece.moved:
            return False
        full = (
            self._piece.records_max(len(self._cursors)) < 1
            or self._piece.raw_bytes >= self._pieces.delay_max_bytes
        )
        patience_s = self._pieces.delay_max * (CATCHING_UP if self._is_behind else 1)
        return full or self._clock.monotonic_s() - self._piece_since_s >= patience_s

    def _publish(self, upstream: Upstream) -> None:
        """Take in what was read; after anything but success, go on from where the log says."""
        piece, self._piece = self._piece, self._new_piece()
        if not self._is_same(upstream, piece):
            self._rewind()
            return
        moves = piece.moves(self._sequencer.fold.next_index)
        try:
            refusal = self._send(piece, moves)
        except RecordRefused as error:
            raise RetryLater(str(error)) from error
        if refusal is not None:
            self._log_race(refusal)
            self._rewind()
            return
        for cursor in piece.moved.values():
            cursor.base = cursor.end
        self.state = replace(
            self.state, records=self.state.records + piece.rows, bytes=self.state.bytes + piece.raw_bytes
        )

    def _log_race(self, refusal: str) -> None:
        now_s = self._clock.monotonic_s()
        is_first = self._raced_s is None or now_s - self._raced_s >= RACES_APART_S
        self._raced_s = now_s
        text = (
            "source %s: another process takes in the same topics and was faster (%s); reading on from "
            "where the log stands"
        )
        _log.log(logging.INFO if is_first else logging.DEBUG, text, self._settings.name, refusal)

    def _send(self, piece: MirrorPiece, moves: list[Move]) -> str | None:
        if piece.items:
            return self._publisher.publish_moving(piece.items, moves)
        return self._sequencer.append_moves(moves)

    def _is_same(self, upstream: Upstream, piece: MirrorPiece) -> bool:
        """Whether the topics are those that were begun. Asked after the last record was read, so what was
        read is of those.
        """
        now = upstream.describe({place[0] for place in piece.moved})
        for place, cursor in piece.moved.items():
            topic = now.get(place[0])
            if topic is None or not fits(cursor.identity, topic):
                return False
        return True

    def _rewind(self) -> None:
        """Read every partition on from where the log says it stands."""
        self.close()
        self._sequencer.resolve()

    def _new_piece(self) -> MirrorPiece:
        return MirrorPiece(self._sequencer.entry_bytes_max, self._pieces.record_bytes_max)

    def _tell(self, upstream: Upstream) -> None:
        """Put into `state` what is known without asking, once in a while."""
        now_s = self._clock.monotonic_s()
        if (
            now_s - self._told_s < STATE_EVERY_S
            and self.state.stopped == len(self._findings) + self._refused_more
        ):
            return
        self._told_s = now_s
        ends = upstream.known_ends(self._cursors)
        behind = sum(max(0, end - self._cursors[place].base) for place, end in ends.items())
        ordered = sorted(
            self._findings.values(),
            key=lambda one: (one.topic, -1 if one.partition is None else one.partition),
        )
        self.state = replace(
            self.state,
            partitions=len(self._cursors),
            behind=behind,
            findings=tuple(ordered[:FINDINGS_SHOWN_MAX]),
            stopped=len(self._findings) + self._refused_more,
        )
