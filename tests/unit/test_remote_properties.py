"""Checks which settings of a catalog reach pyiceberg: only listed names, with valid values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.catalog.iceberg.remote_properties import (
    CATALOG_KEYS,
    KEYS_SHOWN_MAX,
    STORAGE_KEYS,
    VALUE_CHARACTERS_MAX,
    catalog_settings,
    origin_of,
    table_settings,
)

URI = "https://catalog.example.com/api"

NAMES_CODE = (
    "auth",
    "py-io-impl",
    "py-catalog-impl",
    "io-impl",
    "s3.retry-strategy-impl",
    "s3.signer",
    "write.py-location-provider.impl",
)
NAMES_A_SERVER = (
    "oauth2-server-uri",
    "s3.proxy-uri",
    "s3.signer.uri",
    "ssl",
    "ssl.cabundle",
    "header.Authorization",
    "gcs.service.host",
)
NAMES_AN_IDENTITY = (
    "token",
    "credential",
    "s3.role-arn",
    "s3.profile-name",
    "client.profile-name",
    "client.role-arn",
    "rest.sigv4-enabled",
)
OURS = ("type", "name", "archiver.limits", "py-", "io", "warehouse")


@pytest.mark.parametrize("name", [*NAMES_CODE, *NAMES_A_SERVER, *NAMES_AN_IDENTITY, *OURS])
def test_what_names_code_a_server_or_an_identity_is_left_out(name: str) -> None:
    for gated in (
        catalog_settings({name: "x"}, URI, allow_http=True),
        table_settings({name: "x"}, allow_http=True),
    ):
        assert gated.accepted == {}
        assert gated.left_out == (name,)


def test_no_listed_name_could_name_code() -> None:
    for name in CATALOG_KEYS | STORAGE_KEYS:
        assert not name.endswith("-impl")
        assert not name.startswith(("py-", "io", "auth", "archiver."))


@pytest.mark.parametrize(
    "value",
    [{"type": "custom"}, ["x"], None, 7, True, "x" * (VALUE_CHARACTERS_MAX + 1), "a\nb", "a\x00b", "ä"],
    ids=lambda value: str(value)[:8],
)
def test_a_value_is_short_visible_text(value: object) -> None:
    assert catalog_settings({"s3.region": value}, URI, allow_http=True).accepted == {}


@pytest.mark.parametrize(
    ("uri", "accepted"),
    [
        ("https://catalog.example.com/other", True),
        ("https://CATALOG.example.com:443/v2", True),
        ("http://catalog.example.com/api", False),
        ("https://catalog.example.com:444/api", False),
        ("https://catalog.example.com.evil.org/api", False),
        ("https://evil@catalog.example.com/api", False),
        ("https://catalog.example.com/api?x=y", False),
        ("https://catalog.example.com/api#y", False),
        ("https://catalog.example.com:99999/api", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_a_uri_stays_at_its_origin(uri: str, accepted: bool) -> None:
    assert bool(catalog_settings({"uri": uri}, URI, allow_http=True).accepted) is accepted


@pytest.mark.parametrize(
    ("prefix", "accepted"),
    [
        *(("prod", True), ("catalogs/123:s3tables", True), ("a%2Fb", True), ("a/b/", True)),
        *(
            ("../admin", False),
            ("a/../../b", False),
            ("?x=", False),
            ("a#b", False),
            ("//evil.org", False),
            ("", False),
            ("a b", False),
        ),
        *(
            ("%2e%2e/%2e%2e/admin", False),
            ("a/.%2E/b", False),
            ("a%2F..%2Fb", False),
            ("a%5C..%5Cb", False),
            ("a%2e", True),
        ),
    ],
)
def test_a_prefix_stays_a_path(prefix: str, accepted: bool) -> None:
    assert bool(catalog_settings({"prefix": prefix}, URI, allow_http=False).accepted) is accepted


@pytest.mark.parametrize(
    ("separator", "accepted"),
    [
        ("%1F", True),
        (".", True),
        ("%2E", True),
        ("/../", False),
        ("%2F..%2F", False),
        ("?", False),
        ("%23", False),
        ("", False),
    ],
)
def test_a_separator_of_namespaces_does_not_change_a_path(separator: str, accepted: bool) -> None:
    assert (
        bool(catalog_settings({"namespace-separator": separator}, URI, allow_http=False).accepted) is accepted
    )


@pytest.mark.parametrize("name", ["s3.region", "client.region", "adls.account-name"])
@pytest.mark.parametrize("value", ["x.evil.example/#", "evil.example", "a/b", "a:1", "a@b", "", "a b", "%2e"])
def test_what_becomes_a_part_of_a_host_name_has_no_other_characters(name: str, value: str) -> None:
    assert table_settings({name: value}, allow_http=True).accepted == {}


@pytest.mark.parametrize(
    ("endpoint", "allow_http", "accepted"),
    [
        *(
            ("https://s3.example.com", False, True),
            ("http://127.0.0.1:9000", False, True),
            ("http://s3.example.com", False, False),
        ),
        *(
            ("http://s3.example.com", True, True),
            ("https://key:secret@s3.example.com", True, False),
            ("ftp://s3.example.com", True, False),
        ),
    ],
)
def test_a_store_in_the_clear_only_if_allowed(endpoint: str, allow_http: bool, accepted: bool) -> None:
    assert bool(table_settings({"s3.endpoint": endpoint}, allow_http=allow_http).accepted) is accepted


def test_what_catalogs_send_for_storage_is_accepted() -> None:
    sent = {
        "s3.region": "eu-north-1",
        "s3.session-token": "t" * 2000,
        "adls.sas-token.account.dfs.core.windows.net": "sv=2024",
        "client.region": "x",
    }
    assert table_settings(sent, allow_http=False).accepted == sent


def test_the_names_of_what_is_left_out_are_safe_to_log() -> None:
    gated = table_settings(
        {f"{'x' * 100_000}\n\x1b[31m{number}": "v" for number in range(KEYS_SHOWN_MAX + 5)}
        | {"\x1b[2J": "v"},
        allow_http=False,
    )
    assert all(name.isprintable() and len(name) < 100 for name in gated.left_out)
    assert len(gated.left_out) <= KEYS_SHOWN_MAX + 1


@given(
    st.dictionaries(
        st.sampled_from(sorted(STORAGE_KEYS | CATALOG_KEYS)) | st.text(),
        st.text() | st.none() | st.integers() | st.lists(st.text()),
    )
)
def test_any_settings_give_listed_names_with_text(remote: dict[str, object]) -> None:
    gated = catalog_settings(remote, URI, allow_http=False)
    assert all(
        name in STORAGE_KEYS | CATALOG_KEYS or name.startswith("adls.sas-token.") for name in gated.accepted
    )
    assert all(value.isprintable() for value in gated.accepted.values())
    if "uri" in gated.accepted:
        assert origin_of(gated.accepted["uri"]) == origin_of(URI)
