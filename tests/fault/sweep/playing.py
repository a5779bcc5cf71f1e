"""Plays one case: an actor reaches a point, something happens to it there, others go on, everything is
settled and judged."""

from __future__ import annotations

import signal

from archiver.runtime.clock import SystemClock
from archiver.runtime.exit_codes import UNKNOWN
from tests.fault.sweep.actors import Actor, Host
from tests.fault.sweep.cases import Case
from tests.fault.sweep.deeds import Daemon, Found
from tests.fault.sweep.playground import LEASE_S, Ground
from tests.fault.sweep.settled import settle
from tests.support.process.serving import is_locked

PAUSES_MAX = 20
LAST_POINT = "settled.append.after"
REPORTED_OFF = (
    "start.append.before",
    "upkeep.append.before",
    "condemn.append.before",
    "deleted.append.before",
)
"""What these are about to append meets the successor's EPOCH, even if other work is left."""
AGAIN = ("restate.append.after",)
"""What comes after these is a separate turn: an actor that is woken there takes the lease again, which is
free by then, and begins an epoch."""
_CLOCK = SystemClock()


def play(ground: Ground, host: Host, case: Case) -> None:
    """The whole of a case; raises if anything is not as it must be."""
    scene = case.scene
    for _ in range(PAUSES_MAX):
        ground.be(scene.name, scene.prepare)
        if scene.spark and case.action == "error":
            _fail_here(ground, case)
        elif not _acted(ground, host, case):
            continue
        settle(ground, scene, case.fault)
        return
    raise AssertionError(f"the metadata database was locked {PAUSES_MAX} times")


def _acted(ground: Ground, host: Host, case: Case) -> bool:
    """Have an actor meet the fault; False if the case must be played again."""
    orders = ground.orders(case.scene.deed, case.fault, case.scene.arguments)
    actor = host.begin(orders, workers=case.scene.spark)
    try:
        if case.action != "pause":
            _end(ground, case, actor.end())
            return True
        assert actor.stopped(), f"{case.point} was never reached: exit code {actor.code}; {ground.output()}"
        # Another thread of the actor may be in the middle of an append. No other process could append then.
        if is_locked(ground.root / "metadata.db"):
            return False
        _others_go_on(ground, actor, case)
        return True
    finally:
        actor.put_down()


def _fail_here(ground: Ground, case: Case) -> None:
    """The command in this process, whose Spark session is there already: an error harms no other case."""
    done = Found(ground.root, failpoints_asked=True).cli(*case.scene.arguments, armed=case.fault)
    _check_code(case, done.code, done.out + done.err)
    assert f"failpoint {case.point} was asked to fail" in done.out + done.err, (
        f"{case.point} was never reached: {done}"
    )


def _end(ground: Ground, case: Case, code: int) -> None:
    """It has met the fault, and that was the fault."""
    if case.action != "kill":
        _check_code(case, code, f"{ground.reported()['why']} {ground.output()}")
        assert ground.reported()["reached"], (
            f"{case.point} was never reached: {ground.reported()}; {ground.output()}"
        )
    elif case.in_worker:
        assert code == UNKNOWN and "the refinement job failed" in ground.output(), (
            f"exit code {code}: {ground.output()}"
        )
    else:
        assert code == -signal.SIGKILL, f"{case.point} was never reached: exit code {code}; {ground.output()}"


def _others_go_on(ground: Ground, actor: Actor, case: Case) -> None:
    """It stands still; its lease passes; another one leads, works, and goes on; then it wakes up."""
    since_s = _CLOCK.monotonic_s()
    ground.lease_lapses()
    with ground.daemon() as successor:
        case.scene.again(ground, successor)
        ground.send("successor", places=case.scene.places, by=successor)
        successor.archive()
        _CLOCK.sleep(max(0.0, since_s + LEASE_S - _CLOCK.monotonic_s()))
        actor.wake()
        code = actor.end()
        _check_code(case, code, f"{ground.reported()['why']} {ground.output()}")
        if case.scene.woken != "free" and case.point not in AGAIN:
            _check_stood_down(ground, case, code, successor)
            successor.archive()


def _check_stood_down(ground: Ground, case: Case, code: int, successor: Daemon) -> None:
    """It has noticed that another process leads, and stood down."""
    reported, output = ground.reported(), ground.output()
    if case.scene.spark:
        # A command that has nothing left to do but to check for more work starts over, with a lease and an
        # epoch of its own.
        assert (code, "step down" in output) == (UNKNOWN, True) or case.point == LAST_POINT, (
            f"exit code {code}: {output}"
        )
        return
    ends = ("Deposed",) if case.scene.woken == "deposed" or case.point in REPORTED_OFF else ("Deposed", None)
    assert reported["error"] in ends, f"it ended with {reported}; {output}"
    ledger = successor.application.ledger()
    assert ledger.epoch == successor.application.leader.epoch, "nobody took the leadership from its successor"


def _check_code(case: Case, code: int, output: str) -> None:
    assert code in case.scene.codes and "Traceback" not in output, f"exit code {code}: {output}"
