"""What is asked of each series of the steady phase, with the reason for each number."""

from __future__ import annotations

from tests.soak.flatness import Rule
from tests.soak.stage import HEAP_MEGABYTES
from tests.soak.watching import HEAPS, SAMPLES

LONG_S = 900.0
"""What comes and goes with cleaning and checkpoints repeats every few minutes: less than this shows no
trend."""
CLEANED_S = 300.0
"""Until then nothing was old enough to be deleted: twice the deletion delay and twice the interval of
cleaning, and some."""

PLATEAU_S = 100.0
"""The window of a run of five minutes, less some: in its second half the daemon's memory is at its plateau."""

RULES: tuple[tuple[str, str, Rule], ...] = (
    # Memory: a round's buffers come and go by a few MB. What the daemon keeps by design (its journal,
    # positions of files) is far less. It comes to its plateau of about 300 MB within a minute or, on a busy
    # machine, within two: measured were steps of 0.1, 6 and 12.2 MB. So a window that ends earlier, as that
    # of a run of three minutes, shows no growth: there 16.04 MB were measured. The JVM's stacks and metadata
    # were measured to grow by 14 MB within a minute while its pools fill.
    (SAMPLES, "rss_mb", Rule("daemon memory", "MB", allowance=16.0, ceiling=1000.0, lasts_s=PLATEAU_S)),
    (SAMPLES, "jvm_rss_mb", Rule("JVM memory", "MB", allowance=24.0, ceiling=HEAP_MEGABYTES + 500.0)),
    (SAMPLES, "worker_rss_mb", Rule("Python worker memory", "MB", allowance=16.0, ceiling=700.0)),
    # The heap is touched whole at the start, so a leak inside of it does not show in the process's memory
    # before it ends the JVM.
    (
        HEAPS,
        "heap_mb",
        Rule("JVM live heap", "MB", allowance=6.0, ceiling=HEAP_MEGABYTES * 0.7, lasts_s=600.0, every_s=12.0),
    ),
    # Descriptors and threads: those of requests under way come and go, a handful at a time. Of Spark's pools
    # two have up to 128 threads each, which come with the rounds and go after a minute. A round has four
    # threads of its own in the daemon; where rounds take half of the time, blocks of samples differ by those
    # four.
    (SAMPLES, "fds", Rule("daemon descriptors", "", allowance=6.0, ceiling=300.0)),
    (SAMPLES, "threads", Rule("daemon threads", "", allowance=10.0, ceiling=150.0)),
    (SAMPLES, "jvm_fds", Rule("JVM descriptors", "", allowance=8.0, ceiling=600.0)),
    (
        SAMPLES,
        "jvm_threads",
        Rule("JVM threads", "", allowance=20.0, ceiling=450.0, settles_s=CLEANED_S, lasts_s=600.0),
    ),
    (SAMPLES, "children", Rule("child processes", "", allowance=3.0, ceiling=12.0)),
    (SAMPLES, "workers", Rule("Python workers", "", allowance=2.0, ceiling=8.0)),
    # What is stored: cleaning and checkpoints hold it down, once there is something to clean.
    (
        SAMPLES,
        "metadata_mb",
        Rule("metadata store", "MB", allowance=4.0, ceiling=200.0, settles_s=CLEANED_S, lasts_s=LONG_S),
    ),
    (
        SAMPLES,
        "intake_files",
        Rule("intake files", "", allowance=1500.0, ceiling=20_000.0, settles_s=CLEANED_S, lasts_s=LONG_S),
    ),
)
"""File of samples, field, rule."""
