"""The real S3 server of the tests: s3proxy over a folder, in a process of its own on a loopback port that the
system chose.

It knows conditional creates, multipart uploads, ranges and paged listings, and it checks signatures. Ended
and started again at its address, it knows its objects.
"""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

from archiver.spark.java import require_java
from tests.support.servers import class_data
from tests.support.servers.local_server import LocalServer
from tests.support.servers.maven import jars

PACKAGE = "org.gaul:s3proxy:4.1.0:jar-with-dependencies"
ACCESS_KEY_ID = "test-access-key"
SECRET_ACCESS_KEY = "test-secret-key-that-nobody-may-see"
REGION = "us-east-1"
START_TIMEOUT_S = 60.0
_PASSWORD = "of-a-test-key"
_MEMORY = ("-Xmx192m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class S3Server(LocalServer):
    """One server, its objects below `folder`; `uri` is "" while it is not up. It starts in about 2 s."""

    def __init__(self, folder: Path, *, signed: bool = True, tls: bool = False) -> None:
        """Without `signed` it checks no signature: for a test that changes requests on their way. With `tls`
        it speaks HTTPS only, with a certificate of its own that only those trust who know `ca_file`.
        """
        super().__init__("s3proxy")
        self._folder = folder
        self._signed = signed
        self._tls = tls
        self._buckets = 0
        self.uri = ""

    def kill(self) -> None:
        self.uri = ""
        super().kill()

    def client(self) -> Any:
        """boto3 on it, for a test that reads objects or acts as an external client."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.uri,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            verify=str(self.ca_file) if self._tls else None,
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )

    @property
    def ca_file(self) -> Path:
        """The CA of its certificate: the certificate itself."""
        return self._folder / "ca.pem"

    def new_bucket(self) -> str:
        """The name of an empty bucket that no other test uses."""
        self._buckets += 1
        name = f"bucket-{os.getpid()}-{self._buckets}"
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def folder_of(self, bucket: str) -> Path:
        """Where it keeps that bucket's objects, as files of their keys."""
        return self._folder / "objects" / bucket

    def _started(self, port: int) -> bool:
        data = self._folder / "objects"
        data.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "s3proxy.properties"
        address = f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
        if self._tls:
            store = self._certified()
            address = f"s3proxy.secure-endpoint=https://127.0.0.1:{port}\ns3proxy.keystore-path={store}\ns3proxy.keystore-password={_PASSWORD}\n"
        properties.write_text(
            f"{address}"
            f"s3proxy.authorization={'aws-v2-or-v4' if self._signed else 'none'}\n"
            f"s3proxy.identity={ACCESS_KEY_ID}\n"
            f"s3proxy.credential={SECRET_ACCESS_KEY}\n"
            "jclouds.provider=filesystem-nio2\n"
            "jclouds.identity=none\njclouds.credential=none\n"
            f"jclouds.filesystem.basedir={data}\n"
        )
        java, jar = str(require_java(os.environ).executable), str(jars(PACKAGE)[0])
        command = [
            java,
            *_MEMORY,
            *class_data.options("s3proxy"),
            "-jar",
            jar,
            "--properties",
            str(properties),
        ]
        if not self._run(command, port, lambda: _answers(port, self._tls), START_TIMEOUT_S):
            return False
        self.uri = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return True

    def _certified(self) -> Path:
        """The key and certificate, made once."""
        store = self._folder / "keys.p12"
        if not store.exists():
            keytool = str(require_java(os.environ).executable.with_name("keytool"))
            common = [
                "-keystore",
                str(store),
                "-storetype",
                "PKCS12",
                "-storepass",
                _PASSWORD,
                "-alias",
                "s3",
            ]
            made = [
                "-genkeypair",
                "-keyalg",
                "EC",
                "-dname",
                "CN=127.0.0.1",
                "-ext",
                "san=ip:127.0.0.1",
                "-ext",
                "bc=ca:true",
                "-validity",
                "2",
            ]
            for asked in (made, ["-exportcert", "-rfc", "-file", str(self.ca_file)]):
                subprocess.run(
                    [keytool, *asked, *common], check=True, capture_output=True, timeout=START_TIMEOUT_S
                )
        return store


def data_group(folder: Path, bucket: str, endpoint: str, prefix: str = "pre/fix") -> dict[str, Any]:
    """The group `data` of a configuration in that folder, which is made; puts the keys there, in files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("key", ACCESS_KEY_ID), ("secret", SECRET_ACCESS_KEY)):
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    return {
        "uri": f"s3://{bucket}/{prefix}",
        "endpoint": endpoint,
        "region": REGION,
        "path_style": True,
        "access_key_id": {"file": "key"},
        "secret_access_key": {"file": "secret"},
    }


def _answers(port: int, tls: bool) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    if tls:  # only whether the server answers
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=5, context=ssl._create_unverified_context()
        )
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()
