"""What the tests of the loop share: dies whose faults are scripted, a manifest over them, and questions to the daemon about both."""
import json
import re
import socket
import subprocess
import time

from conftest import BUILD, ROOT, SLOW, manifest, wait_for

MB = 1000 * 1000
FAST = {"PANTHEON_BACKOFF_MS": "100"}


def dies(**sims):
    """A dies section: name=(size, script)."""
    return "dies:\n" + "".join(f"  - {{ name: {n}, kind: sim, memory: {size}{', script: ' + json.dumps(script) if script else ''} }}\n" for n, (size, script) in sims.items())


def declared(*models, **sims):
    return manifest(*models, top="host: { ram_reserve: 16MiB, settle: { timeout: 5s, stable: 1s } }\n" + dies(**(sims or {"s0": ("300MB", ""), "s1": ("300MB", "")})).rstrip())


def admin(d, path="/admin/models"):
    return d.get(path).json


def model(d, name):
    return next((m for m in admin(d)["models"] if m["name"] == name), None)


def condition(o, name):
    return next(c for c in o["conditions"] if c["type"] == name)


def events(d, name=None):
    """(event, model) in the order they were logged."""
    out = [(m[1], m[2]) for m in re.finditer(r'area=reconcile event=(\S+) model="([^"]*)"', d.log)]
    return [e for e, m in out if m == name] if name else out


def cli(d, *args, timeout=60):
    where = ["--socket", d.socket] if "--facts" not in args else []
    return subprocess.run([str(BUILD / "pantheon-reconcile"), *where, *map(str, args), str(d.manifest)], capture_output=True, text=True, timeout=timeout * SLOW, cwd=ROOT)


def reconcile(d, query="wait=applied"):
    return d.post(f"/admin/reconcile?{query}", None)


def wait_status(d, name, status, timeout=10):
    wait_for(lambda: (model(d, name) or {}).get("status") == status, timeout, f"{name} {status}")


class Notify:
    def __init__(self, s):
        self.s, self.heard = s, []

    def until(self, done, timeout):
        end = time.monotonic() + timeout * SLOW
        while not done(self.heard):
            assert time.monotonic() < end, self.heard
            self.s.settimeout(max(0.01, end - time.monotonic()))
            try:
                self.heard += self.s.recv(4096).decode().split("\n")
            except socket.timeout:
                pass
        return self.heard

    def drain(self):
        """What came since the last time; forgets it."""
        self.s.settimeout(0.01)
        try:
            while True:
                self.heard += self.s.recv(4096).decode().split("\n")
        except socket.timeout:
            pass
        got, self.heard = self.heard, []
        return got


class notify_socket:
    def __init__(self, folder):
        self.path = str(folder / "n")

    def __enter__(self):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(self.path)
        return Notify(self.s), {"NOTIFY_SOCKET": self.path}

    def __exit__(self, *_):
        self.s.close()
