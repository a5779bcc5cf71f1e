"""Where a run's tables are: the catalog that knows them, and the store that has their files, each asked in
its own language.

On a machine: the catalog's SQLite file, and a folder. Elsewhere: the catalog's HTTP, and a bucket by a plain
S3 client. Neither the product's code nor an Iceberg library is used.
"""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

HTTP_TIMEOUT_S = 60.0


class Unreadable(Exception):
    """A table is not what its own metadata says, or a file of it cannot be had; the text says which."""


class Tables(Protocol):
    """The tables of one deployment."""

    def metadata_location(self, identifier: str) -> str | None:
        """Where the current metadata of `namespace.name` are; None if there is no such table."""

    def opened(self, location: str) -> BinaryIO:
        """A file of a table, to be read anywhere. Raises `OSError` or `Unreadable`."""


@dataclass(frozen=True)
class LocalTables:
    """Tables in folders, known to a catalog in a SQLite file."""

    catalog: Path

    def metadata_location(self, identifier: str) -> str | None:
        if not self.catalog.exists():
            return None
        namespace, _, name = identifier.rpartition(".")
        with contextlib.closing(
            sqlite3.connect(f"file:{self.catalog}?mode=ro", uri=True, timeout=60)
        ) as connection:
            try:
                found = connection.execute(
                    "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND "
                    "table_name = ?",
                    (namespace, name),
                ).fetchone()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return None
                raise
        return None if found is None else str(found[0])

    def opened(self, location: str) -> BinaryIO:
        return Path(unquote(urlsplit(location).path)).open("rb")


@dataclass(frozen=True)
class Bucket:
    """How a bucket is reached."""

    name: str
    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str = field(repr=False)

    def client(self) -> Any:
        """A plain client of it."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )


@dataclass(frozen=True)
class BucketTables:
    """Tables in a bucket, known to a REST catalog."""

    catalog: str
    """Its address."""
    bucket: Bucket

    def metadata_location(self, identifier: str) -> str | None:
        namespace, _, name = identifier.rpartition(".")
        try:
            with urllib.request.urlopen(
                f"{self.catalog}/v1/namespaces/{namespace}/tables/{name}", timeout=HTTP_TIMEOUT_S
            ) as answer:
                return str(json.load(answer)["metadata-location"])
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def opened(self, location: str) -> BinaryIO:
        from botocore.exceptions import BotoCoreError, ClientError

        parts = urlsplit(location)
        if (parts.scheme, parts.netloc) != ("s3", self.bucket.name):
            raise Unreadable(f"{location} is not in bucket {self.bucket.name}")
        with contextlib.closing(self.bucket.client()) as client:
            try:
                answer = client.get_object(Bucket=self.bucket.name, Key=parts.path.removeprefix("/"))
                return io.BytesIO(answer["Body"].read())
            except (BotoCoreError, ClientError) as error:
                raise Unreadable(f"{location} cannot be read: {error}") from error
