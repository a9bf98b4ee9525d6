"""A browser without a screen, driven over its DevTools pipe: what people see, click and type."""

import json
import os
import select
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 120

KEYS = {"Enter": ("\r", 13), "Tab": ("", 9)}


def find_browser():
    """Path of a browser of the Chromium family, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a headless browser; a context manager.

    Parameters
    ----------
    program : str
    profile : Path
        Folder for what it keeps.

    Raises
    ------
    OSError
        If the browser does not start, or ends.
    """

    def __init__(self, program, profile):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def connect():  # it reads commands from 3 and writes answers to 4
            for number, wanted in ((to_read, 13), (to_write, 14), (13, 3), (14, 4)):
                os.dup2(number, wanted)

        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--window-size=1400,1000",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [program, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=connect,
            close_fds=False,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session = None
        self.events = []
        try:
            self._attach()
        except OSError:
            self.__exit__()
            raise

    def _attach(self):
        """Find the page and listen to it."""
        target = next(
            each for each in self.send("Target.getTargets")["targetInfos"] if each["type"] == "page"
        )
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self._write)
        self._process.terminate()
        self._process.wait(30)
        os.close(self._read)

    def _receive(self):
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], PATIENCE_S)[0]:
                raise OSError(f"the browser has said nothing for {PATIENCE_S} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise OSError("the browser has ended")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, **parameters):
        """Give a command and return its answer; events that come meanwhile are kept."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return message["result"]
            self.events.append(message)

    def open(self, path):
        """Load a file, to the end of its scripts and the next drawing."""
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._receive())
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def run(self, script):
        """Value of an expression, awaited if it is a promise."""
        result = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def look(self, *, width=1400, height=1000, scheme="light", media=""):
        """Set what the page is shown on."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def point(self, x, y, *, click=False):
        """Move the mouse somewhere in the window, and click there."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        """Press and release a key of `KEYS`."""
        text, code = KEYS[key]
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def complaints(self):
        """Messages of the page on the console, and errors, since it was opened."""
        return [
            each["params"]
            for each in self.events
            if each.get("method")
            in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def requests(self):
        """Addresses that the page has asked for since it was opened."""
        return [
            each["params"]["request"]["url"]
            for each in self.events
            if each.get("method") == "Network.requestWillBeSent"
        ]
