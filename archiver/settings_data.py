"""The object store's settings.

Plain values only. The text under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

from typing import Self

from pydantic import StrictBool, model_validator

from archiver.settings_types import LATER, DataUri, Group, Located, Secret


class DataSettings(Group):
    """The object store: where intake files, archives and table metadata are kept."""

    uri: DataUri
    """Root of everything that is stored. A plain path is a local folder, relative to the configuration file; so is `file:///path`.
    `s3://bucket/prefix` comes with a later version."""
    endpoint: str | None = None
    """Address of an S3 server other than AWS. Comes with `s3://`."""
    region: str | None = None
    """Region of the bucket. Comes with `s3://`."""
    path_style: StrictBool = False
    """Whether the bucket stands in the path instead of the host name. Comes with `s3://`."""
    access_key_id: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`. Comes with `s3://`."""
    secret_access_key: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`. Comes with `s3://`."""

    @model_validator(mode="after")
    def _only_local(self) -> Self:
        scheme = self.uri.partition("://")[0]
        if scheme in ("s3", "s3a"):
            raise Located([(("uri",), f"S3: {LATER}; use a local folder: file:///path")])
        if scheme != "file":
            raise Located([(("uri",), f"there is no object store for {scheme}://; use a local folder: file:///path")])
        given = [name for name in ("endpoint", "region", "access_key_id", "secret_access_key") if getattr(self, name) is not None]
        if given or self.path_style:
            name = (given or ["path_style"])[0]
            raise Located([((name,), f"belongs to s3:// and {LATER}; remove it")])
        return self
