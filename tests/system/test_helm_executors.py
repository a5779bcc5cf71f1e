"""The Helm chart with Spark's executors as pods: the rights it gives, and the pods that Spark's own code
would ask for.

No cluster runs here: that a control plane starts them is not shown.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import SparkSettings, load_settings
from archiver.runtime.errors import ConfigInvalid
from archiver.spark.session import SparkSessions
from tests.system.test_helm_chart import (
    CHART,
    CLUSTER,
    NAME,
    ONE,
    Object,
    broken_rules,
    helm,
    judged,
    of_kind,
    pods,
    rendered,
    text_of,
    with_values,
)

POD = {"POD_IP": "10.1.2.3", "POD_NAME": f"{NAME}-archive-0"}
"""What Kubernetes gives the pod about itself."""


@pytest.fixture
def values(tmp_path: Path) -> Path:
    return with_values(tmp_path, executors={"enabled": True})


def written(objects: list[Object]) -> dict[str, str]:
    (found,) = [one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"] == NAME]
    data: dict[str, str] = found["data"]
    return data


def settings_in(objects: list[Object], folder: Path) -> SparkSettings:
    """As the archiver reads them in its pod."""
    document = yaml.safe_load(written(objects)["archiver.yaml"])
    least = {
        "cluster": "c",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "m.db"}},
        "spark": document["spark"],
    }
    (folder / "archiver.yaml").write_text(yaml.safe_dump(least))
    return load_settings(folder / "archiver.yaml", POD).spark


def test_without_being_asked_the_chart_gives_no_right_and_no_token() -> None:
    for values in (ONE, CLUSTER):
        objects = rendered(values)
        assert of_kind(objects, "Role") == of_kind(objects, "RoleBinding") == []
        assert not any(pod["automountServiceAccountToken"] for pod in pods(objects))
        assert set(written(objects)) == {"archiver.yaml"}
        assert "spark" not in yaml.safe_load(written(objects)["archiver.yaml"])


def test_helm_and_kubernetes_take_the_chart_with_executors(values: Path) -> None:
    done = helm("lint", CHART, CLUSTER, values)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert judged(text_of(CLUSTER, values)).returncode == 0
    broken = text_of(CLUSTER, values).replace("resources: [pods", "resource: [pods")
    assert judged(broken).returncode != 0


def test_the_role_is_for_what_spark_makes_and_for_this_namespace(values: Path) -> None:
    objects = rendered(CLUSTER, values)
    ((role,), (binding,), (account,)) = (
        of_kind(objects, kind) for kind in ("Role", "RoleBinding", "ServiceAccount")
    )
    (rule,) = role["rules"]
    assert rule["apiGroups"] == [""]
    assert set(rule["resources"]) == {"pods", "services", "configmaps", "persistentvolumeclaims"}
    assert set(rule["verbs"]) == {
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    }
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "prod"}
    ]
    assert of_kind(objects, "ClusterRole") == of_kind(objects, "ClusterRoleBinding") == []


def test_the_token_is_with_those_who_start_executors_alone(values: Path) -> None:
    sets = of_kind(rendered(CLUSTER, values), "StatefulSet")
    mounted = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["automountServiceAccountToken"]
        for one in sets
    }
    assert mounted == {f"{NAME}-intake": False, f"{NAME}-archive": True}


def test_the_network_policy_lets_executors_in_and_no_service_leads_to_them(values: Path) -> None:
    objects = rendered(CLUSTER, values)
    labels = yaml.safe_load(written(objects)["executor-pod.yaml"])["metadata"]["labels"]
    (policy,) = of_kind(objects, "NetworkPolicy")
    (rule,) = [one for one in policy["spec"]["ingress"] if one["ports"] != [{"port": "http"}]]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    named = {port["name"]: port["containerPort"] for port in pods(objects)[1]["containers"][0]["ports"]}
    spark = yaml.safe_load(written(objects)["archiver.yaml"])["spark"]["conf"]
    assert [named[one["port"]] for one in rule["ports"]] == [
        spark["spark.driver.port"],
        spark["spark.driver.blockManager.port"],
    ]
    for service in of_kind(objects, "Service"):
        assert not service["spec"]["selector"].items() <= labels.items()


def test_the_archiver_takes_the_configuration_and_what_is_given_wins(values: Path, tmp_path: Path) -> None:
    settings = settings_in(rendered(CLUSTER, values), tmp_path)
    properties = settings.properties()
    assert (settings.master, settings.allow_insecure) == ("k8s://https://kubernetes.default.svc", False)
    assert (properties["spark.driver.host"], properties["spark.kubernetes.driver.pod.name"]) == tuple(
        POD.values()
    )
    assert properties["spark.authenticate"] == properties["spark.network.crypto.enabled"] == "true"
    own = {"spark.authenticate": False, "spark.executor.instances": 4}
    (tmp_path / "own").mkdir()
    more = with_values(tmp_path / "own", executors={"enabled": True}, config={"spark": {"conf": own}})
    with pytest.raises(ConfigInvalid, match=r"spark\.master: .*set spark\.authenticate: true"):
        settings_in(rendered(CLUSTER, more), tmp_path)


def test_executors_cannot_see_a_folder_of_a_pod(values: Path) -> None:
    done = helm("template", "a", "b", CHART, ONE, values)
    assert done.returncode != 0
    assert "config.data.uri is a folder of one pod, and executors are other pods" in done.stderr


def asked_for(sessions: SparkSessions, settings: SparkSettings, template: Path) -> Object:
    """The pod of an executor, as Spark's own code builds it from the properties and the template."""
    session: Any = sessions.session()
    java = session._jvm.org.apache.spark
    empty = session._jvm.scala.Option.empty()
    conf = java.SparkConf(False)
    for name, value in settings.properties().items():
        conf.set(name, value)
    conf.set("spark.app.name", "stream-archiver").set("spark.master", settings.master)
    conf.set("spark.kubernetes.executor.podTemplateFile", str(template))
    profiles = getattr(java.resource, "ResourceProfile$")
    profile = getattr(profiles, "MODULE$").getOrCreateDefaultProfile(conf)
    wanted = java.deploy.k8s.KubernetesExecutorConf(conf, "spark-of-the-test", "1", empty, profile.id())
    options = getattr(getattr(java.internal.config, "package$"), "MODULE$")
    security = java.SecurityManager(conf, empty, options.AUTH_SECRET_FILE())
    security.initializeAuth()
    client = session._jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    try:
        builder = java.scheduler.cluster.k8s.KubernetesExecutorBuilder()
        made = builder.buildFromFeatures(wanted, security, client, profile).pod()
    finally:
        client.close()
    spec = session._jvm.io.fabric8.kubernetes.client.utils.Serialization.asYaml(made.pod())
    container = session._jvm.io.fabric8.kubernetes.client.utils.Serialization.asYaml(made.container())
    pod: Object = yaml.safe_load(spec)
    pod["spec"].setdefault("containers", []).append(yaml.safe_load(container))
    return pod


@pytest.mark.spark
@pytest.mark.timeout(200)
def test_the_pods_that_spark_asks_for_are_as_restricted_as_ours(
    values: Path,
    tmp_path: Path,
    spark_sessions: SparkSessions,
) -> None:
    objects = rendered(CLUSTER, values)
    template = tmp_path / "executor-pod.yaml"
    template.write_text(written(objects)["executor-pod.yaml"])
    pod = asked_for(spark_sessions, settings_in(objects, tmp_path), template)
    assert broken_rules(pod["spec"]) == []
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"]["labels"]["stream-archiver/executor-of"] == NAME
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["executor"]
    reported = {one["name"]: one.get("value") for one in container["env"]}
    assert reported["SPARK_DRIVER_URL"] == f"spark://CoarseGrainedScheduler@{POD['POD_IP']}:7078"
    assert reported["_SPARK_AUTH_SECRET"]
    (archiver,) = pods(objects)[0]["containers"]
    assert container["image"] == archiver["image"]
    around = deepcopy(of_kind(objects, "StatefulSet")[0])
    around["spec"]["template"]["spec"] = pod["spec"] | {"restartPolicy": "Always"}
    assert judged(yaml.safe_dump(around)).returncode == 0
