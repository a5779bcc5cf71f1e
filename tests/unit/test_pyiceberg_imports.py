"""Lists every place where the installed pyiceberg imports by a string or runs text. A test closes each one.

A new version that adds a place fails here. `CLOSED_BY` names what closes each place.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from tests.unit.test_rules_named import names_of_tests

_RUNS = {
    "import_module",
    "__import__",
    "exec",
    "eval",
    "compile",
    "exec_module",
    "spec_from_file_location",
    "resolve_name",
    "Popen",
    "system",
}
_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "subprocess", "runpy", "pkgutil"}

CLOSED_BY = {
    "catalog/__init__.py:_import_catalog": [
        "test_remote_settings_import_nothing",
        "test_what_names_code_a_server_or_an_identity_is_left_out",
    ],
    "catalog/rest/auth.py:create": [
        "test_remote_settings_import_nothing",
        "test_what_names_code_a_server_or_an_identity_is_left_out",
    ],
    "io/__init__.py:_import_file_io": [
        "test_remote_settings_import_nothing",
        "test_table_properties_import_nothing",
    ],
    "io/pyarrow.py:_import_retry_strategy": [
        "test_remote_settings_import_nothing",
        "test_table_properties_import_nothing",
    ],
    "table/locations.py:_import_location_provider": ["test_table_properties_import_nothing"],
    # Its names are literals of pyiceberg itself.
    "transforms.py:_try_import": ["test_transforms_import_literal_names"],
}
COMPILED = {"avro/decoder_fast"}
"""Compiled modules, whose imports cannot be inspected. This one decodes numbers and bytes."""


def package() -> Path:
    spec = importlib.util.find_spec("pyiceberg")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _functions(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each statement with the innermost function that contains it."""

    def walk(node: ast.AST, around: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else around
            yield inner, child
            yield from walk(child, inner)

    yield from walk(tree, "")


def places(root: Path) -> set[str]:
    """`file:function` of every call that imports or runs what a string names. `file:module` of every imported
    module that could."""
    found: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        for function, node in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                method_of_ours = isinstance(node.func, ast.Attribute) and called in (
                    "eval",
                    "compile",
                )  # evaluators of expressions, `re`
                if called in _RUNS and not method_of_ours:
                    found.add(f"{name}:{function}")
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                )
                found.update(
                    f"{name}:import {module}" for module in modules if module.partition(".")[0] in _MODULES
                )
    return found


def test_every_place_is_known() -> None:
    assert places(package()) == set(CLOSED_BY)


def test_every_place_is_closed_by_tests_that_exist() -> None:
    assert {test for tests in CLOSED_BY.values() for test in tests} <= names_of_tests()


def test_a_new_place_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "import pickle\ndef load(name):\n    return getattr(__import__(name), 'x')\n"
    )
    assert places(tmp_path) == {"new.py:load", "new.py:import pickle"}


def test_compiled_modules_are_known() -> None:
    root = package()
    assert {str(path.relative_to(root)).partition(".")[0] for path in root.rglob("*.so")} == COMPILED


def test_transforms_import_literal_names() -> None:
    tree = ast.parse((package() / "transforms.py").read_text(encoding="utf-8"))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "_try_import"
    ]
    assert calls
    assert all(isinstance(argument, ast.Constant) for call in calls for argument in call.args)
