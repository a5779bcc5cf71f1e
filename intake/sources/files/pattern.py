"""Which files a pattern means, right now.

Owns the rules about names: hidden ones and those that say "not complete yet" are passed over, links are not
followed, and only regular files count. Promises to open nothing, to follow no link below the part of the
pattern without wildcards, and to look on where one folder cannot be read.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

UNFINISHED_SUFFIXES = ("~", ".tmp", ".part", ".partial")
"""A name that ends so is passed over, unless the pattern ends in just that."""
_ESCAPED = re.compile(r"\[([*?[])\]")
_ANY_DEPTH = "**"

Report = Callable[[str, str], None]
"""Takes a path and why it is not taken in."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An absolute pattern of paths: `*`, `?`, `[…]` within a name, `**` for any number of folders."""

    folder: str
    """The part without wildcards: where looking begins. Links in it are followed."""
    parts: tuple[str, ...]
    """What follows, name by name."""

    @classmethod
    def of(cls, text: str) -> Pattern:
        """The pattern that is written so."""
        names = [name for name in text.split("/") if name not in ("", ".")]
        fixed = 0
        while fixed < len(names) - 1 and _literal(names[fixed]) is not None:
            fixed += 1
        folder = "/" + "/".join(_literal(name) or name for name in names[:fixed])
        parts = tuple(
            name
            for place, name in enumerate(names[fixed:])
            if name != _ANY_DEPTH or names[fixed:][place - 1 : place] != [name]
        )
        return cls(folder, (*parts, "*") if parts[-1] == _ANY_DEPTH else parts)

    def files(self, report: Report) -> Iterator[str]:
        """The absolute paths of the regular files that match, in no order.

        Raises `FileNotFoundError` if the folder is not there; what cannot be taken in for another reason is
        reported.
        """
        matcher = _Matcher(self.parts)
        waiting: list[tuple[str, tuple[str, ...]]] = [(self.folder, ())]
        while waiting:
            folder, names = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        inner = (*names, entry.name)
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if matcher.may_hold(inner):
                                waiting.append((entry.path, inner))
                        elif matcher.fits(inner) and _is_takeable(entry, report):
                            yield entry.path
            except FileNotFoundError:
                if not names:
                    raise
            except OSError as error:
                report(
                    folder,
                    f"the folder cannot be read: {error.strerror}; make it one that this process may "
                    "read and enter",
                )


class _Matcher:
    def __init__(self, parts: tuple[str, ...]) -> None:
        self._names = [None if part == _ANY_DEPTH else re.compile(fnmatch.translate(part)) for part in parts]
        self._depth = self._names.index(None) if None in self._names else None
        self._passed_over = tuple(suffix for suffix in UNFINISHED_SUFFIXES if not parts[-1].endswith(suffix))

    def may_hold(self, names: tuple[str, ...]) -> bool:
        """Whether a folder of that path can hold what matches; the folders around it were asked about
        before.
        """
        if self._depth is not None and len(names) > self._depth:
            return True
        pattern = self._names[len(names) - 1] if len(names) < len(self._names) else None
        return pattern is not None and pattern.match(names[-1]) is not None

    def fits(self, names: tuple[str, ...]) -> bool:
        """Whether a file of that path is meant."""
        if names[-1].endswith(self._passed_over):
            return False
        return self._fit(names, 0, 0)

    def _fit(self, names: tuple[str, ...], name: int, part: int) -> bool:
        if part == len(self._names):
            return name == len(names)
        pattern = self._names[part]
        if pattern is None:
            return any(self._fit(names, after, part + 1) for after in range(name, len(names)))
        return (
            name < len(names)
            and pattern.match(names[name]) is not None
            and self._fit(names, name + 1, part + 1)
        )


def _literal(name: str) -> str | None:
    """The name that the part of a pattern stands for; None if it has a wildcard."""
    plain = _ESCAPED.sub(r"\1", name)
    return (
        plain if name in (plain, glob.escape(plain)) and (name != plain or not glob.has_magic(name)) else None
    )


def _is_takeable(entry: os.DirEntry[str], report: Report) -> bool:
    """Whether what matches by its name is a file that can be known by its name."""
    if entry.is_symlink():
        report(
            entry.path,
            "a symbolic link is not followed: the file would be known by two names; move the file "
            "itself here",
        )
        return False
    if not entry.is_file(follow_symlinks=False):
        report(
            entry.path,
            "this is no regular file but a pipe, a socket or a device; take it out of the folder, or "
            "narrow the pattern",
        )
        return False
    try:
        entry.path.encode("utf-8")
    except UnicodeEncodeError:
        report(
            entry.path.encode("utf-8", "backslashreplace").decode(),
            "the name is no UTF-8 text; rename the file",
        )
        return False
    return True
