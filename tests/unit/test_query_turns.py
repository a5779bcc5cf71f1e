"""Turns of the console's queries: which one runs next, and what happens without a thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.app.queries import Queries
from archiver.config.daemon import HttpSettings
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SystemIds


class Held:
    """Queries that run until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.releases: dict[str, threading.Event] = {}
        self.began: list[str] = []
        self._changed = threading.Condition()
        application: Any = SimpleNamespace(settings=SimpleNamespace(topics=[]))
        http = HttpSettings.model_validate({"listen": "127.0.0.1:8080"})
        self.queries = Queries(lambda: application, http, SystemClock(), SystemIds())
        monkeypatch.setattr(self.queries, "_answer", self._answer)

    def start(self, owner: str, sql: str) -> str:
        self.releases[sql] = threading.Event()
        found = self.queries.start(owner, sql, 10, None)
        assert found is not None
        return found

    def wait(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.began) >= count, 120), self.began
            return list(self.began)

    def _answer(self, query: Any) -> None:
        with self._changed:
            self.began.append(query.sql)
            self._changed.notify_all()
        assert self.releases[query.sql].wait(120)
        self.queries._end(query, "done", None)


def test_a_reader_with_a_running_query_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.start("User:a", "a1")
    held.wait(1)
    held.start("User:a", "a2")
    assert held.wait(2) == ["a1", "a2"], "one reader may use what no other waits for"
    held.start("User:a", "a3")
    held.start("User:b", "b1")
    held.releases["a1"].set()
    assert held.wait(3)[-1] == "b1"
    held.start("User:c", "c1")
    held.releases["b1"].set()
    assert held.wait(4)[-1] == "c1"
    held.releases["a2"].set()
    assert held.wait(5)[-1] == "a3"
    for one in held.releases.values():
        one.set()


def test_a_query_without_a_thread_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        with pytest.raises(RetryLater, match="can't start new thread"):
            held.start("User:a", "lost")
    assert held.queries.list("User:a") == []
    found = held.start("User:b", "b1")
    held.releases["b1"].set()
    held.queries.ended("User:b", found).result(120)
    assert held.began == ["b1"]
