"""Maps the newest fields of a message to existing columns, and classifies each schema change.

These are the evolution rules (docs/protocols/schema-evolution.md): which field continues in which column,
which column is renamed or widened, when a field gets a new one, and which changes are compatible. Pure: works
on a copy of the newest recorded Iceberg JSON, which has every column ever made. No column is removed, moved
into another struct, or given to another field number. New ids come from the given counter; no other id
changes. A column is never found by its name, only by field numbers and the ids of the enclosing structs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from archiver.schema.columns import (
    Json,
    column_type,
    container_ids,
    field_ids,
    message_columns,
    new_column,
)
from archiver.schema.evolution.field_history import Former, Past, inside, mapped
from archiver.schema.protobuf.column_names import column_names
from archiver.schema.protobuf.tree import EnumTree, FieldTree, Kind, MessageTree, Shape

# --- Changes, and the policies that allow them
What = Literal[
    "added",
    "dropped",
    "restored",
    "renamed",
    "widened",
    "new_column",
    "unchanged_column",
    "message",
    "envelope",
]
"""added: a new field gets a column · dropped: the field is gone, its column stays and reads null from here on
· restored: the field gets a former column again · renamed: the column has another name and the same rows ·
widened: the column's type holds more, its rows are the same · new_column: the field's new type does not fit
its column, so it gets an additional one · unchanged_column: the bytes of the field differ (presence, packed,
oneof, enum values, Protobuf type) and its column is the same · message: the key or value is another message,
or now has a schema or none · envelope: the registry ids of the message differ. The last two are of the whole
key or value."""

WHATS: Final[tuple[What, ...]] = get_args(What)
"""All of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a topic's newest recorded schema and the one that follows."""

    side: Literal["key", "value"]
    path: str
    """Field numbers from the top, as in "3/1": the keys of `SourceSchema.field_ids`. Empty: the whole key or
    value."""
    field: str
    """Names of the Protobuf fields from the top, as in "customer.address". Of a dropped field as it was
    called last. Empty: the whole."""
    what: What
    column: str
    """Names of columns from the top, as in "value.customer.address_v2", as they are after the change."""
    field_id: int | None
    """Iceberg's id of the column; None for `message` and `envelope`."""
    was: str
    """Before: the column's name for `renamed`, its type for `dropped`, `widened` and `new_column` (of the
    former column), else what differs, in words. Empty where there was nothing."""
    now: str
    """After: as `was`; the column's type for `added`, `restored` and `new_column`."""
    why: str
    """One sentence for people: what this means for old and new records. Empty where the change says it
    all."""
    compatible: bool
    """Whether earlier records and queries keep their meaning. False: the type does not fit, so a column is no
    longer filled (`new_column`). Or the new schema reads records of the former one differently or not at
    all."""


Policy = Literal["evolve", "compatible", "refuse"]
"""evolve: every change is applied · compatible: an incompatible one halts the topic · refuse: each change of
a message halts it."""


def is_allowed(policy: Policy, changes: Sequence[Change]) -> bool:
    """Whether changes of a topic's schema are applied under a policy."""
    # Other registry ids are no change of a message: a version that differs only in a comment has its own id.
    if policy == "refuse":
        return all(one.what == "envelope" for one in changes)
    return policy == "evolve" or all(one.compatible for one in changes)


# --- What differs between two fields that share a column
_VALUES_SHOWN = 5

_ON_THE_WIRE: Final[Mapping[Kind, str]] = {
    Kind.INT32: "varint",
    Kind.INT64: "varint",
    Kind.UINT32: "varint",
    Kind.UINT64: "varint",
    Kind.BOOL: "varint",
    Kind.ENUM: "varint",
    Kind.SINT32: "zigzag",
    Kind.SINT64: "zigzag",
    Kind.FIXED32: "4 bytes",
    Kind.SFIXED32: "4 bytes",
    Kind.FIXED64: "8 bytes",
    Kind.SFIXED64: "8 bytes",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "length",
    Kind.BYTES: "length",
    Kind.ENCODED: "length",
    Kind.MESSAGE: "length",
    Kind.TIMESTAMP: "length",
}
"""Kinds of one form read each other's values, as far as they fit."""

_JSON: Final[Mapping[str, str]] = {
    "struct": "google.protobuf.Struct",
    "value": "google.protobuf.Value",
    "list": "google.protobuf.ListValue",
}


@dataclass(frozen=True)
class Difference:
    """Two fields that share a column and are not the same."""

    was: str
    now: str
    compatible: bool
    """Whether records of either are read rightly by the other, to the same values."""


def field_text(field: FieldTree) -> str:
    """A field's type in the words of its format."""
    if field.text:
        return field.text
    kind = _kind_text(field)
    if field.key is not None:
        return f"map<{_kind_text(field.key)},{kind}>"
    return f"repeated {kind}" if field.shape is Shape.REPEATED else kind


def wire_difference(was: FieldTree, now: FieldTree, names: bool) -> Difference | None:
    """What differs between two fields of one number that fit one column, their names only with `names`; None
    if nothing does.
    """
    if now.text:
        # An Avro record is read by the schema that wrote it, so a difference misleads no reader.
        return None if was.text == now.text else Difference(was.text, now.text, compatible=True)
    before: list[str] = []
    after: list[str] = []
    pairs = _pairs(was, now)
    # A renamed column reports its name as a change of its own.
    if names:
        pairs.append((f"named {was.name}", f"named {now.name}"))
    for a, b in pairs:
        if a != b:
            before.append(a)
            after.append(b)
    if not before:
        return None
    # The key of a map is on the wire too, and must be readable by both schemas.
    keys_alike = was.key is None or now.key is None or _form(was.key) == _form(now.key)
    compatible = _form(was) == _form(now) and keys_alike and _names_stay(was.enum, now.enum)
    return Difference(", ".join(before), ", ".join(after), compatible)


def _pairs(was: FieldTree, now: FieldTree) -> list[tuple[str, str]]:
    pairs = [
        (field_text(was), field_text(now)),
        ("presence" if was.presence else "no presence", "presence" if now.presence else "no presence"),
        ("packed" if was.packed else "not packed", "packed" if now.packed else "not packed"),
        (_oneof_text(was), _oneof_text(now)),
    ]
    if was.enum is not None and now.enum is not None and was.enum != now.enum:
        pairs.append((_values_text(was.enum, now.enum), _values_text(now.enum, was.enum)))
    return pairs


def _names_stay(was: EnumTree | None, now: EnumTree | None) -> bool:
    """Whether every number that both enums name has one name: rows hold the names."""
    # Rows hold names of enum values. A number with another name would give old and new rows two names.
    before = {} if was is None or now is None else dict(was.names)
    return now is None or all(before.get(number, name) == name for number, name in now.names)


def _kind_text(field: FieldTree) -> str:
    if field.json is not None:
        return _JSON[field.json]
    if field.wrapped:
        return f"wrapped {field.kind.value}"
    return "group" if field.delimited else field.kind.value


def _form(field: FieldTree) -> str:
    """What two fields must share to read each other's records."""
    if field.json is not None:
        # A Struct column is JSON text; read as another form, its bytes mean something else.
        return _JSON[field.json]
    form = "group" if field.delimited else _ON_THE_WIRE[field.kind]
    return f"wrapped {form}" if field.wrapped else form


def _oneof_text(field: FieldTree) -> str:
    return "in no oneof" if field.oneof is None else f"in the oneof of field {field.oneof}"


def _values_text(mine: EnumTree, other: EnumTree) -> str:
    """The enum values that the other does not have."""
    only = sorted(set(mine.names) - set(other.names))
    shown = [f"{name} = {number}" for number, name in only[:_VALUES_SHOWN]]
    more = [f"{len(only) - _VALUES_SHOWN} more"] if len(only) > _VALUES_SHOWN else []
    return f"enum values {', '.join([*shown, *more])}" if only else "no other enum values"


# --- Names and types of columns
SideName = Literal["key", "value"]

_WIDER = frozenset({("int", "long"), ("float", "double")})
"""Iceberg's type promotions between the types of our tables, except for decimals."""


def settled_names(tree: MessageTree) -> MessageTree:
    """The tree of a message that has no columns yet, with the names its columns get."""
    names = column_names([one.name for one in tree.fields], ())
    fields = (replace(_settled_inside(one), name=name) for one, name in zip(tree.fields, names, strict=True))
    return replace(tree, fields=tuple(fields))


def _settled_inside(field: FieldTree) -> FieldTree:
    return field if field.message is None else replace(field, message=settled_names(field.message))


def widened(column: str | Json, target: str | Json) -> str | Json | None:
    """The type of a column that goes on as a field of type `target`: as it is, or wider; None if the two do
    not fit.

    Of structs the fields are not compared, and the same object comes back. Keys of maps never change.
    """
    if isinstance(column, str) or isinstance(target, str):
        return (
            _widened_scalar(column, target) if isinstance(column, str) and isinstance(target, str) else None
        )
    # Iceberg does not allow to change the type of a map key.
    if column["type"] != target["type"] or column.get("key") != target.get("key"):
        return None
    if column["type"] == "struct":
        return column
    part = "element" if column["type"] == "list" else "value"
    item = widened(column[part], target[part])
    # A copy with the same ids: the caller decides whether the column continues.
    return None if item is None else {**column, part: item}


def _widened_scalar(column: str, target: str) -> str | None:
    # A field that becomes narrower keeps the wider column, which holds all its values.
    if column == target or is_wider(target, column):
        return column
    return target if is_wider(column, target) else None


def is_wider(narrow: str, wide: str) -> bool:
    """Whether Iceberg may change a column from the first type to the second."""
    if (narrow, wide) in _WIDER:
        return True
    a, b = decimal_of(narrow), decimal_of(wide)
    # Iceberg widens the precision only; another scale would change the values.
    return a is not None and b is not None and a[1] == b[1] and a[0] < b[0]


def decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type, however it is spelled."""
    if not (kind.startswith("decimal(") and kind.endswith(")")):
        return None
    # Catalogs write `decimal(20, 0)` with or without the space; int() accepts both.
    precision, _, scale = kind[len("decimal(") : -1].partition(",")
    return int(precision), int(scale)


def type_text(kind: str | Json) -> str:
    """A column's type for people, without what is in a struct."""
    if isinstance(kind, str):
        return kind.replace(" ", "")
    if kind["type"] == "list":
        return f"list<{type_text(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{type_text(kind['key'])},{type_text(kind['value'])}>"
    return "struct"


# --- The walk through a message


@dataclass(frozen=True)
class _Place:
    """A struct whose fields are a message's."""

    struct: Json
    owner: int
    """Id of the column, element or map value that the struct is the type of."""
    message: str
    """Full name of the message, for people."""
    numbers: str
    """Field numbers that lead here, each with a slash behind it."""
    names: str
    """The same as field names, each with a dot behind it."""
    columns: str
    """The same as column names from the top."""


class SideEvolution:
    """One walk through a key's or a value's newest message."""

    def __init__(self, side: SideName, past: Past, ids: Iterator[int]) -> None:
        self._side: SideName = side
        self._past = past
        self._ids = ids
        self.field_ids: dict[str, int] = {}
        """Of the fields that the message has now."""
        self.changes: list[Change] = []

    def carry_on(self, column: Json, tree: MessageTree, target: MessageTree) -> None:
        """Adapt the `key` or `value` column, in place, to the message. `target` is the tree with the names
        that its fields ask for.
        """
        # A key or value that had no schema lacks the columns that only messages have.
        message_columns(column["type"], self._ids, closed=tree.closed)
        self._message(
            tree, target, _Place(column["type"], column["id"], tree.full_name, "", "", f"{self._side}.")
        )

    def drop_all(self, column: Json) -> None:
        """The key or value has no message any more: its columns stay as they are."""
        place = _Place(column["type"], column["id"], "", "", "", f"{self._side}.")
        self._dropped(MessageTree((), ""), place, {})

    def _message(self, tree: MessageTree, target: MessageTree, place: _Place) -> None:
        columns: dict[int, Json] = {one["id"]: one for one in place.struct["fields"]}
        formers = [self._former(place, one, columns) for one in tree.fields]
        # All names of a level are decided together, so that two columns can swap theirs.
        names = _names(target.fields, formers, columns)
        steps = {former.field.name: step for step, former in self._current(place).items()}
        for one, want, former, name in zip(tree.fields, target.fields, formers, names, strict=True):
            moved = _moved(one, place, steps.get(one.name), tree)
            if former is None:
                self._new(one, want, name, place, moved)
            else:
                self._go_on(one, want, former, columns[former.column], name, place, moved)
        self._dropped(tree, place, columns)

    def _former(self, place: _Place, field: FieldTree, columns: dict[int, Json]) -> Former | None:
        """The newest column of that field number whose type fits."""
        target = column_type(field)
        # Newest first: a field that returns to an earlier type returns to its earlier column.
        candidates = self._past.formers.get((place.owner, field.step), ())
        return next(
            (
                one
                for one in candidates
                if one.field.form == field.form and widened(columns[one.column]["type"], target) is not None
            ),
            None,
        )

    def _current(self, place: _Place) -> dict[str, Former]:
        return self._past.current.get(place.owner, {})

    def _new(self, field: FieldTree, want: FieldTree, name: str, place: _Place, moved: str) -> None:
        # Inside a new column all names are free, so clashes are resolved only among its own fields.
        named = replace(_settled_inside(want), name=name)
        column = new_column(named, self._ids)
        place.struct["fields"].append(column)
        ids = field_ids(MessageTree((named,), ""), {"fields": [column]})
        self.field_ids.update({f"{place.numbers}{path}": number for path, number in ids.items()})
        formers = self._past.formers.get((place.owner, field.step), ())
        now = type_text(column["type"])
        # The number had columns before, but none of a type that fits.
        if formers:
            # Compared with the column in use; a field that was dropped is compared with its newest column.
            last = self._current(place).get(field.step, formers[0])
            difference = Difference(field_text(last.field), field_text(field), compatible=False)
            columns = {one["id"]: one for one in place.struct["fields"]}
            former = columns[last.column]
            why = (
                f"field {field.named} of message {place.message} was {difference.was} "
                f"and is {difference.now}, which does "
                f"not fit column {place.columns}{former['name']}; older rows keep their values there"
            )
            self._tell(
                place, field, "new_column", column, type_text(former["type"]), now, why, compatible=False
            )
            return
        self._tell(place, field, "added", column, "", now, moved, compatible=not moved)

    def _go_on(
        self,
        field: FieldTree,
        want: FieldTree,
        former: Former,
        column: Json,
        name: str,
        place: _Place,
        moved: str,
    ) -> None:
        current = self._current(place).get(field.step)
        was_name, was_type = column["name"], type_text(column["type"])
        kind = widened(column["type"], column_type(field))
        assert kind is not None
        # In place, because the column keeps its id and so its older rows.
        column["name"], column["type"] = name, kind
        self._record_ids(field, column, place)
        difference = wire_difference(former.field, field, names=was_name == name)
        if current is None or current.column != former.column:
            self._restored(field, column, place, current, difference)
            # One difference is reported once, by the first change that can carry it.
            difference = None
        if was_name != name:
            self._tell(place, field, "renamed", column, was_name, name, moved, compatible=not moved)
        if was_type != type_text(kind):
            compatible = difference is None or difference.compatible
            self._tell(
                place, field, "widened", column, was_type, type_text(kind), _wire_why(difference), compatible
            )
            difference = None
        if difference is not None:
            why = _wire_why(difference) or moved
            self._tell(
                place,
                field,
                "unchanged_column",
                column,
                difference.was,
                difference.now,
                why,
                difference.compatible and not moved,
            )
        if field.message is not None and want.message is not None:
            # In a path of field numbers, 2 leads from a map to its value.
            struct, owner = inside(column)
            numbers = f"{place.numbers}{field.step}{field.below}"
            names, columns = f"{place.names}{field.name}.", f"{place.columns}{column['name']}."
            self._message(
                field.message,
                want.message,
                _Place(struct, owner, field.message.full_name, numbers, names, columns),
            )

    def _record_ids(self, field: FieldTree, column: Json, place: _Place) -> None:
        self.field_ids[f"{place.numbers}{field.step}"] = column["id"]
        self.field_ids.update(
            {f"{place.numbers}{path}": number for path, number in container_ids(field, column).items()}
        )

    def _restored(
        self,
        field: FieldTree,
        column: Json,
        place: _Place,
        current: Former | None,
        difference: Difference | None,
    ) -> None:
        now = type_text(column["type"])
        if current is not None:
            was = type_text(mapped(place.struct)[current.column]["type"])
            why = (
                f"field {field.named} of message {place.message} was "
                f"{field_text(current.field)} and is "
                f"{field_text(field)} again; it goes on in the column that it had with that type"
            )
            self._tell(place, field, "restored", column, was, now, why, compatible=False)
            return
        compatible = difference is None or difference.compatible
        self._tell(place, field, "restored", column, "", now, _wire_why(difference), compatible)

    def _dropped(self, tree: MessageTree, place: _Place, columns: dict[int, Json]) -> None:
        """Columns of fields that are gone. Fields inside them are gone too and are not reported one by
        one.
        """
        # `drop_all` has no columns at hand.
        columns = columns or mapped(place.struct)
        steps = {one.step for one in tree.fields}
        for step, former in sorted(self._current(place).items(), key=_in_order):
            if step not in steps:
                column = columns[former.column]
                why = "its column stays, and new rows have null there"
                self._tell(
                    place,
                    former.field,
                    "dropped",
                    column,
                    type_text(column["type"]),
                    "",
                    why,
                    compatible=True,
                )

    def _tell(
        self,
        place: _Place,
        field: FieldTree,
        what: Literal["added", "dropped", "restored", "renamed", "widened", "new_column", "unchanged_column"],
        column: Json,
        was: str,
        now: str,
        why: str,
        compatible: bool,
    ) -> None:
        self.changes.append(
            Change(
                side=self._side,
                path=f"{place.numbers}{field.step}",
                field=f"{place.names}{field.name}",
                what=what,
                column=f"{place.columns}{column['name']}",
                field_id=column["id"],
                was=was,
                now=now,
                why=why,
                compatible=compatible,
            )
        )


def _names(
    target: Sequence[FieldTree], formers: Sequence[Former | None], columns: dict[int, Json]
) -> list[str]:
    """Each field's column name: the present one if the field still asks for the same, else the new one, with
    a number where it is taken.
    """
    # A column may have a suffix from an earlier clash. It keeps that while its field asks for the same name.
    stays = [
        former is not None and former.target == want.name
        for want, former in zip(target, formers, strict=True)
    ]
    # Columns to be renamed give up their names together, so that two fields can swap theirs.
    leaving = {
        former.column for former, same in zip(formers, stays, strict=True) if former is not None and not same
    }
    # Dropped columns keep their names: old queries would read other data under a reused name.
    taken = [column["name"] for number, column in columns.items() if number not in leaving]
    asking = iter(
        column_names([want.name for want, same in zip(target, stays, strict=True) if not same], taken)
    )
    return [
        columns[former.column]["name"] if same and former is not None else next(asking)
        for former, same in zip(formers, stays, strict=True)
    ]


def _in_order(item: tuple[str, Former]) -> tuple[int, str]:
    """Fields by number; fields without one by what identifies them."""
    step, former = item
    return former.field.number, step


def _moved(field: FieldTree, place: _Place, before: str | None, tree: MessageTree) -> str:
    """Why it is incompatible that a field of that name had the number `before`; empty if there was none, or
    it is the same. Without numbers (Avro) a name that passes to another field is no fault: each record is
    read by its own schema.
    """
    if before in (None, field.step) or field.identity:
        return ""
    # Records of the former schema fill the field that has the former number now.
    heir = next((one.name for one in tree.fields if one.step == before), None)
    return (
        f"field {field.name} of message {place.message} had number {before} and has number "
        f"{field.number}: to Protobuf these are two "
        "fields, and what the former number brings is "
        f"{'unknown to the new schema' if heir is None else f'field {heir} there'}"
    )


def _wire_why(difference: Difference | None) -> str:
    if difference is None or difference.compatible:
        return ""
    return (
        f"{difference.was} and {difference.now} are different on the wire: records made with one schema "
        "are not read rightly by the other"
    )
