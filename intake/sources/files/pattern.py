"""Find the files that match a pattern.

Hidden names and names of unfinished files are skipped, links are not followed, and only regular files count.
No file is opened. Links are followed only in the part of the pattern without wildcards. An unreadable folder
is reported and the search continues.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

UNFINISHED_SUFFIXES = ("~", ".tmp", ".part", ".partial")
"""Files with these suffixes are skipped, unless the pattern ends with the suffix."""
_ESCAPED = re.compile(r"\[([*?[])\]")
_ANY_DEPTH = "**"

Report = Callable[[str, str], None]
"""Called with a path and the reason why it is not ingested."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An absolute pattern of paths: `*`, `?`, `[…]` within a name, `**` for any number of folders."""

    folder: str
    """The part without wildcards, where the search begins. Links in it are followed."""
    parts: tuple[str, ...]
    """The remaining names."""

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Parse a pattern."""
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
        """The absolute paths of the matching regular files, in no particular order.

        Raises `FileNotFoundError` if the folder does not exist. Matches that cannot be ingested are reported.
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
        """Whether a folder of that path can contain matches, given that its parents can."""
        if self._depth is not None and len(names) > self._depth:
            return True
        pattern = self._names[len(names) - 1] if len(names) < len(self._names) else None
        return pattern is not None and pattern.match(names[-1]) is not None

    def fits(self, names: tuple[str, ...]) -> bool:
        """Whether a file of that path matches."""
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
    """The literal name of a part of a pattern; None if it has a wildcard."""
    plain = _ESCAPED.sub(r"\1", name)
    return (
        plain if name in (plain, glob.escape(plain)) and (name != plain or not glob.has_magic(name)) else None
    )


def _is_takeable(entry: os.DirEntry[str], report: Report) -> bool:
    """Whether a match is a regular file with a usable name; reports the reason if not."""
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
            "this is no regular file but a pipe, a socket or a device; remove it from the folder, or "
            "narrow the pattern",
        )
        return False
    try:
        entry.path.encode("utf-8")
    except UnicodeEncodeError:
        report(
            entry.path.encode("utf-8", "backslashreplace").decode(),
            "the name is not valid UTF-8; rename the file",
        )
        return False
    return True
