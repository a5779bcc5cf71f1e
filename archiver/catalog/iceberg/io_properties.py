"""pyiceberg's `s3.*` properties for a catalog's own files, from the group `data` of the configuration.

Pure. Properties that the catalog's own configuration states are never changed: a catalog may reach the bucket
in another way, or hand out credentials for each table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from archiver.objects.location import StorePlace

CA_FILE: Final = "s3.archiver.ca-file"
"""Ours, not pyiceberg's: `archiver.catalog.iceberg.local_io` reads it."""
_OWN_CREDENTIALS: Final = (
    *("s3.access-key-id", "s3.role-arn", "s3.profile-name", "s3.anonymous", "s3.signer"),
    *("client.access-key-id", "client.role-arn", "client.profile-name"),
)


def io_properties(place: StorePlace, stated: Mapping[str, str]) -> dict[str, str]:
    """Properties to add to those that are `stated` for the catalog; none for a local folder."""
    if not place.is_s3:
        return {}
    options = place.s3
    found = {
        "s3.connect-timeout": f"{options.connect_timeout_s:g}",
        "s3.request-timeout": f"{options.request_timeout_s:g}",
    }
    # Requests are signed for a region, and servers other than AWS have none of their own.
    region = options.region or ("us-east-1" if options.endpoint else None)
    if region is not None:
        found["s3.region"] = region
    if options.endpoint is not None:
        found["s3.endpoint"] = options.endpoint
        found["s3.force-virtual-addressing"] = str(not options.path_style).lower()
    if options.ca_file is not None:
        found[CA_FILE] = options.ca_file
    if (
        # Half a key pair is none. A stated identity of any kind must not be mixed with our keys.
        options.access_key_id is not None
        and options.secret_access_key is not None
        and not any(name in stated for name in _OWN_CREDENTIALS)
    ):
        found |= {
            "s3.access-key-id": options.access_key_id,
            "s3.secret-access-key": options.secret_access_key,
        }
        if options.session_token is not None:
            found["s3.session-token"] = options.session_token
    return {
        name: value
        for name, value in found.items()
        # pyiceberg prefers `s3.` to `client.`, so ours would override a stated `client.` property.
        if name not in stated and name.replace("s3.", "client.", 1) not in stated
    }
