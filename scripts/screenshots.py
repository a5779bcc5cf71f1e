"""Pictures of the status page in a headless Chromium, for looking at it: its states, at two widths, light and
dark.

The values come from real applications on scratch folders. The pictures go to a folder that version control
ignores; see `make screenshots`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archiver.web.page import page  # noqa: E402 - after the path is known
from tests.support.builders.status_scenes import SCENES, starting  # noqa: E402

SIZES = {"wide": "1440,2600", "narrow": "500,2400"}
"""Chromium makes no window narrower than 500; the narrow page is put into a frame of 390."""
FRAME = (
    '<!doctype html><body style="margin:0;background:#888"><iframe src="{name}" '
    'style="border:0;width:390px;height:2400px"></iframe>'
)
CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
TIMEOUT_S = 60


def pages(scratch: Path) -> Iterator[tuple[str, str]]:
    """Every state by its name, as HTML."""
    yield "starting", page(starting(scratch / "starting"))
    for name, scene in SCENES.items():
        with scene(scratch / name) as made:
            yield name, page(made.values())
            if name == "many":
                yield "one-topic", page(made.values({"topic": "telemetry", "refresh": "30"}))


def picture(browser: str, source: Path, target: Path, size: str, dark: bool) -> None:
    """One picture; raises `CalledProcessError` if the browser fails."""
    scheme = (
        ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    )
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        command = [
            browser,
            *CHROMIUM,
            *scheme,
            f"--user-data-dir={profile}",
            f"--screenshot={target}",
            f"--window-size={size}",
            source.as_uri(),
        ]
        subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True)


def main() -> int:
    """Make them all, or those of the states that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("states", nargs="*")
    given = parser.parse_args()
    browser = shutil.which("chromium")
    if browser is None:
        print("there is no chromium; install your system's package of that name", file=sys.stderr)
        return 1
    given.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scenes-") as scratch:
        for name, html in pages(Path(scratch)):
            if given.states and name not in given.states:
                continue
            source = given.to / f"{name}.html"
            source.write_text(html, encoding="utf-8")
            frame = given.to / f"{name}-frame.html"
            frame.write_text(FRAME.format(name=source.name), encoding="utf-8")
            for width, size in SIZES.items():
                for dark in (False, True):
                    target = given.to / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                    picture(browser, frame if width == "narrow" else source, target, size, dark)
                    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
