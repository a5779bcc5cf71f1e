"""Which files a pattern selects."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intake.sources.files.source import Pattern

FILES = (
    "a.jsonl",
    "b.txt",
    "x/a.jsonl",
    "x/y/a.jsonl",
    "x/y/z/b.jsonl",
    "xx/a.jsonl",
    "[x]/a.jsonl",
    "x/.h/a.jsonl",
    ".a.jsonl",
    "x/a.jsonl.tmp",
)


def found(root: Path, pattern: str) -> list[str]:
    problems: list[tuple[str, str]] = []
    paths = sorted(
        Pattern.of(f"{glob.escape(str(root))}/{pattern}").files(
            lambda path, why: problems.append((path, why))
        )
    )
    assert problems == []
    return [os.path.relpath(path, root) for path in paths]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "it[s] *here*"
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl"]),
        ("a.jsonl", ["a.jsonl"]),
        ("*", ["a.jsonl", "b.txt"]),
        ("x/*.jsonl", ["x/a.jsonl"]),
        ("x*/*.jsonl", ["x/a.jsonl", "xx/a.jsonl"]),
        ("[[]x]/*", ["[x]/a.jsonl"]),
        ("?/y/a*", ["x/y/a.jsonl"]),
        ("x/**/a.jsonl", ["x/a.jsonl", "x/y/a.jsonl"]),
        ("x/**", ["x/a.jsonl", "x/y/a.jsonl", "x/y/z/b.jsonl"]),
        ("**/y/**/*.jsonl", ["x/y/a.jsonl", "x/y/z/b.jsonl"]),
        ("**/**/b.*", ["b.txt", "x/y/z/b.jsonl"]),
        ("x/*.tmp", ["x/a.jsonl.tmp"]),
        ("*.none", []),
        ("x/y", []),
    ],
)
def test_a_pattern_means(pattern: str, expected: list[str], tree: Path) -> None:
    assert found(tree, pattern) == expected


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        found(tmp_path, "none/*")
    assert found(tmp_path, "*/none/*") == []


def test_links_before_the_wildcards_are_followed_and_no_others(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(tree)
    assert found(tmp_path / "way", "x/*.jsonl") == ["x/a.jsonl"]
    reported: list[str] = []
    assert list(Pattern.of(f"{tmp_path}/*").files(lambda path, why: reported.append(f"{path}: {why}"))) == []
    assert reported == [
        (
            f"{tmp_path}/way: a symbolic link is not followed: the file would be known by two names; move "
            "the file itself here"
        )
    ]
    assert list(Pattern.of(f"{tmp_path}/w*/x/*").files(lambda path, why: reported.append(path))) == []


FOLDERS = st.lists(st.sampled_from(["*", "**", "x", "x*", "?", "y"]), max_size=3)
NAMES = st.sampled_from(["*", "x", "a.*", "a.jsonl", "*.jsonl", "y"])


@settings(max_examples=60, deadline=None)
@given(folders=FOLDERS, last=NAMES)
def test_it_means_what_the_shell_means(
    tmp_path_factory: pytest.TempPathFactory, folders: list[str], last: str
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    pattern = "/".join([*folders, last])
    meant = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207 - its own reading of `**` is what is compared with
    expected = {path for path in meant if (root / path).is_file() and not path.endswith(".tmp")}
    try:
        assert set(found(root, pattern)) == expected
    except FileNotFoundError:
        assert expected == set()
