"""House rules that no linter knows: sizes, names, docstrings, links, and what must not be in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("archiver", "intake", "reconcile")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
BINARY = {".parquet", ".avro", ".binpb", ".bin", ".db", ".png", ".gz", ".zst"}
# Spelt so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:ho" + r"me|ro" + r"ot|wo" + r"rk|Us" + r"ers)/[\w.]")
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)|!\[[^\]\n]*\]\((?P<image>[^)\s]+)\)")
OBJECT_KEY = re.compile(
    r"^(?:intake|archive|shelf|checkpoint)/|/data/partition=|^partition=|year=|\.parquet$"
)


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project: what version control knows or would take."""
    command = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        # An unpacked archive of the sources has no version control.
        hidden = re.compile(
            r"(?:^|/)(?:\.(?!ci/|gitignore|editorconfig)|__pycache__|build/|dist/|[^/]*\.egg-info/)"
        )
        found = [path for path in ROOT.rglob("*") if not hidden.search(str(path.relative_to(ROOT)))]
    return tuple(sorted(path for path in found if path.is_file()))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sources(*folders: str) -> list[Path]:
    """Python files that people write, in these folders (everywhere if none is given)."""
    return [
        path
        for path in files()
        if path.suffix == ".py"
        and not path.stem.endswith("_pb2")
        and (not folders or path.relative_to(ROOT).parts[0] in folders)
    ]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def texts() -> Iterator[tuple[Path, str]]:
    for path in files():
        if path.suffix not in BINARY:
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_the_tree_is_seen() -> None:
    assert len(sources(*PACKAGES)) > 20
    assert any(path.name == "test_tidy.py" for path in files())


def test_files_are_short() -> None:
    long = {
        relative(path): count
        for path in sources()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    }
    assert not long, f"split these files (at most {FILE_LINES_MAX} lines): {long}"


def test_functions_fit_a_screen() -> None:
    long = []
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
                count = (node.end_lineno or node.lineno) - body[0].lineno + 1
                if count > FUNCTION_LINES_MAX:
                    long.append(f"{relative(path)}:{node.lineno} {node.name} ({count} lines)")
    assert not long, (
        f"split these functions (at most {FUNCTION_LINES_MAX} lines behind signature and docstring): {long}"
    )


def test_modules_say_what_they_own() -> None:
    silent = [
        relative(path)
        for path in sources()
        if path.name != "__init__.py" and not ast.get_docstring(tree(path))
    ]
    assert not silent, f"a module docstring is missing in {silent}"


def test_names_say_what_is_inside() -> None:
    vague = [
        relative(path)
        for path in files()
        if {path.stem, *path.relative_to(ROOT).parts[:-1]} & FORBIDDEN_NAMES and path.suffix in ("", ".py")
    ]
    assert not vague, f"these names say nothing: {vague}"


def test_package_files_are_empty() -> None:
    full = [
        relative(path)
        for path in sources(*PACKAGES)
        if path.name == "__init__.py" and path.read_text(encoding="utf-8").strip()
    ]
    assert full == ["archiver/__init__.py"]


def test_tests_have_no_package_files_and_unique_names() -> None:
    names = [path.name for path in sources("tests") if "support" not in path.parts]
    assert "__init__.py" not in names
    doubled = sorted({name for name in names if names.count(name) > 1} - {"conftest.py", "__main__.py"})
    assert not doubled, f"give these tests a name of their own: {doubled}"


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST, bool]]:
    """Public names of a module or class, with whether each has a docstring."""
    for node in body:
        if isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not node.name.startswith("_"):
            yield node.name, node, ast.get_docstring(node) is not None


def test_public_names_are_described() -> None:
    """Classes and functions each; a method unless a class in the tree (the Protocol it implements) or a
    library describes the same name."""
    modules = {path: tree(path) for path in sources(*PACKAGES)}
    classes = [
        (path, node)
        for path, module in modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    ]
    described = {name for _, node in classes for name, _, has in _documented(node.body) if has}
    libraries = {"format"}  # logging.Formatter
    silent = [
        f"{relative(path)}: {name}"
        for path, module in modules.items()
        for name, _, has in _documented(module.body)
        if not has
    ]
    silent += [
        f"{relative(path)}: {node.name}.{name}"
        for path, node in classes
        if not node.name.startswith("_")
        for name, _, has in _documented(node.body)
        if not has and name not in described | libraries
    ]
    assert not silent, f"a docstring is missing for {silent}"


def test_object_keys_are_built_in_one_file() -> None:
    elsewhere = []
    for path in sources(*PACKAGES):
        if relative(path) == "archiver/objects/paths.py":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value
                    for part in node.values
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                words = any(" " in part for part in parts)  # a message may name a key
                if not words and any(OBJECT_KEY.search(part) for part in parts):
                    elsewhere.append(f"{relative(path)}:{node.lineno}")
    assert not elsewhere, f"object keys are built in archiver/objects/paths.py only, not in {elsewhere}"


def test_nothing_is_left_unfinished() -> None:
    found = [f"{relative(path)}: {match[0]}" for path, text in texts() if (match := UNFINISHED.search(text))]
    assert not found


def test_no_path_of_somebodys_machine() -> None:
    found = [
        f"{relative(path)}: {match[0]}" for path, text in texts() if (match := MACHINE_PATH.search(text))
    ]
    assert not found


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers form them."""
    headings = re.findall(
        r"^#{1,6} +(.+?)\s*$",
        re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL),
        flags=re.MULTILINE,
    )
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path in files():
        if path.suffix != ".md":
            continue
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for match in LINK.finditer(text):
            target = match["target"] or match["image"]
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            page = (path.parent / name).resolve() if name else path
            if not page.exists() or not page.is_relative_to(ROOT):
                broken.append(f"{relative(path)}: {target}")
            elif anchor and page.suffix == ".md" and anchor not in _anchors(page.read_text(encoding="utf-8")):
                broken.append(f"{relative(path)}: {target} (no such heading)")
    assert not broken


PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMED_PATH = re.compile(r"`((?:tests|archiver|intake|reconcile|bench|scripts|docs)/[\w./*-]*)`")


def _pages() -> list[tuple[str, str]]:
    """What people read: name and text of each document."""
    chosen = [
        path
        for path in files()
        if path.suffix == ".md" and (relative(path) in PAGES or relative(path).startswith("docs/"))
    ]
    return [(relative(path), path.read_text(encoding="utf-8")) for path in chosen]


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(
        re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    named = [
        (name, target) for name, text in _pages() for target in re.findall(r"`make ([a-z][a-z-]*)", text)
    ]
    for name, text in _pages():
        for code in CODE.findall(text):
            named += [
                (name, target) for target in re.findall(r"^make ([a-z][a-z-]*)", code, flags=re.MULTILINE)
            ]
    assert ("README.md", "demo") in named, "they are found"
    missing = [f"{name}: make {target}" for name, target in named if target not in targets]
    assert not missing


def test_make_bench_runs_every_measurement() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    measured = set(re.findall(r"^(bench-[a-z-]+):", text, flags=re.MULTILINE))
    (together,) = re.findall(r"^bench:([^#\n]*)", text, flags=re.MULTILINE)
    assert measured == set(together.split()), "one is missing, or no more"


def test_every_path_that_a_document_names_exists() -> None:
    known = {relative(path) for path in files()}
    folders = {str(parent) for name in known for parent in Path(name).parents}
    missing = []
    for page, text in _pages():
        for name in NAMED_PATH.findall(CODE.sub("", text)):
            there = (
                any(Path(one).match(name) for one in known)
                if "*" in name
                else name.rstrip("/") in known | folders
            )
            if not there:
                missing.append(f"{page}: {name}")
    assert not missing


PRIVATE = re.compile(
    r"(?<![A-Za-z])(?:whoever|whatever|nobody|somebody|anybody|told|untold|anew|besides?|meanwhile|hears|knows of"
    r"|is content)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Words that the project does not use (CONTRIBUTING.md, R2); the field's terms stand in docs/glossary.md."""
NAMES_KEPT = re.compile(
    r"archiver_untold_partitions|[\"*`“]untold[\"*`”]"  # a metric, and a value of check results and metric labels
    r"|\"told\":"  # a key of `config check --output json`
    r"|\]\([^)\s]*\)|\btest_\w+|\b00\d\d-[a-z0-9-]+"  # targets of links, tests, files of decisions
)
PLAIN = (*PACKAGES, "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy")
NAMES_LATER = re.compile(
    r"tests/(?:harness|simulation)/|tests/(?:unit|integration)/test_(?:kafka_|metric_values)"
)
"""Tests whose identifiers still have such words."""
RULE_FROM_S = 1795714159
"""Commits since then have a subject of this form. By the committer's time, which a shallow clone has too."""
SUBJECT = re.compile(r"[a-z0-9][a-z0-9_./-]*(?:, [a-z0-9_./-]+)*: [a-z].*")
SUBJECT_LENGTH_MAX = 72


def _plain_files() -> Iterator[tuple[str, Path]]:
    """What is written in plain terms, each with its folder at the top."""
    for path in files():
        parts = path.relative_to(ROOT).parts
        if (
            parts[0] in PLAIN
            and path.suffix not in (*BINARY, ".json", ".css")
            and not path.stem.endswith("_pb2")
        ):
            yield parts[0], path


def test_texts_use_no_private_words() -> None:
    found: dict[str, list[str]] = {}
    for folder, path in _plain_files():
        text = NAMES_KEPT.sub(" ", path.read_text(encoding="utf-8"))
        found.setdefault(folder, []).extend(
            f"{relative(path)}: {match[0]}" for match in PRIVATE.finditer(text)
        )
    assert set(found) >= {*PACKAGES, "docs", "deploy"}
    over = {folder: one for folder, one in found.items() if one}
    assert not over, f"use the terms of docs/glossary.md: {over}"


def _identifiers(path: Path) -> Iterator[str]:
    """Names that a file gives to functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_identifiers_of_tests_use_no_private_words() -> None:
    # `NamesLikeThis` are compared word by word as well.
    found = {
        f"{relative(path)}: {name}"
        for path in sources("tests", "bench", "scripts")
        if not NAMES_LATER.match(relative(path))
        for name in _identifiers(path)
        if PRIVATE.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))
    }
    assert not found, f"use the terms of docs/glossary.md: {sorted(found)}"


def test_subjects_of_commits_say_area_and_verb() -> None:
    command = ["git", "-c", f"safe.directory={ROOT}", "log", "--no-merges", "--format=%ct %s"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if log.returncode != 0:
        pytest.skip("no history: an unpacked archive of the sources")
    lines = (line.partition(" ") for line in log.stdout.splitlines())
    subjects = [subject for when, _, subject in lines if int(when) >= RULE_FROM_S]
    wrong = [
        subject
        for subject in subjects
        if len(subject) > SUBJECT_LENGTH_MAX or not SUBJECT.fullmatch(subject) or PRIVATE.search(subject)
    ]
    assert not wrong, f"write `area: verb ...`, at most {SUBJECT_LENGTH_MAX} characters: {wrong}"


def _reached() -> set[str]:
    """Every literal that some module passes to `reach`, and both points of every request to a table, of every
    `step` and of every step of a rewriter, which get their names as arguments (the sweep finds one that is never
    reached).
    """
    names: set[str] = set()
    for path in sources(*PACKAGES):
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            given = {
                argument.value
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            }
            steps = [one.value for one in node.keywords if one.arg == "step"]
            names.update(
                f"{step.value}.{when}"
                for step in steps
                if isinstance(step, ast.Constant) and isinstance(step.value, str)
                for when in ("before", "after")
            )
            if called == "reach":
                names.update(given)
            elif called == "Request":
                names.update(f"{name}.{when}" for name in given for when in ("before", "after"))
            elif called in ("TableRewriter", "rewriter"):  # the second has the shared arguments bound
                names.update(
                    f"{name}.{step}.{when}"
                    for name in given
                    for step in ("written", "swap", "settled")
                    for when in ("before", "after")
                )
    return names


def test_every_failpoint_is_reached_and_every_reached_one_exists() -> None:
    from archiver.runtime.failpoints import NAMES

    assert _reached() == set(NAMES)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs/configuration.md"]
)
def test_what_a_newcomer_looks_for_is_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0
