"""List and abort unfinished multipart uploads. Their parts cost money and appear in no object listing.

The caller decides from which age an upload is stale. Aborting an active upload loses nothing: its owner
starts over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from archiver.objects.s3.calls import S3Calls, S3Failed
from archiver.objects.s3.errors import ErrorKind
from archiver.runtime.errors import Halt


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """One upload that is active or abandoned."""

    path: str
    """The key in the bucket."""
    upload_id: str
    begun_us: int


def open_uploads(calls: S3Calls, bucket: str, prefix: str) -> Iterator[OpenUpload]:
    """All uploads to keys that start with `prefix`, page by page."""
    marker: dict[str, str] = {}
    while True:
        where = {"Bucket": bucket, "Prefix": prefix, **marker}
        page: dict[str, Any] = calls.found(
            f"listing the open uploads of {bucket}",
            f"there is no bucket {bucket}",
            lambda client, where=where: client.list_multipart_uploads(**where),  # type: ignore[misc]
        )
        for one in page.get("Uploads", ()):
            yield OpenUpload(
                str(one["Key"]), str(one["UploadId"]), round(one["Initiated"].timestamp() * 1_000_000)
            )
        if not page.get("IsTruncated"):
            return
        marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}


def abort_upload(calls: S3Calls, bucket: str, found: OpenUpload) -> None:
    """Abort an upload and free its parts; a missing upload is no error."""
    arguments = {"Bucket": bucket, "Key": found.path, "UploadId": found.upload_id}
    try:
        calls.repeated(
            f"aborting an upload of {found.path}", lambda client: client.abort_multipart_upload(**arguments)
        )
    except S3Failed as error:
        if error.kind not in (ErrorKind.NO_UPLOAD, ErrorKind.MISSING):
            raise Halt(f"an upload of {found.path} cannot be aborted: {error.why}") from error
