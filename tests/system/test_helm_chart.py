"""The Helm chart: Helm, Kubernetes' own description of its API, and the archiver itself accept what it
renders.

No cluster runs here: what a control plane would do with the objects is not shown.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import Settings, load_settings
from archiver.runtime.errors import ConfigInvalid
from tests.support.builders.deployment import Deployment
from tests.support.deploy import deploy_parts
from tests.support.deploy.dockerfile import of, read_dockerfile
from tests.support.deploy.installation import ROOT
from tests.support.process.serving import Served, quick

HELM = ROOT / "deploy" / "helm"
CHART = HELM / "stream-archiver"
EXAMPLES = tuple(sorted((HELM / "examples").glob("*.yaml")))
ONE, CLUSTER = HELM / "examples" / "one.yaml", HELM / "examples" / "cluster.yaml"
SECRETS = "/etc/stream-archiver-secrets/"
NAME = "archiver-stream-archiver"
TIMEOUT_S = 60

Object = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [deploy_parts.required("helm"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@cache
def text_of(*values: Path) -> str:
    done = helm("template", "archiver", "prod", CHART, *values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(*values: Path) -> list[Object]:
    return [one for one in yaml.safe_load_all(text_of(*values)) if one is not None]


def with_values(tmp_path: Path, **values: Any) -> Path:
    path = tmp_path / "more.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def pods(objects: list[Object]) -> list[Object]:
    return [one["spec"]["template"]["spec"] for one in of_kind(objects, "StatefulSet")]


def judged(text: str) -> subprocess.CompletedProcess[str]:
    schemas = deploy_parts.required("schemas") / "{{ .ResourceKind }}{{ .KindSuffix }}.json"
    command: list[str | Path] = [
        deploy_parts.required("kubeconform"),
        "-strict",
        "-summary",
        "-output",
        "json",
        "-schema-location",
        schemas,
        "-",
    ]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.stem)
def values(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


# Helm and Kubernetes


def test_helm_has_nothing_against_the_chart(values: Path) -> None:
    done = helm("lint", CHART, values)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"replicas": 3}, "replicas"),
        ({"image": {"tag": 1}}, "image"),
        ({"image": {"digest": "sha256:0"}}, "digest"),
        ({"workloads": [{"name": "a", "roles": ["cook"], "replicas": 1}]}, "roles"),
        ({"config": {"http": {"listen": "0.0.0.0:1"}}}, "listen"),
        ({"env": [{"name": "A", "value": "b", "secret": "c"}]}, "env"),
        ({"files": {"a.binpb": "no base64!"}}, "files"),
        ({"storage": {"accessModes": ["ReadWriteMany"]}}, "accessModes"),
    ],
)
def test_values_that_the_chart_does_not_know_are_refused(
    tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    more = with_values(tmp_path, **change)
    for done in (helm("lint", CHART, ONE, more), helm("template", "a", "b", CHART, ONE, more)):
        assert done.returncode != 0
        assert word in done.stdout + done.stderr


def test_the_schema_of_the_values_names_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_kubernetes_knows_every_object_and_every_field(values: Path) -> None:
    done = judged(text_of(values))
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["summary"]["valid"] == len(rendered(values)) > 5


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("runAsNonRoot: true", "runAsNoRoot: true"),
        ("periodSeconds: 10", "periodSeconds: ten"),
        ("kind: PodDisruptionBudget", "kind: PodDisruptionLimit"),
        ("interval: 15s", "interval: often"),
        ("httpGet:", "httpAsk:"),
    ],
)
def test_the_judge_can_fail(was: str, becomes: str) -> None:
    text = text_of(CLUSTER)
    assert was in text
    assert judged(text.replace(was, becomes)).returncode != 0


# The configuration inside


def loaded(objects: list[Object], folder: Path) -> Settings:
    """As the archiver reads it in a pod: its files, the mounted secrets, the environment that the pod gives
    it."""
    (config,) = [one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"] == NAME]
    pod = pods(objects)[0]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    text = config["data"]["archiver.yaml"]
    for volume in pod["volumes"]:
        if "secret" in volume:
            where = mounts[volume["name"]] + "/"
            assert where.startswith(SECRETS)
            for key in re.findall(re.escape(where) + r"(\S+)", text):
                planted = folder / "secrets" / volume["secret"]["secretName"] / key
                planted.parent.mkdir(parents=True, exist_ok=True)
                planted.write_text("planted-by-the-test")
    for name, contents in config.get("binaryData", {}).items():
        (folder / name).write_bytes(base64.b64decode(contents))
    (folder / "archiver.yaml").write_text(text.replace(SECRETS, f"{folder}/secrets/"))
    environ = {one["name"]: one.get("value", "planted-by-the-test") for one in container.get("env", [])}
    return load_settings(folder / "archiver.yaml", environ)


def test_the_archiver_takes_the_configuration(values: Path, tmp_path: Path) -> None:
    objects = rendered(values)
    settings = loaded(objects, tmp_path)
    assert settings.topics
    (container,) = pods(objects)[0]["containers"]
    assert settings.http.listen == f"0.0.0.0:{container['ports'][0]['containerPort']}"
    grace = {pod["terminationGracePeriodSeconds"] for pod in pods(objects)}
    leaving = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert settings.daemon.shutdown_grace + leaving + 15 <= min(grace)


def test_a_key_that_the_archiver_does_not_know_is_found(tmp_path: Path) -> None:
    more = with_values(tmp_path, config={"intake": {"delay_most": "1s"}})
    with pytest.raises(ConfigInvalid, match="did you mean delay_max"):
        loaded(rendered(ONE, more), tmp_path)


def test_an_image_may_be_named_by_its_digest(tmp_path: Path) -> None:
    digest = f"sha256:{'0a' * 32}"
    more = with_values(
        tmp_path, image={"repository": "registry.example.com/archiver", "tag": "1.2", "digest": digest}
    )
    images = {container["image"] for pod in pods(rendered(CLUSTER, more)) for container in pod["containers"]}
    assert images == {f"registry.example.com/archiver:1.2@{digest}"}


def test_numbers_of_the_values_stay_what_they_are(tmp_path: Path) -> None:
    more = with_values(
        tmp_path,
        config={"metrics": {"partitions_max": 1_000_000}, "intake": {"queue_bytes_max": 9_007_199_254}},
    )
    settings = loaded(rendered(ONE, more), tmp_path)
    assert (settings.metrics.partitions_max, settings.intake.queue_bytes_max) == (1_000_000, 9_007_199_254)


def test_the_service_may_be_called_by_its_name(tmp_path: Path) -> None:
    objects = rendered(CLUSTER)
    (service,) = [one for one in of_kind(objects, "Service") if one["spec"].get("clusterIP") != "None"]
    name = service["metadata"]["name"]
    wanted = {
        name,
        f"{name}.prod",
        f"{name}.prod.svc",
        f"{name}.prod.svc.cluster.local",
        "records.example.com",
    }
    assert set(loaded(objects, tmp_path).http.allowed_hosts) == wanted


def test_a_port_with_a_certificate_is_asked_by_tls(tmp_path: Path) -> None:
    files = {"cert_file": "/etc/tls/tls.crt", "key_file": "/etc/tls/tls.key"}
    for given, scheme in (({}, "http"), ({"tls": files}, "https")):
        folder = tmp_path / scheme
        folder.mkdir()
        objects = rendered(
            CLUSTER, with_values(folder, config={"http": given}, serviceMonitor={"enabled": True})
        )
        asked = [
            container[probe]["httpGet"]["scheme"]
            for pod in pods(objects)
            for container in pod["containers"]
            for probe in PROBES
        ]
        assert set(asked) == {scheme.upper()}
        (monitor,) = of_kind(objects, "ServiceMonitor")
        assert [one["scheme"] for one in monitor["spec"]["endpoints"]] == [scheme]
    for wrong, word in (
        ({"allow_http": False}, "allow_http is false"),
        ({"tls": {**files, "client_ca_file": "/ca"}}, "the kubelet"),
    ):
        done = helm("template", "a", "b", CHART, CLUSTER, with_values(tmp_path, config={"http": wrong}))
        assert done.returncode != 0
        assert word in done.stderr


def test_no_secret_is_made_and_none_stands_in_the_open(values: Path) -> None:
    objects = rendered(values)
    assert of_kind(objects, "Secret") == []
    given = yaml.safe_load(values.read_text())
    for pod in pods(objects):
        (container,) = pod["containers"]
        mounted = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        assert mounted == given.get("secrets", [])
        for one in container.get("env", []):
            assert "secretKeyRef" in one["valueFrom"]


# What runs


@pytest.mark.parametrize("kind", ["sqlite", "folder", "catalog"])
def test_several_pods_never_share_what_is_one_pods(tmp_path: Path, kind: str) -> None:
    config = yaml.safe_load(ONE.read_text())["config"]
    shared = yaml.safe_load(CLUSTER.read_text())["config"]
    kept = {"sqlite": "metadata", "folder": "data"}.get(kind)
    config |= {name: shared[name] for name in ("metadata", "data", "catalogs") if name != kept}
    if kind == "catalog":
        config["catalogs"] = [
            {"name": "local", "type": "sql", "uri": "sqlite:////var/lib/stream-archiver/catalog.db"}
        ]
    path = tmp_path / "values.yaml"
    path.write_text(
        yaml.safe_dump(
            {"config": config, "workloads": [{"name": "main", "roles": ["intake"], "replicas": 2}]}
        )
    )
    done = helm("template", "a", "b", CHART, path)
    assert done.returncode != 0
    assert {"sqlite": "metadata.sqlite", "folder": "data.uri", "catalog": "local is a file"}[
        kind
    ] in done.stderr
    path.write_text(
        yaml.safe_dump(
            {"config": config, "workloads": [{"name": "main", "roles": ["intake"], "replicas": 1}]}
        )
    )
    assert helm("template", "a", "b", CHART, path).returncode == 0


def test_every_pod_is_restricted(values: Path) -> None:
    """Kubernetes' pod security standard of that name, all of it, and also a read-only root file system."""
    for pod in pods(rendered(values)):
        assert broken_rules(pod) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("securityContext", "runAsNonRoot"), False),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True),
        (("containers", 0, "securityContext", "capabilities"), {"drop": []}),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        (("containers", 0, "securityContext", "readOnlyRootFilesystem"), False),
        (("containers", 0, "securityContext", "privileged"), True),
        (("containers", 0, "ports", 0, "hostPort"), 80),
        (("hostNetwork",), True),
        (("volumes", 0), {"name": "x", "hostPath": {"path": "/"}}),
    ],
)
def test_each_rule_of_it_can_fail(path: tuple[str | int, ...], value: object) -> None:
    (pod,) = pods(rendered(ONE))
    at: Any = pod
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert broken_rules(pod) != []


def broken_rules(pod: Object) -> list[str]:
    """What the profile "restricted" has against a pod."""
    around = pod["securityContext"]
    found = [f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    found += [f"volume {one['name']}" for one in pod["volumes"] if not set(one) - {"name"} <= allowed]
    if around.get("runAsNonRoot") is not True or not around.get("runAsUser"):
        found.append("may be root")
    if around.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        found.append("seccomp")
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = container["securityContext"]
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append("privileges")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or set(own["capabilities"].get("add", [])) - {
            "NET_BIND_SERVICE"
        }:
            found.append("capabilities")
        if own.get("readOnlyRootFilesystem") is not True:
            found.append("root file system")
        if {"runAsUser", "runAsNonRoot", "seccompProfile", "procMount", "seLinuxOptions"} & set(own):
            found.append("overrides the pod")
        found += ["host port" for port in container.get("ports", []) if "hostPort" in port]
    return found


def test_the_pod_is_what_the_image_is_made_for(values: Path) -> None:
    image = read_dockerfile(ROOT / "deploy" / "Dockerfile")
    for pod in pods(rendered(values)):
        (container,) = pod["containers"]
        around = pod["securityContext"]
        assert f"{around['runAsUser']}:{around['runAsGroup']}" == of(image, "USER")[0].text
        assert around["fsGroup"] == around["runAsGroup"]
        assert container["args"][0] == of(image, "CMD")[0].words()[0]
        assert "command" not in container, "the entry point of the image"
        assert f"ARCHIVER_CONFIG={container['args'][2]}" in of(image, "ENV")[0].words()
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        assert writable == {"/tmp", "/var/lib/stream-archiver"}
        assert pod["automountServiceAccountToken"] is False
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f"org.opencontainers.image.version={chart['appVersion']}" in of(image, "LABEL")[0].words()


def test_every_workload_has_its_roles_its_disk_and_its_budget() -> None:
    objects = rendered(CLUSTER)
    sets = of_kind(objects, "StatefulSet")
    assert {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["args"][-1] for one in sets
    } == {
        f"{NAME}-intake": "intake",
        f"{NAME}-archive": "archive,reconcile",
    }
    for one in sets:
        labels = one["spec"]["template"]["metadata"]["labels"]
        (budget,) = [
            found
            for found in of_kind(objects, "PodDisruptionBudget")
            if found["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]
        assert budget["spec"]["selector"] == one["spec"]["selector"]
        assert budget["spec"]["maxUnavailable"] == 1, "a drain is never held up"
        (claim,) = one["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] in {
            mount["name"] for mount in one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        }
        assert one["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]


def test_records_go_to_pods_that_take_them_and_prometheus_sees_all() -> None:
    objects = rendered(CLUSTER)
    services = {one["metadata"]["name"]: one for one in of_kind(objects, "Service")}
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in of_kind(objects, "StatefulSet")
    }

    def behind(service: Object) -> set[str]:
        return {
            name for name, found in labels.items() if service["spec"]["selector"].items() <= found.items()
        }

    assert behind(services[NAME]) == {f"{NAME}-intake"}
    assert behind(services[f"{NAME}-pods"]) == set(labels)
    assert services[f"{NAME}-pods"]["spec"]["publishNotReadyAddresses"] is True, (
        "the ones that are not ready are watched most"
    )
    (monitor,) = of_kind(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert [
        name for name, one in services.items() if wanted.items() <= one["metadata"]["labels"].items()
    ] == [f"{NAME}-pods"]


def test_a_network_policy_without_peers_lets_no_one_in(tmp_path: Path) -> None:
    (policy,) = of_kind(rendered(CLUSTER), "NetworkPolicy")
    assert len(policy["spec"]["ingress"][0]["from"]) == 2
    more = with_values(tmp_path, networkPolicy={"enabled": True, "egress": []})
    (closed,) = of_kind(rendered(ONE, more), "NetworkPolicy")
    assert (closed["spec"]["ingress"], closed["spec"]["egress"]) == ([], [])
    assert closed["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_a_changed_configuration_restarts_the_pods(tmp_path: Path) -> None:
    def mark(*values: Path) -> str:
        (one,) = of_kind(rendered(*values), "StatefulSet")
        return str(one["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    changed = with_values(tmp_path, config={"archive": {"tick": "20s"}})
    assert mark(ONE) != mark(ONE, changed)
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({"files": {"a.binpb": "YQ=="}}))
    assert mark(ONE) != mark(ONE, other)


def test_rules_and_dashboard_are_the_ones_of_this_folder() -> None:
    deploy = ROOT / "deploy"
    copies = {"stream-archiver.rules.yaml": deploy / "alerts", "stream-archiver.json": deploy / "grafana"}
    assert {path.name for path in (CHART / "files").iterdir()} == set(copies)
    for name, folder in copies.items():
        assert (CHART / "files" / name).read_bytes() == (folder / name).read_bytes(), (
            f"copy {name} into the chart"
        )
    objects = rendered(CLUSTER)
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((deploy / "alerts" / "stream-archiver.rules.yaml").read_text())
    (board,) = [one for one in of_kind(objects, "ConfigMap") if "dashboard" in one["metadata"]["name"]]
    assert json.loads(board["data"]["stream-archiver.json"]) == json.loads(
        (deploy / "grafana" / "stream-archiver.json").read_text()
    )


# The daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Served]:
    """One that runs with the configuration of the first example, in folders of its own and on a port of its
    own."""
    (config,) = of_kind(rendered(ONE), "ConfigMap")
    document = yaml.safe_load(
        config["data"]["archiver.yaml"].replace("/var/lib/stream-archiver", str(tmp_path / "state"))
    )
    (tmp_path / "state").mkdir()
    document["http"] |= {"listen": "127.0.0.1:0"}
    deployment = Deployment(tmp_path / "deployment")
    deployment.write(quick(document))
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as served:
        yield served


@pytest.mark.slow
def test_the_daemon_answers_every_probe_under_the_name_of_the_service(daemon: Served) -> None:
    daemon.until_ready()
    objects = rendered(ONE)
    (container,) = pods(objects)[0]["containers"]
    probes = {
        name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {probe["port"] for probe in probes.values()} == {container["ports"][0]["name"]}
    (monitor,) = of_kind(rendered(CLUSTER), "ServiceMonitor")
    for path in {probe["path"] for probe in probes.values()} | {monitor["spec"]["endpoints"][0]["path"]}:
        for host in ("10.1.2.3:8787", f"{NAME}.prod.svc:8787"):
            assert daemon.request("GET", path, headers={"Host": host}).status == 200, (path, host)
    assert daemon.request("GET", "/healthz", headers={"Host": "elsewhere:8787"}).status == 403
