"""One Kafka source: find the mirrored topics, read them, and ingest each record once.

The position of every partition is the one in the log (`intake.log.source_positions`), not that of the cluster
or this process. A piece and the positions after it are in the same log entry. After anything but a plain
success, all partitions are read again from the log's positions. Before a piece is published, the topics are
described again, so no record of a recreated topic counts for its predecessor. A finding stops one topic or
partition, and no other.

The class has no thread (`intake.sources.kafka.pump` has); every wait is bounded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from archiver.config.groups import IntakeSettings
from archiver.config.kafka import KafkaSourceSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, InvalidInput, NotFound
from archiver.runtime.ids import TopicPartition
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from intake.log.fold import TopicState, mirror_source
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Begun, Move, Positions
from intake.sources.kafka.batch import POSITION_BYTES, Cursor, MirrorPiece
from intake.sources.kafka.upstream import Place, Polled, Upstream, UpstreamTopic
from intake.sources.kafka.upstream_changes import (
    WITHOUT_ID,
    GoOn,
    MirrorFinding,
    MirrorState,
    fits,
    identity_of,
    judge_partition,
    judge_topic,
)
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter

# --- where partitions begin


@dataclass(frozen=True, slots=True)
class _Followed:
    """The note in the log that a source's `from` was applied."""

    item: str

    def move(self, source: str, seen: int) -> Move:
        """The position that stores the note; it does not move."""
        return Move(source_note(source), self.item, 0, 0, False, b"", seen, 0)


# Stored in the log: a restart must not apply `from` a second time.
FOLLOWED = _Followed("from")


def source_note(source: str) -> str:
    """The log's name of a configured Kafka source; its mirrored topics have their own names."""
    return f"kafka-source:{source}"


def has_begun(positions: Positions, source: str) -> bool:
    """Whether the `from` of the source was applied."""
    return FOLLOWED.item in positions.source(source_note(source)).begun


def begin(
    fresh: Mapping[Place, tuple[TopicState, bytes]],
    upstream: Upstream,
    sequencer: Sequencer,
    beginning: str,
    since_ms: int | None,
) -> None:
    """Store the start offsets of these partitions, for local topics with those upstream identities.

    If another process was faster, its offsets apply. Partitions that the cluster does not report yet, and
    those in one entry with a lost race, are left for the next inspection.
    """
    starts = _starts(fresh, upstream, beginning, since_ms)
    places = sorted(starts)
    # Half of the entry is left as a margin for its other fields.
    per_entry = max(1, sequencer.entry_bytes_max // (2 * POSITION_BYTES))
    for first in range(0, len(places), per_entry):
        seen = sequencer.fold.next_index
        moves = [
            Move(
                mirror_source(fresh[place][0].topic_id),
                str(place[1]),
                0,
                starts[place],
                False,
                fresh[place][1],
                seen,
                0,
            )
            for place in places[first : first + per_entry]
        ]
        # If another process was faster, its start offsets are in the log, and this entry is dropped.
        sequencer.append_moves(moves, is_needed=partial(_is_unbegun, sequencer, moves))


def _is_unbegun(sequencer: Sequencer, moves: Sequence[Move]) -> bool:
    """Whether no partition has a position yet. The log alone cannot reject a second start after one at 0,
    because both positions are 0.
    """
    return all(sequencer.fold.positions.get(move.source, move.item) is None for move in moves)


def _starts(
    fresh: Mapping[Place, object], upstream: Upstream, beginning: str, since_ms: int | None
) -> dict[Place, int]:
    bounds = upstream.bounds(list(fresh))
    if beginning == "earliest":
        return {place: one.low for place, one in bounds.items()}
    if beginning == "latest" or since_ms is None:
        return {place: one.high for place, one in bounds.items()}
    # -1 is a definite reply: no record is new enough, so the partition starts at its end.
    since = upstream.offsets_since(list(bounds), since_ms)
    # A partition without a reply waits: starting it at its end would skip records that are new enough.
    return {
        place: since[place] if since[place] >= 0 else one.high
        for place, one in bounds.items()
        if place in since
    }


# --- outages

BACK_AFTER_S = 5.0
"""Seconds without a failure after which an outage counts as over."""
REASONS_MAX = 8
"""Different reasons to log within one outage; further ones appear in the source's state and at DEBUG only."""
# Texts of the library differ in durations and counters; without numbers they are one reason.
_NUMBER = re.compile(r"\d+")


class Outage:
    """The outages of one source."""

    def __init__(self, source: str, clock: Clock, log: logging.Logger) -> None:
        self._source = source
        self._clock = clock
        self._log = log
        self._since_s: float | None = None
        self._failed_s = 0.0
        self._reasons: set[str] = set()

    def failed(self, why: str) -> None:
        """Record a failed attempt."""
        now_s = self._clock.monotonic_s()
        self._failed_s = now_s
        if self._since_s is None:
            self._since_s = now_s
            self._reasons.clear()
        reason = _NUMBER.sub("#", why)
        is_news = reason not in self._reasons and len(self._reasons) < REASONS_MAX
        if is_news:
            self._reasons.add(reason)
        self._log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "source %s: nothing is ingested: %s",
            self._source,
            why,
        )

    def worked(self) -> None:
        """Record a successful attempt."""
        if self._since_s is None:
            return
        now_s = self._clock.monotonic_s()
        # A connection that works for a moment between failures is no recovery.
        if now_s - self._failed_s >= BACK_AFTER_S:
            self._log.warning(
                "source %s: works again after %.0f s", self._source, self._failed_s - self._since_s
            )
            self._since_s = None


# --- the source

POLL_RECORDS_MAX = 10_000
"""Records of one poll; they are in memory in addition to the piece."""
POLL_WAIT_S = 0.1
"""Longest wait of one poll for records; it bounds the time of a stop."""
CATCHING_UP = 5
"""While there is a backlog, a piece may wait this many times `delay_max`: fewer and larger files catch up
sooner."""
STATE_EVERY_S = 1.0
FINDINGS_SHOWN_MAX = 100
LOGGED_MAX = 50
"""Findings of one inspection to log one by one."""
DAMAGED = (
    "it is damaged in the cluster; give the partition a leader with an intact copy, or delete it there, "
    "declare it in the source's lost, and restart"
)
RACES_APART_S = 3600.0
"""Seconds between INFO lines about lost races: two daemons with one source lose races all the time."""

INSPECT_AGAIN_S = 1.0
"""Seconds until the next inspection when a partition stopped, or a reply is missing or unconfirmed. The time
doubles for missing or unconfirmed replies."""
NOT_REPORTED = (
    "has no offsets that the cluster reports now, perhaps because it has no leader; it is asked again"
)
UNCONFIRMED = (
    "has bounds in the cluster that do not fit what was ingested; it is asked again before anything is "
    "concluded"
)

REFUSED_MAX = 1000
ASKED_AGAIN = frozenset({NOT_REPORTED, UNCONFIRMED, WITHOUT_ID})
"""Reasons that a later reply resolves."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Inspection:
    """The result of one inspection."""

    findings: dict[Place | str, MirrorFinding] = field(default_factory=dict)
    ready: dict[Place, Cursor] = field(default_factory=dict)
    """Partitions that can be read from the log's position."""
    reads: dict[Place, tuple[int, int | None]] = field(default_factory=dict)
    """Start of reading per partition: after the last ingested record with its leader epoch, if the cluster
    still has that offset."""

    _refused: int = 0
    refused_more: int = 0
    """Number of refused topics beyond `REFUSED_MAX`, which are only counted."""

    def refuse(self, name: str, why: str) -> None:
        """Add a topic that cannot be mirrored; a cluster may have any number of them."""
        if self._refused < REFUSED_MAX:
            self._refused += 1
            self.findings[name] = MirrorFinding("refused", name, None, why)
        else:
            self.refused_more += 1

    def is_open(self) -> bool:
        """Whether a reply is missing or unconfirmed."""
        return any(one.why in ASKED_AGAIN for one in self.findings.values())


class InspectionPace:
    """When the next inspection is due, with backoff: an election ends soon, and a missing leader must not
    cost one each second.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._again_s = INSPECT_AGAIN_S

    def wait_s(self, inspection: Inspection) -> float:
        """Seconds until the next inspection."""
        if not inspection.is_open():
            self._again_s = INSPECT_AGAIN_S
            return self._interval_s
        wait_s = min(self._again_s, self._interval_s)
        # Backoff: a partition without a leader must not cost a request each second.
        self._again_s = 2 * wait_s
        return wait_s


class Confirmations:
    """Decisions that wait for a second reply that agrees. Bounded by the number of mirrored partitions."""

    def __init__(self) -> None:
        self._judged: dict[Place, tuple[str, int]] = {}
        self._truncated: dict[Place, int] = {}

    def confirmed(self, cursor: Cursor, verdict: GoOn | MirrorFinding) -> bool:
        """Whether the decision is confirmed. One that changes nothing always is, and clears earlier ones."""
        # Reading on from the position loses nothing, so it needs no second reply.
        if isinstance(verdict, GoOn) and verdict.offset == cursor.base:
            self._judged.pop(cursor.place, None)
            return True
        judged = (verdict.kind if isinstance(verdict, MirrorFinding) else "given up", cursor.base)
        before, self._judged[cursor.place] = self._judged.get(cursor.place), judged
        # A single reply may come from a broker with old metadata, so two must agree.
        return before == judged

    def truncation_confirmed(self, cursor: Cursor) -> bool:
        """Whether the client reported a truncation below this position before."""
        before, self._truncated[cursor.place] = self._truncated.get(cursor.place), cursor.base
        return before == cursor.base


class Mirror:
    """One source. One thread uses it; any thread may read `state`."""

    def __init__(
        self,
        settings: KafkaSourceSettings,
        pieces: IntakeSettings,
        sequencer: Sequencer,
        publisher: FlushWriter,
        accept_clock: AcceptClock,
        clock: Clock,
        connect: Callable[[], Upstream],
    ) -> None:
        """`connect` opens a connection; called again after each `give_up`."""
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
        self._sticky: dict[TopicPartition, MirrorFinding] = {}  # until the local topic is deleted
        self._first: frozenset[Place] | None = None
        self._findings: dict[Place | str, MirrorFinding] = {}
        self._refused_more = 0
        self._piece = self._new_piece()
        self._piece_since_s = 0.0
        self._is_behind = False
        self._pace = InspectionPace(settings.discover_interval)
        self._inspect_at_s: float | None = None
        self._confirmations = Confirmations()
        self._outage = Outage(settings.name, clock, _log)
        self._seen: set[Place] = set()
        """Partitions that this process has read before, also over another connection."""
        self._raced_s: float | None = None
        self._state_at_s = 0.0
        self.state = MirrorState(settings.name)
        """The state for status and metrics."""

    def step(self) -> None:
        """Inspect the cluster if due, poll once, and publish if due. After an `ArchiverError` call `give_up`,
        then retry later.
        """
        # A failed step drops the connection, so this may be a new one.
        upstream = self._upstream or self._connect()
        self._upstream = upstream
        for part in (self._inspect_if_due, self._read, self._publish_if_due, self._update_state):
            part(upstream)
            if self._upstream is not upstream:
                return  # the connection was closed: the next step opens a new one
        # Only after a whole step, because a cluster may answer one request and fail the next.
        self._outage.worked()

    def _inspect_if_due(self, upstream: Upstream) -> None:
        if self._inspect_at_s is not None and self._clock.monotonic_s() < self._inspect_at_s:
            return
        if self._piece.moved:
            self._publish(upstream)  # an inspection requires that everything read is in the log
        if self._upstream is upstream:
            self._inspect(upstream)

    def _publish_if_due(self, upstream: Upstream) -> None:
        if self._is_due():
            self._publish(upstream)

    def give_up(self, why: str) -> None:
        """Record that nothing can be ingested now, and drop everything that is not in the log."""
        why = excerpt(why, MESSAGE_MAX)
        self._outage.failed(why)
        self.state = replace(self.state, trouble=why, partitions=0)
        self.close()

    def close(self) -> None:
        """Close the connection. Records that are not in the log are read again."""
        upstream, self._upstream = self._upstream, None
        self._cursors.clear()
        self._read_topics.clear()
        self._proven.clear()
        self._piece = self._new_piece()
        self._inspect_at_s = None
        if upstream is not None:
            upstream.close()

    # --- inspection

    def _inspect(self, upstream: Upstream) -> None:
        """Inspect the cluster, compare it with the log, and read what can be read."""
        # An entry of unknown outcome may have moved positions.
        self._sequencer.resolve()
        names = {name for name in upstream.topics() if self._settings.matches(name)}
        described = upstream.describe(names)
        found = {name: topic for name, topic in described.items() if topic is not None}
        inspection = Inspection()
        topics = self._topics(found, inspection)
        # Before partitions are judged, so that one with such a finding is not asked for again.
        self._add_sticky(topics, inspection)
        if not self._followed():
            self._follow_beginning(upstream, topics, found, is_whole=len(found) == len(described))
        else:
            # Topics created after the first inspection begin at their first record, so that none of theirs is
            # missed.
            self._begin(upstream, topics, found, "earliest")
        self._add_missing(described, inspection)
        self._judge(upstream, topics, found, inspection)
        self._apply(upstream, inspection)
        self._inspect_at_s = self._clock.monotonic_s() + self._pace.wait_s(inspection)
        self.state = replace(
            self.state,
            topics=len({place[0] for place in self._cursors}),
            looked_us=self._clock.now_us(),
            trouble=None,
        )

    def _topics(self, found: Mapping[str, UpstreamTopic], inspection: Inspection) -> dict[str, TopicState]:
        """Our topics of those names, declared and grown; a topic that cannot be a mirror becomes a
        finding.
        """
        states: dict[str, TopicState] = {}
        room = self._settings.partitions_max
        # Topics that have begun come first, so that a new topic never takes their place.
        for name, topic in sorted(found.items(), key=lambda one: (not self._is_begun(one[0]), one[0])):
            room -= topic.partitions
            try:
                # Topics beyond the limit are refused one by one; the others are mirrored.
                if room < 0:
                    raise ConfigInvalid(
                        f"would be more than partitions_max = {self._settings.partitions_max} "
                        "partitions; raise it"
                    )
                states[name] = self._sequencer.declare_topic(name, topic.partitions, mirrored=True)
            except (ConfigInvalid, InvalidInput, NotFound) as error:
                inspection.refuse(name, str(error))
        return states

    def _is_begun(self, name: str) -> bool:
        state = self._sequencer.fold.topics_by_name.get(name)
        return state is not None and state.mirrored and bool(self._begun(state))

    def _add_sticky(self, topics: Mapping[str, TopicState], inspection: Inspection) -> None:
        """Add the findings that last until the local topic is deleted."""
        self._sticky = {
            tp: one for tp, one in self._sticky.items() if tp[0] in self._sequencer.fold.topics_by_id
        }
        for (topic_id, partition), finding in self._sticky.items():
            state = topics.get(finding.topic)
            if state is not None and state.topic_id == topic_id:
                inspection.findings[finding.topic, partition] = finding

    def _followed(self) -> bool:
        """Whether `from` was applied, which happens once."""
        return has_begun(self._sequencer.fold.positions, self._settings.name)

    def _follow_beginning(
        self,
        upstream: Upstream,
        topics: Mapping[str, TopicState],
        found: Mapping[str, UpstreamTopic],
        *,
        is_whole: bool,
    ) -> None:
        """Apply `from` to the partitions of this process's first inspection, and record in the log when all
        are done.

        `is_whole`: the cluster described every topic.
        """
        places = frozenset(
            (name, partition) for name in topics for partition in range(found[name].partitions)
        )
        # A topic that was not described may have existed, so `from` would still apply to it.
        if self._first is None and is_whole:
            self._first = places
        first = places if self._first is None else self._first
        is_done = self._begin(upstream, topics, found, self._settings.beginning, first)
        # Partitions that appeared since the first inspection are new.
        self._begin(upstream, topics, found, "earliest", places - first)
        # Noted last: after a crash before it, partitions without a position still begin by `from`.
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
        """Store the beginning of partitions without a position; whether all of them have one now."""
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

    def _add_missing(self, found: Mapping[str, UpstreamTopic | None], inspection: Inspection) -> None:
        """Add findings for mirrored topics that are missing in the cluster or not described."""
        for name in [name for name, topic in found.items() if topic is None]:
            inspection.findings[name] = MirrorFinding(
                "unreadable", name, None, "is not described by the cluster now; it is asked again"
            )
        for name, state in self._sequencer.fold.topics_by_name.items():
            # A topic without a position was never mirrored here, so its absence is no finding.
            if state.mirrored and name not in found and self._settings.matches(name) and self._begun(state):
                finding = judge_topic(name, None, {})
                assert finding is not None, "a topic that is not there is a finding"
                inspection.findings[name] = finding

    def _judge(
        self,
        upstream: Upstream,
        topics: Mapping[str, TopicState],
        found: Mapping[str, UpstreamTopic],
        inspection: Inspection,
    ) -> None:
        """Decide for each partition whether it can be read, or which finding stops it."""
        asked: dict[Place, Cursor] = {}
        for name, state in topics.items():
            begun = self._begun(state)
            finding = judge_topic(name, found[name], begun)
            if finding is not None:
                inspection.findings[name] = finding
                continue
            for partition in set(range(found[name].partitions)) - begun.keys():
                inspection.findings[name, partition] = MirrorFinding(
                    "unreadable", name, partition, NOT_REPORTED
                )
            for partition, one in begun.items():
                place = (name, partition)
                if place not in inspection.findings and partition < found[name].partitions:
                    known = self._cursors.get(place)
                    asked[place] = Cursor(place, state, one.identity, one.end, one.end, one.count)
                    # The same position: reading goes on without an interruption.
                    if known is not None and known.is_where(asked[place]):
                        # The topic may have grown. No unpublished record depends on the old state, see
                        # `_inspect_if_due`.
                        known.topic = state
                        asked[place] = known
        # One request for all partitions: each reply costs a round trip.
        bounds = upstream.bounds(asked)
        for place, cursor in asked.items():
            if place not in bounds:
                inspection.findings[place] = MirrorFinding("unreadable", *place, NOT_REPORTED)
                continue
            verdict = judge_partition(
                *place, cursor.base, bounds[place], self._settings.lost.get(f"{place[0]}:{place[1]}")
            )
            if not self._confirmations.confirmed(cursor, verdict):
                inspection.findings[place] = MirrorFinding("unreadable", *place, UNCONFIRMED)
            elif isinstance(verdict, GoOn):
                inspection.ready[place] = ready = self._after_lost(cursor, verdict.offset)
                # Between the last record and the position are only markers, perhaps of a later epoch. The
                # leader epoch is a proof only right after the record.
                behind = self._sequencer.fold.next_offset((ready.topic.topic_id, place[1]))
                proves = ready.epoch > 0 and behind >= bounds[place].low
                inspection.reads[place] = (behind, ready.epoch - 1) if proves else (ready.end, None)
                if ready is not self._cursors.get(place):
                    ready.read_from = inspection.reads[place][0]
            else:
                inspection.findings[place] = verdict

    def _after_lost(self, cursor: Cursor, offset: int) -> Cursor:
        """The cursor after records that were declared lost, if there are any."""
        if offset == cursor.base:
            return cursor
        given_up = replace(cursor, end=offset, epoch=0)
        _log.warning(
            "source %s: %s:%d continues at offset %d, as configured in lost",
            self._settings.name,
            *cursor.place,
            offset,
        )
        # The position must be in the log before records behind it are read.
        self._sequencer.append_moves([given_up.move(self._sequencer.fold.next_index)])
        return replace(given_up, base=offset)

    def _apply(self, upstream: Upstream, inspection: Inspection) -> None:
        """Read exactly the partitions that can be read, and log new findings."""
        news = [finding for key, finding in inspection.findings.items() if self._findings.get(key) != finding]
        for finding in news[:LOGGED_MAX]:
            level = logging.WARNING if finding.why in ASKED_AGAIN else logging.ERROR
            _log.log(
                level, "source %s: %s: %s: %s", self._settings.name, finding.where, finding.kind, finding.why
            )
        if len(news) > LOGGED_MAX:
            _log.error("source %s: %s more", self._settings.name, counted(len(news) - LOGGED_MAX, "finding"))
        self._findings, self._refused_more = inspection.findings, inspection.refused_more
        leaving = [
            place for place, cursor in self._cursors.items() if inspection.ready.get(place) is not cursor
        ]
        if leaving:
            upstream.stop_reading(leaving)
            for place in leaving:
                del self._cursors[place]
        coming = {place: cursor for place, cursor in inspection.ready.items() if place not in self._cursors}
        if any(cursor.epoch and place[0] in self._read_topics for place, cursor in coming.items()):
            # The library compares leader epochs only when a connection first learns of a topic
            # (`KafkaClient.topics`).
            self.close()
            return
        if coming:
            upstream.read({place: inspection.reads[place] for place in coming})
            self._cursors |= coming
            self._read_topics |= {topic for topic, _ in coming}
            new = coming.keys() - self._seen
            self._seen |= new
            if new:  # others are read again after a lost race or a reconnect, which is not worth a line
                _log.info("source %s: %s more", self._settings.name, counted(len(new), "partition"))

    # --- reading

    def _read(self, upstream: Upstream) -> None:
        room = min(POLL_RECORDS_MAX, self._piece.records_max(len(self._cursors)))
        if not self._cursors or room < 1 or self._piece.raw_bytes >= self._pieces.delay_max_bytes:
            if not self._cursors:
                upstream.poll(1, POLL_WAIT_S)  # a poll delivers the client's callbacks
            return
        # The delay of a piece counts from its first record.
        was_empty = not self._piece.moved
        # At most half of the delay, so that a piece is not published late because of a wait.
        polled = upstream.poll(room, min(POLL_WAIT_S, max(0.001, self._pieces.delay_max / 2)))
        self._is_behind = polled.more
        if polled.batches or polled.rows or polled.offsets or polled.ends:
            accept_us = self._accept_clock.accept_us(self._sequencer.fold.newest_us)
            for one in self._piece.add(polled, self._cursors, accept_us):
                why = f"the record at offset {one.offset} {one.why}"
                self._stop_for_good(upstream, MirrorFinding(one.kind, *one.place, why), one.place)
        if was_empty and self._piece.moved:
            self._piece_since_s = self._clock.monotonic_s()
        # The client has read on here, so the cluster has accepted the position of these partitions.
        self._proven.update(polled.epochs, polled.ends)
        self._handle_stopped(upstream, polled)

    def _handle_stopped(self, upstream: Upstream, polled: Polled) -> None:
        """Handle partitions that the client cannot read on; the next inspection finds the reason."""
        for one in polled.stopped:
            # Stopped already in this step.
            if one.place not in self._cursors:
                continue
            cursor = self._cursors[one.place]
            if one.trouble == "truncated" and (
                one.place in self._proven or not self._confirmations.truncation_confirmed(cursor)
            ):
                _log.warning(
                    "source %s: %s:%d is read again from the log's position: %s",
                    self._settings.name,
                    *one.place,
                    one.why,
                )
                # Markers of another epoch or a late reply may have misled the client: only the last record is
                # a proof.
                self.close()
                return
            if one.trouble == "truncated":
                why = (
                    f"what was read is not in the cluster any more ({one.why}); delete the topic here and "
                    "mirror it again"
                )
                self._stop_for_good(upstream, MirrorFinding("diverged", *one.place, why), one.place)
            # Not retried: it stays damaged, and librdkafka may abort the process over it (an assertion in
            # rdbuf.c).
            elif one.trouble == "damaged":
                self._stop_for_good(
                    upstream, MirrorFinding("unreadable", *one.place, f"{one.why}; {DAMAGED}"), one.place
                )
            elif one.trouble == "other":
                self._stop(
                    upstream,
                    one.place,
                    MirrorFinding("unreadable", *one.place, f"{one.why}; it is retried"),
                )
            else:
                _log.warning("source %s: %s:%d is not read on: %s", self._settings.name, *one.place, one.why)
                self._stop(upstream, one.place, None)
                if self._inspect_at_s is not None:
                    self._inspect_at_s = min(self._inspect_at_s, self._clock.monotonic_s() + INSPECT_AGAIN_S)

    def _stop_for_good(self, upstream: Upstream, finding: MirrorFinding, place: Place) -> None:
        """Stop reading a partition until the local topic is deleted."""
        self._sticky[self._cursors[place].topic.topic_id, place[1]] = finding
        self._stop(upstream, place, finding)

    def _stop(self, upstream: Upstream, place: Place, finding: MirrorFinding | None) -> None:
        """Stop reading a partition; records read before stay valid."""
        if finding is not None:
            _log.error("source %s: %s: %s: %s", self._settings.name, finding.where, finding.kind, finding.why)
            self._findings = {**self._findings, place: finding}
        upstream.stop_reading([place])
        self._cursors.pop(place, None)

    # --- publishing

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
        """Append the piece; after anything but success, continue from the log's positions."""
        # Replaced first: if sending raises, `give_up` reads these records again from the log.
        piece, self._piece = self._piece, self._new_piece()
        # A recreated topic has other records at the same offsets, and none may count for its predecessor.
        if not self._is_same(upstream, piece):
            self._rewind()
            return
        moves = piece.moves(self._sequencer.fold.next_index)
        refusal = self._send(piece, moves)
        if refusal is not None:
            self._log_race(refusal)
            self._rewind()
            return
        for cursor in piece.moved.values():
            # Only after the entry counts: `base` is the position in the log.
            cursor.base = cursor.end
        self.state = replace(
            self.state, records=self.state.records + piece.rows, bytes=self.state.bytes + piece.raw_bytes
        )

    def _log_race(self, refusal: str) -> None:
        now_s = self._clock.monotonic_s()
        is_first = self._raced_s is None or now_s - self._raced_s >= RACES_APART_S
        self._raced_s = now_s
        text = (
            "source %s: another process ingests the same topics and was faster (%s); continuing from "
            "the log's positions"
        )
        _log.log(logging.INFO if is_first else logging.DEBUG, text, self._settings.name, refusal)

    def _send(self, piece: MirrorPiece, moves: list[Move]) -> str | None:
        if piece.items:
            return self._publisher.publish_moving(piece.items, moves)
        return self._sequencer.append_moves(moves)

    def _is_same(self, upstream: Upstream, piece: MirrorPiece) -> bool:
        """Whether the topics are those of the positions. Described after the last record was read, so the
        records are of those topics.
        """
        now = upstream.describe({place[0] for place in piece.moved})
        for place, cursor in piece.moved.items():
            topic = now.get(place[0])
            if topic is None or not fits(cursor.identity, topic):
                return False
        return True

    def _rewind(self) -> None:
        """Continue every partition from the log's position."""
        # Records that were fetched and are not in the log are dropped with the connection.
        self.close()
        self._sequencer.resolve()

    def _new_piece(self) -> MirrorPiece:
        return MirrorPiece(self._sequencer.entry_bytes_max, self._pieces.record_bytes_max)

    def _update_state(self, upstream: Upstream) -> None:
        """Update `state` from local knowledge, every `STATE_EVERY_S`."""
        now_s = self._clock.monotonic_s()
        if (
            now_s - self._state_at_s < STATE_EVERY_S
            and self.state.stopped == len(self._findings) + self._refused_more
        ):
            return
        self._state_at_s = now_s
        # From the last fetch replies, because the state must not cost a request.
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
