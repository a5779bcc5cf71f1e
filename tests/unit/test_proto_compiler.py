"""Folders of .proto files: which files are read, what the compiler can use, and the text of a refusal."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from archiver.config.settings import CompileSettings, ProtosSettings, SchemaRegistrySettings, SchemaSettings
from archiver.registry import compile as compiling
from archiver.registry.compile import ProtoCompiler
from archiver.registry.fetch import SchemaFetcher
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid

ORDER = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "money/money.proto";
message Order { int64 id = 1; money.Money total = 2; google.protobuf.Timestamp at = 3; }
"""
MONEY = 'syntax = "proto3"; package money; message Money { int64 units = 1; string currency = 2; }'


def folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def compiled(root: Path, limits: dict[str, Any] | None = None, **more: Any) -> list[str]:
    """The files of the descriptor set."""
    data = ProtoCompiler(CompileSettings(**(limits or {}))).folder(ProtosSettings(folder=root, **more))
    return [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(data).file]


def refused(root: Path, limits: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        compiled(root, limits, **more)
    return str(caught.value)


def test_a_folder_with_its_imports(tmp_path: Path) -> None:
    root = folder(
        tmp_path / "with space:and=signs",
        {"shop/order.proto": ORDER, "money/money.proto": MONEY, "README": "no proto"},
    )
    assert compiled(root) == ["money/money.proto", "google/protobuf/timestamp.proto", "shop/order.proto"]
    assert compiled(root, files=("money/money.proto",)) == ["money/money.proto"]


def test_a_further_folder_for_imports(tmp_path: Path) -> None:
    root = folder(tmp_path / "own", {"order.proto": ORDER})
    assert 'order.proto:4:1: Import "money/money.proto" was not found' in refused(root)
    other = folder(tmp_path / "other", {"money/money.proto": MONEY, "broken.proto": "nonsense"})
    assert compiled(root, include=(other,))[-1] == "order.proto", (
        "only imported files of a further folder are compiled"
    )


def test_the_fetched_source(tmp_path: Path) -> None:
    root = folder(tmp_path, {"shop/order.proto": ORDER, "money/money.proto": MONEY})
    fetch = SchemaFetcher(SchemaRegistrySettings(), SystemClock())
    settings = SchemaSettings(
        protos=ProtosSettings(folder=root),
        message="shop.Order",
        recursion_depth=1,
        columns={"total.units": "amount"},
    )
    fetched = fetch(settings, None)
    assert (fetched.source.message, fetched.source.recursion_depth, fetched.source.envelope) == (
        "shop.Order",
        1,
        None,
    )
    assert fetched.source.columns == (("total.units", "amount"),)
    assert (fetched.note, fetched.complete) == (None, True)
    with pytest.raises(
        ConfigInvalid, match=r"the folder .* has no message 'shop\.Ordre'; did you mean shop\.Order"
    ):
        fetch(settings.model_copy(update={"message": "shop.Ordre"}), None)
    (root / "shop/order.proto").write_text(ORDER.replace("at = 3;", "at = 3; string note = 4;"))
    assert fetch(settings, None).source != fetched.source, "nothing is remembered of a file that changed"


@pytest.mark.parametrize(
    ("files", "reported"),
    [
        ({"a.proto": 'syntax = "proto3";\nmessage A { int32 = 1; }'}, "a.proto:2:19: Expected field name"),
        ({"a.proto": 'import "b.proto";', "b.proto": 'import "a.proto";'}, "recursively imports itself: a.proto -> b.proto -> a.proto"),
        ({"a.proto": "message A {}", "b.proto": "message A {}"}, '"A" is already defined in file "a.proto"'),
        ({"a.proto": 'syntax = "proto3"; message A { B b = 1; }'}, '"B" is not defined'),
        ({"a.proto": 'import "../outside.proto";'}, "outside.proto"),
        ({"a.proto": 'import "/etc/hosts";'}, "/etc/hosts"),
        ({}, "holds no .proto file"),
    ],
)  # fmt: skip
def test_what_the_compiler_refuses(tmp_path: Path, files: dict[str, str], reported: str) -> None:
    (tmp_path / "outside.proto").write_text(MONEY)
    root = tmp_path / "own"
    root.mkdir()
    words = refused(folder(root, files))
    assert reported in words
    assert words.startswith(f"the folder {root} ")
    assert "archiver-protos-" not in words, "no name of a scratch folder"


def test_long_complaints_are_cut(tmp_path: Path) -> None:
    broken = "\n".join(f"message M{number} {{ Nothing a = 1; }}" for number in range(500))
    words = refused(folder(tmp_path, {"a.proto": f'syntax = "proto3";\n{broken}'}))
    assert words.count("\n") < 25
    assert "more lines" in words


def test_names_that_look_like_options_are_files(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    root = folder(
        tmp_path / "own",
        {f"--cpp_out={tmp_path.name}.proto": MONEY, "@a.proto": MONEY.replace("money", "other")},
    )
    assert sorted(compiled(root)) == sorted([f"--cpp_out={tmp_path.name}.proto", "@a.proto"])
    assert not marker.exists()


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    outside = folder(tmp_path / "outside", {"money.proto": MONEY})
    root = folder(tmp_path / "own", {"order.proto": ORDER})
    (root / "money").mkdir()
    (root / "money/money.proto").symlink_to(outside / "money.proto")
    assert (
        f"is a link to {outside}/money.proto, outside of {root}; list that folder under include"
        in refused(root)
    )
    assert compiled(root, files=("order.proto",), include=(outside,))[-1] == "order.proto", (
        "unless it is listed"
    )
    (root / "money/money.proto").unlink()
    (root / "money").rmdir()
    (root / "money").symlink_to(outside)
    assert "was not found" in refused(root), "nor does a link to a folder"
    assert compiled(root, files=("order.proto",), include=(outside,))[-1] == "order.proto"


def test_folders_that_contain_themselves(tmp_path: Path) -> None:
    root = folder(tmp_path, {"money.proto": MONEY})
    (root / "again").symlink_to(root)
    assert compiled(root) == ["money.proto"]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.proto")
    assert "a.proto is no regular file" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "nowhere")
    assert "is no folder" in refused(folder(tmp_path, {"file": ""}) / "file")
    assert "holds no file b.proto" in refused(folder(tmp_path / "x", {"a.proto": MONEY}), files=("b.proto",))


@pytest.mark.parametrize(
    ("limits", "reported"),
    [
        ({"files_max": 2}, "more than 2 .proto files (schema_registry.compile.files_max)"),
        ({"bytes_max": 1024}, "larger than 1,024 bytes together (schema_registry.compile.bytes_max)"),
        ({"output_max": 1024}, "gives more than 1,024 bytes (schema_registry.compile.output_max)"),
        ({"timeout": 0.01}, "took longer than 0.01 s (schema_registry.compile.timeout)"),
    ],
)
def test_every_bound(tmp_path: Path, limits: dict[str, Any], reported: str) -> None:
    many = " ".join(f"message M{number} {{ int32 a = 1; string b = 2; }}" for number in range(500))
    root = folder(tmp_path, {f"{name}.proto": f'syntax = "proto3"; package {name}; {many}' for name in "abc"})
    assert len(compiled(root)) == 3
    assert reported in refused(root, limits)


def test_memory_is_bounded(tmp_path: Path) -> None:
    many = " ".join(f"message M{number} {{ int32 a = 1; string b = 2; }}" for number in range(60_000))
    root = folder(tmp_path, {"a.proto": f'syntax = "proto3"; {many}'})
    assert "needed more than 134,217,728 bytes of memory (schema_registry.compile.memory_max)" in refused(
        root, {"memory_max": 128 * 2**20}
    )


def test_the_processor_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel enforces it, in case the process that waits for the compiler has died."""
    spinning = tmp_path / "spinning.py"
    source = Path(compiling.__file__).with_name("compile_process.py").read_text()
    spinning.write_text(
        source.replace("    from grpc_tools import protoc\n", "    while True:\n        pass\n")
    )
    monkeypatch.setattr(compiling, "_PROCESS", spinning)
    monkeypatch.setattr(subprocess, "run", _patient(subprocess.run))
    assert "took more than 0.5 s of the processor" in refused(
        folder(tmp_path / "own", {"a.proto": MONEY}), {"timeout": 0.5}
    )


def _patient(run: Any) -> Any:
    return lambda *arguments, **more: run(*arguments, **{**more, "timeout": 60})


def test_the_compiler_knows_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpc_tools").mkdir()
    (tmp_path / "grpc_tools/__init__.py").write_text("raise SystemExit(77)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "grpc_tools/__init__.py"))
    assert compiled(folder(tmp_path / "own", {"a.proto": MONEY})) == ["a.proto"]


def test_without_the_compiler_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "grpc_tools" else found(name)
    )
    assert "pip install 'stream-archiver[protos]'" in refused(folder(tmp_path, {"a.proto": MONEY}))


def test_the_same_texts_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    run: Any = subprocess.run

    def counted(*given: Any, **more: Any) -> Any:
        runs.append(given)
        return run(*given, **more)

    monkeypatch.setattr(subprocess, "run", counted)
    compiler = ProtoCompiler(CompileSettings())
    for name, text in (("a", MONEY), ("b", MONEY), ("a", MONEY), ("a", MONEY + "//")):
        compiler.folder(ProtosSettings(folder=folder(tmp_path / name, {"m.proto": text})))
    assert len(runs) == 2, "the same texts in another folder are the same"
