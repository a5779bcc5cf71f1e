"""Documents of a topic's schema: its recorded versions, the plan of the newest one, and undecoded counts.

The recorded versions need the logs alone. The plan asks the source of the schema, the counts ask the catalog;
they are separate documents, so that one that does not answer leaves out its own part only.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from archiver.app.schema_plan import planned, schema_history
from archiver.log.store import Log
from archiver.proto import control_log_pb2 as pb
from archiver.rewrite.undecoded import error_fields, undecoded_by_side
from archiver.runtime.errors import ArchiverError, Trimmed
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import format_time
from archiver.schema.evolution.evolve import Change
from archiver.schema.evolution.recorded import SourceSchema, TopicSchema
from archiver.schema.evolution.state import decide

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.catalog.tables import LiveFile
    from archiver.runtime.clock import Clock

VERSIONS_MAX: Final = 20
"""Maximum of versions of an answer, the newest."""
CHANGES_MAX: Final = 200
"""Maximum of changes of each version."""
CHANGES_S: Final = 5.0
"""Time after which the changes of older versions are left out."""
TIMES_S: Final = 2.0
"""Time after which the search for times of versions ends; the next one continues it."""
TIMES_ENTRIES: Final = 1000
COUNTED_FILES_MAX: Final = 20_000
COUNTED_S: Final = 3.0
"""Time after which the count of undecoded records ends."""
_TEXT_MAX: Final = 500


# --- Recorded versions
class SchemaTimes:
    """Times of SCHEMA entries, as far as the control log still holds them. Safe for several threads.

    The ledger keeps a version without its time, and the log is trimmed behind its checkpoints.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0
        self._times_us: dict[bytes, int] = {}

    def read(self, log: Log) -> None:
        """Read the entries since the last call."""
        with self._lock:
            deadline_s = self._clock.monotonic_s() + TIMES_S
            try:
                start, tail = max(self._next, log.floor()), log.tail()
                while start < tail and self._clock.monotonic_s() < deadline_s:
                    entries = log.read(start, TIMES_ENTRIES)
                    for entry in entries:
                        self._take(entry.data)
                    if not entries:
                        break
                    start = self._next = entries[-1].index + 1
            # Another process trims it now; the next call begins at the new floor.
            except Trimmed:
                return

    def time_us(self, body: pb.SchemaChanged) -> int | None:
        """Time of the entry with this body; None if it is unknown."""
        return self._times_us.get(_digest(body))

    def _take(self, data: bytes) -> None:
        entry = pb.ControlEntry.FromString(data)
        # By the whole body: an entry of a deposed leader may name the same topic and version.
        if entry.HasField("schema_changed"):
            self._times_us.setdefault(_digest(entry.schema_changed), entry.time_us)


def _digest(body: pb.SchemaChanged) -> bytes:
    # Deterministic, because maps have no order.
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()


def recorded_document(app: Application, name: str, times: SchemaTimes, clock: Clock) -> dict[str, Any]:
    """Every recorded version of a topic's schema with its changes, the newest first. Raises `NotFound`."""
    history, settings = schema_history(app, name), app.settings.topic(name)
    topic = app.backlog().topics_by_name.get(name)
    entries = {} if topic is None else app.ledger().topic(topic.topic_id).schemas
    times.read(app.control_log)
    deadline_s = clock.monotonic_s() + CHANGES_S
    versions = []
    for place in reversed(range(max(0, len(history) - VERSIONS_MAX), len(history))):
        schema, entry = history[place], entries.get(history[place].version)
        time_us = None if entry is None else times.time_us(entry)
        versions.append(
            {
                "version": schema.version,
                "recorded": None if time_us is None else format_time(time_us),
                "key": _side(schema.key),
                "value": _side(schema.value),
                **_changes_of(name, history, place, late=clock.monotonic_s() >= deadline_s),
            }
        )
    return {
        "topic": name,
        "schema_change": None if settings is None else settings.schema_change,
        "versions": versions,
        "versions_left": len(history) - len(versions),
    }


def _side(side: SourceSchema | None) -> dict[str, Any] | None:
    if side is None:
        return None
    ids = [] if side.envelope is None else [number for number, _ in side.envelope.ids]
    return {"format": side.format, "message": side.message, "ids": ids[-CHANGES_MAX:]}


def _changes_of(name: str, history: Sequence[TopicSchema], place: int, *, late: bool) -> dict[str, Any]:
    """What a version changed, decided again from its recorded messages."""
    if late:
        return {"changes": [], "changes_left": None, "why": f"not compared within {CHANGES_S:g} s"}
    key, value = (None if one is None else one.source() for one in history[place].sides())
    try:
        changes = decide(name, history[:place], key, value).changes
    # For example a message that an older version mapped and this one does not.
    except ArchiverError as error:
        return {"changes": [], "changes_left": None, "why": excerpt(str(error), _TEXT_MAX)}
    why = None
    if not changes and (key is not None or value is not None):
        why = "the messages are the same; the catalog gave the columns other field ids, or a rule changed"
    elif not changes:
        why = "neither keys nor values have a schema, so their bytes are their only columns"
    return {**_shown(changes), "why": why}


def _shown(changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "changes": [_change(one) for one in changes[:CHANGES_MAX]],
        "changes_left": max(0, len(changes) - CHANGES_MAX),
    }


def _change(change: Change) -> dict[str, Any]:
    # Without the field id: of a version that is decided again it may differ from the recorded one.
    return {
        "what": change.what,
        "side": change.side,
        "field": change.field,
        "column": change.column,
        "was": change.was,
        "now": change.now,
        "why": change.why,
        "compatible": change.compatible,
    }


# --- The plan
def plan_document(app: Application, name: str) -> dict[str, Any]:
    """What the newest schema of the source would do to the table. Raises `NotFound`, and what fetching a
    schema raises.
    """
    plan, notes = planned(app, name, schema_history(app, name))
    decision = plan.decision
    return {
        "recorded_version": plan.recorded,
        "version": decision.schema.version,
        **_shown(decision.changes),
        "unchanged": len(plan.unchanged),
        "compatible": decision.compatible,
        "allowed": plan.allowed,
        "schema_change": plan.policy,
        "notes": [excerpt(note, _TEXT_MAX) for note in notes],
    }


# --- Undecoded records
def undecoded_document(app: Application, name: str, clock: Clock) -> dict[str, Any] | None:
    """Undecoded keys and values of the current rows by the manifests alone; None without a table."""
    settings, view = app.settings.topic(name), app.table(name)
    if settings is None or view is None:
        return None
    fields = error_fields(view.schema_json)
    files = app.tables(settings.archive.catalog or "").live_files(view, nulls_of=set(fields.values()))
    bounded = _Bounded(files if fields else iter(()), clock)
    counts = undecoded_by_side(bounded, fields)
    return {
        "key": counts.get("key"),
        "value": counts.get("value"),
        "files": bounded.files,
        "complete": bounded.complete,
    }


class _Bounded:
    """Files up to a number and a time."""

    def __init__(self, files: Iterator[LiveFile], clock: Clock) -> None:
        self._source = files
        self._clock = clock
        self.files = 0
        self.complete = False
        """Whether there were no others."""

    def __iter__(self) -> Iterator[LiveFile]:
        deadline_s = self._clock.monotonic_s() + COUNTED_S
        for file in islice(self._source, COUNTED_FILES_MAX):
            self.files += 1
            yield file
            if self._clock.monotonic_s() >= deadline_s:
                return
        self.complete = next(self._source, None) is None
