"""Reads folders of `.proto` files, and compiles texts to descriptor sets in a separate process with limits.

The compiler sees only the given texts, the built-in files and the well-known files. Its time, memory and
output are bounded by the settings. Its errors are reported with file and line.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from archiver.config.settings import CompileSettings, ProtosSettings
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.runtime.redaction import excerpt

# --- Folders of .proto files
_ENTRIES_PER_FILE = 20
"""Folder entries to read at most, per allowed `.proto` file."""
_DEPTH_MAX = 64


class ProtoFolders:
    """One reading of a topic's folders."""

    def __init__(self, protos: ProtosSettings, limits: CompileSettings) -> None:
        self._protos = protos
        self._limits = limits
        # Resolved once, because the folders may be links themselves.
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
        # A link to an enclosing folder, which is walked already.
        if real in above:
            return
        if len(above) > _DEPTH_MAX:
            raise ConfigInvalid(
                f"{folder} is nested deeper than {_DEPTH_MAX} folders; name a folder with less in it"
            )
        try:
            # In name order, so that results and errors do not depend on the file system.
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise ConfigInvalid(
                f"the folder of .proto files {folder} cannot be read: {error.strerror or error}"
            ) from error
        # All entries count: a folder may hold millions of files that are no schemas.
        self._entries += len(entries)
        if self._entries > _ENTRIES_PER_FILE * self._limits.files_max:
            raise ConfigInvalid(
                f"{self._protos.folder} has too many entries to search for .proto files; "
                "name a smaller folder"
            )
        for entry in entries:
            path = folder / entry.name
            # Names become lines of the compiler's argument file, and parts of messages.
            if not entry.name.isprintable():
                raise ConfigInvalid(f"{folder} holds {entry.name!r}, whose name cannot be printed; rename it")
            is_proto = entry.name.endswith(".proto")
            # A file that is left out would only cause a confusing compiler error; a folder may be unrelated.
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
            # Opening a named pipe would block without O_NONBLOCK.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                # Checked on the open file, because the path could be replaced in between.
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ConfigInvalid(f"{path} is no regular file; a .proto must be one")
                # One byte beyond the bound shows that it is exceeded.
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


# --- Built-in and well-known files
FOLDER = Path(__file__).with_name("builtin_protos")
DESCRIPTORS = FOLDER / "builtin.binpb"
"""The folder's files as a descriptor set, without their imports; written by `scripts/generate_proto.py`."""

_WELL_KNOWN = (
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
"""The `google/protobuf` files, whose descriptors are in the Protobuf library."""


@cache
def builtin_texts() -> Mapping[str, bytes]:
    """Texts by import name, without the `google/protobuf` files, which are part of the compiler."""
    return MappingProxyType(
        {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in sorted(FOLDER.rglob("*.proto"))}
    )


@cache
def builtin_descriptors() -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
    """Descriptors by import name, including the `google/protobuf` files. Do not change the values."""
    found = {
        file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    }
    for name in _WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{name}_pb2")
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        found[file.name] = file
    return MappingProxyType(found)


# --- The compiler
_LINES_SHOWN = 20
_OUTPUT_SHOWN_MAX = 64 * 1024
"""Bytes of the compiler's messages to read."""
_CACHED_MAX = 64
_CACHED_BYTES_MAX = 64 * 2**20
_ROOT = re.compile(r"^\d+/")
"""Prefix of a file name in messages: the number of its root."""
# Lines that are no errors: blank ones, warnings, and log lines of the compiler's libraries.
_CHATTER = re.compile(r"^\s*$|: warning: |^WARNING: |^[IW]\d{4} ")
_PROCESS = Path(__file__).with_name("compile_process.py")

Texts = Mapping[str, bytes]
"""Texts of `.proto` files by import name."""


class ProtoCompiler:
    """The compiler with a cache: the same texts are compiled once. Safe for several threads."""

    def __init__(self, limits: CompileSettings) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._results: OrderedDict[bytes, bytes] = OrderedDict()

    def folder(self, protos: ProtosSettings) -> bytes:
        """The descriptor set of a folder, imports included.

        Raises `ConfigInvalid` if the folder is invalid, the compiler rejects a file, or a bound is exceeded.
        Raises `RetryLater` if this machine cannot start the compiler now.
        """
        roots = ProtoFolders(protos, self._limits).read()
        targets = protos.files or tuple(sorted(roots[0]))
        if not targets:
            raise ConfigInvalid(f"the folder {protos.folder} holds no .proto file")
        for name in targets:
            if name not in roots[0]:
                raise ConfigInvalid(f"the folder {protos.folder} holds no file {name}; correct protos.files")
        return self.texts(roots, targets, f"the folder {protos.folder}")

    def texts(
        self,
        roots: Sequence[Texts],
        targets: Sequence[str],
        where: str,
        described: Mapping[str, FileDescriptorProto] | None = None,
    ) -> bytes:
        """The descriptor set of the files `targets` of the first root or of `described`, with all their
        imports.

        Imports are searched in the roots in order, in `described` (files that are descriptors already), and
        last in the built-in files. Names must be relative paths without `.` and `..`. Error messages begin
        with `where`. Raises as `folder`.
        """
        known = FileDescriptorSet(file=list((described or {}).values())).SerializeToString(deterministic=True)
        digest = _digest([*roots, {"": known}], targets)
        with self._lock:
            if digest in self._results:
                self._results.move_to_end(digest)
                return self._results[digest]
        # Last among the roots, so that a file of the user takes precedence.
        builtin = {name: text for name, text in builtin_texts().items() if name not in (described or {})}
        # Not under the lock, because it takes up to `timeout`.
        result = self._compiled([*roots, builtin], targets, where, known)
        with self._lock:
            self._results[digest] = result
            while (
                len(self._results) > _CACHED_MAX or sum(map(len, self._results.values())) > _CACHED_BYTES_MAX
            ):
                self._results.popitem(last=False)
        return result

    def _compiled(self, roots: Sequence[Texts], targets: Sequence[str], where: str, known: bytes) -> bytes:
        """Run the compiler; `known` is a descriptor set of files that need no compilation."""
        packages = _packages()
        try:
            with tempfile.TemporaryDirectory(prefix="archiver-protos-") as name:
                folder = Path(name)
                _write(folder, roots, where)
                # A file of a root has the root before its name, so that no name is mistaken for an option. A
                # described file has only its own name.
                files = [f"0/{one}" if one in roots[0] else one for one in targets]
                arguments = [
                    "--include_imports",
                    "--descriptor_set_out=out",
                    *(f"-I{number}" for number in range(len(roots))),
                    *files,
                ]
                if known:
                    (folder / "known").write_bytes(known)
                    arguments.insert(0, "--descriptor_set_in=known")
                # A file, because a command line could be too long.
                (folder / "arguments").write_text(
                    "".join(f"{argument}\n" for argument in arguments), encoding="utf-8"
                )
                self._run(folder, packages, where)
                return (folder / "out").read_bytes()
        except OSError as error:
            # A full disk or too many processes: the state of the machine, not of the schema.
            raise RetryLater(f"{where} cannot be compiled now: {error}") from error

    def _run(self, folder: Path, packages: Path, where: str) -> None:
        limits = self._limits
        # The kernel limits processor time in whole seconds.
        bounds = (limits.memory_max, math.ceil(limits.timeout), limits.output_max)
        # Isolated: no variables, no site packages, and no current folder on the path.
        command = [sys.executable, "-I", "-S", str(_PROCESS), str(packages), *map(str, bounds), "@arguments"]
        # A file instead of a pipe: the limit of output bounds it too, and nothing has to be drained.
        with (folder / "messages").open("wb") as messages:
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    # Nothing of the daemon's environment, which may hold secrets.
                    env={"LC_ALL": "C.UTF-8"},
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    timeout=limits.timeout,
                    # A Ctrl-C in the terminal must not reach the compiler.
                    start_new_session=True,
                    check=False,
                )
            # The limit of processor time does not end a process that only waits.
            except subprocess.TimeoutExpired as error:
                raise ConfigInvalid(
                    _too_much(where, f"took longer than {limits.timeout:g} s", "timeout")
                ) from error
        if done.returncode == 0:
            return
        with (folder / "messages").open("rb") as file:
            output = file.read(_OUTPUT_SHOWN_MAX).decode("utf-8", "replace")
        raise ConfigInvalid(self._refusal(done.returncode, output, where))

    def _refusal(self, code: int, output: str, where: str) -> str:
        """The message for a failed compilation."""
        limits = self._limits
        # Soft and hard limit are equal, so the kernel may send either signal.
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return _too_much(where, f"took more than {limits.timeout:g} s of the processor", "timeout")
        # A failed allocation ends Python with MemoryError, and C++ with bad_alloc or abort.
        if "MemoryError" in output or "bad_alloc" in output or code == -signal.SIGABRT:
            return _too_much(where, f"needed more than {limits.memory_max:,} bytes of memory", "memory_max")
        # Python ignores SIGXFSZ, so a write beyond the limit fails with this text.
        if "File too large" in output:
            return _too_much(where, f"gives more than {limits.output_max:,} bytes", "output_max")
        if code < 0:
            return f"{where} cannot be compiled: the compiler died of signal {-code}"
        lines = [_ROOT.sub("", line) for line in output.splitlines() if not _CHATTER.search(line)]
        more = [f"and {len(lines) - _LINES_SHOWN} more lines"] if len(lines) > _LINES_SHOWN else []
        return "\n  ".join([f"{where} does not compile:", *map(excerpt, lines[:_LINES_SHOWN]), *more])


def _too_much(where: str, what: str, setting: str) -> str:
    return f"{where} does not compile: the compiler {what} (schema_registry.compile.{setting})"


def _packages() -> Path:
    """The folder of the compiler's package."""
    # Only located, because the compiler is imported in its own process.
    found = importlib.util.find_spec("grpc_tools")
    if found is None or found.origin is None:
        raise ConfigInvalid(
            "schemas from .proto files and from a registry need the compiler, which is not installed: "
            "pip install 'stream-archiver[protos]'; a descriptor_set needs none"
        )
    return Path(found.origin).parent.parent


def _write(folder: Path, roots: Sequence[Texts], where: str) -> None:
    for number, texts in enumerate(roots):
        (folder / str(number)).mkdir()
        for name, text in texts.items():
            path = folder / str(number) / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                raise ConfigInvalid(
                    f"{where} has {name!r} both as a file and as a folder; rename one"
                ) from error


def _digest(roots: Sequence[Texts], targets: Sequence[str]) -> bytes:
    """A digest that differs for any two compilation tasks."""
    digest = hashlib.sha256()
    # The length comes before each part, so that different tasks never give the same bytes.
    for part in (*(name.encode() for name in targets), b""):
        digest.update(len(part).to_bytes(8, "big") + part)
    for texts in roots:
        digest.update(len(texts).to_bytes(8, "big"))
        for name, text in sorted(texts.items()):
            digest.update(
                len(name.encode()).to_bytes(8, "big") + name.encode() + len(text).to_bytes(8, "big") + text
            )
    return digest.digest()
