"""`archiver produce`: send records from a file or standard input, and end the input at a signal."""

from __future__ import annotations

import enum
import io
import os
import select
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from archiver.cli.completion import complete_topic
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import is_tty, is_utf8, print_line, progress
from archiver.runtime.errors import InvalidInput
from archiver.runtime.exit_codes import FINE, INTERRUPTED, UNKNOWN, USAGE, WRONG
from archiver.runtime.redaction import redacted
from archiver.runtime.text import counted

if TYPE_CHECKING:
    from intake.inputs import InputFormat as ReadFormat
    from intake.produce_stream import EndedTransaction, Sent
    from intake.record_json import Input

# --- An input that ends at a signal.
STOPPING = (signal.SIGINT, signal.SIGTERM)
BUFFER_BYTES = 64 * 1024


class Stop:
    """A request to stop, and its signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.cut = False
        """The request ended the input before its end, or may have."""
        self.wakes, self.wake = os.pipe()
        """`wakes` is readable after the request, and after other signals."""
        # Not blocking: a signal handler must not wait for a full pipe, nor a reader for an empty one.
        os.set_blocking(self.wakes, False)
        os.set_blocking(self.wake, False)

    @property
    def name(self) -> str:
        """Name of the signal; empty without a request."""
        return "" if self.signal is None else self.signal.name

    def ask(self, number: int) -> None:
        """Stop reading."""
        self.signal = signal.Signals(number)
        os.write(self.wake, b"\0")

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.wakes)
        os.close(self.wake)


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Turn Ctrl-C and SIGTERM into a request to stop inside the block; works in the main thread only."""
    stop = Stop()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        # The old handlers are back before the request: a second Ctrl-C ends the process as usual.
        for known, handler in before.items():
            signal.signal(known, handler)
        stop.ask(number)

    # Python delivers signals to the main thread only, and refuses handlers elsewhere.
    is_main = threading.current_thread() is threading.main_thread()
    wakeup = -1
    if is_main:
        # A signal between Python's last check and `select` would not run `handle` before more input arrives.
        # The interpreter writes to this descriptor from the C handler, so `select` returns at once.
        wakeup = signal.set_wakeup_fd(stop.wake, warn_on_full_buffer=False)
        before.update({number: signal.signal(number, handle) for number in STOPPING})
    try:
        yield stop
    finally:
        if is_main:
            signal.set_wakeup_fd(wakeup)
        for known, handler in before.items():
            signal.signal(known, handler)
        stop.close()


class StoppableInput(io.RawIOBase):
    """Bytes of a file descriptor that end at a request to stop."""

    def __init__(self, descriptor: int, stop: Stop) -> None:
        self._own = _reopened_terminal(descriptor)
        self._descriptor = descriptor if self._own is None else self._own
        self._stop = stop
        self._ended = False

    def readable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Close what was opened here; the given descriptor stays open."""
        if self._own is not None and not self.closed:
            os.close(self._own)
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes or for a request to stop; returns 0 after a request, and from the end on."""
        # A terminal can be read on after its end: each Ctrl-D ends one read only.
        while not self._ended and self._wait():
            piece = self._read(len(buffer))
            if piece is None:
                continue
            self._ended = not piece
            buffer[: len(piece)] = piece
            return len(piece)
        return 0

    def _wait(self) -> bool:
        """Wait until there are bytes or the end; False after a request to stop."""
        # Repeated, because other signals wake the `select` as well.
        while self._stop.signal is None:
            ready, _, _ = select.select([self._descriptor, self._stop.wakes], [], [])
            if self._stop.wakes not in ready:
                return True
            # Other signals wake too. The handler of this one runs at the latest before the next turn, so its
            # byte may be drained here.
            os.read(self._stop.wakes, BUFFER_BYTES)
        # With a timeout of 0 it only asks whether bytes are ready, so the stop never waits for them.
        ready, _, _ = select.select([self._descriptor], [], [], 0)
        # This byte is dropped. It only distinguishes an input that is cut short from one at its end.
        self._stop.cut = self._stop.cut or not ready or self._read(1) != b""
        return False

    def _read(self, most: int) -> bytes | None:
        """Bytes, or none at the end; None if a terminal has dropped what was ready."""
        try:
            return os.read(self._descriptor, most)
        except BlockingIOError:
            return None


def _reopened_terminal(descriptor: int) -> int | None:
    """A descriptor of this terminal on which a read never waits; None if it is no terminal, or cannot be
    opened.

    At a Ctrl-C a terminal drops its input, also what `select` has seen. A read would then wait for more,
    although the signal has passed. The given descriptor stays as it is, because the shell has it too.
    """
    try:
        return os.open(os.ttyname(descriptor), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None


def stoppable(source: BinaryIO, stop: Stop) -> tuple[BinaryIO, bool]:
    """Wrap a `source` that was not read yet so that it ends at a request to stop.

    Without a file descriptor it is returned unchanged, with False.
    """
    try:
        raw = StoppableInput(source.fileno(), stop)
    except (OSError, io.UnsupportedOperation):
        return source, False
    buffered: Any = io.BufferedReader(raw, BUFFER_BYTES)
    return buffered, True


def until_stopped(inputs: Iterator[Input], stop: Stop, ends_itself: bool) -> Iterator[Input]:
    """Pass inputs on until the request to stop; with `ends_itself`, their source ends there by itself.

    An error in a record that the stop has cut in two is ignored.
    """
    try:
        for item in inputs:
            if stop.signal is not None and not ends_itself:
                # The item was read and is not sent, so the input did not end here.
                stop.cut = True
                return
            yield item
    # The stop may have cut a record in two; its first half is no error of the input.
    except InvalidInput:
        if not stop.cut:
            raise


# --- The command.
ERRORS_SHOWN_MAX = 20
"""Errors that the text output shows; the JSON output has all."""
PLACES_SHOWN_MAX = 3
"""Stored records whose topic, partition and offset the text output shows."""
TERMINAL_LINE_BYTES_MAX = 4095 if sys.platform.startswith("linux") else 1023
"""Bytes of a line that a terminal passes on, in its usual mode; it drops what is typed or pasted beyond."""


class InputFormat(enum.StrEnum):
    """Format of the input."""

    JSONL = "jsonl"
    LINES = "lines"
    PARQUET = "parquet"
    DELIMITED = "delimited"


def produce(
    config: ConfigOption = None,
    source: Annotated[
        Path | None, typer.Option("--input", help="The file to read (default: standard input).")
    ] = None,
    form: Annotated[
        InputFormat | None,
        typer.Option(
            "--format",
            help="jsonl: record JSON lines; lines: a value in UTF-8 per line; parquet: the same fields as "
            "columns; delimited: a value per varint length. Default: lines if standard input is a terminal "
            "with UTF-8 and neither --text nor --base64 is given, else jsonl.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", help="The topic of records that do not name one.", autocompletion=complete_topic
        ),
    ] = None,
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="JSON lines whose keys, values and header values are UTF-8 text; also on a terminal.",
        ),
    ] = False,
    base64: Annotated[
        bool,
        typer.Option(
            "--base64",
            help="JSON lines whose keys, values and header values are base64, as by default in a pipe; also "
            "on a terminal.",
        ),
    ] = False,
    idempotent: Annotated[
        bool,
        typer.Option(
            "--idempotent",
            help="Send through an idempotent producer: records that this run sends again are stored once. "
            "Running the command again sends everything again.",
        ),
    ] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="Send the whole input as one transaction: readers see all of it or, after an error, "
            "nothing. "
            "Another producer with this id is fenced. The time limit is intake.transaction_timeout_max. "
            "A transactional producer is idempotent; --idempotent adds nothing to it.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Send records and wait until each is acknowledged. It is then stored, and in the intake log at its
    offset.

    Ctrl-C and SIGTERM end the input early: records that were read are sent and acknowledged, a transaction is
    aborted, and the exit code is 130.

    At a terminal with UTF-8, each line that is typed is a value for the topic of --topic, and Ctrl-D ends the
    input. --format, --text and --base64 precede this default; --base64 reads JSON lines as from a pipe.
    """
    from intake.produce_stream import Sending, WholeInput

    terminal = (source is None or str(source) == "-") and is_tty(sys.stdin)
    chosen = input_format(form, topic, text, base64, terminal and is_utf8(sys.stdin))
    counts: Counter[str] = Counter()
    places: list[str] = []

    def report(sent: Sent) -> None:
        # A refused record is also failed; it is counted apart, because sending it again cannot help.
        counts["refused" if sent.refused else sent.outcome] += 1
        if sent.outcome == "ok" and len(places) <= PLACES_SHOWN_MAX:
            places.append(f"{sent.topic}:{sent.partition}:{sent.offset}")
        if output is Output.JSON:
            print_line(sent.to_json())
            sys.stdout.flush()  # a program that sends one record at a time waits for this line
        elif sent.error is not None and counts.total() - counts["ok"] <= ERRORS_SHOWN_MAX:
            print(redacted(f"{sent.outcome}: {sent.error}"), file=sys.stderr)

    with stopped_by_signals() as stop, _opened(source, chosen) as stream, application(config) as app:
        intake = app.settings.intake
        # A Parquet file is read from its end, so its reader needs a seekable file.
        records, ends_itself = (stream, False) if chosen is InputFormat.PARQUET else stoppable(stream, stop)
        read = _read(records, chosen, topic, text, intake.record_bytes_max, stop)
        if terminal and chosen is InputFormat.LINES:
            read = uncut_by_terminal(read)
        inputs = until_stopped(with_rest_unread(read, text), stop, ends_itself)
        writer = app.intake.writer()
        try:
            if terminal:
                # Before anything is typed for a topic that accepts no records.
                if topic is not None:
                    writer.check_topic(topic)
                progress(terminal_hint(chosen, topic, text))
            whole = WholeInput(writer, transactional_id, idempotent, intake.transaction_timeout_max)
        # Nothing else closes the writer yet; `sending.run` does it later.
        except BaseException:
            writer.close()
            raise
        sending = Sending(writer, report, intake.close_timeout, through=whole.producer)
        try:
            # A stop aborts the transaction only if it cut the input. If the whole input was read, the
            # transaction is committed.
            sending.run(
                inputs, lambda broken: whole.end(broken or (f"stopped by {stop.name}" if stop.cut else None))
            )
        finally:
            # Also after an error: some records may be acknowledged already.
            _conclude(counts, places, whole.ended, output, sending.elsewhere)
    if stop.cut:
        print(
            f"stopped by {stop.name}: {_reached(counts)}; the rest of the input was not read", file=sys.stderr
        )
        sys.stdout.flush()
        # Not returned: `run` would print its general message after the better one above.
        raise SystemExit(INTERRUPTED)
    return _exit_code(counts, whole.ended)


def input_format(
    form: InputFormat | None, topic: str | None, text: bool, in_base64: bool, terminal: bool
) -> InputFormat:
    """The format by the options; `terminal` is whether the input comes from a terminal with UTF-8. Raises
    `InvalidInput` for options that contradict each other.
    """
    if text and in_base64:
        raise InvalidInput("--text and --base64 exclude each other; leave one of them out")
    if form not in (None, InputFormat.JSONL) and (text or in_base64):
        raise InvalidInput(
            f"{'--text' if text else '--base64'} is for JSON lines; the values of {form} input are bytes "
            "already"
        )
    typed = form is None and terminal and not text and not in_base64
    if (typed or form is InputFormat.LINES) and topic is None:
        reason = "what is typed is one value per line" if typed else "lines are values alone"
        advice = "; for JSON lines, give --text or --base64" if typed else ""
        raise InvalidInput(f"{reason}: name their topic with --topic{advice}")
    return InputFormat.LINES if typed else form or InputFormat.JSONL


def terminal_hint(form: InputFormat, topic: str | None, text: bool) -> str:
    """What the command expects at a terminal."""
    expected = {
        InputFormat.LINES: f"one value per line for topic {topic}; --text or --base64 read JSON lines",
        InputFormat.JSONL: f"JSON lines, bytes as {'text' if text else 'base64'}",
    }
    return f"type {expected.get(form, f'{form} input')}. Ctrl-D ends the input, Ctrl-C stops"


def uncut_by_terminal(inputs: Iterator[Input]) -> Iterator[Input]:
    """Pass on lines that a terminal cannot have cut; raises `InvalidInput` for others."""
    for item in inputs:
        if len(item.record.value or b"") >= TERMINAL_LINE_BYTES_MAX:
            raise InvalidInput(
                f"{item.where}: a terminal cuts lines at {TERMINAL_LINE_BYTES_MAX} bytes, so the end of this "
                "one may be missing; put it into a file and give --format lines --input FILE"
            )
        yield item


def _read(
    source: BinaryIO,
    form: InputFormat,
    topic: str | None,
    text: bool,
    record_bytes_max: int,
    stop: Stop,
) -> Iterator[Input]:
    from intake.inputs import InputPosition, read_inputs, read_lines

    if form is InputFormat.LINES:
        assert topic is not None, "checked with the format"
        return read_lines(source, topic, record_bytes_max, InputPosition(), lambda: stop.cut)
    return read_inputs(source, cast("ReadFormat", form.value), topic, text, record_bytes_max)


def with_rest_unread(inputs: Iterator[Input], text: bool) -> Iterator[Input]:
    """Pass the inputs on; add to an error that it ended the reading, and for a line that is no record JSON
    the format of bare values. `text` is that of --text.
    """
    from intake.record_json import NotARecord

    try:
        yield from inputs
    except InvalidInput as error:
        # Only errors with a position: they end the reading in the middle of the input. Whether anything
        # follows is unknown, because asking a pipe could wait for ever.
        if not str(error).startswith(("line ", "row ", "record ")):
            raise
        instead = " instead of --text" if text else ""
        lines = f"; if each line is a value, give --format lines{instead}"
        raise type(error)(
            f"{error}{lines if isinstance(error, NotARecord) else ''}; nothing after it was read"
        ) from error


def _conclude(
    counts: Counter[str], places: list[str], ended: EndedTransaction | None, output: Output, elsewhere: int
) -> None:
    """Print the outcome of all records, and of the transaction."""
    if output is Output.TEXT:
        print(_summary(counts, ended, places))
        if elsewhere:
            print(f"{counted(elsewhere, 'record')} did not decode and went to the topic for such records")
    elif ended is not None:
        print_line(ended.to_json())
    if ended is not None and ended.outcome == "aborted":
        print(
            redacted(f"the transaction was aborted, none of its records counts: {ended.error}"),
            file=sys.stderr,
        )


def _exit_code(counts: Counter[str], ended: EndedTransaction | None) -> int:
    # First, because an abort overrides the outcome of each record.
    if ended is not None and ended.outcome == "aborted":
        return WRONG
    if counts["refused"]:
        return USAGE
    if counts["failed"]:
        return WRONG
    return UNKNOWN if counts["unknown"] else FINE


def _summary(counts: Counter[str], ended: EndedTransaction | None, places: list[str]) -> str:
    """Outcome of the records, for people. `places` are those of stored ones, more than `PLACES_SHOWN_MAX` if
    there are more.
    """
    labels = {"refused": "refused", "failed": "not stored, send again"}
    if ended is None or ended.outcome == "committed":
        stored = f": {' '.join(places)}" if 0 < len(places) <= PLACES_SHOWN_MAX else ""
        # In this order: the good outcome first, the one that needs a check last.
        labels = {
            "ok": f"stored and in the log{stored}",
            **labels,
            "unknown": "of unknown outcome, check before sending again",
        }
        return (
            ", ".join(f"{counts[name]:,} {words}" for name, words in labels.items() if counts[name])
            or "no records"
        )
    # In an aborted or doubtful transaction an acknowledged record is not stored yet.
    sent = counts["ok"] + counts["unknown"]
    first = (
        f"0 stored, {sent:,} sent and aborted"
        if ended.outcome == "aborted"
        else f"{sent:,} sent; it is unknown whether they are committed"
    )
    return ", ".join(
        [first, *(f"{counts[name]:,} {words}" for name, words in labels.items() if counts[name])]
    )


def _reached(counts: Counter[str]) -> str:
    read, stored = counts.total(), counts["ok"]
    were = counted(read, "record was", "records were")
    return (
        f"{were} read and acknowledged"
        if stored == read
        else f"{were} read, {stored:,} of {'it is' if read == 1 else 'them are'} stored"
    )


@contextmanager
def _opened(source: Path | None, form: InputFormat) -> Iterator[BinaryIO]:
    if source is None or str(source) == "-":
        if form is InputFormat.PARQUET:
            raise InvalidInput(
                "a Parquet file is read from its end: name it with --input FILE, it cannot come "
                "through a pipe"
            )
        yield sys.stdin.buffer
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {source}: {error.strerror}") from error
    with file:
        yield file
