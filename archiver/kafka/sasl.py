"""Server side of SASL PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677), without sockets.

Names and passwords are compared as the bytes that clients send. Kafka's Java client, librdkafka, kafka-python
and aiokafka do not apply SASLprep either. It changes no ASCII text.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from archiver.runtime.errors import AuthenticationFailed, InvalidInput
from archiver.runtime.ids import IdSource

PLAIN: Final = "PLAIN"
SCRAM_HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each SCRAM mechanism, as `hashlib` names it."""
# One of the two is enough, because every user has credentials for both.
_PLAIN_VERIFIED_BY: Final = "SCRAM-SHA-256"

ITERATIONS_MIN: Final = 4096
"""Fewest iterations. RFC 7677 recommends no fewer, and Kafka's Java client refuses fewer."""
ITERATIONS_MAX: Final = 1_000_000
"""Most iterations: kafka-python refuses more, and one attempt with PLAIN costs as many."""
ITERATIONS: Final = 15_000
"""Iterations of new credentials. RFC 7677 names this number as a tenth of a second of a slow machine."""
SALT_BYTES: Final = 16
"""Length of the salt of new credentials."""

MESSAGE_BYTES_MAX: Final = 8192
"""Longest message of a client."""
NAME_BYTES_MAX: Final = 255
"""Longest user name, in UTF-8."""
NONCE_MAX: Final = 512
"""Longest nonce of a client, in characters."""
# 144 bits, and a multiple of three bytes, so that base64 needs no padding.
_NONCE_BYTES: Final = 18
_DECOY_SHAPES_MAX: Final = 16
# `m` demands an extension, and the other letters belong elsewhere. `tokenauth` marks the name as that of a
# delegation token of Kafka, which is no user.
_REFUSED_EXTENSIONS: Final = frozenset((*"aceimnprsv", "tokenauth"))


@dataclass(frozen=True, slots=True, repr=False)
class ScramCredentials:
    """Stored form of a password for one mechanism. It has no `repr`: with it, passwords can be guessed."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def derive_credentials(mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramCredentials:
    """Credentials of a password for a SCRAM mechanism. Slow: PBKDF2 takes 0.4 µs (SHA-256) or 0.7 µs
    (SHA-512) for each iteration.
    """
    name = SCRAM_HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredentials(
        iterations,
        salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


class Users:
    """Immutable set of users with their credentials; also answers for names that are no users.

    `credentials` has an entry for each mechanism in `SCRAM_HASHES`, by name of the user. `decoy_key` is a
    secret. With the same key, every daemon gives an unknown user the same salt at each attempt.
    """

    def __init__(self, credentials: Mapping[str, Mapping[str, ScramCredentials]], decoy_key: bytes) -> None:
        self._credentials = dict(credentials)
        self._decoy_key = decoy_key
        # A decoy with a length or number that no user has would show that the user is unknown.
        self._shapes = {
            mechanism: sorted(
                {(found[mechanism].iterations, len(found[mechanism].salt)) for found in credentials.values()}
            )[:_DECOY_SHAPES_MAX]
            or [(ITERATIONS, SALT_BYTES)]
            for mechanism in SCRAM_HASHES
        }

    @property
    def names(self) -> list[str]:
        """Names of all users, sorted."""
        return sorted(self._credentials)

    def find(self, name: str, mechanism: str) -> tuple[ScramCredentials, bool]:
        """Credentials of a user, and True; for an unknown user, credentials that look real, and False."""
        # Computed for known users too, so that both take the same time.
        decoy = self._decoy(name, mechanism)
        found = self._credentials.get(name)
        return (decoy, False) if found is None else (found[mechanism], True)

    def _decoy(self, name: str, mechanism: str) -> ScramCredentials:
        def derived(purpose: str) -> bytes:
            text = f"{purpose}\0{mechanism}\0{name}"
            return hmac.digest(self._decoy_key, text.encode(), "sha512")

        iterations, salt_bytes = max(self._shapes[mechanism], key=lambda shape: derived(f"shape {shape}"))
        size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
        return ScramCredentials(
            iterations,
            derived("salt")[:salt_bytes],
            stored_key=derived("stored key")[:size],
            server_key=derived("server key")[:size],
        )


class _Phase(enum.Enum):
    FIRST = enum.auto()
    FINAL = enum.auto()
    ENDED = enum.auto()


class SaslExchange:
    """One authentication of one client, for one mechanism. Give it each message of the client in turn.

    With PLAIN, `step` is slow (milliseconds, see `derive_credentials`): call it in a thread. With SCRAM it
    takes microseconds, because the client does the work. Raises `InvalidInput` for an unknown mechanism.
    """

    def __init__(self, mechanism: str, users: Users, random: IdSource) -> None:
        if mechanism != PLAIN and mechanism not in SCRAM_HASHES:
            known = ", ".join((PLAIN, *SCRAM_HASHES))
            raise InvalidInput(f"the SASL mechanism {mechanism[:40]!r} is not supported; use one of {known}")
        self._mechanism = mechanism
        self._users = users
        self._random = random
        self._phase = _Phase.FIRST
        self._name: str | None = None
        # Of SCRAM, from the first message to the final one.
        self._credentials: ScramCredentials | None = None
        self._known = False
        self._header = self._client_first = self._server_first = self._nonce = ""

    @property
    def claimed_name(self) -> str | None:
        """The user that the client claims to be, for the log only; None before a valid first message. It has
        at most `NAME_BYTES_MAX` bytes, of any characters.
        """
        return self._name

    def step(self, data: bytes) -> tuple[bytes, str | None]:
        """Process a message; returns the answer, and the principal (`User:NAME`) once the client is
        authenticated.

        Raises `AuthenticationFailed` for wrong credentials and for anything that is no valid message. The
        exchange has then ended. Also raised for a message after the end.
        """
        # Ended first: after any error no further message is accepted.
        phase, self._phase = self._phase, _Phase.ENDED
        try:
            if phase is _Phase.ENDED or len(data) > MESSAGE_BYTES_MAX:
                raise _Malformed
            if self._mechanism == PLAIN:
                return b"", self._plain(data)
            text = data.decode()
            if phase is _Phase.FIRST:
                answer = self._scram_first(text)
                self._phase = _Phase.FINAL
                return answer.encode(), None
            return self._scram_final(text)
        # A wrong number of parts, bytes that are no UTF-8 and invalid base64 are errors of this kind too.
        except ValueError:
            # Not chained: errors of parsers repeat the bytes, which contain a password with PLAIN.
            raise AuthenticationFailed from None

    def _plain(self, data: bytes) -> str:
        identity, name_bytes, password = data.split(b"\0")
        self._name = name = _checked_name(name_bytes.decode())
        # As in Kafka: no user acts for another one.
        if identity not in {b"", name_bytes} or not password:
            raise _Malformed
        # RFC 4616 allows UTF-8 only.
        password.decode()
        stored, known = self._users.find(name, _PLAIN_VERIFIED_BY)
        given = derive_credentials(_PLAIN_VERIFIED_BY, password, stored.salt, stored.iterations)
        # `known` last: the comparison takes place for unknown users as well.
        if not (hmac.compare_digest(given.stored_key, stored.stored_key) and known):
            raise AuthenticationFailed
        return f"User:{name}"

    def _scram_first(self, text: str) -> str:
        # `n,a=NAME,n=NAME,r=NONCE`: channel binding, then whom to act for, usually empty.
        binding, identity, self._client_first = text.split(",", 2)
        # `y`: the client could bind the channel and believes that we cannot, which is true. `p=…` demands it.
        if binding not in {"n", "y"}:
            raise _Malformed
        self._header = f"{binding},{identity},"
        # The first attribute is `n=`, or `m=` for an extension that must be understood. We know none.
        name_part, nonce_part, *extensions = self._client_first.split(",")
        sasl_name = _value_of("n", name_part)
        self._name = name = _checked_name(_unescaped(sasl_name))
        nonce = _value_of("r", nonce_part)
        if identity not in {"", f"a={sasl_name}"} or len(nonce) > NONCE_MAX or not _is_printable(nonce):
            raise _Malformed
        _check_extensions(extensions)
        self._credentials, self._known = self._users.find(name, self._mechanism)
        self._nonce = nonce + base64.b64encode(self._random.random_bytes(_NONCE_BYTES)).decode()
        salt = base64.b64encode(self._credentials.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credentials.iterations}"
        return self._server_first

    def _scram_final(self, text: str) -> tuple[bytes, str]:
        # `c=HEADER,r=NONCE,p=PROOF`, with optional extensions before the proof.
        binding_part, nonce_part, *extensions, proof_part = text.split(",")
        header = base64.b64encode(self._header.encode()).decode()
        nonce = _value_of("r", nonce_part)
        if _value_of("c", binding_part) != header or not _is_printable(nonce):
            raise _Malformed
        if not hmac.compare_digest(nonce, self._nonce):
            raise _Malformed
        _check_extensions(extensions)
        proof = base64.b64decode(_value_of("p", proof_part), validate=True)
        stored = self._credentials
        assert stored is not None
        if len(proof) != len(stored.stored_key):
            raise _Malformed
        without_proof = text[: -len(proof_part) - 1]
        signed = f"{self._client_first},{self._server_first},{without_proof}".encode()
        name = SCRAM_HASHES[self._mechanism]
        signature = hmac.digest(stored.stored_key, signed, name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        computed = hashlib.new(name, client_key).digest()
        # `_known` last: the comparison takes place for unknown users as well.
        if not (hmac.compare_digest(computed, stored.stored_key) and self._known):
            raise AuthenticationFailed
        verifier = base64.b64encode(hmac.digest(stored.server_key, signed, name))
        return b"v=" + verifier, f"User:{self._name}"


class _Malformed(ValueError):
    """The client's message breaks the rules of its mechanism."""


def _value_of(letter: str, attribute: str) -> str:
    """Value of an attribute of SCRAM, which must have this letter and must not be empty."""
    if not attribute.startswith(f"{letter}=") or len(attribute) <= len(letter) + 1:
        raise _Malformed
    return attribute[len(letter) + 1 :]


def _checked_name(name: str) -> str:
    if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        raise _Malformed
    return name


def _unescaped(sasl_name: str) -> str:
    """User name of a SCRAM message, in which `,` is `=2C` and `=` is `=3D`."""
    first, *rest = sasl_name.split("=")
    codes = {"2C": ",", "3D": "="}
    if any(part[:2] not in codes for part in rest):
        raise _Malformed
    return first + "".join(codes[part[:2]] + part[2:] for part in rest)


def _is_printable(nonce: str) -> bool:
    return nonce.isascii() and nonce.isprintable() and " " not in nonce


def _check_extensions(extensions: list[str]) -> None:
    """Unknown extensions are ignored, as RFC 5802 demands, if they are well-formed."""
    for extension in extensions:
        name, equals, value = extension.partition("=")
        if not (name.isascii() and name.isalpha() and equals and value) or "\0" in value:
            raise _Malformed
        if name in _REFUSED_EXTENSIONS:
            raise _Malformed
