"""Is table metadata in the data folder opened for any characters in the folder's path?"""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.catalog.configured import remote_limits
from archiver.config.settings import load_settings
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store

NAMES = (
    "plain",
    "a folder [1] it's",
    "50% off",
    "a%20b",
    "a+b",
    "~x",
    "zażółć",
    "x;y",
    "a&b=c",
    '"q"',
    "a\\b",
    "{c}",
    "@",
    ":8080",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("written", ["path", "uri"])
def test_metadata_in_the_data_folder_is_opened(name: str, written: str, tmp_path: Path) -> None:
    folder = tmp_path / name / "data"
    uri = str(folder) if written == "path" else folder.as_uri()
    config = tmp_path / "archiver.yaml"
    config.write_text(
        f"cluster: test\ndata: {{uri: '{uri.replace(chr(39), 2 * chr(39))}'}}\nmetadata: {{sqlite: "
        f"{{path: metadata.db}}}}\n"
        "catalogs: [{name: local, type: sql, uri: 'sqlite:///catalog.db'}]\n"
    )
    settings = load_settings(config, {})
    places = remote_limits(settings.catalogs[0], settings.data.uri).places
    assert places is not None
    location = open_store(StorePlace.of(settings.data)).uri("archive/t/metadata/1.metadata.json")
    assert location == f"file://{folder}/archive/t/metadata/1.metadata.json"
    assert places.refusal(location) is None
    assert places.refusal(f"file://{tmp_path}/{name}/other/1.metadata.json") is not None
