"""Reads the configuration file, and describes its problems by line and key path.

YAML 1.2 rules apply: duplicate keys are refused; `yes`, `no`, `on` and `1:30` are text. All problems are
reported at once, each with line, key path and remedy. No message repeats a value that may be secret.
"""

from __future__ import annotations

import difflib
import functools
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from archiver.config.types import (
    Group,
    Located,
    Surroundings,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted

GroupT = TypeVar("GroupT", bound=Group)
KeyPath = tuple[str | int, ...]
DEPTH_MAX = 32
"""Deeper nesting is refused; a valid file has five levels."""
VALUES_MAX = 200_000
"""Most values in a file. Each use of an alias counts as its full value: a few lines of aliases can expand to
billions."""
BYTES_MAX = 16 * 2**20
"""Largest file."""
SHOWN_MAX = 500
"""Characters of a value that a message repeats."""
PROBLEMS_SHOWN = 200
"""Problems that one message lists."""
_SCALARS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "int", "float", "str"))
"""The tags of scalar values."""


class _Loader(yaml.SafeLoader):
    """A loader with the core types of YAML 1.2 instead of those of YAML 1.1."""

    # A new dictionary: the one of SafeLoader has the rules of YAML 1.1, and all its subclasses share it.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - the library's own name


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false|True|False|TRUE|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
# No octal and no leading zeros: `010` is text here, as it is 8 in YAML 1.1 and 10 in YAML 1.2.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?$"), list("-+0123456789")
)


_ADVICE = {
    "mapping values are not allowed here": "indent the keys of a group alike, end each key with a colon, and "
    "quote a value that has a colon and a space",
    "expected <block end>": "indent the keys of a group, and the entries of a list, alike",
    "'\\t'": "indent with spaces, not with tabs",
    "unexpected end of stream": "close the quotes",
}
"""By a part of the problem in PyYAML's words: how to correct its usual cause."""


def read_document(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The document, and the line of each key path; raises `ConfigInvalid`."""
    text = _text(path)
    loader: _Loader | None = None
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        # The tree of nodes and not the values, because only nodes have line numbers.
        document = _value(_Reading(loader, path, lines), node, ()) if node is not None else {}
    # PyYAML's own text would repeat lines of the file, which may contain a secret.
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = str(error.problem or error.context)
        raise ConfigInvalid(f"{path}, line {line}: not valid YAML: {problem}{_advice(problem)}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigInvalid(
            f"{path}, line {line}: not valid YAML: {error.reason}: character {error.character!r}"
        ) from error
    # PyYAML itself recurses, so this depth may be reached before ours is checked.
    except RecursionError as error:
        line = 1 if loader is None else loader.line + 1
        raise ConfigInvalid(f"{path}, line {line}: nested deeper than {DEPTH_MAX} levels") from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(document, dict):
        raise ConfigInvalid(
            f"{path}, line {lines[()]}: the file must be a mapping of keys to values, not {_kind(document)}"
        )
    return document, lines


def _advice(problem: str) -> str:
    """What to look for at a problem that YAML names in the words of its grammar."""
    for part, advice in _ADVICE.items():
        if part in problem:
            return f"; {advice}"
    return ""


def _text(path: Path) -> str:
    """The file's text; raises `ConfigInvalid`."""
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows that the file is larger, without reading all of it.
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise ConfigInvalid(
                f"{path} is larger than {BYTES_MAX:,} bytes; name the configuration file with -c FILE "
                "or ARCHIVER_CONFIG"
            )
        # Universal newlines, as in text mode.
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except FileNotFoundError as error:
        raise ConfigInvalid(
            f"{path} does not exist; name an existing configuration file (commands: -c FILE or "
            "ARCHIVER_CONFIG)"
        ) from error
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error


@dataclass
class _Reading:
    """The state while one document is read."""

    loader: _Loader
    path: Path
    lines: dict[KeyPath, int]
    values: int = 0
    """Values so far; an alias counts at each use."""


def _value(reading: _Reading, node: yaml.Node, at: KeyPath) -> Any:
    line = node.start_mark.line + 1
    where = f"{reading.path}, line {line}"
    # The key's line stays if there is one: a value may begin on the next line.
    reading.lines.setdefault(at, line)
    # An alias is the same node again, and is counted at each use.
    reading.values += 1
    if reading.values > VALUES_MAX:
        raise ConfigInvalid(
            f"{where}: the file has more than {VALUES_MAX:,} values, each alias counted as its full value"
        )
    if len(at) > DEPTH_MAX:
        raise ConfigInvalid(f"{where}: nested deeper than {DEPTH_MAX} levels")
    if isinstance(node, yaml.SequenceNode):
        return [_value(reading, item, (*at, position)) for position, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(reading, node, at)
    if node.tag not in _SCALARS:
        raise ConfigInvalid(
            f"{where}: the tag {node.tag[:80]!r} is not supported; write the value without it"
        )
    _check_text(node.value, where)
    try:
        return reading.loader.construct_object(node)
    except (ValueError, KeyError, IndexError) as error:
        # PyYAML raises these for `!!bool x` and `!!int ''`.
        raise ConfigInvalid(
            f"{where}: the value {excerpt(node.value, SHOWN_MAX)!r} cannot be read "
            f"({type(error).__name__}: {error})"
        ) from error


def _mapping(reading: _Reading, node: yaml.MappingNode, at: KeyPath) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        # The text as written, so a key such as `1` or `true` is text as well.
        key = key_node.value
        key_line = key_node.start_mark.line + 1
        where = f"{reading.path}, line {key_line}"
        # YAML allows a list or a mapping as a key.
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigInvalid(f"{where}: a key must be text")
        _check_text(key, where)
        # PyYAML would keep the last one without a message.
        if key in mapping:
            before = reading.lines[*at, key]
            raise ConfigInvalid(
                f"{where}: the key {key_path((*at, key))} was given before, on line {before}; remove "
                "one of them"
            )
        reading.lines[*at, key] = key_line
        mapping[key] = _value(reading, value_node, (*at, key))
    return mapping


def _check_text(text: str, where: str) -> None:
    """Refuse half of a surrogate pair. Only an escape can produce one, and it cannot be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigInvalid(
            f"{where}: the text contains half of a surrogate pair; write the character itself"
        ) from error


def key_path(at: KeyPath) -> str:
    """A key path as text: `topics[0].archive.table`."""
    text = ""
    for step in at:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[tuple[KeyPath, str]]:
    """The problems in a pydantic error, in the words of this project."""
    problems: list[tuple[KeyPath, str]] = []
    items = error.errors(include_url=False)
    # pydantic counts an invalid item of a list as missing; its own problem says more.
    around = {tuple(item["loc"][:end]) for item in items for end in range(len(item["loc"]))}
    for item in items:
        cause = item.get("ctx", {}).get("error")
        at = tuple(item["loc"])
        if item["type"] == "too_short" and at in around:
            continue
        # A check over several keys knows where each problem is; pydantic knows only the group.
        found = cause.problems if isinstance(cause, Located) else [((), _words(item, at, model))]
        problems.extend(((*at, *below), message) for below, message in found)
    return problems


def salvaged(group: type[GroupT], item: object, around: Surroundings) -> GroupT | None:
    """The group with the valid fields of an item, for checks across groups; None if the item has no fields.

    A missing or invalid field has its default. Without a default it is None, regardless of its type.
    """
    try:
        return group.model_validate(item, context=around)
    except ValidationError:
        if not isinstance(item, Mapping):
            return None
    values: dict[str, Any] = {}
    for name, field in group.model_fields.items():
        values[name] = None if field.is_required() else field.get_default(call_default_factory=True)
        given = item.get(field.alias or name)
        if given is None:
            continue
        try:
            # Field by field: one invalid field must not hide the others.
            values[name] = _adapter(group, name).validate_python(given, context=around)
        except ValidationError:
            # An invalid group is salvaged in turn.
            inner = _model_in(field.annotation)
            part: Group | None = (
                salvaged(inner, given, around) if inner is not None and issubclass(inner, Group) else None
            )
            values[name] = values[name] if part is None else part
    # Without validation: the checks across groups read single fields, and `is_known` shows which have a
    # value.
    return cast("GroupT", group.model_construct(**values))


def is_known(field: object) -> bool:
    """Whether a field of a salvaged group has a value."""
    return field is not None


@functools.cache
def _adapter(group: type[Group], name: str) -> TypeAdapter[Any]:
    """Validates one field. Cached: it takes a millisecond to build, and a file may have thousands of
    topics.
    """
    field = group.model_fields[name]
    kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(kind)


def explain(path: Path, problems: Iterable[tuple[KeyPath, str]], lines: Mapping[KeyPath, int]) -> str:
    """All problems of a configuration, one per line, in the order of the file."""
    located: list[tuple[int, str]] = []
    for at, message in problems:
        line = _line(at, lines)
        located.append((line, f"line {line}: {key_path(at)}: {message}" if at else message))
    # The sort is stable: problems of one line stay in the order of the checks.
    texts = [text for _, text in sorted(located, key=lambda problem: problem[0])]
    if len(texts) == 1:
        return f"{path}, {texts[0]}"
    rest = len(texts) - PROBLEMS_SHOWN
    more = [f"and {rest} more"] if rest > 0 else []
    # A compiler problem has several lines.
    indented = (text.replace("\n", "\n    ") for text in [*texts[:PROBLEMS_SHOWN], *more])
    return f"{path} has {len(texts)} problems\n" + "\n".join(f"  {text}" for text in indented)


def _line(at: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """The line of a key, or of the nearest enclosing group in the file."""
    # A missing key has no line of its own.
    while at not in lines and at:
        at = at[:-1]
    return lines.get(at, 1)


def _words(item: Any, at: KeyPath, model: type[BaseModel]) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return _unknown_key(str(at[-1]), _group_at(model, at[:-1]))
    if kind == "missing":
        return "is missing; it has no default"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"must be a mapping of keys to values, not {_kind(item['input'])}"
    if kind in ("tuple_type", "list_type"):
        return f"must be a list, not {_kind(item['input'])}"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "too_short":
        least = item["ctx"]["min_length"]
        return f"{_shown(item['input'])} does not fit: it needs at least {counted(least, 'item')}"
    bound = _BOUNDS.get(kind)
    # pydantic states bounds in seconds and bytes; the file has units.
    if bound is not None and (written := _as_written(item["ctx"][bound[0]], at, model)) is not None:
        return f"{_shown(item['input'])} does not fit: it must be {bound[1]} {written}"
    return f"{_shown(item['input'])} does not fit: {item['msg'][0].lower()}{item['msg'][1:]}"


def _shown(value: object) -> str:
    return excerpt(repr(value), SHOWN_MAX)


_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
"""By pydantic's error type: the key of the bound in its context, and its wording."""


def _as_written(bound: float, at: KeyPath, model: type[BaseModel]) -> str | None:
    """A bound with its unit, as in the file; None if the key is neither a duration nor a size."""
    group = _group_at(model, at[:-1])
    declared = None if group is None else group.model_fields.get(str(at[-1]))
    parsers = set() if declared is None else _parsers((declared.annotation, *declared.metadata))
    if parse_duration in parsers:
        return format_duration(bound)
    return format_size(int(bound)) if parse_size in parsers else None


def _parsers(parts: Iterable[Any]) -> set[Any]:
    """The validator functions of an annotation, also inside `Annotated[…] | None`."""
    found: set[Any] = set()
    for part in parts:
        if isinstance(part, BeforeValidator):
            found.add(part.func)
        found |= _parsers((*get_args(part), *getattr(part, "__metadata__", ())))
    return found


def _unknown_key(key: str, group: type[BaseModel] | None) -> str:
    names = (
        # An alias with a dot is a name for this program, not for the file.
        sorted(
            alias
            for name, declared in group.model_fields.items()
            if "." not in (alias := declared.alias or name)
        )
        if group is not None
        else []
    )
    near = difflib.get_close_matches(key, names, n=1)
    if near:
        return f"there is no such key; did you mean {near[0]}?"
    return f"there is no such key; the keys here are {', '.join(names)}"


def _group_at(model: type[BaseModel], at: KeyPath) -> type[BaseModel] | None:
    """The settings group at a key path."""
    group: type[BaseModel] | None = model
    for step in at:
        # A position in a list: its items have the group of the list.
        if isinstance(step, int) or group is None:
            continue
        # An alias is the key of the file, or of a part of its list.
        declared = group.model_fields.get(step) or next(
            (field for field in group.model_fields.values() if field.alias == step), None
        )
        group = None if declared is None else _model_in(declared.annotation)
    return group


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The group inside `Group`, `Group | None` or `tuple[Group, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(
        (found for argument in get_args(annotation) if (found := _model_in(argument)) is not None), None
    )


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    # By the exact type, so that a `bool` is not a number.
    names = {dict: "a mapping", list: "a list", tuple: "a list", bool: "true or false", str: "text"}
    return names.get(type(value), "a number")
