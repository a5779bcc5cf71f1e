"""Who a client is, before it may ask for anything else: its certificate, SaslHandshake, SaslAuthenticate."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.acl import principal_of_certificate
from archiver.kafka.listener import Body, Session
from archiver.kafka.metadata import api_versions
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.sasl import SaslExchange, Users
from archiver.kafka.users import UsersFile
from archiver.runtime.errors import ArchiverError, AuthenticationFailed
from archiver.runtime.ids import IdSource
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt

_log = logging.getLogger(__name__)

BEFORE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""The APIs of a client that is not authenticated yet."""
FAILED_WAIT_S: Final = 0.2
"""Wait before the answer to a failed attempt, as Kafka's `connection.failed.authentication.delay.ms`: it
slows down guesses at a password."""


class Authenticator:
    """Runs the SASL exchanges of all connections."""

    def __init__(
        self, mechanisms: Sequence[str], users: Callable[[], Users], threads: Executor, random: IdSource
    ) -> None:
        """`users` gives the present users; it may read a file, so it is called in `threads`."""
        self._mechanisms = tuple(mechanisms)
        self._users = users
        self._threads = threads
        self._random = random
        self._log_limit = LogLimit(_log)

    async def handshake(self, session: Session, request: KafkaRequest) -> Body:
        """Begin an exchange with the mechanism that the client chose."""
        name = request.body.mechanism
        if session.handshaken or session.authenticated:
            # A second handshake would be a new attempt on a connection that counts as one.
            session.closing = "a second SASL handshake"
            return self._handshake(ErrorCode.illegal_sasl_state)
        # Before the first wait: a client may send its second handshake before the answer to the first.
        session.handshaken = True
        # The messages after a version 0 have no request around them.
        if request.version == 0:
            session.closing = "SaslHandshake of version 0 is not supported: upgrade the client"
            return self._handshake(ErrorCode.unsupported_version)
        if name not in self._mechanisms:
            session.closing = f"the SASL mechanism {excerpt(name)} is not enabled (kafka.sasl.mechanisms)"
            return self._handshake(ErrorCode.unsupported_sasl_mechanism)
        loop = asyncio.get_running_loop()
        try:
            users = await loop.run_in_executor(self._threads, self._users)
        except ArchiverError as error:
            self._log_limit.log(loop.time(), logging.ERROR, "no Kafka client can be authenticated: %s", error)
            session.closing = "the users cannot be read"
            return self._handshake(ErrorCode.illegal_sasl_state)
        session.exchange = SaslExchange(name, users, self._random)
        return self._handshake(ErrorCode.none)

    def _handshake(self, code: ErrorCode) -> Body:
        return {"error_code": int(code), "mechanisms": self._mechanisms}

    async def authenticate(self, session: Session, request: KafkaRequest) -> Body:
        """Process one message of the exchange."""
        if session.exchange is None or session.authenticated:
            session.closing = "SaslAuthenticate without a handshake before it"
            return _failed(ErrorCode.illegal_sasl_state, "a SaslHandshake must come first")
        exchange = session.exchange
        loop = asyncio.get_running_loop()
        try:
            # In a thread: with PLAIN the password is derived here.
            answer, principal = await loop.run_in_executor(
                self._threads, exchange.step, bytes(request.body.auth_bytes)
            )
        except AuthenticationFailed as error:
            await asyncio.sleep(FAILED_WAIT_S)
            claimed = exchange.claimed_name
            session.closing = f"the authentication of {excerpt(claimed or '?')} failed"
            return _failed(ErrorCode.sasl_authentication_failed, str(error))
        if principal is not None:
            session.principal, session.authenticated = principal, True
        return {"error_code": 0, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _failed(code: ErrorCode, why: str) -> Body:
    return {"error_code": int(code), "error_message": why, "auth_bytes": b"", "session_lifetime": 0}


class Admission:
    """Answers what a client may ask before it is authenticated, and ends connections that ask for more."""

    def __init__(self, settings: KafkaListenerSettings, ids: IdSource) -> None:
        self._uses_sasl = settings.sasl is not None
        self._threads: ThreadPoolExecutor | None = None
        self._authenticator: Authenticator | None = None
        sasl, file = settings.sasl, settings.users_file
        if sasl is not None and file is not None:
            # One thread: clients that are not authenticated yet must not take the processors with PLAIN.
            self._threads = ThreadPoolExecutor(1, "kafka-authentication")
            users = UsersFile(file, ids).current
            self._authenticator = Authenticator(sasl.mechanisms, users, self._threads, ids)

    def session(self, peer: str, tls: ssl.SSLObject | None) -> Session:
        """The session of a new connection; `tls` is its handshake."""
        if self._uses_sasl:
            return Session(peer, authenticated=False)
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if certificate is None:
            return Session(peer)
        return Session(peer, principal_of_certificate(certificate))

    def answers(self, session: Session, request: KafkaRequest) -> bool:
        """Whether the answer to a request comes from here."""
        return request.api in BEFORE or not session.authenticated

    async def __call__(self, session: Session, request: KafkaRequest) -> Body | None:
        """Answer a request for which `answers` is true."""
        if request.api is ApiKey.API_VERSIONS:
            return api_versions(request)
        if request.api not in BEFORE:
            session.closing = f"{request.api.name} before the authentication"
        elif self._authenticator is None:
            session.closing = "kafka.sasl is not configured, and the client authenticates"
        elif request.api is ApiKey.SASL_HANDSHAKE:
            return await self._authenticator.handshake(session, request)
        else:
            return await self._authenticator.authenticate(session, request)
        return None

    def stop(self) -> None:
        """End the thread of authentications."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
