"""`archiver consume`: print records, as JSON lines byte for byte, or as text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archiver.cli.completion import complete_scope
from archiver.cli.options import ConfigOption, Output, application
from archiver.cli.output import ended_by_signals, is_tty, is_utf8, progress, wait_for_more
from archiver.cli.record_text import RecordForm, is_base64, record_form, record_text
from archiver.publish.scope import parse_scope
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import Corrupted, InvalidInput, RetryLater, no_partition
from archiver.runtime.exit_codes import FINE
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.runtime.ids import TopicId
    from archiver.stream.decode import Decoder
    from archiver.stream.records import StreamRecord
    from intake.log.state import TopicState

Side = Literal["key", "value"]

POLL_S = 0.3
"""With --follow, time between two polls of the log's tail."""
FAILURES_MAX = 200
"""With --follow, consecutive polls that may fail for a temporary reason: about a minute."""

DAMAGED_MAX = 3
"""With --follow, consecutive polls that may find an intake file missing or altered. Archiving and cleaning
can cause one; the next poll then reads the archive."""


def consume(
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            help="The topic to read, or some of its partitions: orders:3, orders:0-3.",
            autocompletion=complete_scope,
        ),
    ],
    config: ConfigOption = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", help="Only this partition (default: all, one after another)."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="START",
            help="Where to start in each partition: earliest; an offset; latest or end (only records that "
            "come after the command has started); latest-N (the last N records); a time such as "
            "2026-11-27T12:00:00Z, or a duration such as -10m, that long ago (the first record with that "
            "event time or a later one).",
        ),
    ] = "0",
    limit: Annotated[
        int | None, typer.Option("--max", min=0, help="Maximum number of records in all.")
    ] = None,
    uncommitted: Annotated[
        bool,
        typer.Option(
            "--uncommitted",
            help="Also print records of open transactions and records after them; they may still be aborted.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Wait for more records at the end; stop with Ctrl-C. Starts at --from, which is 0 by "
            "default; --from end prints new records only.",
        ),
    ] = False,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Add the decoded message as `decoded`; in the text form, print it instead of its bytes (see "
            "the schema in the configuration).",
        ),
    ] = False,
    output: Annotated[
        Output | None,
        typer.Option(
            "--output",
            help="text: a form for people, json: JSON lines. Default: text on a terminal with UTF-8, else "
            "json.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="JSON lines with keys, values and header values as UTF-8 text. Bytes that are no text are "
            "an error.",
        ),
    ] = False,
    base64: Annotated[
        bool,
        typer.Option(
            "--base64", help="JSON lines with bytes as base64, as --output json; also on a terminal."
        ),
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="With --output text, or on a terminal: do not cut long keys and values."),
    ] = False,
) -> int:
    """Print committed records of a topic in offset order. They come from archives and then from intake. On a
    terminal they are text for people, elsewhere JSON lines with bytes as base64.

    --output, --text and --base64 precede this default. Bytes that are no UTF-8 text are shown as base64 in
    the text form too, with a mark.

    Records that retention removed or a client deleted do not exist any more. Reading then begins at the first
    offset that is left, with a note on standard error.

    A note on standard error says how many records an open transaction holds back.
    """
    from archiver.app.offset_targets import parse_target, read_starts

    form = record_form(output, text, base64, is_tty(sys.stdout) and is_utf8(sys.stdout))
    topic, scope = parse_scope(topic)
    if scope is not None and partition is not None:
        raise InvalidInput("--topic already names partitions; leave out --partition")
    target = parse_target(start, "--from", SystemClock().now_us())
    with application(config) as app:
        state = app.topic(topic)
        partitions = _partitions(state, scope, partition)
        line = _printer(app, topic, decode, form, full)
        starts = read_starts(app, state, partitions, target, uncommitted=uncommitted)
        if target.kind == "latest" and not follow:
            progress(
                f"--from {start} prints records that come later; wait for them with --follow, or see the "
                "newest ones with --from latest-10"
            )
            return FINE
        stream = app.stream()
        # Reported once at the start; with --follow the start of a topic rarely moves.
        for one, offset in starts.items():
            first = stream.first_offset(state.topic_id, one)
            if offset < first:
                progress(
                    f"offset {offset} is out of range: by retention or deletion, {topic} partition {one} "
                    f"begins at offset {first}; reading from there"
                )
        waiting = _HeldBack(app, topic, state.topic_id, starts)
        ended = None if uncommitted else waiting.report
        with ended_by_signals():
            for record in _records(app, state.topic_id, starts, limit, follow, uncommitted, ended):
                # Not flushed per record: a fast reader of many records would pay a system call for each.
                sys.stdout.write(line(record) + "\n")
            sys.stdout.flush()
    return FINE


def _partitions(state: TopicState, scope: frozenset[int] | None, partition: int | None) -> list[int]:
    """Partitions to read, in order; raises `NotFound` for one that the topic does not have."""
    if scope is None:
        return list(range(state.partitions)) if partition is None else [partition]
    beyond = [one for one in sorted(scope) if one >= state.partitions]
    if beyond:
        raise no_partition(state.name, beyond[0], state.partitions)
    return sorted(scope)


class _HeldBack:
    """Reports how many offsets open transactions hold back, each time the number changes."""

    def __init__(self, app: Application, topic: str, topic_id: TopicId, starts: Mapping[int, int]) -> None:
        self._app, self._topic, self._topic_id, self._starts = app, topic, topic_id, starts
        self._reported = 0

    def report(self) -> None:
        """Read the log and print the number if it changed."""
        intake = self._app.backlog()
        waiting = 0
        for partition, start in self._starts.items():
            tp = (self._topic_id, partition)
            if intake.blocking(tp) is not None:
                # Offsets before --from are not waited for.
                waiting += max(0, intake.next_offset(tp) - max(start, intake.stable_offset(tp)))
        # Reported only when it changes, because --follow polls several times a second.
        if waiting not in (0, self._reported):
            held = counted(
                waiting, f"offset of topic {self._topic} waits", f"offsets of topic {self._topic} wait"
            )
            progress(f"{held} for open transactions; --uncommitted shows them")
        self._reported = waiting


def _records(
    app: Application,
    topic_id: TopicId,
    starts: Mapping[int, int],
    limit: int | None,
    follow: bool,
    uncommitted: bool,
    ended: Callable[[], None] | None,
) -> Iterator[StreamRecord]:
    """One pass over the partitions; with `follow`, repeated passes from the end of the previous one.

    `ended` is called after each pass. A pass can fail for a temporary reason: an intake file was archived and
    deleted after the log was read, or the store is unreachable. Following continues while passes make
    progress, and for a limited number of passes without progress.
    """
    clock = SystemClock()
    at = dict(starts)
    remaining = limit
    failures = 0
    while True:
        # To see whether the pass made progress before it failed.
        before = dict(at)
        try:
            # A new stream each pass: it reads both logs to their tails.
            stream = app.stream()
            for partition in starts:
                for record in stream.read(
                    topic_id, partition, at[partition], remaining, uncommitted=uncommitted
                ):
                    yield record
                    # After the record was handed over. A pass that is repeated then continues behind it.
                    at[partition] = record.offset + 1
                    remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return
                # Per partition, because the next one may take long to open.
                sys.stdout.flush()
            if ended is not None:
                ended()
            failures = 0
        except (RetryLater, Corrupted) as error:
            # Progress resets the count, so a long run survives many short failures.
            failures = failures + 1 if at == before else 1
            if not follow or failures > (FAILURES_MAX if isinstance(error, RetryLater) else DAMAGED_MAX):
                raise
            if failures == 1:
                progress(f"reading is retried: {error}")
        if not follow:
            return
        sys.stdout.flush()
        # Ends at once if the reader has closed the pipe; a sleep would not notice it.
        wait_for_more(clock, POLL_S)


def _printer(
    app: Application, topic: str, decode: bool, form: RecordForm, full: bool
) -> Callable[[StreamRecord], str]:
    """Makes the text of each record, without the last line end."""
    # Imported here, because consuming without decoding needs no schema.
    from archiver.stream.decode import Decoder

    decoder = Decoder(*app.newest_sources(topic)) if decode else None
    if form is not RecordForm.TEXT:
        return _json_printer(decoder, form is RecordForm.JSON_TEXT)
    settings = app.settings.topic(topic)
    sides: dict[Side, object] = {} if settings is None else {"key": settings.key, "value": settings.value}
    hint = _DecodeHint(topic, [side for side, schema in sides.items() if schema is not None and not decode])
    # With --output text, standard output may have an encoding that lacks characters of the records.
    encoding = None if is_utf8(sys.stdout) else sys.stdout.encoding

    def lines(record: StreamRecord) -> str:
        hint.see(record)
        decoded = None if decoder is None else decoder.decode(record.key, record.value)
        shown = record_text(record, decoded, full)
        return shown if encoding is None else shown.encode(encoding, "backslashreplace").decode(encoding)

    return lines


class _DecodeHint:
    """Names --decode once, before the first key or value that is shown as base64 and has a schema."""

    def __init__(self, topic: str, sides: Sequence[Side]) -> None:
        self._topic = topic
        self._sides = sides

    def see(self, record: StreamRecord) -> None:
        """Check a record before it is printed."""
        if any(is_base64(record.key if side == "key" else record.value) for side in self._sides):
            self._sides = ()
            progress(f"topic {self._topic} has a schema: --decode prints messages instead of base64")


def _json_printer(decoder: Decoder | None, text: bool) -> Callable[[StreamRecord], str]:
    from intake.record_json import record_json

    def line(record: StreamRecord) -> str:
        text_line = record_json(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_us=record.timestamp_us,
            key=record.key,
            value=record.value,
            headers=record.headers,
            ingest_us=record.ingest_us,
            batch_start=record.batch_start,
            source=record.source,
            text=text,
        )
        if decoder is None:
            return text_line
        # Parsed again, because `record_json` returns the text that all other outputs share.
        return json.dumps(
            {**json.loads(text_line), "decoded": decoder.decode(record.key, record.value)}, ensure_ascii=False
        )

    return line
