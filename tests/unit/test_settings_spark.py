"""A Spark cluster on other machines is protected, or the lack of protection is reported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql.connect.client import DefaultChannelBuilder

from archiver.config.settings import SparkSettings, load_settings
from archiver.runtime.errors import ConfigInvalid
from archiver.spark.session import _environment, properties

OPEN = [
    {"master": "spark://spark.example.com:7077"},
    {"master": "spark://127.0.0.1:7077,spark.example.com:7077"},
    {"master": "k8s://https://127.0.0.1:6443"},
    {"master": "yarn"},
    {"master": "localhost"},
    {"master": "spark://10.0.0.1:7077", "conf": {"spark.authenticate": False}},
    {"conf": {"spark.master": "spark://10.0.0.1:7077"}},
]
CLEAR = [
    "sc://spark.example.com",
    "sc://10.0.0.1:15002/",
    "sc://10.0.0.1:15002/;use_ssl=false",
    "sc://10.0.0.1:15002/;USE_SSL=true",
    "sc://10.0.0.1:15002/;use_ssl=true;use_ssl=false",
    "sc://127.0.0.1.example.com:15002",
]


def loaded(folder: Path, spark: dict[str, Any]) -> SparkSettings:
    path = folder / "archiver.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "cluster": "c",
                "data": {"uri": "data"},
                "metadata": {"sqlite": {"path": "m.db"}},
                "spark": spark,
            }
        ),
        "utf-8",
    )
    return load_settings(path, {}).spark


@pytest.mark.parametrize("spark", OPEN)
def test_a_master_elsewhere_asks_executors_who_they_are(tmp_path: Path, spark: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigInvalid,
        match=r"spark\.master: .*set spark\.authenticate: true in conf.* or allow_insecure: true",
    ):
        loaded(tmp_path, spark)
    assert loaded(tmp_path, spark | {"allow_insecure": True}).allow_insecure
    assert (
        loaded(
            tmp_path, spark | {"conf": {**spark.get("conf", {}), "spark.authenticate": "true"}}
        ).allow_insecure
        is False
    )


@pytest.mark.parametrize("remote", CLEAR)
def test_spark_connect_on_another_machine_is_not_spoken_to_in_the_clear(tmp_path: Path, remote: str) -> None:
    assert not DefaultChannelBuilder(remote).use_ssl
    with pytest.raises(
        ConfigInvalid, match=r"spark\.remote: .*;use_ssl=true to its address, or set allow_insecure: true"
    ):
        loaded(tmp_path, {"remote": remote})
    assert loaded(tmp_path, {"remote": remote, "allow_insecure": True}).remote == remote


@pytest.mark.parametrize(
    "spark",
    [
        {},
        *({"master": master} for master in ("local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]")),
        *(
            {"master": f"spark://{host}:7077"}
            for host in ("127.0.0.1", "localhost", "[::1]", "127.0.0.1:1,127.0.0.2")
        ),
        *({"remote": f"sc://{host}/;token=t"} for host in ("127.0.0.1", "localhost:15002", "[::1]:15002")),
        *(
            {"remote": f"sc://h.example.com:443/;{given}"}
            for given in ("use_ssl=true", "token=t;use_ssl=True;user_id=me")
        ),
    ],
)
def test_what_is_here_or_protected_needs_no_leave(tmp_path: Path, spark: dict[str, Any]) -> None:
    assert not loaded(tmp_path, spark).allow_insecure
    if "remote" in spark and "example" in spark["remote"]:
        assert DefaultChannelBuilder(spark["remote"]).use_ssl


@pytest.mark.parametrize(
    "remote", ["spark://canary:7077", "sc://", "sc:///;token=canary", "canary:15002", "sc://h:canary"]
)
def test_what_is_no_address_of_a_spark_connect_server(tmp_path: Path, remote: str) -> None:
    with pytest.raises(
        ConfigInvalid, match=r"spark\.remote: is not an address such as sc://host:443"
    ) as raised:
        loaded(tmp_path, {"remote": remote, "allow_insecure": True})
    assert "canary" not in str(raised.value)


def test_an_address_that_is_refused_shows_no_token(tmp_path: Path) -> None:
    for remote in ("sc://h:1/;token=canary", "sc://h;token=canary"):
        with pytest.raises(ConfigInvalid) as raised:
            loaded(tmp_path, {"remote": remote})
        assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("spark", "here", "local"),
    [
        ({}, True, True),
        ({"master": "local-cluster[2,1,1024]"}, True, True),
        *(
            ({"master": f"spark://{host}:7077"}, True, False)
            for host in ("127.0.0.1", "localhost", "[::1]", "127.0.0.1:1,127.0.0.2")
        ),
        ({"master": "spark://elsewhere:7077", "conf": {"spark.master": "local[2]"}}, True, True),
        (
            {"master": "spark://elsewhere:7077", "conf": {"spark.master": "spark://127.0.0.1:7077"}},
            True,
            False,
        ),
        ({"conf": {"spark.master": "spark://elsewhere:7077"}, "allow_insecure": True}, False, False),
        ({"master": "k8s://https://127.0.0.1:6443", "conf": {"spark.authenticate": True}}, False, False),
    ],
    ids=str,
)
def test_a_driver_whose_master_is_here_listens_on_loopback_alone(
    tmp_path: Path, spark: dict[str, Any], here: bool, local: bool
) -> None:
    settings = loaded(tmp_path, spark)
    found = properties(settings, tmp_path)
    assert [found.get(name) for name in ("spark.driver.host", "spark.driver.bindAddress")] == [
        "127.0.0.1" if here else None
    ] * 2
    assert ("spark.local.dir" in found) == local
    before = os.environ.get("SPARK_LOCAL_IP")
    with _environment(settings):
        assert os.environ.get("SPARK_LOCAL_IP") == ("127.0.0.1" if here else before)
    conf = {
        **spark.get("conf", {}),
        "spark.driver.host": "a.example.com",
        "spark.driver.bindAddress": "0.0.0.0",
    }
    stated = properties(loaded(tmp_path, spark | {"conf": conf}), tmp_path)
    assert (stated["spark.driver.host"], stated["spark.driver.bindAddress"]) == ("a.example.com", "0.0.0.0")
