"""A browser that tests drive: Debian's Chromium through its driver, which speaks WebDriver (JSON over HTTP)."""
import base64
import http.client
import json
import os
import shutil
import subprocess

import pytest

from conftest import ROOT, SLOW, free_port, wait_for

SHOTS = ROOT / "build" / "screenshots"


def find():
    """The programs, or why there are none."""
    programs = [shutil.which(p) for p in ("chromium", "chromedriver")]
    if not all(programs):
        pytest.skip("no Chromium with its driver here: scripts/deps.sh page installs both on Debian")
    return programs


class Browser:
    def __init__(self, folder):
        chromium, driver = find()
        self.port = free_port()
        self.log = open(folder / "chromedriver.log", "w")
        self.process = subprocess.Popen([driver, f"--port={self.port}"], stdout=self.log, stderr=self.log, env={**os.environ, "HOME": str(folder)})
        self.base = ""
        wait_for(self.up, 30, "chromedriver")
        options = {"binary": chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server", f"--user-data-dir={folder}/profile"]}
        self.base = f"/session/{self.call('POST', '/session', {'capabilities': {'alwaysMatch': {'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL'}}}})['sessionId']}"

    def up(self):
        try:
            return self.call("GET", "/status")["ready"]
        except OSError:
            return False

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        try:
            c.request(method, self.base + path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            value = json.loads(c.getresponse().read())["value"]
        finally:
            c.close()
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def js(self, script, *args):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def text(self, selector):
        """What somebody reads there; "" when it is not shown."""
        return self.js("const x = document.querySelector(arguments[0]); return x && x.checkVisibility() ? x.innerText : ''", selector)

    def shown(self, selector):
        return self.js("const x = document.querySelector(arguments[0]); return !!x && x.checkVisibility()", selector)

    def devtools(self, command, **params):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def keys(self, text):
        """Typed where the focus is."""
        actions = [{"type": kind, "value": ch} for ch in text for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def size(self, width, height, dark=False, still=False):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}, {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}])

    def complaints(self):
        """What the browser's console has of errors since the last time."""
        return [e["message"] for e in self.call("POST", "/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]

    def shot(self, name):
        SHOTS.mkdir(parents=True, exist_ok=True)
        height = self.js("return document.documentElement.scrollHeight")
        width = self.js("return document.documentElement.clientWidth")
        png = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})["data"]
        (SHOTS / f"{name}.png").write_bytes(base64.b64decode(png))

    def wait(self, what, timeout=20, why=""):
        return wait_for(what, timeout, why)

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(20)
            self.log.close()
