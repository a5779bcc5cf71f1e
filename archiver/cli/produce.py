"""`archiver produce`: records from a file or standard input into intake."""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from archiver.cli.exits import FINE, UNTOLD, USAGE, WRONG
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_line
from archiver.errors import InvalidInput
from archiver.jobs.sending import Sending, Sent
from intake.inputs import read_inputs

ERRORS_SHOWN_MAX = 20
"""As text, so many errors are shown; the JSON output has every one."""


class InputFormat(enum.StrEnum):
    """What the input is made of."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    DELIMITED = "delimited"


def produce(
    config: ConfigOption = None,
    source: Annotated[Path | None, typer.Option("--input", help="The file to read (default: standard input).")] = None,
    form: Annotated[
        InputFormat,
        typer.Option(
            "--format", help="jsonl: record JSON lines; parquet: the same fields as columns; delimited: a value per varint length."
        ),
    ] = InputFormat.JSONL,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic of records that do not name one.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Keys, values and header values are UTF-8 text instead of base64.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Send records and wait until each is acknowledged: stored, and in the intake log at its offset."""
    counts: Counter[str] = Counter()

    def tell(sent: Sent) -> None:
        counts["refused" if sent.refused else sent.outcome] += 1
        if output is Output.JSON:
            print_line(sent.to_json())
            sys.stdout.flush()  # Whoever sends one by one waits for this line.
        elif sent.error is not None and counts.total() - counts["ok"] <= ERRORS_SHOWN_MAX:
            print(f"{sent.outcome}: {sent.error}", file=sys.stderr)

    with _opened(source, form) as stream, application(config) as app:
        limit = app.settings.intake.record_bytes_max
        inputs = read_inputs(stream, form.value, topic, text, limit)
        try:
            Sending(app.writer(), tell, app.settings.intake.close_timeout).run(inputs)
        finally:
            if output is Output.TEXT:
                print(_summary(counts))
    if counts["refused"]:
        return USAGE
    if counts["failed"]:
        return WRONG
    return UNTOLD if counts["unknown"] else FINE


def _summary(counts: Counter[str]) -> str:
    """What became of the records, for people."""
    said = {
        "ok": "stored and in the log",
        "refused": "refused",
        "failed": "not stored, send again",
        "unknown": "of unknown outcome, look before sending again",
    }
    return ", ".join(f"{counts[name]:,} {words}" for name, words in said.items() if counts[name]) or "no records"


@contextmanager
def _opened(source: Path | None, form: InputFormat) -> Iterator[BinaryIO]:
    if source is None or str(source) == "-":
        if form is InputFormat.PARQUET:
            raise InvalidInput("a Parquet file is read from its end: name it with --input FILE, it cannot come through a pipe")
        yield sys.stdin.buffer
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {source}: {error.strerror}") from error
    with file:
        yield file
