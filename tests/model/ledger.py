"""The fold of the model's log, as archiver/ledger/fold.py does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.model.state import NOTHING, Entry, File, Files, Token, Vector
from tests.model.switches import Config


class Ledger(NamedTuple):
    """What a leader knows."""

    epoch: int
    watermarks: Vector
    pending: tuple[tuple[File, Token], ...]
    done: Files
    known: Files
    """Every file of ours that an entry ever named."""
    start: Vector
    """Retention's heads."""
    table: int | None
    """The table's uuid."""
    sequence: int
    """Of the table, as last told."""
    snapshot: int
    """Our newest in the table, as last told."""

    @property
    def killed(self) -> Files:
        """Refused for ever."""
        return self.known - self.done - {item for item, _ in self.pending}

    def planned_to(self, partition: int) -> int:
        """Where the next plan starts (rule P1)."""
        at = self.watermarks[partition]
        for item, _ in self.pending:
            if item[0] == partition and item[1] <= at:
                at = max(at, item[2])
        return at


def newest_epoch(log: Sequence[Entry]) -> int:
    """0 if there is none."""
    return max((entry[1] for entry in log if entry[0] == "E"), default=0)


def fold(config: Config, log: tuple[Entry, ...]) -> Ledger:
    """Pure; worked out once per log."""
    found: Ledger | None = config.memo.get(log)
    if found is None:
        found = config.memo[log] = _fold(config, log)
    return found


def _fold(config: Config, log: tuple[Entry, ...]) -> Ledger:
    none = (0,) * config.partitions
    ledger = Ledger(0, none, (), NOTHING, NOTHING, none, None, 0, 0)
    for entry in log:
        if entry[0] == "E":
            ledger = ledger._replace(
                epoch=max(ledger.epoch, entry[1]), pending=ledger.pending if config.inherit else ()
            )
        elif entry[1] < ledger.epoch and config.void:
            continue
        elif entry[0] == "D":
            _, _, item, token = entry
            ledger = ledger._replace(
                pending=(*ledger.pending, (item, token)), known=ledger.known | {item}, table=token[0]
            )
        elif entry[0] == "C":
            ledger = _reported(config, ledger, entry)
        else:
            _, _, partition, offset = entry
            start = tuple(max(old, offset) if at == partition else old for at, old in enumerate(ledger.start))
            ledger = ledger._replace(start=start)
    return ledger


def _reported(config: Config, ledger: Ledger, entry: Entry) -> Ledger:
    _, _, said, committed, killed, seen = entry
    watermarks = said if config.lower else tuple(map(max, ledger.watermarks, said))
    if not config.path:  # "covered, so done"
        committed = committed | {item for item, _ in ledger.pending if item[2] <= watermarks[item[0]]}
    return ledger._replace(
        watermarks=watermarks,
        pending=tuple(one for one in ledger.pending if one[0] not in committed and one[0] not in killed),
        done=ledger.done | committed,
        known=ledger.known | committed,
        table=seen[0],
        sequence=seen[1],
        snapshot=seen[2],
    )
