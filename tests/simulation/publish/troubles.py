"""What goes wrong in a run of this rig, and how often: a profile per kind of trouble, one with all at once,
one with none.

A run is short, so the chances are higher than those of the other rig.
"""

from __future__ import annotations

from tests.simulation.faults import Profile

TROUBLES = (
    Profile("calm"),
    Profile("crashes", crash=0.02, reply_lost=0.02),
    Profile("pauses", pause=0.04, replaced=0.02, slow=0.05),
    Profile("lost replies", dropped=0.06, late=0.12, reply_lost=0.1, twice=0.05),
    Profile("lost replies and errors", dropped=0.04, late=0.06, reply_lost=0.1, refused=0.08),
    Profile("errors", refused=0.1, slow=0.1),
    Profile("sleepers", crash=0.005, pause=0.08, late=0.06, replaced=0.03),
    Profile(
        "everything",
        crash=0.01,
        pause=0.02,
        replaced=0.01,
        clock=0.01,
        cut=0.004,
        refused=0.02,
        dropped=0.02,
        late=0.05,
        reply_lost=0.04,
        twice=0.02,
        slow=0.03,
        clock_step_us=3_000_000,
    ),
)
"""A seed belongs to the profile at its remainder."""
