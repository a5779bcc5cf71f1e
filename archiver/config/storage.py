"""The object store's settings.

Plain values only. The text under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import unquote

from pydantic import Field, StrictBool, model_validator

from archiver.config.types import DataUri, Duration, FilePath, Group, Located, Secret, Size, bad_endpoint

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9._=-]++(?:/[A-Za-z0-9._=-]++)*+", re.ASCII)
_PREFIX_MAX = 512
"""Leaves as much of a key's 1,024 bytes to what lies below."""
_REGION = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
_PART_MIN = 5 * 1024 * 1024
_PART_MAX = 5 * 1024**3
_OF_S3 = (
    "endpoint",
    "region",
    "path_style",
    "allow_http",
    "ca_file",
    "access_key_id",
    "secret_access_key",
    "session_token",
)


class DataSettings(Group):
    """The object store: where intake files, archives and table metadata are kept."""

    uri: DataUri
    """Root of everything that is stored. A plain path is a local folder, relative to the configuration file;
    so is `file:///path`. `s3://bucket/prefix` is a bucket on S3 or on a server that speaks its language and
    keeps its conditional creates (a test at the start tells); the prefix may have A-Z a-z 0-9 . _ = - and
    slashes."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS, `https://host:port`. For `s3://` only, as is all that
    follows."""
    region: str | None = None
    """Region of the bucket. If it is missing, that of the environment or of the profile; with an `endpoint`,
    `us-east-1`, which servers other than AWS take."""
    path_style: StrictBool = False
    """Whether the bucket stands in the path instead of the host name. Most servers other than AWS need it."""
    allow_http: StrictBool = False
    """Whether an `endpoint` with `http://` may be another machine: what is stored could then be read and
    changed on the way. On this machine (127.0.0.1, ::1, localhost) it needs no leave."""
    ca_file: FilePath | None = None
    """PEM file of the authorities that may vouch for the server's certificate, in place of the system's. It
    must be at the same path on every machine that runs Spark executors."""
    access_key_id: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`. With `secret_access_key`, or neither: then the usual chain is asked
    (environment, profile, container, instance), on each machine for itself, and renewed before it expires.
    Prefer that with Spark on other machines: a key that stands here travels to them inside of every task."""
    secret_access_key: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`."""
    session_token: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`, for temporary keys. Nobody renews it: the usual chain does that."""
    connect_timeout: Annotated[Duration, Field(ge=0.1, le=600)] = 10.0
    """How long one try to connect may take. A server that can be reached answers within a second; one whose
    packets are lost on the way never does."""
    request_timeout: Annotated[Duration, Field(ge=0.1, le=3600)] = 30.0
    """How long the server may be silent during one request before it is given up. What was sent may have been
    stored then, so it is looked at before anything else is done."""
    attempts_max: Annotated[int, Field(ge=1, le=50)] = 5
    """How often one request is tried in all when the server is busy, fails or does not answer, with
    growing waits between (0.1 s, 0.2 s …, at most 5 s, shortened at random so that many writers do not
    come back at once). Five tries bridge a few seconds; longer trouble is for those who asked: the writer,
    the next round."""
    part_bytes: Annotated[Size, Field(ge=_PART_MIN, le=_PART_MAX)] = 16 * 1024 * 1024
    """A larger object is uploaded in parts of this size, each of which is in memory while it is sent; 5MiB to
    5GiB, as S3 has it. Intake files are smaller unless `intake.delay_max_bytes` was raised, so that they take
    one request; a part of 16 MiB repeats in well under a second when it was lost."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        scheme = self.uri.partition("://")[0]
        if scheme in ("s3a", "s3n"):
            raise Located([(("uri",), f"{scheme}:// is Hadoop's spelling; write s3://")])
        if scheme not in ("s3", "file"):
            raise Located(
                [
                    (
                        ("uri",),
                        f"there is no object store for {scheme}://; use file:///path or s3://bucket/prefix",
                    )
                ]
            )
        problems = self._problems_of_s3() if scheme == "s3" else self._problems_of_file()
        if problems:
            raise Located(problems)
        return self

    def _problems_of_file(self) -> list[tuple[tuple[str | int, ...], str]]:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        if ".." in unquote(self.uri).split("/"):
            problems.append((("uri",), f"{self.uri[:200]!r} has a '..' in its path; write the folder itself"))
        return problems + [
            ((name,), "belongs to s3://; remove it")
            for name in _OF_S3
            if getattr(self, name) not in (None, False)
        ]

    def _problems_of_s3(self) -> list[tuple[tuple[str | int, ...], str]]:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        if (why := bad_s3_uri(self.uri)) is not None:
            problems.append((("uri",), why))
        if self.endpoint is not None and (why := _bad_address(self.endpoint, self.allow_http)) is not None:
            problems.append((("endpoint",), why))
        if self.region is not None and not _REGION.fullmatch(self.region):
            problems.append(
                (("region",), f"{self.region[:80]!r} is not the name of a region, such as eu-central-1")
            )
        if self.ca_file is not None and not self.ca_file.is_file():
            problems.append((("ca_file",), f"there is no file {self.ca_file}"))
        if (self.access_key_id is None) != (self.secret_access_key is None):
            missing = "access_key_id" if self.access_key_id is None else "secret_access_key"
            problems.append(
                ((missing,), "access_key_id and secret_access_key belong together; state both, or neither")
            )
        elif self.session_token is not None and self.access_key_id is None:
            problems.append(
                (
                    ("session_token",),
                    "belongs to access_key_id and secret_access_key; state all three, or none",
                )
            )
        return problems


def bad_s3_uri(uri: str) -> str | None:
    """What is wrong with `s3://bucket/prefix`; None if nothing is."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if "@" in uri or ":" in bucket:  # a password may have slashes; it is not repeated
        return (
            "has a user name before the bucket; credentials belong into access_key_id and secret_access_key"
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        return f"{bucket[:80]!r} is not the name of a bucket: 3 to 63 of a-z 0-9 . -, in s3://bucket/prefix"
    prefix = prefix.removesuffix("/")
    if prefix and (
        not _PREFIX.fullmatch(prefix) or len(prefix) > _PREFIX_MAX or {".", ".."} & set(prefix.split("/"))
    ):
        return (
            f"the prefix {prefix[:80]!r} is not usable: at most {_PREFIX_MAX} of A-Z a-z 0-9 . _ = - "
            "in parts separated by single "
            "slashes, because table readers take other characters for something else"
        )
    return None


def _bad_address(endpoint: str, allow_http: bool) -> str | None:
    credentials = "data.access_key_id and data.secret_access_key"
    return bad_endpoint(
        endpoint, allow_http, example="https://s3.example.com:9000", credentials=credentials, path=False
    )
