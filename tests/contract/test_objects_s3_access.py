"""Access to the store on S3, and its server: required guarantees, credentials found and renewed, forks,
spool.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.catalog.iceberg.io_properties import io_properties
from archiver.catalog.iceberg.local_io import DurableFileIO
from archiver.objects.conditional_put_check import check_conditional_put
from archiver.objects.location import S3Options, StorePlace
from archiver.objects.paths import probe_key
from archiver.objects.s3.calls import client_for
from archiver.objects.s3.store import S3ObjectStore
from archiver.runtime.errors import ArchiverError, ConfigInvalid
from reconcile.vacuum.clean import stale_uploads, stray_uploads
from tests.support.objects.memory_store import MemoryObjectStore
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server
from tests.support.objects.s3_store import new_store, place


@pytest.fixture
def store(server: S3Server, faults: S3Faults) -> S3ObjectStore:
    return new_store(server, endpoint=faults.uri)


# the guarantees


def test_the_guarantees_cost_one_request_once_they_were_asked_for(
    store: S3ObjectStore, faults: S3Faults
) -> None:
    check_conditional_put(store)
    assert faults.counts() == {
        "put": 2,
        "begin": 1,
        "part": 1,
        "complete": 1,
        "abort": 1,
        "get": 1,
        "list": 1,
    }
    check_conditional_put(store)
    assert faults.counts() == {"put": 1}


def test_a_server_that_ignores_the_condition_is_refused(tmp_path: Path) -> None:
    with S3Server(tmp_path, signed=False) as server, S3Faults(server) as faults:
        store = new_store(server, endpoint=faults.uri)
        faults.ignoring = ("complete",)
        with pytest.raises(ConfigInvalid, match="CompleteMultipartUpload"):
            check_conditional_put(store)
        faults.ignoring = ("put",)
        for _ in range(2):  # also where it was asked before
            with pytest.raises(ConfigInvalid, match=r"despite If-None-Match: \*: two writers"):
                check_conditional_put(store)
        assert [info.key for info in store.list("")] == [probe_key()]
        faults.ignoring = ()
        check_conditional_put(store)


# certificates


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    with S3Server(tmp_path / "s3", tls=True) as server:
        strange = new_store(server, attempts_max=2)
        with pytest.raises(
            ConfigInvalid, match=r"certificate is not trusted; set data\.ca_file to its CA certificates"
        ):
            strange.create("k", b"x")
        trusting = new_store(server, ca_file=str(server.ca_file))
        trusting.create("k", b"x")
        assert trusting.read("k") == b"x"
        with pytest.raises(ConfigInvalid, match=r"there is no file .* on this machine"):
            new_store(server, ca_file=str(tmp_path / "missing.pem")).create("k", b"x")
        for authorities, readable in ((str(server.ca_file), True), (None, False)):
            where = StorePlace(trusting.place.uri, replace(trusting.place.s3, ca_file=authorities))
            io = DurableFileIO(io_properties(where, {}))
            if readable:
                assert io.new_input(trusting.uri("k")).open().read() == b"x"
            else:
                with pytest.raises(OSError, match=r"(?i)certificate|ssl"):
                    io.new_input(trusting.uri("k")).open()


# unfinished uploads


def test_only_stale_uploads_are_aborted(store: S3ObjectStore, server: S3Server) -> None:
    bucket, _, prefix = store.place.uri.removeprefix("s3://").partition("/")
    server.client().create_multipart_upload(Bucket=bucket, Key=f"{prefix}/archive/left")
    server.client().create_multipart_upload(Bucket=bucket, Key="of/somebody/else")
    ((key, upload),) = store.open_uploads()
    assert key == "archive/left"
    day_us = 86_400_000_000
    assert stale_uploads(store, upload.begun_us + day_us, 86_400.0, 10, abort=True) == []
    later_us = upload.begun_us + day_us + 1
    assert [one.key for one in stray_uploads(store, later_us, 86_400.0, 10)] == ["archive/left"]
    assert stale_uploads(store, later_us, 86_400.0, 0, abort=True) == []
    assert stale_uploads(store, later_us, 86_400.0, 10, abort=True) == ["archive/left"]
    assert list(store.open_uploads()) == []
    assert stale_uploads(MemoryObjectStore(), later_us, 86_400.0, 10, abort=True) == []
    assert len(server.client().list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1, (
        "another prefix is not ours"
    )


# credentials


def test_the_usual_chain_is_asked_if_the_configuration_has_no_keys(
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    without: dict[str, object] = {"access_key_id": None, "secret_access_key": None}
    # A process makes one client for the same options: a time-out of its own gives each case its own client.
    with pytest.raises(ConfigInvalid, match="there are no credentials"):
        new_store(server, **without, request_timeout_s=11.0).create("k", b"")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    new_store(server, **without, request_timeout_s=12.0).create("k", b"")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id={ACCESS_KEY_ID}\naws_secret_access_key={SECRET_ACCESS_KEY}\n"
    )
    new_store(server, **without, request_timeout_s=13.0).create("k", b"")


def test_credentials_of_the_chain_are_renewed(
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    calls, script = tmp_path / "calls", tmp_path / "keys.sh"
    keys = f'"Version": 1, "AccessKeyId": "{ACCESS_KEY_ID}", "SecretAccessKey": "{SECRET_ACCESS_KEY}"'
    script.write_text(
        f'#!/bin/sh\necho x >> {calls}\necho \'{{{keys}, "Expiration": "\'$(date -u -d +2min '
        f"+%FT%TZ)'\"}}'\n"
    )
    script.chmod(0o755)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {script}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = new_store(server, access_key_id=None, secret_access_key=None, request_timeout_s=14.0)
    store.create("k", b"")
    before = len(calls.read_text())
    store.create("l", b"")  # within two minutes of their end keys are renewed
    assert len(calls.read_text()) > before > 0


def test_a_place_travels_and_shows_no_secret() -> None:
    token = "a-session-token"
    where = StorePlace(
        "s3://bucket/x",
        S3Options(access_key_id=ACCESS_KEY_ID, secret_access_key=SECRET_ACCESS_KEY, session_token=token),
    )
    assert pickle.loads(pickle.dumps(where)) == where
    for text in (repr(where), str(where), repr(where.s3), f"{where}"):
        assert not any(secret in text for secret in (ACCESS_KEY_ID, SECRET_ACCESS_KEY, token))


# processes


def test_a_child_of_a_fork_has_a_client_of_its_own(server: S3Server) -> None:
    store = new_store(server)
    store.create("parent", b"x")
    ours = id(client_for(store.place.s3))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.create("child", b"x")
            code = 0 if id(client_for(store.place.s3)) != ours else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [info.key for info in store.list("")] == ["child", "parent"]


def test_what_is_spooled_goes_with_the_upload(store: S3ObjectStore) -> None:
    file = store.spool_dir() / "file"
    file.write_bytes(b"x")
    assert file.parent.stat().st_mode & 0o077 == 0
    store.create_from_file("k", file)
    assert not file.exists()


def test_a_key_that_is_too_long_with_its_prefix_is_refused(server: S3Server) -> None:
    store = S3ObjectStore(place(server, prefix="p" * 500))
    with pytest.raises(ArchiverError, match="too long"):
        store.create("/".join(["x" * 100] * 6), b"")
