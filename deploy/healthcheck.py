"""The image's health check: does something answer at /healthz where the configuration says that the daemon
listens?

Over TLS if the port speaks it, with the port's own certificate where clients must show one. Asks this machine
and sends nothing secret, so it does not look who answers. Reads of the configuration no more than that, and
loads nothing of the archiver: it runs every few seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import yaml

TIMEOUT_S = 4.0
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the address of a request, not of a listener


def connection(config: Path) -> http.client.HTTPConnection:
    """To the port of that configuration; not opened yet."""
    port: dict[str, Any] = (yaml.safe_load(config.read_bytes()) or {}).get("http") or {}
    host, _, number = str(port.get("listen", "127.0.0.1:8787")).rpartition(":")
    host = host.strip("[]")
    place = EVERYWHERE.get(host, host), int(number)
    tls = port.get("tls")
    if not tls:
        return http.client.HTTPConnection(*place, timeout=TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls.get("client_ca_file"):
        context.load_cert_chain(config.parent / tls["cert_file"], config.parent / tls["key_file"])
    return http.client.HTTPSConnection(*place, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """0 if it is alive; else 1, and why."""
    try:
        asked = connection(Path(os.environ["ARCHIVER_CONFIG"]))
        asked.request("GET", "/healthz")
        status = asked.getresponse().status
    except Exception as error:  # noqa: BLE001 - any error is printed and means unhealthy
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(f"/healthz answers {status}\n")
    return 0 if status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
