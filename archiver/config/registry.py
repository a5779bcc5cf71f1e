"""The settings of the schema registry: where it is, who we are to it, and every bound on what it may answer.

Plain values only; connects nowhere. Promises that a password or token is never configured to go over an
unprotected network, nor stands in an address.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema, model_validator

from archiver.config.types import Duration, FilePath, Group, Located, Secret, Size, is_loopback

Problems = list[tuple[tuple[str | int, ...], str]]


def _check_url(value: object) -> str:
    """The address of a registry without a slash at its end; raises `ValueError`."""
    wanted = "an address such as https://registry.example.com"
    if not isinstance(value, str):
        raise ValueError(f"must be {wanted}")  # noqa: TRY004 - pydantic turns only ValueError into a located error
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not {wanted}: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a user name or a password in it; write them under auth")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == 0
        or any(letter.isspace() for letter in value)
    ):
        raise ValueError(
            f"{value[:120]!r} is not {wanted}: it begins with http:// or https:// and has a host"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{value[:120]!r} has a ? or # in it; write only scheme, host, port and path")
    return value.rstrip("/")


RegistryUrl = Annotated[
    str, BeforeValidator(_check_url), WithJsonSchema({"type": "string", "pattern": "^https?://[^@?#\\s]+$"})
]


class RegistryAuthSettings(Group):
    """Who we are to a schema registry: `username` and `password`, or `bearer`."""

    username: Annotated[str, Field(min_length=1)] | None = None
    """User name or API key."""
    password: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`."""
    bearer: Secret | None = None
    """A token, as `{env: NAME}` or `{file: PATH}`; it takes the place of the two above."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.bearer is not None and (self.username is not None or self.password is not None):
            raise Located([(("bearer",), "is given beside username and password; write one of them")])
        if self.bearer is None and self.username is None:
            raise Located([((), "says nothing; write username and password, or bearer")])
        if self.bearer is None and self.password is None:
            raise Located([(("password",), "is missing; username and password belong together")])
        return self


class RegistryTlsSettings(Group):
    """Certificates for an `https://` address. Left out: the server is judged by the authorities that this
    machine trusts.
    """

    ca: FilePath | None = None
    """A PEM file with the authorities that alone are trusted."""
    certificate: FilePath | None = None
    """A PEM file with our own certificate, for a server that asks for one."""
    key: FilePath | None = None
    """A PEM file with its private key, not encrypted."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        for name, given, other in (
            ("key", self.key, self.certificate),
            ("certificate", self.certificate, self.key),
        ):
            if given is None and other is not None:
                raise Located([((name,), "is missing; certificate and key belong together")])
        return self


class ConfluentSettings(Group):
    """A registry that speaks Confluent's protocol: Confluent's, Buf's, Apicurio's (with the path
    /apis/ccompat/v7) and others.
    """

    url: RegistryUrl
    """Address of the registry, `http://` or `https://`."""
    auth: RegistryAuthSettings | None = None
    """Left out: no authentication. It needs `https://`, or a registry on this machine."""
    tls: RegistryTlsSettings | None = None
    """Left out: what the machine trusts."""
    timeout: Annotated[Duration, Field(gt=0, le=600)] = 10.0
    """How long one answer may take, from the connection to its last byte."""
    attempts_max: Annotated[StrictInt, Field(ge=1, le=20)] = 3
    """How often one question is asked while the registry does not answer it, before it counts as down."""
    backoff: Annotated[Duration, Field(gt=0, le=60)] = 0.2
    """Wait before the second attempt; it doubles with each further one."""
    down_pause: Annotated[Duration, Field(ge=0, le=3600)] = 10.0
    """How long nobody asks the registry after it counted as down, so that one outage does not hold up every
    topic in turn."""
    fetch_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 120.0
    """How long everything about one topic may take together, before the registry counts as down."""
    answer_bytes_max: Annotated[Size, Field(ge=2**10, le=2**28)] = 4 * 2**20
    """Largest answer. A larger one is an error."""
    versions_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1000
    """Versions that a subject may have. Each is asked for once in the life of a process, so that the ids of
    all of them are known."""
    references_max: Annotated[StrictInt, Field(ge=0, le=10_000)] = 200
    """References that a schema may have, those of its references included."""
    depth_max: Annotated[StrictInt, Field(ge=0, le=100)] = 20
    """How deep references may be nested."""
    schema_bytes_max: Annotated[Size, Field(ge=2**10, le=2**28)] = 16 * 2**20
    """Bytes of a schema together with everything that it refers to."""
    cache_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 5000
    """Answers about what never changes (the schema of an id, the schema of a version) that are remembered."""
    cache_bytes_max: Annotated[Size, Field(ge=2**10, le=2**32)] = 64 * 2**20
    """Bytes of them."""

    @model_validator(mode="after")
    def _protected(self) -> Self:
        problems: Problems = []
        parts = urlsplit(self.url)
        if parts.scheme == "http":
            if self.auth is not None and not is_loopback(parts.hostname or ""):
                problems.append(
                    (
                        ("auth",),
                        (
                            f"would send a secret unprotected to {parts.hostname}; use https://, or a "
                            "registry on this machine"
                        ),
                    )
                )
            if self.tls is not None:
                problems.append(
                    (("tls",), "is given, but url begins with http://; use https:// or remove tls")
                )
        if problems:
            raise Located(problems)
        return self


class CompileSettings(Group):
    """Bounds on the compiler of `.proto` texts, those of folders and those of the registry. It runs in a
    process of its own.
    """

    timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """How long one compilation may take, and how much of the processor's time."""
    memory_max: Annotated[Size, Field(ge=128 * 2**20, le=2**40)] = 2 * 2**30
    """Address space of the compiler."""
    files_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 5000
    """`.proto` files that the folders may hold."""
    bytes_max: Annotated[Size, Field(ge=2**10, le=2**32)] = 64 * 2**20
    """Bytes of them."""
    output_max: Annotated[Size, Field(ge=2**10, le=2**30)] = 64 * 2**20
    """Bytes of the descriptor set that comes out."""


class SchemaRegistrySettings(Group):
    """Where Protobuf schemas come from that are no descriptor sets (docs/protocols/schema-sources.md)."""

    confluent: ConfluentSettings | None = None
    """A registry that speaks Confluent's protocol. Needed by topics with a `subject`."""
    when_down: Literal["last_known", "wait"] = "last_known"
    """What a topic with a `subject` does while the registry cannot be reached: go on with the schema that the
    ledger holds, or wait. If the ledger holds none, it waits. Other topics go on in any case."""
    refresh: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """Time between two looks of the intake at the newest schema of a topic with `validate` or `coerce`. A
    reload looks at once."""
    compile: CompileSettings = CompileSettings()
    """Bounds on the compiler of `.proto` texts."""
