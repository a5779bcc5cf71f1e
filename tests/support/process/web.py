"""The port over a real application: a server on a port of its own, and clients that speak to it through real
sockets.

Administration does what the commands do, but refines in the process of the test instead of Spark.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from starlette.responses import Response

from archiver.app.application import Application
from archiver.app.queries import Queries
from archiver.app.reading import Reading
from archiver.config.daemon import HttpSettings
from archiver.config.settings import Settings, load_settings
from archiver.kafka.logins import logins_of
from archiver.kafka.users import set_user
from archiver.publish.scope import parse_scope
from archiver.runtime.clock import SystemClock
from archiver.runtime.exit_codes import Done
from archiver.runtime.ids import SystemIds
from archiver.status.group_members import GroupMembers
from archiver.status.history import LagHistory
from archiver.status.journal import Journal
from archiver.status.lag import LagReport, lag_report
from archiver.stream.records import StreamRecord
from archiver.web.app import create_app
from archiver.web.app_context import AppContext, Progress, Records
from archiver.web.forward import Forward
from archiver.web.openapi import document
from archiver.web.server import WebServer
from archiver.web.tls import client_context
from intake.write.writer import IntakeWriter
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import refine_here
from tests.support.objects.faulty_objects import FaultyObjectStore
from tests.support.process.forwarding import OneWorker

TOKEN = "correct horse battery"
PATIENCE_S = 180.0
ROLES = frozenset({"intake", "archive", "reconcile"})


@dataclass(frozen=True)
class Reply:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as one document."""
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        """The body as JSON lines."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> str:
        """The message of a refusal."""
        message: str = self.json()["error"]["message"]
        return message


class HereOperations:
    """The commands' work on an application of this process."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.gate: Callable[[Progress], None] = lambda _: None
        """Called first in every operation, in its thread."""

    def status(self) -> dict[str, Any]:
        return {"cluster": self.application.cluster.name}

    def archive(self, topic: str | None, everything: bool, progress: Progress) -> Done:
        self.gate(progress)
        made = self.application.archiving.round(progress)
        run = replace(made, refine=refine_here, cores=lambda: 2)
        report = run.run(None if topic is None else parse_scope(topic), everything=everything)
        return Done(report.to_json(), report.exit_code)

    def clean(self, dry_run: bool, progress: Progress) -> Done:
        self.gate(progress)
        report = self.application.maintenance.cleaning(progress, dry_run=dry_run).run(dry_run=dry_run)
        return Done(report.to_json(), report.exit_code)

    def reconcile(self, fix: bool, topic: str | None, progress: Progress) -> Done:
        self.gate(progress)
        report = self.application.maintenance.reconciling(progress, dry_run=not fix).run(
            "everything" if fix else "nothing", topic
        )
        return Done(report.to_json(), report.exit_code)

    def replay(self, topic: str | None, files_max: int | None, progress: Progress) -> Done:
        self.gate(progress)
        report = self.application.archiving.replaying(progress).run(
            None if topic is None else parse_scope(topic), files_max or 1
        )
        return Done(report.to_json(), report.exit_code)

    def audit(self, topic: str | None, progress: Progress, *, deep: bool = False) -> Done:
        self.gate(progress)
        progress("auditing")
        document = self.application.maintenance.audit(
            None if topic is None else parse_scope(topic), deep=deep, progress=progress
        )
        return Done(document, {"valid": 0, "invalid": 1}.get(str(document["verdict"]), 2))

    def reload(self) -> Done:
        return Done({"changed": []}, 0)

    def reset_offsets(self, group: str, topic: str, offsets: str) -> Done:
        return Done({"group": group, "topic": topic, "partitions": len(offsets.split(","))}, 0)


class Daemon:
    """A daemon's port without its schedules."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        roles: frozenset[str] = ROLES,
        listen: str = "127.0.0.1:0",
        forwarded: bool = False,
        **http: Any,
    ) -> None:
        """With `forwarded`, an intake worker answers produce requests."""
        self.deployment = deployment
        self.settings: Settings = load_settings(deployment.config, {})
        self.application = Application(self.settings, {}, lasting=True)
        self.objects = FaultyObjectStore(self.application.objects)
        self.application.objects = self.objects
        self.writer: IntakeWriter | None = self.application.intake.writer()
        self.operations = HereOperations(self.application)
        self.journal = Journal(10)
        self.journal.becomes("serving")
        self.token: str | None = TOKEN
        self.alive = True
        self.history = LagHistory(3600.0, 10)
        self.members: GroupMembers | None = None
        """Those of a Kafka listener, if a test has one."""
        self.logins = logins_of(self.settings.kafka, SystemIds())
        self.cluster_id: str | None = self.application.cluster.cluster_id
        given = HttpSettings.model_validate(
            {"listen": listen, "retry_after": 2, "request_timeout": 30, **http}
        )
        self.queries = Queries(lambda: self.application, given, SystemClock(), SystemIds())
        self.face = AppContext(
            http=given,
            journal=self.journal,
            roles=roles,
            writer=lambda: self.writer,
            operations=self.operations,
            reads=Reading(
                lambda: self.application,
                self.lag,
                SystemClock(),
                self.journal,
                lambda: self.members,
                self.history,
            ),
            queries=self.queries,
            logins=lambda: self.logins,
            token=lambda: self.token,
            cluster=self.settings.cluster,
            cluster_id=lambda: self.cluster_id,
            page=lambda asked: f"<!doctype html><p>{sorted(asked)}",
            metrics=lambda: b"archiver_up 1\n",
            alive=lambda: self.alive,
            clock=SystemClock(),
            version="1.2.3",
            forward=self._forwarded,
        )
        self._forward: Forward | None = None
        self.worker: OneWorker | None = None
        if forwarded:
            self.worker = OneWorker(self.application.intake.writer(), self.face.http)
            self.worker.__enter__()
            self.forward_to(self.worker.forward)
        self.server = WebServer(create_app(self.face), listen, 1.0, self.face.http.tls)
        self.server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.worker is not None:
            self.worker.__exit__()
        if self.writer is not None:
            self.writer.close()
        self.server.stop(5.0)
        self.application.leadership.resign()
        self.application.close()

    def lag(self) -> LagReport:
        """The lag as of now; a real daemon has that of its last poll."""
        ledger, settings = self.application.ledger(), self.application.settings
        return lag_report(
            self.application.backlog(),
            ledger,
            settings.topics,
            SystemClock().now_us(),
            {},
            archive=settings.archive,
            skew_max_s=settings.intake.clock_skew_max,
        )

    def forward_to(self, forward: Forward) -> None:
        """Let workers answer produce requests from now on."""
        self._forward = forward

    async def _forwarded(self, records: Records) -> Response | None:
        return None if self._forward is None else await self._forward(records)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self.server.address is not None
        return self.server.address

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        connection = self.connection()
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return self.checked(method, path, Reply(response.status, dict(response.headers), response.read()))
        finally:
            connection.close()

    def connection(self) -> http.client.HTTPConnection:
        """Not opened yet; over TLS where the port speaks it."""
        tls = self.face.http.tls
        if tls is None:
            return http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        return http.client.HTTPSConnection(*self.address, timeout=PATIENCE_S, context=client_context(tls))

    def send(
        self, topic: str, body: bytes, kind: str = "application/x-ndjson", query: str = "", **headers: str
    ) -> Reply:
        """Records."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("POST", f"/v1/topics/{topic}/records{query}", body, {"Content-Type": kind, **given})

    def administer(self, name: str, document: Any = None, token: str = TOKEN) -> Reply:
        """A request of administration; all its lines."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return self.call(
            "POST", f"/v1/admin/{name}", json.dumps({} if document is None else document).encode(), headers
        )

    def checked(self, method: str, path: str, reply: Reply) -> Reply:
        """The answer, which must be one that the OpenAPI document promises."""
        wanted = path.partition("?")[0].split("/")
        for known, operations in document()["paths"].items():
            pieces = known.split("/")
            if len(pieces) == len(wanted) and all(
                a == b or a[:1] == "{" for a, b in zip(pieces, wanted, strict=True)
            ):
                if method.lower() not in operations:
                    continue
                promised = operations[method.lower()]["responses"]
                assert str(reply.status) in promised, (
                    f"{method} {known} answered {reply.status}, which is not documented: {reply.body!r}"
                )
                kind = reply.headers["content-type"].partition(";")[0]
                assert kind in promised[str(reply.status)]["content"], (
                    f"{method} {known}: {reply.status} with {kind}"
                )
                wants_retry = reply.headers.get("retry-after") is not None
                assert not wants_retry or "Retry-After" in promised[str(reply.status)]["headers"]
        return reply

    def stored(self, topic: str) -> dict[tuple[int, int], StreamRecord]:
        """Every record of a topic by partition and offset, read back through the stream."""
        state, stream = self.application.topic(topic), self.application.stream()
        return {
            (p, record.offset): record
            for p in range(state.partitions)
            for record in stream.read(state.topic_id, p)
        }

    @contextmanager
    def raw(self) -> Any:
        """A socket, to speak any HTTP there is."""
        with socket.create_connection(self.address, timeout=PATIENCE_S) as connection:
            yield connection


def basic(name: str, password: str) -> dict[str, str]:
    """Header of a login."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    """Header with a token."""
    return {"Authorization": f"Bearer {token}"}


def kafka_users(
    file: Path, passwords: Mapping[str, str], rules: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The group `kafka` of a configuration with these users and rules; writes the file of the users."""
    for name, password in passwords.items():
        set_user(file, name, password, 4096, SystemIds())
    return {
        "listen": "127.0.0.1:0",
        "sasl": {"mechanisms": ["SCRAM-SHA-256"]},
        "users_file": str(file),
        "acls": list(rules),
    }


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def in_threads(works: list[Callable[[], None]]) -> None:
    """All of them at once; waits for the last."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
