"""Requests to a faulty registry end in time and within bounds, and send secrets nowhere else."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from pydantic import SecretStr

from archiver.config.registry import RegistryAuthSettings
from archiver.config.settings import ConfluentSettings
from archiver.registry.client import RegistryClient
from archiver.registry.http import RegistryHttp
from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import ConfigInvalid, NotFound, RetryLater
from tests.support.schema.registry_server import RegistryServer, answer

TEXT = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'
QUICK: dict[str, Any] = {"backoff": 0.001, "timeout": 5.0}


def http_of(server: RegistryServer, **more: Any) -> RegistryHttp:
    return RegistryHttp(ConfluentSettings(**{"url": server.url, **QUICK, **more}), SystemClock())


def ask(http: RegistryHttp, path: str = "/subjects/a/versions") -> Any:
    return http.get(path, time.monotonic() + 60)


def odd(act: Callable[[BaseHTTPRequestHandler], object]) -> Callable[[BaseHTTPRequestHandler], bool]:
    def acted(handler: BaseHTTPRequestHandler) -> bool:
        act(handler)
        return True

    return acted


def test_an_answer_in_time() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        http = http_of(server)
        assert ask(http) == [1]
        with pytest.raises(NotFound, match="Subject 'b' not found"):
            ask(http, "/subjects/b/versions")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_overload_is_asked_again_and_reported_as_later(status: int) -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        server.odd = odd(lambda handler: answer(handler, status, {"message": "busy"}))
        http = http_of(server, attempts_max=3)
        with pytest.raises(RetryLater, match=f"status {status}: 'busy'"):
            ask(http)
        assert len(server.asked) == 3
        server.odd = lambda handler: (
            len(server.asked) == 4 and odd(lambda one: answer(one, status, b""))(handler)
        )
        assert ask(http) == [1], "the second attempt is answered"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "denies access with status 401"),
        (403, "denies access with status 403"),
        (400, "with status 400"),
        (204, "status 204"),
    ],
)
def test_what_asking_again_cannot_help(status: int, why: str) -> None:
    with RegistryServer(odd=odd(lambda handler: answer(handler, status, b""))) as server:
        with pytest.raises(ConfigInvalid, match=why):
            ask(http_of(server))
        assert len(server.asked) == 1


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json(body: bytes) -> None:
    with (
        RegistryServer(odd=odd(lambda handler: answer(handler, 200, body))) as server,
        pytest.raises(ConfigInvalid, match="no JSON"),
    ):
        ask(http_of(server))


def test_a_slow_registry_cannot_hold_us_however_it_drips() -> None:
    """One byte every 20 ms never reaches a socket's own time-out."""
    released = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not released.wait(0.02):
            handler.wfile.write(b" ")

    def drip_without_length(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n[1]")
        while not released.wait(0.02):
            handler.wfile.write(b" ")

    def drip_headers(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not released.wait(0.02):
            handler.wfile.write(b"x")

    for act in (drip, drip_without_length, drip_headers, lambda _: released.wait(30)):
        with RegistryServer(odd=odd(act)) as server:
            try:
                with pytest.raises(RetryLater, match=r"took longer than 0\.3 s"):
                    ask(http_of(server, timeout=0.3))
                # A busy server may see the request later.
                assert len(server.asked) <= 1, "so much time is gone that it is not asked again at once"
            finally:
                released.set()
        released.clear()


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1]")

    with (
        RegistryServer(odd=odd(cut)) as server,
        pytest.raises(RetryLater, match="cut off, 97 bytes before its end"),
    ):
        ask(http_of(server))


@pytest.mark.parametrize(
    "head", [b"Content-Length: 99999999999", b"Transfer-Encoding: chunked", b"X: no length"]
)
def test_a_huge_answer_is_not_read_to_its_end(head: bytes) -> None:
    written = []

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        piece = b"1" * 1000
        while True:
            handler.wfile.write(b"3e8\r\n" + piece + b"\r\n" if b"chunked" in head else piece)
            written.append(len(piece))

    with (
        RegistryServer(odd=odd(flood)) as server,
        pytest.raises(ConfigInvalid, match=r"more than 2,048 bytes .*answer_bytes_max"),
    ):
        ask(http_of(server, answer_bytes_max=2048))
    assert sum(written) < 50 * 2**20


def test_no_redirect_leads_to_another_host_and_no_secret_with_it() -> None:
    with RegistryServer() as other, RegistryServer() as server:
        server.odd = odd(
            lambda handler: answer(handler, 307, b"", {"Location": f"{other.url}/subjects/a/versions"})
        )
        http = http_of(server, auth=RegistryAuthSettings(username="u", password=SecretStr("hunter2")))
        with pytest.raises(ConfigInvalid, match=f"redirects to '{other.url}', another host") as caught:
            ask(http)
        assert other.asked == []
        assert "hunter2" not in str(caught.value)
        for target in (
            "//127.0.0.1:1/x",
            "https://127.0.0.1/",
            "ftp://127.0.0.1/",
            "http://[",
            "http://127.0.0.1.example.com/",
        ):
            server.odd = odd(lambda handler, target=target: answer(handler, 302, b"", {"Location": target}))  # type: ignore[misc]
            with pytest.raises(ConfigInvalid, match="another host"):
                ask(http)


def test_redirects_within_the_registry_are_followed_a_few_times() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        server.odd = lambda handler: (
            "moved" in handler.path
            and odd(lambda one: answer(one, 308, b"", {"Location": "/subjects/a/versions"}))(handler)
        )
        assert ask(http_of(server), "/moved") == [1]
        server.odd = odd(lambda handler: answer(handler, 308, b"", {"Location": "/on"}))
        with pytest.raises(ConfigInvalid, match="more than 3 times"):
            ask(http_of(server))
        assert server.asked.count("/on") == 3


def test_who_we_are() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        ask(http_of(server, auth=RegistryAuthSettings(username="ada", password=SecretStr("pä:ss"))))
        ask(http_of(server, auth=RegistryAuthSettings(bearer=SecretStr("abc.def"))))
        ask(http_of(server))
        assert [found.get("Authorization") for found in server.headers] == [
            "Basic YWRhOnDDpDpzcw==",
            "Bearer abc.def",
            None,
        ]
        assert all(found["Accept-Encoding"] == "identity" for found in server.headers)
    with pytest.raises(ConfigInvalid, match="is no valid token") as caught:
        http_of(server, auth=RegistryAuthSettings(bearer=SecretStr("abc\r\nX-Other: 1")))
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    "auth", [{"username": "ada", "password": SecretStr("hunter2")}, {"bearer": SecretStr("hunter2")}]
)
def test_a_registry_that_repeats_a_secret_is_not_quoted(auth: dict[str, Any]) -> None:
    with RegistryServer() as server:
        server.odd = odd(
            lambda handler: answer(
                handler,
                401,
                json.dumps({"message": f"{handler.headers['Authorization']} hunter2 no"}).encode(),
            )
        )
        with pytest.raises(ConfigInvalid, match=r"\*\*\* no") as caught:
            ask(http_of(server, auth=RegistryAuthSettings(**auth)))
    assert "hunter2" not in str(caught.value) and base64.b64encode(b"ada:hunter2").decode() not in str(
        caught.value
    )


def test_a_path_that_cannot_be_asked_for_is_trouble_of_the_registry() -> None:
    with RegistryServer() as server:
        server.odd = odd(lambda handler: answer(handler, 302, b"", {"Location": "/\xfc"}))
        with pytest.raises(RetryLater, match="cannot be asked"):
            ask(http_of(server))


def test_proxies_of_the_environment_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer() as proxy, RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert ask(http_of(server)) == [1]
        assert proxy.asked == []


def test_an_outage_holds_up_one_question_and_not_every_one_after_it() -> None:
    with RegistryServer() as server:
        url = server.url
    clock = ManualClock()
    http = RegistryHttp(ConfluentSettings(url=url, backoff=1.0, attempts_max=3, down_pause=10.0), clock)
    with pytest.raises(RetryLater, match="Connection"):
        http.get("/x", clock.monotonic_s() + 60)
    assert clock.monotonic_s() == 3.0, "the waits between three attempts"
    for _ in range(50):
        with pytest.raises(RetryLater):
            http.get("/x", clock.monotonic_s() + 60)
    assert clock.monotonic_s() == 3.0
    clock.advance(10.0)
    with pytest.raises(RetryLater):
        http.get("/x", clock.monotonic_s() + 60)
    assert clock.monotonic_s() == 16.0, "then it is asked again"


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Every host name has these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize(("addresses", "attempts"), [(4, [1.25] * 4), (50, [1.0] * 5)])
def test_several_silent_addresses_share_one_deadline(
    addresses: int, attempts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    bounds: list[float] = []

    def silent(opened: socket.socket, address: object) -> None:
        """An address answers nothing until its timeout."""
        del address
        bounds.append(opened.gettimeout() or 0.0)
        clock.advance(bounds[-1])
        raise TimeoutError

    resolve_to(monkeypatch, *((f"127.0.0.{last}", 81) for last in range(1, addresses + 1)))
    monkeypatch.setattr(socket.socket, "connect", silent)
    settings = ConfluentSettings(url="http://registry.example:81", timeout=5.0, attempts_max=1)
    with pytest.raises(RetryLater, match="took longer than 5 s"):
        RegistryHttp(settings, clock).get("/x", clock.monotonic_s() + 60)
    assert clock.monotonic_s() == 5.0
    assert bounds == attempts, "each address has its share, and no attempt is too short for a far server"


def test_an_address_that_refuses_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer() as closed:
        refusing = int(closed.url.rpartition(":")[2])
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        port = int(server.url.rpartition(":")[2])
        resolve_to(monkeypatch, ("127.0.0.1", refusing), ("127.0.0.1", port))
        assert ask(RegistryHttp(ConfluentSettings(url="http://registry.example"), SystemClock())) == [1]


def test_a_host_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch)
    clock = ManualClock()
    with pytest.raises(RetryLater, match="has no address"):
        RegistryHttp(ConfluentSettings(url="http://registry.example"), clock).get("/x", 60)


def test_one_broken_path_is_no_outage_of_the_others() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        server.odd = lambda handler: (
            "broken" in handler.path and odd(lambda one: answer(one, 500, b""))(handler)
        )
        http = http_of(server, attempts_max=1)
        with pytest.raises(RetryLater):
            ask(http, "/broken")
        assert ask(http) == [1]


# the client


def client_of(server: RegistryServer, **more: Any) -> RegistryClient:
    return RegistryClient(ConfluentSettings(**{"url": server.url, **QUICK, **more}), SystemClock())


def soon() -> float:
    return time.monotonic() + 30


def test_many_callers_ask_once_for_what_never_changes() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        server.odd = lambda _: bool(time.sleep(0.05))  # type: ignore[func-returns-value]
        client = client_of(server)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda _: client.version("a", 1, soon()), range(64)))
        assert {one.id for one in found} == {7}
        assert len(server.asked) == 1


def test_what_changes_is_asked_for_every_time() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        client = client_of(server)
        assert client.latest("a", soon()).id == 7
        assert client.versions("a", soon()) == (1,)
        server.add("a", 2, 9, TEXT + "// more")
        assert client.latest("a", soon()).id == 9
        assert client.versions("a", soon()) == (1, 2)
        assert client.version("a", 2, soon()).id == 9
        assert len(server.asked) == 4, "the version came with the newest"


def test_the_cache_is_bounded_in_entries_and_in_bytes() -> None:
    with RegistryServer() as server:
        for number in range(1, 11):
            server.add("a", number, number, TEXT + " " * 1000)
        for more in ({"cache_max": 3}, {"cache_bytes_max": 4096}):
            client = client_of(server, **more)
            server.asked.clear()
            for number in (*range(1, 11), 10, 9, 8):
                assert client.version("a", number, soon()).id == number
            assert len(server.asked) == 10, "the newest three are remembered"
            client.version("a", 1, soon())
            assert len(server.asked) == 11, "the first is not"


def test_a_subject_that_begins_again_is_forgotten() -> None:
    with RegistryServer() as server:
        server.add("a", 1, 7, TEXT)
        server.add("a", 2, 8, TEXT)
        client = client_of(server)
        assert [client.version("a", number, soon()).id for number in (1, 2)] == [7, 8]
        server.add("a", 1, 17, TEXT)
        server.add("a", 2, 18, TEXT)
        assert client.latest("a", soon()).id == 18
        assert client.version("a", 1, soon()).id == 17


@pytest.mark.parametrize(
    "document",
    [
        [], "x", 7, None, {}, {"id": 1}, {"id": "1", "version": 1, "schema": "x"}, {"id": True, "version": 1, "schema": "x"},
        {"id": -1, "version": 1, "schema": "x"}, {"id": 2**32, "version": 1, "schema": "x"}, {"id": 1, "version": 0, "schema": "x"},
        {"id": 1, "version": 1, "schema": None}, {"id": 1, "version": 1, "schema": "\ud800"},
        {"id": 1, "version": 1, "schema": "x", "schemaType": 3},
        {"id": 1, "version": 1, "schema": "x", "references": {}}, {"id": 1, "version": 1, "schema": "x", "references": [1]},
        {"id": 1, "version": 1, "schema": "x", "references": [{"name": "a", "subject": "b", "version": -1}]},
        {"id": 1, "version": 1, "schema": "x", "references": [{"name": "", "subject": "b", "version": 1}]},
        {"id": 1, "version": 2, "schema": "x"},
    ],
)  # fmt: skip
def test_an_answer_that_no_registry_gives(document: Any) -> None:
    server = RegistryServer(odd=odd(lambda handler: answer(handler, 200, document)))
    with server, pytest.raises(ConfigInvalid, match="is the address right"):
        client_of(server).version("a", 1, soon())


@pytest.mark.parametrize("document", [{}, None, "x", [1, "2"], [1, -2], [1.5], [True], [2**31]])
def test_a_list_of_versions_that_is_none(document: Any) -> None:
    server = RegistryServer(odd=odd(lambda handler: answer(handler, 200, document)))
    with server, pytest.raises(ConfigInvalid, match="no list of numbers"):
        client_of(server).versions("a", soon())


def test_too_many_versions() -> None:
    with RegistryServer() as server:
        for number in range(1, 5):
            server.add("a", number, number, TEXT)
        with pytest.raises(ConfigInvalid, match=r"has 4 versions, more than 3 .*versions_max"):
            client_of(server, versions_max=3).versions("a", soon())


def test_names_of_subjects_are_no_paths() -> None:
    with RegistryServer() as server:
        server.add("../a b/ü?x=1#y", 1, 7, TEXT)
        assert client_of(server).latest("../a b/ü?x=1#y", soon()).id == 7
        assert server.asked == ["/subjects/..%2Fa%20b%2F%C3%BC%3Fx%3D1%23y/versions/latest"]
