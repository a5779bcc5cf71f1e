"""Copies of a bucket's files for a query: few enough, made once, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from archiver.catalog.tables import LiveFile
from archiver.query.bounded_query import Stopped
from archiver.query.tables import FetchedFiles
from archiver.runtime.errors import Halt
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import S3Server
from tests.support.objects.s3_store import new_store


def live(path: str, size: int) -> LiveFile:
    return LiveFile(path, 1, size, 0, (), None, None, None, None, 1, 1)


def interrupted() -> NoReturn:
    raise Stopped


def test_files_are_copied_once_and_within_a_bound(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: S3Server = request.getfixturevalue("s3_server")
    with S3Faults(server) as faults:
        store = new_store(server, endpoint=faults.uri)
        store.create("archive/a", b"a" * 600)
        store.create("archive/b", b"b" * 600)
        one, two = (
            live(store.uri("archive/a"), 600),
            live(store.uri("archive/b").replace("s3://", "s3a://"), 600),
        )
        faults.counts()
        copies = FetchedFiles(store, 1000)
        (path,) = copies.paths([one])
        assert Path(path).read_bytes() == b"a" * 600
        assert copies.paths([one]) == [path]
        assert faults.counts() == {"get": 1}
        with pytest.raises(Halt, match="exceed 1KB, the limit of a query over a bucket"):
            copies.paths([one, two])
        assert [Path(found).read_bytes()[:1] for found in FetchedFiles(store, 1200).paths([two, one])] == [
            b"b",
            b"a",
        ]
        folder = tmp_path / "copies"
        folder.mkdir()
        (given,) = FetchedFiles(store, 1200, folder).paths([one])
        assert Path(given).parent == folder
        with pytest.raises(Stopped):
            FetchedFiles(store, 1200, folder, interrupted).paths([one])
        with pytest.raises(Halt, match="has more bytes than the table's metadata states"):
            FetchedFiles(store, 1200, folder).paths([replace(one, file_size=599)])
        for strange in ("s3://another/archive/a", "file:///etc/passwd", f"{store.uri('archive/none')}"):
            with pytest.raises(Halt, match=r"is outside of data.uri|cannot be fetched"):
                FetchedFiles(store).paths([replace(one, path=strange)])
