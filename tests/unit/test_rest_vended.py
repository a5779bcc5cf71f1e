"""The properties that a catalog returns for a table replace ours of the same purpose, and no others."""

from __future__ import annotations

import pytest

from archiver.catalog.iceberg.remote_properties import file_properties

OURS = {
    "uri": "https://catalog",
    "s3.access-key-id": "a",
    "s3.secret-access-key": "b",
    "s3.session-token": "c",
    "s3.region": "eu-north-1",
    "s3.endpoint": "https://ours",
    "client.access-key-id": "d",
    "client.profile-name": "p",
}
PLAIN = {"uri": "https://catalog", "s3.region": "eu-north-1", "s3.endpoint": "https://ours"}

CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, OURS),
    "keys": (
        {"s3.access-key-id": "x", "s3.secret-access-key": "y"},
        {**PLAIN, "s3.access-key-id": "x", "s3.secret-access-key": "y"},
    ),
    "keys in the other spelling": (
        {"client.access-key-id": "x", "client.secret-access-key": "y", "client.session-token": "z"},
        {**PLAIN, "client.access-key-id": "x", "client.secret-access-key": "y", "client.session-token": "z"},
    ),
    "a region in the other spelling": (
        {"client.region": "us-west-2"},
        {
            **{name: value for name, value in OURS.items() if name != "s3.region"},
            "client.region": "us-west-2",
        },
    ),
    "an endpoint": ({"s3.endpoint": "https://theirs"}, {**OURS, "s3.endpoint": "https://theirs"}),
}


@pytest.mark.parametrize("name", CASES)
def test_in_place_of_ours(name: str) -> None:
    handed_out, expected = CASES[name]
    assert file_properties(OURS, handed_out) == expected
