"""A headless Chromium, driven over its debugging pipe (the Chrome DevTools Protocol): no port, no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
REQUIRED = "BROWSER_REQUIRED"
"""The variable that says that a browser must be there: then a test without one fails and does not skip."""


def installed() -> str | None:
    """The command of the browser on this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser did not answer, or answered with an error."""


class Browser:
    """One process with one page. Use as a context manager; ``close`` leaves no process behind.

    What the page asked the network for, wrote to the console or threw is in ``requests`` and ``complaints``, from
    ``open`` on.
    """

    def __init__(self, command: str, profile: Path) -> None:
        # The browser reads commands from descriptor 3 and writes answers to 4; ours have to be out of the way of these.
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for pair in (os.pipe(), os.pipe()) for end in pair]
        read_commands, self._commands, self._answers, write_answers = pipes

        def place() -> None:
            os.dup2(read_commands, 3)
            os.dup2(write_answers, 4)

        options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars"
        self._process = subprocess.Popen(
            [command, *options.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(BrokenPipeError):  # it has ended already
            os.write(self._commands, b'{"id": 0, "method": "Browser.close"}\0')
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._answers)

    # The protocol

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of one command."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None and not method.startswith(("Browser.", "Target.")):
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(30.0)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]

    def wait(self, event: str) -> None:
        """Until ``event`` has come; those from before the last ``open`` do not count."""
        while not any(each["method"] == event for each in self._events):
            self._next(30.0)

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._answers, 1 << 20) if ready else b""
            if not piece:
                raise BrowserError("the browser does not answer" if not ready else "the browser has ended")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message

    # What a test does with it

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show ``file`` in a window of this size, until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=file.as_uri())
        self.wait("Page.loadEventFired")

    @property
    def requests(self) -> list[str]:
        events = [each["params"] for each in self._events if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in events]

    @property
    def complaints(self) -> list[str]:
        """Console messages, exceptions, and what the browser itself objects to (a blocked script, say)."""
        names = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(each["params"]) for each in self._events if each["method"] in names]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, *, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
