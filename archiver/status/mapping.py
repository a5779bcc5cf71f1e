"""A topic's mapping of Protobuf fields to columns, and the changes that a newer schema would cause.

Pure. It reads recorded schemas and uses the same decision as archiving, but writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from archiver.schema.avro.source import with_writers_of
from archiver.schema.columns import Json
from archiver.schema.evolution.evolve import Policy, SideName, field_text, is_allowed, type_text
from archiver.schema.evolution.field_history import inside, mapped, translations, trees_of
from archiver.schema.evolution.recorded import SourceSchema, TopicSchema
from archiver.schema.evolution.state import Decision, decide
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED, MessageTree

_SIDES: tuple[SideName, SideName] = ("key", "value")
# Columns that the archiver adds have no Protobuf field.
_OURS = frozenset({RAW, PREFIX, ERR, UNRECOGNIZED})


@dataclass(frozen=True, slots=True)
class MappedField:
    """One field of a message and its column. A field that changed its column has one entry per column."""

    side: SideName
    field: str
    """Names of the Protobuf fields from the top; a dropped field has its last name."""
    path: str
    """Field numbers from the top; of Avro names."""
    protobuf_type: str
    column: str
    """Names of the columns from the top."""
    type: str
    """The column's Iceberg type."""
    field_id: int
    active: bool
    """Whether the newest version uses the column. False: the column is dropped; older rows keep their
    values."""
    versions: tuple[int, ...]
    """Schema versions in which the field has this column."""

    def to_json(self) -> dict[str, object]:
        """Entry of the JSON document."""
        return asdict(self)


def mapping_of(history: Sequence[TopicSchema]) -> list[MappedField]:
    """Every field of every version with its column, sorted by path; `history` has the oldest version
    first.
    """
    if not history:
        return []
    found: dict[tuple[SideName, int], MappedField] = {}
    for schema, ids in zip(history, translations(history), strict=True):
        for index, (side, recorded) in enumerate(zip(_SIDES, schema.sides(), strict=True)):
            if recorded is None:
                continue
            # The newest names: Iceberg keeps one name per field id, also for older files.
            columns = _columns(history[-1].schema()["fields"][index])
            # Of the version itself, because a field may have had another type there.
            tree = trees_of(recorded.source(), f"recorded schema {schema.version}").tree
            for path, names, kind in _fields(tree, "", ""):
                number = _id_of(recorded, ids, path)
                if number is None or number not in columns:
                    # The code of that version did not map this field.
                    continue
                column, column_type = columns[number]
                # By the id of the column: a field that changed its column has an entry for each.
                before = found.get((side, number))
                versions = (*(() if before is None else before.versions), schema.version)
                active = schema is history[-1]
                found[side, number] = MappedField(
                    side, names, path, kind, column, column_type, number, active, versions
                )
    # As numbers: as text, field 10 would come before field 2.
    return sorted(found.values(), key=lambda one: (one.side, _order(one.path), one.versions))


def _order(path: str) -> list[tuple[int, str]]:
    """Steps of a path in order: numbers as such, names (Avro) behind them."""
    return [(int(part), "") if part.isdecimal() else (2**31, part) for part in path.split("/")]


@dataclass(frozen=True)
class SchemaPlan:
    """What newer messages would do to a topic's columns."""

    topic: str
    recorded: int | None
    """Newest version in the ledger; None if there is none."""
    decision: Decision
    unchanged: tuple[MappedField, ...]
    """Fields without a change."""
    policy: Policy = "evolve"
    """The topic's `schema_change`."""

    @property
    def allowed(self) -> bool:
        """Whether archiving would apply the changes; False: it would halt the topic."""
        # The first schema of a topic changes nothing.
        return self.recorded is None or is_allowed(self.policy, self.decision.changes)

    def to_json(self) -> dict[str, object]:
        """The document of `archiver schema plan`."""
        return {
            "topic": self.topic,
            "version": self.decision.schema.version,
            "recorded_version": self.recorded,
            "changes": [asdict(change) for change in self.decision.changes],
            "unchanged": [one.column for one in self.unchanged],
            "compatible": self.decision.compatible,
            "schema_change": self.policy,
            "allowed": self.allowed,
        }


def plan_of(
    topic: str,
    history: Sequence[TopicSchema],
    key: Source | None,
    value: Source | None,
    policy: Policy = "evolve",
) -> SchemaPlan:
    """What archiving would do if these were the newest messages.

    The ids of new columns follow the recorded ones. In a table with external columns they would be higher.
    Raises `ConfigInvalid` for a message that cannot be mapped.
    """
    decision = decide(topic, history, key, value)
    changed = {(change.side, change.path) for change in decision.changes if change.path}
    # A decision without changes returns the newest recorded schema itself.
    now = [*history, decision.schema] if decision.schema not in history else list(history)
    active = [one for one in mapping_of(now) if one.active]
    # A change of a message covers all fields inside it.
    unchanged = tuple(
        one for one in active if not any((one.side, above) in changed for above in _with_above(one.path))
    )
    return SchemaPlan(topic, history[-1].version if history else None, decision, unchanged, policy)


def first_version(source: Source, side: SideName) -> list[TopicSchema]:
    """History with a single schema, for a comparison of two schemas without a topic."""
    key, value = (source if name == side else None for name in _SIDES)
    return [decide("schema", (), key, value).schema]


def with_envelope_of(source: Source, recorded: SourceSchema | None) -> Source:
    """An unregistered schema with the registry ids of the recorded one, so that its missing id is no
    change.
    """
    if recorded is None or recorded.format != source.format:
        return source
    if source.format == "avro":
        return with_writers_of(source, recorded.source())
    return replace(source, envelope=recorded.envelope)


def _with_above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _id_of(recorded: SourceSchema, ids: Mapping[int, int], path: str) -> int | None:
    number = recorded.field_ids.get(path)
    return None if number is None else ids.get(number, number)


def _fields(tree: MessageTree, numbers: str, names: str) -> Iterator[tuple[str, str, str]]:
    """Path of numbers, path of names and Protobuf type of every field, depth first."""
    for one in tree.fields:
        path, name = f"{numbers}{one.step}", f"{names}{one.name}"
        yield (
            path,
            name,
            field_text(one)
            if one.message is None or one.text
            else field_text(one).replace(one.kind.value, one.message.full_name),
        )
        if one.message is not None:
            # A map is a repeated message on the wire, with the key as field 1 and the value as field 2.
            yield from _fields(one.message, f"{path}{one.below}", f"{name}.")


def _columns(column: Json) -> dict[int, tuple[str, str]]:
    """Names from the top and type of every column inside one, by id."""
    found: dict[int, tuple[str, str]] = {}

    def walk(struct: Json, above: str) -> None:
        for number, one in mapped(struct).items():
            if one["name"] in _OURS:
                continue
            found[number] = f"{above}.{one['name']}", type_text(one["type"])
            if isinstance(one["type"], dict):
                # The struct inside a list or a map, where fields of a repeated message are.
                below: object = inside(one)[0]
                if isinstance(below, dict) and below["type"] == "struct":
                    walk(below, found[number][0])

    walk(column["type"], column["name"])
    return found
