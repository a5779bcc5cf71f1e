"""The object store's settings.

Plain values only. The docstring under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import unquote

from pydantic import Field, StrictBool, model_validator

from archiver.config.types import DataUri, Duration, FilePath, Group, Located, Secret, Size, bad_endpoint

# The rules of S3 for new buckets.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
# Possessive, so that a long invalid prefix takes linear time.
_PREFIX = re.compile(r"[A-Za-z0-9._=-]++(?:/[A-Za-z0-9._=-]++)*+", re.ASCII)
_PREFIX_MAX = 512
"""Leaves half of S3's 1,024 key bytes for the rest of the key."""
_REGION = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
# Limits of S3 for the parts of an upload.
_PART_MIN = 5 * 1024 * 1024
_PART_MAX = 5 * 1024**3
# Keys without a meaning for a local folder; an entry there is a mistake.
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
    """Root of all stored objects. A plain path, relative to the configuration file, or `file:///path` is a
    local folder. `s3://bucket/prefix` is a bucket on S3, or on a compatible server with conditional create
    (tested at the start). The prefix may have A-Z a-z 0-9 . _ = - and slashes."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS, `https://host:port`. Default: AWS. For `s3://` only, like all
    keys below."""
    region: str | None = None
    """Region of the bucket. Default: the region of the environment or of the profile; with an `endpoint`,
    `us-east-1`, which servers other than AWS accept."""
    path_style: StrictBool = False
    """Whether the bucket is part of the path instead of the host name. Default `false`. Most servers other
    than AWS need `true`."""
    allow_http: StrictBool = False
    """Whether an `http://` `endpoint` may be on another machine, where others can read and change the data on
    the way. Default `false`. Set it only on a trusted network; addresses of this machine (127.0.0.1, ::1,
    localhost) are always allowed."""
    ca_file: FilePath | None = None
    """PEM file of the authorities that may sign the server's certificate, instead of the system's. Default:
    none. It must have the same path on every machine with Spark executors."""
    access_key_id: Secret | None = None
    """The access key, as `{env: NAME}` or `{file: PATH}`, together with `secret_access_key`. Default: each
    machine uses the standard credential chain (environment, profile, container, instance), which renews
    credentials before they expire. Prefer the chain if Spark runs on other machines: a key set here is sent
    to them in every task."""
    secret_access_key: Secret | None = None
    """The secret key, as `{env: NAME}` or `{file: PATH}`."""
    session_token: Secret | None = None
    """The session token of temporary keys, as `{env: NAME}` or `{file: PATH}`. It is never renewed; the
    credential chain renews its own."""
    connect_timeout: Annotated[Duration, Field(ge=0.1, le=600)] = 10.0
    """Longest time for one connection attempt. Default 10 s: a reachable server accepts within a second, and
    one whose packets are dropped never does."""
    request_timeout: Annotated[Duration, Field(ge=0.1, le=3600)] = 30.0
    """Longest silence of the server during one request before the request is abandoned. Its data may have
    been stored, so the object is inspected before any other step. Default 30 s. Raise it for a slow store."""
    attempts_max: Annotated[int, Field(ge=1, le=50)] = 5
    """Attempts for one request if the server is busy, fails or does not answer. The waits between them grow
    (0.1 s, 0.2 s …, at most 5 s). They have random jitter, so that many writers do not retry at once. Default
    5: bridges a few seconds; the caller (the writer, or the next round) handles longer outages."""
    part_bytes: Annotated[Size, Field(ge=_PART_MIN, le=_PART_MAX)] = 16 * 1024 * 1024
    """Part size of uploads; a larger object is uploaded in parts of this size. Each part is in memory while
    it is sent. S3 allows 5MiB to 5GiB. Default 16 MiB: a lost part is sent again in well under a second.
    Intake files are smaller, and take one request, unless `intake.delay_max_bytes` is raised."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        scheme = self.uri.partition("://")[0]
        # One spelling only, because URIs of objects are stored in table metadata.
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
        # Decoded, because the store opens the decoded path.
        if ".." in unquote(self.uri).split("/"):
            problems.append((("uri",), f"{self.uri[:200]!r} has a '..' in its path; write the folder itself"))
        return problems + [
            ((name,), "belongs to s3://; remove it")
            for name in _OF_S3
            # `False` is the default of the switches, and not distinguishable from a written `false`.
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
        # Checked at the start: botocore would report it only at the first request.
        if self.ca_file is not None and not self.ca_file.is_file():
            problems.append((("ca_file",), f"there is no file {self.ca_file}"))
        if (self.access_key_id is None) != (self.secret_access_key is None):
            missing = "access_key_id" if self.access_key_id is None else "secret_access_key"
            problems.append(
                ((missing,), "access_key_id and secret_access_key belong together; state both, or neither")
            )
        # A session token belongs to one pair of temporary keys.
        elif self.session_token is not None and self.access_key_id is None:
            problems.append(
                (
                    ("session_token",),
                    "belongs to access_key_id and secret_access_key; state all three, or none",
                )
            )
        return problems


def bad_s3_uri(uri: str) -> str | None:
    """The problem with `s3://bucket/prefix`, or None."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if "@" in uri or ":" in bucket:  # the address is not repeated: a password may contain slashes
        return "has a user name before the bucket; credentials belong in access_key_id and secret_access_key"
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        return f"{bucket[:80]!r} is not the name of a bucket: 3 to 63 of a-z 0-9 . -, in s3://bucket/prefix"
    # One trailing slash is a usual spelling.
    prefix = prefix.removesuffix("/")
    if prefix and (
        not _PREFIX.fullmatch(prefix) or len(prefix) > _PREFIX_MAX or {".", ".."} & set(prefix.split("/"))
    ):
        return (
            f"the prefix {prefix[:80]!r} is not usable: at most {_PREFIX_MAX} of A-Z a-z 0-9 . _ = - "
            "in parts separated by single slashes, because table readers misread other characters"
        )
    return None


def _bad_address(endpoint: str, allow_http: bool) -> str | None:
    credentials = "data.access_key_id and data.secret_access_key"
    return bad_endpoint(
        endpoint, allow_http, example="https://s3.example.com:9000", credentials=credentials, path=False
    )
