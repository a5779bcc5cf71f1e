"""Checks that `data.uri` leads to the right folder, and that everything else is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.runtime.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///var/lib/archiver/data", "/var/lib/archiver/data"),
        ("file:///var/lib/archiver/data/", "/var/lib/archiver/data"),
        ("file:/var/data", "/var/data"),
        ("file://localhost/var/data", "/var/data"),
        ("file:///with%20space/%C3%A9/100%25", "/with space/é/100%"),
        ("file:///with space", "/with space"),
        ("file:////double", "/double"),
    ],
)
def test_file_uris(uri: str, path: str) -> None:
    store = open_store(StorePlace(uri))
    assert isinstance(store, LocalObjectStore)
    assert store.root == Path(path)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("S3A://bucket/prefix", "write s3://"),
        ("s3n://bucket/prefix", "write s3://"),
        ("s3://b/prefix", "not the name of a bucket"),
        ("s3://bucket/a//b", "prefix 'a//b' is not usable"),
        ("s3://bucket/a b", "prefix 'a b' is not usable"),
        ("s3://bucket/..", "prefix '..' is not usable"),
        ("/var/data", "must be of the form file:///"),
        ("data", "must be of the form file:///"),
        ("", "must be of the form file:///"),
        ("gs://bucket", "must be of the form file:///"),
        ("file://data/here", "names the host 'data'"),
        ("file:data", "must be an absolute path"),
        ("file:///", "root of the file system"),
        ("file:///a/../b", "'..'"),
        ("file:///a/%2e%2e/b", "'..'"),
        ("file:///a?b", "query"),
        ("file:///a#b", "fragment"),
        ("file:///a%3Fb", "cannot be used by table readers"),
        ("file:///a%00b", "cannot be used by table readers"),
        ("file:///a%FFb", "UTF-8"),
        ("file://[/x", "no URI"),
    ],
)
def test_other_uris_are_refused(uri: str, message: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"data\.uri") as caught:
        open_store(StorePlace(uri))
    assert message in str(caught.value)
