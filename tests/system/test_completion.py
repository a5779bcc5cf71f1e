"""What the shell offers on Tab: by the protocol that the installed script speaks, with real processes and,
where it is there, real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders.deployment import ROOT, Deployment

HEAVY = ("pyspark", "pyiceberg", "duckdb", "sqlite3")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def offered(deployment: Deployment, *words: str, shell: str = "bash", config: str | None = None) -> list[str]:
    """What is offered for the last word."""
    environ = {**deployment.environ(), "_ARCHIVER_COMPLETE": f"complete_{shell}"}
    if config is not None:
        environ["ARCHIVER_CONFIG"] = config
    line = " ".join(["archiver", *words])
    environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_TYPER_COMPLETE_ARGS": line}
    environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "archiver"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        cwd=deployment.root,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_topics_tables_and_formats_come_from_the_configuration(deployment: Deployment) -> None:
    assert offered(deployment, "topics", "describe", "") == ["orders", "clicks", "files", "kept"]
    assert offered(deployment, "consume", "--topic", "c") == ["clicks"]
    assert offered(deployment, "explain", "o") == ["orders"]
    assert offered(deployment, "schema", "plan", "or") == ["orders"]
    assert offered(deployment, "schema", "") == ["show", "plan", "check"]
    assert offered(deployment, "audit", "--topic", "k") == ["kept"]
    assert offered(deployment, "audit", "--output", "") == ["text", "json"]
    assert "explain" in offered(deployment, "e")
    assert offered(deployment, "query", "shop.o") == ["shop.orders"]
    assert offered(deployment, "query", "--output", "") == ["table", "vertical", "csv", "json", "text"]
    assert offered(deployment, "tables", "o") == ["orders"]
    assert offered(deployment, "--topic", "x") == []


def test_the_file_that_the_command_line_names(deployment: Deployment, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "topics: [{name: elsewhere, partitions: 3}, {name: }, 7]\nnonsense: true\n", encoding="utf-8"
    )
    assert offered(deployment, "consume", "-c", str(other), "--topic", "") == ["elsewhere"]
    assert offered(deployment, "consume", "--topic", "e", config=str(other)) == ["elsewhere"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(deployment: Deployment, shell: str) -> None:
    assert "clicks" in " ".join(offered(deployment, "consume", "--topic", "cl", shell=shell))


def test_nothing_but_names_reaches_the_prompt(deployment: Deployment, tmp_path: Path) -> None:
    """With any configuration: broken, gone, a folder, a pipe without a writer, nested without end."""
    broken, pipe, deep = tmp_path / "broken.yaml", tmp_path / "pipe", tmp_path / "deep.yaml"
    broken.write_text("topics: [", encoding="utf-8")
    deep.write_text("[" * 5000, encoding="utf-8")
    os.mkfifo(pipe)
    for config in (broken, pipe, deep, tmp_path, tmp_path / "gone.yaml"):
        assert offered(deployment, "consume", "--topic", "", config=str(config)) == []


def test_nothing_heavy_is_loaded_and_nothing_is_opened(deployment: Deployment) -> None:
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: open('loaded', 'w').write(' '.join(name for name in {HEAVY} if name "
        "in sys.modules)))\n"
        "from archiver.cli.app import main\nsys.argv = ['archiver']\nmain()\n"
    )
    environ = {
        **deployment.environ(),
        "_ARCHIVER_COMPLETE": "complete_bash",
        "COMP_WORDS": "archiver consume --topic ",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        cwd=deployment.root,
        check=False,
    )
    assert done.stdout.split() == ["orders", "clicks", "files", "kept"]
    assert (deployment.root / "loaded").read_text() == ""
    assert not deployment.data.exists()
    assert not (deployment.root / "metadata.db").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_is_installed_into_the_home_of_the_user_who_asks(
    deployment: Deployment, tmp_path: Path, shell: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environ = {**deployment.environ(), "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = (
        "1"  # else the shell that runs the tests is taken
    )
    shown = subprocess.run(
        [sys.executable, "-m", "archiver", "--show-completion", shell],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        cwd=home,
        check=False,
    )
    assert (shown.returncode, "_ARCHIVER_COMPLETE" in shown.stdout) == (0, True), shown.stderr
    done = subprocess.run(
        [sys.executable, "-m", "archiver", "--install-completion", shell],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        cwd=home,
        check=False,
    )
    assert (done.returncode, f"{shell} completion installed" in done.stdout) == (0, True), done.stderr
    assert any("_ARCHIVER_COMPLETE" in path.read_text() for path in home.rglob("*") if path.is_file())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_installed_script(deployment: Deployment, tmp_path: Path) -> None:
    """The script in a real bash: the function that Tab would call, and what it would offer."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "archiver"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m archiver "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    script = subprocess.run(
        [str(command)],  # --show-completion would ask which shell has started it
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **deployment.environ(),
            "PATH": f"{folder}:{os.environ['PATH']}",
            "_ARCHIVER_COMPLETE": "source_bash",
        },
        cwd=ROOT,
        check=True,
    ).stdout
    asking = (
        f"{script}\nfunction_of=$(complete -p archiver | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'COMP_WORDS=(archiver consume --topic o); COMP_CWORD=3; "$function_of" archiver\nprintf '
        '"%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asking],
        capture_output=True,
        text=True,
        timeout=60,
        env={**deployment.environ(), "PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=deployment.root,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["orders"], ""), done
