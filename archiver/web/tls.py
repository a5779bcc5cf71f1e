"""TLS of the port: the certificate of the server, and its verification by local commands.

A renewed certificate applies from the next connection. An unusable one (wrong key, half a file) never
replaces a usable one. `client_context` trusts only the certificate of the configuration.
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
    """Certificate of the port. `context` is called at each opening of the port. Runs in the server's
    thread.
    """

    def __init__(self, settings: HttpTlsSettings) -> None:
        self._settings = settings
        self._seen: _Seen | None = None
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """TLS context of the server; each connection gets the newest certificate. Raises `Halt` without a
        usable one.
        """
        # Before loading: a file replaced in between counts as new and is loaded again.
        self._seen = self._stat()
        self._current = self._loaded()
        # Every connection starts with this context, and `_choose` replaces it by the current one.
        first = self._loaded()
        if self._settings.client_ca_file is not None:
            # A resumed session sends no certificate, so a removed authority would stay trusted.
            first.minimum_version, first.num_tickets = ssl.TLSVersion.TLSv1_3, 0
        first.sni_callback = self._choose
        return first

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Called at the start of each connection, with or without a server name."""
        seen = self._stat()
        if seen != self._seen:
            # Set before loading: unusable files are reported once, not at each connection.
            self._seen = seen
            try:
                self._current = self._loaded()
                _log.info("the port's certificate was renewed: %s", self._settings.cert_file)
            except Halt as error:
                _log.warning("%s; the port keeps the earlier certificate", error)
        assert self._current is not None
        # At this moment the connection has not sent a certificate yet.
        connection.context = self._current

    def _stat(self) -> _Seen | None:
        """Identity of the files, which changes with their content; None while one is missing."""
        try:
            found = [path.stat() for path in self._files()]
        except OSError:
            return None
        # Not the time alone: a renewal by rename within its resolution changes the inode.
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
    """TLS context of a command that calls the daemon of its configuration; raises `Halt` for unreadable
    files.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Commands call an address, and only this one certificate is trusted.
    made.check_hostname = False
    # Trust the certificate itself, not its issuer.
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        text = settings.cert_file.read_text(encoding="ascii", errors="replace")
        # Only the first certificate of a chain: the others are issuers, which may sign others.
        made.load_verify_locations(cadata=text[: text.index(_END) + len(_END)])
    except (OSError, ValueError) as error:
        raise Halt(
            f"the certificate {settings.cert_file} (http.tls) cannot be used: {_reason(error)}"
        ) from error
    if settings.client_ca_file is not None:
        # The command shows the certificate of the port as its own, so the authorities must have signed it.
        _show(made, settings)
    return made


def _show(context: ssl.SSLContext, settings: HttpTlsSettings) -> None:
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, password=_no_passphrase)
    except (OSError, ValueError) as error:
        why = (
            f"the certificate {settings.cert_file} with the key {settings.key_file} (http.tls) cannot be "
            f"used: {_reason(error)}"
        )
        raise Halt(why) from error


def _no_passphrase() -> str:
    """Answer for a key with a passphrase."""
    # Without it, OpenSSL asks at the terminal, and a daemon would hang.
    return ""


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
    return str(reason or "it is no certificate in PEM form")
