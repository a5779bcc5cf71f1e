"""The package etcd3 on a current protobuf: the one place that knows what is wrong with it.

etcd3 0.12.0 is the last release, and the modules that it brings along for etcd's messages were generated for
protobuf 3, which newer versions refuse to load. Ours are generated from `archiver/proto/etcd_*.proto`, with
the packages and numbers of etcd's public API; here they are put where etcd3 looks for its own, before it is
imported. Owns those entries of `sys.modules` and promises that nothing else is changed. Needed until
`stubs_of_etcd3_load` is true, which a test watches.
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
_LOOK_TIMEOUT_S: Final = 60.0


def import_etcd3() -> Any:
    """The package etcd3, imported on our messages unless it is imported already."""
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
        # The library of the protocol tells of every connection that it tries; what matters reaches us as an
        # error.
        logging.getLogger("grpc").setLevel(logging.CRITICAL)
    return importlib.import_module("etcd3")


def stubs_of_etcd3_load() -> bool:
    """Whether etcd3 loads with the modules that it brings along, tried in a process of its own: then this
    file is needed no more.
    """
    tried = subprocess.run(
        [sys.executable, "-c", "import etcd3"], capture_output=True, timeout=_LOOK_TIMEOUT_S, check=False
    )
    return tried.returncode == 0


def _services() -> dict[str, Any]:
    return dict(etcd_rpc_pb2.DESCRIPTOR.services_by_name)


def _stub(service: Any) -> type:
    """A class as the generator of grpcio makes it: made with a channel, it has one callable for each method
    of the service.

    Made from the description of the messages, so no second kind of generated file is kept, which would ask
    for its own grpcio.
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
