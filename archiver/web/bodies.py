"""Takes in a request's body within its bounds, before anybody looks at it.

Promises that no more than the allowed bytes are ever held, whether their number was announced or not, that waiting for them has an end,
and that a compressed body is refused: nobody can tell how large it is.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from archiver.web.answers import refusal


async def read_body(request: Request, bytes_max: int, setting: str, timeout_s: float) -> bytes:
    """The whole body; refuses with 413 (naming the `setting` that bounds it), 408 or 415, and with 503 when the server stops."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise refusal(415, f"the content encoding {encoding!r} is not taken; nothing was done, send the body as it is")
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        # What stands between us and the client may see another end of the body, and take the rest for a request.
        raise refusal(400, "the body has two lengths, Content-Length and chunks; send one of them", close=True)
    too_large = f"the body is larger than {setting} = {bytes_max} bytes; nothing was sent, split it"
    announced = request.headers.get("content-length")
    if announced is not None and int(announced) > bytes_max:  # The server refuses what is no number.
        raise refusal(413, too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise refusal(413, too_large)
    except TimeoutError:
        raise refusal(
            408, f"only {len(body)} bytes of the body arrived within http.request_timeout = {timeout_s:g} s; nothing was sent", close=True
        ) from None
    except asyncio.CancelledError:
        raise refusal(503, "the daemon stops, and the body has not arrived; nothing was sent", close=True) from None
    except ClientDisconnect:
        raise refusal(400, "the connection ended inside the body; nothing was sent", close=True) from None
    return bytes(body)


def media_type(request: Request) -> str:
    """The type of the body, without its parameters; refuses a text that is not UTF-8 with 415."""
    kind, *parameters = request.headers.get("content-type", "").split(";")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('"').lower() not in ("utf-8", "utf8"):
            raise refusal(415, f"the charset {value} is not taken; nothing was done, text is UTF-8")
    return kind.strip().lower()
