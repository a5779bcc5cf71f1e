"""Who a client is, by its certificate, and what it may do, by the rules in `kafka.acls`.

Decisions are pure functions of the settings. An `Authorizer` is immutable, so threads may share it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Final, get_args

from archiver.config.kafka_listener import KafkaAclSettings, Operation
from archiver.runtime.errors import AuthenticationFailed

ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a client that does not authenticate, as in Kafka."""
_EVERYONE: Final = "User:*"
_GRANTING: Final[dict[Operation, tuple[Operation, ...]]] = {
    operation: (operation, "all") for operation in get_args(Operation)
} | {
    "describe": ("describe", "read", "write", "delete", "alter", "all"),
    "describe_configs": ("describe_configs", "alter_configs", "all"),
}
"""For each operation, the operations of rules that include it, as in Kafka."""


class Resource(enum.Enum):
    """A type of resource that rules are about."""

    TOPIC = enum.auto()
    GROUP = enum.auto()
    TRANSACTIONAL_ID = enum.auto()
    CLUSTER = enum.auto()


# --- Rules.
class _Names:
    """Names and beginnings of names that rules allow."""

    __slots__ = ("_beginnings", "_exact")

    def __init__(self, patterns: Iterable[str]) -> None:
        found = set(patterns)
        self._exact = frozenset(pattern for pattern in found if not pattern.endswith("*"))
        # `*` alone is the empty beginning, which every name has.
        self._beginnings = tuple(sorted(pattern[:-1] for pattern in found if pattern.endswith("*")))

    def __contains__(self, name: str) -> bool:
        return name in self._exact or name.startswith(self._beginnings)


_Table = dict[tuple[Resource, Operation], _Names]


class Authorizer:
    """Decides by rules what a principal may do.

    Without rules, every client may do everything on a port without authentication, and nothing on a port that
    `authenticates`. With rules, a client may do what a rule allows.

    The time of a decision depends on the number of patterns of the principal that end with `*`. It does not
    depend on the number of rules.
    """

    def __init__(self, rules: Iterable[KafkaAclSettings], *, authenticates: bool) -> None:
        patterns: dict[str, dict[tuple[Resource, Operation], set[str]]] = {}
        for rule in rules:
            of_principal = patterns.setdefault(rule.principal, {})
            for resource, names in _resources(rule):
                for operation in rule.operations:
                    of_principal.setdefault((resource, operation), set()).update(names)
        self._is_open = not patterns and not authenticates
        self._tables: dict[str, _Table] = {
            principal: {key: _Names(names) for key, names in of_principal.items()}
            for principal, of_principal in patterns.items()
        }

    def allows(self, principal: str, operation: Operation, resource: Resource, name: str = "") -> bool:
        """Whether a principal may do it with a resource. The cluster has no name."""
        if self._is_open:
            return True
        return any(name in names for names in self._names(principal, operation, resource))

    def allowed_names(
        self, principal: str, operation: Operation, resource: Resource, names: Iterable[str]
    ) -> list[str]:
        """Those of the names with which a principal may do it, in their order.

        For answers that list what exists: pass them through this with `describe`. For a name that a client
        gives, ask `allows` before looking it up, so that the answer is the same whether or not it exists.
        """
        if self._is_open:
            return list(names)
        # Found once, for clusters with many topics.
        found = tuple(self._names(principal, operation, resource))
        return [name for name in names if any(name in allowed for allowed in found)]

    def allows_some(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether a rule lets a principal do it with any resource of a type, whichever exist."""
        return self._is_open or any(True for _ in self._names(principal, operation, resource))

    def allows_idempotent_write(self, principal: str) -> bool:
        """Whether a principal may get a producer id without a transactional id."""
        # Permission to write any topic is enough (KIP-679), because clients write idempotently by default.
        return self.allows(principal, "idempotent_write", Resource.CLUSTER) or self.allows_some(
            principal, "write", Resource.TOPIC
        )

    def _names(self, principal: str, operation: Operation, resource: Resource) -> Iterator[_Names]:
        for key in (principal, _EVERYONE):
            table = self._tables.get(key, {})
            for granting in _GRANTING[operation]:
                if (resource, granting) in table:
                    yield table[resource, granting]


def _resources(rule: KafkaAclSettings) -> Iterator[tuple[Resource, tuple[str, ...]]]:
    """The resources of a rule, each with its patterns."""
    for resource, names in (
        (Resource.TOPIC, rule.topics),
        (Resource.GROUP, rule.groups),
        (Resource.TRANSACTIONAL_ID, rule.transactional_ids),
    ):
        if names:
            yield resource, names
    if rule.cluster:
        yield Resource.CLUSTER, ("*",)


# --- Principals of certificates.
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attributes that RFC 2253 names; Java writes any other as its number and its bytes."""
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString.
_TEXT_TAGS: Final = frozenset({12, 19, 20, 22, 27, 30})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0


def principal_of_certificate(certificate: bytes) -> str:
    """Principal of a client by its certificate (DER), which must be verified already. Raises
    `AuthenticationFailed` if it is no certificate.

    The subject is written as Kafka does (`User:CN=alice,O=Shop`, RFC 2253), so that its rules can be used
    unchanged. One difference: a text that is not UTF-8 is written as its bytes, where Java loses some.
    """
    # Python's own form of the subject lacks the types of the values, which Java writes for other attributes.
    try:
        (body,) = _elements(_content(certificate, _SEQUENCE))[:1]
        fields = _elements(_content(body, _SEQUENCE))
        # Absent in certificates of version 1.
        after_version = fields[1:] if fields[0][0] == _VERSION else fields
        # Serial number, algorithm, issuer, validity, subject.
        subject = after_version[4]
        parts = [
            "+".join(_attribute(attribute) for attribute in _elements(_content(part, _SET)))
            for part in _elements(_content(subject, _SEQUENCE))
        ]
    except (IndexError, ValueError):
        raise AuthenticationFailed from None
    return f"User:{','.join(reversed(parts))}"


def _attribute(element: bytes) -> str:
    kind, value = _elements(_content(element, _SEQUENCE))
    number = _object_identifier(_content(kind, _OBJECT_IDENTIFIER))
    keyword = _KEYWORDS.get(number)
    if keyword is not None and value[0] in _TEXT_TAGS:
        try:
            return f"{keyword}={_escaped(_content(value, value[0]).decode())}"
        except UnicodeDecodeError:
            pass
    return f"{keyword or number}=#{value.hex()}"


def _escaped(text: str) -> str:
    # Java counts the carriage return as a space.
    start, end = len(text) - len(text.lstrip(" \r")), len(text.rstrip(" \r"))
    return "".join(
        f"\\{one}" if one in _ESCAPED or not start <= position < end else "\\00" if one == "\0" else one
        for position, one in enumerate(text)
    )


def _elements(data: bytes) -> list[bytes]:
    """The elements of DER, whole; raises `ValueError` or `IndexError`."""
    found, at = [], 0
    while at < len(data):
        _, end = _bounds(data, at)
        if end > len(data):
            raise ValueError
        found.append(data[at:end])
        at = end
    return found


def _content(element: bytes, tag: int) -> bytes:
    """The content of one element of DER with this tag; raises `ValueError` or `IndexError`."""
    start, end = _bounds(element, 0)
    if element[0] != tag or end != len(element):
        raise ValueError
    return element[start:end]


def _bounds(data: bytes, at: int) -> tuple[int, int]:
    """Start and end of the content of the element at a place."""
    first = data[at + 1]
    if first < 0x80:
        return at + 2, at + 2 + first
    # More than four bytes would be a certificate of gigabytes.
    size = first & 0x7F
    if not 1 <= size <= 4 or at + 2 + size > len(data):
        raise ValueError
    start = at + 2 + size
    return start, start + int.from_bytes(data[at + 2 : start], "big")


def _object_identifier(data: bytes) -> str:
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        # Bounds the time: the number of a long identifier would take more than linear time.
        if value.bit_length() > 128:
            raise ValueError
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not data or data[-1] & 0x80:
        raise ValueError
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
