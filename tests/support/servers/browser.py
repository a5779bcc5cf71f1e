"""A headless Chromium for the tests of pages: Debian's, unpacked into the checkout's `.cache/parts` without
being installed, and driven by the DevTools protocol over two pipes.

Owns that folder. Two processes that ask at once fetch once. On a machine without Debian's packages the tests
that need it are skipped by name; continuous integration skips none.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.support.absent import Absent
from tests.support.deploy import debian

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "parts" / "chromium"
PROGRAM: Final = "usr/lib/chromium/chromium-headless-shell"
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
# The program, a font, and every library that a small image may lack. Debian's C and C++ libraries are left
# out: they must be those of the machine.
_NAMES: Final = """
chromium-headless-shell chromium-common fonts-dejavu-core fontconfig-config libglib2.0-0 libnspr4
libpulse0 libnss3 libbrotli1 libzstd1 libxrender1 libxrandr2 libxnvctrl0 libxkbcommon0 libxi6 libxfixes3
libxext6 libxdmcp6 libxdamage1 libxcomposite1 libxcb1 libxau6 libx11-xcb1 libx11-6 libwayland-server0
libvorbisenc2 libvorbis0a libudev1 libsystemd0 libsndfile1 libpng16-16 libpcre2-8-0 libopus0 libopenjp2-7
libopenh264-7 libogg0 libmpg123-0 libmp3lame0 libmount1 libminizip1 libmd0 liblz4-1 liblcms2-2
libjpeg62-turbo libharfbuzz0b libharfbuzz-subset0 libgraphite2-3 libgcrypt20 libgbm1 libfreetype6
libfontconfig1 libflac12 libffi8 libdrm2 libdouble-conversion3 libdav1d6 libbsd0 libblkid1 libatspi2.0-0
libatk1.0-0 libasyncns0 libasound2 libdbus-1-3 libexpat1 libcap2 libgpg-error0 liblzma5 libxss1 libxtst6
libselinux1 libgssapi-krb5-2
"""
PACKAGES: Final = tuple(_NAMES.split())
OPTIONS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    # Names are not resolved, so nothing but this machine can be asked.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
ANSWER_S: Final = 60.0
PICTURE_PX: Final = 16_384
"""Chromium refuses pictures that are much taller."""


def fetch_or_tell() -> None:
    """Before the tests: fetch it, or say why its tests are going to be skipped."""
    try:
        fetch()
    except Absent as error:
        print(f"there is no browser, and what needs it is skipped: {error}")


def fetch() -> Path:
    """The folder with the program and its libraries, fetched unless it is there. Raises `Absent`."""
    whole = CACHE / "unpacked"
    if whole.exists():
        return whole
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            folder = CACHE / f"fetching-{os.getpid()}"
            folder.mkdir()
            try:
                debian.unpack(PACKAGES, folder)
                if not (folder / PROGRAM).is_file():
                    raise Absent(f"{PROGRAM} is not in what was fetched")
                folder.rename(whole)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return whole


def required() -> Path:
    """The folder; the test is skipped where there is none, and fails where none may be skipped."""
    try:
        return fetch()
    except Absent as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"there is no browser: {error}")


class Browser:
    """One browser with one page."""

    def __init__(self, folder: Path) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="chromium-"))
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        libraries = [
            folder / LIBRARIES,
            folder / LIBRARIES / "pulseaudio",
            folder / "lib" / "x86_64-linux-gnu",
        ]
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "FONTCONFIG_FILE": str(_fonts(folder, self._profile)),
            "HOME": str(self._profile),
        }
        arguments = [str(folder / PROGRAM), *OPTIONS, f"--user-data-dir={self._profile}", "about:blank"]
        # The protocol has fixed numbers for its pipes.
        program = f'exec 3<&{commands} 4>&{answers}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", program, "browser", *arguments],
            pass_fds=(commands, answers),
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._pending = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the page reported since it was opened: log entries, errors, dialogs, requests."""
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _begin(self) -> None:
        (target,) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; its result. Events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], ANSWER_S)
            assert ready, f"the browser said nothing for {ANSWER_S:g} s"
            piece = os.read(self._answers, 2**20)
            assert piece, "the browser has ended"
            self._pending += piece
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def wait_for(self, method: str) -> None:
        """Wait for an event that has not been seen since `events` was cleared."""
        while not any(one["method"] == method for one in self.events):
            self._next()

    def open(self, address: str) -> None:
        """Open an address and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """Value of an expression in the page, also where scripts of pages are off."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screen(self, width: int, *, dark: bool = False, scripts: bool = True, height: int = 900) -> None:
        """Size and colours of the window, and whether pages may run scripts."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def click(self, selector: str) -> None:
        """Click what a selector finds, as a person does, and wait for the page that follows."""
        quoted = json.dumps(selector)
        box = self.run(
            f"(() => {{ const one = document.querySelector({quoted}); one.scrollIntoView({{block: 'center'}});"
            " const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.events.clear()
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
        self.wait_for("Page.loadEventFired")

    def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field by typing."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, target: Path) -> None:
        """The page as PNG, the first `PICTURE_PX` of it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], PICTURE_PX), "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png", clip=clip)
        target.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Errors that the page caused since it was opened: of scripts, of its policy, of what it loads."""
        found = []
        for one in self.events:
            given = one.get("params", {})
            if one["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                found.append(given["entry"]["text"])
            if one["method"] in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                found.append(json.dumps(given)[:500])
        return found

    def requested(self) -> list[str]:
        """Addresses that the page requested since it was opened."""
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one["method"] == "Network.requestWillBeSent"
        ]


def _fonts(folder: Path, profile: Path) -> Path:
    """A configuration that finds the font of the folder."""
    file = profile / "fonts.conf"
    file.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f"<dir>{folder / 'usr/share/fonts'}</dir><cachedir>{profile / 'fonts'}</cachedir></fontconfig>",
        encoding="utf-8",
    )
    return file


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A browser for a test."""
    with Browser(required()) as browser:
        yield browser
