"""Checks that the group `data` is parsed, and that everything invalid is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.config.settings import DataSettings, load_settings
from archiver.objects.location import StorePlace
from archiver.runtime.errors import ConfigInvalid

SECRET = "hunter2-hunter2"


def loaded(folder: Path, data: str) -> DataSettings:
    (folder / "archiver.yaml").write_text(
        f"cluster: a\ndata: {data}\nmetadata: {{sqlite: {{path: m}}}}\n", encoding="utf-8"
    )
    return load_settings(
        folder / "archiver.yaml", {"KEY": "an-access-key", "SECRET": SECRET, "TOKEN": "a-token"}
    ).data


def test_a_bucket_with_everything(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("", encoding="utf-8")
    data = loaded(
        tmp_path,
        "{uri: s3://a-bucket/some/pre_fix=1, endpoint: 'https://s3.example.com:9000', region: "
        "eu-central-1, path_style: true, "
        "ca_file: ca.pem, access_key_id: {env: KEY}, secret_access_key: {env: SECRET}, session_token: "
        "{env: TOKEN}, "
        "connect_timeout: 2s, request_timeout: 7s, attempts_max: 9, part_bytes: 8MiB}",
    )
    place = StorePlace.of(data)
    assert (place.uri, place.is_s3, place.s3.endpoint) == (
        "s3://a-bucket/some/pre_fix=1",
        True,
        "https://s3.example.com:9000",
    )
    assert (place.s3.region, place.s3.path_style, place.s3.ca_file) == (
        "eu-central-1",
        True,
        str(tmp_path / "ca.pem"),
    )
    assert (place.s3.access_key_id, place.s3.secret_access_key, place.s3.session_token) == (
        "an-access-key",
        SECRET,
        "a-token",
    )
    assert (
        place.s3.connect_timeout_s,
        place.s3.request_timeout_s,
        place.s3.attempts_max,
        place.s3.part_bytes,
    ) == (2, 7, 9, 8 * 2**20)
    for text in (repr(data), repr(place), str(place)):
        assert SECRET not in text and "an-access-key" not in text and "a-token" not in text


def test_a_folder_takes_nothing_of_it_along(tmp_path: Path) -> None:
    assert StorePlace.of(loaded(tmp_path, "{uri: d}")) == StorePlace(f"file://{tmp_path}/d")


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:9000",
        "http://localhost:1",
        "http://[::1]:1",
        "https://s3.example.com",
        "https://s3:1/",
    ],
)
def test_endpoints(tmp_path: Path, endpoint: str) -> None:
    assert loaded(tmp_path, f"{{uri: s3://bucket, endpoint: '{endpoint}'}}").endpoint == endpoint


def test_http_to_another_machine_only_if_configured(tmp_path: Path) -> None:
    assert loaded(
        tmp_path, "{uri: s3://bucket, endpoint: 'http://10.0.0.1:9000', allow_http: true}"
    ).allow_http


REFUSED = {
    "{uri: s3://bucket, endpoint: 'http://10.0.0.1:9000'}": "data.endpoint: http:// to another machine",
    "{uri: s3://bucket, endpoint: 'http://s3.example.com'}": "data.endpoint: http:// to another machine",
    "{uri: s3://bucket, endpoint: s3.example.com}": "is not an address",
    "{uri: s3://bucket, endpoint: 'https://s3.example.com/path'}": "is not an address",
    "{uri: s3://bucket, endpoint: 'https://s3.example.com:x'}": "is not an address",
    f"{{uri: s3://bucket, endpoint: 'https://me:{SECRET}@s3.example.com'}}": "data.endpoint: has a user name",
    f"{{uri: 's3://me:{SECRET}@bucket'}}": "data.uri: has a user name",
    "{uri: s3a://bucket}": "data.uri: s3a:// is Hadoop's spelling; write s3://",
    "{uri: s3n://bucket}": "write s3://",
    "{uri: s3://b}": "data.uri: 'b' is not the name of a bucket",
    "{uri: s3://Bucket}": "is not the name of a bucket",
    "{uri: s3://buc..ket}": "is not the name of a bucket",
    "{uri: 's3://bucket/a b'}": "the prefix 'a b' is not usable",
    "{uri: 's3://bucket/a//b'}": "is not usable",
    "{uri: 's3://bucket/../b'}": "is not usable",
    "{uri: 's3://bucket/é'}": "is not usable",
    "{uri: s3://bucket, access_key_id: {env: KEY}}": "data.secret_access_key: access_key_id and secret_access_key belong together",
    "{uri: s3://bucket, secret_access_key: {env: SECRET}}": "data.access_key_id: access_key_id and secret_access_key belong together",
    "{uri: s3://bucket, session_token: {env: TOKEN}}": "data.session_token: belongs to access_key_id",
    "{uri: s3://bucket, ca_file: missing.pem}": "data.ca_file: there is no file",
    "{uri: s3://bucket, region: 'x y'}": "is not the name of a region",
    "{uri: s3://bucket, part_bytes: 1MiB}": "data.part_bytes",
    "{uri: s3://bucket, part_bytes: 6GiB}": "data.part_bytes",
    "{uri: s3://bucket, attempts_max: 0}": "data.attempts_max",
    "{uri: s3://bucket, request_timeout: 0}": "data.request_timeout",
    "{uri: d, endpoint: 'https://s3.example.com'}": "data.endpoint: belongs to s3://; remove it",
    "{uri: d, path_style: true}": "data.path_style: belongs to s3://; remove it",
    "{uri: d, session_token: {env: TOKEN}}": "data.session_token: belongs to s3://; remove it",
}


@pytest.mark.parametrize("data", REFUSED)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, data: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(tmp_path, data)
    assert REFUSED[data] in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_configuration_is_found_above_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-c ../orders/archiver.yaml`: no value in the file has a `..`, so no error may name one."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "orders" / "archiver.yaml").write_text(
        "cluster: c\ndata: { uri: data }\nmetadata: { sqlite: { path: m.db } }\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load_settings(Path("../orders/archiver.yaml"), {})
    assert found.data.uri == f"file://{tmp_path}/orders/data"
    assert str(found.metadata.sqlite and found.metadata.sqlite.path) == f"{tmp_path}/orders/m.db"


def test_a_link_behind_the_last_step_up_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table metadata names the data folder by its path. A linked release must not change that path."""
    (tmp_path / "releases" / "5").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "releases" / "5")
    (tmp_path / "current" / "archiver.yaml").write_text(
        "cluster: c\ndata: { uri: data }\nmetadata: { sqlite: { path: m.db } }\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in ("../current/archiver.yaml", f"{tmp_path}/current/archiver.yaml"):
        assert load_settings(Path(path), {}).data.uri == f"file://{tmp_path}/current/data"


@pytest.mark.parametrize("uri", ["../data", "file:///var/lib/../data"])
def test_a_step_up_in_the_data_folder_is_refused_when_it_is_checked(tmp_path: Path, uri: str) -> None:
    path = tmp_path / "archiver.yaml"
    path.write_text(f"cluster: c\ndata: {{ uri: '{uri}' }}\nmetadata: {{ sqlite: {{ path: m.db }} }}\n")
    with pytest.raises(ConfigInvalid, match=r"has a '\.\.' in its path"):
        load_settings(path, {})
