"""Keeps secrets out of every text that leaves the process (log lines, messages, answers, pages), and limits
external text.

`hide` records the secrets of this process, `redacted` removes them, and `excerpt` admits external text into a
message, a log line or memory. A known secret is replaced by `***` in plain form, in a URL, in JSON or Python
text, in HTML, and in base64. A password between `//` and `@` of any URL is replaced even if it is not a known
secret. Both functions take time proportional to the length of the text, for any text.

A secret of fewer than four characters is indistinguishable from other text: replacing every `ab` would leave
no readable line. It is replaced only as the whole text, and in a URL. These functions never raise, and
process text only.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus, unquote

if TYPE_CHECKING:
    from pydantic import BaseModel

MASK: Final = "***"
SHORT: Final = 4
"""A secret with fewer characters is short."""
_LINE_MIN: Final = 8
"""A line of a multi-line secret (a key file) is hidden by itself from this length on."""
_BASE64_MIN: Final = 6
"""Characters of base64 that must match before a text counts as a secret."""
_PLAIN_WORDS: Final = frozenset({"true", "false", "none", "null"})
"""Never a secret, even if the key of a property sounds like one."""
EXCERPT_MAX: Final = 200
"""Characters of a single external value in a message."""
MESSAGE_MAX: Final = 2000
"""Characters of a whole message that may repeat external text."""
TEXT_MAX: Final = 4 * 1024 * 1024
"""Characters of any text, including the status page and a listing."""
# Both begin at `://` and cannot pass the next slash, so no character is read for two of their beginnings.
_PASSWORD_IN_URL: Final = re.compile(r"(?P<before>://[^\s/:@'\"<>]*+:)[^\s/@'\"<>]++(?=@)")
# For a text that was cut: the `@` after the password may be missing.
_PASSWORD_CUT_OFF: Final = re.compile(r"(?P<before>://[^\s/:@'\"<>]*+:)[^\s/@'\"<>]++(?=@|\Z)")
_USER_OF_URL: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://(?P<name>[^/@:]*)(?::(?P<password>[^/]*))?@")
_PARAMETER: Final = re.compile(r"[?&;](?P<name>[\w.-]++)=")
"""In a URL, for example `sc://host:15002/;token=…`."""
_PARAMETER_VALUE: Final = re.compile(r"[^&;\s]+")
_SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|token|credential|authorization|api[._-]?key|access[._-]?key", re.IGNORECASE
)
_BASE64_EDGE: Final = 2
"""Characters of base64 before the certain part of a secret, which contain some of its bits."""
_TOKEN_MIN: Final = 12
"""Length from which the user in a URL without a password counts as a token."""
_BASE64: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


class Redactor:
    """The known secrets, and their patterns. Safe for several threads; secrets are only added."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._secrets: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._coded: re.Pattern[str] | None = None
        self._longest = 0
        """Characters of the longest form of a secret."""
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Add secrets; empty ones, and the words true, false, none and null, are ignored."""
        with self._lock:
            # Secrets are never removed: a text of an old configuration may still be in memory.
            new = {part for secret in secrets for part in _parts(secret)} - self._secrets
            if not new:
                return
            self._secrets |= new
            # Short secrets get no pattern: replacing every `ab` would leave no readable line.
            long = [secret for secret in self._secrets if len(secret) >= SHORT]
            forms = {form for secret in long for form in _forms(secret)}
            coded = {form for secret in long for form in _base64_forms(secret)}
            # Set before the patterns: `excerpt` must never cut with the margin of a smaller set.
            self._longest = max(map(len, forms | coded), default=0) + _BASE64_EDGE
            self._pattern = _any_of(forms)
            self._coded = _any_of(coded)

    def redacted(self, text: str) -> str:
        """The text without secrets."""
        return self._without_secrets(text, _PASSWORD_IN_URL)

    def excerpt(self, text: str, length_max: int) -> str:
        """The beginning of the text without secrets, and the length of the rest."""
        if len(text) <= length_max:
            return self.redacted(text)
        # A secret that begins within the bound ends within the margin, so it is found completely. One that
        # begins later may be cut off by the end of the window and stay unchanged. So as many last characters
        # as the margin has are dropped.
        margin = self._longest
        window = text[: length_max + margin]
        cut_off = len(window) < len(text)
        shown = self._without_secrets(window, _PASSWORD_CUT_OFF if cut_off else _PASSWORD_IN_URL)
        if cut_off:
            shown = shown[: max(0, len(shown) - margin)]
        return f"{shown[:length_max]}… ({len(text) - length_max:,} more characters)"

    def document(self, value: Any, length_max: int | None = None) -> Any:
        """The same for every text in a JSON document. Keys and numbers stay; values that JSON cannot
        represent become text. With a `length_max`, each text is an excerpt.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            # Keys are names of our own documents, and readers depend on them.
            return {key: self.document(item, length_max) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(item, length_max) for item in value]
        return self.redacted(str(value)) if length_max is None else self.excerpt(str(value), length_max)

    def _without_secrets(self, text: str, password: re.Pattern[str]) -> str:
        # Also catches a short secret that is the whole text.
        if text in self._secrets:
            return MASK
        found = text if self._pattern is None else self._pattern.sub(MASK, text)
        found = found if self._coded is None else _without_coded(found, self._coded)
        # After the known secrets: a password with `@` or `/` would otherwise be replaced in part only.
        return password.sub(rf"\g<before>{MASK}", found) if "://" in found else found


_process = Redactor()


def hide(secrets: Iterable[str]) -> None:
    """Add secrets for the lifetime of the process. Called when a configuration is loaded or a token is
    made.
    """
    _process.hide(secrets)


def redacted(text: str) -> str:
    """The text without any known secret; only the beginning of a text longer than `TEXT_MAX`."""
    return _process.excerpt(text, TEXT_MAX)


def excerpt(text: str, length_max: int = EXCERPT_MAX) -> str:
    """External text for repetition: its beginning, without any known secret.

    All external text enters messages, log lines and memory through this function. A slice would be wrong: it
    can leave the first half of a secret, which `redacted` then does not find.
    """
    return _process.excerpt(text, length_max)


def redacted_document(value: Any, length_max: int | None = None) -> Any:
    """A JSON document without any known secret; with a `length_max`, each text in it is an excerpt."""
    return _process.document(value, length_max)


def secrets_of(settings: BaseModel) -> frozenset[str]:
    """Every secret in a loaded configuration, revealed, including passwords and tokens in its URLs: never
    print them.
    """
    return frozenset(_secrets_in(settings))


def _secrets_in(value: object) -> Iterable[str]:
    # Not at the top of the module: `archiver --help` needs this module and no settings.
    from pydantic import BaseModel, SecretStr

    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        yield from _secret_parameters(value)
        user = _USER_OF_URL.match(value)
        if user is not None and user["password"]:
            yield user["password"]
    elif isinstance(value, BaseModel):
        for _, item in value:  # includes the extra keys of a group
            yield from _secrets_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets_in(item)


def guard_tracebacks() -> None:
    """Redact the tracebacks that the interpreter itself prints; for commands, which own their process."""
    sys.excepthook = _print_exception
    threading.excepthook = lambda hook: _print_exception(hook.exc_type, hook.exc_value, hook.exc_traceback)
    sys.unraisablehook = lambda hook: _print_exception(hook.exc_type, hook.exc_value, hook.exc_traceback)


def _print_exception(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    # The commands report these themselves.
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


def _parts(secret: str) -> Iterable[str]:
    """The secret and its secret parts: the password of a URL or of `name:password`, the lines of a key."""
    if not secret.strip() or secret.lower() in _PLAIN_WORDS:
        return
    yield secret
    found = _USER_OF_URL.match(secret)
    name, _, password = secret.partition(":") if "://" not in secret else ("", "", "")
    if found is not None:
        name, password = found["name"], found["password"] or ""
    # A user without a password is often a token, as in `https://TOKEN@host`.
    inside = [password if password or found is None or len(name) < _TOKEN_MIN else name]
    inside += _secret_parameters(secret)
    # Also decoded: an SDK may report the password without its percent signs.
    for one in [*inside, *map(unquote, inside)]:
        if len(one) >= SHORT and one.lower() not in _PLAIN_WORDS:
            yield one
    lines = secret.splitlines()
    if len(lines) > 1:
        # A log may show single lines of a key. Short lines would match ordinary text.
        yield from (line.strip() for line in lines if len(line.strip()) >= _LINE_MIN)


def _secret_parameters(text: str) -> Iterator[str]:
    """The values of parameters with secret names."""
    done = 0
    for found in _PARAMETER.finditer(text):
        if (
            # A parameter inside the value of another one belongs to that value.
            found.start() >= done
            and _SECRET_NAME.search(found["name"])
            and (value := _PARAMETER_VALUE.match(text, found.end()))
        ):
            yield value[0]
            done = value.end()


def _forms(secret: str) -> Iterable[str]:
    """The forms of a secret in a text."""
    written: list[Callable[[str], str]] = [
        str,
        lambda text: quote(text, safe=""),
        quote,
        quote_plus,
        # Some libraries write percent-encoding in lower case.
        lambda text: _lower_hex(quote(text, safe="")),
        lambda text: _lower_hex(quote_plus(text)),
        # Without the quotes, because the secret may be in the middle of a longer text.
        lambda text: repr(text)[1:-1],
        lambda text: json.dumps(text)[1:-1],
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
        html.escape,
        lambda text: (
            html.escape(text, quote=False).replace('"', "&#34;").replace("'", "&#39;")
        ),  # as HTML templates escape it
    ]
    return {form for write in written if (form := write(secret))}


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for any of the texts, longest first."""
    # Alternatives match in order: a shorter secret could otherwise leave the rest of a longer one.
    found = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None


def _without_coded(text: str, middles: re.Pattern[str]) -> str:
    """The text without the whole base64 words around the certain part of a secret."""
    pieces: list[str] = []
    done = 0
    for found in middles.finditer(text):
        start, end = found.span()
        # The previous word reached beyond this match.
        if start < done:
            continue
        # The whole word, because the characters around the middle contain bits of the secret.
        while start > done and text[start - 1] in _BASE64:
            start -= 1
        while end < len(text) and (text[end] in _BASE64 or text[end] == "="):
            end += 1
        pieces += [text[done:start], MASK]
        done = end
    return "".join([*pieces, text[done:]])


def _lower_hex(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)


def _base64_forms(secret: str) -> Iterable[str]:
    """The middle of a secret's base64 for each of its three alignments, in both alphabets."""
    data = secret.encode()
    # Base64 codes three bytes at a time, so the text depends on the position of the secret. In
    # `user:password` of HTTP's Basic authentication it depends on the length of the user name.
    for before in range(3):
        coded = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        # Bits of adjacent text change the first and the last characters of the secret's base64.
        first = -(-before * 8 // 6)
        last = (before + len(data)) * 8 // 6
        middle = coded[first:last]
        if len(middle) >= _BASE64_MIN:
            yield middle
            yield middle.replace("+", "-").replace("/", "_")
