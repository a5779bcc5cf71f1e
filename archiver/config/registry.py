"""The settings of the schema registry: address, authentication and limits on its answers.

Plain values only. A configuration that would send a password or token over an unprotected network, or put it
into an address, is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema, model_validator

from archiver.config.types import Duration, FilePath, Group, Located, Secret, Size, is_loopback

Problems = list[tuple[tuple[str | int, ...], str]]


def _check_url(value: object) -> str:
    """The address of a registry without a trailing slash; raises `ValueError`."""
    expected = "an address such as https://registry.example.com"
    if not isinstance(value, str):
        raise ValueError(f"must be {expected}")  # noqa: TRY004 - pydantic turns only ValueError into a located error
    try:
        parts = urlsplit(value)
        # Read here, because only then `urlsplit` validates it.
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not {expected}: {error}") from None
    # The address appears in messages and in the log.
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a user name or a password in it; write them under auth")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        # `urlsplit` accepts port 0 and white space in a host.
        or port == 0
        or any(letter.isspace() for letter in value)
    ):
        raise ValueError(
            f"{value[:120]!r} is not {expected}: it begins with http:// or https:// and has a host"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{value[:120]!r} has a ? or # in it; write only scheme, host, port and path")
    # The paths of requests begin with a slash.
    return value.rstrip("/")


RegistryUrl = Annotated[
    str, BeforeValidator(_check_url), WithJsonSchema({"type": "string", "pattern": "^https?://[^@?#\\s]+$"})
]


class RegistryAuthSettings(Group):
    """Authentication to a schema registry: `username` and `password`, or `bearer`."""

    username: Annotated[str, Field(min_length=1)] | None = None
    """User name or API key."""
    password: Secret | None = None
    """The password, as `{env: NAME}` or `{file: PATH}`."""
    bearer: Secret | None = None
    """A bearer token, as `{env: NAME}` or `{file: PATH}`; it replaces `username` and `password`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.bearer is not None and (self.username is not None or self.password is not None):
            raise Located([(("bearer",), "conflicts with username and password; keep one of them")])
        # An empty group is probably a mistake, and would send no credentials.
        if self.bearer is None and self.username is None:
            raise Located([((), "is empty; write username and password, or bearer")])
        if self.bearer is None and self.password is None:
            raise Located([(("password",), "is missing; username and password belong together")])
        return self


class RegistryTlsSettings(Group):
    """Certificates for an `https://` address. Default: the server's certificate is checked with the
    authorities that this machine trusts.
    """

    ca: FilePath | None = None
    """PEM file of the only authorities that are trusted. Default: those of this machine."""
    certificate: FilePath | None = None
    """PEM file of the client certificate. Set it if the server requires one."""
    key: FilePath | None = None
    """PEM file of the certificate's private key, not encrypted."""

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
    """A registry with Confluent's protocol: Confluent, Buf, Apicurio (with the path /apis/ccompat/v7) and
    others.
    """

    url: RegistryUrl
    """Address of the registry, `http://` or `https://`."""
    auth: RegistryAuthSettings | None = None
    """Authentication. Default: none. It needs `https://`, or a registry on this machine."""
    tls: RegistryTlsSettings | None = None
    """Certificates. Default: the authorities that this machine trusts."""
    timeout: Annotated[Duration, Field(gt=0, le=600)] = 10.0
    """Longest time for one answer, from the connection to its last byte. Default 10 s."""
    attempts_max: Annotated[StrictInt, Field(ge=1, le=20)] = 3
    """Attempts for one request before the registry counts as down. Default 3."""
    backoff: Annotated[Duration, Field(gt=0, le=60)] = 0.2
    """Wait before the second attempt; it doubles with each further attempt. Default 200 ms."""
    down_pause: Annotated[Duration, Field(ge=0, le=3600)] = 10.0
    """Time without requests after the registry counted as down, so that one outage does not delay every topic
    in turn. Default 10 s."""
    fetch_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 120.0
    """Longest time for all requests of one topic together before the registry counts as down. Default 2 min.
    Raise it for subjects with many versions."""
    answer_bytes_max: Annotated[Size, Field(ge=2**10, le=2**28)] = 4 * 2**20
    """Largest answer, in bytes. Default 4 MiB. A larger one is an error."""
    versions_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1000
    """Most versions of a subject. Default 1000. Each version is requested once per process, so that all its
    ids are known."""
    references_max: Annotated[StrictInt, Field(ge=0, le=10_000)] = 200
    """Most references of a schema, including those of its references. Default 200."""
    depth_max: Annotated[StrictInt, Field(ge=0, le=100)] = 20
    """Deepest nesting of references. Default 20."""
    schema_bytes_max: Annotated[Size, Field(ge=2**10, le=2**28)] = 16 * 2**20
    """Largest size of a schema with all its references, in bytes. Default 16 MiB."""
    cache_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 5000
    """Most cached answers that never change (the schema of an id, or of a version). Default 5000."""
    cache_bytes_max: Annotated[Size, Field(ge=2**10, le=2**32)] = 64 * 2**20
    """Largest total size of the cached answers, in bytes. Default 64 MiB."""

    @model_validator(mode="after")
    def _protected(self) -> Self:
        problems: Problems = []
        parts = urlsplit(self.url)
        # Plain HTTP without a secret is accepted: only schemas are transferred.
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
            # Certificates without TLS suggest that the operator expects protection.
            if self.tls is not None:
                problems.append(
                    (("tls",), "is given, but url begins with http://; use https:// or remove tls")
                )
        if problems:
            raise Located(problems)
        return self


class CompileSettings(Group):
    """Limits on the compiler of `.proto` texts, both from folders and from the registry. It runs in its own
    process.
    """

    timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """Longest time for one compilation, in wall-clock time and in CPU time. Default 60 s."""
    memory_max: Annotated[Size, Field(ge=128 * 2**20, le=2**40)] = 2 * 2**30
    """Address space of the compiler, in bytes. Default 2 GiB."""
    files_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 5000
    """Most `.proto` files in the folders. Default 5000."""
    bytes_max: Annotated[Size, Field(ge=2**10, le=2**32)] = 64 * 2**20
    """Largest total size of these files, in bytes. Default 64 MiB."""
    output_max: Annotated[Size, Field(ge=2**10, le=2**30)] = 64 * 2**20
    """Largest resulting descriptor set, in bytes. Default 64 MiB."""


class SchemaRegistrySettings(Group):
    """Sources of Protobuf schemas other than descriptor sets (docs/protocols/schema-sources.md)."""

    confluent: ConfluentSettings | None = None
    """A registry with Confluent's protocol. Default: none. Required by topics with a `subject`."""
    when_down: Literal["last_known", "wait"] = "last_known"
    """What a topic with a `subject` does while the registry is unreachable. `last_known`: continue with the
    schema in the ledger; without one it waits. `wait`: wait. Default `last_known`. Other topics continue in
    both cases."""
    refresh: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """Time between two checks by intake for a newer schema of a topic with `validate` or `coerce`. Default 60
    s. A reload checks at once."""
    compile: CompileSettings = CompileSettings()
    """Limits on the compiler of `.proto` texts."""
