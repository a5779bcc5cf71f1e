"""Certificates with chosen subjects, and what Java makes of the subjects."""

from __future__ import annotations

Part = list[tuple[str, int, str | bytes]]
Subject = list[Part]

CN, C, L, ST, O, OU = "2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.10", "2.5.4.11"  # noqa: E741
STREET, DC, UID = "2.5.4.9", "0.9.2342.19200300.100.1.25", "0.9.2342.19200300.100.1.1"
UTF8, PRINTABLE, IA5 = 12, 19, 22


def tlv(tag: int, body: bytes) -> bytes:
    """An element of DER."""
    length = bytes([len(body)]) if len(body) < 0x80 else b"\x82" + len(body).to_bytes(2, "big")
    return bytes([tag]) + length + body


def identifier(text: str) -> bytes:
    """The number of an attribute, such as `2.5.4.3`."""
    first, second, *rest = map(int, text.split("."))
    body = b""
    for number in (first * 40 + second, *rest):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        body += bytes(reversed(groups))
    return tlv(6, body)


def subject_of(*parts: Part) -> bytes:
    """A subject: its parts, each with the number, tag and value of its attributes."""
    return tlv(0x30, b"".join(tlv(0x31, b"".join(map(_attribute, part))) for part in parts))


def _attribute(attribute: tuple[str, int, str | bytes]) -> bytes:
    number, tag, value = attribute
    return tlv(0x30, identifier(number) + tlv(tag, value if isinstance(value, bytes) else value.encode()))


def certificate(*parts: Part, version: bool = True) -> bytes:
    """A certificate with this subject, and with or without the field of its version."""
    return certificate_with(subject_of(*parts), version=version)


def certificate_with(subject: bytes, *, version: bool = False) -> bytes:
    """A certificate with this element in the place of the subject: what its parser passes is right."""
    issuer = subject_of([(CN, UTF8, "issuer")])
    fields = [tlv(2, b"\1"), tlv(0x30, b""), issuer, tlv(0x30, b""), subject, tlv(0x30, b"")]
    head = tlv(0xA0, tlv(2, b"\2")) if version else b""
    return tlv(0x30, tlv(0x30, head + b"".join(fields)) + tlv(0x30, b"") + tlv(3, b"\0"))


SUBJECTS: list[tuple[Subject, str]] = [
    (
        [
            [(C, PRINTABLE, "DE")],
            [(ST, UTF8, "Bavaria")],
            [(L, UTF8, "Munich")],
            [(O, UTF8, "Shop")],
            [(OU, UTF8, "orders")],
            [(CN, UTF8, "alice")],
        ],
        "CN=alice,OU=orders,O=Shop,L=Munich,ST=Bavaria,C=DE",
    ),
    (
        [[(DC, IA5, "org")], [(DC, IA5, "shop")], [(UID, UTF8, "al")], [(STREET, UTF8, "Main st. 1")]],
        "STREET=Main st. 1,UID=al,DC=shop,DC=org",
    ),
    ([[(CN, UTF8, "a"), (O, UTF8, "b")], [(C, PRINTABLE, "DE")]], "C=DE,CN=a+O=b"),
    ([[(O, UTF8, "b"), (CN, UTF8, "a")], [(C, PRINTABLE, "DE")]], "C=DE,O=b+CN=a"),
    ([[(CN, UTF8, ",=+<>#;\"\\/'")]], "CN=\\,\\=\\+\\<\\>\\#\\;\\\"\\\\/'"),
    ([[(CN, UTF8, " # a b# ")]], "CN=\\ \\# a b\\#\\ "),
    ([[(CN, UTF8, "   ")]], "CN=\\ \\ \\ "),
    ([[(CN, UTF8, "")]], "CN="),
    ([[(CN, UTF8, "ü€\U0001f600")]], "CN=ü€\U0001f600"),
    ([[(CN, UTF8, "a\0b\rc\n")]], "CN=a\\00b\rc\n"),
    ([[(CN, UTF8, "\ra\r")]], "CN=\\\ra\\\r"),
    ([[(CN, UTF8, "\t a \t")]], "CN=\t a \t"),
    (
        [[("1.2.840.113549.1.9.1", IA5, "alice@x")], [(CN, UTF8, "a")]],
        "CN=a,1.2.840.113549.1.9.1=#1607616c6963654078",
    ),
    (
        [
            [("2.5.4.5", PRINTABLE, "123")],
            [("2.5.4.12", UTF8, "Dr")],
            [("1.3.6.1.4.1.42.2.11.2.1", UTF8, "ip")],
        ],
        "1.3.6.1.4.1.42.2.11.2.1=#0c026970,2.5.4.12=#0c024472,2.5.4.5=#1303313233",
    ),
    ([[("1.2.3.4.999999", UTF8, "x")]], "1.2.3.4.999999=#0c0178"),
    ([[(CN, 28, "aü".encode("utf-32-be"))]], "CN=#1c0800000061000000fc"),
    ([[(CN, 27, "general")]], "CN=general"),
    ([[(CN, 26, "visible")]], "CN=#1a0776697369626c65"),
    ([[(CN, 18, "123")]], "CN=#1203313233"),
    ([[(CN, PRINTABLE, "a*b@")]], "CN=a*b@"),
    ([[(CN, IA5, "a@b")]], "CN=a@b"),
    ([[(CN, 4, b"octets")]], "CN=#04066f6374657473"),
    ([[(CN, 3, b"\0ab")]], "CN=#0303006162"),
    ([[(CN, 30, "ab".encode("utf-16-be"))]], "CN=\\00a\\00b"),
    ([[(CN, UTF8, "x" * 300)]], "CN=" + "x" * 300),
    ([], ""),
]
"""Subjects, and what `X500Principal.getName()` of Java 17, which Kafka uses, makes of each."""
