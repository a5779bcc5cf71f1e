"""No secret leaks. A canary stands in every place of the configuration where a secret can, and everything
that uses it fails as loudly as it can. Neither outputs, logs, answers nor files have any canary.

The last tests show that the search would find one: the same commands, with the redaction taken away, do leak.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from archiver.config.settings import load_settings
from archiver.runtime import redaction
from archiver.runtime.redaction import Redactor
from tests.support.builders.deployment import Deployment, sample_records
from tests.support.catalog.loud_catalog import LoudCatalog
from tests.support.process.processes import until
from tests.support.process.scrapes import scraped, series
from tests.support.process.serving import Served, quick

pytestmark = pytest.mark.timeout(120)

CANARIES: Mapping[str, str] = {
    "variable": 'canary1+/ "V&<aria>b%le',
    "file": "canary2+/kept-in:a-file",
    "written out": "canary3-looks-like-a-secret",
    "user of a url": "canary4+/behind@colon",
    "parameter of a url": "canary5-parameter",
    "administration": "canary6-administration",
    "spark": "canary7-spark",
    "spark, written out": "canary8-spark-password",
    "client secret": "canary9+client=secret",
    "silent catalog": "canary10-nobody-answers",
}


def written(canary: str) -> set[str]:
    """The ways in which it may stand somewhere."""
    quoted = {
        quote(canary),
        quote(canary, safe=""),
        quote_plus(canary),
        json.dumps(canary)[1:-1],
        repr(canary)[1:-1],
        html.escape(canary),
    }
    # All of base64 that does not depend on what stands before or behind it.
    coded = {
        base64.b64encode(bytes(before) + canary.encode()).decode()[4 if before else 0 : -4]
        for before in range(3)
    }
    return {canary, *quoted, *coded, canary.partition("-")[0].partition("+")[0]}


def leaks(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Where which canary stands."""
    return [
        f"{where}: {name}: …{text[max(0, at - 60) : at + 60]}…"
        for where, text in texts
        for name, at in _found(text)
    ]


def _found(text: str) -> Iterator[tuple[str, int]]:
    for name, canary in CANARIES.items():
        places = [at for form in written(canary) if (at := text.find(form)) >= 0]
        if places:
            yield name, min(places)


ENVIRONMENT: Mapping[str, str] = {
    "CANARY_VARIABLE": CANARIES["variable"],
    "CANARY_SPARK": CANARIES["spark"],
    "CANARY_ADMINISTRATION": CANARIES["administration"],
}


@dataclass
class Aviary(Deployment):
    """A deployment full of canaries."""

    def environ(self, armed: str = "") -> dict[str, str]:
        return {**super().environ(armed), **ENVIRONMENT}

    def files(self) -> list[tuple[str, str]]:
        """Everything in its folder that the test has not put there."""
        planted = {self.config, self.root / "secret", self.root / "client"}
        found = [path for path in self.root.rglob("*") if path.is_file() and path not in planted]
        return [(str(path), path.read_bytes().decode("latin-1")) for path in found]

    def says(
        self, *arguments: str, codes: Collection[int] = (0,), stdin: str = "", apart: bool = False
    ) -> list[tuple[str, str]]:
        """What a command says on both outputs; `apart`: in a process of its own."""
        done = self.run(*arguments, stdin=stdin) if apart else self.cli(*arguments, stdin=stdin)
        assert done.code in codes, done
        return [
            (f"{' '.join(arguments)} {name}", text)
            for name, text in (("output", done.out), ("errors", done.err))
        ]


def document(deployment: Deployment, loud: LoudCatalog) -> dict[str, object]:
    """The configuration. Each topic's catalog fails in a way of its own."""
    password = quote(CANARIES["user of a url"], safe="")
    here = f"127.0.0.1:{loud.port}"
    catalogs: list[dict[str, object]] = [
        {
            "name": "token",
            "type": "rest",
            "uri": f"http://{here}/a",
            "token": {"env": "CANARY_VARIABLE"},
            "note": "seen",
        },
        {"name": "file", "type": "rest", "uri": f"http://{here}/b", "header.x-api-key": {"file": "secret"}},
        {"name": "client", "type": "rest", "uri": f"http://{here}/c", "credential": {"file": "client"}},
        {
            "name": "user",
            "type": "rest",
            "uri": f"http://me:{password}@{here}/d",
            "s3.secret-access-key": CANARIES["written out"],
        },
        {"name": "gone", "type": "rest", "uri": f"http://u:{CANARIES['silent catalog']}@127.0.0.1:1/e"},
        {
            "name": "dialect",
            "type": "sql",
            "uri": f"sqlite://u:{password}@h?password={CANARIES['parameter of a url']}",
            "allow_insecure": True,
        },
    ]
    names = [str(one["name"]) for one in catalogs]
    topics = [
        {
            "name": f"t-{name}",
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": name, "table": f"shop.{name}"},
        }
        for name in names
    ]
    conf = {
        "spark.hadoop.fs.s3a.secret.key": {"env": "CANARY_SPARK"},
        "spark.ssl.keyPassword": CANARIES["spark, written out"],
    }
    base = quick(deployment.document() | {"catalogs": catalogs, "topics": topics})
    remote = f"sc://127.0.0.1:1/;token={CANARIES['parameter of a url']}"
    base["http"]["admin_token"] = {"env": "CANARY_ADMINISTRATION"}
    return base | {"spark": {"remote": remote, "conf": conf}}


@pytest.fixture
def loud() -> Iterator[LoudCatalog]:
    with LoudCatalog() as made:
        yield made


@pytest.fixture
def aviary(tmp_path: Path, loud: LoudCatalog, monkeypatch: pytest.MonkeyPatch) -> Aviary:
    """Every canary in its place, and records for each topic. This process knows no secret yet."""
    monkeypatch.setattr(redaction, "_process", Redactor())
    made = Aviary(tmp_path / "d")
    (made.root / "secret").write_text(CANARIES["file"] + "\n")
    (made.root / "client").write_text(f"me:{CANARIES['client secret']}\n")
    made.write(document(made, loud))
    settings = load_settings(made.config, ENVIRONMENT)
    known = "\n".join(redaction.secrets_of(settings))
    missing = [
        name
        for name, canary in CANARIES.items()
        if canary not in known and quote(canary, safe="") not in known
    ]
    assert not missing, f"these places are not known to hold a secret: {missing}"
    lines = [
        json.dumps({**record, "topic": topic.name, "partition": 0})
        for topic in settings.topics
        for record in sample_records(2)
    ]
    assert not leaks(made.says("produce", stdin="\n".join(lines)))
    return made


def test_commands(aviary: Aviary, loud: LoudCatalog) -> None:
    said = [
        *aviary.says("config", "show"),
        *aviary.says("config", "check"),
        *aviary.says("status"),
        *aviary.says("tables", codes=[2]),
        *aviary.says("archive", "--all", codes=[1, 2, 3], apart=True),
        *aviary.says("audit", "--output", "json", codes=[2]),
        *aviary.says("clean", "--dry-run", "--output", "json", codes=[2]),
    ]
    assert not leaks([*said, *aviary.files()])
    text = "".join(text for _, text in said)
    assert "seen" in text, "what is no secret is shown"
    for name in ("token", "file", "client", "user", "gone", "dialect"):
        assert re.search(f"catalog {name}[ :]", text), f"catalog {name} did not fail aloud"
    heard = "".join(loud.heard)
    for name in ("variable", "file", "client secret"):
        assert any(form in heard for form in written(CANARIES[name]) if len(form) > 8), (
            f"the catalog never saw the canary {name!r}"
        )


def test_a_wrong_configuration(aviary: Aviary) -> None:
    """What is wrong is reported. The secrets next to it, also those in settings of a later version, are
    not."""
    wrong = json.loads(json.dumps(document(aviary, LoudCatalog.__new__(_Silent))))
    wrong["data"] = {
        "uri": f"s3://u:{CANARIES['user of a url']}@bucket",
        "secret_access_key": {"env": "CANARY_VARIABLE"},
    }
    wrong["metadata"] = {"etcd": {"password": CANARIES["written out"]}}
    wrong["sources"] = [{"kafka": {"sasl.password": CANARIES["file"]}}]
    wrong["schema_registry"] = {
        "confluent": {"url": "http://r", "auth": {"username": "u", "password": {"env": "CANARY_SPARK"}}}
    }
    aviary.write(wrong)
    said = [*aviary.says("config", "check", codes=[3]), *aviary.says("archive", codes=[3], apart=True)]
    assert not leaks([*said, *aviary.files()])
    assert "problems" in said[1][1]


class _Silent(LoudCatalog):
    """A catalog that is not there."""

    @property
    def port(self) -> int:
        return 1


def test_a_daemon(aviary: Aviary, tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with Served(aviary, scratch=tmp_path / "scratch") as daemon:
        until("a tick has failed", lambda: daemon.logged("tick: "))
        token = {"Authorization": f"Bearer {CANARIES['administration']}", "Content-Type": "application/json"}
        for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/nowhere", "/v1/admin/status"):
            for headers in ({}, token, {"Authorization": f"Bearer {CANARIES['variable'].encode().hex()}"}):
                answer = daemon.request("GET", path, headers=headers)
                said.append((f"GET {path}", f"{answer.headers} {answer.body.decode()}"))
        for name in ("archive", "clean", "audit", "reload"):
            answer = daemon.request("POST", f"/v1/admin/{name}", b"{}", token)
            said.append((f"POST {name}", answer.body.decode()))
        assert daemon.request("POST", "/v1/admin/reload", b"{}", token).status == 200
        ready = daemon.get("/readyz").json()
        stuck = series("archiver_topic_stuck", topic="t-token")
        until("the topic is known to be stuck", lambda: scraped(daemon.get("/metrics").body).get(stuck) == 1)
        numbers = scraped(daemon.get("/metrics").body)
        daemon.stop()
        said.append(("its log", daemon.log_text()))
        said.append(("its output", "".join(daemon.command.out)))
    assert not leaks([*said, *aviary.files()])
    why = {check["name"]: check["why"] for check in ready["checks"]}
    assert "***" in "".join(why.values()), why
    assert "***" in dict(said)["its log"]
    down = {
        dict(labels)["dependency"]
        for (name, labels), up in numbers.items()
        if name == "archiver_dependency_up" and not up
    }
    assert down == {check["name"] for check in ready["checks"] if not check["ok"]}
    assert numbers[series("archiver_lag_records", topic="t-token", partition=0, stage="committed")] == 2
    assert numbers[series("archiver_http_requests_total", route="/metrics", status=200)] >= 4
    assert numbers[series("archiver_http_requests_total", route="/v1/admin/status", status=401)] == 1
    assert numbers[series("archiver_http_requests_total", route="other", status=404)] == 3
    assert numbers[series("archiver_cycles_total", job="tick", outcome="wrong")] >= 1


def test_the_search_would_find_a_leak(aviary: Aviary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same commands without redaction: several canaries get out, each in a way of its own."""

    class Blind(Redactor):
        def redacted(self, text: str) -> str:
            return text

        def excerpt(self, text: str, length_max: int) -> str:
            return text

        def document(self, value: object, length_max: int | None = None) -> object:
            return value

    monkeypatch.setattr(redaction, "_process", Blind())
    done = aviary.cli("archive", "--all", "--output", "json")
    found = leaks([("output", done.out), ("errors", done.err)])
    assert len({line.split(": ")[1] for line in found}) >= 4, found
    monkeypatch.setattr(redaction, "_process", Redactor())
    done = aviary.cli("archive", "--all", "--output", "json")
    assert not leaks([("output", done.out), ("errors", done.err)])
    assert "***" in done.out


@pytest.mark.parametrize("name", CANARIES)
def test_every_way_to_write_a_canary_is_found(name: str, tmp_path: Path) -> None:
    canary = CANARIES[name]
    basic = base64.b64encode(f"me:{canary}".encode()).decode()
    for form in (canary, quote(canary, safe=""), quote_plus(canary), repr(canary), json.dumps(canary), basic):
        assert leaks([("somewhere", f"before {form} behind")]), form
