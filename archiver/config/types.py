"""Parsers of single configuration values: durations, sizes, paths, secrets, names.

Pure, except that a secret is read from its variable or file. No message repeats a secret.
"""

from __future__ import annotations

import ast
import glob
import inspect
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# ASCII only: `\d` would also accept digits of other scripts, which `float` understands.
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_QUANTITY_MAX = 2.0**52
"""Above it, a float cannot represent every whole number."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TABLE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
# Possessive quantifiers, so that a long invalid name takes linear time.
_MESSAGE = re.compile(r"[A-Za-z_]\w*+(?:\.[A-Za-z_]\w*+)*+", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(?P<port>\d{1,5})", re.ASCII)
_COLUMN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HOST_AND_PORT = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/@?#]+))(?::\d{0,5})?", re.ASCII
)
LATER = "this version does not have it yet"
# Kafka's limit.
TOPIC_NAME_MAX = 249
TOPIC_PLACE = "{topic}"
"""In a template: where the topic's name is inserted."""
SUBJECT_MAX = 1024
COLUMN_NAME_MAX = 255
# Names of columns that the archiver itself adds.
RESERVED_COLUMNS = frozenset({"__raw__", "__prefix__", "__err__", "__unrecognized__"})
PORT_MAX = 65535


class Group(BaseModel):
    """One group of settings. Frozen; unknown keys are refused; the docstrings under the fields describe
    them.
    """

    model_config = ConfigDict(
        # Threads share the settings, and a reload replaces them as a whole.
        frozen=True,
        # A misspelled key would otherwise leave a default in force, without a message.
        extra="forbid",
        # A message of the library must not repeat a value, because it may be a secret.
        hide_input_in_errors=True,
        # Defaults are written as in the file, for example paths, and must be resolved as well.
        validate_default=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        texts = descriptions(cls)
        for attribute, info in cls.model_fields.items():
            if attribute in texts:
                properties[info.alias or attribute]["description"] = texts[attribute]
        return schema


def descriptions(group: type[Group]) -> dict[str, str]:
    """The docstrings under the fields of a group and of its base classes, by attribute."""
    # Read on request: `use_attribute_docstrings` parses the source of each group in every command.
    found: dict[str, str] = {}
    for owner in reversed(group.__mro__):
        if issubclass(owner, Group):
            (definition,) = ast.parse(inspect.getsource(owner)).body
            assert isinstance(definition, ast.ClassDef)
            found |= dict(_described(definition.body))
    return found


def _described(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for attribute, text in pairwise(body):
        match attribute, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, inspect.cleandoc(words)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context of a configuration file for the validators: its folder and the environment."""

    folder: Path
    """The folder of the configuration file, at which relative paths start."""
    environ: Mapping[str, str] = field(repr=False)


class Located(ValueError):
    """Problems found by a check over several keys, each with its key path relative to the checking group."""

    def __init__(self, problems: list[tuple[tuple[str | int, ...], str]]) -> None:
        super().__init__("; ".join(message for _, message in problems))
        self.problems = problems


def parse_duration(value: object) -> float:
    """Seconds of `200ms`, `10s`, `5m`, `1h`, `7d` or of a plain number of seconds; raises `ValueError`."""
    return _quantity(value, _SECONDS, "a duration such as 200ms, 10s, 5m, 1h or 7d")


def parse_size(value: object) -> int:
    """Bytes of `15MB`, `128MiB` and the like (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB) or of a plain number;
    raises `ValueError`.

    -1 is valid too, for settings where it means never.
    """
    # Only as a number: `-1MB` would have no meaning.
    if isinstance(value, int) and not isinstance(value, bool) and value == -1:
        return -1
    size = _quantity(value, _BYTES, "a size such as 512KiB, 15MB or 128MiB")
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """A duration in the largest unit that divides it: `1h`, `90s`, `200ms`."""
    # Rounded, because a product such as 0.2 * 1000 has a binary error.
    thousandths = round(seconds * 1000, 6)
    for unit, unit_s in reversed(_SECONDS.items()):
        if thousandths and thousandths % (unit_s * 1000) == 0:
            return f"{thousandths / (unit_s * 1000):.0f}{unit}"
    return f"{thousandths:.12g}ms" if thousandths else "0s"


def format_size(count: int) -> str:
    """A size in the largest unit that divides it: `512KiB`, `15MB`, `7B`."""
    # Largest first, because decimal and binary units interleave.
    for unit, unit_bytes in sorted(_BYTES.items(), key=lambda item: -item[1]):
        if count and count % unit_bytes == 0:
            return f"{count // unit_bytes}{unit}"
    return "0B"


def value_in_file(name: str, value: object) -> object:
    """The value of a setting as archiver.yaml has it: a duration or a size with its unit."""
    if isinstance(value, float):
        return format_duration(value)
    # -1 means never, and has no unit.
    return format_size(value) if "bytes" in name and isinstance(value, int) and value >= 0 else value


def _quantity(value: object, units: Mapping[str, float], expected: str) -> float:
    # `true` is an int in Python, and would be one second.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not {expected}")  # noqa: TRY004 - pydantic turns only ValueError into a located error
    if isinstance(value, int | float):
        # Also refuses `nan`, for which every comparison is false.
        if not 0 <= value <= _QUANTITY_MAX:
            raise ValueError(f"{str(value)[:40]} is not {expected}")
        return value
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value[:40]!r} is not {expected}")
    if match["unit"] and match["unit"] not in units:
        raise ValueError(f"{value[:40]!r} has the unit {match['unit']!r}; the units are {', '.join(units)}")
    # Rounding removes the error of the binary product: 1.1 * 86400 is not exactly 95040.
    product = round(float(match["number"]) * units.get(match["unit"], 1), 9)
    if product > _QUANTITY_MAX:
        raise ValueError(f"{value[:40]!r} is too large")
    return product


RETENTION_MIN_S = 3600.0


def parse_retention(value: object) -> float | None:
    """Seconds of a duration, or None for `forever`; raises `ValueError`."""
    # None is the default, with which the field is validated as well.
    if value is None or value == "forever":
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, and not the word forever") from None
    if seconds < RETENTION_MIN_S:
        raise ValueError(
            f"{value!r} is less than an hour; records are deleted permanently, so write for example 30d "
            "or forever"
        )
    return seconds


def surroundings(info: ValidationInfo) -> Surroundings | None:
    """The context of a validator; None if the group is built in Python."""
    return info.context if isinstance(info.context, Surroundings) else None


def resolve_path(value: object, info: ValidationInfo) -> object:
    """An absolute path; a relative one starts at the configuration's folder. Raises `ValueError`."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{value!r} is not a path")  # noqa: TRY004 - see _quantity
    # A shell expands `~`, a daemon does not; a folder of that name would be created.
    if str(value).startswith("~") or str(value).strip() == "" or "\0" in str(value):
        raise ValueError(
            f"{str(value)!r} is not a usable path; write it out, absolute or relative to the "
            "configuration file"
        )
    around = surroundings(info)
    # Without a file, as in tests, a path is taken as it is.
    return Path(value) if around is None else around.folder / value


def parse_listen(value: object) -> object:
    """HOST:PORT; raises `ValueError`."""
    match = _LISTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{str(value)[:80]!r} is not HOST:PORT, for example 127.0.0.1:8787 or [::1]:8787")
    if int(match["port"]) > PORT_MAX:
        raise ValueError(f"{value!r} has the port {match['port']}; ports end at {PORT_MAX}")
    return value


def resolve_glob(value: object, info: ValidationInfo) -> str:
    """An absolute glob pattern; a relative one starts at the configuration's folder."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a pattern of file names, for example inbox/*.jsonl")
    around = surroundings(info)
    folder = around.folder if around is not None else Path.cwd()
    # Escaped: a folder with brackets in its name is not part of the pattern.
    return value if value.startswith("/") else f"{glob.escape(str(folder))}/{value}"


def resolve_uri(value: object, info: ValidationInfo) -> object:
    """A data folder as a URI: one with a scheme stays, a plain path becomes `file://`. Raises
    `ValueError`.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a URI such as file:///var/lib/archiver/data")
    if _SCHEME.match(value):
        # `file://data` would name a host, and `file:///` the root of the file system.
        if value.startswith("file://") and (not value.startswith("file:///") or value.strip("/") == "file:"):
            raise ValueError(
                f"{value!r} must be file:/// followed by an absolute path; a relative path is written "
                "without file://"
            )
        return value
    if value.startswith("file:"):
        raise ValueError(
            f"{value!r} must be file:/// followed by an absolute path; a relative path is written "
            "without file:"
        )
    path = resolve_path(value, info)
    return Path(str(path)).absolute().as_uri()


def reveal(value: object, info: ValidationInfo) -> object:
    """The secret to which `{env: NAME}` or `{file: PATH}` refers, still wrapped; raises `ValueError` without
    repeating a secret.
    """
    if isinstance(value, SecretStr):
        return value
    remedy = "write {env: NAME} or {file: PATH}, never the secret itself"
    if (
        not isinstance(value, dict)
        or len(value) != 1
        or set(value) - {"env", "file"}
        or not all(isinstance(name, str) for name in value.values())
    ):
        raise ValueError(f"not a reference to a secret; {remedy}")
    around = surroundings(info)
    if around is None:
        raise ValueError(
            f"a reference to a secret can be resolved only when a configuration file is loaded; {remedy}"
        )
    if "env" in value:
        secret = around.environ.get(value["env"])
        if secret is None:
            raise ValueError(f"the environment variable {value['env']} is not set")
        return SecretStr(secret)
    path = around.folder / value["file"]
    try:
        # Editors and `echo` add a line feed at the end, which is not part of the secret.
        return SecretStr(path.read_text(encoding="utf-8").rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        # Not chained: the decoding error contains the bytes of the file.
        raise ValueError(f"the secret's file {path} cannot be read: {reason}") from None


def is_reference(value: Any) -> bool:
    """Whether a value has the form of a secret reference."""
    # Both keys at once count too, so that the message of `reveal` explains the form.
    return isinstance(value, dict) and bool({"env", "file"} & set(value))


def check_topic_name(value: object) -> object:
    """Kafka's rule for topic names; raises `ValueError`."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a topic name; put it in quotes")  # noqa: TRY004 - see _quantity
    if not _TOPIC.fullmatch(value) or len(value) > TOPIC_NAME_MAX or value in (".", ".."):
        raise ValueError(
            f"{value[: TOPIC_NAME_MAX + 1]!r} is not a topic name: 1 to {TOPIC_NAME_MAX} of A-Z a-z "
            "0-9 . _ - and neither . nor .."
        )
    return value


def check_table(value: object) -> object:
    """A table identifier: namespace and name, separated by dots; raises `ValueError`."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a table identifier such as shop.orders")  # noqa: TRY004 - see _quantity
    parts = value.split(".")
    if len(parts) < 2 or len(value) > 255 or not all(_TABLE_PART.fullmatch(part) for part in parts):
        raise ValueError(
            f"{value[:256]!r} is not a table identifier: it has the form namespace.table, at most 255 "
            "of A-Z a-z 0-9 _ - in parts "
            "separated by dots, for example shop.orders"
        )
    return value


def check_table_template(value: object) -> object:
    """A table identifier that may contain `{topic}`; raises `ValueError`."""
    check_table(value.replace(TOPIC_PLACE, "topic") if isinstance(value, str) else value)
    return value


def matches_pattern(pattern: str, name: str) -> bool:
    """Whether a `TopicPattern` matches the name. Linear."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def check_message(value: object) -> object:
    """The full name of a Protobuf message; raises `ValueError`."""
    if not isinstance(value, str) or not _MESSAGE.fullmatch(value):
        raise ValueError(f"{value!r} is not the full name of a Protobuf message such as shop.Order")
    return value


def check_subject(value: object) -> object:
    """The name of a subject of a registry; raises `ValueError`."""
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= SUBJECT_MAX
        or not value.isprintable()
        or value.strip() != value
    ):
        raise ValueError(
            f"{str(value)[:80]!r} is not the name of a subject: 1 to {SUBJECT_MAX} printable "
            "characters, such as orders-value"
        )
    return value


def check_proto_file(value: object) -> object:
    """A .proto file below a folder; raises `ValueError`."""
    parts = value.split("/") if isinstance(value, str) else []
    if (
        not isinstance(value, str)
        or not value.endswith(".proto")
        or not value.isprintable()
        or {"", ".", ".."} & set(parts)
    ):
        raise ValueError(f"{str(value)[:80]!r} is not a file below the folder, such as shop/order.proto")
    return value


def check_field_path(value: object) -> object:
    """Names of fields, separated by dots; raises `ValueError`."""
    # A path has the form of a message name: identifiers and dots.
    if not isinstance(value, str) or not _MESSAGE.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is not a path of field names such as customer.id")
    return value


def check_column(value: object) -> object:
    """The name of a column; raises `ValueError`."""
    if not isinstance(value, str) or not _COLUMN.fullmatch(value) or len(value) > COLUMN_NAME_MAX:
        raise ValueError(
            f"{str(value)[:80]!r} is not the name of a column: 1 to {COLUMN_NAME_MAX} of A-Z a-z 0-9 "
            "_, no digit first"
        )
    # Catalogs without case treat `__RAW__` as the same column.
    if value.casefold() in RESERVED_COLUMNS:
        raise ValueError(f"{value!r} is a column that every topic has; choose another name")
    return value


_NUMBER_OR_TEXT: list[dict[str, Any]] = [{"type": "number", "minimum": 0}]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {
            "anyOf": [*_NUMBER_OR_TEXT, {"type": "string", "pattern": r"^\d+(\.\d+)? *(ms|s|m|h|d)?$"}],
            "examples": ["200ms", "10s", "1h"],
        }
    ),
]
"""Seconds."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": -1},
                {"type": "string", "pattern": r"^\d+(\.\d+)? *([KMGT]i?)?B?$"},
            ],
            "examples": ["15MB", "128MiB"],
        }
    ),
]
"""Bytes."""

Retention = Annotated[
    float | None,
    BeforeValidator(parse_retention),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "forever"},
                *_NUMBER_OR_TEXT,
                {"type": "string", "pattern": r"^\d+(\.\d+)? *(ms|s|m|h|d)?$"},
            ]
        }
    ),
]
"""Seconds, or None for ever."""

FilePath = Annotated[Path, BeforeValidator(resolve_path)]
GlobPath = Annotated[str, BeforeValidator(resolve_glob), WithJsonSchema({"type": "string", "minLength": 1})]
"""An absolute pattern of file names."""

Listen = Annotated[
    str,
    BeforeValidator(parse_listen),
    WithJsonSchema({"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):\d{1,5}$"}),
]
"""Address and port."""
DataUri = Annotated[str, BeforeValidator(resolve_uri)]
SECRET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"env": {"type": "string"}, "file": {"type": "string"}},
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
Secret = Annotated[SecretStr, BeforeValidator(reveal), WithJsonSchema(SECRET_SCHEMA)]
TopicName = Annotated[str, BeforeValidator(check_topic_name)]
# The same letters as a topic name, and `*` only as the last one.
TopicPattern = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9._-]{1,249}\*?)$")]
"""A topic name; or the beginning of names, followed by `*`."""
TableName = Annotated[str, BeforeValidator(check_table)]
TableTemplate = Annotated[str, BeforeValidator(check_table_template)]
MessageName = Annotated[str, BeforeValidator(check_message)]


def host_of(text: str) -> str:
    """The host of `host:port` or `[address]:port`, with or without the port. Any other text is returned
    unchanged: an address without brackets, or a text that never counts as this machine.
    """
    match = _HOST_AND_PORT.fullmatch(text)
    # Unparsed text is never loopback, so a check of an odd address fails on the safe side.
    return text if match is None else match["address"] or match["name"]


def is_loopback(host: str) -> bool:
    """Whether traffic to the host never leaves this machine."""
    # Only this name: any other could resolve to another machine tomorrow.
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bad_endpoint(
    endpoint: str, allow_http: bool, *, example: str, credentials: str, path: bool
) -> str | None:
    """The problem with the address of an HTTP server, or None.

    `example`: a valid address. `credentials`: the keys for user name and password. `path`: whether a path is
    allowed.
    """
    expected = f"is not an address such as {example}" + ("" if path else ", without a path")
    if "@" in endpoint:  # not repeated: it may be a password
        return f"has a user name; credentials belong in {credentials}"
    try:
        parts = urlsplit(endpoint)
        # The port is read because only then `urlsplit` validates it.
        host, _ = parts.hostname, parts.port
    except ValueError:
        return f"{endpoint[:80]!r} {expected}"
    extra = parts.query or parts.fragment or (not path and parts.path not in ("", "/"))
    if parts.scheme not in ("http", "https") or not host or extra:
        return f"{endpoint[:80]!r} {expected}"
    if parts.scheme == "http" and not allow_http and not is_loopback(host):
        return (
            "http:// to another machine can be read and changed on the way; use https://, or set "
            "allow_http: true"
        )
    return None
