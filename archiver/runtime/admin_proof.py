"""How a daemon proves that it knows the token of administration before anybody sends it the token.

Whoever asks draws a challenge at random; the answer is worth nothing for another one, nor at another address:
who took a port cannot have the question answered by a daemon at another one. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

PROOF_HEADER = "Archiver-Proof"
CHALLENGE_BYTES = 32


def proof(token: str, challenge: str, host: str, port: int) -> str:
    """HMAC-SHA256 of `challenge host port` under the token, in hex digits: hex digits as they were sent, and
    where they came in.
    """
    asked = f"{challenge} {_plain(host)} {port}"
    return hmac.new(token.encode("utf-8"), asked.encode("utf-8"), hashlib.sha256).hexdigest()


def is_proven(token: str, challenge: str, host: str, port: int, given: str | None) -> bool:
    """Whether `given` is the proof of who is at that address; takes the same time for every wrong one."""
    wanted = proof(token, challenge, host, port)
    return given is not None and hmac.compare_digest(
        wanted.encode(), given.encode("utf-8", "surrogateescape")
    )


def _plain(host: str) -> str:
    """An address as both ends of a connection call it: a socket for both families writes IPv4 in its own
    way.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
