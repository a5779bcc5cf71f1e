"""The settings of the Kafka listener: defaults, and what is refused because it would be unsafe or useless."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.config.settings import Settings, load_settings
from archiver.runtime.errors import ConfigInvalid

TLS = {"cert_file": "cert.pem", "key_file": "key.pem"}
SASL = {"sasl": {}, "users_file": "users.json"}
RULE = {"principal": "User:alice", "operations": ["read"], "topics": ["orders"]}


def load(tmp_path: Path, kafka: dict[str, Any] | None, **more: Any) -> Settings:
    for name in ("cert.pem", "key.pem", "ca.pem", "users.json"):
        (tmp_path / name).write_text("text\n")
    document = {"cluster": "demo", "data": {"uri": "data"}, "metadata": {"sqlite": {"path": "m.db"}}, **more}
    path = tmp_path / "archiver.yaml"
    path.write_text(yaml.safe_dump(document if kafka is None else {**document, "kafka": kafka}))
    return load_settings(path, {})


def listener(tmp_path: Path, kafka: dict[str, Any]) -> KafkaListenerSettings:
    found = load(tmp_path, kafka).kafka
    assert found is not None
    return found


def test_there_is_no_listener_unless_the_key_is_given(tmp_path: Path) -> None:
    assert load(tmp_path, None).kafka is None


def test_an_address_of_this_machine_needs_nothing_else(tmp_path: Path) -> None:
    kafka = listener(tmp_path, {"listen": "127.0.0.1:0"})
    assert (kafka.tls, kafka.sasl, kafka.users_file, kafka.acls, kafka.rack) == (None, None, None, (), None)
    assert not kafka.authenticates
    assert (kafka.allow_plaintext, kafka.auto_create_topics, kafka.access_log) == (False, False, False)
    assert (kafka.default_partitions, kafka.broker_timeout) == (1, 10.0)
    assert (kafka.request_bytes_max, kafka.fetch_bytes_max) == (100 * 2**20, 55 * 2**20)


def test_the_largest_batch_fits_into_the_queue_of_the_writer(tmp_path: Path) -> None:
    settings = load(tmp_path, {"listen": "127.0.0.1:9092"})
    assert settings.kafka is not None
    assert settings.kafka.uncompressed_bytes_max == settings.intake.queue_bytes_max


def test_a_daemon_without_intake_may_have_the_key(tmp_path: Path) -> None:
    assert load(tmp_path, {"listen": "127.0.0.1:9092"}, roles=["archive"]).kafka is not None


def test_everything_for_other_machines(tmp_path: Path) -> None:
    rule = {
        "principal": "User:CN=orders,O=Shop",
        "operations": ["write", "idempotent_write"],
        "topics": ["orders", "shop.*", "*"],
        "groups": ["zähler *"],
        "transactional_ids": ["orders-*"],
        "cluster": True,
    }
    kafka = listener(
        tmp_path,
        {
            "listen": "[::]:9092",
            "advertised": "archiver-0.example.com:19092",
            "rack": "eu-west-1a",
            "tls": {**TLS, "client_ca_file": "ca.pem"},
            "sasl": {"mechanisms": ["PLAIN", "SCRAM-SHA-512"]},
            "users_file": "users.json",
            "acls": [rule],
            "request_bytes_max": "8MB",
        },
    )
    assert kafka.tls is not None and kafka.sasl is not None and kafka.authenticates
    assert (kafka.tls.cert_file, kafka.users_file) == (tmp_path / "cert.pem", tmp_path / "users.json")
    assert kafka.sasl.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert kafka.acls[0].model_dump() == {
        key: tuple(value) if isinstance(value, list) else value for key, value in rule.items()
    }


@pytest.mark.parametrize(
    ("listen", "advertised", "expected"),
    [
        ("127.0.0.1:9092", None, ("127.0.0.1", 9092)),
        ("127.0.0.1:0", None, ("127.0.0.1", 31000)),
        ("[::1]:0", None, ("::1", 31000)),
        ("127.0.0.1:9092", "broker.example.com:443", ("broker.example.com", 443)),
        ("127.0.0.1:9092", "[2001:db8::7]:0", ("2001:db8::7", 31000)),
    ],
)
def test_clients_are_given_the_advertised_address(
    tmp_path: Path, listen: str, advertised: str | None, expected: tuple[str, int]
) -> None:
    kafka = listener(tmp_path, {"listen": listen, "advertised": advertised})
    assert kafka.address_for_clients(31000 if listen.endswith(":0") or advertised else 9092) == expected


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", "0:9092", "*:9092", "[::0.0.0.0]:9092"])
def test_all_addresses_of_the_machine_need_one_for_clients(tmp_path: Path, listen: str) -> None:
    open_port = {"listen": listen, "tls": TLS, **SASL}
    with pytest.raises(ConfigInvalid, match=r"kafka\.advertised: is missing"):
        load(tmp_path, open_port)
    with pytest.raises(ConfigInvalid, match=r"kafka\.advertised: .* is no address to connect to"):
        load(tmp_path, {**open_port, "advertised": listen})
    assert listener(tmp_path, {**open_port, "advertised": "a:9092"}).advertised == "a:9092"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "without encryption; give tls a certificate"),
        (SASL, "without encryption"),
        ({"tls": TLS}, "without authentication; give sasl and users_file, or tls.client_ca_file"),
        ({"tls": TLS, **SASL}, None),
        ({"tls": {**TLS, "client_ca_file": "ca.pem"}}, None),
        ({"allow_plaintext": True}, None),
        ({"tls": TLS, "allow_plaintext": True}, None),
    ],
)
def test_other_machines_need_encryption_and_authentication(
    tmp_path: Path, given: dict[str, Any], problem: str | None
) -> None:
    kafka = {"listen": "archiver.example.com:9092", **given}
    if problem is None:
        listener(tmp_path, kafka)
    else:
        with pytest.raises(ConfigInvalid, match=rf"kafka\.listen: .*{re.escape(problem)}"):
            load(tmp_path, kafka)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"sasl": {}}, r"kafka\.users_file: sasl and users_file belong together"),
        ({"users_file": "users.json"}, r"kafka\.sasl: sasl and users_file belong together"),
        ({"sasl": {}, "users_file": "absent.json"}, r"kafka\.users_file: there is no file .*absent\.json"),
        ({"sasl": {"mechanisms": []}, "users_file": "users.json"}, r"kafka\.sasl\.mechanisms"),
        ({"sasl": {"mechanisms": ["GSSAPI"]}, "users_file": "users.json"}, r"kafka\.sasl\.mechanisms"),
        ({"tls": {**TLS, "cert_file": "absent.pem"}}, r"kafka\.tls\.cert_file: there is no file"),
        (
            {"requests_bytes_max": "10MiB"},
            r"kafka\.request_bytes_max: .* more than kafka\.requests_bytes_max",
        ),
        ({"request_bytes_max": "1KiB"}, r"kafka\.request_bytes_max"),
        ({"rack": "a b"}, r"kafka\.rack"),
        ({"default_partitions": 0}, r"kafka\.default_partitions"),
        ({"broker_timeout": "1s"}, r"kafka\.broker_timeout"),
        ({"port": 9092}, r"kafka\.port"),
        ({"acls": [{**RULE, "topics": []}]}, r"kafka\.acls\[0\]: names no resource"),
        ({"acls": [{**RULE, "operations": []}]}, r"kafka\.acls\[0\]\.operations"),
        ({"acls": [{**RULE, "operations": ["reed"]}]}, r"kafka\.acls\[0\]\.operations"),
        ({"acls": [{**RULE, "principal": "alice"}]}, r"kafka\.acls\[0\]\.principal"),
        ({"acls": [{**RULE, "principal": "User:a\nb"}]}, r"kafka\.acls\[0\]\.principal"),
        ({"acls": [{**RULE, "topics": ["or*ers"]}]}, r"kafka\.acls\[0\]\.topics"),
        ({"acls": [{**RULE, "topics": ["orders**"]}]}, r"kafka\.acls\[0\]\.topics"),
        ({"acls": [RULE, {**RULE, "groups": ["a\tb"]}]}, r"kafka\.acls\[1\]\.groups"),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem):
        load(tmp_path, {"listen": "127.0.0.1:9092", **given})


def test_the_address_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"kafka\.listen"):
        load(tmp_path, {"rack": "a"})


@pytest.mark.parametrize(
    ("kafka", "http", "taken"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092", True),
        ("localhost:9092", "127.0.0.1:9092", True),
        ("[::1]:9092", "LOCALHOST:9092", True),
        ("127.0.0.1:9092", "0.0.0.0:09092", True),
        ("127.0.0.1:8787", None, True),
        ("127.0.0.1:9092", "127.0.0.1:8787", False),
        ("127.0.0.2:9092", "127.0.0.1:9092", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_the_port_of_http_is_refused(tmp_path: Path, kafka: str, http: str | None, taken: bool) -> None:
    more = {} if http is None else {"http": {"listen": http, "allow_http": True}}
    if not taken:
        load(tmp_path, {"listen": kafka}, **more)
        return
    # Also next to another problem.
    for rack in ("a", "a b"):
        with pytest.raises(ConfigInvalid, match=r"kafka\.listen: .* has the port of http\.listen") as error:
            load(tmp_path, {"listen": kafka, "rack": rack}, **more)
        assert ("kafka.rack" in str(error.value)) == (rack == "a b")
