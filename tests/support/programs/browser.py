"""A headless Chromium, driven over its DevTools pipe: reads a page's log and elements, and takes screenshots."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--hide-scrollbars"),
)


class Browser:
    """One browser with one page.

    Use it as a context manager, which ends the browser.
    """

    def __init__(self, profile: Path) -> None:
        """Start Chromium with this empty folder as its profile."""
        assert CHROMIUM is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (theirs_in, theirs_out)]
        command = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", CHROMIUM, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for descriptor in (theirs_in, theirs_out, *high):
            os.close(descriptor)
        self._count, self._rest, self._session = 0, b"", ""
        self.problems: list[str] = []
        """Errors and warnings that the page logged, and its network requests."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        """Return the browser."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the browser and all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window, and the colour scheme that the user prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> float:
        """Load a file, and return the seconds until it is loaded."""
        start = time.perf_counter()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        return time.perf_counter() - start

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        end = time.perf_counter() + seconds
        while not self.evaluate(condition):
            assert time.perf_counter() < end, f"never true: {condition}"
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move, press or release the mouse: mouseMoved, mousePressed, mouseReleased."""
        pressed = {"button": "left", "clickCount": 1, "buttons": 1} if kind != "mouseMoved" else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def key(self, key: str) -> None:
        """Press and release a key, by its name in JavaScript."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, **code, **(text if kind == "keyDown" else {}))

    def picture(self, path: Path) -> None:
        """Write a screenshot of the visible part of the page."""
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], 30.0)
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, what = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(f"{what['type']}: {what['args']}")
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent" and what["request"]["url"].startswith(("http:", "https:", "ws")):
            self.problems.append(f"asked for {what['request']['url']}")
