"""Generates docs/configuration.md from the settings' own docstrings, docs/metrics.md from the table of
metrics, docs/openapi.json from the table of what the port answers to, and docs/performance.md and the
figures of docs/operations/capacity.md from the results of benches. Copies the runbook into the package, so
that an installed daemon can serve it.

With --check, says whether the committed pages are up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archiver.config.settings import TEMPLATES, Settings, TopicTemplateSettings  # noqa: E402 - after the path is known
from archiver.config.types import Group, descriptions, parse_duration, parse_retention, parse_size  # noqa: E402
from archiver.status.advice import RUNBOOK  # noqa: E402
from archiver.web import openapi  # noqa: E402
from archiver.web.runbook import COPY  # noqa: E402
from scripts import capacity_page, metrics_page  # noqa: E402
from scripts.performance import page as performance_page  # noqa: E402
from scripts.performance.measured import FigureMissingError, results_in  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"
METRICS_PAGE = ROOT / "docs" / "metrics.md"
OPENAPI = ROOT / "docs" / "openapi.json"
PERFORMANCE_PAGE = ROOT / "docs" / "performance.md"
CAPACITY_PAGE = ROOT / "docs" / "operations" / "capacity.md"
RUNBOOK_COPY = ROOT / "archiver" / "web" / COPY
HEAD = """# Configuration

Generated from the code by `make docs`; do not edit.

One YAML file, named by `-c FILE`, else by the variable `ARCHIVER_CONFIG`, else `archiver.yaml` in the current folder.
`archiver config check` validates it without connecting anywhere, `archiver config show` prints what is in force with the defaults
filled in and secrets hidden, `archiver config schema` prints a JSON Schema for editors.

- A key that does not exist, or that is given twice, is an error; so is a reference to a name that does not exist. All problems are reported at once.
- Durations are `200ms`, `10s`, `5m`, `1h`, `7d`, or a number of seconds.
- Sizes are `512KiB`, `15MB`, `128MiB` (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), or a number of bytes.
- Relative paths begin at the folder of the configuration file.
- Secrets are written as `{env: NAME}` or `{file: PATH}`.
- `yes`, `no`, `on` and `off` are text, as in YAML 1.2; truth is `true` and `false`.

## Example

```yaml
cluster: demo
data: { uri: /var/lib/archiver/data }
metadata: { sqlite: { path: /var/lib/archiver/metadata.db } }
catalogs:
  - { name: local, type: sql, uri: "sqlite:////var/lib/archiver/catalog.db" }
spark: { master: "local[*]" }
intake: { delay_max: 200ms, delay_max_bytes: 15MB }
archive: { min_bytes: 0, max_bytes: 128MiB, start_delay_max: 10s, complete_delay_max: 5m, idle_max: 30s, concurrent_max: 0 }
topics:
  - name: orders
    partitions: 8
    retention: forever
    value: { descriptor_set: orders.binpb, message: shop.Order }
    archive: { kind: iceberg, catalog: local, table: shop.orders, partition_by: [day], complete_delay_max: 30s }
```
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_sections(Settings, "", "Top level"))


def _sections(group: type[Group], prefix: str, title: str) -> list[str]:
    """The group's table, then those of the groups inside it."""
    rows: list[str] = []
    below: list[str] = []
    texts = descriptions(group)
    for attribute, field in group.model_fields.items():
        name = field.alias or attribute
        inner = _group_in(field.annotation)
        if name == TEMPLATES:
            # In the file they are entries of `topics`, and their groups have the keys of a topic's groups.
            below.append(_sections(TopicTemplateSettings, "topics[].", "`topics[]` with `pattern`")[0])
            continue
        text = _one_line(texts.get(attribute, ""))
        if inner is None:
            rows.append(
                f"| `{name}` | {_kind(field.annotation, field)} | {_default(field, text)} | {text} |\n"
            )
            continue
        key = f"{prefix}{name}{'[]' if get_origin(field.annotation) is tuple else ''}"
        rows.append(
            f"| `{name}` | group{'s' if key.endswith(']') else ''}, see [{key}](#{_anchor(key)}) | "
            f"{_default(field, text)} | {text} |\n"
        )
        below.extend(_sections(inner, f"{key}.", f"`{key}`"))
    paragraphs = [_one_line(paragraph) for paragraph in (group.__doc__ or "").split("\n\n")]
    head = (
        f"\n## {title}\n\n"
        + "\n\n".join(paragraphs).strip()
        + "\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
    )
    return [head + "".join(rows), *below]


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(key: str) -> str:
    """The anchor that a heading `key` gets."""
    return "".join(letter for letter in key.lower() if letter.isalnum() or letter in "_-")


def _group_in(annotation: Any) -> type[Group] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Group) else None
    return next(
        (found for argument in get_args(annotation) if (found := _group_in(argument)) is not None), None
    )


def _metadata(annotation: Any, field: FieldInfo) -> list[object]:
    """Everything that annotates a field's type, also inside `… | None`."""
    found: list[object] = list(field.metadata)
    for argument in get_args(annotation):
        found.extend(getattr(argument, "__metadata__", ()))
    return found + [inner for item in found if isinstance(item, FieldInfo) for inner in item.metadata]


def _kind(annotation: Any, field: FieldInfo) -> str:
    functions = [getattr(item, "func", None) for item in _metadata(annotation, field)]
    bounds = _bounds(
        _metadata(annotation, field), duration=parse_duration in functions, size=parse_size in functions
    )
    if parse_duration in functions:
        return f"duration{bounds}"
    if parse_retention in functions:
        return "duration or `forever`"
    if parse_size in functions:
        return f"size{bounds}"
    return f"{_type_name(annotation)}{bounds}"


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin in (Union, UnionType):
        return " or ".join(_type_name(argument) for argument in arguments if argument is not NoneType)
    if origin is dict:
        return "keys and values"
    if origin is not None and hasattr(annotation, "__metadata__"):
        return _type_name(arguments[0])
    names = {
        str: "text",
        int: "whole number",
        bool: "`true` or `false`",
        float: "number",
        Path: "path",
        SecretStr: "secret",
    }
    return names.get(annotation, str(getattr(annotation, "__name__", annotation)))


def _bounds(metadata: list[object], *, duration: bool, size: bool) -> str:
    """The limits of a number, in words."""

    def shown(value: float) -> str:
        return (
            _seconds(value)
            if duration
            else _bytes(int(value))
            if size
            else f"{value:g}"
            if value < 10**6
            else str(value)
        )

    words = []
    for attribute, word in (("gt", "more than"), ("ge", "at least"), ("le", "at most")):
        for item in metadata:
            value = getattr(item, attribute, None)
            if isinstance(value, int | float):
                words.append(f"{word} {shown(value)}")
                break
    return f", {', '.join(words)}" if words else ""


def _default(field: FieldInfo, text: str) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined:
        return "empty"
    if value is None:
        return "`forever`" if "forever" in text else "none"
    if isinstance(value, Group):
        return "its own defaults"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    functions = [getattr(item, "func", None) for item in field.metadata]
    if parse_duration in functions:
        return f"`{_seconds(value)}`"
    if parse_size in functions:
        return f"`{_bytes(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _seconds(value: float) -> str:
    """A duration as one would write it."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if value and value >= length and value % length == 0:
            return f"{value / length:g}{unit}"
    return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s" if value else "0"


def _bytes(value: int) -> str:
    """A size as one would write it."""
    for unit, length in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10)):
        if value >= length and value % length == 0:
            return f"{value // length}{unit}"
    return str(value)


def main() -> int:
    """Generate or check; the exit code."""
    try:
        performance = performance_page.page()
        capacity = capacity_page.page(
            CAPACITY_PAGE.read_text(encoding="utf-8"), results_in(performance_page.RESULTS)
        )
    except FigureMissingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    wanted = {
        PAGE: page(),
        METRICS_PAGE: metrics_page.page(),
        OPENAPI: json.dumps(openapi.document(), ensure_ascii=False, indent=2) + "\n",
        PERFORMANCE_PAGE: performance,
        CAPACITY_PAGE: capacity,
        RUNBOOK_COPY: (ROOT / RUNBOOK).read_text(encoding="utf-8"),
    }
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        str(path.relative_to(ROOT))
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if stale:
        print(
            f"error: {' and '.join(stale)} is not what the code and the results say; run make docs",
            file=sys.stderr,
        )
        return 1
    print(f"{', '.join(str(path.relative_to(ROOT)) for path in wanted)} are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
