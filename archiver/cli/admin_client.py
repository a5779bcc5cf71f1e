"""A command beside a running daemon: asks it to do the work, so that nobody has to stop it.

Goes to `http.listen` of the configuration, and only if whoever answers there says that it is this very
cluster and proves that it knows the token, which is sent to nobody else. Uses no proxy and follows no
redirect. If nobody answers, or the daemon does not do such work, the command does it by itself; the
leadership lease says whether it may. Once the work was asked for, what became of it is told as it is: known,
or unknown.
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

LOOK_S = 5.0
"""For the daemon to answer at all."""
STATUS_S = 10.0
"""For its status document, for which it reads both logs."""
SILENCE_S = 30.0
"""Between two lines; it promises one every five seconds."""
CLUSTER_HEADER = "Archiver-Cluster-Id"
_TOKEN_BYTES_MAX = 4096
_READY_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class Answered:
    """What the daemon did in the command's place."""

    document: dict[str, Any]
    """As the command prints it with `--output json`."""
    exit_code: int


def ask_daemon(
    app: Application, work: str, document: dict[str, Any], by_itself: Callable[[], Answered]
) -> Answered:
    """Have the daemon do `work` (archive, clean), or do it here.

    Its progress is told as the command's own. Raises the error that ended the work, `RetryLater` if the
    daemon has too much to do, or another process leads, or `OutcomeUnknown` if the daemon fell silent.
    """
    asked = _ask(app, work, document, SystemIds())
    if isinstance(asked, Answered):
        return asked
    try:
        return by_itself()
    except LeaseHeld as error:
        raise RetryLater(f"the lease is held by {error.holder}, which leads, and {asked}") from error


def _ask(app: Application, work: str, document: dict[str, Any], ids: IdSource) -> Answered | str:
    """What the daemon answers, or why it was not the one to do the work."""
    listen = app.settings.http.listen
    place = place_of(listen)
    if place is None:
        return (
            f"http.listen = {listen} does not say at which port a daemon is to be asked; stop what leads, "
            "or give the port a number"
        )
    where = f"the daemon at {listen}"
    token = _token(app.settings)
    try:
        knocking = _connection(app.settings.http, place)
    except Halt as error:
        return f"{where} cannot be asked: {error}"
    with closing(knocking) as connection:
        refused = _stranger(connection, listen, app.cluster.cluster_id, token, ids)
        if refused is not None or token is None:
            return str(refused)
        _stay_with(connection, SILENCE_S)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", f"/v1/admin/{work}", json.dumps(document), headers)
            response = connection.getresponse()
            return _followed(response, where) if response.status == 200 else _not_begun(response, where)
        except http.client.NotConnected:
            return f"{where} hangs up; stop what leads, or try again"
        except (OSError, http.client.HTTPException) as error:
            raise OutcomeUnknown(
                f"{where} fell silent ({type(error).__name__}: {error}); the work may go on there, "
                "look at `archiver status`"
            ) from error


def _stranger(
    connection: http.client.HTTPConnection, listen: str, cluster_id: str, token: str | None, ids: IdSource
) -> str | None:
    """Why who answers there is not to be asked; None if it is a daemon of this cluster that knows the
    token.
    """
    challenge = ids.random_bytes(CHALLENGE_BYTES).hex()
    try:
        connection.request("GET", f"/healthz?challenge={challenge}")
        host, port = connection.sock.getpeername()[:2]
        response = connection.getresponse()
        response.read(_TOKEN_BYTES_MAX)
        ours = response.getheader(CLUSTER_HEADER) == cluster_id
    except ssl.SSLError as error:
        return (
            f"what answers at {listen} does not show the certificate of http.tls in this configuration "
            f"({error.reason}), so it is not asked"
        )
    except (OSError, http.client.HTTPException):
        ours = False
    if not ours:
        return (
            f"no daemon of this cluster answers at {listen}: if what leads is a daemon, its "
            "http.listen is another one than in this "
            "configuration, or its port could not be opened; if it is a command, it ends by itself"
        )
    if token is None:
        progress(
            f"the daemon at {listen} is not asked: there is no token that this user can read "
            "(http.admin_token)"
        )
        return f"the daemon at {listen} cannot be asked without the token; ask as its user"
    if not is_proven(token, challenge, host, port, response.getheader(PROOF_HEADER)):
        progress(
            f"what answers at {listen} is not asked: it says that it is this cluster's daemon and does "
            "not prove that it knows the token "
            "(http.admin_token); it has another one, or is no daemon of ours"
        )
        return (
            f"what answers at {listen} does not prove that it knows the token; compare http.admin_token "
            "with the daemon's"
        )
    return None


def readiness(app: Application) -> dict[str, Any] | None:
    """What the daemon of this cluster says of itself, if one answers: `address`, `state`, `ready`, `checks`;
    as `/readyz` has them.
    """
    place = place_of(app.settings.http.listen)
    if place is None:
        return None
    try:
        with closing(_connection(app.settings.http, place)) as connection:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            document = json.loads(response.read(_READY_BYTES_MAX))
            if response.getheader(CLUSTER_HEADER) != app.cluster.cluster_id:
                return None
            return {
                "address": app.settings.http.listen,
                **{name: document[name] for name in ("state", "ready", "checks")},
            }
    except (Halt, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None


def last_rounds(app: Application) -> dict[str, Any] | None:
    """The status document of the daemon of this cluster, which knows what its last round met; None if it
    cannot be asked for.
    """
    listen, token = app.settings.http.listen, _token(app.settings)
    place = place_of(listen)
    if place is None or token is None:
        return None
    try:
        with closing(_connection(app.settings.http, place)) as connection:
            if _stranger(connection, listen, app.cluster.cluster_id, token, SystemIds()) is not None:
                return None
            _stay_with(connection, STATUS_S)
            connection.request("GET", "/v1/admin/status", headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            document = json.loads(response.read()) if response.status == 200 else None
    except (Halt, OSError, http.client.HTTPException, ValueError):
        return None
    return document if isinstance(document, dict) and {"topics", "daemon"} <= document.keys() else None


def _connection(settings: HttpSettings, place: tuple[str, int]) -> http.client.HTTPConnection:
    """Not opened yet; over TLS to whoever has the certificate of the configuration. Raises `Halt` if that
    cannot be read.
    """
    if settings.tls is None:
        return http.client.HTTPConnection(*place, timeout=LOOK_S)
    from archiver.web.tls import client_context

    return http.client.HTTPSConnection(*place, timeout=LOOK_S, context=client_context(settings.tls))


def _stay_with(connection: http.client.HTTPConnection, timeout_s: float) -> None:
    """Whoever has just proven to know the token gets it over that very connection, and nobody else does."""
    connection.auto_open = 0
    if connection.sock is not None:
        connection.sock.settimeout(timeout_s)


def place_of(listen: str) -> tuple[str, int] | None:
    """Host and port to connect to; None if only the daemon knows its port."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if (
        address is not None and address.is_unspecified
    ):  # It listens on every address, so on this machine's own.
        host = "127.0.0.1" if address.version == 4 else "::1"
    return (host, int(port)) if int(port) else None


def _token(settings: Settings) -> str | None:
    """The configured one, else the one that the daemon made."""
    if settings.http.admin_token is not None:
        return settings.http.admin_token.get_secret_value()
    from archiver.daemon.admin_token import token_path

    return _private_text(token_path(settings.metadata.local_path))


def _private_text(path: Path) -> str | None:
    """The text of a file that nobody but its owner can read, and that is this user's or root's; None if it is
    not such a file.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            private = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and found.st_uid in (os.geteuid(), 0)
            text = file.read(_TOKEN_BYTES_MAX).decode("ascii", "replace").strip() if private else ""
    except OSError:
        return None
    return text if text.isprintable() and text else None


def _followed(response: http.client.HTTPResponse, where: str) -> Answered:
    """Tell what it tells, up to its last line."""
    while line := response.readline():
        told = _document(line, where)
        if "progress" in told:
            progress(str(told["progress"]))
        elif "done" in told:
            return Answered(told["done"]["document"], int(told["done"]["exit_code"]))
        elif "error" in told:
            raise _error(told["error"], where)
    raise OutcomeUnknown(
        f"{where} ended in the middle of the work; it may be half done, look at `archiver status`"
    )


def _not_begun(response: http.client.HTTPResponse, where: str) -> str:
    """Nothing was done there: why, if the command may do it by itself, else raises."""
    told = _document(response.read(), where).get("error", {})
    message = str(told.get("message", f"it answered {response.status}"))
    if response.status == 429:
        raise RetryLater(f"{where} has too much to do: {message}")
    if response.status == 400:
        raise InvalidInput(message)
    if response.status >= 500 and response.status != 503:
        raise OutcomeUnknown(f"{where}: {message}")
    if response.status != 409:  # Without the role it was never the one to ask.
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


def _error(told: dict[str, Any], where: str) -> ArchiverError:
    """The error as the command itself would have met it: the same type, so the same exit code, and the same
    message.
    """
    if "holder" in told:
        return RetryLater(
            f"{where} does not lead: the lease is held by {told['holder']}; ask there, or stop it"
        )
    by_code = {USAGE: InvalidInput, WRONG: Halt}.get(int(told.get("exit_code", 0)), RetryLater)
    found = getattr(errors, str(told.get("type")), by_code)
    kind = found if isinstance(found, type) and issubclass(found, ArchiverError) else by_code
    error = kind.__new__(
        kind, str(told.get("message"))
    )  # Several make their message of parts that did not travel.
    assert isinstance(error, ArchiverError)
    return error
