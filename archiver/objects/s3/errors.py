"""Classify errors of botocore; S3's error codes appear only here.

The main question is whether the request can have been applied. It cannot if it was never sent (no connection,
no name, no credentials), or if the server refused it with 4xx. It can if the reply was lost (timeout, reset)
or if anything replied 5xx. A gateway sends 502 and 504, and often 503, for requests that the server executed.
The exception is a 5xx with a throttling code (`SlowDown` and the like), which servers send before they
process a request. A 503 with another code may come from a gateway.
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
"""All errors of a call: `ValueError` for an unusable endpoint; the last four also while a body is read."""


class ErrorKind(enum.Enum):
    """Outcome of one failed request."""

    TAKEN = "there is an object of that key"
    MISSING = "there is no object of that key"
    NO_UPLOAD = "there is no such multipart upload"
    NO_RANGE = "the object ends before that range"
    NOT_APPLIED = "not applied, another attempt may succeed"
    UNKNOWN = "the request may have been applied"
    REFUSED = "not applied, and an operator must act"
    MISCONFIGURED = "not applied, and the configuration must change"


@dataclass(frozen=True, slots=True)
class S3Error:
    """The kind of an error, and its text for messages."""

    kind: ErrorKind
    why: str
    conflict: bool = False
    """Another request for the same key was running: a multipart upload must start over (S3)."""


# Servers decide to throttle before they process a request, so it was not applied.
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
"""The server discarded the request; for the last two, another request for the same key was running."""
# Codes of wrong credentials.
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
# No connection was made, or no credentials were found, so no request was sent.
_NOT_SENT: Final = (
    EndpointConnectionError,
    ConnectTimeoutError,
    ProxyConnectionError,
    CredentialRetrievalError,
    MetadataRetrievalError,
)
# Errors that botocore raises before it sends anything; a retry cannot help.
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


def classify(error: Exception) -> S3Error:
    """Classify one of `SDK_ERRORS`."""
    if isinstance(error, ClientError):
        return _classify_reply(error)
    said = _text(error)
    if isinstance(error, _NOT_SENT):
        return S3Error(ErrorKind.NOT_APPLIED, said)
    if isinstance(error, NoCredentialsError):
        return S3Error(
            ErrorKind.MISCONFIGURED,
            "there are no credentials: set data.access_key_id and data.secret_access_key, or give "
            "this machine environment variables, a profile or "
            "a role",
        )
    # Plain `ValueError` means an invalid endpoint. The three classes in the exception derive from it in
    # part.
    if isinstance(error, _WRONG) or (
        isinstance(error, ValueError) and not isinstance(error, OSError | HTTPError | BotoCoreError)
    ):
        return S3Error(ErrorKind.MISCONFIGURED, said)
    # Other TLS errors, such as a closed connection, may occur after the request was sent.
    if isinstance(error, SSLError) and "CERTIFICATE" in str(error).upper():
        return S3Error(
            ErrorKind.MISCONFIGURED,
            f"the server's certificate is not trusted; set data.ca_file to its CA certificates ({said})",
        )
    # The default: an error that is not known to be harmless may hide an applied request.
    return S3Error(ErrorKind.UNKNOWN, said)


def _classify_reply(error: ClientError) -> S3Error:
    """Classify an error reply of the server or of a proxy."""
    # A proxy may reply without S3's error document.
    document = error.response.get("Error", {})
    code, text = str(document.get("Code", "")), str(document.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = f"{status} {code}: {text}" if text else f"{status} {code}"
    # Before the codes, which differ between servers for these two.
    by_status = {412: ErrorKind.TAKEN, 416: ErrorKind.NO_RANGE}.get(status)
    if by_status is not None:
        return S3Error(by_status, said)
    # Before the 5xx below: `SlowDown` has status 503.
    if code in _THROTTLED or status == 429:
        return S3Error(ErrorKind.NOT_APPLIED, f"the server asks for fewer requests ({said})")
    # A gateway sends 5xx for requests that the server executed. Below 300, S3 may report an error in the
    # body of a completion.
    if status >= 500 or status < 300:
        return S3Error(ErrorKind.UNKNOWN, said)
    if code in _AGAIN or status in (408, 409):
        return S3Error(ErrorKind.NOT_APPLIED, said, conflict=status == 409)
    if code == "NoSuchUpload":
        return S3Error(ErrorKind.NO_UPLOAD, said)
    if code == "NoSuchBucket":
        return S3Error(
            ErrorKind.MISCONFIGURED,
            f"there is no such bucket; create it, or correct data.uri or data.endpoint ({said})",
        )
    if status == 404:
        return S3Error(ErrorKind.MISSING, said)
    return _classify_refusal(status, code, said)


def _classify_refusal(status: int, code: str, said: str) -> S3Error:
    # Not applied and not final: credentials are renewed while the process runs.
    if code in _EXPIRED:
        return S3Error(
            ErrorKind.NOT_APPLIED,
            f"the credentials have expired; renew them, or use the default credential chain ({said})",
        )
    if code == "RequestTimeTooSkewed":
        return S3Error(
            ErrorKind.NOT_APPLIED, f"this machine's clock and the server's differ; set the clock ({said})"
        )
    if code in _KEYS:
        return S3Error(
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
        return S3Error(
            ErrorKind.MISCONFIGURED, f"the bucket is in another region; correct data.region ({said})"
        )
    if status in (401, 403):
        return S3Error(
            ErrorKind.REFUSED,
            "access is denied; grant these credentials the permissions of docs/operations/s3.md, on the "
            f"bucket and all keys below the prefix ({said})",
        )
    return S3Error(ErrorKind.REFUSED, f"the server refuses the request ({said})")


def _text(error: Exception) -> str:
    return excerpt(f"{type(error).__name__}: {error}", 500)
