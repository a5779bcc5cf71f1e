"""The real S3 server of the tests: s3proxy over a folder, in a process of its own on a loopback port that the system chose.

It knows conditional creates, multipart uploads, ranges and paged listings, and it checks signatures. Ended and started again at its
address, it knows its objects. The kernel ends it with the thread that started it, so it never outlives the tests, however they end.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import IO, Any, Self

from archiver.java import require_java
from tests.support.maven import jars
from tests.support.processes import until

PACKAGE = "org.gaul:s3proxy:4.1.0:jar-with-dependencies"
ACCESS_KEY_ID = "test-access-key"
SECRET_ACCESS_KEY = "test-secret-key-that-nobody-may-see"
REGION = "us-east-1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
START_TRIES = 5
_PASSWORD = "of-a-test-key"
_MEMORY = ("-Xmx192m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class S3Server:
    """One server, its objects below `folder`; `uri` is "" while it is not up."""

    def __init__(self, folder: Path, *, signed: bool = True, tls: bool = False) -> None:
        """Without `signed` it checks no signature: for a test that changes requests on their way. With `tls` it speaks HTTPS only, with
        a certificate of its own that only those trust who know `ca_file`.
        """
        self._folder = folder
        self._signed = signed
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._said: list[bytes] = []
        self._reader: threading.Thread | None = None
        self._buckets = 0
        self.port = 0
        self.uri = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The running process; for a test that pauses it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it on 127.0.0.1, at the port it had before, if it had one. About 2 s."""
        for _ in range(START_TRIES):
            if self._started(self.port or _free_port()):
                return
            assert not self.port, f"s3proxy did not start again: {self.output()}"
        raise AssertionError(f"s3proxy did not start: {self.output()}")

    def kill(self) -> None:
        """End it at once, as a crash does; what it had acknowledged is kept."""
        self.uri = ""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        if self._reader is not None:
            self._reader.join(STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()

    def output(self) -> str:
        """What it has printed."""
        return b"".join(self._said).decode(errors="replace")[-3000:]

    def client(self) -> Any:
        """boto3 on it, for a test that looks or plays another hand."""
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
        """Who vouches for its certificate: the certificate itself."""
        return self._folder / "ca.pem"

    def new_bucket(self) -> str:
        """The name of an empty bucket that nobody else uses."""
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
            address = (
                f"s3proxy.secure-endpoint=https://127.0.0.1:{port}\ns3proxy.keystore-path={store}\ns3proxy.keystore-password={_PASSWORD}\n"
            )
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
        command = ["setpriv", "--pdeathsig", "KILL", java, *_MEMORY, "-jar", jar, "--properties", str(properties)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._process = process
        assert process.stdout is not None
        self._said = []
        self._reader = threading.Thread(target=_collect, args=(process.stdout, self._said), daemon=True)
        self._reader.start()
        until("s3proxy answers or has ended", lambda: _answers(port, self._tls) or process.poll() is not None, START_TIMEOUT_S)
        if process.poll() is not None:  # somebody else has taken the port meanwhile
            self.kill()
            return False
        self.port = port
        self.uri = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return True

    def _certified(self) -> Path:
        """The key and certificate, made once."""
        store = self._folder / "keys.p12"
        if not store.exists():
            keytool = str(require_java(os.environ).executable.with_name("keytool"))
            common = ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", _PASSWORD, "-alias", "s3"]
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
                subprocess.run([keytool, *asked, *common], check=True, capture_output=True, timeout=START_TIMEOUT_S)
        return store


def _collect(stream: IO[bytes], into: list[bytes]) -> None:
    into.extend(stream)


def _answers(port: int, tls: bool) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    if tls:  # only whether somebody is there
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=ssl._create_unverified_context())
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
