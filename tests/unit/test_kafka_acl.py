"""Rules of the Kafka listener: who may do what, and the principal of a certificate as Kafka writes it."""

from __future__ import annotations

import itertools
import random
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.config.kafka_listener import KafkaAclSettings, Operation
from archiver.kafka.acl import ANONYMOUS, Authorizer, Resource, principal_of_certificate
from archiver.runtime.errors import AuthenticationFailed
from tests.support.fuzzing import fuzzing
from tests.support.kafka.certificate_subjects import (
    CN,
    SUBJECTS,
    UTF8,
    O,
    Subject,
    certificate,
    certificate_with,
    identifier,
    tlv,
)

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
TOPIC, GROUP, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER


def rule(principal: str, *operations: str, **resources: Any) -> KafkaAclSettings:
    return KafkaAclSettings.model_validate(
        {"principal": principal, "operations": operations, **(resources or {"topics": ["orders"]})}
    )


def authorizer(*rules: KafkaAclSettings, authenticates: bool = True) -> Authorizer:
    return Authorizer(rules, authenticates=authenticates)


# --- Without rules.
def test_without_rules_and_authentication_every_client_may_do_everything() -> None:
    one = authorizer(authenticates=False)
    for operation, resource in itertools.product(OPERATIONS, Resource):
        assert one.allows(ANONYMOUS, operation, resource, "any")
        assert one.allows_some(ANONYMOUS, operation, resource)
        assert one.allowed_names(ANONYMOUS, operation, resource, ["b", "a"]) == ["b", "a"]
    assert one.allows_idempotent_write(ANONYMOUS)


def test_without_rules_a_client_that_authenticates_may_do_nothing() -> None:
    one = authorizer(authenticates=True)
    for operation, resource in itertools.product(OPERATIONS, Resource):
        assert not one.allows("User:alice", operation, resource, "any")
        assert not one.allows_some("User:alice", operation, resource)
        assert one.allowed_names("User:alice", operation, resource, ["a"]) == []
    assert not one.allows_idempotent_write("User:alice")


def test_with_rules_a_port_without_authentication_allows_what_they_say() -> None:
    one = authorizer(rule(ANONYMOUS, "read"), authenticates=False)
    assert one.allows(ANONYMOUS, "read", TOPIC, "orders")
    assert not one.allows(ANONYMOUS, "write", TOPIC, "orders")
    assert not one.allows(ANONYMOUS, "read", TOPIC, "other")
    assert not one.allows(ANONYMOUS, "create", CLUSTER)


# --- Operations.
IMPLIED: dict[str, set[str]] = {
    "read": {"describe"},
    "write": {"describe"},
    "delete": {"describe"},
    "alter": {"describe"},
    "alter_configs": {"describe_configs"},
    "all": {*OPERATIONS},
}
"""Kafka's rules; each operation also grants itself."""


@pytest.mark.parametrize("granted", OPERATIONS)
@pytest.mark.parametrize("resource", Resource)
def test_truth_table_of_operations(granted: str, resource: Resource) -> None:
    given_names: dict[Resource, dict[str, Any]] = {
        Resource.TOPIC: {"topics": ["x"]},
        Resource.GROUP: {"groups": ["x"]},
        Resource.TRANSACTIONAL_ID: {"transactional_ids": ["x"]},
        Resource.CLUSTER: {"cluster": True},
    }
    one = authorizer(rule("User:alice", granted, **given_names[resource]))
    for operation, asked in itertools.product(OPERATIONS, Resource):
        expected = asked is resource and (operation == granted or operation in IMPLIED.get(granted, set()))
        assert one.allows("User:alice", operation, asked, "x") == expected, (operation, asked)
        assert one.allows_some("User:alice", operation, asked) == expected, (operation, asked)
        assert not one.allows("User:bob", operation, asked, "x")


# --- Resources.
@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "order", False),
        ("orders", "Orders", False),
        ("orders", "", False),
        ("shop.*", "shop.orders", True),
        ("shop.*", "shop.", True),
        ("shop.*", "shop", False),
        # No regular expression.
        ("shop.*", "shopping", False),
        ("shop*", "shopping", True),
        ("*", "any", True),
        ("*", "", True),
        ("*", "*", True),
    ],
)
def test_patterns_of_names(pattern: str, name: str, expected: bool) -> None:
    for key, resource in (
        ("topics", TOPIC),
        ("groups", GROUP),
        ("transactional_ids", Resource.TRANSACTIONAL_ID),
    ):
        one = authorizer(rule("User:alice", "read", **{key: [pattern]}))
        assert one.allows("User:alice", "read", resource, name) == expected
        others = set(Resource) - {resource}
        assert not any(one.allows("User:alice", "read", other, name) for other in others)


def test_rules_of_a_principal_and_of_every_client_add_up() -> None:
    one = authorizer(
        rule("User:alice", "write", topics=["orders"]),
        rule("User:alice", "write", topics=["shop.*", "orders"], groups=["g"]),
        rule("User:*", "read", topics=["public*"]),
    )
    for principal, expected in (
        ("User:alice", ["orders", "shop.x", "public", "public2"]),
        ("User:bob", ["public", "public2"]),
        (ANONYMOUS, ["public", "public2"]),
    ):
        names = ["orders", "private", "shop.x", "public", "shop", "public2"]
        assert one.allowed_names(principal, "describe", TOPIC, names) == expected
    assert one.allows("User:alice", "write", GROUP, "g")
    assert not one.allows("User:alice", "write", TOPIC, "public")


@pytest.mark.parametrize(
    "principal",
    ["User:Alice", "User:alice ", "User:alic", "User:alice2", "alice", "Group:alice", "User:", ""],
)
def test_principals_are_compared_whole(principal: str) -> None:
    assert not authorizer(rule("User:alice", "all", topics=["*"])).allows(principal, "read", TOPIC, "x")


def test_a_principal_with_a_star_is_no_pattern() -> None:
    one = authorizer(rule("User:ali*", "read", topics=["*"]))
    assert not one.allows("User:alice", "read", TOPIC, "x")
    assert one.allows("User:ali*", "read", TOPIC, "x")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule("User:alice", "write", topics=["orders"])], True),
        ([rule("User:*", "write", topics=["shop.*"])], True),
        ([rule("User:alice", "idempotent_write", cluster=True)], True),
        ([rule("User:alice", "all", cluster=True)], True),
        ([rule("User:alice", "all", topics=["orders"])], True),
        ([rule("User:alice", "write", cluster=True)], False),
        ([rule("User:alice", "write", transactional_ids=["t"])], False),
        ([rule("User:alice", "idempotent_write", topics=["orders"])], False),
        ([rule("User:alice", "read", topics=["orders"])], False),
        ([rule("User:bob", "write", topics=["orders"])], False),
    ],
)
def test_idempotent_producers(rules: list[KafkaAclSettings], expected: bool) -> None:
    assert authorizer(*rules).allows_idempotent_write("User:alice") == expected


NAMES = ["", "a", "ab", "abc", "b", "b.", "b.c"]
PATTERNS = ["a", "ab", "a*", "ab*", "b.*", "*", "b"]
PRINCIPALS = ["User:a", "User:b", "User:*"]


@fuzzing()
@given(st.randoms(use_true_random=False))
def test_any_rules_against_a_naive_reading(source: random.Random) -> None:
    def some(values: list[str]) -> list[str]:
        return source.sample(values, source.randint(1, 2))

    rules = [
        rule(source.choice(PRINCIPALS), *some(list(OPERATIONS)), topics=some(PATTERNS), groups=some(PATTERNS))
        for _ in range(source.randint(1, 6))
    ]
    one = authorizer(*rules)

    def naive(principal: str, operation: str, key: str, name: str) -> bool:
        return any(
            found.principal in (principal, "User:*")
            and any(
                granted == operation or operation in IMPLIED.get(granted, set())
                for granted in found.operations
            )
            and any(
                name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
                for pattern in getattr(found, key)
            )
            for found in rules
        )

    for principal, operation in itertools.product(["User:a", "User:b", "User:c"], OPERATIONS):
        for key, resource in (("topics", TOPIC), ("groups", GROUP)):
            expected = [name for name in NAMES if naive(principal, operation, key, name)]
            assert one.allowed_names(principal, operation, resource, NAMES) == expected
            assert [name for name in NAMES if one.allows(principal, operation, resource, name)] == expected


# --- Principals of certificates.
@pytest.mark.parametrize(("subject", "expected"), SUBJECTS)
def test_subjects_are_written_as_java_writes_them(subject: Subject, expected: str) -> None:
    for version in (True, False):
        assert principal_of_certificate(certificate(*subject, version=version)) == f"User:{expected}"


def test_text_that_is_not_utf8_stays_distinguishable() -> None:
    first, second = (certificate([(CN, 20, data)]) for data in (b"a\xfc", b"a\xfd"))
    assert principal_of_certificate(first) == "User:CN=#140261fc"
    assert principal_of_certificate(second) == "User:CN=#140261fd"


def test_a_certificate_of_openssl(tmp_path: Path) -> None:
    made = tmp_path / "cert.der"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = "/C=DE/O=Shop, Inc./OU=a\\+b/CN=orders-ü/emailAddress=a@x"
    command += ["-keyout", str(tmp_path / "key"), "-subj", subject, "-utf8", "-outform", "DER"]
    subprocess.run([*command, "-out", str(made)], check=True, capture_output=True, timeout=60)
    expected = "User:1.2.840.113549.1.9.1=#1603614078,CN=orders-ü,OU=a\\+b,O=Shop\\, Inc.,C=DE"
    assert principal_of_certificate(made.read_bytes()) == expected
    one = authorizer(rule(expected, "read"))
    assert one.allows(expected, "read", TOPIC, "orders")


def test_what_is_no_certificate_is_refused() -> None:
    whole = certificate([(CN, UTF8, "alice")], [("1.2.3.4.999999", UTF8, "x" * 200)])
    for broken in (
        *(whole[:place] for place in range(len(whole))),
        whole + b"\0",
        b"\x30\x80",
        b"\x30\x85" * 9,
    ):
        with pytest.raises(AuthenticationFailed):
            principal_of_certificate(broken)


@pytest.mark.parametrize(
    "attribute",
    [
        # Numbers of an attribute that are too long, unfinished or absent.
        tlv(0x30, tlv(6, b"\x55" + b"\xff" * 19 + b"\1") + tlv(UTF8, b"x")),
        tlv(0x30, tlv(6, b"\xff" * 40_000 + b"\1") + tlv(UTF8, b"x")),
        tlv(0x30, tlv(6, b"\x55\4\x83") + tlv(UTF8, b"x")),
        tlv(0x30, tlv(6, b"") + tlv(UTF8, b"x")),
        tlv(0x31, identifier(CN) + tlv(UTF8, b"x")),
        tlv(0x30, tlv(13, b"\x55\4\3") + tlv(UTF8, b"x")),
        tlv(0x30, identifier(CN)),
        tlv(0x30, identifier(CN) + tlv(UTF8, b"x") * 2),
        # A length that DER does not have, and lengths beyond the end.
        tlv(0x30, identifier(CN) + b"\x0c\x80"),
        tlv(0x30, identifier(CN) + b"\x0c\x85\0\0\0\0\0"),
        tlv(0x30, identifier(CN) + b"\x0c\x02x"),
        tlv(0x30, identifier(CN) + b"\x0c\x84\0\0"),
        tlv(0x30, identifier(CN) + b"\x04\x02x"),
    ],
)
def test_attributes_that_are_refused(attribute: bytes) -> None:
    good = tlv(0x30, identifier(CN) + tlv(UTF8, b"x"))
    for one, accepted in ((good, True), (attribute, False)):
        der = certificate_with(tlv(0x30, tlv(0x31, one)))
        if accepted:
            assert principal_of_certificate(der) == "User:CN=x"
        else:
            with pytest.raises(AuthenticationFailed):
                principal_of_certificate(der)


@fuzzing()
@given(st.integers(0, 10**6), st.integers(1, 255), st.binary(max_size=60))
def test_any_bytes_give_a_principal_or_a_refusal(place: int, change: int, data: bytes) -> None:
    whole = bytearray(certificate([(CN, UTF8, "alice")], [(O, UTF8, "Shop")]))
    whole[place % len(whole)] ^= change
    for der in (bytes(whole), data, certificate_with(data), certificate_with(tlv(0x30, data))):
        try:
            principal = principal_of_certificate(der)
        except AuthenticationFailed:
            continue
        assert principal.startswith("User:")
