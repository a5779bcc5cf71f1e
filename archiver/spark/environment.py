"""Chooses the environment variables of Spark's JVM, and so of the Python workers that the JVM starts.

An allow-list, because a list of names that look like secrets misses the next one (decision 0070). An unlisted
variable reaches the JVM only if the store needs it, or if `spark.pass_environment` names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from archiver.config.settings import DataSettings
from archiver.runtime.redaction import MASK, redacted

_NAMES: Final = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "HOSTNAME",
        "PWD",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TMP",
        "TEMP",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "JAVA_HOME",
        "JAVA_OPTS",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "KUBECONFIG",
        "KRB5_CONFIG",
        "KRB5CCNAME",
        "SCALA_VERSION",
        "VIRTUAL_ENV",
    ]
)
_PREFIXES: Final = (
    "LC_",
    "PYTHON",
    "SPARK_",
    "PYSPARK_",
    "_PYSPARK_",
    "HADOOP_",
    "YARN_",
    "KUBERNETES_",
    "MALLOC_",
    "OMP_",
    "ARROW_",
)
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|CREDSTORE|PRIVATE|(?:^|_)(?:API|ACCESS)?_?KEYS?(?:_|$)"
)
"""Withheld although a prefix allows it, for example `SPARK_AUTHENTICATE_SECRET`."""

_AWS_PLACE: Final = frozenset(
    [
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "AWS_EC2_METADATA_DISABLED",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
    ]
)
"""How a bucket is reached."""
_AWS_CHAIN: Final = frozenset(
    [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
        "AWS_METADATA_SERVICE_TIMEOUT",
        "AWS_METADATA_SERVICE_NUM_ATTEMPTS",
        "AWS_STS_REGIONAL_ENDPOINTS",
    ]
)
"""Where the SDK finds credentials if the configuration states none."""


def store_variables(data: DataSettings) -> frozenset[str]:
    """The variables that a worker needs to open the store: none for a folder; the credential chain of the AWS
    SDK for a bucket without configured keys.
    """
    if not data.uri.startswith("s3://"):
        return frozenset()
    # With configured keys, a worker needs none of the machine.
    return _AWS_PLACE if data.access_key_id is not None else _AWS_PLACE | _AWS_CHAIN


def scrubbed(environ: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """The variables that Spark may have. Those named in `passed` are kept without a check."""
    return {name: value for name, value in environ.items() if name in passed or _is_allowed(name, value)}


def _is_allowed(name: str, value: str) -> bool:
    if name not in _NAMES and not name.startswith(_PREFIXES):
        return False
    # A value that the configuration uses as a secret, for example by `{env: SPARK_DB}`, is a secret under
    # every name.
    return _SECRET_NAME.search(name.upper()) is None and redacted(value) != MASK
