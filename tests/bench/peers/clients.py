"""A server on loopback and its chat clients, with the standard library alone. The same requests go to every server."""
import http.client
import json
import random
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


def stream(port, prompt, max_tokens, until, came=None, over=None):
    """One streamed chat completion: (when it was sent, when its first text came, when it ended, tokens). came: a list that gets the time of each
    text as it comes; over: an event on which the client leaves."""
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
            now = time.monotonic()
            if figures.stream_tokens(lines[-1:])[0]:
                first = first or now
                if came is not None:
                    came.append(now)
            if over and over.is_set():
                break
            if now > until:
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


WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part place case week company system".split()


def words(n, seed):
    """A text of n words, most of them a token each; another seed is another text from its first word on."""
    draw = random.Random(seed)
    return f"{seed}: " + " ".join(draw.choice(WORDS) for _ in range(n))


def _wait_for_texts(came, n, running, until):
    while len(came) < n:
        if not running.is_alive():
            raise children.Failed("the running stream ended too early")
        if time.monotonic() > until:
            raise children.Failed("the running stream stands still")
        time.sleep(0.001)


def gaps_beside_prompts(command, env, cwd, seconds, n_alone, n_prompts, n_words, max_tokens):
    """The gaps between the texts of a running stream, in seconds: (alone, while prompts of n_words words arrive one after the other)."""
    until = time.monotonic() + seconds
    with Server(command, env, cwd) as server:
        server.first("Say hello.", 8, until)
        came, over, failed = [], threading.Event(), []

        def client():
            try:
                stream(server.port, "Tell me a long story about the number 11.", max_tokens, until, came, over)
            except Exception as e:  # noqa: BLE001: whatever it is, it is said
                failed.append(e)

        running = threading.Thread(target=client, daemon=True)
        running.start()
        try:
            _wait_for_texts(came, n_alone + 1, running, until)
            first = len(came) - 1  # the gap that follows it is the first beside a prompt
            for i in range(n_prompts):
                stream(server.port, words(n_words, i + 1), 4, until)
            last = len(came)
            _wait_for_texts(came, last + 1, running, until)  # the gap that was open when the last prompt was answered
        finally:
            over.set()
            running.join(max(0.1, until + 5 - time.monotonic()))
        if failed:
            raise children.Failed(f"the running stream: {failed[0]}")
        gaps = [b - a for a, b in zip(came[:last], came[1:])]
        return gaps[:first], gaps[first:]
