"""Compile `.proto` texts to descriptor sets in a separate process with limits.

The compiler sees only the given texts, the built-in files and the well-known files, and has an empty
environment. Its time, memory and output are bounded by the settings. Its errors are reported with file and
line.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from archiver.config.settings import CompileSettings, ProtosSettings
from archiver.registry.builtin import builtin_texts
from archiver.registry.folders import ProtoFolders
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.runtime.redaction import excerpt

_LINES_SHOWN = 20
_OUTPUT_SHOWN_MAX = 64 * 1024
"""Bytes of the compiler's messages to read."""
_CACHED_MAX = 64
_CACHED_BYTES_MAX = 64 * 2**20
_ROOT = re.compile(r"^\d+/")
"""Prefix of a file name in messages: the number of its root."""
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
        builtin = {name: text for name, text in builtin_texts().items() if name not in (described or {})}
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
                # The arguments are in a file, because a command line could be too long. A file of a root has
                # the root before its name, so no name can look like an option. A described file has only its
                # own name.
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
                (folder / "arguments").write_text(
                    "".join(f"{argument}\n" for argument in arguments), encoding="utf-8"
                )
                self._run(folder, packages, where)
                return (folder / "out").read_bytes()
        except OSError as error:
            raise RetryLater(f"{where} cannot be compiled now: {error}") from error

    def _run(self, folder: Path, packages: Path, where: str) -> None:
        limits = self._limits
        bounds = (limits.memory_max, math.ceil(limits.timeout), limits.output_max)
        command = [sys.executable, "-I", "-S", str(_PROCESS), str(packages), *map(str, bounds), "@arguments"]
        with (folder / "messages").open("wb") as messages:
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={"LC_ALL": "C.UTF-8"},
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    timeout=limits.timeout,
                    start_new_session=True,
                    check=False,
                )
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
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return _too_much(where, f"took more than {limits.timeout:g} s of the processor", "timeout")
        if "MemoryError" in output or "bad_alloc" in output or code == -signal.SIGABRT:
            return _too_much(where, f"needed more than {limits.memory_max:,} bytes of memory", "memory_max")
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
    for part in (*(name.encode() for name in targets), b""):
        digest.update(len(part).to_bytes(8, "big") + part)
    for texts in roots:
        digest.update(len(texts).to_bytes(8, "big"))
        for name, text in sorted(texts.items()):
            digest.update(
                len(name.encode()).to_bytes(8, "big") + name.encode() + len(text).to_bytes(8, "big") + text
            )
    return digest.digest()
