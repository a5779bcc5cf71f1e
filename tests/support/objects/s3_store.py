"""The S3 server as a fixture, and stores on it."""

from __future__ import annotations

from dataclasses import replace

from archiver.objects.location import S3Options, StorePlace
from archiver.objects.s3.store import S3ObjectStore
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server

PART_BYTES = 5 * 1024 * 1024


def options(endpoint: str, **changed: object) -> S3Options:
    """How that server, or a proxy before it, is talked to; short waits."""
    plain = S3Options(
        endpoint=endpoint,
        region=REGION,
        path_style=True,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        connect_timeout_s=5.0,
        request_timeout_s=20.0,
        attempts_max=3,
        part_bytes=PART_BYTES,
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def place(
    server: S3Server, prefix: str = "pre/fix", endpoint: str | None = None, **changed: object
) -> StorePlace:
    """A new bucket."""
    return StorePlace(f"s3://{server.new_bucket()}/{prefix}", options(endpoint or server.uri, **changed))


def new_store(server: S3Server, **changed: object) -> S3ObjectStore:
    """A store on a new bucket."""
    return S3ObjectStore(place(server, **changed))  # type: ignore[arg-type]
