"""`archiver ledger`: show the control log, and convert control events."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import print_json, print_line, print_table, progress
from archiver.runtime.errors import Corrupted, InvalidInput
from archiver.runtime.exit_codes import FINE, USAGE
from archiver.runtime.text import counted, human_bytes

if TYPE_CHECKING:
    from archiver.app.application import Application

app = typer.Typer(help="Show the control log, and encode and decode control events.", no_args_is_help=True)

_STANDARD = Path("-")
"""Standard input."""
_LENGTH_BYTES = 4


@app.command("show")
def show(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show rounds, and what is written, committed and killed."""
    with application(config) as app_:
        document = _summary(app_)
    if output is Output.JSON:
        print_json(document)
        return FINE
    print(f"epoch {document['epoch']}, entries {document['entries']}")
    topics, rounds = document["topics"], document["rounds"]
    assert isinstance(topics, list)
    assert isinstance(rounds, list)
    print_table(
        "topics",
        ("topic", "schema", "committed files", "committed rows", "stored", "pending", "killed"),
        [
            (
                t["topic"],
                t["schema_version"],
                t["files"],
                t["rows"],
                human_bytes(t["stored_bytes"]),
                len(t["pending"]),
                len(t["killed"]),
            )
            for t in topics
        ],
    )
    print_table(
        "rounds",
        ("commit id", "epoch", "state", "files", "rows", "committed", "killed"),
        [
            (r["commit_id"], r["epoch"], r["state"], r["files"], r["rows"], r["committed"], r["killed"])
            for r in rounds
        ],
    )
    return FINE


@app.command("events")
def events(
    config: ConfigOption = None,
    raw: Annotated[
        Path | None,
        typer.Option(
            "--raw",
            help="Write the events' bytes to this new file instead, each after its length (4 bytes, "
            "big-endian).",
        ),
    ] = None,
) -> int:
    """Print every control event of the ledger in order. One JSON document per line, or the bytes."""
    from archiver.events import codec, json_form

    with application(config) as app_:
        if raw is not None:
            return _write_raw(app_, raw)
        for index, data in _events(app_):
            print_line({"index": index, "event": json_form.to_json(codec.read(data))})
    return FINE


def _write_raw(app_: Application, path: Path) -> int:
    # The bytes of an event have no end mark, so each needs its length.
    count = _write_new(path, (len(data).to_bytes(_LENGTH_BYTES, "big") + data for _, data in _events(app_)))
    print(f"{counted(count, 'event')} written to {path}")
    return FINE


def _write_new(path: Path, pieces: Iterable[bytes]) -> int:
    """Write the pieces to a new file; returns their number."""
    count = 0
    try:
        # Refuses an existing file: a mistyped name must not destroy another file.
        with path.open("xb") as file:
            for piece in pieces:
                file.write(piece)
                count += 1
    except OSError as error:
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}; name a new file in a folder that exists"
        ) from error
    return count


@app.command("decode")
def decode(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files with the bytes of one control event each; - is standard input."
        ),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="The files hold many events, as `ledger events --raw` writes them.")
    ] = False,
) -> int:
    """Print control events as JSON, one document per line. They may be another program's. Needs no
    configuration.
    """
    from archiver.events import codec, json_form

    code = FINE
    for path in files:
        try:
            for data in _divided(path) if raw else (_content(path),):
                print_line(json_form.to_json(codec.read(data)))
        # The other files are still decoded; the exit code shows that one failed.
        except (Corrupted, InvalidInput) as error:
            print(f"error: {path}: {error}", file=sys.stderr)
            code = USAGE
    return code


@app.command("encode")
def encode(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.json",
            help="The JSON of an event, as `ledger decode` prints it; - is standard input.",
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="Write the bytes to this new file instead of standard output.")
    ] = None,
) -> int:
    """Write the bytes of a control event as Iceberg's Java classes do. Needs no configuration.

    FILE.json may also be an object that has the event under `event` (and, for events without a partition
    type, also `partition_spec` and `table_schema`).
    """
    from archiver.events import codec, json_form

    try:
        data = codec.write(json_form.from_document(json.loads(_content(file))))
    # `RecursionError`: JSON that is nested too deeply.
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{file} is not json: {error}") from error
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from error
    if to is not None:
        _write_new(to, (data,))
    # Bytes could contain control sequences.
    elif sys.stdout.isatty():
        raise InvalidInput(
            "the bytes of an event are not for a terminal; name a file with --to, or send the output to one"
        )
    else:
        sys.stdout.buffer.write(data)
    return FINE


def _content(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == _STANDARD else path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}") from error


def _divided(path: Path) -> Iterator[bytes]:
    """Events of a file in which each event follows its length."""
    data = _content(path)
    at = 0
    while at < len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        # The second condition: the length itself may be cut off.
        if end > len(data) or at + _LENGTH_BYTES > len(data):
            raise InvalidInput(
                f"the event at byte {at} ends after the file: {end} bytes needed, {len(data)} present"
            )
        yield data[at + _LENGTH_BYTES : end]
        at = end


def _events(app_: Application) -> list[tuple[int, bytes]]:
    """Index and bytes of every event in the log whose entry is valid."""
    from archiver.ledger.checkpoint import LedgerCheckpoints
    from archiver.ledger.event_reader import EventReader
    from archiver.log.store import entries_from

    # From the oldest checkpoint: whether an entry is valid depends on the state before it.
    reader = EventReader.first(app_.control_log, LedgerCheckpoints(app_.objects))
    if reader.mark.next_index:
        progress(
            f"begins with entry {reader.mark.next_index} of the control log; those before it were trimmed"
        )
    taken = (
        reader.take(entry.index, entry.data)
        for entry in entries_from(app_.control_log, reader.mark.next_index)
    )
    return [(event.index, event.data) for event in taken if event is not None]


def _summary(app_: Application) -> dict[str, object]:
    ledger, intake = app_.ledger(), app_.backlog()
    # Deleted topics stay in the ledger, so their names are shown too.
    names = {topic_id: gone.name for topic_id, gone in intake.fold.deleted_topics.items()}
    names |= {topic_id: topic.name for topic_id, topic in intake.topics_by_id.items()}
    return {
        "epoch": ledger.epoch,
        "owner": ledger.owner,
        "entries": ledger.next_index,
        "void_entries": ledger.void,
        "refused_files": ledger.refused,
        "topics": [
            {
                "topic": names.get(topic_id),
                "topic_id": topic_id,
                "table_uuid": str(topic.table_uuid) if topic.table_uuid is not None else None,
                "schema_version": topic.schema_version,
                "snapshot_id": topic.snapshot_id,
                "watermarks": topic.watermarks,
                "valid_through_us": topic.valid_through_us or None,
                "files": topic.totals.files,
                "rows": topic.totals.rows,
                "stored_bytes": topic.totals.stored_bytes,
                # Keys and not archives: a document for people who then inspect the objects.
                "pending": [item.archive.key for item in topic.pending],
                "killed": [{"key": key, "why": item.why} for key, item in topic.killed.items()],
            }
            for topic_id, topic in sorted(ledger.topics.items())
        ],
        "rounds": [item.to_json() for item in ledger.rounds],
    }
