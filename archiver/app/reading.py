"""Documents of the read API: topics, their messages and tables, and where each message is.

Each function reads, and changes nothing. Its work and its answer are bounded for any topic: what is left out
has a place to go on from.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from archiver.app.offset_targets import Target, parse_target, target_offsets
from archiver.app.reading_audit import Seen, audit_document
from archiver.app.reading_dead_letters import DeadLetters
from archiver.app.reading_groups import May, list_groups, one_group
from archiver.app.reading_schema import (
    SchemaTimes,
    plan_document,
    recorded_document,
    undecoded_document,
)
from archiver.app.reading_table import table_document, table_summary
from archiver.app.status_document import standing_of
from archiver.config.topics import TRIGGERS
from archiver.config.types import value_in_file
from archiver.objects.location import StorePlace
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, InvalidInput, RetryLater, no_partition, no_topic
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import format_time
from archiver.status.advice import Severity, advice, topic_attention
from archiver.status.explain import document_of
from archiver.status.group_members import GroupMembers, no_members
from archiver.status.history import LagHistory, last_lag
from archiver.status.journal import Journal
from archiver.status.lag import LagReport, TopicLag
from archiver.stream.decode import Decoder

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import Settings, TopicSettings
    from archiver.ledger.fold import LedgerFold
    from archiver.runtime.ids import TopicId
    from archiver.schema.protobuf.descriptors import Source
    from archiver.stream.records import StreamBatch, StreamRecord
    from archiver.stream.stream import RecordStream
    from intake.log.backlog import Backlog
    from intake.sources.files.source import FilesState
    from intake.sources.kafka.upstream_changes import MirrorState

RECORDS_MAX: Final = 500
"""Maximum of records of an answer."""
FIELD_BYTES_MAX: Final = 64 * 1024
"""Maximum of bytes of a key, value or header in a list of records; one record alone is whole."""
DECODED_BYTES_MAX: Final = 2**20
"""Maximum of bytes of a key or value that is decoded: its message can take far more memory."""
FIELD_BYTES_MAX_ALONE: Final = 8 * 2**20
ANSWER_BYTES_MAX: Final = 2 * 2**20
"""Bytes of keys, values, headers and decoded messages after which a list ends early."""
SCANNED_MAX: Final = 100_000
"""Maximum of records that a search for a key reads."""
SEARCH_S: Final = 5.0
"""Time after which a search for a key ends; it goes on from where it ended."""
SCHEMAS_KEPT_S: Final = 30.0
"""Time for which a topic's newest schema is not fetched again: a page reads it for every list of records."""
SCHEMAS_KEPT_MAX: Final = 1000
SUMMARIES_KEPT_S: Final = 10.0
"""Time for which the summary of a table is not read from its catalog again."""
LATEST_MEANS: Final = "latest (the newest records), end (after the last record)"
"""A list of records begins before the end, unlike a reader that waits for new ones."""
HEADERS_MAX: Final = 200
"""Maximum of headers shown of a record."""


class Reading:
    """Reads an opened deployment. Safe for several threads."""

    def __init__(
        self,
        application: Callable[[], Application | None],
        lag: Callable[[], LagReport | None],
        clock: Clock,
        journal: Journal,
        members: Callable[[], GroupMembers | None] = no_members,
        history: LagHistory | None = None,
        file_sources: Callable[[], Sequence[FilesState]] = tuple,
        mirrors: Callable[[], Sequence[MirrorState]] = tuple,
    ) -> None:
        """`application` is None while it is not open, and `lag` while nothing was polled. `members` is None
        without a Kafka listener, and `history` has the traffic of the topics.
        """
        self._file_sources = file_sources
        self._mirrors = mirrors
        self._history = history
        self._journal = journal
        self._members = members
        self._dead_letters = DeadLetters()
        self._application = application
        self._lag = lag
        self._clock = clock
        self._sources: dict[str, tuple[TopicSettings, float, tuple[Source | None, Source | None]]] = {}
        """By topic: the newest schemas of key and value for its settings, and until when they count."""
        self._schema_times = SchemaTimes(clock)
        self._summaries: dict[str, tuple[TopicSettings | None, float, dict[str, Any] | None]] = {}
        """By topic: the summary of its table for its settings, and until when it counts."""

    # --- Topics
    def topics(self) -> dict[str, Any]:
        """All topics, as of the newest poll."""
        report = self._polled()
        attention = self._attention(report)
        return {
            "as_of": format_time(report.now_us),
            "topics": [_summary(topic, attention) for topic in report.topics],
        }

    def topic(self, name: str) -> dict[str, Any]:
        """One topic: its partitions as of the newest poll, and its settings."""
        report, app = self._polled(), self._opened()
        topic = report.topic(name)
        if topic is None:
            raise no_topic(name, (one.topic for one in report.topics))
        settings = app.settings.topic(name)
        ledger = app.ledger().topic(topic.topic_id)
        return {
            "as_of": format_time(report.now_us),
            **_summary(topic, self._attention(report)),
            "traffic": self.traffic(name),
            "topic_id": str(topic.topic_id),
            **standing_of(topic),
            "schema_version": max(ledger.schemas, default=None),
            "table": None if settings is None else settings.archive.table,
            "catalog": None if settings is None else settings.archive.catalog,
            "configs": dict(app.topic(name).configs),
            "settings": None if settings is None else settings.model_dump(mode="json"),
            "template": None if settings is None else settings.template,
            "archive": [] if settings is None else archive_in_force(app.settings, settings),
        }

    def traffic(self, name: str) -> dict[str, float] | None:
        """Mean traffic of a topic in the newest step of the history with a known one."""
        known = None if self._history is None else self._history.newest_traffic(name)
        if known is None or known.records_per_s is None:
            return None
        return {
            "records_per_s": known.records_per_s,
            "bytes_per_s": known.bytes_per_s or 0.0,
            "age_seconds": known.age_s,
        }

    # --- Tables
    def table(self, name: str) -> dict[str, Any]:
        """The topic's table: snapshots, data files, columns, and the lines for query engines."""
        return table_document(self._opened(), name, self._clock)

    def table_summary(self, name: str) -> dict[str, Any] | None:
        """Size and newest snapshot of the topic's table; None if there is none. It asks the catalog."""
        app, now_s = self._opened(), self._clock.monotonic_s()
        settings, known = app.settings.topic(name), self._summaries.get(name)
        if known is None or known[0] != settings or now_s >= known[1]:
            found = table_summary(app, name)
            if len(self._summaries) >= SCHEMAS_KEPT_MAX:
                self._summaries.clear()
            known = self._summaries[name] = (settings, now_s + SUMMARIES_KEPT_S, found)
        return known[2]

    # --- Schemas
    def schema(self, name: str) -> dict[str, Any]:
        """The recorded versions of the topic's schema."""
        return recorded_document(self._opened(), name, self._schema_times, self._clock)

    def schema_plan(self, name: str) -> dict[str, Any]:
        """What the newest schema of the source would do to the topic's table. It asks the source."""
        return plan_document(self._opened(), name)

    def undecoded(self, name: str) -> dict[str, Any] | None:
        """Undecoded keys and values of the topic's table; None without a table. It asks the catalog."""
        return undecoded_document(self._opened(), name, self._clock)

    # --- Messages
    def messages(
        self, name: str, partition: int, start: str, limit: int, key: bytes | None
    ) -> dict[str, Any]:
        """Committed records of a partition in offset order, at most `limit`; with `key` only those with
        exactly that key. `start` is as for `parse_target`, except that `latest` means the newest `limit`
        records, and `latest-N` reaches back at most `SCANNED_MAX` records.

        `next` is the offset to go on from, null at the end; `previous` is one to go back to. A search for a
        key ends at its limits, and `scanned` says how many records it read.
        """
        if not 1 <= limit <= RECORDS_MAX:
            raise InvalidInput(f"limit {limit} is not between 1 and {RECORDS_MAX}")
        app = self._opened()
        view = _View.of(app, name)
        place = view.place(partition)
        at = _start(app, view, place, _target(start, self._clock.now_us()), limit, key)
        page = _Page(limit)
        if key is None:
            page.fill(record for batch in view.batches(place, at, limit) for record in batch)
        else:
            page.search(view.batches(place, at, SCANNED_MAX), key, self._clock)
        decoder = self._decoder(app, name)
        end = max(page.end, at)
        return {
            "topic": name,
            "partition": partition,
            "partitions": view.partitions,
            "from": at,
            "first": place.first,
            "stable": place.stable,
            "next_offset": place.end,
            "records": list(_records(page.records, decoder)),
            "next": end if end < place.stable else None,
            "previous": max(place.first, at - limit) if at > place.first else None,
            "scanned": page.scanned,
        }

    def message(self, name: str, partition: int, offset: int) -> dict[str, Any]:
        """One offset: the record, if there is one, and where it is (`archiver explain`)."""
        app = self._opened()
        explained = document_of(app.explain(name, partition, offset, self._stuck(name)))
        document: dict[str, Any] = {"explain": explained, "record": None, "unreadable": None}
        try:
            view = _View.of(app, name)
            place = view.place(partition)
            if place.first <= offset < place.stable:
                found = next(view.stream.read(place.topic_id, partition, offset, 1), None)
                # The next record after a gap is another one.
                if found is not None and found.offset == offset:
                    document["record"] = _record(found, self._decoder(app, name), FIELD_BYTES_MAX_ALONE)
        # Where the record is can be said even if it cannot be read; that is when a reader needs it most.
        except ArchiverError as error:
            document["unreadable"] = excerpt(str(error))
        return document

    def _decoder(self, app: Application, name: str) -> _Decoding:
        settings = app.settings.topic(name)
        if settings is None:
            return _Decoding(None, None)
        now_s, known = self._clock.monotonic_s(), self._sources.get(name)
        try:
            if known is None or known[0] != settings or now_s >= known[1]:
                if len(self._sources) >= SCHEMAS_KEPT_MAX:
                    self._sources.clear()
                known = (settings, now_s + SCHEMAS_KEPT_S, app.newest_sources(name))
                self._sources[name] = known
            key, value = known[2]
            return _Decoding(None if key is None and value is None else Decoder(key, value), None)
        # The bytes are shown without it, and the reason next to them.
        except ArchiverError as error:
            return _Decoding(None, excerpt(str(error)))

    def _stuck(self, name: str) -> str | None:
        report = self._lag()
        topic = None if report is None else report.topic(name)
        return None if topic is None else topic.stuck

    # --- Consumer groups
    def groups(self, may: May, after: str | None, limit: int) -> dict[str, Any]:
        """Consumer groups with their lag, as far as the reader `may` describe them."""
        return list_groups(self._opened(), self._members(), may, after, limit)

    def group(self, may: May, name: str) -> dict[str, Any]:
        """One consumer group, as far as the reader `may` describe its topics."""
        return one_group(self._opened(), self._members(), may, name)

    # --- Records that could not be decoded
    def dead_letters(self, may_read: Callable[[str], bool], topic: str | None, limit: int) -> dict[str, Any]:
        """Undecoded keys and values by cause, of one topic or of all that the reader `may_read`."""
        return self._dead_letters.listed(self._opened(), may_read, topic, limit)

    def dead_letter_replay(self, may_read: Callable[[str], bool], topic: str | None) -> dict[str, Any]:
        """What a replay of them would rewrite."""
        return self._dead_letters.replay(self._opened(), may_read, topic)

    # --- Audits
    def audit(self, may: May, topic: str | None, *, sees_all: bool) -> dict[str, Any]:
        """The newest audits and findings, as far as the reader `may` describe their topics."""
        daemon = self._opened().settings.daemon
        return audit_document(self._journal, daemon, self._clock.now_us(), Seen(may, sees_all, topic))

    # --- What is open
    def _opened(self) -> Application:
        application = self._application()
        if application is None:
            raise RetryLater("the daemon has not opened everything it needs; /readyz says what it waits for")
        return application

    def _attention(self, report: LagReport) -> dict[str, tuple[Severity, str]]:
        """Topics that need attention, by the same rule as the first line of the overview."""
        # The interval decides only about the age of the report, which is no advice on a topic.
        return topic_attention(
            advice(report, self._journal, self._clock.now_us(), 0.0, self._file_sources(), self._mirrors())
        )

    def _polled(self) -> LagReport:
        report = self._lag()
        if report is None:
            raise RetryLater("the daemon has not polled the topics yet; /readyz says what it waits for")
        return report


# --- Topics
def _summary(topic: TopicLag, attention: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    last = last_lag(topic)
    severity, why = attention.get(topic.topic, ("ok", None))
    return {
        "topic": topic.topic,
        "kind": topic.kind,
        "partition_count": len(topic.partitions),
        "records": sum(one.next for one in topic.partitions),
        "behind_records": None if last is None else last.records,
        "behind_seconds": None if last is None else last.seconds,
        "last_commit": None if topic.last_commit_us is None else format_time(topic.last_commit_us),
        "attention": severity,
        "attention_why": why if why is None or topic.stuck is None else f"{why}: {topic.stuck}",
        "stuck": topic.stuck,
        "troubled": topic.troubled,
    }


def archive_in_force(settings: Settings, topic: TopicSettings) -> list[dict[str, Any]]:
    """The archive settings that apply to a topic, in the order of the documentation, and where each is from:
    the topic's entry, its template, the group `archive`, or the default. Empty without archives.
    """
    if topic.archive.kind == "none":
        return []
    group, found = settings.archive.of(topic), []
    for name in type(group).model_fields:
        value = getattr(group, name)
        if name == "reads_max":
            value = group.reads_of(is_bucket=StorePlace.of(settings.data).is_s3)
        if name in TRIGGERS and getattr(topic.archive, name) is not None:
            origin = "topic" if topic.template is None else "template"
        else:
            origin = "archive" if name in settings.archive.model_fields_set else "default"
        found.append({"name": name, "value": value, "text": str(value_in_file(name, value)), "from": origin})
    return found


# --- Messages
@dataclass(frozen=True, slots=True)
class _Place:
    """A partition that exists, with its offsets."""

    topic_id: TopicId
    partition: int
    first: int
    """First offset that neither retention removed nor a client deleted."""
    stable: int
    """First offset that an open transaction may still hold back."""
    end: int
    """Offset that the next record gets."""


@dataclass(frozen=True, slots=True)
class _View:
    """One topic by one state of both logs."""

    topic_id: TopicId
    name: str
    partitions: int
    backlog: Backlog
    stream: RecordStream

    @classmethod
    def of(cls, app: Application, name: str) -> _View:
        state = app.topic(name)
        # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
        ledger: LedgerFold = app.ledger()
        backlog = app.backlog()
        return cls(state.topic_id, name, state.partitions, backlog, app.stream_of(backlog, ledger))

    def place(self, partition: int) -> _Place:
        if not 0 <= partition < self.partitions:
            raise no_partition(self.name, partition, self.partitions)
        tp = (self.topic_id, partition)
        stable, end = self.backlog.stable_offset(tp), self.backlog.next_offset(tp)
        first = min(stable, self.stream.first_offset(self.topic_id, partition))
        return _Place(self.topic_id, partition, first, stable, end)

    def batches(self, place: _Place, start: int, limit: int) -> Iterator[StreamBatch]:
        if start >= place.stable:
            return iter(())
        return self.stream.read_batches(place.topic_id, place.partition, start, limit)


def _target(start: str, now_us: int) -> Target | None:
    """None: the newest records of a page."""
    if start == "latest":
        return None
    try:
        target = parse_target(start, "from", now_us, LATEST_MEANS)
        # The search for them opens the footers of all archives between.
        if target.kind == "last" and target.value > SCANNED_MAX:
            raise InvalidInput(
                f"from {excerpt(start)} is not accepted; N of latest-N is at most {SCANNED_MAX:,}"
            )
    except InvalidInput as error:
        error.parameter = "from"
        raise
    return target


def _start(
    app: Application, view: _View, place: _Place, target: Target | None, limit: int, key: bytes | None
) -> int:
    if target is not None and target.kind == "last":
        return view.stream.start_of_last(place.topic_id, place.partition, target.value)
    if target is not None:
        (found,) = target_offsets(app, app.topic(view.name), frozenset({place.partition}), target)
        return min(max(found.offset, place.first), place.stable)
    if key is not None:
        # A search goes forward, so that it can be continued.
        return place.first
    return view.stream.start_of_last(place.topic_id, place.partition, limit)


@dataclass(slots=True)
class _Page:
    """Records of an answer, and how far reading came."""

    limit: int
    records: list[StreamRecord] = field(default_factory=list)
    end: int = 0
    """Offset after the last record that was read."""
    scanned: int = 0

    def fill(self, found: Iterator[StreamRecord]) -> None:
        """Take the next records."""
        held = 0
        for record in found:
            self.records.append(record)
            self.end = record.offset + 1
            self.scanned += 1
            held += _size(record)
            if len(self.records) >= self.limit or held >= ANSWER_BYTES_MAX:
                return

    def search(self, batches: Iterator[StreamBatch], key: bytes, clock: Clock) -> None:
        """Take the next records with the key."""
        held, deadline_s = 0, clock.monotonic_s() + SEARCH_S
        for batch in batches:
            matching = batch.records.filter(
                pc.equal(batch.records.column("key"), pa.scalar(key, pa.binary()))
            )
            for record in replace(batch, records=matching):
                self.records.append(record)
                held += _size(record)
                if len(self.records) >= self.limit or held >= ANSWER_BYTES_MAX:
                    self.end = record.offset + 1
                    read = pc.less(batch.records.column("offset"), pa.scalar(self.end))
                    self.scanned += batch.records.filter(read).num_rows
                    return
            self.end = batch.records.column("offset")[-1].as_py() + 1
            self.scanned += batch.records.num_rows
            if clock.monotonic_s() >= deadline_s:
                return


def _size(record: StreamRecord) -> int:
    headers = sum(len(name) + len(content or b"") for name, content in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _records(found: Sequence[StreamRecord], decoder: _Decoding) -> Iterator[dict[str, Any]]:
    """The records of a list. Messages are decoded until their JSON is as long as the list may be."""
    left = ANSWER_BYTES_MAX
    for record in found:
        document = _record(record, decoder if left > 0 else _FULL, FIELD_BYTES_MAX)
        if document["decoded"] is not None:
            left -= len(json.dumps(document["decoded"], default=str))
        yield document


def _record(record: StreamRecord, decoder: _Decoding, most: int) -> dict[str, Any]:
    """A record: bytes in base64 as in record JSON, and as text where they are UTF-8."""
    return {
        "offset": record.offset,
        "timestamp": None if record.timestamp_us is None else format_time(record.timestamp_us),
        "ingest_timestamp": format_time(record.ingest_us),
        "from": record.source,
        "key": _bytes(record.key, most),
        "value": _bytes(record.value, most),
        "headers": [
            {"name": name, "value": _bytes(content, most)} for name, content in record.headers[:HEADERS_MAX]
        ],
        "headers_left": max(0, len(record.headers) - HEADERS_MAX),
        "decoded": decoder.decode(record.key, record.value, min(most, DECODED_BYTES_MAX)),
    }


def _bytes(content: bytes | None, most: int) -> dict[str, Any] | None:
    if content is None:
        return None
    shown = content[:most]
    text: str | None
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        # The cut may be inside of a character.
        text = shown[: error.start].decode() if len(content) > most and error.end == len(shown) else None
    return {
        "base64": base64.b64encode(shown).decode("ascii"),
        "text": text,
        "bytes": len(content),
        "cut": len(content) > most,
    }


class _Decoding:
    """Decodes messages with the newest schema, or says why there is none."""

    def __init__(self, decoder: Decoder | None, why: str | None) -> None:
        self._decoder = decoder
        self._why = why

    def decode(self, key: bytes | None, value: bytes | None, most: int) -> Mapping[str, object] | None:
        """`Decoder.decode` for a key and a value of at most so many bytes; None for a topic without a
        schema.
        """
        if self._decoder is not None and max(len(key or b""), len(value or b"")) > most:
            why = f"more than {most:,} bytes are not decoded here; `archiver consume --decode` does it"
            return {"key": None, "value": {"error": why}}
        if self._why is not None:
            return {"key": None, "value": {"error": self._why}}
        return None if self._decoder is None else self._decoder.decode(key, value)


_FULL: Final = _Decoding(None, "not decoded, because the list is full; open the message alone")
