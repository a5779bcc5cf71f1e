"""Proof that a daemon knows the admin token, checked before the token is sent to it.

The client draws a random challenge. The answer is valid for this challenge and this address only. So a
process that took over a port cannot relay the challenge to a daemon at another address. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

PROOF_HEADER = "Archiver-Proof"
CHALLENGE_BYTES = 32


def proof(token: str, challenge: str, host: str, port: int) -> str:
    """HMAC-SHA256 of `challenge host port` under the token, in hex digits; `host` and `port` as the client
    connects to them.
    """
    # The address is part of the text, so that the answer cannot be relayed from another port.
    asked = f"{challenge} {_plain(host)} {port}"
    return hmac.new(token.encode("utf-8"), asked.encode("utf-8"), hashlib.sha256).hexdigest()


def is_proven(token: str, challenge: str, host: str, port: int, given: str | None) -> bool:
    """Whether `given` is the proof for that address; takes the same time for every wrong one."""
    expected = proof(token, challenge, host, port)
    # The comparison takes constant time, so that the proof cannot be guessed byte by byte.
    return given is not None and hmac.compare_digest(
        expected.encode(), given.encode("utf-8", "surrogateescape")
    )


def _plain(host: str) -> str:
    """The same spelling of an address at both ends: a dual-stack socket writes IPv4 addresses differently."""
    try:
        # The part after "%" is a zone of this machine; the other end does not have it.
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
