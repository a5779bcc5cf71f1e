"""The tools that judge what is deployed: Helm, kubeconform and Compose's own reader built with Go, promtool
from Debian, and the schemas of Kubernetes' objects.

Owns `.cache/parts/deploy`. Two processes that ask at once fetch once, and what is there under its final name
is whole. On a machine without Go, or without Debian's packages, the tests that need them are skipped by name;
continuous integration skips none.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.absent import Absent
from tests.support.deploy import debian

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "parts" / "deploy"
SOURCES = Path(__file__).resolve().parent
"""Below it are the programs of ours around Helm's and Compose's own packages, with the hashes of all that
they need."""
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"
KUBERNETES = "k8s.io/kubernetes@v1.36.3"
"""Whose API the objects are held against."""
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
"""Whose ServiceMonitor and PrometheusRule."""
DEBIAN = "prometheus"
"""2.42 in Debian 12; promtool is in it."""
BUILD_TIMEOUT_S = 900

KINDS: Final = {
    "configmap-v1": "io.k8s.api.core.v1.ConfigMap",
    "service-v1": "io.k8s.api.core.v1.Service",
    "serviceaccount-v1": "io.k8s.api.core.v1.ServiceAccount",
    "statefulset-apps-v1": "io.k8s.api.apps.v1.StatefulSet",
    "poddisruptionbudget-policy-v1": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "networkpolicy-networking-v1": "io.k8s.api.networking.v1.NetworkPolicy",
    "role-rbac-v1": "io.k8s.api.rbac.v1.Role",
    "rolebinding-rbac-v1": "io.k8s.api.rbac.v1.RoleBinding",
}
"""Schemas by the name under which kubeconform finds them: a kind that is not here is refused."""
OPERATOR_KINDS: Final = {
    "servicemonitor-monitoring-v1": "servicemonitors",
    "prometheusrule-monitoring-v1": "prometheusrules",
}


def fetch_or_tell() -> None:
    """Before the tests: fetch them all, or say whose tests are going to be skipped."""
    for name, make in _MAKERS.items():
        try:
            _there(name, make)
        except Absent as error:
            print(f"there is no {name}, and what needs it is skipped: {error}")


def required(name: str) -> Path:
    """One of `helm`, `kubeconform`, `compose`, `promtool`, `schemas`.

    The test is skipped where there is none, and fails where none may be skipped.
    """
    try:
        return _there(name, _MAKERS[name])
    except Absent as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"there is no {name}: {error}")


def _there(name: str, make: Callable[[Path], Path]) -> Path:
    """The program or folder, made in a folder of its own and then given its name."""
    final = CACHE / name
    if not final.exists():
        with _alone():
            if not final.exists():
                folder = CACHE / f"making-{os.getpid()}"
                folder.mkdir()
                try:
                    make(folder).rename(final)
                finally:
                    shutil.rmtree(folder)
    return final


def _helm(folder: Path) -> Path:
    return _built("helm", folder)


def _compose(folder: Path) -> Path:
    return _built("compose", folder)


def _built(name: str, folder: Path) -> Path:
    for source in (SOURCES / name).iterdir():
        shutil.copy(source, folder)
    _go("build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", name, ".", folder=folder)
    return folder / name


def _kubeconform(folder: Path) -> Path:
    _go("install", KUBECONFORM, folder=folder)
    return folder / "kubeconform"


def _promtool(folder: Path) -> Path:
    debian.unpack([DEBIAN], folder)
    return folder / "usr" / "bin" / "promtool"


def _schemas(folder: Path) -> Path:
    """JSON schemas that refuse what they do not know, of Kubernetes' own description of its API."""
    made = folder / "schemas"
    made.mkdir()
    definitions = json.loads((_module(KUBERNETES, folder) / "api/openapi-spec/swagger.json").read_text())[
        "definitions"
    ]
    for name, definition in KINDS.items():
        (made / f"{name}.json").write_text(json.dumps(_strict(definitions[definition], definitions)))
    resources = _module(OPERATOR, folder) / "example/prometheus-operator-crd"
    for name, plural in OPERATOR_KINDS.items():
        (version,) = yaml.safe_load((resources / f"monitoring.coreos.com_{plural}.yaml").read_text())["spec"][
            "versions"
        ]
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {
            "$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        }
        (made / f"{name}.json").write_text(json.dumps(_strict(schema, definitions)))
    return made


def _strict(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema with what it refers to in its place, and no property that it does not name."""
    if isinstance(schema, list):
        return [_strict(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _strict(definitions[reference.removeprefix("#/definitions/")], definitions)
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {
        name: _strict(value, definitions)
        for name, value in schema.items()
        if name not in ("description", "format", "properties")
    }
    if "properties" in schema:
        found["properties"] = {
            name: _strict(value, definitions) for name, value in schema["properties"].items()
        }
        found.setdefault("additionalProperties", False)
    return found


def _module(module: str, folder: Path) -> Path:
    """Where the Go module lies."""
    document: dict[str, Any] = json.loads(_go("mod", "download", "-json", module, folder=folder))
    return Path(document["Dir"])


def _go(*arguments: str, folder: Path) -> str:
    if not shutil.which("go"):
        raise Absent("this machine has no Go")
    return _run(
        ["go", *arguments],
        folder,
        BUILD_TIMEOUT_S,
        {**os.environ, "GOBIN": str(folder), "GOTOOLCHAIN": "local"},
    )


def _run(command: list[str], folder: Path, timeout_s: float, environ: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Absent(f"{' '.join(command)} took more than {timeout_s:g} s") from error
    if done.returncode != 0:
        raise Absent(f"{' '.join(command)}: {done.stderr[-500:]}")
    return done.stdout


@contextmanager
def _alone() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_MAKERS: Final[dict[str, Callable[[Path], Path]]] = {
    "helm": _helm,
    "kubeconform": _kubeconform,
    "compose": _compose,
    "promtool": _promtool,
    "schemas": _schemas,
}
