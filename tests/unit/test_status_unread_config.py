"""`archiver status` with an invalid configuration: it names the daemon's address to ask, and sends no request
itself."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from archiver.cli.app import run
from archiver.cli.unread_config import DEFAULT
from archiver.runtime.exit_codes import USAGE

LEAST = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"
WRONG = "intake: {delay_max: soon}\n"
UNREADABLE = f"at http.listen, which cannot be read here (default: http://{DEFAULT}/)"

CASES = {
    "no port": ("", f"http://{DEFAULT}/, unless its http.listen differs"),
    "own port": (
        "http: {listen: '127.0.0.1:9999'}",
        "http://127.0.0.1:9999/, by http.listen of this file",
    ),
    "IPv6": ("http: {listen: '[::1]:9999'}", "http://[::1]:9999/"),
    "every address": ("http: {listen: '0.0.0.0:9999', allow_http: true}", "http://127.0.0.1:9999/"),
    "name": ("http: {listen: 'archiver.example.com:80'}", "http://archiver.example.com:80/"),
    "TLS": ("http: {listen: '127.0.0.1:9999', tls: {cert_file: nix}}", "https://127.0.0.1:9999/"),
    "port that only the daemon knows": ("http: {listen: '127.0.0.1:0'}", UNREADABLE),
    "port out of range": ("http: {listen: '127.0.0.1:99999'}", UNREADABLE),
    "no address": ("http: {listen: [1]}", UNREADABLE),
    "a shell's words": ("http: {listen: '$(reboot):80'}", UNREADABLE),
    "terminal codes": ('http: {listen: "a\\e[2J:80"}', UNREADABLE),
    "user name": ("http: {listen: 'user@host:80'}", UNREADABLE),
    "group that is a list": ("http: [1]", f"http://{DEFAULT}/"),
    "broken YAML": ("http: [", UNREADABLE),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_where_a_daemon_can_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, expected = CASES[name]
    path = tmp_path / "archiver.yaml"
    path.write_text(LEAST + WRONG + text)
    assert run(["status", "-c", str(path)]) == USAGE == 3
    *problems, last = capsys.readouterr().err.splitlines()
    assert "\n".join(problems).startswith("error: ")
    assert last.startswith("If a daemon is running, it keeps the configuration that it started with")
    assert "Its page is at " in last
    assert expected in last


def test_nothing_is_sent_to_an_address_of_an_invalid_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("a-token-of-thirty-two-characters")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        path = tmp_path / "archiver.yaml"
        path.write_text(LEAST + WRONG + f"http: {{listen: '{listen}', admin_token: {{file: token}}}}\n")
        assert run(["status", "-c", str(path)]) == USAGE
        assert f"http://{listen}/" in capsys.readouterr().err
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_without_a_file_there_is_nothing_to_say_of_a_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", "-c", str(tmp_path / "missing.yaml")]) == USAGE
    assert "daemon" not in capsys.readouterr().err
