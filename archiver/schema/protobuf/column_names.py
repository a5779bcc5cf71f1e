"""The names of columns: the name for a field, and the rule for name clashes.

`column_names` resolves clashes, and `named_tree` applies configured names. Pure: equal input gives equal
names. No clash halts a topic: the name gets a suffix. No level has a name twice, compared without case
(engines fold it), or a name of the archiver's own columns.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.tree import RESERVED_NAMES, FieldTree, MessageTree

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES_SHOWN = 5


def column_names(requested: Sequence[str], taken: Iterable[str]) -> list[str]:
    """A name for each requested one, in order: itself, or where it is taken `NAME_v2`, `NAME_v3`, …. The
    first of equal names keeps it.

    `taken`: the names of the other columns at this level, dropped ones too. The archiver's own columns' names
    are always taken.
    """
    # Lower case, because engines such as Spark do not distinguish case.
    used = {name.lower() for name in (*RESERVED_NAMES, *taken)}
    names: list[str] = []
    first_free: dict[str, int] = {}
    for want in requested:
        name, number = want, first_free.get(want.lower(), 2)
        while name.lower() in used:
            name, number = f"{want}_v{number}", number + 1
        # Names are only added, so a suffix that was taken is never tried again.
        first_free[want.lower()] = number
        used.add(name.lower())
        names.append(name)
    return names


def named_tree(
    tree: MessageTree, columns: Mapping[str, str] | Sequence[tuple[str, str]], where: str
) -> MessageTree:
    """As `wanted_names`; `where` opens the messages of errors."""
    try:
        return wanted_names(tree, columns)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{where}: {error}") from error


def wanted_names(tree: MessageTree, columns: Mapping[str, str] | Sequence[tuple[str, str]]) -> MessageTree:
    """The tree with the names of `columns` in place of the Protobuf names; the others stay. Names may still
    clash.

    `columns`: dotted path of Protobuf field names (`address.city`; through lists and maps as through
    messages; an extension by its full name with underscores) to the column's name. Raises ConfigInvalid for a
    path that does not exist (similar ones are listed), and for a name that is no plain identifier or is
    reserved. The error names the path.
    """
    renames = dict(columns)
    if not renames:
        return tree
    # Names are checked before paths, so that a wrong name is reported even for a wrong path.
    for path, name in renames.items():
        _check(tree, path, name)
    seen: set[str] = set()
    result = _renamed(tree, renames, "", seen)
    missing = sorted(set(renames) - seen)
    if missing:
        paths = list(_paths(tree, ""))
        near = (
            difflib.get_close_matches(missing[0], paths, n=_NAMES_SHOWN, cutoff=0.5) or paths[:_NAMES_SHOWN]
        )
        raise ConfigInvalid(
            f"message {tree.full_name} has no field {missing[0]!r} to rename; did you mean "
            f"{', '.join(near) or 'another message'}?"
        )
    return result


def _check(tree: MessageTree, path: str, name: str) -> None:
    where = f"message {tree.full_name}, field {path}: the column name {name!r}"
    if not _NAME.fullmatch(name):
        raise ConfigInvalid(f"{where} must be letters, digits and underscores, and not begin with a digit")
    if name.lower() in RESERVED_NAMES:
        raise ConfigInvalid(f"{where} belongs to a column the archiver adds itself; choose another")


def _renamed(tree: MessageTree, renames: Mapping[str, str], above: str, seen: set[str]) -> MessageTree:
    fields: list[FieldTree] = []
    for one in tree.fields:
        # Paths have Protobuf names at every level, also below a renamed field.
        path = f"{above}{one.name}"
        name = one.name
        if path in renames:
            seen.add(path)
            name = renames[path]
        message = None if one.message is None else _renamed(one.message, renames, f"{path}.", seen)
        fields.append(replace(one, name=name, message=message))
    return replace(tree, fields=tuple(fields))


def _paths(tree: MessageTree, above: str) -> Iterable[str]:
    for one in tree.fields:
        yield f"{above}{one.name}"
        if one.message is not None:
            yield from _paths(one.message, f"{above}{one.name}.")
