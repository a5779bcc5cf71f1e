"""What one daemon may do next: takeover, plan, upload, DATA_WRITTEN, look, swap, COMMIT_TO_TABLE, clean,
vacuum."""

from __future__ import annotations

from typing import Any

from tests.model.decisions import Held, choose, contradiction, forgotten, judge, lowered, paths, prepared
from tests.model.ledger import Ledger, fold, newest_epoch
from tests.model.state import (
    NOTHING,
    OFF,
    Budget,
    Daemon,
    Entry,
    Evidence,
    File,
    State,
    Swap,
    Table,
    acceptable,
    committed,
    current_files,
    foreign,
    lineage,
    retained_files,
    sight,
    spend,
    uppers,
)
from tests.model.switches import INDEX, Config

Step = tuple[str, State]
RESURRECTS = "RESURRECTS"
PENDING_MAX, SEQUENCE_MAX = 2, 6
"""Bounds of the search: more files than that are not planned, nor fenced beyond that number, while anything
may happen."""


def steps(config: Config, state: State, number: int, *, quiet: bool = False) -> list[Step]:
    """All next states by that daemon. `quiet`: no faults, and as many epochs and repairs as it takes."""
    return _Daemon(config, state, number, quiet).steps()


class _Daemon:
    """Collects the steps of one daemon in one state."""

    def __init__(self, config: Config, state: State, number: int, quiet: bool) -> None:
        self.config, self.state, self.number, self.quiet = config, state, number, quiet
        self.me: Daemon = state.daemons[number]
        self.ledger: Ledger = fold(config, state.log[: self.me.view] + self.me.own)
        self.found: list[Step] = []

    def steps(self) -> list[Step]:
        me = self.me
        if me.condemned is not None:
            self.to(
                f"cleaner deletes {me.condemned}",
                me._replace(condemned=None),
                objects=self.state.objects - {me.condemned},
            )
        if me.at != "off":
            budget = self.fault("crash")
            if budget is not None:
                self.to("CRASH", OFF, budget=budget)
        self.cleaner()
        getattr(self, f"at_{me.at}")()
        return self.found

    def to(self, label: str, me: Daemon, **changes: Any) -> None:
        daemons = (me, self.state.daemons[1]) if self.number == 0 else (self.state.daemons[0], me)
        self.found.append((label, self.state._replace(daemons=daemons, **changes)))

    def fault(self, name: str, left: Budget | None = None) -> Budget | None:
        """What is left when it happens; `left`: of what else happens in the same step."""
        return None if self.quiet else spend(self.state.budget if left is None else left, INDEX[name])

    def allowed(self, name: str) -> Budget | None:
        """As `fault`, but unlimited where all is quiet."""
        return self.state.budget if self.quiet else spend(self.state.budget, INDEX[name])

    @property
    def down(self) -> Daemon:
        return OFF._replace(condemned=self.me.condemned)

    def deposed(self, start: int) -> bool:
        return newest_epoch(self.state.log[start:]) > self.me.epoch

    # the log

    def append(self, entry: Entry, after: Daemon, label: str, **changes: Any) -> None:
        """Append at the tail as this daemon knows it (rules L1 to L3), and go on as `after`; outcome ok,
        unknown or taken."""
        config, state, me = self.config, self.state, self.me
        log, index = state.log, me.view + len(me.own)
        longer = after._replace(own=(*me.own, entry)) if me.own else after._replace(view=me.view + 1)
        if index == len(log):
            self.to(label, longer, log=(*log, entry), **changes)
            budget = self.fault("ua", changes.pop("budget", None))
            if budget is not None:
                self.to(f"{label}, applied, reply lost", me, log=(*log, entry), budget=budget)
                if state.late_append is None:
                    gives_up = not config.settle and me.at == "written"  # "the index is empty, so it failed"
                    left = me._replace(at="idle", item=None) if gives_up else me
                    self.to(
                        f"{label}, timed out, still in flight",
                        left,
                        late_append=(me.view, entry),
                        budget=budget,
                    )
        elif not config.trim and index < state.trimmed:  # put-if-absent on a trimmed slot "succeeds"
            self.to(f"{label} into a TRIMMED slot", after._replace(own=(*me.own, entry)), **changes)
        elif not me.own and log[me.view] == entry and not (config.trim and me.view < state.trimmed):
            self.to(f"{label} (found its own)", after._replace(view=me.view + 1), **changes)
        elif not config.stepdown and entry[0] != "E":
            self.to(
                f"{label} at the new tail, blindly",
                after._replace(own=(*me.own, entry)),
                log=(*log, entry),
                **changes,
            )
        elif self.deposed(me.view) or entry[0] == "E":
            self.to("steps down", self.down)
        else:
            self.to("reads on", me._replace(view=len(log), own=()))

    def at_off(self) -> None:
        budget = self.allowed("epoch")
        if budget is not None:
            log = self.state.log
            started = Daemon(
                "takeover", fold(self.config, log).epoch + 1, len(log), (), None, None, 0, self.me.condemned
            )
            self.to("reads the log", started, budget=budget)

    def at_takeover(self) -> None:
        owner = self.number if self.config.eid else 0
        after = self.me._replace(at="look" if self.config.sync else "idle", item=None, seen=None, fence=0)
        self.append(("E", self.me.epoch, owner), after, f"EPOCH {self.me.epoch}")

    # idle: plan, vacuum, retention, trim

    def at_idle(self) -> None:
        self.to("looks at the table", self.me._replace(at="look"))
        for partition in range(self.config.partitions):
            self.plan(partition)
        self.vacuum()
        self.retain()
        budget = self.fault("trim")
        if budget is not None and self.me.view == len(self.state.log) > self.state.trimmed:
            self.to(
                f"checkpoints, trims the log to {len(self.state.log)}",
                self.me,
                trimmed=len(self.state.log),
                budget=budget,
            )

    def plan(self, partition: int) -> None:
        """Rules P1 and P2."""
        config, me, gone = self.config, self.me, self.state.vacuumed[partition]
        base = self.ledger.planned_to(partition)
        last = min(config.offsets, base + config.span)
        written = sum(1 for entry in self.state.log if entry[0] == "D" and entry[1] == me.epoch)
        full = not self.quiet and (len(self.ledger.pending) >= PENDING_MAX or written >= config.writes)
        for end in range(base + 1, last + 1):
            if full or (self.quiet and end != last):
                continue
            item = (partition, base, end, me.epoch, base)
            if gone > config.place(base):  # only offsets with a record need their intake
                if config.readvac:
                    continue
                item = (partition, base, end, me.epoch, min(gone, end))
            if config.once and item in self.ledger.known:
                budget = self.allowed("epoch")
                if budget is not None:
                    self.to(
                        "that path was used: new epoch",
                        me._replace(at="takeover", epoch=me.epoch + 1, seen=None, fence=0),
                        budget=budget,
                    )
                continue
            self.to(f"plans {item}", me._replace(at="upload", item=item))

    def vacuum(self) -> None:
        """Rule D3."""
        budget = self.fault("vac")
        if budget is None:
            return
        config, state, ledger = self.config, self.state, self.ledger
        for partition in range(config.partitions):
            retained = (
                [uppers(config, item.files)[partition] for item in state.table.snapshots]
                if config.vac
                else []
            )
            line = min(
                [max(one, ledger.start[partition]) for one in retained] + [ledger.watermarks[partition]]
            )
            if state.vacuumed[partition] < line:
                vacuumed = tuple(line if at == partition else one for at, one in enumerate(state.vacuumed))
                self.to(
                    f"vacuums intake of {partition} below {line}", self.me, vacuumed=vacuumed, budget=budget
                )

    def retain(self) -> None:
        budget = self.fault("retain")
        head = self.ledger.watermarks[0]
        if budget is not None and head > self.ledger.start[0]:
            self.append(("T", self.me.epoch, 0, head), self.me, f"RETAINS 0 from {head}", budget=budget)

    def at_upload(self) -> None:
        self.to(
            f"uploads {self.me.item}",
            self.me._replace(at="written"),
            objects=self.state.objects | {self.me.item},
        )

    def at_written(self) -> None:
        me = self.me
        token = (me.seen[0] if me.seen else 0, self.ledger.sequence)  # rule T3
        self.append(
            ("D", me.epoch, me.item, token), me._replace(at="idle", item=None), f"DATA_WRITTEN {me.item}"
        )

    # the table

    def at_look(self) -> None:
        """Load, judge, choose: rules T1 and C1 to C3."""
        config, me, table, ledger = self.config, self.me, self.state.table, self.ledger
        budget = self.fault("defer")
        if budget is not None:
            self.to(
                "gets no answer from the catalog",
                me._replace(at="idle", item=None, seen=sight(table)),
                budget=budget,
            )
        if ledger.table is not None and ledger.table != table.uuid and config.halt:
            self.hold(Held("another table"))
            return
        watermarks = judge(config, table, ledger.start)
        if isinstance(watermarks, Held):
            self.doubt(watermarks)
            return
        live = paths(config, table, ledger)
        revived = live & ledger.killed
        why = contradiction(config, table, watermarks, ledger, revived) if config.halt else None
        if why is not None:
            self.doubt(why)
            return
        choice = choose(config, table, watermarks, ledger, live)
        if choice.retired is not None:
            self.to(f"{RESURRECTS} retired {choice.retired}", me)
        token, fence = sight(table), self.fence_now(table)
        drop = frozenset(item for item in current_files(table) if item[2] <= ledger.start[item[0]])
        if choice.offered or drop:
            self.offer(table, prepared(config, table, me.epoch, choice, drop, revived, frozenset()), fence)
            return
        done = choice.committed | revived
        if done or choice.killed or ledger.sequence != table.last or watermarks != ledger.watermarks:
            reported = (watermarks, done, choice.killed)
            self.to(
                f"finds {watermarks}, in it {sorted(done)}",
                me._replace(at="reported", item=reported, seen=token, fence=fence),
            )
        elif config.poll and self.deposed(me.view):
            self.to("idle, reads the log, steps down", self.down)
        else:
            self.to("has nothing to commit", me._replace(at="idle", item=None, seen=token, fence=fence))

    def offer(self, table: Table, swap: Swap, fence: int) -> None:
        after = self.me._replace(at="check", item=None, seen=swap, fence=fence)
        label = f"looks at snapshot {table.current}, offers {sorted(swap.add)}, then {swap.watermarks}"
        self.to(label, after)
        budget = self.fault("forget")
        gone = forgotten(table, self.ledger)
        if budget is not None and gone:
            self.to(
                f"{label}, expires {sorted(gone)}",
                after._replace(seen=swap._replace(gone=gone)),
                budget=budget,
            )

    def fence_now(self, table: Table) -> int:
        """Rule D2: whether a snapshot of the own epoch lies beyond the kill, as the evidence tells."""
        evidence = table.evidence
        fenced = (
            evidence is not None and evidence.epoch == self.me.epoch and evidence.snapshot > self.me.fence
        )
        return -1 if fenced else self.me.fence

    def doubt(self, why: Held) -> None:
        """A newer leader may have written what this ledger lacks: the log is read before anything is said of
        the table."""
        if self.deposed(self.me.view):
            self.to("steps down", self.down)
        else:
            self.hold(why)

    def hold(self, why: Held) -> None:
        self.to(f"HELD: {why.why}", self.me._replace(at="held", item=why.why, seen=None))

    def at_held(self) -> None:
        """Somebody must act; meanwhile the log is read (rule L4)."""
        config, me, table = self.config, self.me, self.state.table
        if config.poll and self.deposed(me.view):
            self.to("held, reads the log, steps down", self.down)
            return
        if not self.quiet:
            self.to("looks again", me._replace(at="look", item=None))
        budget = self.allowed("fix")
        if budget is None and config.halt:
            return
        budget = self.state.budget if budget is None else budget
        watermarks = lowered(config, table, self.ledger.start)
        # What waited is killed, so that its range is planned again; but what is in the table below the
        # rollback stays there.
        pending = frozenset(item for item, _ in self.ledger.pending)
        below = NOTHING.union(*(snapshot.files for snapshot in lineage(table)))
        inside = below & (pending | self.ledger.killed) if config.spare else NOTHING
        if isinstance(judge(config, table, self.ledger.start), Held) and config.reset:
            swap = Swap(
                table.current,
                table.last,
                watermarks,
                me.epoch,
                NOTHING,
                NOTHING,
                inside,
                pending - inside,
                frozenset(),
            )
            self.to(
                f"REPAIR: the evidence becomes {watermarks}",
                me._replace(at="check", item=None, seen=swap),
                budget=budget,
            )
        else:
            reported = (watermarks, inside, pending - inside)
            self.to(
                f"REPAIR: the ledger takes {watermarks}",
                me._replace(at="reported", item=reported, seen=sight(table)),
                budget=budget,
            )

    def at_check(self) -> None:
        """Rule C4."""
        start = self.me.view if self.config.trim else max(self.me.view, self.state.trimmed)
        if self.config.ck and self.deposed(start):
            self.to("sees a newer epoch, steps down", self.down)
        else:
            self.to("sees no newer epoch" if self.config.ck else "reads no log", self.me._replace(at="swap"))

    def at_swap(self) -> None:
        """Rules C5 and C6."""
        config, state, me = self.config, self.state, self.me
        swap: Swap = me.seen
        back = me._replace(at="look", item=None, seen=None)
        if not acceptable(config, state.table, swap):
            self.to("SWAP conflict", back)
            return
        table = applied(config, state.table, swap)
        reported = (swap.watermarks, swap.committed, swap.killed)
        token = sight(table)
        if config.atomic:
            self.to(
                f"SWAP ok, snapshot {table.current}",
                me._replace(at="reported", item=reported, seen=token, fence=-1),
                table=table,
            )
        else:
            after = me._replace(at="property", item=(reported, table.current), seen=token, fence=-1)
            self.to(f"SWAP ok, snapshot {table.current}", after, table=table)
        budget = self.fault("uc")
        if budget is None:
            return
        self.lost(swap, table, back, budget)

    def lost(self, swap: Swap, table: Table, back: Daemon, budget: Budget) -> None:
        """The reply does not come."""
        state = self.state
        if self.config.unknown:
            self.to("SWAP applied, reply lost", back, table=table, budget=budget)
            if state.late_swap is None:
                self.to("SWAP timed out, still in flight", back, late_swap=swap, budget=budget)
            return
        reported = (self.ledger.watermarks, self.ledger.done, swap.add)  # "it failed": kill and delete
        kills, objects = self.me._replace(at="reported", item=reported, seen=None), state.objects - swap.add
        self.to("SWAP applied, reply lost, deletes", kills, table=table, budget=budget, objects=objects)
        if state.late_swap is None:
            self.to("SWAP timed out, deletes", kills, late_swap=swap, budget=budget, objects=objects)

    def at_property(self) -> None:
        """Only where the evidence is not part of the commit: it follows by itself."""
        (reported, _), table = self.me.item, self.state.table
        evidence = Evidence(self.me.item[1], reported[0], self.me.epoch)
        self.to(
            "sets the evidence",
            self.me._replace(at="reported", item=reported),
            table=table._replace(evidence=evidence),
        )

    def at_reported(self) -> None:
        me, table = self.me, self.state.table
        fence = (
            table.uuid * 100 + table.last if me.item[2] and self.config.refence else me.fence
        )  # a kill needs a new fence
        after = me._replace(at="idle" if me.seen else "look", item=None, fence=fence)
        token = me.seen or (table.uuid, 0, 0)
        self.append(("C", me.epoch, *me.item, token), after, f"COMMIT_TO_TABLE {me.item[0]}")

    # deletes

    def cleaner(self) -> None:
        """Decides now, deletes later: rules D1, D2 and D4."""
        me, state, ledger = self.me, self.state, self.ledger
        budget = self.allowed("clean")
        if (
            me.condemned is not None
            or budget is None
            or me.at not in (("idle",) if self.quiet else ("idle", "written", "swap"))
        ):
            return
        config = self.config
        kept = retained_files(state.table) if config.retained else current_files(state.table)
        kept |= {item for item, _ in ledger.pending} | state.doomed
        for item in sorted(state.objects - kept):
            if foreign(item) or not self.deletable(item):
                continue
            if me.fence >= 0 and config.fence and item in ledger.known:
                self.fencing()
            else:
                self.to(f"cleaner picks {item}", me._replace(condemned=item), budget=budget)

    def deletable(self, item: File) -> bool:
        if self.config.resv:
            return item[3] < self.me.epoch or item in self.ledger.known
        return item not in self.ledger.done

    def fencing(self) -> None:
        """An empty commit of the own epoch."""
        config, me, table, ledger = self.config, self.me, self.state.table, self.ledger
        if me.at != "idle" or not (self.quiet or table.last < SEQUENCE_MAX):
            return
        watermarks = judge(config, table, ledger.start)
        if (
            isinstance(watermarks, Held)
            or contradiction(config, table, watermarks, ledger, NOTHING) is not None
        ):
            return
        swap = Swap(
            table.current, table.last, watermarks, me.epoch, NOTHING, NOTHING, NOTHING, NOTHING, frozenset()
        )
        self.to("fencing commit", me._replace(at="check", seen=swap))


def applied(config: Config, table: Table, swap: Swap) -> Table:
    """The table once the catalog has taken the request."""
    after = committed(table, swap.add, swap.drop, (swap.watermarks, swap.epoch), swap.gone)
    return after if config.atomic else after._replace(evidence=table.evidence)
