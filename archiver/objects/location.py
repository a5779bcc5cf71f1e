"""The location of a deployment's objects and the options to open it.

Spark executors open the store too, so the value can be pickled into a task. It holds credentials only if the
configuration states them; otherwise each machine uses its own credential chain. `repr` shows no credentials.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from archiver.config.settings import DataSettings

S3_SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of the S3 client; the configuration group `data` explains each of them."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    ca_file: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    attempts_max: int = 5
    part_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A data folder or a bucket."""

    uri: str
    """`file:///path` or `s3://bucket/prefix`."""
    s3: S3Options = S3Options()
    """Unused for a local folder."""

    @classmethod
    def of(cls, data: DataSettings) -> StorePlace:
        """The location in the configuration."""
        # A local folder needs no credentials, so none travel to the executors.
        if not data.uri.startswith(S3_SCHEME):
            return cls(data.uri)
        secrets = (data.access_key_id, data.secret_access_key, data.session_token)
        access_key_id, secret_access_key, session_token = (
            None if one is None else one.get_secret_value() for one in secrets
        )
        return cls(
            data.uri,
            S3Options(
                endpoint=data.endpoint,
                region=data.region,
                path_style=data.path_style,
                ca_file=None if data.ca_file is None else str(data.ca_file),
                access_key_id=access_key_id,
                secret_access_key=secret_access_key,
                session_token=session_token,
                connect_timeout_s=data.connect_timeout,
                request_timeout_s=data.request_timeout,
                attempts_max=data.attempts_max,
                part_bytes=data.part_bytes,
            ),
        )

    @property
    def is_s3(self) -> bool:
        """Whether it is a bucket."""
        return self.uri.startswith(S3_SCHEME)
