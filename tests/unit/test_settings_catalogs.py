"""Checks that a catalog's authentication is parsed, kept secret, and refused where it is unsafe; and that the
examples of the docs load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.config.settings import Settings, load_settings
from archiver.runtime.errors import ConfigInvalid

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "catalogs.md"
LEAST = "cluster: test\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"
SECRET = "a-secret-that-nobody-may-see"
REST = {"name": "lake", "type": "rest", "uri": "https://catalog.example.com"}


def load(folder: Path, **catalog: object) -> Settings:
    for name in ("secret", "token", "client", "api-key"):
        (folder / name).write_text(SECRET)
    path = folder / "archiver.yaml"
    path.write_text(LEAST + yaml.safe_dump({"catalogs": [catalog]}), encoding="utf-8")
    return load_settings(path, {"SECRET": SECRET})


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "two ways": (
        {"token": {"file": "token"}, "credential": {"file": "client"}},
        "only one way of authentication is allowed",
    ),
    "a token and a signature": (
        {"token": {"file": "token"}, "rest.sigv4-enabled": True},
        "only one way of authentication is allowed",
    ),
    "a token and a signature in another spelling": (
        {"token": {"file": "token"}, "rest.sigv4-enabled": "Yes"},
        "only one way of authentication is allowed",
    ),
    "a token and a signature as a number": (
        {"token": {"file": "token"}, "rest.sigv4-enabled": 1},
        "only one way of authentication is allowed",
    ),
    "a token over http": (
        {"uri": "http://catalog.example.com", "token": {"file": "token"}},
        "would send a secret unprotected to catalog.ex",
    ),
    "a secret header over http": (
        {"uri": "http://catalog.example.com", "header.X-Mine": {"env": "SECRET"}},
        "unprotected",
    ),
    "a token server over http": (
        {"credential": {"file": "client"}, "oauth2-server-uri": "http://login.example.com/token"},
        "oauth2-server-uri: would send a secret unprotected to login.example.com",
    ),
    "nested": (
        {"auth": {"type": "oauth2", "oauth2": {"client_id": "x"}}},
        "set credential, oauth2-server-uri and scope",
    ),
    "another location": ({"location": "elsewhere"}, "location"),
    "sql without a place for tables": (
        {"type": "sql", "uri": "sqlite:///c.db", "location": "catalog"},
        "warehouse: is missing",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    changed, words = REFUSED[name]
    with pytest.raises(ConfigInvalid, match=re.escape(words)) as caught:
        load(tmp_path, **{**REST, **changed})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"uri": "http://127.0.0.1:8181", "token": {"file": "token"}},
        {"uri": "http://catalog.example.com", "token": {"file": "token"}, "allow_http": True},
        {"uri": "http://catalog.example.com", "header.X-Tenant": "streams"},
        {"uri": "http://catalog.example.com"},
        {"rest.sigv4-enabled": False, "token": {"file": "token"}},
        {"type": "sql", "uri": "sqlite:///c.db", "location": "catalog", "warehouse": "s3://lake/tables"},
    ],
    ids=str,
)
def test_taken(tmp_path: Path, changed: dict[str, object]) -> None:
    load(tmp_path, **{**REST, **changed})


def test_our_own_settings_are_not_pyicebergs(tmp_path: Path) -> None:
    settings = load(
        tmp_path, **REST, location="catalog", allow_http=True, request_timeout="3s", token={"file": "token"}
    )
    assert settings.catalogs[0].properties() == {
        "type": "rest",
        "uri": "https://catalog.example.com",
        "token": SECRET,
    }
    assert settings.catalogs[0].location == "catalog"


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "credential",
        "header.Authorization",
        "header.X-Api-Key",
        "header.Cookie",
        "s3.secret-access-key",
    ],
)
def test_what_is_secret_is_never_shown(tmp_path: Path, key: str) -> None:
    for value in (SECRET, {"env": "SECRET"}, {"file": "secret"}):
        settings = load(tmp_path, **{**REST, key: value})
        assert settings.catalogs[0].properties()[key] == SECRET
        assert SECRET not in settings.model_dump_json() + repr(settings)


def test_certificates_begin_at_the_file(tmp_path: Path) -> None:
    (catalog,) = load(
        tmp_path, **REST, **{"ssl.cabundle": "ca.pem", "ssl.client.cert": "/etc/c.pem"}
    ).catalogs
    assert catalog.properties()["ssl.cabundle"] == str(tmp_path / "ca.pem")
    assert catalog.properties()["ssl.client.cert"] == "/etc/c.pem"


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("position", range(len(EXAMPLES)))
def test_an_example_of_the_page_loads_and_is_understood(tmp_path: Path, position: int) -> None:
    from archiver.catalog.iceberg.properties import prepared_properties

    document = yaml.safe_load(EXAMPLES[position])
    (catalog,) = load(tmp_path, **document["catalogs"][0]).catalogs
    prepared = prepared_properties(catalog.name, catalog.properties(), RemoteLimits())
    assert prepared["uri"] == document["catalogs"][0]["uri"]
    if "ssl.cabundle" in document["catalogs"][0]:
        assert set(prepared["ssl"]) == {"cabundle", "client"}
        assert set(prepared["ssl"]["client"]) == {"cert", "key"}


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


VERIFIED = "sslmode=verify-full"
REPORTED = "the server on another machine would not be authenticated"


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        ("sql", "postgresql://db/catalog"),
        ("SQL", "postgresql+psycopg2://archiver:hush@db.example.com:5432/catalog"),
        ("sql", "postgresql://u:hu/s#h?@10.1.2.3/catalog"),
        ("sql", "postgresql://[fe80::1]/catalog"),
        ("sql", "postgresql:///catalog?host=db"),
        ("sql", "postgresql:///catalog?host=127.0.0.1:5432&host=db:5432"),
        ("sql", "postgresql:///catalog?host=127.0.0.1,db"),
        ("sql", "postgresql://127.0.0.1/catalog?hostaddr=10.1.2.3"),
        ("sql", "postgresql://db/catalog?sslmode=require"),
        ("sql", "postgresql://db/catalog?sslmode=verify-ca"),
        ("sql", "postgresql://db/catalog?sslmode=verify-full&sslmode=disable"),
        ("sql", "postgresql://u:sslmode=verify-full@db/catalog"),
        ("sql", "postgresql:///catalog?host=::1:5432"),
        ("sql", "postgresql:///catalog?service=prod"),
        ("sql", "postgresql://127.0.0.1/catalog?service=prod"),
        ("sql", "postgresql+psycopg2:///?dsn=host%3Ddb.example.com%20dbname%3Dc"),
        ("sql", "postgresql+psycopg:///?conninfo=host%3Ddb.example.com"),
        ("sql", "mysql+mysqldb:///catalog"),
        ("sql", "mysql+mysqldb:///catalog?read_default_file=/etc/my.cnf"),
        ("sql", "mysql+mysqldb://127.0.0.1/catalog?host=db"),
        ("sql", "mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BODBC%7D%3BSERVER%3Ddb.example.com%3BPWD%3Dhush"),
        ("sql", "mssql+pyodbc://127.0.0.1/?ODBC_connect=SERVER%3Ddb.example.com"),
        ("sql", "sqlite+libsql://db.example.com/catalog"),
        ("sql", "mysql+pymysql://u:hush@db/catalog?sslmode=verify-full"),
        ("hive", "thrift://metastore:9083"),
        ("Hive", "thrift://127.0.0.1:9083,thrift://metastore:9083"),
        ("hive", "thrift://127.0.0.1:x@metastore"),
        ("sql", "postgresql:///catalog?host=[localhost]:5432"),
    ],
)
def test_a_catalog_server_on_another_machine_must_prove_who_it_is_or_leave_be_given(
    tmp_path: Path, kind: str, uri: str
) -> None:
    for given in (uri, {"file": "address"}):
        (tmp_path / "address").write_text(uri)
        with pytest.raises(
            ConfigInvalid, match=rf"catalogs\[0\]\.uri: {REPORTED}.* allow_insecure: true"
        ) as caught:
            load(tmp_path, name="c", type=kind, uri=given)
        assert not re.search("hu(sh|/s)", str(caught.value))
        assert ("add sslmode=verify-full" in str(caught.value)) == uri.startswith("postgresql")
        (catalog,) = load(tmp_path, name="c", type=kind, uri=given, allow_insecure=True).catalogs
        assert catalog.properties() == {"type": kind.lower(), "uri": uri}


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        ("sql", f"postgresql://u:hush@db.example.com:5432/catalog?{VERIFIED}&sslrootcert=ca.pem"),
        ("sql", f"postgresql+psycopg:///catalog?host=a:1&host=b:2&{VERIFIED}"),
        ("sql", "postgresql://u:hush@127.0.0.1/catalog"),
        ("sql", "postgresql://localhost:5432/catalog"),
        ("sql", "postgresql://[::1]:5432/catalog"),
        ("sql", "postgresql:///catalog"),
        ("sql", "postgresql:///catalog?host=/var/run/postgresql"),
        ("sql", "postgresql:///catalog?host=[::1]:5432"),
        ("sql", "postgresql:///catalog?hostaddr=::1"),
        ("sql", f"postgresql:///catalog?service=prod&{VERIFIED}"),
        ("sql", "mysql+pymysql://u:hush@127.0.0.2/catalog"),
        ("sql", "sqlite:///c.db"),
        ("sql", "sqlite:///:memory:"),
        ("hive", "thrift://127.0.0.1:9083"),
        ("glue", "anything"),
    ],
)
def test_a_catalog_server_that_proves_who_it_is_or_is_here_needs_no_leave(
    tmp_path: Path, kind: str, uri: str
) -> None:
    assert load(tmp_path, name="c", type=kind, uri=uri).catalogs[0].type == kind


@pytest.mark.parametrize("between", ["\n", "\r\n", "\t", "\x00", "\x7f"])
def test_an_address_has_no_character_that_hides_the_rest_of_it(tmp_path: Path, between: str) -> None:
    uri = f"postgresql://u:hush@db/catalog?application_name=a{between}&{VERIFIED}"
    for leave in (False, True):
        with pytest.raises(
            ConfigInvalid,
            match=r"catalogs\[0\]\.uri: contains a line break or an invisible character",
        ) as caught:
            load(tmp_path, name="c", type="sql", uri=uri, allow_insecure=leave)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rest", "s3.endpoint"),
        ("sql", "s3.endpoint"),
        ("glue", "glue.endpoint"),
        ("dynamodb", "dynamodb.endpoint"),
        ("rest", "s3.signer.uri"),
        ("rest", "gcs.service.host"),
    ],
)
def test_a_store_or_server_that_a_catalog_names_is_asked_over_https_or_here_unless_leave_is_given(
    tmp_path: Path, kind: str, name: str
) -> None:
    catalog: dict[str, object] = {
        "name": "c",
        "type": kind,
        "uri": "sqlite:///c.db" if kind == "sql" else "https://catalog.example.com",
    }
    http = "http://minio.example.com:9000"
    with pytest.raises(
        ConfigInvalid, match=rf"catalogs\[0\]\.{name}: http:// to another machine .* set allow_http: true"
    ):
        load(tmp_path, **catalog, **{name: http})
    assert load(tmp_path, **catalog, **{name: http}, allow_http=True).catalogs[0].properties()[name] == http
    for fine in (
        "https://minio.example.com",
        "http://127.0.0.1:9000",
        "http://localhost:9000",
        "http://[::1]:9000",
    ):
        assert load(tmp_path, **catalog, **{name: fine}).catalogs[0].properties()[name] == fine


def test_the_rules_of_a_type_hold_however_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="would send a secret unprotected"):
        load(tmp_path, name="c", type="REST", uri="http://catalog.example.com", token={"file": "token"})
    assert (
        load(tmp_path, name="c", type="Rest", uri="https://catalog.example.com")
        .catalogs[0]
        .properties()["type"]
        == "rest"
    )
