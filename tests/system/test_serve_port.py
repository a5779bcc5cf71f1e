"""A real daemon and what is around it: its port, a service manager, files that come, a data folder that
goes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from signal import SIGHUP

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import Command, until
from tests.support.process.serving import Served, quick

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]


class Managed(Deployment):
    """A deployment whose processes have the socket of a service manager."""

    def environ(self, armed: str = "") -> dict[str, str]:
        return super().environ(armed) | {
            "NOTIFY_SOCKET": str(self.root / "notify"),
            "WATCHDOG_USEC": "1000000",
        }


def test_a_port_that_is_taken_is_said_and_tried_again(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        document = quick(deployment.document())
        document["http"] = {"listen": f"127.0.0.1:{port}"}
        deployment.write(document)
        with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
            until("it serves without its port", lambda: daemon.logged("serving as intake, without its port"))
            line = daemon.logged("serving as intake")[0]
            assert line["level"].upper() == "WARNING"
            assert f"cannot listen on 127.0.0.1:{port}" in line["message"]
            assert (
                "another program listens there: stop it, or set http.listen to another port; it retries"
                in line["message"]
            )
            assert len([one for one in daemon.logged() if one["message"].startswith("cannot listen on")]) == 1
            assert daemon.running
            other.close()
            daemon.until_ready()
            assert daemon.address == ("127.0.0.1", port)
            assert all(check["name"] != "port" for check in daemon.get("/readyz").json()["checks"])
            assert daemon.stop() == 0


def test_a_second_daemon_names_the_one_that_has_the_port(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    document = quick(deployment.document())
    document["http"] = {"listen": f"127.0.0.1:{port}"}
    deployment.write(document)
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "one") as first:
        first.until_ready()
        with Served(deployment, "--roles", "intake", scratch=tmp_path / "two") as second:
            said = (
                f"this deployment's daemon (process {first.pid}) listens there already: end this one, or stop "
                "that one to replace it; a second daemon needs another http.listen"
            )
            until("it names the other", lambda: second.logged("cannot listen on"))
            assert said in second.logged("cannot listen on")[0]["message"]
            until("it serves", lambda: second.logged("serving as intake"))
            assert second.running
            assert first.stop() == 0
            until("it takes the port over", lambda: second.logged("listening on"))
            assert second.stop() == 0


def test_a_closed_port_is_what_the_service_manager_shows(tmp_path: Path) -> None:
    deployment = Managed(tmp_path / "d")
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        document = quick(deployment.document())
        document["http"] = {"listen": f"127.0.0.1:{other.getsockname()[1]}"}
        deployment.write(document)
        manager.bind(str(deployment.root / "notify"))
        manager.settimeout(60)
        with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
            while "STATUS=serving as intake, without its port" not in manager.recv(4096).decode():
                pass
            other.close()
            while not manager.recv(4096).decode().endswith("STATUS=serving as intake"):
                pass
            assert daemon.stop() == 0


def test_a_first_start_in_a_folder_without_the_right_to_write_ends_with_what_to_do(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    deployment.root.chmod(0o500)
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.support.process.privileges import "
        "file_modes_hold; "
    )
    program += "from archiver.cli.app import main; guard = file_modes_hold(); guard.__enter__(); main()"
    try:
        with Command(
            deployment, "serve", scratch=tmp_path / "scratch", program=(sys.executable, "-c", program)
        ) as command:
            assert command.wait() == 3, command.err
            assert "error: the user" in command.err[-1]
            assert "may not write in the folder" in command.err[-1]
            assert "chown" in command.err[-1]
            assert not any("Traceback" in line for line in command.err)
    finally:
        deployment.root.chmod(0o700)
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert daemon.stop() == 0


def test_the_service_manager_is_notified(tmp_path: Path) -> None:
    deployment = Managed(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    reported: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(deployment.root / "notify"))
        manager.settimeout(60)

        def until_reported(text: str) -> None:
            while not reported or text not in reported[-1]:
                reported.append(manager.recv(4096).decode())

        with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
            until_reported("READY=1")
            for _ in range(3):
                until_reported("WATCHDOG=1")
                reported.append("")
            daemon.signal(SIGHUP)
            until_reported("RELOADING=1\nMONOTONIC_USEC=")
            until_reported("READY=1")
            assert daemon.stop() == 0
            until_reported("STOPPING=1")
            until_reported("EXTEND_TIMEOUT_USEC=")


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--roles", "intake,cook"], "there is no role 'cook'"),
        (["--roles", ""], "there is no role ''"),
        (["-c", "absent.yaml"], "absent.yaml"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused_at_once(
    arguments: list[str], reported: str, tmp_path: Path
) -> None:
    done = Deployment(tmp_path / "d").run("serve", *arguments)
    assert done.code == 3, done
    assert reported in done.err


def test_files_are_taken_in_by_themselves(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    document = quick(deployment.document())
    document["sources"] = [
        {"files": {"glob": "inbox/*.jsonl", "topic": "kept", "format": "jsonl", "settle": 0}}
    ]
    deployment.write(document)
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        (deployment.root / "inbox").mkdir()
        (deployment.root / "draft").write_bytes(b'{"value": "AAAA"}\n' * 7)
        (deployment.root / "draft").rename(deployment.root / "inbox" / "one.jsonl")
        until("it has taken the file in", lambda: seven(daemon))
        (deployment.root / "draft").write_bytes(b"no JSON\n")
        (deployment.root / "draft").rename(deployment.root / "inbox" / "two.jsonl")
        until(
            "the page says that a file is wrong",
            lambda: "has files that cannot be ingested" in daemon.get("/").body.decode(),
        )
        assert "two.jsonl" in daemon.get("/").body.decode()
        assert daemon.stop() == 0
    assert len(deployment.consume("kept")) == 7


def seven(daemon: Served) -> bool:
    return any(
        line.startswith("archiver_source_records_total{") and line.endswith(" 7.0")
        for line in daemon.get("/metrics").body.decode().splitlines()
    )


def test_a_data_folder_that_goes_away_under_it_is_waited_for_and_not_made_again(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    one = b'{"value": "AAAA"}\n'
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert daemon.post("/v1/topics/kept/records", one).lines()[0]["offset"] == 0
        deployment.data.rename(deployment.root / "away")
        until("it is not ready", lambda: not daemon.ready())
        assert b"objects" in daemon.get("/readyz").body
        assert daemon.get("/healthz").status == 200
        assert b'"offset":null' in daemon.post("/v1/topics/kept/records", one).body.replace(b" ", b"")
        assert not deployment.data.exists(), "nothing is made where the folder was"
        (deployment.root / "away").rename(deployment.data)
        daemon.until_ready()
        assert daemon.post("/v1/topics/kept/records", one).lines()[0]["offset"] == 1
        assert daemon.stop() == 0
    assert [record["offset"] for record in deployment.consume("kept")] == [0, 1]
