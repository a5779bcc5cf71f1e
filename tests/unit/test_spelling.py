"""An object that metadata names is never reported as unreferenced, in any spelling of its path."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.objects.path_normalization import NamedFiles, key_below, local_path, tail
from archiver.objects.paths import archive_key, table_prefix
from archiver.runtime.errors import InvalidInput

TOPIC = "ab" * 16
FOLDER = table_prefix(TOPIC)
KEY = archive_key(TOPIC, 3, "day", 20_000, 0, 17, 4)
REST = KEY.removeprefix(FOLDER + "/")


@pytest.mark.parametrize(
    "path",
    [
        KEY,
        f"s3://bucket/{KEY}",
        f"s3a://bucket/some/prefix/{KEY}",
        f"s3n://bucket//some//prefix//{KEY}",
        f"S3://Bucket/{KEY}",
        f"https://bucket.s3.eu-west-1.amazonaws.com/{KEY}",
        f"https://s3.eu-west-1.amazonaws.com/bucket/{KEY}",
        f"http://localhost:9000/bucket/{KEY}",
        f"file:/data/{KEY}",
        f"file:///data/{KEY}",
        f"file:////data//{KEY}",
        f"/data/./{KEY}",
        f"/data/x/../{KEY}",
        f"file:///my%20data/{KEY}",
        f"file:///my data/{KEY}",
        f"s3://bucket/{quote(KEY)}",
        f"s3://bucket/{quote(quote(KEY))}",
        f"s3://bucket/{quote(KEY, safe='')}",
        f"hdfs://host/{FOLDER}//{REST.replace('/', '//')}",
        f"s3://bucket/archive/{'cd' * 16}/old/{KEY}",
    ],
)
def test_every_spelling_names_the_object(path: str) -> None:
    named = NamedFiles(FOLDER)
    named.add(path)
    assert KEY in named
    assert tail(path, FOLDER) == tail(KEY, FOLDER) == REST


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        FOLDER,
        f"/data/{FOLDER}",
        f"s3://b/archive/{'cd' * 16}/data/x.parquet",
        f"s3://b/x{KEY}",
        f"s3://b/archive/{TOPIC}x/data",
    ],
)
def test_what_lies_elsewhere_names_nothing_of_ours(path: str) -> None:
    assert tail(path, FOLDER) is None
    named = NamedFiles(FOLDER)
    named.add(path)
    assert KEY not in named


def test_an_object_that_lies_elsewhere_counts_as_named() -> None:
    assert "intake/x.parquet" in NamedFiles(FOLDER)
    assert f"archive/{'cd' * 16}/data/x.parquet" in NamedFiles(FOLDER)


def test_another_object_is_not_named() -> None:
    named = NamedFiles(FOLDER)
    named.add(f"s3://b/{KEY}")
    assert archive_key(TOPIC, 3, "day", 20_000, 0, 18, 4) not in named
    assert KEY.replace(".parquet", ".Parquet") not in named


def test_percent_signs_that_never_end_are_refused() -> None:
    path = KEY
    for _ in range(101):
        path = path.replace("%", "%25") if "%" in path else path + "%25"
    with pytest.raises(InvalidInput, match="percent-encoded"):
        tail(path, FOLDER)


names = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\"), min_size=1, max_size=8),
    min_size=1,
    max_size=4,
)


@given(
    names,
    st.sampled_from(["s3://b/", "s3a://b/p/", "file:///x/", "file:/x//", "/x/"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_any_name_in_any_spelling(components: list[str], root: str, rounds: int, doubled: bool) -> None:
    """For any file name, the name in an engine's metadata refers to the object that the engine wrote."""
    key = f"{FOLDER}/data/{'/'.join(components)}"
    path = key.replace("/", "//") if doubled else key
    for _ in range(rounds):
        path = quote(path)
    named = NamedFiles(FOLDER)
    named.add(root + path)
    if tail(key, FOLDER) is not None:
        assert key in named


@pytest.mark.parametrize(
    ("path", "root", "key"),
    [
        ("file:///data/archive/a", "file:///data/", "archive/a"),
        ("file:/data/archive/a", "file:///data/", "archive/a"),
        ("file:///archive/a", "file:///", "archive/a"),
        ("file:///database/a", "file:///data/", None),
        ("file:///data/../a", "file:///data/", None),
        ("s3a://bucket/prefix/a", "s3://bucket/prefix/", "a"),
        ("s3n://bucket/a", "s3://bucket/", "a"),
        ("s3://another/a", "s3://bucket/", None),
        ("gs://bucket/a", "s3://bucket/", None),
        ("memory://archive/a", "memory://", "archive/a"),
    ],
)
def test_the_key_behind_a_path(path: str, root: str, key: str | None) -> None:
    assert key_below(path, root) == key


def test_a_path_of_this_machine() -> None:
    assert [local_path(one) for one in ("file:/a/b", "file:///a/b", "s3://a/b", "/a/b")] == [
        "/a/b",
        "/a/b",
        None,
        None,
    ]
