"""Access to etcd: certificates, users and their tokens, and the errors of clients without access."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.log.store import Appended, Entry
from archiver.runtime.errors import Halt, RetryLater
from tests.support.log.etcd_certificates import Certificates, make_certificates
from tests.support.log.etcd_server import Etcd, User, enable_auth
from tests.support.log.etcd_stores import access_to, cluster_of, store_of

ROOT, OURS = User("root", "of the root"), User("archiver", "of the archiver")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secured(tmp_path: Path, certificates: Certificates) -> Iterator[Etcd]:
    with Etcd(tmp_path / "server", certificates=certificates) as server:
        yield server


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "server") as server:
        enable_auth(server, ROOT, OURS, "/archiver")
        yield server


def test_with_certificates_on_both_sides(secured: Etcd, certificates: Certificates, tmp_path: Path) -> None:
    store = store_of(access_to([secured.address], certificates=certificates), tmp_path)
    log = store.log("intake")
    assert log.append(0, b"one") is Appended.OK
    assert log.read(0) == [Entry(0, b"one")]
    store.close()


def test_an_authority_that_is_not_ours_is_not_believed(
    secured: Etcd, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = make_certificates(tmp_path / "strangers")
    wrong = replace(certificates, authority=stranger.authority)
    with pytest.raises(RetryLater, match="CERTIFICATE_VERIFY_FAILED"):
        store_of(access_to([secured.address], certificates=wrong), tmp_path)


def test_a_certificate_for_another_name_is_not_believed(tmp_path: Path) -> None:
    elsewhere = make_certificates(tmp_path / "certificates", host="127.0.0.2")
    etcd = Etcd(tmp_path / "server", certificates=elsewhere)
    try:
        etcd.start(wait=False)
        said = "refused"
        deadline_s = time.monotonic() + 20
        while "refused" in said and time.monotonic() < deadline_s:
            time.sleep(0.1)
            with pytest.raises(RetryLater) as caught:
                store_of(access_to([etcd.address], certificates=elsewhere), tmp_path)
            said = str(caught.value)
        assert "Hostname Verification Check failed" in said or "CERTIFICATE_VERIFY_FAILED" in said, said
    finally:
        etcd.kill()


def test_who_has_no_certificate_is_not_let_in(
    secured: Etcd, certificates: Certificates, tmp_path: Path
) -> None:
    without = replace(access_to([secured.address], certificates=certificates), cert_file=None, key_file=None)
    with pytest.raises(RetryLater, match="no member of the metadata store answers"):
        store_of(without, tmp_path)
    with pytest.raises(RetryLater, match="no member of the metadata store answers"):
        store_of(access_to([secured.address]), tmp_path)


def test_a_file_of_a_certificate_that_is_gone_halts(
    secured: Etcd, certificates: Certificates, tmp_path: Path
) -> None:
    with pytest.raises(Halt, match=r"a file of metadata\.etcd\.tls cannot be read: .*gone\.pem"):
        store_of(
            replace(access_to([secured.address], certificates=certificates), ca_file=tmp_path / "gone.pem"),
            tmp_path,
        )


def test_a_user_who_may_only_what_we_need(guarded: Etcd, tmp_path: Path) -> None:
    """The server forgets the token at its restart, and a new one is requested."""
    store = store_of(access_to([guarded.address], user=OURS), tmp_path)
    log = store.log("intake")
    assert log.append(0, b"one") is Appended.OK
    guarded.stop()
    guarded.start()
    assert log.read(0) == [Entry(0, b"one")]
    guarded.stop()
    guarded.start()
    outcome = log.append(1, b"two")
    assert outcome is Appended.UNKNOWN or log.append(1, b"two") is outcome is Appended.OK
    assert log.append(1, b"two") is Appended.OK
    log.trim(1)
    assert (log.floor(), log.tail()) == (1, 2)
    store.close()


def test_who_is_refused_learns_why(guarded: Etcd, tmp_path: Path) -> None:
    for user, prefix, why in (
        (None, "/archiver", r"requires authentication: set metadata\.etcd\.user and password"),
        (
            User("archiver", "wrong"),
            "/archiver",
            r"refuses user archiver: .*correct metadata\.etcd\.user or password",
        ),
        (
            OURS,
            "/elsewhere",
            r"user archiver has no permission for that; grant it readwrite for all keys below metadata\.etcd\.prefix",
        ),
    ):
        with pytest.raises(Halt, match=why):
            store_of(access_to([guarded.address], user=user), tmp_path, prefix)


def test_a_user_where_no_one_is_asked_for_one_is_refused(tmp_path: Path) -> None:
    """An operator who configured a user believes that the logs are guarded."""
    with (
        Etcd(tmp_path / "server") as etcd,
        pytest.raises(
            Halt, match="has authentication disabled, so every client that reaches it has full access"
        ),
    ):
        store_of(access_to([etcd.address], user=OURS), tmp_path)


def test_no_secret_is_shown() -> None:
    access = access_to(["127.0.0.1:1"], user=OURS)
    assert (
        OURS.password
        not in repr(access)
        + str(access)
        + repr(cluster_of(access, "/archiver"))
        + cluster_of(access, "/a").name
    )
