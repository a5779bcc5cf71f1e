"""What a search of the model may break, and how often each fault may happen.

Every rule is a switch, so that a mutation is the protocol with one of them off. The ids in the comments are
those of docs/protocols/publish.md and docs/protocols/fencing.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

RULES: dict[str, str] = {
    "eid": "L1: an EPOCH is one's own by its id, not by what it says",
    "trim": "L1: nothing is appended below the trim point",
    "settle": "L2: an append of unknown outcome is sent again until its index is taken",
    "stepdown": "L3: an index that is taken means: read on, and step down before a newer EPOCH",
    "void": "L3: readers pass over entries of an older epoch behind a newer EPOCH",
    "poll": "L4: a leader with nothing to do reads the log all the same",
    "sync": "T1: the table is looked at before the first plan",
    "inherit": "T2: what is pending survives a new EPOCH",
    "lower": "T4: COMMIT_TO_TABLE assigns the watermark, also downwards",
    "anc": "C1: the evidence counts if its snapshot is in the lineage",
    "agree": "C1: where the lineage is cut, the bounds of the live files must agree",
    "atomic": "C1: the evidence is set by the commit that it speaks of",
    "start": "C1: retention's head is in the ledger, and nothing counts below it",
    "gap": "C2: offsets are compared modulo gaps",
    "wmcheck": "C3: a file is offered only at the watermark",
    "chain": "C3: what cannot be offered is killed",
    "path": "C3: committed is what has its path in the lineage",
    "lineage": "C3: and every commit since its token is retained",
    "aside": "C3: and none that is no ancestor brought it",
    "ck": "C4: the log is read between load and swap",
    "base": "C5: the swap asserts the base snapshot",
    "seq": "C5: and that the base's sequence number is the last",
    "uuid": "C5: and the table's uuid",
    "merge": "C5: the evidence is of all partitions",
    "unknown": "C6: an unknown outcome kills and deletes nothing",
    "readvac": "P1: a missing intake object stops the plan",
    "once": "P2: a path is used once",
    "sight": "agreement: a killed file explains a watermark whose history is lost",
    "turn": "agreement: killed files are looked for in the whole lineage if our newest snapshot of the last "
    "look is not in it",
    "retained": "D1: looked at are all retained snapshots",
    "resv": "D1: files of the own or a newer epoch that are not in the ledger are in work",
    "fence": "D2: a file the ledger knows needs a snapshot of the deleter's epoch",
    "refence": "D2: and one that is younger than the kill",
    "vac": "D3: intake goes below the lowest watermark of all retained snapshots",
    "halt": "hold: what was rolled back waits for an operator",
    "reset": "repair: an operator's repair sets the evidence anew in the table, not only the ledger",
    "spare": "repair: a pending file that is in the table is committed, the others are killed",
}
"""Switch → what holds while it is on."""

FAULTS: dict[str, str] = {
    "epoch": "takeovers",
    "crash": "crashes",
    "uc": "swaps whose reply is lost, or that may land later",
    "ua": "appends whose reply is lost, or that may land later",
    "defer": "looks that end without an answer: the daemon goes on with its next round",
    "compact": "compactions by somebody else",
    "expire": "expiries by somebody else: all snapshots but the current one",
    "rollback": "rollbacks to an ancestor by somebody else",
    "branch": "commits to a branch, by somebody else",
    "forward": "returns to a retained snapshot that is no ancestor, by somebody else",
    "vac": "vacuums of intake",
    "trim": "checkpoints that trim the log",
    "drop": "drops, with purge, and new tables of the same name",
    "retain": "moves of retention's head of partition 0",
    "clean": "deletes that a cleaner decides on",
    "fix": "repairs by an operator (once everything else is quiet there are as many as it takes)",
    "forget": "commits of ours that expire what the limits allow",
}
"""Fault → what is counted. What is not named in a scenario never happens in it."""

INDEX = {name: position for position, name in enumerate(FAULTS)}


class Config:
    """One scenario: the bounds of what may happen, and the rules that are off."""

    def __init__(
        self,
        offsets: int = 3,
        partitions: int = 1,
        gaps: Iterable[int] = (),
        off: Iterable[str] = (),
        span: int = 9,
        writes: int = 9,
        **faults: int,
    ) -> None:
        """`offsets` per partition, of which `gaps` hold no record; plans are up to `span` long, and each
        epoch makes up to `writes`."""
        self.offsets, self.partitions, self.gaps, self.span, self.writes = (
            offsets,
            partitions,
            frozenset(gaps),
            span,
            writes,
        )
        self.off = frozenset(off)
        unknown = (self.off - RULES.keys()) | (faults.keys() - FAULTS.keys())
        if unknown:
            raise ValueError(f"no such rule or fault: {sorted(unknown)}")
        self.budget = tuple(faults.get(name, 0) for name in FAULTS)
        self.data = tuple(offset for offset in range(offsets) if offset not in self.gaps)
        self.memo: dict[object, Any] = {}
        """What pure functions of this scenario have worked out already."""
        for rule in RULES:
            setattr(self, rule, rule not in self.off)

    eid: bool
    trim: bool
    settle: bool
    stepdown: bool
    void: bool
    poll: bool
    sync: bool
    inherit: bool
    lower: bool
    anc: bool
    agree: bool
    atomic: bool
    start: bool
    gap: bool
    wmcheck: bool
    chain: bool
    path: bool
    lineage: bool
    aside: bool
    ck: bool
    base: bool
    seq: bool
    uuid: bool
    merge: bool
    unknown: bool
    readvac: bool
    once: bool
    sight: bool
    turn: bool
    retained: bool
    resv: bool
    fence: bool
    refence: bool
    vac: bool
    halt: bool
    reset: bool
    spare: bool

    def place(self, offset: int) -> int:
        """The first offset with a record at or beyond this one: offsets with the same place are the same
        modulo gaps."""
        while offset in self.gaps:
            offset += 1
        return offset

    def same(self, one: int, other: int) -> bool:
        """Rule C2."""
        return self.place(one) == self.place(other) if self.gap else one == other
