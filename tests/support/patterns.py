"""Finds every regular expression in the product by walking its source: where it stands, and by which methods
it is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("archiver", "intake", "reconcile")
_FUNCTIONS = frozenset(
    {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
)
_FROM_START = {"match", "fullmatch"}


@dataclass(frozen=True)
class Pattern:
    """A regular expression of the product."""

    key: str
    """Module and name; of one that is written where it is used, module and function."""
    compiled: re.Pattern[str] | None
    """None if its text is known only at run time."""
    methods: frozenset[str]
    """fullmatch, match or search: those that search (finditer, sub, …) are `search`."""


@cache
def patterns() -> tuple[Pattern, ...]:
    """Of the whole product, those of bytes left out of `compiled` only if their text is not in the source."""
    return tuple(found for path in _sources() for found in _in_module(path))


def _sources() -> list[Path]:
    return [
        path
        for name in PACKAGES
        for path in sorted((ROOT / name).rglob("*.py"))
        if not path.stem.endswith("_pb2")
    ]


def _in_module(path: Path) -> Iterator[Pattern]:
    text = path.read_text(encoding="utf-8")
    # Every process of a run asks for all patterns, and parsing is most of the work.
    if "import re" not in text:
        return
    tree = ast.parse(text)
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    used = _methods(tree)
    for call, names in _calls(tree):
        name = names[-1] if names else ""
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        methods = (
            used.get(name, {"search"})
            if method == "compile"
            else {method if method in _FROM_START else "search"}
        )
        yield Pattern(f"{module}.{name}".rstrip("."), _compiled(call), frozenset(methods))


def _calls(tree: ast.AST, names: tuple[str, ...] = ()) -> Iterator[tuple[ast.Call, tuple[str, ...]]]:
    for node in ast.iter_child_nodes(tree):
        inside = names
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*names, node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not names:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            inside = (target.id,) if isinstance(target, ast.Name) else names
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _FUNCTIONS
            and _is_re(node.func.value)
        ):
            yield node, inside
        yield from _calls(node, inside)


def _is_re(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "re"


def _methods(tree: ast.AST) -> dict[str, set[str]]:
    """By the name of a pattern, how it is used in its module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in _FUNCTIONS - {"compile"}
        ):
            found.setdefault(node.value.id, set()).add(node.attr if node.attr in _FROM_START else "search")
    return found


def _compiled(call: ast.Call) -> re.Pattern[str] | None:
    try:
        text = ast.literal_eval(call.args[0])
    except ValueError:
        return None
    flags = 0
    for name in (
        node.attr
        for part in (*call.args[1:], *call.keywords)
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute)
    ):
        flags |= getattr(re, name, 0)
    return re.compile(text if isinstance(text, str) else text.decode("latin-1"), flags)
