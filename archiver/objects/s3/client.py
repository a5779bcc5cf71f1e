"""Create and cache boto3 clients: one per location and process, shared by all threads.

botocore's clients are thread-safe. Creating one takes 0.1 s of CPU, and its connection pool saves a TLS
handshake per request. A forked child never uses its parent's client: two processes on one connection would
read each other's replies. botocore's retries are off. It would repeat a create and return only the last
reply, which can hide a success.
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
"""Connections that one client keeps open; further threads use connections that are closed after use."""

_clients: dict[S3Options, Any] = {}
_lock = threading.Lock()


def _forget() -> None:
    """Reset in a forked child: the connections are the parent's, and one of its threads may have held the
    lock.
    """
    global _clients, _lock
    _clients, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def client_for(options: S3Options) -> Any:
    """The process's client with these options. Raises `ConfigInvalid` or errors of botocore for invalid
    options.
    """
    with _lock:
        if options not in _clients:
            _clients[options] = _made(options)
        return _clients[options]


def _made(options: S3Options) -> Any:
    # Checked here, because a Spark executor may run on a machine without the file.
    if options.ca_file is not None and not Path(options.ca_file).is_file():
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
    # "auto" addresses AWS buckets by host name, except names with a dot, which no certificate covers.
    style = "path" if options.path_style else "virtual" if options.endpoint else "auto"
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.request_timeout_s,
        max_pool_connections=CONNECTIONS_MAX,
        tcp_keepalive=True,
        s3={"addressing_style": style},
        signature_version="s3v4",
        # Not every server supports trailing checksums. Content-MD5 is supported, and every request that
        # stores bytes has it.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The endpoint comes only from the configuration, which refuses http:// to other machines, and not
        # from a variable.
        ignore_configured_endpoint_urls=True,
        user_agent_extra="stream-archiver",
    )
    verify = options.ca_file  # None: the system's CAs; verification cannot be disabled
    return session.client(
        "s3", endpoint_url=options.endpoint, region_name=region, verify=verify, config=config
    )
