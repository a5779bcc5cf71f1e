"""The port over TLS: the certificate it shows, and how a command beside the daemon knows that certificate
again.

Promises that a renewed certificate is shown from the next connection on, that one which cannot be used (the
key of another, half of a file) never takes the place of one that can, and that whoever asks with
`client_context` believes one certificate alone, the configuration's.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from archiver.config.daemon import HttpTlsSettings
from archiver.runtime.errors import Halt

_log = logging.getLogger(__name__)

_END = "-----END CERTIFICATE-----"
_Seen = tuple[tuple[int, int, int], ...]


class ServerTls:
    """What the port shows of itself. `context` is called again whenever the port is opened; all of it in the
    server's thread.
    """

    def __init__(self, settings: HttpTlsSettings) -> None:
        self._settings = settings
        self._seen: _Seen | None = None
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For the server: each connection gets the certificate that is there by then. Raises `Halt` if there
        is none that can be used.
        """
        self._seen = self._look()
        self._current = self._loaded()
        first = self._loaded()
        if self._settings.client_ca_file is not None:
            # A session that is taken up again shows no certificate: an authority that was taken away would be
            # believed on.
            first.minimum_version, first.num_tickets = ssl.TLSVersion.TLSv1_3, 0
        first.sni_callback = self._choose
        return first

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """At the beginning of each connection, whether it names a host or not."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self._current = self._loaded()
                _log.info("the port's certificate was renewed: %s", self._settings.cert_file)
            except Halt as error:
                _log.warning("%s; the port goes on with the certificate it had", error)
        assert self._current is not None
        connection.context = self._current

    def _look(self) -> _Seen | None:
        """What tells a file from the one that was there before; None while one is missing."""
        try:
            found = [path.stat() for path in self._files()]
        except OSError:
            return None
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def _files(self) -> list[Path]:
        given = (self._settings.cert_file, self._settings.key_file, self._settings.client_ca_file)
        return [path for path in given if path is not None]

    def _loaded(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _show(made, self._settings)
        authorities = self._settings.client_ca_file
        if authorities is not None:
            try:
                made.load_verify_locations(authorities)
            except OSError as error:
                raise Halt(
                    f"the authorities of http.tls.client_ca_file, {authorities}, cannot be used: "
                    f"{_reason(error)}"
                ) from error
            made.verify_mode = ssl.CERT_REQUIRED
        return made


def client_context(settings: HttpTlsSettings) -> ssl.SSLContext:
    """For a command that asks the daemon of its own configuration. Raises `Halt` if it cannot read what the
    configuration names.

    The name in the certificate does not count: no other certificate is believed, whoever signed it, and a
    daemon is asked by an address.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_flags |= (
        ssl.VERIFY_X509_PARTIAL_CHAIN
    )  # The certificate itself is what is trusted, not who signed it.
    try:
        text = settings.cert_file.read_text(encoding="ascii", errors="replace")
        made.load_verify_locations(cadata=text[: text.index(_END) + len(_END)])
    except (OSError, ValueError) as error:
        raise Halt(
            f"the certificate {settings.cert_file} (http.tls) cannot be used: {_reason(error)}"
        ) from error
    if settings.client_ca_file is not None:
        _show(made, settings)
    return made


def _show(context: ssl.SSLContext, settings: HttpTlsSettings) -> None:
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, password=_nobody_to_ask)
    except (OSError, ValueError) as error:
        why = (
            f"the certificate {settings.cert_file} with the key {settings.key_file} (http.tls) cannot be "
            f"used: {_reason(error)}"
        )
        raise Halt(why) from error


def _nobody_to_ask() -> str:
    """For a key with a passphrase: without this, the library would ask for it at the terminal."""
    return ""


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
    return str(reason or "it is no certificate in PEM form")
