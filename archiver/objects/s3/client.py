"""The one place where boto3 makes clients.

Owns one client per place and process, shared by all threads: botocore's clients are safe for threads, making
one takes a tenth of a second of a core, and its pool of connections is what saves a handshake per request. A
child of a fork never uses its parent's: two processes on one connection would read each other's answers.
botocore's own retries are off, because it would send a create again and show only the last answer, behind
which a success may hide.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from archiver.objects.location import S3Options
from archiver.runtime.errors import ConfigInvalid

CONNECTIONS_MAX: Final = 32
"""Connections that one client keeps open; more threads than that are served, too, by connections that are not
kept."""

_clients: dict[S3Options, Any] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In the child of a fork: another thread of the parent may have held the lock, and the connections are
    the parent's.
    """
    global _clients, _lock
    _clients, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def client_for(options: S3Options) -> Any:
    """The process's client with these options. Raises `ConfigInvalid`, and what botocore does, for options
    that cannot be used.
    """
    with _lock:
        if options not in _clients:
            _clients[options] = _made(options)
        return _clients[options]


def _made(options: S3Options) -> Any:
    if (
        options.ca_file is not None and not Path(options.ca_file).is_file()
    ):  # an executor may be a machine without it
        raise ConfigInvalid(
            f"there is no file {options.ca_file} on this machine; data.ca_file must be at the same "
            "path on each"
        )
    session = boto3.session.Session(
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        region_name=options.region,
    )
    region = session.region_name or ("us-east-1" if options.endpoint else None)
    # "auto": AWS's own buckets by host name, but for names with a dot, which no certificate covers.
    style = "path" if options.path_style else "virtual" if options.endpoint else "auto"
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.request_timeout_s,
        max_pool_connections=CONNECTIONS_MAX,
        tcp_keepalive=True,
        s3={"addressing_style": style},
        signature_version="s3v4",
        # Checksums in trailers are not understood by every server; Content-MD5 is, and every request that
        # stores bytes has one.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # Where data goes is said by the configuration, which refuses http:// to other machines, and not by a
        # variable.
        ignore_configured_endpoint_urls=True,
        user_agent_extra="stream-archiver",
    )
    verify = options.ca_file  # None: the system's authorities; verification cannot be switched off
    return session.client(
        "s3", endpoint_url=options.endpoint, region_name=region, verify=verify, config=config
    )
