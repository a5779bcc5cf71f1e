"""`archiver ledger`: what the control log says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.exits import FINE
from archiver.cli.options import ConfigOption, Output, OutputOption, application
from archiver.cli.output import human_bytes, print_json, print_line, print_table
from archiver.errors import InvalidInput
from archiver.events import codec, json_form
from archiver.ledger.bridge import event_bytes
from archiver.ledger.fold import LedgerFold
from archiver.proto import control_log_pb2 as pb

if TYPE_CHECKING:
    from archiver.assemble import Application

app = typer.Typer(help="Look at the control log.", no_args_is_help=True)

READ_LIMIT = 1000
"""Entries per read of the log."""
_WITH_EVENT = (pb.RoundStarted, pb.FilesWritten, pb.RoundWritten, pb.TableCommitted, pb.RoundSettled)


@app.command("show")
def show(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> int:
    """Rounds, and what every topic has written, committed and killed."""
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
            (t["topic"], t["schema_version"], t["files"], t["rows"], human_bytes(t["stored_bytes"]), len(t["pending"]), len(t["killed"]))
            for t in topics
        ],
    )
    print_table(
        "rounds",
        ("commit id", "epoch", "state", "files", "rows", "committed", "killed"),
        [(r["commit_id"], r["epoch"], r["state"], r["files"], r["rows"], r["committed"], r["killed"]) for r in rounds],
    )
    return FINE


@app.command("events")
def events(
    config: ConfigOption = None,
    raw: Annotated[
        Path | None,
        typer.Option("--raw", help="Write the events' bytes to this new file instead, each behind its length (4 bytes, big-endian)."),
    ] = None,
) -> int:
    """Every control event of the ledger in order: one JSON document per line, or its bytes."""
    with application(config) as app_:
        if raw is not None:
            return _write_raw(app_, raw)
        for index, data in _events(app_):
            print_line({"index": index, "event": json_form.to_json(codec.read(data))})
    return FINE


def _write_raw(app_: Application, path: Path) -> int:
    count = 0
    try:
        with path.open("xb") as file:
            for _, data in _events(app_):
                file.write(len(data).to_bytes(4, "big") + data)
                count += 1
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}; name a new file in a folder that exists") from error
    print(f"{count} events written to {path}")
    return FINE


def _events(app_: Application) -> list[tuple[int, bytes]]:
    """Index and bytes of every event whose entry is valid."""
    found: list[tuple[int, bytes]] = []
    fold = LedgerFold()
    fold.next_index = app_.control_log.floor()
    while entries := app_.control_log.read(fold.next_index, READ_LIMIT):
        for entry in entries:
            counted = fold.applied
            fold.apply(entry.index, entry.data)
            body = pb.ControlEntry.FromString(entry.data)
            kind = body.WhichOneof("body")
            message = getattr(body, kind or "epoch_started")
            if fold.applied > counted and isinstance(message, _WITH_EVENT) and message.HasField("event"):
                found.append((entry.index, event_bytes(fold, message.event)))
    return found


def _summary(app_: Application) -> dict[str, object]:
    ledger, names = app_.ledger(), app_.intake().topics_by_id
    return {
        "epoch": ledger.epoch,
        "owner": ledger.owner,
        "entries": ledger.next_index,
        "void_entries": ledger.void,
        "refused_files": ledger.refused,
        "topics": [
            {
                "topic": names[topic_id].name if topic_id in names else None,
                "topic_id": topic_id,
                "table_uuid": str(topic.table_uuid) if topic.table_uuid is not None else None,
                "schema_version": topic.schema_version,
                "snapshot_id": topic.snapshot_id,
                "watermarks": topic.watermarks,
                "valid_through_us": topic.valid_through_us or None,
                "files": topic.totals.files,
                "rows": topic.totals.rows,
                "stored_bytes": topic.totals.stored_bytes,
                "pending": [item.archive.key for item in topic.pending],
                "killed": [{"key": key, "why": item.why} for key, item in topic.killed.items()],
            }
            for topic_id, topic in sorted(ledger.topics.items())
        ],
        "rounds": [item.to_json() for item in ledger.rounds],
    }
