"""Does every object store keep the promises of the Protocol (design 5)?"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.s3.store import S3ObjectStore
from archiver.objects.store import ObjectStore, create_once
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import InvalidInput, KeyExists, NotFound, OutcomeUnknown, RetryLater
from tests.support.objects.faulty_objects import FaultyObjectStore, ObjectFault
from tests.support.objects.memory_store import MemoryObjectStore
from tests.support.objects.s3_store import new_store

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "s3":
        return new_store(request.getfixturevalue("s3_server"))
    return (
        LocalObjectStore(tmp_path / "not" / "yet there") if request.param == "local" else MemoryObjectStore()
    )


def is_s3(store: ObjectStore) -> bool:
    """A bucket has no folders: a key may be a prefix of others. The server of the tests keeps objects as
    files, where it cannot."""
    return isinstance(store, S3ObjectStore)


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


def test_what_was_created_can_be_read(store: ObjectStore) -> None:
    store.create("a/b/c.bin", b"content")
    assert store.read("a/b/c.bin") == b"content"
    info = store.info("a/b/c.bin")
    assert info is not None
    assert (info.key, info.size) == ("a/b/c.bin", 7)
    assert abs(info.modified_us - SystemClock().now_us()) < 60_000_000


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.create("empty", b"")
    assert (store.read("empty"), store.read_range("empty", 0, 5), store.read_range("empty", -5, 5)) == (
        b"",
        b"",
        b"",
    )
    assert store.open_input("empty").read() == b""
    assert keys(store) == ["empty"]


@pytest.mark.parametrize("size", [2**18, 2**18 + 1, 3 * 2**18 + 7])
def test_an_object_that_is_written_in_several_steps_is_whole(store: ObjectStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    store.create("large", data)
    assert store.read("large") == data


def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    store.create("a/b", b"x")
    for key in ("none", "a", "a/none", "none/none", *(() if is_s3(store) else ("a/b/below",))):
        assert store.info(key) is None
        for read in (store.read, store.open_input):
            with pytest.raises(NotFound):
                read(key)
        with pytest.raises(NotFound):
            store.read_range(key, 0, 1)


def test_a_key_is_created_once(store: ObjectStore) -> None:
    store.create("k", b"first")
    with pytest.raises(KeyExists) as caught:
        store.create("k", b"second")
    assert caught.value.key == "k"
    assert store.read("k") == b"first"


def test_of_all_who_create_one_key_one_wins(store: ObjectStore) -> None:
    threads = 8
    begin = threading.Barrier(threads)

    def create(worker: int, key: str) -> bool:
        begin.wait()
        try:
            store.create(key, bytes([worker]) * 100_000)
        except KeyExists:
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        for number in range(20):
            key = f"new-{number}/folder/object"
            won = list(pool.map(create, range(threads), [key] * threads))
            assert won.count(True) == 1
            assert store.read(key) == bytes([won.index(True)]) * 100_000


def test_a_file_becomes_an_object(store: ObjectStore, tmp_path: Path) -> None:
    spool_file = store.spool_dir() / "archive.parquet"
    spool_file.write_bytes(b"from the spool")
    store.create_from_file("a/one", spool_file)
    assert not spool_file.exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"from elsewhere")
    store.create_from_file("a/two", elsewhere)
    elsewhere.write_bytes(b"changed afterwards")
    assert (store.read("a/one"), store.read("a/two")) == (b"from the spool", b"from elsewhere")


def test_a_file_does_not_replace_an_object(store: ObjectStore, tmp_path: Path) -> None:
    store.create("k", b"first")
    for path in (store.spool_dir() / "file", tmp_path / "file"):
        path.write_bytes(b"second")
        with pytest.raises(KeyExists):
            store.create_from_file("k", path)
    assert store.read("k") == b"first"
    assert list(store.spool_dir().iterdir()) == []
    assert (tmp_path / "file").read_bytes() == b"second"
    with pytest.raises(NotFound):
        store.create_from_file("other", tmp_path / "missing")


RANGES = [
    (0, 4),
    (3, 2),
    (8, 100),
    (10, 1),
    (50, 1),
    (0, 0),
    (-3, 3),
    (-3, 2),
    (-10, 10),
    (-50, 4),
    (-1, 100),
]


@pytest.mark.parametrize(("start", "length"), RANGES)
def test_ranges(store: ObjectStore, start: int, length: int) -> None:
    data = b"0123456789"
    store.create("k", data)
    first = max(0, 10 + start) if start < 0 else start
    assert store.read_range("k", start, length) == data[first : first + length]


def test_a_negative_length_is_refused(store: ObjectStore) -> None:
    store.create("k", b"x")
    with pytest.raises(InvalidInput):
        store.read_range("k", 0, -1)


def test_a_large_object_reads_by_ranges_and_through_pyarrow(store: ObjectStore) -> None:
    table = pa.table({"n": pa.array(range(2_000_000), pa.int64())})
    path = store.spool_dir() / "large"
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=100_000)
    data = path.read_bytes()
    assert len(data) > 16_000_000
    store.create_from_file("large.parquet", path)
    info = store.info("large.parquet")
    assert info is not None
    assert info.size == len(data)
    assert store.read_range("large.parquet", 9_999_999, 100) == data[9_999_999:][:100]
    with store.open_input("large.parquet") as file, pq.ParquetFile(file) as parquet:
        assert parquet.read_row_group(7)["n"][5].as_py() == 700_005


def test_a_listing_is_in_the_order_of_whole_keys(store: ObjectStore) -> None:
    names = [
        "a/x",
        "a-b/x",
        "a.b",
        "a/x.y/z",
        "a/x-y/z",
        "a0",
        "b",
        "a/é",
        "a/z",
        "a/Z",
        "p=1/q",
        "p=10/q",
        "p/q",
        "\uffee",
    ]
    if not is_s3(store):  # the server sorts by UTF-16, not by UTF-8 as S3 does; keys of ours are ASCII
        names.append("\U0001f600")
    for name in names:
        store.create(name, name.encode())
    assert keys(store) == sorted(names)
    assert keys(store) == sorted(names, key=lambda name: name.encode())
    assert {info.key: info.size for info in store.list("")} == {name: len(name.encode()) for name in names}


@pytest.mark.parametrize(
    "prefix", ["", "a", "a/", "a/x", "a/x-", "a/xy/", "b", "c/", "a/b/c/d", "p=1", "none/none", "."]
)
def test_a_prefix_is_of_the_key_and_not_of_a_folder(store: ObjectStore, prefix: str) -> None:
    names = ["a/x", "a/x-y/z", "a/xy/z", "ab/c", "b", "p=1/q", "p=10/q", "a/b/c/d/e", ".hidden/x"]
    for name in names:
        store.create(name, b"")
    assert keys(store, prefix) == sorted(name for name in names if name.startswith(prefix))


def test_what_is_in_the_spool_is_not_listed(store: ObjectStore) -> None:
    (store.spool_dir() / "half").write_bytes(b"half")
    assert keys(store) == []
    store.create("k", b"")
    assert keys(store) == ["k"]


def test_a_created_object_is_listed_at_once(store: ObjectStore) -> None:
    for number in range(50):
        store.create(f"t/{number % 7}/{number:03}", b"")
        assert f"t/{number % 7}/{number:03}" in keys(store, f"t/{number % 7}/")


def test_deleted_is_gone_and_deleting_again_is_no_error(store: ObjectStore) -> None:
    store.create("a/b", b"one")
    store.create("a/c", b"two")
    for key in ("a/b", "a/b", "never", "never/there", "a", *(() if is_s3(store) else ("a/c/below",))):
        store.delete(key)
    assert keys(store) == ["a/c"]
    store.create("a/b", b"again")
    assert store.read("a/b") == b"again"


BAD_KEYS = [
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a/.", "a\0b", "a\nb", "\ud800",
    "x" * 256, "é" * 128, "a/" * 600 + "a", ".spool", ".spool/a",
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys_are_refused_everywhere(store: ObjectStore, tmp_path: Path, key: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    for call in (
        lambda: store.create(key, b"x"),
        lambda: store.create_from_file(key, file),
        lambda: store.read(key),
        lambda: store.read_range(key, 0, 1),
        lambda: store.open_input(key),
        lambda: store.info(key),
        lambda: store.delete(key),
        lambda: store.uri(key),
    ):
        with pytest.raises(InvalidInput, match="key") as caught:
            call()
        assert not isinstance(caught.value, NotFound | KeyExists)
    assert keys(store) == []


@pytest.mark.parametrize("prefix", ["/", "/a", "../", "a/../b", "a//", "./a", ".spool/", "a/\0"])
def test_bad_prefixes_are_refused_at_once(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(InvalidInput):
        store.list(prefix)


def test_the_longest_component_is_a_key(store: ObjectStore) -> None:
    spare = 55 if is_s3(store) else 0  # the server first makes a file of that name and a suffix
    key = "a/" + "x" * (255 - spare) + "/" + "é" * (127 - spare)
    store.create(key, b"")
    assert keys(store) == [key]


@pytest.mark.parametrize("store", ["local", "memory"], indirect=True)
def test_a_key_is_not_the_folder_of_another(store: ObjectStore) -> None:
    """No code relies on it; in a bucket, which has no folders, both can exist."""
    store.create("a/b", b"")
    for key in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(InvalidInput, match="folder"):
            store.create(key, b"")
    assert keys(store) == ["a/b"]


# create_once


def test_create_once_is_content_with_the_same_bytes(store: ObjectStore) -> None:
    assert create_once(store, "k", b"one") is True
    assert create_once(store, "k", b"one") is False
    for other in (b"two", b"longer", b""):
        with pytest.raises(KeyExists):
            create_once(store, "k", other)
    assert store.read("k") == b"one"


@pytest.mark.parametrize(("fault", "created"), [(ObjectFault.LOST, True), (ObjectFault.REPLY_LOST, False)])
def test_create_once_settles_an_unknown_outcome(
    store: ObjectStore, fault: ObjectFault, created: bool
) -> None:
    faulty = FaultyObjectStore(store)
    faulty.fail("create", fault)
    assert create_once(faulty, "k", b"one") is created
    assert store.read("k") == b"one"


def test_create_once_gives_up_after_its_attempts(store: ObjectStore) -> None:
    faulty = FaultyObjectStore(store)
    faulty.fail("create", ObjectFault.LOST, times=9)
    with pytest.raises(OutcomeUnknown, match="after 3 attempts"):
        create_once(faulty, "k", b"one")
    assert faulty.calls == [("create", "k")] * 3
    faulty.heal()
    faulty.fail("create", ObjectFault.REFUSED)
    with pytest.raises(RetryLater):
        create_once(faulty, "k", b"one")
