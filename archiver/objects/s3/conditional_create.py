"""Conditional create on S3, in one request or in parts.

Owns the rules by which a create ends in exactly one of: stored, taken, not stored, unknown. Every object that
we store has a token in its metadata that was drawn for the call, so that after a lost reply "taken" can be
told from "taken by ourselves" with one look:

- 412 without doubt before it: somebody else's, `KeyExists`. With doubt (an earlier try of this call had no
  answer): ours if the token is.
- 409 (`ConditionalRequestConflict`): another create of the key was under way; this one was not applied. An
  upload in parts is spoilt by it and starts over, as S3 wants it.
- No answer, a reset, 5xx: it may have been stored. Tried again, which is harmless: it is stored at most once.
  If all tries end so, the key is looked at: our token proves success; nothing there proves nothing, since the
  request may be late: `OutcomeUnknown`.
- Only if no try can have been applied it is `RetryLater`.

The parts of an upload change nothing anybody can see, so they are repeated freely; only the completion is
conditional. An upload that came to nothing is aborted, unless its completion is in doubt: then nothing is
touched, and the vacuum takes it when it is old.
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
"""Of one upload (S3)."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be created."""

    key: str
    """As the caller knows it; for messages."""
    bucket: str
    path: str
    """The key in the bucket."""
    size: int
    part: Callable[[int, int], bytes]
    """The bytes from the first number on, so many."""

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
        """The arguments that name it."""
        return {"Bucket": self.bucket, "Key": self.path}


class Creator:
    """Creates objects. Safe to use from several threads."""

    def __init__(self, calls: S3Calls, ids: IdSource, part_bytes: int) -> None:
        self._calls = calls
        self._ids = ids
        self._part_bytes = part_bytes

    def create(self, upload: Upload) -> None:
        """As the Protocol says of `create`."""
        token = self._ids.random_bytes(16).hex()
        if upload.size <= self._part_bytes:
            self._settle(upload, token, self._put(upload, token))
        else:
            self._in_parts(upload, token)

    def create_in_parts(self, upload: Upload) -> None:
        """The same by an upload in parts, however small it is."""
        self._in_parts(upload, self._ids.random_bytes(16).hex())

    def _put(self, upload: Upload, token: str) -> Callable[[Any], object]:
        data = upload.part(0, upload.size)
        arguments = {
            **upload.place,
            "Body": data,
            "ContentMD5": _md5(data),
            "IfNoneMatch": "*",
            "Metadata": {CREATED_BY: token},
        }
        return lambda client: client.put_object(**arguments)

    def _settle(self, upload: Upload, token: str, call: Callable[[Any], object]) -> None:
        """Send the conditional request until its outcome is known, or the tries are over."""
        doubt: S3Failed | None = None
        last: S3Failed | None = None
        for _ in self._calls.tries():
            try:
                self._calls.once(call)
            except S3Failed as error:
                last = error
                if error.verdict is ErrorKind.UNKNOWN:
                    doubt = error
                elif error.verdict is not ErrorKind.NOT_APPLIED:
                    break
            else:
                return
        assert last is not None, "there is at least one try"
        if last.verdict is ErrorKind.TAKEN and doubt is None:
            raise KeyExists(upload.key) from last
        if doubt is not None:
            self._look(upload, token, doubt)
            return
        self._calls.refuse(f"object {upload.key} was not stored", last)
        if last.verdict in AGAIN:
            raise RetryLater(f"object {upload.key} was not stored: {self._calls.given_up(last)}") from last
        raise Halt(f"object {upload.key} was not stored: {last.why}") from last

    def _look(self, upload: Upload, token: str, doubt: S3Failed) -> None:
        """Whose is the object that is there? Returns if it is ours."""
        unknown = f"object {upload.key} may or may not be stored: {self._calls.given_up(doubt)}"
        try:
            mine = self._is_mine(upload, token)
        except ArchiverError as error:
            raise OutcomeUnknown(f"{unknown}; and it cannot be looked at: {error}") from doubt
        if mine is None:
            raise OutcomeUnknown(unknown) from doubt
        if not mine:
            raise KeyExists(upload.key) from doubt

    def _is_mine(self, upload: Upload, token: str) -> bool | None:
        """None if there is no such object."""
        what = f"looking whether object {upload.key} is stored"
        try:
            found = self._calls.repeated(what, lambda client: client.head_object(**upload.place))
        except S3Failed as error:
            if error.verdict is ErrorKind.MISSING:
                return None
            raise OutcomeUnknown(f"{what}: {error.why}") from error
        theirs = found.get("Metadata", {}).get(CREATED_BY)
        if theirs is not None:
            return bool(theirs == token)
        # Something on the way has dropped the metadata: the bytes must tell.
        return bool(found["ContentLength"] == upload.size) and self._holds_the_same(upload, what)

    def _holds_the_same(self, upload: Upload, what: str) -> bool:
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
            upload_id = self._begun(upload, token)
            try:
                parts = self._sent(upload, upload_id)
                self._complete(upload, token, upload_id, parts)
            except OutcomeUnknown:
                raise  # nothing is touched
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
            # Repeated after a lost answer it leaves an upload behind that nobody knows: the vacuum's.
            begun = self._calls.repeated(
                what,
                lambda client: client.create_multipart_upload(**upload.place, Metadata={CREATED_BY: token}),
            )
        except S3Failed as error:
            raise RetryLater(f"{what}: {error.why}") from error
        return str(begun["UploadId"])

    def _sent(self, upload: Upload, upload_id: str) -> list[dict[str, object]]:
        """All parts; what completes them."""
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
                raise _StartOver(error) from error  # somebody has aborted the upload
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
                if error.verdict is ErrorKind.UNKNOWN:
                    doubt = error
                elif error.judged.conflict or error.verdict is not ErrorKind.NOT_APPLIED:
                    break
            else:
                return
        assert last is not None, "there is at least one try"
        if doubt is not None:
            self._look(upload, token, doubt)
            return
        if last.verdict is ErrorKind.TAKEN:
            raise KeyExists(upload.key) from last
        if last.verdict is ErrorKind.NO_UPLOAD or last.judged.conflict:
            raise _StartOver(last) from last
        self._calls.refuse(f"object {upload.key} was not stored", last)
        raise RetryLater(f"object {upload.key} was not stored: {self._calls.given_up(last)}") from last

    def _abort(self, upload: Upload, upload_id: str) -> None:
        """As far as it goes: what is left is the vacuum's."""
        with contextlib.suppress(S3Failed, ArchiverError):
            self._calls.once(lambda client: client.abort_multipart_upload(**upload.place, UploadId=upload_id))


class _StartOver(Exception):
    """The upload is spoilt, and certainly nothing was stored."""

    def __init__(self, failed: S3Failed) -> None:
        super().__init__(failed.why)
        self.failed = failed


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode("ascii")
