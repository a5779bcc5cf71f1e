"""How a daemon proves that it knows the token of administration before anybody sends it the token.

Whoever asks draws a challenge at random; the answer is worth nothing for another one. Pure.
"""

from __future__ import annotations

import hashlib
import hmac

PROOF_HEADER = "Archiver-Proof"
CHALLENGE_BYTES = 32


def proof(token: str, challenge: str) -> str:
    """HMAC-SHA256 of the challenge (hex digits, as they were sent) under the token, in hex digits."""
    return hmac.new(token.encode("utf-8"), challenge.encode("utf-8"), hashlib.sha256).hexdigest()


def is_proven(token: str, challenge: str, given: str | None) -> bool:
    """Whether `given` is the proof; takes the same time for every wrong one."""
    return given is not None and hmac.compare_digest(proof(token, challenge).encode(), given.encode("utf-8", "surrogateescape"))
