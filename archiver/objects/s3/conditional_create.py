"""Conditional create on S3, in one request or in parts.

Every create ends as exactly one of: stored, taken, not stored, unknown. Each object has a random token of its
create call in its metadata. After a lost reply, one HEAD request therefore separates "taken by another
create" from "stored by this one":

- 412 as the first reply: another create was first, `KeyExists`. 412 after an attempt without reply: the token
  decides.
- 409 (`ConditionalRequestConflict`): another create of the key was running, and this one was not applied. It
  invalidates a multipart upload, which starts over as S3 requires.
- No reply, a reset, 5xx: it may have been stored. The request is repeated, which is harmless, because it is
  stored at most once. If all attempts end so, a HEAD request follows. Our token proves success. A missing
  object proves nothing, since the request may arrive late: `OutcomeUnknown`.
- `RetryLater` is raised only if no attempt can have been applied.

The parts of an upload are invisible, so they are repeated freely; only the completion is conditional. A
failed upload is aborted, unless the outcome of its completion is unknown. Then it is left for the vacuum.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from archiver.objects.s3.calls import AGAIN, S3Calls, S3Failed
from archiver.objects.s3.errors import ErrorKind
from archiver.runtime.errors import ArchiverError, Halt, KeyExists, OutcomeUnknown, RetryLater
from archiver.runtime.ids import IdSource

CREATED_BY: Final = "archiver-create"
"""The metadata key that holds the token: `x-amz-meta-archiver-create`."""
PARTS_MAX: Final = 10_000
"""Limit of S3 for one upload."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An object to create."""

    key: str
    """The key without the store's prefix; for messages."""
    bucket: str
    path: str
    """The key in the bucket."""
    size: int
    part: Callable[[int, int], bytes]
    """Returns the bytes for (start, length)."""

    @classmethod
    def of_bytes(cls, key: str, bucket: str, path: str, data: bytes) -> Upload:
        """From memory."""
        return cls(key, bucket, path, len(data), lambda start, length: data[start : start + length])

    @classmethod
    def of_file(cls, key: str, bucket: str, path: str, file: Path) -> Upload:
        """From a closed file; raises `FileNotFoundError`."""

        def part(start: int, length: int) -> bytes:
            with file.open("rb") as opened:
                opened.seek(start)
                return opened.read(length)

        return cls(key, bucket, path, file.stat().st_size, part)

    @property
    def place(self) -> dict[str, str]:
        """The request arguments that name the object."""
        return {"Bucket": self.bucket, "Key": self.path}


class Creator:
    """Creates objects. Safe to use from several threads."""

    def __init__(self, calls: S3Calls, ids: IdSource, part_bytes: int) -> None:
        self._calls = calls
        self._ids = ids
        self._part_bytes = part_bytes

    def create(self, upload: Upload) -> None:
        """See `ObjectStore.create`."""
        # One token per call and not per attempt: a later attempt finds the object of an earlier one.
        token = self._ids.random_bytes(16).hex()
        if upload.size <= self._part_bytes:
            self._send_until_known(upload, token, self._put(upload, token))
        else:
            self._in_parts(upload, token)

    def create_in_parts(self, upload: Upload) -> None:
        """As `create`, by a multipart upload for data of any size."""
        self._in_parts(upload, self._ids.random_bytes(16).hex())

    def _put(self, upload: Upload, token: str) -> Callable[[Any], object]:
        # Read once, so that every attempt sends the same bytes.
        data = upload.part(0, upload.size)
        arguments = {
            **upload.place,
            "Body": data,
            # The server refuses a body that was damaged on the way, and then stores nothing.
            "ContentMD5": _md5(data),
            "IfNoneMatch": "*",
            "Metadata": {CREATED_BY: token},
        }
        return lambda client: client.put_object(**arguments)

    def _send_until_known(self, upload: Upload, token: str, call: Callable[[Any], object]) -> None:
        """Repeat the conditional request until its outcome is known or no attempt is left."""
        doubt: S3Failed | None = None
        last: S3Failed | None = None
        for _ in self._calls.tries():
            try:
                self._calls.once(call)
            except S3Failed as error:
                last = error
                if error.kind is ErrorKind.UNKNOWN:
                    doubt = error
                # Any other reply is final. Only "not applied" and "unknown" are worth another attempt.
                elif error.kind is not ErrorKind.NOT_APPLIED:
                    break
            else:
                return
        assert last is not None, "there is at least one try"
        # No attempt is in doubt, so the existing object cannot be ours.
        if last.kind is ErrorKind.TAKEN and doubt is None:
            raise KeyExists(upload.key) from last
        # Also if the last attempt certainly failed: an earlier one may have been applied.
        if doubt is not None:
            self._resolve(upload, token, doubt)
            return
        self._calls.refuse(f"object {upload.key} was not stored", last)
        if last.kind in AGAIN:
            raise RetryLater(f"object {upload.key} was not stored: {self._calls.given_up(last)}") from last
        raise Halt(f"object {upload.key} was not stored: {last.why}") from last

    def _resolve(self, upload: Upload, token: str, doubt: S3Failed) -> None:
        """Find out which create stored the existing object. Returns if it was this one."""
        unknown = f"object {upload.key} may or may not be stored: {self._calls.given_up(doubt)}"
        try:
            mine = self._is_mine(upload, token)
        except ArchiverError as error:
            raise OutcomeUnknown(f"{unknown}; and it cannot be read: {error}") from doubt
        # A missing object proves nothing: the request in doubt may still arrive.
        if mine is None:
            raise OutcomeUnknown(unknown) from doubt
        if not mine:
            raise KeyExists(upload.key) from doubt

    def _is_mine(self, upload: Upload, token: str) -> bool | None:
        """Whether this create stored the object; None if it does not exist."""
        what = f"checking whether object {upload.key} is stored"
        try:
            found = self._calls.repeated(what, lambda client: client.head_object(**upload.place))
        except S3Failed as error:
            if error.kind is ErrorKind.MISSING:
                return None
            raise OutcomeUnknown(f"{what}: {error.why}") from error
        # Not a comparison of bytes: another create may store the same content, and both would count as the
        # first.
        stored_token = found.get("Metadata", {}).get(CREATED_BY)
        if stored_token is not None:
            return bool(stored_token == token)
        # A proxy or the server dropped the metadata: compare the bytes.
        return bool(found["ContentLength"] == upload.size) and self._has_same_bytes(upload, what)

    def _has_same_bytes(self, upload: Upload, what: str) -> bool:
        # In parts, so that two large objects are never in memory.
        for start in range(0, upload.size, self._part_bytes):
            length = min(self._part_bytes, upload.size - start)
            where = {**upload.place, "Range": f"bytes={start}-{start + length - 1}"}
            try:
                data = self._calls.repeated(
                    what,
                    lambda client, where=where: client.get_object(**where)["Body"].read(),  # type: ignore[misc]
                )
            except S3Failed as error:
                raise OutcomeUnknown(f"{what}: {error.why}") from error
            if data != upload.part(start, length):
                return False
        return True

    # in parts

    def _in_parts(self, upload: Upload, token: str) -> None:
        last: S3Failed | None = None
        for _ in self._calls.tries():
            # A new upload for each attempt: a conflict has made the old one invalid.
            upload_id = self._begun(upload, token)
            try:
                parts = self._sent(upload, upload_id)
                self._complete(upload, token, upload_id, parts)
            except OutcomeUnknown:
                raise  # the completion may still be applied, so the upload is not aborted
            except _StartOver as error:
                self._abort(upload, upload_id)
                last = error.failed
            except BaseException:
                self._abort(upload, upload_id)
                raise
            else:
                return
        assert last is not None, "there is at least one try"
        raise RetryLater(f"object {upload.key} was not stored: {self._calls.given_up(last)}") from last

    def _begun(self, upload: Upload, token: str) -> str:
        what = f"object {upload.key} was not stored"
        try:
            # Repeated after a lost reply, it leaves an unreferenced upload, which the vacuum aborts.
            begun = self._calls.repeated(
                what,
                lambda client: client.create_multipart_upload(**upload.place, Metadata={CREATED_BY: token}),
            )
        except S3Failed as error:
            # No object exists before the completion, so nothing was stored.
            raise RetryLater(f"{what}: {error.why}") from error
        return str(begun["UploadId"])

    def _sent(self, upload: Upload, upload_id: str) -> list[dict[str, object]]:
        """Send all parts. Returns the list for the completion."""
        # A part at the configured size, or larger if 10,000 such parts do not suffice. Rounded up.
        length = max(self._part_bytes, -(-upload.size // PARTS_MAX))
        what = f"object {upload.key} was not stored"
        parts: list[dict[str, object]] = []
        for number, start in enumerate(range(0, upload.size, length), start=1):
            data = upload.part(start, length)
            arguments = {
                **upload.place,
                "UploadId": upload_id,
                "PartNumber": number,
                "Body": data,
                "ContentMD5": _md5(data),
            }
            try:
                sent = self._calls.repeated(
                    what,
                    lambda client, arguments=arguments: client.upload_part(**arguments),  # type: ignore[misc]
                )
            except S3Failed as error:
                raise _StartOver(error) from error  # the upload was aborted elsewhere
            # The completion must name each part with the tag that the server gave it.
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        return parts

    def _complete(self, upload: Upload, token: str, upload_id: str, parts: list[dict[str, object]]) -> None:
        doubt: S3Failed | None = None
        last: S3Failed | None = None
        arguments = {
            **upload.place,
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": parts},
            "IfNoneMatch": "*",
        }
        for _ in self._calls.tries():
            try:
                self._calls.once(lambda client: client.complete_multipart_upload(**arguments))
            except S3Failed as error:
                last = error
                if error.kind is ErrorKind.UNKNOWN:
                    doubt = error
                # A conflict invalidates the upload, so a second completion cannot succeed.
                elif error.error.conflict or error.kind is not ErrorKind.NOT_APPLIED:
                    break
            else:
                return
        assert last is not None, "there is at least one try"
        # A completion in doubt comes first: a repetition of one that succeeded is answered "no such
        # upload".
        if doubt is not None:
            self._resolve(upload, token, doubt)
            return
        if last.kind is ErrorKind.TAKEN:
            raise KeyExists(upload.key) from last
        if last.kind is ErrorKind.NO_UPLOAD or last.error.conflict:
            raise _StartOver(last) from last
        self._calls.refuse(f"object {upload.key} was not stored", last)
        raise RetryLater(f"object {upload.key} was not stored: {self._calls.given_up(last)}") from last

    def _abort(self, upload: Upload, upload_id: str) -> None:
        """Abort once without error; the vacuum aborts what remains."""
        # The error that caused the abort is more important than a failure of the abort.
        with contextlib.suppress(S3Failed, ArchiverError):
            self._calls.once(lambda client: client.abort_multipart_upload(**upload.place, UploadId=upload_id))


class _StartOver(Exception):
    """The upload is invalid, and certainly nothing was stored."""

    def __init__(self, failed: S3Failed) -> None:
        super().__init__(failed.why)
        self.failed = failed


def _md5(data: bytes) -> str:
    # S3's header has MD5. It protects against damage only, so its weakness is irrelevant.
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode("ascii")
