"""Which environment variables Spark gets: those that it needs, and no secret."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from archiver.config.settings import DataSettings
from archiver.runtime.redaction import hide
from archiver.spark.environment import scrubbed, store_variables

USUAL = {
    "PATH": "/usr/bin",
    "HOME": "/srv/a",
    "JAVA_HOME": "/opt/java",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/tmp",
    "SPARK_CONF_DIR": "/etc/spark",
    "PYSPARK_PYTHON": "/usr/bin/python3",
    "_PYSPARK_DRIVER_CONN_INFO_PATH": "/tmp/x",
    "HADOOP_CONF_DIR": "/etc/hadoop",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KRB5CCNAME": "/tmp/krb5",
}


def test_spark_keeps_the_variables_that_it_needs() -> None:
    assert scrubbed(USUAL) == USUAL


@pytest.mark.parametrize(
    "name",
    [
        "ARCHIVER_ADMIN_TOKEN",
        "DB",
        "POSTGRES_PASSWORD",
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "SPARK_AUTHENTICATE_SECRET",
        "HADOOP_CREDSTORE_PASSWORD",
        "PYSPARK_GATEWAY_SECRET",
        "SPARK_API_KEY",
        "https_proxy",
    ],
)
def test_a_variable_that_is_not_listed_or_looks_secret_is_withheld(name: str) -> None:
    assert scrubbed({**USUAL, name: "http://user:password@proxy"}) == USUAL


def test_a_secret_of_the_configuration_is_withheld_under_any_name() -> None:
    hide(["canary-of-the-configuration"])
    assert scrubbed({**USUAL, "SPARK_DB": "canary-of-the-configuration"}) == USUAL


def test_a_variable_that_an_operator_names_is_passed() -> None:
    found = scrubbed({**USUAL, "VAULT_TOKEN": "t", "OTHER": "o"}, ["VAULT_TOKEN", "ABSENT"])
    assert found == {**USUAL, "VAULT_TOKEN": "t"}


def test_workers_get_credentials_of_the_environment_only_if_the_store_depends_on_them() -> None:
    keys = dict.fromkeys(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        "x",
    )
    place = {"AWS_REGION": "eu-central-1", "HTTPS_PROXY": "http://user:password@proxy"}
    environ = {**USUAL, **keys, **place, "AWS_LAMBDA_SECRET": "x"}
    ambient = DataSettings(uri="s3://bucket/prefix")
    stated = DataSettings(
        uri="s3://bucket/prefix", access_key_id=SecretStr("one"), secret_access_key=SecretStr("two")
    )
    folder = DataSettings(uri="file:///data")
    assert scrubbed(environ, store_variables(ambient)) == {**USUAL, **keys, **place}
    assert scrubbed(environ, store_variables(stated)) == {**USUAL, **place}
    assert scrubbed(environ, store_variables(folder)) == USUAL
