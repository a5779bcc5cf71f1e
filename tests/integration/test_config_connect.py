"""Does `config check --connect` predict what a real catalog will do, and leave nothing behind?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment, Done
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.rest_guard import CLIENT_SECRET, Guard, Guarded, properties
from tests.support.servers.http_faults import Answer, Asked, Fault, HttpFaults, Play

TABLE = "checked.clicks"
needs_java = pytest.mark.spark


def deployed(folder: Path, **catalog: Any) -> Deployment:
    topic = {
        "name": "clicks",
        "partitions": 1,
        "archive": {"kind": "iceberg", "catalog": "lake", "table": TABLE},
    }
    return Deployment(folder, overrides={"catalogs": [{"name": "lake", **catalog}], "topics": [topic]})


def asked(deployment: Deployment, *more: str) -> tuple[Done, dict[str, list[tuple[str, str]]]]:
    """Run the command; (verdict, words) by what was checked."""
    done = deployment.cli("config", "check", "--connect", "--output", "json", *more)
    found: dict[str, list[tuple[str, str]]] = {}
    for item in done.json()["catalogs"][0]["findings"] if done.out else []:
        found.setdefault(item["check"], []).append((item["verdict"], item["told"]))
    return done, found


def verdicts(found: dict[str, list[tuple[str, str]]]) -> dict[str, list[str]]:
    return {check: [verdict for verdict, _ in items] for check, items in found.items()}


@pytest.fixture
def guard() -> Guard:
    return Guard("oauth2")


@pytest.fixture
def guarded(rest_catalog: RestCatalog, guard: Guard) -> Iterator[Guarded]:
    rest_catalog.empty()
    with Guarded(lambda: rest_catalog.uri, guard) as found:
        yield found


def on(guarded: HttpFaults, folder: Path, **catalog: Any) -> Deployment:
    own = properties(guarded) if isinstance(guarded, Guarded) else {"type": "rest", "uri": guarded.uri}
    return deployed(folder, **{**own, "request_timeout": "2s", **catalog})


def left(catalog: RestCatalog, deployment: Deployment) -> list[object]:
    """Tables, namespaces and objects that a check has left behind."""
    client = catalog.client()
    found: list[object] = list(client.list_namespaces())
    client.close()
    probes = [
        path
        for root in (deployment.data, catalog.warehouse)
        for path in root.rglob("*robe*")
        if path.is_file()
    ]
    return found + probes


# on SQL


def test_a_catalog_that_is_not_there_yet_is_not_made_by_a_look(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    done, found = asked(deployment)
    assert (done.code, verdicts(found)) == (0, {"reachable": ["note"]})
    assert not (tmp_path / "catalog.db").exists()
    assert not deployment.data.exists()


def test_a_probe_of_a_sql_catalog(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    done, found = asked(deployment, "--probe")
    assert done.code == 0, done.out
    assert verdicts(found) == {
        "reachable": ["fine"],
        "namespace checked": ["note"],
        "table checked.clicks": ["note"],
        "create": ["fine"],
        "location": ["fine"],
        "field ids": ["note"],
        "case": ["fine", "fine"],
        "metadata": ["fine"],
        "requirements": ["fine"],
        "removal": ["fine"],
    }
    client = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert client.list_namespaces() == []
    client.close()
    assert not [path for path in deployment.data.rglob("*") if path.is_file()]


def test_a_table_of_another_writer(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    client = load_catalog("lake", type="sql", uri=uri, warehouse=f"file://{tmp_path}/w")
    client.create_namespace("checked")
    client.create_table(TABLE, Schema(NestedField(1, "x", LongType())))
    client.close()
    done, found = asked(deployed(tmp_path, type="sql", uri=uri, locations=[f"file://{tmp_path}/w"]))
    ((verdict, reported),) = found["table checked.clicks"]
    assert (done.code, verdict) == (1, "wrong")
    assert "was not made by the archiver" in reported


def test_a_driver_that_is_not_there_or_a_place_that_is_none(tmp_path: Path) -> None:
    done, found = asked(deployed(tmp_path, type="nonsense", uri="x"))
    assert (done.code, verdicts(found)) == (1, {"reachable": ["wrong"]})
    done = deployed(tmp_path, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db").cli(
        "config", "check", "--probe"
    )
    assert (done.code, "needs --connect" in done.err) == (3, True)


# on REST


@needs_java
def test_a_look_writes_nothing(guarded: Guarded, rest_catalog: RestCatalog, tmp_path: Path) -> None:
    done, found = asked(on(guarded, tmp_path))
    assert done.code == 0, done.out
    assert verdicts(found) == {
        "reachable": ["fine"],
        "namespace checked": ["note"],
        "table checked.clicks": ["note"],
    }
    assert (guarded.seen("create"), guarded.seen("namespace"), guarded.seen("swap")) == (0, 0, 0)
    text = on(guarded, tmp_path).cli("config", "check", "--connect")
    assert "catalog lake (rest): fine" in text.out
    assert CLIENT_SECRET not in text.out + text.err + done.out


@needs_java
@pytest.mark.parametrize("location", ["data", "catalog"])
def test_a_probe_of_a_rest_catalog(
    guarded: Guarded,
    rest_catalog: RestCatalog,
    tmp_path: Path,
    location: str,
) -> None:
    deployment = on(guarded, tmp_path, location=location, locations=[f"file://{rest_catalog.warehouse}"])
    done, found = asked(deployment, "--probe")
    assert done.code == 0, done.out
    assert verdicts(found) == {
        "reachable": ["fine"],
        "namespace checked": ["note"],
        "table checked.clicks": ["note"],
        "create": ["fine"],
        "location": ["fine"],
        "field ids": ["note"],
        "case": ["fine", "fine"],
        "metadata": ["fine"],
        "requirements": ["fine"],
        "removal": ["fine"],
    }
    ((_, reported),) = found["location"]
    assert (str(rest_catalog.warehouse) in reported) is (location == "catalog")
    assert left(rest_catalog, deployment) == []


@needs_java
def test_what_was_there_before_a_probe_is_there_after_it(
    guarded: Guarded,
    rest_catalog: RestCatalog,
    tmp_path: Path,
) -> None:
    client = rest_catalog.client()
    client.create_namespace("checked")
    client.create_table("checked.mine", Schema(NestedField(1, "x", LongType())))
    deployment = on(guarded, tmp_path)
    (deployment.data / "probe").mkdir(parents=True)
    (deployment.data / "probe" / "conditional-create").write_bytes(b"kept")
    done, _ = asked(deployment, "--probe")
    assert done.code == 0, done.out
    assert client.list_tables("checked") == [("checked", "mine")]
    assert [path.name for path in deployment.data.rglob("*") if path.is_file()] == ["conditional-create"]
    client.close()


@needs_java
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"credential": "archiver:of-yesterday"}, "refuses us"),
        (
            {"credential": "", "token": "of-the-day-before"},
            "put a new one where the catalog's token is configured",
        ),
        ({"credential": ""}, "configure credential, token or rest.sigv4-enabled"),
    ],
    ids=["secret", "token", "nothing"],
)
def test_wrong_credentials(guarded: Guarded, tmp_path: Path, changed: dict[str, str], words: str) -> None:
    done, found = asked(on(guarded, tmp_path, **changed), "--probe")
    assert (done.code, verdicts(found)) == (1, {"reachable": ["wrong"]})
    assert words in found["reachable"][0][1]


@needs_java
def test_a_wrong_address(guarded: Guarded, tmp_path: Path) -> None:
    guarded.arm(Fault(Play.GARBAGE_BEFORE), "config")
    done, found = asked(on(guarded, tmp_path))
    assert (done.code, verdicts(found)) == (1, {"reachable": ["wrong"]})
    assert "is no catalog" in found["reachable"][0][1]
    guarded.arm(Fault(Play.ANSWER_BEFORE, 404), "config")
    done, _ = asked(on(guarded, tmp_path))
    assert done.code == 1
    for fault in (Fault(Play.ANSWER_BEFORE, 503), Fault(Play.SILENT_BEFORE)):
        guarded.arm(fault, "config")
        done, found = asked(on(guarded, tmp_path))
        assert (done.code, verdicts(found)) == (2, {"reachable": ["untold"]}), fault
    guarded.arm(Fault(Play.ANSWER_BEFORE, 503), "token")
    assert asked(on(guarded, tmp_path))[0].code == 2
    guarded.refuse()
    assert asked(on(guarded, tmp_path))[0].code == 2
    guarded.recover()


@needs_java
@pytest.mark.parametrize(
    ("forbidden", "check"),
    [("create", "create"), ("namespace", "create"), ("swap", "metadata"), ("load", "table")],
)
def test_what_we_may_not_do(
    guarded: Guarded,
    guard: Guard,
    rest_catalog: RestCatalog,
    tmp_path: Path,
    forbidden: str,
    check: str,
) -> None:
    guard.forbidden = (forbidden,)
    deployment = on(guarded, tmp_path)
    done, found = asked(deployment, "--probe")
    assert done.code == 1, done.out
    wrong = [name for name, items in found.items() if any(verdict == "wrong" for verdict, _ in items)]
    assert any(name.startswith(check) for name in wrong), found
    if forbidden != "load":
        assert left(rest_catalog, deployment) == []


class Careless(HttpFaults):
    """A catalog that accepts every commit, even on a base that no longer exists."""

    last: Answer | None = None

    def _pass_on(self, asked: Asked) -> Answer:
        answer = super()._pass_on(asked)
        if asked.operation != "swap":
            return answer
        if answer.status == 409 and self.last is not None:
            return self.last
        self.last = answer
        return answer


@needs_java
def test_a_catalog_that_does_not_hold_requirements(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    rest_catalog.empty()
    with Careless(lambda: rest_catalog.uri) as careless:
        deployment = on(careless, tmp_path)
        done, found = asked(deployment, "--probe")
        ((verdict, reported),) = found["requirements"]
        assert (done.code, verdict) == (1, "wrong")
        assert "must not be used" in reported
        assert left(rest_catalog, deployment) == []


@needs_java
def test_a_catalog_that_falls_silent_is_not_waited_for_without_end(guarded: Guarded, tmp_path: Path) -> None:
    for operation in ("swap", "load"):
        for _ in range(20):
            guarded.arm(Fault(Play.SILENT_BEFORE), operation, after="create")
    began_s = SystemClock().monotonic_s()
    done, found = asked(on(guarded, tmp_path), "--probe")
    assert SystemClock().monotonic_s() - began_s < 20
    assert done.code == 1, "what is left behind is reported"
    assert "drop it by hand" in found["removal"][0][1]
