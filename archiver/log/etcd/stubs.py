"""Import the package etcd3 on a current protobuf.

etcd3 0.12.0 is the last release. Its generated message modules target protobuf 3, and newer versions refuse
to load them. This module puts messages generated from `archiver/proto/etcd_*.proto` into `sys.modules` under
etcd3's names before it is imported. They use the packages and numbers of etcd's public API. No other entry
changes. Remove this module when `stubs_of_etcd3_load` is true; a test watches that.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import types
from typing import Any, Final

from archiver.proto import etcd_auth_pb2, etcd_kv_pb2, etcd_rpc_pb2

PACKAGE: Final = "etcd3.etcdrpc"
_IMPORT_TIMEOUT_S: Final = 60.0


def import_etcd3() -> Any:
    """The package etcd3, imported with the archiver's message modules unless already imported."""
    if "etcd3" not in sys.modules:
        services = types.ModuleType(f"{PACKAGE}.rpc_pb2_grpc")
        services.__dict__.update({f"{name}Stub": _stub(service) for name, service in _services().items()})
        ours = {
            "kv_pb2": etcd_kv_pb2,
            "auth_pb2": etcd_auth_pb2,
            "rpc_pb2": etcd_rpc_pb2,
            "rpc_pb2_grpc": services,
        }
        sys.modules.update({f"{PACKAGE}.{name}": module for name, module in ours.items()})
        # grpc logs every connection attempt; failures that matter arrive as errors.
        logging.getLogger("grpc").setLevel(logging.CRITICAL)
    return importlib.import_module("etcd3")


def stubs_of_etcd3_load() -> bool:
    """Whether etcd3 loads with its own message modules, tried in a new process. If so, this file is
    obsolete.
    """
    tried = subprocess.run(
        [sys.executable, "-c", "import etcd3"], capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False
    )
    return tried.returncode == 0


def _services() -> dict[str, Any]:
    return dict(etcd_rpc_pb2.DESCRIPTOR.services_by_name)


def _stub(service: Any) -> type:
    """A stub class like those of grpcio's generator: constructed with a channel, it has one callable per
    method.

    It is built from the descriptor. Generated stub files would require a certain version of grpcio.
    """

    def connect(self: Any, channel: Any) -> None:
        for method in service.methods:
            kinds = (
                "stream" if method.client_streaming else "unary",
                "stream" if method.server_streaming else "unary",
            )
            call = getattr(channel, "_".join(kinds))(
                f"/{service.full_name}/{method.name}",
                request_serializer=getattr(etcd_rpc_pb2, method.input_type.name).SerializeToString,
                response_deserializer=getattr(etcd_rpc_pb2, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)

    return type(
        f"{service.name}Stub", (), {"__init__": connect, "__doc__": f"The service {service.full_name}."}
    )
