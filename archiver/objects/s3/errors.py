"""What an error of botocore means: the one place that knows S3's error codes.

Owns the question that everything else depends on: can the request have been applied? It cannot if it never
left (no connection, no name, no credentials), or if the server itself said no, which a status of 4xx does. It
can if the answer was lost (time-out, reset) or if anything on the way said 5xx: a gateway says 502 and 504,
and often 503, for requests that the server has carried out. One 5xx is a no: throttling by its name
(`SlowDown` and the like), which servers decide before they look at the request. A 503 of another name may be
a gateway's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    InvalidConfigError,
    InvalidEndpointConfigurationError,
    InvalidRegionError,
    MetadataRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from archiver.runtime.redaction import excerpt

SDK_ERRORS: Final = (BotoCoreError, ClientError, ResponseParserError, HTTPError, OSError, ValueError)
"""Everything that a call may raise: `ValueError` for an endpoint it cannot use, the last four also while a
body is read."""


class ErrorKind(enum.Enum):
    """What became of one request."""

    TAKEN = "there is an object of that key"
    MISSING = "there is no object of that key"
    NO_UPLOAD = "there is no such multipart upload"
    NO_RANGE = "the object ends before that range"
    NOT_APPLIED = "nothing happened, another try may succeed"
    UNKNOWN = "nobody can tell whether it happened"
    REFUSED = "nothing happened, and never will until somebody acts"
    MISCONFIGURED = "nothing happened, and never will with this configuration"


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict, and the sentence for people."""

    verdict: ErrorKind
    why: str
    conflict: bool = False
    """Another request for the same key was under way: an upload in parts starts over (S3)."""


_THROTTLED: Final = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
_AGAIN: Final = frozenset(
    {"RequestTimeout", "BadDigest", "IncompleteBody", "OperationAborted", "ConditionalRequestConflict"}
)
"""The server has thrown away what came; the two last ones: another request for the same key was under way."""
_KEYS: Final = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AuthorizationHeaderMalformed",
        "InvalidToken",
        "UnrecognizedClientException",
    }
)
_EXPIRED: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
)
_NOT_SENT: Final = (
    EndpointConnectionError,
    ConnectTimeoutError,
    ProxyConnectionError,
    CredentialRetrievalError,
    MetadataRetrievalError,
)
_WRONG: Final = (
    *(
        InvalidConfigError,
        InvalidEndpointConfigurationError,
        InvalidRegionError,
        NoRegionError,
        PartialCredentialsError,
    ),
    *(ParamValidationError, ProfileNotFound),
)


def judged(error: Exception) -> Judged:
    """What one of `SDK_ERRORS` means."""
    if isinstance(error, ClientError):
        return _answered(error)
    said = _text(error)
    if isinstance(error, _NOT_SENT):
        return Judged(ErrorKind.NOT_APPLIED, said)
    if isinstance(error, NoCredentialsError):
        return Judged(
            ErrorKind.MISCONFIGURED,
            "there are no credentials: state data.access_key_id and data.secret_access_key, or give "
            "this machine variables, a profile or "
            "a role",
        )
    if isinstance(error, _WRONG) or (
        isinstance(error, ValueError) and not isinstance(error, OSError | HTTPError | BotoCoreError)
    ):
        return Judged(ErrorKind.MISCONFIGURED, said)
    if isinstance(error, SSLError) and "CERTIFICATE" in str(error).upper():
        return Judged(
            ErrorKind.MISCONFIGURED,
            f"the server's certificate is not trusted; name its authorities in data.ca_file ({said})",
        )
    return Judged(ErrorKind.UNKNOWN, said)


def _answered(error: ClientError) -> Judged:
    """The server, or something before it, has answered with an error."""
    document = error.response.get("Error", {})
    code, text = str(document.get("Code", "")), str(document.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = f"{status} {code}: {text}" if text else f"{status} {code}"
    by_status = {412: ErrorKind.TAKEN, 416: ErrorKind.NO_RANGE}.get(status)
    if by_status is not None:
        return Judged(by_status, said)
    if code in _THROTTLED or status == 429:
        return Judged(ErrorKind.NOT_APPLIED, f"the server asks for fewer requests ({said})")
    if status >= 500 or status < 300:
        return Judged(ErrorKind.UNKNOWN, said)
    if code in _AGAIN or status in (408, 409):
        return Judged(ErrorKind.NOT_APPLIED, said, conflict=status == 409)
    if code == "NoSuchUpload":
        return Judged(ErrorKind.NO_UPLOAD, said)
    if code == "NoSuchBucket":
        return Judged(
            ErrorKind.MISCONFIGURED,
            f"there is no such bucket; create it, or correct data.uri or data.endpoint ({said})",
        )
    if status == 404:
        return Judged(ErrorKind.MISSING, said)
    return _no(status, code, said)


def _no(status: int, code: str, said: str) -> Judged:
    if code in _EXPIRED:
        return Judged(
            ErrorKind.NOT_APPLIED,
            f"the credentials have expired; renew them, or leave that to the usual chain ({said})",
        )
    if code == "RequestTimeTooSkewed":
        return Judged(
            ErrorKind.NOT_APPLIED, f"this machine's clock and the server's differ; set the clock ({said})"
        )
    if code in _KEYS:
        return Judged(
            ErrorKind.MISCONFIGURED,
            f"the server does not know these credentials; correct them, or data.region ({said})",
        )
    if status in (301, 307, 400) and code in (
        "301",
        "307",
        "PermanentRedirect",
        "TemporaryRedirect",
        "IllegalLocationConstraintException",
    ):
        return Judged(
            ErrorKind.MISCONFIGURED, f"the bucket is in another region; correct data.region ({said})"
        )
    if status in (401, 403):
        return Judged(
            ErrorKind.REFUSED,
            "access is denied; allow these credentials what docs/operations/s3.md lists, on the "
            f"bucket and all below the prefix ({said})",
        )
    return Judged(ErrorKind.REFUSED, f"the server refuses the request ({said})")


def _text(error: Exception) -> str:
    return excerpt(f"{type(error).__name__}: {error}", 500)
