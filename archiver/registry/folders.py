"""Read folders of `.proto` files into memory, so that one bounded state of them is compiled.

Only regular files below the configured folders are read, also through links. A folder that grows without end
stops the reading.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from archiver.config.settings import CompileSettings, ProtosSettings
from archiver.runtime.errors import ConfigInvalid

_ENTRIES_PER_FILE = 20
"""Folder entries to read at most, per allowed `.proto` file."""
_DEPTH_MAX = 64


class ProtoFolders:
    """One reading of a topic's folders."""

    def __init__(self, protos: ProtosSettings, limits: CompileSettings) -> None:
        self._protos = protos
        self._limits = limits
        self._allowed = tuple(Path(os.path.realpath(folder)) for folder in (protos.folder, *protos.include))
        self._files = 0
        self._bytes = 0
        self._entries = 0

    def read(self) -> tuple[dict[str, bytes], ...]:
        """The `.proto` files of each folder (the topic's own first, then `include`), as bytes by relative
        name.

        Raises `ConfigInvalid` if a folder is unreadable, a link leads out of the folders, or a bound is
        exceeded.
        """
        found = []
        for folder in (self._protos.folder, *self._protos.include):
            if not folder.is_dir():
                raise ConfigInvalid(
                    f"the folder of .proto files {folder} "
                    f"{'is no folder' if folder.exists() else 'does not exist'}"
                )
            found.append(
                {path.relative_to(folder).as_posix(): self._bytes_of(path) for path in self._walk(folder, ())}
            )
        return tuple(found)

    def _walk(self, folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
        """Every `.proto` below a folder, in name order."""
        real = Path(os.path.realpath(folder))
        if real in above:
            return  # a link to an enclosing folder, which is walked already
        if len(above) > _DEPTH_MAX:
            raise ConfigInvalid(
                f"{folder} is nested deeper than {_DEPTH_MAX} folders; name a folder with less in it"
            )
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise ConfigInvalid(
                f"the folder of .proto files {folder} cannot be read: {error.strerror or error}"
            ) from error
        self._entries += len(entries)
        if self._entries > _ENTRIES_PER_FILE * self._limits.files_max:
            raise ConfigInvalid(
                f"{self._protos.folder} has too many entries to search for .proto files; "
                "name a smaller folder"
            )
        for entry in entries:
            path = folder / entry.name
            if not entry.name.isprintable():
                raise ConfigInvalid(f"{folder} holds {entry.name!r}, whose name cannot be printed; rename it")
            is_proto = entry.name.endswith(".proto")
            if entry.is_symlink() and not self._inside(path):
                if is_proto:
                    raise ConfigInvalid(
                        f"{path} is a link to {os.path.realpath(path)}, outside of "
                        f"{self._protos.folder}; list that folder under include"
                    )
                continue
            if entry.is_dir():
                yield from self._walk(path, (*above, real))
            elif is_proto:
                yield path

    def _inside(self, path: Path) -> bool:
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(folder) for folder in self._allowed)

    def _bytes_of(self, path: Path) -> bytes:
        """The content of a regular file."""
        self._files += 1
        if self._files > self._limits.files_max:
            raise ConfigInvalid(
                f"{self._protos.folder} and what it includes hold more than {self._limits.files_max:,} "
                ".proto files "
                "(schema_registry.compile.files_max); name a folder with less in it"
            )
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ConfigInvalid(f"{path} is no regular file; a .proto must be one")
                data = file.read(self._limits.bytes_max - self._bytes + 1)
        except OSError as error:
            raise ConfigInvalid(f"{path} cannot be read: {error.strerror or error}") from error
        self._bytes += len(data)
        if self._bytes > self._limits.bytes_max:
            raise ConfigInvalid(
                f"the .proto files of {self._protos.folder} are larger than {self._limits.bytes_max:,} "
                "bytes together "
                "(schema_registry.compile.bytes_max); name a folder with less in it"
            )
        return data
