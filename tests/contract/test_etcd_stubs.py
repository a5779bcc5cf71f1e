"""Does the package etcd3 work with the messages that we give it, and does it still need them?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.log.etcd.cluster import stubs_of_etcd3_load
from tests.support.log.etcd_server import Etcd

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def test_etcd3_still_needs_our_messages() -> None:
    assert not stubs_of_etcd3_load(), (
        "etcd3 loads with the messages that it brings along: archiver/log/etcd/cluster.py is needed no "
        "more. Import etcd3 in "
        "archiver/log/etcd/cluster.py, take its messages from etcd3.etcdrpc, and remove that file and "
        "archiver/proto/etcd_*"
    )


def test_its_client_works_on_ours(etcd: Etcd) -> None:
    """Watches are left out, because we do not use them: the thread that etcd3 starts for them ends only by an
    error."""
    with etcd.client() as client:
        client.put("one", b"1")
        assert client.get("one")[0] == b"1"
        swap = {
            "compare": [client.transactions.value("one") == b"1"],
            "success": [client.transactions.put("one", b"2")],
            "failure": [],
        }
        assert [client.transaction(**swap)[0] for _ in range(2)] == [True, False]
        lease = client.lease(60)
        client.put("two", b"leased", lease=lease)
        assert client.get("two")[1].lease_id == lease.id
        lease.revoke()
        assert client.get("two") == (None, None)
        assert [member.name for member in client.members] == ["one"]


def test_nothing_of_it_is_loaded_where_the_logs_are_in_a_file() -> None:
    program = (
        "import sys, archiver.cli.app, archiver.app.application, archiver.log.open\n"
        "sys.exit(any(name.partition('.')[0] in ('etcd3', 'grpc') for name in sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=60, check=False).returncode
        == 0
    )
