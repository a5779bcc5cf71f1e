"""The real Iceberg REST catalog of the tests: Java's own, in a process of its own on a loopback port that the
system chose.

It is what Iceberg's Java tests run against: `RESTCatalogAdapter` over `JdbcCatalog`, here on a SQLite file,
behind the servlet of the same jar and Spark's Jetty. Nothing is compiled: a plain Java process runs py4j,
which pyspark brings along, and this side builds the objects. The process ends with its standard input, so it
never outlives the tests, however they end. The warehouse is a folder, or a bucket of the S3 server of tests.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyiceberg.catalog import Catalog, load_catalog

from archiver.spark.java import require_java
from tests.support.servers import class_data
from tests.support.servers.maven import jars, spark_jars

VERSION = "1.11.0"
"""The newest whose `iceberg-core` tests, which hold the servlet, are published; its control vocabulary is
that of 1.12."""

PACKAGES = (
    *(f"org.apache.iceberg:iceberg-{part}:{VERSION}" for part in ("api", "common", "core", "bundled-guava")),
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.apache.httpcomponents.core5:httpcore5:5.3.6",
    "com.github.ben-manes.caffeine:caffeine:3.2.2",
)
AWS_PACKAGES = (
    *(f"org.apache.iceberg:iceberg-{part}:{VERSION}" for part in ("aws", "aws-bundle")),
    "dev.failsafe:failsafe:3.3.2",
)
"""With a warehouse in a bucket."""
OF_SPARK = (
    *("py4j", "spark-core_2.13", "jakarta.servlet-api", "hadoop-client-api", "hadoop-client-runtime", "avro"),
    *(
        "jackson-core",
        "jackson-annotations",
        "jackson-databind",
        "slf4j-api",
        "log4j-slf4j2-impl",
        "log4j-api",
        "log4j-core",
    ),
)
CLASSES = "rest-catalog"
"""The name of its archive of classes."""
STOP_TIMEOUT_S = 60
"""The end of its JVM may write that archive."""
_MEMORY = ("-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class RestCatalog:
    """One catalog, kept in `folder`: ended and started again it knows its tables, as a real one does. `uri`
    is "" while it is not up."""

    def __init__(self, folder: Path, bucket: Mapping[str, str] | None = None) -> None:
        """`bucket`: the warehouse is there; how it is reached, in the words of Iceberg's S3FileIO, and
        `warehouse`."""
        self._bucket = bucket
        self.warehouse = folder / "warehouse"
        self.uri = ""
        self._database = folder / "catalog.db"
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: JavaGateway | None = None
        self._held: socket.socket | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._let_go()

    @property
    def properties(self) -> dict[str, str]:
        """What pyiceberg, and a catalog of our configuration, want to know."""
        return {"type": "rest", "uri": self.uri}

    @property
    def pid(self) -> int:
        """The running process; for a test that pauses it."""
        assert self._process is not None
        return self._process.pid

    def client(self) -> Catalog:
        """pyiceberg on it, for a test that reads the tables or acts as an external client."""
        return load_catalog("rest", **self.properties)

    def warm_up(self) -> None:
        """Go through what tests ask for once: a new JVM's first answers take seconds, and tests bound how
        long they wait."""
        client = self.client()
        client.create_namespace("warm")
        table = client.create_table("warm.up", pa.schema([("x", pa.int64())]))
        table.append(pa.table({"x": [1]}))
        client.load_table("warm.up")
        client.close()
        self.empty()

    def empty(self) -> None:
        """Drop every table and namespace; files stay."""
        client = self.client()
        for namespace in client.list_namespaces():
            for table in client.list_tables(namespace):
                client.drop_table(table)
            client.drop_namespace(namespace)
        client.close()

    def start(self, port: int = 0) -> None:
        """Start it and serve on 127.0.0.1; `port` 0 lets the system choose. About 4 s."""
        self.warehouse.mkdir(parents=True, exist_ok=True)
        port_of_gateway, token, self._process = launch_gateway(
            jarpath=str(spark_jars("py4j")[0]),
            classpath=os.pathsep.join(
                str(path)
                for path in [
                    *jars(*PACKAGES, *(AWS_PACKAGES if self._bucket else ())),
                    *spark_jars(*OF_SPARK),
                ]
            ),
            java_path=str(require_java(os.environ).executable),
            # Another classpath has other classes.
            javaopts=[*_MEMORY, *([] if self._bucket else class_data.options(CLASSES))],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        # Without memory management: with it, every Java object notifies the JVM when it is collected, and
        # those of a JVM that was killed log a traceback then, from inside the garbage collector. Formatting
        # one parses source, and in Python 3.11 before 3.11.8 that breaks any other parsing which the
        # collector has interrupted: "AST constructor recursion depth mismatch", in whichever test comes
        # later.
        parameters = GatewayParameters(
            port=port_of_gateway, auth_token=token, auto_convert=True, enable_memory_management=False
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        try:
            self.uri = f"http://127.0.0.1:{self._serve(self._gateway.jvm, port)}"
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it as its JVM ends by itself."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash does; what it had acknowledged is kept."""
        self.uri = ""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None
        if self._gateway is not None:
            self._gateway.close(keep_callback_server=False, close_callback_server_connections=False)
            self._gateway = None

    def go_away(self) -> None:
        """Kill it, and refuse connections at its address until it comes back: no other process gets the
        port."""
        port = int(self.uri.rpartition(":")[2])
        self.kill()
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(
            ("127.0.0.1", port)
        )  # and not listening, which leaves the port to a server of ours that says the same

    def come_back(self) -> None:
        """Start it again at its old address, with all that it had acknowledged."""
        assert self._held is not None, "it is there"
        self.start(self._held.getsockname()[1])
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _serve(self, java: Any, port: int) -> int:
        """Build the catalog and its server; the port."""
        configuration = java.org.apache.hadoop.conf.Configuration(False)
        # The plain one writes a checksum file next to every metadata file: objects that no real store has.
        configuration.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        catalog = java.org.apache.iceberg.jdbc.JdbcCatalog()
        catalog.setConf(configuration)
        # One connection: SQLite has one writer, and a second would meet its lock.
        settings = {
            "uri": f"jdbc:sqlite:{self._database}",
            "warehouse": f"file://{self.warehouse}",
            "clients": "1",
            "jdbc.schema-version": "V1",
            # a process that is killed loses nothing by it, and no answer waits for a disk
            "jdbc.synchronous": "OFF",
        }
        if self._bucket is not None:
            settings |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **self._bucket}
        catalog.initialize("rest", settings)
        rest, jetty = java.org.apache.iceberg.rest, java.org.sparkproject.jetty
        handler = jetty.servlet.ServletContextHandler()
        handler.setContextPath("/")
        handler.addServlet(
            jetty.servlet.ServletHolder(rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))), "/*"
        )
        server = jetty.server.Server(java.java.net.InetSocketAddress("127.0.0.1", port))
        server.setHandler(handler)
        server.start()
        return int(server.getURI().getPort())


class WarmCatalog(RestCatalog):
    """One that has answered what tests ask for when it is started: its archive of classes has what answers need."""

    def start(self, port: int = 0) -> None:
        super().start(port)
        self.warm_up()
