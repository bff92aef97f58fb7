"""A server on loopback and its chat clients, with the standard library alone. The same requests go to every server."""
import http.client
import json
import socket
import subprocess
import tempfile
import threading
import time

import children
import figures


class NotReady(Exception):
    """Nobody listens yet, or what listens still loads."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stream(port, prompt, max_tokens, until):
    """One streamed chat completion: (when it was sent, when its first text came, when it ended, tokens)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(0.1, until - time.monotonic()))
    try:
        sent = time.monotonic()
        body = {"model": "bench", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
        except (ConnectionError, http.client.BadStatusLine) as e:
            raise NotReady from e
        if answer.status == 503:
            raise NotReady
        if answer.status != 200:
            raise children.Failed(f"the server says {answer.status}: {answer.read(300).decode(errors='replace')}")
        lines, first = [], None
        while line := answer.readline():
            lines.append(line.decode(errors="replace").strip())
            if first is None and figures.stream_tokens(lines[-1:])[0]:
                first = time.monotonic()
            if time.monotonic() > until:
                raise children.Failed("a stream did not end in time")
        texts, usage = figures.stream_tokens(lines)
        if not texts:
            raise children.Failed("a stream brought no text")
        return sent, first, time.monotonic(), usage or texts
    except (OSError, http.client.HTTPException) as e:
        raise children.Failed(f"a stream broke off: {e!r}") from e
    finally:
        connection.close()


class Server:
    """A server process, which ends with the block. `command` is given the port."""

    def __init__(self, command, env=None, cwd=None):
        self.port = free_port()
        self.command, self.env, self.cwd = command(self.port), env, cwd

    def __enter__(self):
        self.said = tempfile.TemporaryFile("w+", errors="replace")
        self.started = time.monotonic()
        self.process = children.start(self.command, self.env, self.cwd, self.said, subprocess.STDOUT)
        return self

    def __exit__(self, *_):
        children.end(self.process, gently=10)
        self.said.close()

    def first(self, prompt, max_tokens, until):
        """The first stream that is answered, asked for again and again from the start on."""
        while time.monotonic() < until:
            try:
                return stream(self.port, prompt, max_tokens, until)
            except NotReady:
                if self.process.poll() is not None:
                    self.said.seek(0)
                    raise children.Failed(f"the server ended with status {self.process.returncode}: {children.last_words(self.said.read())}") from None
                time.sleep(0.001)
        raise children.Failed("the server was not ready in time")


def start_to_first_token(command, env, cwd, seconds):
    """Seconds from the start of the process to the first text of a streamed answer."""
    with Server(command, env, cwd) as server:
        return server.first("Say hello.", 4, time.monotonic() + seconds)[1] - server.started


def tokens_of_streams(command, env, cwd, seconds, n_streams, max_tokens):
    """Tokens a second of n_streams streams that start together, from the first request to the last token."""
    until = time.monotonic() + seconds
    with Server(command, env, cwd) as server:
        server.first("Say hello.", 8, until)
        gate, results = threading.Barrier(n_streams), [None] * n_streams

        def client(i):
            try:
                gate.wait(10)
                results[i] = stream(server.port, f"Tell me a long story about the number {i + 11}.", max_tokens, until)
            except Exception as e:  # noqa: BLE001: whatever it is, it is the result
                results[i] = e

        threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(n_streams)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(max(0.1, until + 5 - time.monotonic()))
        for r in results:
            if not isinstance(r, tuple):
                raise children.Failed(f"a stream of {n_streams}: {r or 'did not end in time'}" if not isinstance(r, NotReady) else "the server refused a stream")
        return sum(r[3] for r in results) / (max(r[2] for r in results) - min(r[0] for r in results))
