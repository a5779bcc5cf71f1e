"""The port answers generated requests as its own OpenAPI document promises.

Schemathesis generates valid and invalid requests from `/openapi.json`, and checks status, content type, headers and
schema of each answer. A valid request must be accepted, an invalid one refused, and none may end in a server error.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis.core.result import Ok
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from archiver.app.group_reset import reset_alone
from archiver.runtime.exit_codes import Done
from archiver.web import access
from archiver.web.app_context import Progress
from archiver.web.endpoint import HTML, NDJSON, Endpoint
from archiver.web.openapi import ENDPOINTS, PROTOBUF
from archiver.web.query_endpoints import FORM
from tests.support.amount import DAY, WHOLE
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import until
from tests.support.process.web import TOKEN, Daemon
from tests.support.schema.orders import order

SENDER, READER = "the token of senders", "the token of readers"
TOPICS = ["orders", "clicks", "files", "kept"]
EXAMPLES = 100 if WHOLE else 8
"""Requests of each operation and kind."""
BASE64 = {"enum": [None, "", "AA==", "MTIz"]}
"""Bytes in JSON."""
NARROW: dict[tuple[str, str], Any] = {
    ("topic", "string"): {"enum": TOPICS},
    ("group", "string"): {"const": "readers"},
    ("partition", "integer"): {"const": 0},
    ("offset", "integer"): {"enum": [0, 1, 2]},
    ("from", "string"): {"enum": ["earliest", "latest", "1", "2026-11-27T12:00:00Z"]},
    ("text", "boolean"): {"const": False},
}
"""Schemas of parameters by name and type."""
NARROW_FIELDS: dict[str, Any] = {
    # In a record another topic than that of the address is refused, and each topic has a partition 0.
    "topic": {"enum": [None]},
    "group": {"const": "readers"},
    "offsets": {"const": "0:1"},
    "sql": {"enum": ["SELECT 1", "SHOW TABLES", "SELECT * FROM shop.clicks"]},
    "partition": {"enum": [None, 0]},
    "timestamp": {"enum": [None, "2026-11-27T12:00:00Z"]},
    "key": BASE64,
    "value": BASE64,
    "headers": {
        "type": ["array", "null"],
        "items": {
            "type": "array",
            "prefixItems": [{"type": "string"}, BASE64],
            "items": False,
            "minItems": 2,
        },
    },
}
"""Schemas of fields of bodies."""
IN_PATH = {"topic": "clicks", "partition": 0, "offset": 0, "query": "0"}


@schemathesis.serializer(NDJSON, *PROTOBUF)
def serialize(context: Any, value: Any) -> bytes:
    """Body of records: one line of JSON, or the characters of a text as bytes."""
    if isinstance(value, bytes):
        return value
    if context.case.media_type == NDJSON or not isinstance(value, str):
        return json.dumps(value).encode() + b"\n"
    return value.encode("latin-1", "ignore")


def narrowed(document: Mapping[str, Any], query: str) -> dict[str, Any]:
    """The document with names that exist, and only with values that the descriptions allow too: most texts name no topic
    and are no base64. `query` is the id of a query."""
    names = NARROW | {("query", "string"): {"const": query}}
    made: dict[str, Any] = json.loads(json.dumps(document))
    for item in made["paths"].values():
        for operation in item.values():
            # A request with both keys is refused.
            given = [one for one in operation.get("parameters", []) if one["name"] != "key_base64"]
            for parameter in given:
                schema = parameter["schema"]
                parameter["schema"] = names.get((parameter["name"], schema.get("type")), schema)
            if given:
                operation["parameters"] = given
            content = operation.get("requestBody", {}).get("content", {})
            for kind in PROTOBUF:
                # Few texts are Protobuf messages.
                content.pop(kind, None)
            for kind, body in content.items():
                narrow_fields(body["schema"], {**NARROW_FIELDS, "topic": {"const": "clicks"}})
                if kind == FORM:
                    narrow_fields(body["schema"], {"limit": {"enum": ["", "5"]}})
                    body["schema"]["additionalProperties"] = False
    narrow_fields(made["components"]["schemas"]["Record"], NARROW_FIELDS)
    return made


def narrow_fields(schema: dict[str, Any], narrow: Mapping[str, Any]) -> None:
    fields = schema.get("properties", {})
    fields |= {name: narrow[name] for name in fields if name in narrow}


@dataclass(frozen=True)
class Port:
    """A daemon and the operations of its document by their ids."""

    daemon: Daemon
    document: Mapping[str, Any]
    whole: Mapping[str, Any]

    @property
    def base_url(self) -> str:
        return "http://{}:{}".format(*self.daemon.address)

    def query(self) -> str:
        """The id of a query; a new one, because the daemon keeps few of them."""
        self.until_no_query_is_open()
        headers = {"Authorization": f"Bearer {READER}", "Content-Type": "application/json"}
        reply = self.daemon.call("POST", "/v1/query", b'{"sql": "SELECT 1"}', headers)
        found: str = reply.json()["id"]
        return found

    def until_no_query_is_open(self) -> None:
        """Wait for the queries of earlier tests; the daemon refuses more than a few."""
        headers = {"Authorization": f"Bearer {READER}"}

        def none_is_open() -> bool:
            queries = self.daemon.call("GET", "/v1/query", headers=headers).json()["queries"]
            return not {"waiting", "running"} & {one["state"] for one in queries}

        until("no query is open", none_is_open)

    def narrow(self, name: str) -> Any:
        """The operation in the narrowed document."""
        query = self.query() if "{query}" in self.whole[name].path else ""
        return operations(narrowed(self.document, query), self.base_url)[name]

    def requests(self, name: str, mode: GenerationMode) -> st.SearchStrategy[Any]:
        """Requests of an operation that are valid, or invalid, by its document."""
        whole: st.SearchStrategy[Any] = self.whole[name].as_strategy(generation_mode=mode)
        if mode is GenerationMode.POSITIVE:
            return st.one_of(whole, self.narrow(name).as_strategy(generation_mode=mode))
        known = {place: IN_PATH[place] for place in re.findall(r"{(\w+)}", self.whole[name].path)}
        if not known:
            return whole
        # The path is valid, so another part of the request is not.
        return st.one_of(whole, self.whole[name].as_strategy(generation_mode=mode, path_parameters=known))


def operations(document: Mapping[str, Any], base_url: str) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(dict(document))
    schema.config.update(base_url=base_url)
    found = list(schema.get_all_operations())
    assert not [one for one in found if not isinstance(one, Ok)]
    return {one.ok().definition.raw["operationId"]: one.ok() for one in found if isinstance(one, Ok)}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    """Topics with records in tables, in intake and undecoded, a consumer group, and a token for each purpose."""
    overrides = {"kafka": {"listen": "127.0.0.1:0"}}
    deployment = Deployment(tmp_path_factory.mktemp("port") / "d", overrides=overrides)
    with Driver(deployment) as driver:
        driver.send("clicks", [b"%d" % number for number in range(5)], 0)
        driver.send("orders", [order(1), b"\xff\xff\xff", order(2)], 0)
        driver.archive()
        driver.send("clicks", [b"later", None, b""], 0)
        app = driver.application
        assert app.settings.kafka is not None
        reset_alone(app, app.settings.kafka, "readers", app.topic("clicks").topic_id, {0: 1})
    daemon = Daemon(deployment, produce_token=SecretStr(SENDER), read_token=SecretStr(READER))
    with daemon, pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "FAILED_WAIT_S", 0.0)
        audit = daemon.operations.audit

        def without_spark(topic: str | None, progress: Progress, *, deep: bool = False) -> Done:
            return audit(topic, progress)

        patch.setattr(daemon.operations, "audit", without_spark)
        document = daemon.call("GET", "/openapi.json").json()
        yield Port(daemon, document, operations(document, "http://{}:{}".format(*daemon.address)))


def right(endpoint: Endpoint) -> str:
    """The header Authorization with the token of the operation."""
    return f"Bearer {TOKEN if endpoint.admin else SENDER if endpoint.sends else READER}"


def credentials(endpoint: Endpoint) -> st.SearchStrategy[str | None]:
    """The header Authorization, mostly the right one; None leaves it to schemathesis."""
    login = "Basic " + base64.b64encode(f"any:{READER}".encode()).decode()
    return st.sampled_from([right(endpoint)] * 9 + [login, "Bearer wrong", "Bearer", "Basic !", None])


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The port logs no error: an exception of a handler ends in one."""
    caplog.set_level(logging.ERROR)
    yield
    logged = [one.getMessage() for one in caplog.get_records("call") if one.name.startswith("archiver.")]
    assert logged == []


def check_answer(port: Port, endpoint: Endpoint, case: Any, authorization: str | None) -> int:
    """Send the request, and compare the answer with the document; returns its status."""
    headers = {} if authorization is None else {"Authorization": authorization}
    if endpoint.method == "POST" and HTML in {one.media for one in endpoint.answers.values()}:
        # A browser sends it with each form.
        headers["Origin"] = port.base_url
    response = case.call(headers=headers, timeout=60, allow_redirects=False)
    # The descriptions of the whole document restrict more than its schemas do, for example to base64 in a text.
    loose = case.operation is port.whole[endpoint.name]
    case.validate_response(
        response, headers=headers, excluded_checks=[positive_data_acceptance] if loose else []
    )
    kind = response.headers["content-type"][0].partition(";")[0]
    if kind == NDJSON:
        check_lines(port, endpoint, response.status_code, response.content)
    status: int = response.status_code
    return status


def check_lines(port: Port, endpoint: Endpoint, status: int, body: bytes) -> None:
    """Each line has the schema that the document gives a line; schemathesis does not read this type."""
    answer = port.document["paths"][endpoint.path][endpoint.method.lower()]["responses"][str(status)]
    schema = {**answer["content"][NDJSON]["schema"], "components": port.document["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert body.splitlines()
    for line in body.splitlines():
        validator.validate(json.loads(line))


def can_be_invalid(endpoint: Endpoint) -> bool:
    """Whether a schema refuses anything: any text is a topic's name as well."""
    return bool(endpoint.bodies) or any(
        one["in"] == "query" or one["schema"] != {"type": "string"} for one in endpoint.parameters
    )


@pytest.mark.parametrize(
    ("endpoint", "mode"),
    [
        pytest.param(endpoint, mode, id=f"{endpoint.name}-{mode}")
        for endpoint in ENDPOINTS
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or can_be_invalid(endpoint)
    ],
)
@pytest.mark.usefixtures("quiet")
def test_generated_requests(port: Port, endpoint: Endpoint, mode: GenerationMode) -> None:
    @seed(DAY)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(port.requests(endpoint.name, mode), credentials(endpoint))
    def check(case: Any, authorization: str | None) -> None:
        check_answer(port, endpoint, case, authorization)

    check()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: one.name)
@pytest.mark.usefixtures("quiet")
def test_requests_at_the_bounds(port: Port, endpoint: Endpoint) -> None:
    """Each bound and each kind of invalid value once, other methods, and missing and doubled parameters."""
    port.until_no_query_is_open()
    valid = {
        check_answer(port, endpoint, case, right(endpoint))
        for case in at_the_bounds(port.narrow(endpoint.name), GenerationMode.POSITIVE)
    }
    assert valid & {200, 303}, "a test of refusals alone would say nothing about documents"
    for case in at_the_bounds(port.whole[endpoint.name], *GenerationMode):
        check_answer(port, endpoint, case, right(endpoint))


def at_the_bounds(operation: Any, *modes: GenerationMode) -> Iterator[Any]:
    config = operation.schema.config.generation_for(operation=operation, phase="coverage")
    found: Iterator[Any] = operation.schema.iter_coverage_cases(
        operation, generation_modes=list(modes), generation_config=config
    )
    return found
