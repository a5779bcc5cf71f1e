"""Logging: one line for each event, values as fields, nothing on standard output."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from archiver.runtime.logging import QUIET, setup_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    quiet = {name: logging.getLogger(name).level for name in QUIET}
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


def test_json_lines_away_from_a_terminal() -> None:
    out = io.StringIO()
    setup_logging(stream=out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("archiver.x").exception("it failed\nbadly", extra={"topic": "orders", "offset": 7})
    logging.getLogger("archiver.x").debug("unseen")
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["level"], event["logger"], event["message"]) == ("error", "archiver.x", "it failed\nbadly")
    assert (event["topic"], event["offset"]) == ("orders", 7)
    assert event["traceback"].endswith("ValueError: two\nlines")
    assert event["time"].endswith("Z")


def test_plain_lines_on_a_terminal() -> None:
    out = Terminal()
    setup_logging(stream=out)
    logging.getLogger("archiver.x").warning("slow\ndisk", extra={"seconds": 3})
    (line,) = out.getvalue().splitlines()
    assert line.endswith("warning archiver.x: slow\\ndisk seconds=3")


def test_setting_up_twice_does_not_double_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(stream=first)
    setup_logging(stream=second)
    logging.getLogger("archiver.x").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_libraries_are_quiet_but_may_warn() -> None:
    out = io.StringIO()
    setup_logging(stream=out)
    logging.getLogger("py4j").info("chatter")
    logging.getLogger("py4j").warning("trouble")
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["trouble"]
