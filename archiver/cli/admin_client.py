"""Client of the administration port: a command has the running daemon do its work.

It connects to `http.listen` of the configuration. The token is sent only to a server that names this cluster
and proves that it knows the token. No proxy is used and no redirect is followed. Without such a daemon the
command does the work itself, if it gets the leadership lease. After the request was sent, a lost connection
is an unknown outcome.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archiver.cli.output import progress
from archiver.runtime import errors
from archiver.runtime.admin_proof import CHALLENGE_BYTES, PROOF_HEADER, is_proven
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput, LeaseHeld, OutcomeUnknown, RetryLater
from archiver.runtime.exit_codes import USAGE, WRONG
from archiver.runtime.ids import IdSource, SystemIds
from archiver.runtime.redaction import excerpt

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.daemon import HttpSettings
    from archiver.config.settings import Settings

CONNECT_S = 5.0
"""Timeout of the first request."""
STATUS_S = 10.0
"""Timeout of the status document; the daemon reads both logs for it."""
SILENCE_S = 30.0
"""Timeout between two progress lines; the daemon sends one every five seconds."""
# Sent by the daemon with every response; it says that the port belongs to this cluster.
CLUSTER_HEADER = "Archiver-Cluster-Id"
_TOKEN_BYTES_MAX = 4096
_READY_BYTES_MAX = 2**20
_ANSWER_BYTES_MAX = 2**26
"""Of one line or document of a daemon that has proven itself; what is larger counts as not understood."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Result of work that the daemon did for the command."""

    document: dict[str, Any]
    """As the command prints it with `--output json`."""
    exit_code: int


def ask_daemon(
    app: Application, work: str, document: dict[str, Any], by_itself: Callable[[], Answered]
) -> Answered:
    """Have the daemon do `work`, for example `archive` or `clean`; without a daemon, call `by_itself`.

    Prints the daemon's progress as the command's own. Raises the error that ended the work. Raises
    `RetryLater` if the daemon is overloaded or another process leads, `OutcomeUnknown` if the daemon stopped
    answering.
    """
    asked = _ask(app, work, document, SystemIds())
    if isinstance(asked, Answered):
        return asked
    try:
        return by_itself()
    except LeaseHeld as error:
        raise RetryLater(f"the lease is held by {error.holder}, which leads, and {asked}") from error


def _ask(app: Application, work: str, document: dict[str, Any], ids: IdSource) -> Answered | str:
    """Result of the daemon, or the reason why it did not do the work."""
    listen = app.settings.http.listen
    place = place_of(listen)
    if place is None:
        return (
            f"http.listen = {listen} does not name the port of a daemon; stop what leads, or give the port "
            "a number"
        )
    where = f"the daemon at {listen}"
    token = _token(app.settings)
    try:
        unopened = _connection(app.settings.http, place)
    except Halt as error:
        return f"{where} cannot be asked: {error}"
    with closing(unopened) as connection:
        refused = _distrusted(connection, listen, app.cluster.cluster_id, token, ids)
        if refused is not None or token is None:
            return str(refused)
        # From here on the token may be sent. A new connection could reach another server.
        _keep_connection(connection, SILENCE_S)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", f"/v1/admin/{work}", json.dumps(document), headers)
            response = connection.getresponse()
            # Any other status means that the work has not begun.
            return _result_of(response, where) if response.status == 200 else _not_begun(response, where)
        # Raised instead of a reconnect, before anything was sent.
        except http.client.NotConnected:
            return f"{where} hangs up; stop what leads, or try again"
        # The request may have arrived, so it is not known whether the work is done.
        except (OSError, http.client.HTTPException) as error:
            raise OutcomeUnknown(
                f"{where} fell silent ({type(error).__name__}: {error}); the work may go on there, "
                "see `archiver status`"
            ) from error


def _distrusted(
    connection: http.client.HTTPConnection, listen: str, cluster_id: str, token: str | None, ids: IdSource
) -> str | None:
    """Why the server is not trusted; None for a daemon of this cluster that proved to know the token."""
    challenge = ids.random_bytes(CHALLENGE_BYTES).hex()
    try:
        connection.request("GET", f"/healthz?challenge={challenge}")
        # The address that this connection reached: a name could resolve to another one for the daemon.
        host, port = connection.sock.getpeername()[:2]
        response = connection.getresponse()
        # Read to its end, so that the same connection can carry the next request.
        response.read(_TOKEN_BYTES_MAX)
        ours = response.getheader(CLUSTER_HEADER) == cluster_id
    # A wrong certificate is reported: another process may have taken the port.
    except ssl.SSLError as error:
        return (
            f"the server at {listen} does not show the certificate of http.tls in this configuration "
            f"({error.reason}), so it is not asked"
        )
    except (OSError, http.client.HTTPException):
        ours = False
    if not ours:
        return (
            f"no daemon of this cluster answers at {listen}: if a daemon leads, its http.listen "
            "differs from this "
            "configuration, or its port could not be opened; if a command leads, it ends by itself"
        )
    # After the check of the cluster: without a daemon the command works without a token.
    if token is None:
        progress(f"the daemon at {listen} is not asked: this user cannot read a token (http.admin_token)")
        return f"the daemon at {listen} cannot be asked without the token; ask as its user"
    # The header is public. Only the proof shows that the server may get the token.
    if not is_proven(token, challenge, host, port, response.getheader(PROOF_HEADER)):
        progress(
            f"the server at {listen} is not asked: it names this cluster but does not prove that it "
            "knows the "
            "token (http.admin_token); it has another token, or is no daemon of this cluster"
        )
        return (
            f"the server at {listen} does not prove that it knows the token; compare http.admin_token "
            "with the daemon's"
        )
    return None


def readiness(settings: Settings, cluster_id: str) -> dict[str, Any] | None:
    """`address`, `state`, `ready` and `checks` of the daemon of this cluster, as in `/readyz`; None without
    one.
    """
    place = place_of(settings.http.listen)
    if place is None:
        return None
    try:
        with closing(_connection(settings.http, place)) as connection:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            document = json.loads(response.read(_READY_BYTES_MAX))
            # Without a token there is no proof, so this document is only shown.
            if response.getheader(CLUSTER_HEADER) != cluster_id:
                return None
            return {
                "address": settings.http.listen,
                **{name: document[name] for name in ("state", "ready", "checks")},
            }
    # The status works without a daemon, so no failure of it may end the command.
    except (Halt, OSError, http.client.HTTPException, ValueError, RecursionError, KeyError, TypeError):
        return None


def last_rounds(settings: Settings, cluster_id: str) -> dict[str, Any] | None:
    """Status document of the daemon of this cluster, with the results of its last round; None if it cannot be
    read.
    """
    listen, token = settings.http.listen, _token(settings)
    place = place_of(listen)
    if place is None or token is None:
        return None
    try:
        with closing(_connection(settings.http, place)) as connection:
            if _distrusted(connection, listen, cluster_id, token, SystemIds()) is not None:
                return None
            _keep_connection(connection, STATUS_S)
            connection.request("GET", "/v1/admin/status", headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            document = json.loads(response.read(_ANSWER_BYTES_MAX)) if response.status == 200 else None
    except (Halt, OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    # An older daemon may have another document.
    return document if isinstance(document, dict) and {"topics", "daemon"} <= document.keys() else None


def _connection(settings: HttpSettings, place: tuple[str, int]) -> http.client.HTTPConnection:
    """A connection that is not open yet; with TLS it accepts only the configured certificate.

    Raises `Halt` if the certificate cannot be read.
    """
    if settings.tls is None:
        return http.client.HTTPConnection(*place, timeout=CONNECT_S)
    from archiver.web.tls import client_context

    return http.client.HTTPSConnection(*place, timeout=CONNECT_S, context=client_context(settings.tls))


def _keep_connection(connection: http.client.HTTPConnection, timeout_s: float) -> None:
    """Never reconnect: the proof holds for this connection only, and the token is sent over it."""
    # `http.client` reconnects silently otherwise.
    connection.auto_open = 0
    if connection.sock is not None:
        connection.sock.settimeout(timeout_s)


def place_of(listen: str) -> tuple[str, int] | None:
    """Host and port to connect to; None for port 0, whose real number only the daemon knows."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    # A daemon that listens on every address listens on the loopback address too.
    if address is not None and address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return (host, int(port)) if int(port) else None


def _token(settings: Settings) -> str | None:
    """The configured token, else the one that the daemon generated."""
    if settings.http.admin_token is not None:
        return settings.http.admin_token.get_secret_value()
    from archiver.daemon.admin_token import token_path

    return _private_text(token_path(settings.metadata.local_path))


def _private_text(path: Path) -> str | None:
    """Text of a file that only its owner can read, if the owner is this user or root; else None."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            # Another user could otherwise plant a token and pose as the daemon.
            private = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and found.st_uid in (os.geteuid(), 0)
            text = file.read(_TOKEN_BYTES_MAX).decode("ascii", "replace").strip() if private else ""
    except OSError:
        return None
    return text if text.isprintable() and text else None


def _result_of(response: http.client.HTTPResponse, where: str) -> Answered:
    """Print progress up to the last line, which has the result. Raises the error that the daemon reports."""
    # Each line is bounded, so that a server cannot fill the memory of the command.
    while line := response.readline(_ANSWER_BYTES_MAX):
        message = _document(line, where)
        if "progress" in message:
            progress(str(message["progress"]))
        elif "done" in message:
            return Answered(message["done"]["document"], int(message["done"]["exit_code"]))
        elif "error" in message:
            raise _error(message["error"], where)
    # No result line: the daemon stopped while it worked.
    raise OutcomeUnknown(
        f"{where} ended in the middle of the work; it may be half done, see `archiver status`"
    )


def _not_begun(response: http.client.HTTPResponse, where: str) -> str:
    """Why the daemon did nothing, if the command may do the work itself; else raises."""
    error = _document(response.read(_ANSWER_BYTES_MAX), where).get("error", {})
    message = str(error.get("message", f"it answered {response.status}"))
    if response.status == 429:
        raise RetryLater(f"{where} has too much to do: {message}")
    # The daemon refuses the arguments, so the command would refuse them as well.
    if response.status == 400:
        raise InvalidInput(message)
    # 503: the daemon stops or is not ready, and has begun nothing.
    if response.status >= 500 and response.status != 503:
        raise OutcomeUnknown(f"{where}: {message}")
    if response.status != 409:  # 409: the daemon does not have the role
        progress(f"{where} does not do it: {message}")
    return f"{where} does not do it: {message}"


def _document(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OutcomeUnknown(
            f"{where} answers what this version does not understand: {_shown(text)}"
        ) from error
    if not isinstance(found, dict):
        raise OutcomeUnknown(f"{where} answers what this version does not understand: {_shown(text)}")
    return found


def _shown(text: bytes) -> str:
    return repr(excerpt(text.decode("utf-8", "replace"), 80))


def _error(reported: dict[str, Any], where: str) -> ArchiverError:
    """The reported error with its type, so that message and exit code are those of the command itself."""
    if "holder" in reported:
        return RetryLater(
            f"{where} does not lead: the lease is held by {reported['holder']}; ask there, or stop it"
        )
    by_code = {USAGE: InvalidInput, WRONG: Halt}.get(int(reported.get("exit_code", 0)), RetryLater)
    # A newer daemon may report a type that this version does not have; then the exit code decides.
    found = getattr(errors, str(reported.get("type")), by_code)
    kind = found if isinstance(found, type) and issubclass(found, ArchiverError) else by_code
    # Without __init__: several errors build their message from arguments that the daemon did not send.
    error = kind.__new__(kind, str(reported.get("message")))
    assert isinstance(error, ArchiverError)
    return error
