"""`watch` on real deployments: in place on a terminal, block by block in a pipe, and through reads that fail."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from archiver.cli import options, status
from archiver.cli import watch as command
from archiver.config.settings import load_settings
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Halt, RetryLater
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import Command, until
from tests.support.process.terminal import CTRL_C, Terminal
from tests.support.process.web import Daemon

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def last_frame(terminal: Terminal) -> list[str]:
    """The lines that were drawn last and whole."""
    frames = re.findall(r"\x1b\[H(.*?)\x1b\[J", terminal.written, re.DOTALL)
    return frames[-1].replace("\x1b[K", "").split("\r\n") if frames else []


def has_line(terminal: Terminal, start: str) -> bool:
    return any(line.startswith(start) for line in last_frame(terminal))


def is_drawn_again(terminal: Terminal, before: int) -> bool:
    """Whether it was drawn since so many times, and a read began after that."""
    return terminal.written.count("\x1b[J") > before + 2


def numbers_of(lines: list[str], topic: str) -> list[str]:
    """The cells of a topic."""
    (line,) = [line for line in lines if line.startswith(f"{topic} ")]
    return line.split()


def test_blocks_in_a_pipe(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [b"\x08\x01"] * 4, 0)
        driver.archive(("orders", None))
        driver.send("orders", [b"\x08\x01"] * 2, 0)
        done = deployment.run("watch", "--interval", "200ms", "--count", "2")
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    first, second, rest = done.out.split("\n\n")
    assert rest == ""
    lines = first.splitlines()
    assert lines[0].startswith("cluster test, 20")
    assert lines[1] == "nothing needs attention"
    assert "daemon: none answers" in lines
    assert numbers_of(lines, "orders")[1:6] == ["-", "-", "0", "2", "2"]
    assert numbers_of(second.splitlines(), "orders")[1:6] == ["0", "0", "0", "2", "2"]


def test_a_terminal_that_changes_its_size_until_ctrl_c(deployment: Deployment) -> None:
    with (
        Driver(deployment) as driver,
        Terminal(deployment, "watch", "--interval", "100ms", columns=120, lines=24) as terminal,
    ):
        until(
            "the first text is there",
            lambda: has_line(terminal, "nothing") or has_line(terminal, "attention"),
        )
        driver.send("clicks", [b"x"] * 500, 0)
        until("records arrive", lambda: has_line(terminal, "clicks "))
        until("and no more", lambda: numbers_of(last_frame(terminal), "clicks")[1] == "0")
        for columns, lines in ((30, 5), (3, 2), (1, 1), (200, 60)):
            terminal.resize(columns, lines)
            before = terminal.written.count("\x1b[J")
            until("it is drawn again", partial(is_drawn_again, terminal, before))
            text = last_frame(terminal)[:-1]
            assert len(text) <= max(1, lines - 1)
            assert max(map(len, text)) <= max(2, columns - 1)
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    end = terminal.written.rpartition("\x1b[J")[2]
    assert end.replace("^C", "").strip() == "interrupted"
    assert "\x1b[?25l" not in terminal.written, "the cursor is never hidden"


def test_a_terminal_without_escape_sequences_gets_blocks(deployment: Deployment) -> None:
    with Terminal(deployment, "watch", "--count", "1", kind="dumb") as terminal:
        assert terminal.wait() == 0
    assert terminal.written.startswith("cluster test, ")
    assert "\x1b" not in terminal.written


def test_one_read_on_a_terminal_scrolls_nothing_away(deployment: Deployment) -> None:
    with Terminal(deployment, "watch", "--count", "1") as terminal:
        assert terminal.wait() == 0
    assert terminal.written.startswith("cluster test, ")
    assert "\x1b" not in terminal.written


def test_a_daemon_that_stops(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"topics": [], "catalogs": []})
    with ExitStack() as closing:
        daemon = closing.enter_context(Daemon(deployment))
        host, port = daemon.address
        deployment.write({**deployment.document(), "http": {"listen": f"{host}:{port}"}})
        terminal = closing.enter_context(Terminal(deployment, "watch", "--interval", "100ms"))
        until("it is seen", lambda: has_line(terminal, f"daemon: at {host}:{port}, serving, ready"))
        assert has_line(terminal, "nothing needs attention")
        daemon.server.stop(5.0)
        note = f"  note: the daemon at {host}:{port} does not answer any more"
        until("its end is seen", lambda: has_line(terminal, note))
        assert has_line(terminal, "daemon: none answers")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals of Linux")
def test_a_pipe_that_closes_and_a_signal_end_it(deployment: Deployment, tmp_path: Path) -> None:
    with Command(deployment, "watch", "--interval", "1m", scratch=tmp_path / "scratch") as watched:
        until("a block is there", lambda: "leader: none, epoch 0\n" in watched.out)
        watched.signal(signal.SIGTERM)
        assert watched.wait() == 130
    assert watched.err == ["interrupted\n"]
    program = ("bash", "-c", f'{sys.executable} -m archiver "$@" | head -n 1; echo "${{PIPESTATUS[0]}}"', "-")
    with Command(
        deployment, "watch", "--interval", "100ms", scratch=tmp_path / "scratch", program=program
    ) as watched:
        assert watched.wait() == 0
    assert (watched.out[1:], watched.err) == (["0\n"], [])


def test_a_store_that_is_away_from_the_start(deployment: Deployment) -> None:
    document = deployment.document()
    etcd = {"addresses": ["127.0.0.1:9"], "state": str(deployment.root), "request_timeout": "200ms"}
    document["metadata"] = {"etcd": etcd}
    deployment.write(document)
    done = deployment.run("watch", "--interval", "100ms", "--count", "2")
    assert done.code == 2, done.err
    first, second, _ = done.out.split("\n\n")
    assert "cannot be read (1 read failed, " in first
    assert "cannot be read (2 reads failed, " in second


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--interval", "soon"), "--interval soon: "),
        (("--interval", "10ms"), "--interval 10ms: it is at least 100ms and at most 1d"),
        (("--interval", "2d"), "--interval 2d: it is at least 100ms and at most 1d"),
        (("--count", "0"), "--count"),
    ],
)
def test_options_out_of_range(options: tuple[str, ...], why: str, deployment: Deployment) -> None:
    done = deployment.cli("watch", *options)
    assert (done.code, done.out, why in done.err) == (3, "", True), done.err
    assert not deployment.data.exists()


def test_a_wrong_configuration_is_not_tried_again(deployment: Deployment) -> None:
    deployment.write({**deployment.document(), "topics": 7})
    assert deployment.cli("watch").code == 3


def test_reads_that_fail_in_between(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """One application serves all reads, also after a failure."""
    opened: list[object] = []
    real_open, real_read = options.application_of, status.read_status
    failures: dict[int, Exception] = {
        2: RetryLater("the store is away"),
        3: Halt("the log is damaged"),
        4: OSError("input/output error"),
    }
    reads: list[int] = []

    def opening(settings: Any) -> Any:
        opened.append(settings)
        return real_open(settings)

    def reading(app: Any, **options: Any) -> Any:
        reads.append(1)
        if len(reads) in failures:
            raise failures[len(reads)]
        return real_read(app, **options)

    monkeypatch.setattr(command, "application_of", opening)
    monkeypatch.setattr(command, "read_status", reading)
    clock = ManualClock()
    with ExitStack() as closing:
        watched = command._Watch(load_settings(deployment.config, {}), clock, closing)
        blocks = []
        for _ in range(5):
            blocks.append(watched.read())
            clock.advance(2.0)
            code = None if watched.error is None else command.exit_code_of(watched.error)
            blocks[-1].append(str(code))
    assert len(opened) == 1
    assert [block[-1] for block in blocks] == ["None", "2", "1", "2", "None"]
    assert [block[1] for block in blocks[1:4]] == [
        "cannot be read (1 read failed, for 0 s); it is tried again: the store is away",
        "cannot be read (2 reads failed, for 2 s); it is tried again: the log is damaged",
        "cannot be read (3 reads failed, for 4 s); it is tried again: input/output error",
    ]
    assert all(block[2].startswith("The state of ") for block in blocks[1:4])
    assert "cannot be read" not in " ".join(blocks[4])
