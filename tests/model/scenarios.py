"""What is searched: scenarios with every rule, and the protocol with rules broken. docs/protocols/publish.md
has the results."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.switches import Config


def _with(**bounds: Any) -> dict[str, Any]:
    return bounds


SCENARIOS: dict[str, dict[str, Any]] = {
    "clean": _with(offsets=2, epoch=2, crash=1, uc=1, clean=2),
    "zombie": _with(offsets=3, epoch=2, uc=1, clean=1),
    "append": _with(offsets=2, epoch=2, crash=1, ua=2, clean=1),
    "partitions": _with(offsets=2, partitions=2, epoch=2, uc=1, span=1, writes=3),
    "compact": _with(offsets=2, epoch=2, uc=1, compact=1, expire=1, clean=1),
    "compact-twice": _with(offsets=2, epoch=2, uc=1, compact=2, expire=1, clean=1, span=1),
    "own-expiry": _with(offsets=2, epoch=2, uc=1, forget=1, rollback=1, clean=1, span=1),
    "rollback": _with(offsets=2, epoch=3, rollback=1, fix=1, clean=1, span=1),
    "rollback-twice": _with(offsets=2, epoch=3, rollback=2, fix=2, clean=1, span=1),
    "rollback-expire": _with(offsets=2, epoch=2, uc=1, rollback=1, expire=1, fix=1, clean=1, span=1),
    "rollback-hidden": _with(offsets=2, epoch=2, rollback=1, compact=1, expire=1, fix=1, span=1),
    "forward": _with(offsets=2, epoch=2, uc=1, rollback=1, forward=1, fix=1, clean=1, span=1),
    "turn": _with(offsets=2, epoch=2, uc=1, rollback=1, forward=1, fix=2, span=1),
    "branch": _with(offsets=2, epoch=2, crash=1, uc=1, branch=2, forward=1, fix=1, span=1),
    "branch-expire": _with(offsets=2, epoch=2, uc=1, branch=1, compact=1, expire=1, fix=1, span=1),
    "repair-lost": _with(offsets=2, epoch=2, crash=1, uc=1, rollback=1, fix=2, span=1),
    "repair-pending": _with(offsets=2, epoch=3, defer=1, rollback=1, fix=1, span=1),
    "vacuum": _with(offsets=2, epoch=2, uc=1, vac=1, rollback=1, expire=1, fix=1, span=1),
    "vacuum-clean": _with(offsets=2, epoch=2, vac=1, rollback=1, compact=1, fix=1, clean=1, span=1),
    "trim": _with(offsets=2, epoch=2, uc=1, trim=1, clean=1),
    "drop": _with(offsets=2, epoch=2, drop=1, fix=1, clean=1, uc=1, span=1),
    "retain": _with(offsets=2, epoch=2, uc=1, retain=1, compact=1, expire=1, span=1),
    "retain-all": _with(offsets=1, partitions=2, epoch=2, retain=1, compact=2, expire=1),
    "gaps": _with(offsets=3, gaps=[1], epoch=2, compact=2, expire=1),
    "gaps-rollback": _with(offsets=3, gaps=[1], epoch=2, rollback=1, compact=1, expire=1, fix=1, writes=2),
    "others": _with(offsets=2, epoch=2, uc=1, compact=1, expire=1, rollback=1, fix=1, span=1),
    "epochs": _with(offsets=2, epoch=3, crash=1, uc=1, ua=1),
    "everything": _with(
        offsets=3,
        epoch=4,
        crash=1,
        uc=1,
        ua=1,
        compact=1,
        expire=1,
        rollback=1,
        fix=1,
        vac=1,
        clean=2,
        trim=1,
        forget=1,
    ),
}
"""Bounds by name."""

SMALL = ("clean", "own-expiry", "rollback")
"""Those that a run of the fast tests can search whole."""

DEEP = _with(
    offsets=3,
    epoch=5,
    crash=2,
    uc=2,
    ua=2,
    compact=2,
    expire=1,
    rollback=1,
    fix=2,
    vac=1,
    clean=4,
    trim=1,
    forget=1,
)
WALKS: dict[str, dict[str, Any]] = {
    "deep": DEEP,
    "deep-partitions": DEEP | _with(offsets=2, partitions=2),
    "deep-gaps-retention": DEEP | _with(offsets=4, gaps=[1, 2], retain=1),
    "deep-drops-rollbacks": DEEP | _with(vac=0, drop=1, expire=2, rollback=2, forward=1, fix=4),
    "deep-branches": DEEP | _with(branch=2, rollback=1, forward=1, fix=4),
}
"""Bounds of random walks: every fault at once."""


class Mutation(NamedTuple):
    """Rules that are broken together, where, and whether the search notices."""

    off: tuple[str, ...]
    bounds: dict[str, Any]
    caught: bool
    """False: nothing was found with this alone; see publish.md."""

    @property
    def name(self) -> str:
        """Of the rules."""
        return "+".join(self.off)

    def config(self) -> Config:
        """To search."""
        return Config(off=self.off, **self.bounds)


def _of(rules: str, bounds: dict[str, Any], caught: bool = True) -> Mutation:
    return Mutation(tuple(rules.split("+")), bounds, caught)


_OTHERS: dict[str, Any] = _with(compact=1, expire=1)
MUTATIONS = (
    _of("eid", _with(offsets=2, epoch=2)),
    _of("trim", _with(offsets=2, epoch=2, trim=1, clean=1)),
    _of("settle", _with(offsets=2, epoch=2, ua=1, clean=1)),
    _of("stepdown", _with(offsets=2, epoch=2), caught=False),
    _of("void+stepdown", _with(offsets=2, epoch=2)),
    _of("stepdown+ck", _with(offsets=3, epoch=2, writes=2)),
    _of("poll", _with(offsets=1, epoch=2)),
    _of("sync", _with(offsets=2, epoch=2, crash=1, uc=1), caught=False),
    _of("inherit", _with(offsets=2, epoch=2, uc=1, clean=1), caught=False),
    _of("inherit+wmcheck", _with(offsets=2, epoch=2)),
    _of("inherit+fence", _with(offsets=2, epoch=2, clean=1)),
    _of("inherit+chain", _with(offsets=3, epoch=2, writes=2)),
    _of("inherit+path", _with(offsets=2, epoch=2)),
    _of("inherit+ck", _with(offsets=2, epoch=2, clean=1)),
    _of("lower", _with(offsets=2, epoch=2, rollback=1, fix=1, span=1)),
    _of("anc", _with(offsets=2, epoch=1, rollback=1, fix=1, span=1)),
    _of("agree", _with(offsets=2, epoch=2, rollback=1, compact=1, expire=1, fix=1, span=1)),
    _of("atomic", _with(offsets=2, epoch=2, crash=1)),
    _of("halt", _with(offsets=2, epoch=2, uc=1, rollback=1, fix=1, clean=1, span=1), caught=False),
    _of("reset", _with(offsets=2, epoch=1, rollback=1, fix=1, span=1)),
    _of("spare", _with(offsets=2, epoch=3, defer=1, rollback=1, fix=1, span=1)),
    _of("sight", _with(offsets=2, epoch=2, uc=1, clean=1, span=1, **_OTHERS), caught=False),
    _of("turn", _with(offsets=2, epoch=2, uc=1, rollback=1, forward=1, fix=2, span=1)),
    _of("start", _with(offsets=1, partitions=2, epoch=1, retain=1, compact=2, expire=1)),
    _of("gap", _with(offsets=3, gaps=[1], epoch=2, compact=2, expire=1)),
    _of("gap+chain", _with(offsets=3, gaps=[1], epoch=2, uc=1, **_OTHERS)),
    _of("wmcheck", _with(offsets=2, epoch=2, uc=1, compact=2, expire=1, span=1)),
    _of("chain", _with(offsets=2, epoch=2, rollback=1, fix=1, span=1)),
    _of("path", _with(offsets=2, epoch=2, uc=1, span=1, clean=1, **_OTHERS), caught=False),
    _of("lineage", _with(offsets=2, epoch=2, uc=1, rollback=1, fix=1, span=1, **_OTHERS)),
    _of(
        "aside",
        _with(offsets=2, epoch=2, uc=1, rollback=1, forward=1, branch=1, fix=1, clean=1, span=1),
        caught=False,
    ),
    _of("ck", _with(offsets=2, epoch=2, span=1, clean=1, compact=2, expire=1), caught=False),
    _of("base", _with(offsets=2, epoch=2)),
    _of("seq", _with(offsets=2, epoch=1, uc=1, rollback=1, expire=1, span=1)),
    _of("uuid", _with(offsets=2, epoch=2, drop=1, fix=1, clean=1, uc=1)),
    _of("merge", _with(offsets=2, partitions=2, epoch=1, span=1, writes=2)),
    _of("unknown", _with(offsets=2, epoch=1, uc=1)),
    _of("readvac", _with(offsets=2, epoch=2, vac=1, rollback=1, fix=1, span=1), caught=False),
    _of("once", _with(offsets=2, epoch=2, uc=1, rollback=1, expire=1, fix=1, clean=1, span=1)),
    _of("retained", _with(offsets=2, epoch=2, compact=1, clean=1)),
    _of("resv", _with(offsets=2, epoch=1, clean=1)),
    _of("fence", _with(offsets=2, epoch=2, clean=1, compact=2, expire=1, span=1)),
    _of("refence", _with(offsets=2, epoch=1, uc=1, clean=1, compact=2, expire=1, span=1)),
    _of("vac", _with(offsets=2, epoch=1, vac=1, rollback=1, fix=1, span=1)),
)
"""Each rule broken, alone or in company."""
