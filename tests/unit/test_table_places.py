"""Checks that the file opened for a location of table metadata is the one compared with the catalog's places."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from archiver.catalog.iceberg.guarded_io import LIMITS, GuardedFileIO
from archiver.catalog.iceberg.remote_limits import RemoteLimits, TablePlaces
from archiver.runtime.errors import Halt

PLACES = TablePlaces(["file:///srv/data", "s3://lake/tables"])


@pytest.mark.parametrize(
    "location",
    [
        *(
            "/srv/data/t/metadata/a.avro",
            "file:/srv/data/a.avro",
            "file:///srv/data/a b.avro",
            "file:////srv/data/a.avro",
            "//srv/data/a",
        ),
        *(
            "file:///srv/data/t/../a.avro",
            "file:///srv/data/%2e%2e/a.avro",
            "s3a://lake/tables/a.avro",
            "s3://lake/tables//a.avro",
        ),
    ],
)
def test_what_lies_in_the_places_may_be_opened(location: str) -> None:
    assert PLACES.refusal(location) is None


@pytest.mark.parametrize(
    "location",
    [
        *(
            "file:///etc/passwd?/../../srv/data/a",
            "file:///etc/passwd#/../../srv/data/a",
            "file:/etc/passwd?/../../srv/data/a",
        ),
        *(
            "file:///srv/data/../a",
            "file:///srv/data\t/a",
            "/srv/data/a\x00",
            "file:srv/data/a",
            "file://srv/data/a",
            "file://host/srv/data/a",
        ),
        *(
            "file://../srv/data/a",
            "FILE:///srv/data/a",
            " file:///srv/data/a",
            "srv/data/a",
            "http://lake/tables/a",
        ),
        *(
            "s3://lake/tables/../other/a",
            "s3://lake/tables/./a",
            "s3://lake/tables/.\n./other/a",
            "s3://lake/tables/a?versionId=1",
        ),
        *(
            "s3://lake/tables",
            "s3://user@lake/tables/a",
            "s3://other/tables/a",
            "S3://lake/tables/a",
            "s3:///tables/a",
            "",
        ),
    ],
)
def test_what_another_reader_could_take_for_another_file_is_refused(location: str) -> None:
    assert PLACES.refusal(location) is not None


def test_nothing_is_read_written_or_deleted_elsewhere(tmp_path: Path) -> None:
    access = GuardedFileIO({LIMITS: RemoteLimits(places=TablePlaces([f"file://{tmp_path}/data"]))})
    (tmp_path / "data").mkdir()
    inside, outside = tmp_path / "data" / "a.avro", tmp_path / "a.avro"
    for path in (inside, outside):
        path.write_text("x")
    for act in (access.new_input, access.new_output, access.delete):
        with pytest.raises(Halt, match="which is not opened"):
            act(f"file://{outside}")
    access.delete(f"file://{inside}")
    assert outside.exists()
    assert not inside.exists()


def test_what_is_accepted_is_opened_in_the_places() -> None:
    """Every location of up to four pieces. The opened path is pyiceberg's interpretation of the location."""
    folder = Path("/nowhere/data")
    access = GuardedFileIO({LIMITS: RemoteLimits(places=TablePlaces([f"file://{folder}"]))})
    pieces = ("", "secret", "data/x", "/../", "?", "#", "\n", "/", ";", "@")
    accepted = 0
    for start in ("file:///nowhere/", "file:/nowhere/data/", "file://nowhere/", "file:nowhere/", "/nowhere/"):
        for row in itertools.product(pieces, repeat=4):
            location = start + "".join(row)
            if access.limits.places is None or access.limits.places.refusal(location) is not None:
                continue
            accepted += 1
            scheme, _, path = access.parse_location(location, {})
            assert scheme == "file"
            assert Path(os.path.realpath(path)).is_relative_to(folder), location
    assert accepted > 100
