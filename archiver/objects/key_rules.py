"""Rules for object keys.

They combine the strictest rules of all adapters, so that data can move between them. A key is a relative path
of ordinary components. No file system can resolve it outside the root, and it is no longer than S3 allows.
"""

from __future__ import annotations

import re
from typing import Final

from archiver.runtime.errors import InvalidInput
from archiver.runtime.redaction import excerpt

KEY_BYTES_MAX: Final = 1024
"""UTF-8 bytes of a whole key (S3)."""
COMPONENT_BYTES_MAX: Final = 255
"""UTF-8 bytes between two slashes (Linux file systems)."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
RESERVED: Final = ".spool"
"""Forbidden first component: the local adapter's folder for unfinished files."""


def check_key(key: str) -> None:
    """Raise `InvalidInput` unless `key` may name an object."""
    _check_length(key, key)
    for component in key.split("/"):
        _check_component(component, key)
    _check_not_reserved(key)


def check_prefix(prefix: str) -> None:
    """Raise `InvalidInput` unless a key can start with `prefix`. The last component may be partial or
    empty.
    """
    _check_length(prefix, prefix)
    *folders, cut = prefix.split("/")
    for component in folders:
        _check_component(component, prefix)
    # A last component "." or ".." may be the beginning of a valid name, such as ".a" or "..a".
    if cut and cut not in (".", ".."):
        _check_component(cut, prefix)
    if folders:
        _check_not_reserved(prefix)


def is_key(key: str) -> bool:
    """Whether `check_key` accepts it."""
    try:
        check_key(key)
    except InvalidInput:
        return False
    return True


def goes_on(folder: str, name: str) -> bool:
    """Whether `folder + name` is a key or the beginning of one, for a `folder` that was checked before or is
    empty.
    """
    key = f"{folder}{name}"
    try:
        _check_length(key, key)
        _check_component(name, key)
        _check_not_reserved(key)
    except InvalidInput:
        return False
    return True


def _check_length(text: str, key: str) -> None:
    try:
        size = len(text.encode())
    # A lone surrogate, as Python makes it from undecodable file names.
    except UnicodeEncodeError as error:
        raise InvalidInput(f"object key {excerpt(key)!r} is not valid Unicode") from error
    if size > KEY_BYTES_MAX:
        raise InvalidInput(
            f"object key {excerpt(key, 80)!r} has {size} bytes; at most {KEY_BYTES_MAX} are possible"
        )


def _check_component(component: str, key: str) -> None:
    if component in ("", ".", ".."):
        raise InvalidInput(
            f"object key {key!r} has the component {component!r}; keys are relative, without empty, "
            "'.' or '..' components"
        )
    if _CONTROL.search(component):
        raise InvalidInput(f"object key {key!r} has a control character")
    # Bytes and not characters: both limits are of UTF-8.
    if len(component.encode()) > COMPONENT_BYTES_MAX:
        raise InvalidInput(
            f"object key {excerpt(key, 80)!r} has a component of more than {COMPONENT_BYTES_MAX} bytes"
        )


def _check_not_reserved(key: str) -> None:
    if key.split("/", 1)[0] == RESERVED:
        raise InvalidInput(f"object key {key!r} is reserved: {RESERVED} holds unfinished files")
