"""A run of the outside harness on what a team installs: objects in a bucket, logs in etcd, tables in a REST
catalog.

Two daemons and four writers, as in `etcd_run.py`; their requests to the bucket pass through a proxy that
plays faults by the seed. The judge reads the bucket itself, and not through the proxy. Owns every process of
the run.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness.fault_plan import FaultPlan
from tests.harness.places import Bucket, BucketTables, Tables
from tests.harness.scene import free_port
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.log.etcd_run import EtcdRun, EtcdScene
from tests.support.log.etcd_server import EtcdThree
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server, data_group
from tests.support.servers.http_faults import Fault, Operation, Play

STORE_FAULTS: Final = {
    "store-reply-lost": Fault(Play.RESET_AFTER),
    "store-lost": Fault(Play.RESET_BEFORE),
    "store-busy": Fault(Play.ANSWER_BEFORE, 503),
    "store-failed": Fault(Play.ANSWER_AFTER, 500),
    "store-slow": Fault(Play.SLOW),
}
"""What the store's answers may meet on their way, and what it is."""
OPERATIONS: Final = ("put", "put", "put", "get", "list", "complete")
"""Which requests meet it; the same one several times is so much likelier."""
EVERY_S = 4.0
"""One fault of each kind comes in so many seconds, and at least two in a run."""


@dataclass(frozen=True)
class BucketScene(EtcdScene):
    """A deployment with nothing but the machine's own on this machine."""

    bucket: Bucket | None = None
    """As the judge reaches it."""
    endpoint: str = ""
    """As the product does."""
    rest: str = ""
    """Address of the catalog."""

    def prepare(self) -> None:
        super().prepare()
        assert self.bucket is not None
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document["data"] = data_group(self.folder, self.bucket.name, self.endpoint, "harness") | {
            "request_timeout": "10s"
        }
        document["catalogs"] = [{"name": "local", "type": "rest", "uri": self.rest}]
        self.config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    def tables(self) -> Tables:
        assert self.bucket is not None
        return BucketTables(self.rest, self.bucket)


@dataclass(eq=False)
class StoreFaults:
    """The proxy, which reports the faults it has played."""

    server: S3Server
    tell: Callable[[str, str], None] = field(default=lambda kind, what: None)

    def __post_init__(self) -> None:
        plays = self

        class Reported(S3Faults):
            def _fault_for(self, operation: Operation) -> Fault | None:
                found = super()._fault_for(operation)
                for kind, fault in STORE_FAULTS.items():
                    if fault == found:
                        plays.tell(kind, operation)
                return found

        self.proxy = Reported(self.server)

    def play(self, kind: str, operation: Operation) -> None:
        """The next request of that kind meets it."""
        self.proxy.arm(STORE_FAULTS[kind], operation)


class BucketRun(EtcdRun):
    """One run."""

    def __init__(
        self,
        scene: BucketScene,
        members: EtcdThree,
        store: StoreFaults,
        seed: int,
        seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(scene, members, seed, seconds, tell)
        plan = self._plan
        self._plan = FaultPlan(plan.actions, plan.spells, (*plan.kinds, *STORE_FAULTS))
        self._store = store
        store.tell = lambda kind, what: self._ledger.write("fault", kind=kind, what=what)

    def _play(self) -> None:
        rng = random.Random(f"{self.options.seed}/store")
        for kind in STORE_FAULTS:
            for number in range(max(2, round(self.options.seconds / EVERY_S))):
                at_s = rng.uniform(0.0, 0.95 * self.options.seconds)
                operation = OPERATIONS[0] if number == 0 else rng.choice(OPERATIONS)
                self._at(
                    self._played_from_s + at_s,
                    lambda kind=kind, operation=operation: self._store.play(kind, operation),  # type: ignore[misc]
                )
        super()._play()

    def read_tables_again(self) -> None:
        """Another time, after the run: the newest reading is what is judged. For a test that has changed the
        bucket."""
        self._ledger.reopen()
        try:
            self._read_tables()
        finally:
            self._ledger.close()


@contextlib.contextmanager
def bucket_run(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> Iterator[BucketRun]:
    """The parts of a run, started, and the run, which is not: its history will be in `folder`."""
    with contextlib.ExitStack() as parts:
        alongside = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="harness-parts-")))
        members = parts.enter_context(EtcdThree(alongside / "etcd"))
        server = parts.enter_context(S3Server(alongside / "s3"))
        bucket = Bucket(server.new_bucket(), server.uri, REGION, ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        reached = {
            "s3.endpoint": server.uri,
            "s3.path-style-access": "true",
            "client.region": REGION,
            "s3.access-key-id": ACCESS_KEY_ID,
            "s3.secret-access-key": SECRET_ACCESS_KEY,
        }
        catalog = parts.enter_context(
            RestCatalog(alongside / "catalog", {"warehouse": f"s3://{bucket.name}/lake", **reached})
        )
        store = StoreFaults(server)
        parts.enter_context(store.proxy)
        scene = BucketScene(
            folder,
            folder / "disk",
            port=free_port(),
            addresses=tuple(members.addresses),
            bucket=bucket,
            endpoint=store.proxy.uri,
            rest=catalog.uri,
        )
        yield BucketRun(scene, members, store, seed, seconds, tell)
