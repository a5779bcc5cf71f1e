"""Fuzz target: any text as a configuration file gives settings, or `ConfigInvalid` with a line. Nothing else,
and within bounds."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from archiver.config import yaml_loader
from archiver.config.settings import Settings, load_settings
from archiver.config.yaml_loader import BYTES_MAX, VALUES_MAX
from archiver.runtime.errors import ConfigInvalid
from tests.support.fuzzing import fuzzing

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "deploy/config/archiver.example.yaml").read_text(encoding="utf-8")
LEAST = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"
_LINE = re.compile(r"line [0-9]+")

FRAGMENTS = (
    "&a ", "*a", "<<: *a", "!!bool x", "!!int ''", "!!float ''", "!!timestamp x", "!!binary é", "!!set {a}", "!!omap [a: 1]", "!!null x",
    "!!python/object:os.system [id]", "!local x", "{", "}", "[", "]", "- ", ": ", "? ", "|", ">", "---\n", "...\n", "%YAML 9.9\n", "\t",
    "\u0085", "\u2028", "\ufeff", "\\0", '"\\0"', '"\\ud800"', '"\\U0010ffff"', "'", '"', "#", "\x00", "1e999", "9" * 5000, "-0.0", "~",
    "1.5e400", "{env: X}", "{file: x}", "../..", "file:///", "s3://", "\n", "  ", "\r", "@", "`", "0o17", "0x1f", "[" * 200, "{a: " * 50,
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(FRAGMENTS), st.just("x" * 20_000))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.integers(10**30, 10**40))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configuration") / "archiver.yaml"


def judge(file: Path, text: str | bytes) -> Settings | None:
    """The settings, or None where the file was refused as it should be."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        return load_settings(file, {"X": "x"})
    except ConfigInvalid as error:
        message = str(error)
        assert message.startswith(str(file))
        assert _LINE.search(message) or "is not UTF-8" in message or "is larger than" in message, message
        assert len(message) < 200_000
        return None


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a document."""
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*above, key))


DOCUMENT: dict[str, Any] = yaml.safe_load(EXAMPLE)
PLACES = [one for one in places(DOCUMENT) if one]


def changed(place: tuple[Any, ...], value: Any, key: str | None, remove: bool) -> dict[str, Any]:
    """The example with one value replaced, one key added beside it, or one removed."""
    document = copy.deepcopy(DOCUMENT)
    at: Any = document
    for step in place[:-1]:
        at = at[step]
    if remove:
        del at[place[-1]]
    elif key is not None and isinstance(at, dict):
        at[key] = value
    else:
        at[place[-1]] = value
    return document


@given(
    text=st.one_of(
        st.text(),
        st.binary().map(lambda data: data.decode("latin-1")),
        st.lists(TEXTS, max_size=12).map("".join),
    )
)
@fuzzing(0.7)
@example("")
@example("a")
@example("&a [*a]")
@example("&a {b: *a}")
@example("a: !!bool x")
@example("a: !!int ''")
@example("a: !!float ''")
@example("a: !!timestamp x")
@example("a: " + "9" * 10_000)
@example("[" * 5000)
@example("{a: " * 5000)
@example("- " * 5000)
@example("? " * 5000)
@example("a: &a\n" * 50)
@example("\x00")
@example("? [a]\n: b")
@example('cluster: "\\ud800"')
@example('"\\ud800": 1')
def test_any_text(file: Path, text: str) -> None:
    judge(file, text)
    judge(file, LEAST + text)


@given(data=st.binary(max_size=200))
@fuzzing(0.5)
@example(b"\xff")
@example(b"\xef\xbb\xbf" + LEAST.encode())
@example(LEAST.encode("utf-16"))
def test_any_bytes(file: Path, data: bytes) -> None:
    judge(file, data)


@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(EXAMPLE)), st.integers(0, 20), st.sampled_from(FRAGMENTS) | st.text(max_size=5)
        ),
        max_size=4,
    )
)
@fuzzing(0.4)
def test_the_example_with_pieces_replaced(file: Path, edits: list[tuple[int, int, str]]) -> None:
    text = EXAMPLE
    for at, length, fragment in edits:
        text = text[:at] + fragment + text[at + length :]
    judge(file, text)


@given(
    place=st.sampled_from(PLACES),
    value=VALUES,
    key=st.none() | TEXTS,
    remove=st.booleans(),
    escaped=st.booleans(),
)
@fuzzing(0.8)
def test_the_example_with_a_value_replaced(
    file: Path, place: tuple[Any, ...], value: Any, key: str | None, remove: bool, escaped: bool
) -> None:
    judge(file, json.dumps(changed(place, value, key, remove), ensure_ascii=escaped))


def bomb(levels: int, width: int) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text", [bomb(9, 10), bomb(31, 2), "a: &a [*a, *a]", "a: &a {b: *a, c: *a}", "a: &a\n- *a\n- *a\n- *a"]
)
def test_an_alias_bomb_is_refused_after_a_bounded_number_of_values(
    file: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are counted, not seconds."""
    steps: list[None] = []
    value = yaml_loader._value

    def counted(*arguments: Any) -> Any:
        steps.append(None)
        return value(*arguments)

    monkeypatch.setattr(yaml_loader, "_value", counted)
    assert judge(file, LEAST + text) is None
    assert len(steps) <= VALUES_MAX + 2


def test_an_alias_is_a_value_like_another(file: Path) -> None:
    found = judge(file, LEAST + "topics: [{name: a, partitions: &n 2}, {name: b, partitions: *n}]")
    assert found is not None
    assert [topic.partitions for topic in found.topics] == [2, 2]


def test_a_large_file_is_not_read_to_its_end(file: Path) -> None:
    assert judge(file, LEAST + "#" * BYTES_MAX) is None


def test_the_example_itself_is_valid(file: Path) -> None:
    for name in ("orders.binpb",):
        (file.parent / name).write_bytes((ROOT / "deploy/config" / name).read_bytes())
    assert judge(file, yaml.safe_dump(DOCUMENT)) is not None
    assert judge(file, EXAMPLE) is not None
