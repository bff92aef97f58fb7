"""What the tests of `pantheon router` share: the router as a process, and backends that are made to misbehave."""
import json
import os
import socket
import subprocess
import tempfile
import threading

from conftest import BUILD, ROOT, Daemon, free_port, wait_for

LIST = {"object": "list", "data": [{"id": "m", "object": "model"}]}


class Router(Daemon):
    """`pantheon router` in front of the given backends (what has a `port`, or a URL)."""

    def __init__(self, folder, *backends, args=(), wait=True, tls=None, env=None):
        self.tls = tls
        self.port = free_port()
        self.socket_dir = tempfile.mkdtemp(prefix="pd-")
        folder.mkdir(exist_ok=True)
        self.log_path = folder / "log"
        self.log_file = open(self.log_path, "w")
        urls = [b if isinstance(b, str) else f"http://127.0.0.1:{b.port}" for b in backends]
        flags = [x for u in urls for x in ("--backend", u)]
        self.process = subprocess.Popen([str(BUILD / "pantheon-cpu"), "router", *flags, "--port", str(self.port), *map(str, args)], stdout=self.log_file, stderr=self.log_file, cwd=ROOT, env={**os.environ, **(env or {})})
        self.wait_listening()
        if wait:
            wait_for(lambda: self.get("/health").json["backends_up"] == len(urls), 20, "all backends are up")

    def backends(self):
        return {b["url"]: b for b in self.get("/").json["backends"]}

    def served_by(self, request_id):
        """The port of the backend that a request went to last, and how many it went to, as the log says."""
        def line():
            return next((x for x in self.log.splitlines() if f"request={request_id} " in x), None)
        found = wait_for(line, 5, f"the line of {request_id}")
        return int(found.split('backend="http://127.0.0.1:')[1].split('"')[0]), int(found.split("tries=")[1].split()[0])


class Fake:
    """A backend whose bytes are the test's. It is well for probes; each other request is given to `answer(connection, head, body)`, and its connection
    closed: with `keeps` only where that returns True, and after no probe."""

    def __init__(self, answer, models=LIST, keeps=False):
        self.answer, self.models, self.keeps = answer, models, keeps
        self.close_line = b"" if keeps else b"Connection: close\r\n"
        self.asked = []  # the heads of requests
        self.ready = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%s\r\nok" % self.close_line
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        with s:
            try:
                f = s.makefile("rb")
                while True:
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        line = f.readline()
                        if not line:
                            return
                        head += line
                    lines = dict(x.split(": ", 1) for x in head.decode().lower().split("\r\n")[1:] if ": " in x)
                    body = f.read(int(lines.get("content-length", 0)))
                    if head.startswith(b"GET /ready"):
                        s.sendall(self.ready)
                    elif head.startswith(b"GET /v1/models"):
                        text = json.dumps(self.models).encode()
                        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(text), self.close_line, text))
                    else:
                        self.asked.append((head.decode(), body))
                        if not self.answer(s, head.decode(), body) or not self.keeps:
                            return
            except OSError:
                return

    def close(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # else who waits in accept takes one more
        except OSError:
            pass  # it is closed
        self.listener.close()


def reply(status, body, *lines):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n{''.join(x + chr(13) + chr(10) for x in lines)}\r\n".encode() + text
