"""No text that leaves the process contains a secret, in any spelling. Everything else is unchanged."""

from __future__ import annotations

import base64
import html
import io
import json
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import markupsafe
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from archiver.config.settings import load_settings
from archiver.daemon.admin_token import ensure_token
from archiver.runtime import redaction
from archiver.runtime.ids import SystemIds
from archiver.runtime.logging import JsonLines, PlainLines
from archiver.runtime.redaction import MASK, Redactor, guard_tracebacks, secrets_of
from archiver.status.journal import Cycle, Journal

SECRET = 'kæ/+ "p:w\\%&<canary>'


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Redactor:
    """The secrets of this process, for one test."""
    known = Redactor([SECRET])
    monkeypatch.setattr(redaction, "_process", known)
    return known


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote(SECRET, safe="").lower(),
        repr(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        html.escape(SECRET),
        str(markupsafe.escape(SECRET)),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        basic("u", SECRET),
        basic("us", SECRET),
        basic("use", SECRET),
    ],
)
def test_every_way_to_write_it(written: str) -> None:
    found = Redactor([SECRET]).redacted(f"before {written} behind")
    assert MASK in found
    assert "canary" not in found.lower()
    assert written not in found
    assert found.startswith("before ") and found.endswith(" behind")


@given(
    user=st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"]), max_size=12),
    password=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=8, max_size=30),
)
def test_no_user_name_hides_a_password_in_a_basic_header(user: str, password: str) -> None:
    header = basic(user, password)
    assert header not in Redactor([password]).redacted(f"Authorization: Basic {header}")


@given(st.text(max_size=300))
def test_without_secrets_texts_stay(text: str) -> None:
    assert Redactor().redacted(text) == text or "://" in text


def test_passwords_in_urls_are_hidden_even_if_not_registered() -> None:
    known = Redactor()
    assert (
        known.redacted("no answer from http://me:hunter2@db.example:80/x")
        == "no answer from http://me:***@db.example:80/x"
    )
    assert (
        known.redacted("postgresql+psycopg2://u:p%40ss@h/d and s3://bucket/a:b")
        == "postgresql+psycopg2://u:***@h/d and s3://bucket/a:b"
    )
    assert (
        known.redacted("http://host:8181/v1 and me@example.com") == "http://host:8181/v1 and me@example.com"
    )


def test_what_is_secret_inside_of_a_secret() -> None:
    known = Redactor(
        [
            "http://me:p%40ssword@db.example/x",
            "client:hush-hush",
            "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\n-----END KEY-----\n",
        ]
    )
    assert known.redacted("password p@ssword, also p%40ssword") == "password ***, also ***"
    assert known.redacted("hush-hush of client") == "*** of client"
    assert known.redacted("line 2: MIIEpAIBAAKCAQEA") == "line 2: ***"
    assert (
        Redactor(["https://ghp0123456789abcdef@example.com/"]).redacted("token ghp0123456789abcdef")
        == "token ***"
    )


def test_short_secrets_leave_texts_readable() -> None:
    known = Redactor(["ab", "", "   ", "true", "None"])
    assert known.redacted("about a table: true, None, ab c") == "about a table: true, None, ab c"
    assert known.redacted("ab") == MASK
    assert known.redacted("http://u:ab@host/ab") == "http://u:***@host/ab"


def test_the_longer_secret_goes_first() -> None:
    assert Redactor(["hunter", "hunter2-and-more"]).redacted("hunter2-and-more hunter2") == "*** ***2"


def test_long_texts_of_base64_cost_little() -> None:
    known = Redactor(["a-secret-of-some-length"])
    text = "QUJD" * 500_000
    assert known.redacted(text) == text


def test_documents_keep_keys_and_numbers() -> None:
    known = Redactor(["hunter2"])
    document = {"hunter2": [1, 2.5, None, True, "x hunter2"], "path": Path("/hunter2/y")}
    assert known.document(document) == {"hunter2": [1, 2.5, None, True, "x ***"], "path": "/***/y"}


def test_every_part_of_a_log_line(process: Redactor) -> None:
    logger = logging.getLogger("archiver.test_redaction")
    logger.propagate = False
    for form in (JsonLines(), PlainLines()):
        out = io.StringIO()
        handler = logging.StreamHandler(out)
        handler.setFormatter(form)
        logger.handlers[:] = [handler]
        try:
            raise ValueError(f"refused: {SECRET}")
        except ValueError:
            logger.exception(
                "asked %s\nwith it",
                SECRET,
                extra={"url": f"x?y={quote_plus(SECRET)}", "deep": {"a": [SECRET]}, "rows": 7},
            )
        assert "canary" not in out.getvalue()
        assert out.getvalue().count(MASK) >= 4
        assert "ValueError: refused: ***" in out.getvalue()
        if isinstance(form, JsonLines):
            event = json.loads(out.getvalue())
            assert (event["message"], event["url"], event["deep"], event["rows"]) == (
                "asked ***\nwith it",
                "x?y=***",
                {"a": ["***"]},
                7,
            )


def test_a_journal_keeps_no_secret(process: Redactor) -> None:
    journal = Journal(10)
    journal.add(Cycle("tick", 0, 1.0, "wrong", f"it said {SECRET}", {"why": SECRET, "rows": 3}))
    journal.checked("catalog local", f"refused {basic('me', SECRET)}", 0)
    cycle, (check,) = journal.newest("tick"), journal.checks()
    assert cycle is not None
    assert (cycle.line, cycle.document, check.why) == ("it said ***", {"why": MASK, "rows": 3}, "refused ***")


def test_tracebacks_of_the_interpreter(
    process: Redactor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for owner, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    guard_tracebacks()

    def broken() -> None:
        raise RuntimeError(f"thread {SECRET}")

    thread = threading.Thread(target=broken)
    thread.start()
    thread.join()
    sys.excepthook(ValueError, ValueError(SECRET), None)
    err = capsys.readouterr().err
    assert "RuntimeError: thread ***" in err and "ValueError: ***" in err and "canary" not in err


def test_secrets_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    path = tmp_path / "archiver.yaml"
    path.write_text(
        """
cluster: c
data: {uri: data}
metadata: {sqlite: {path: m.db}}
http: {admin_token: {env: TOKEN}}
spark:
  remote: "sc://host:15002/;use_ssl=true;user_id=me;token=in-an-address"
  conf: {spark.hadoop.fs.s3a.secret.key: {env: SPARK}, spark.ssl.keyPassword: written-out, spark.ui.port: 4040}
catalogs:
  - {name: a, type: rest, uri: "http://me:inside-a-url@localhost:1", token: {file: key}, plain: seen, s3.secret-access-key: looks-like-one}
  - {name: b, type: sql, uri: "sqlite:///x.db?password=in-a-parameter"}
"""
    )
    settings = load_settings(path, {"TOKEN": "from-the-environment", "SPARK": "for-spark"})
    assert secrets_of(settings) == {
        "from-the-environment",
        "from-a-file",
        "looks-like-one",
        "http://me:inside-a-url@localhost:1",
        "in-an-address",
        "in-a-parameter",
        "for-spark",
        "written-out",
    }
    assert isinstance(settings.http.admin_token, SecretStr)
    assert settings.spark.properties() == {
        "spark.hadoop.fs.s3a.secret.key": "for-spark",
        "spark.ssl.keyPassword": "written-out",
        "spark.ui.port": "4040",
    }
    shown = settings.model_dump_json()
    assert "4040" in shown and "for-spark" not in shown and "written-out" not in shown


def test_loading_a_configuration_makes_its_secrets_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_process", Redactor())
    path = tmp_path / "archiver.yaml"
    path.write_text(
        "cluster: c\ndata: {uri: data}\nmetadata: {sqlite: {path: m.db}}\nhttp: {admin_token: {env: TOKEN}}\n"
    )
    load_settings(path, {"TOKEN": "of-the-administrator"})
    assert redaction.redacted("it is of-the-administrator") == "it is ***"


def test_a_token_that_the_daemon_makes_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_process", Redactor())
    token = ensure_token(tmp_path / "token", SystemIds())
    assert redaction.redacted(f"Bearer {token}") == "Bearer ***"


@pytest.mark.parametrize(
    "write", [str, lambda text: base64.b64encode(text.encode()).decode()], ids=["plain", "base64"]
)
def test_no_cut_leaves_a_part_of_a_secret_behind_others_that_were_hidden(write: Callable[[str], str]) -> None:
    """Redacting one secret shortens the text, so that a later secret moves into the part that is shown."""
    secret = "correct-horse-battery-staple-7"
    redactor = Redactor([secret])
    text = f"{write(secret)} " * 12
    for length_max in range(1, len(text)):
        shown = redactor.excerpt(text, length_max)
        assert write(secret)[:4] not in shown, length_max


def test_any_text_that_leaves_the_process_has_a_bound() -> None:
    assert len(redaction.redacted("x" * (redaction.TEXT_MAX + 1000))) < redaction.TEXT_MAX + 100
