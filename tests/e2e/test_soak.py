"""Load: many clients at once, each of its own mood. They ask for whole answers and for streams, read slowly, send slowly, leave before the head or
in mid-stream, and send what nobody can answer. In `make e2e` 16 of them for some seconds; in `make soak` 64 for ten minutes, in the release build
and under AddressSanitizer and ThreadSanitizer. Whoever stays must get the whole text, and the same one that the server says to a single
client; memory must be flat in the second half; at the end nothing is left behind."""
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import threading
import time

from conftest import SLOW, check_chunk, check_event, manifest, wait_for

SECONDS = int(os.environ.get("SOAK_SECONDS", "6"))
CLIENTS = int(os.environ.get("SOAK_CLIENTS", "16"))
LONG = SECONDS >= 60
TEXTS = 6
MOODS = ("whole", "stream", "stream", "stall", "abort", "abort", "drip", "bad", "look")

BAD = [  # (path, body, status, param)
    ("/v1/chat/completions", b"{", 400, None),
    ("/v1/chat/completions", b"[" * 5000, 400, None),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": []}', 400, "messages"),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": 3}', 400, "temperature"),
    ("/v1/chat/completions", b'{"model": "absent", "messages": [{"role": "user", "content": "a"}]}', 404, "model"),
    ("/v1/completions", b'{"model": "tiny", "prompt": [1, 99999]}', 400, "prompt.1"),
    ("/v1/completions", json.dumps({"model": "tiny", "prompt": [3] * 300}).encode(), 400, "prompt"),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "stop": ["\xff"]}', 400, None),
    ("/v1/responses", b'{"model": "tiny", "input": [{"role": "user", "content": [{"type": "input_text"}]}]}', 400, "input.0.content.0.text"),
    ("/v1/embeddings", b'{"model": "tiny", "input": ["a", ""]}', 400, "input.1"),
]


def chat_body(i, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": f"Say {i}"}], "seed": i, "max_tokens": 30, "temperature": 1, **more}


# how each endpoint is asked, where its text stands in a whole answer, and in an event
ENDPOINTS = {
    "chat": ("/v1/chat/completions", chat_body, lambda a: a["choices"][0]["message"]["content"], lambda e: "".join(c["delta"].get("content", "") for c in e["choices"])),
    "text": ("/v1/completions", lambda i, **more: {"model": "tiny", "prompt": f"Say {i}", "seed": i, "max_tokens": 30, "temperature": 1, **more},
             lambda a: a["choices"][0]["text"], lambda e: "".join(c["text"] for c in e["choices"])),
    "held": ("/v1/chat/completions", lambda i, **more: chat_body(i, regex=f"[a-z ]{{{5 + i},25}}", **more), lambda a: a["choices"][0]["message"]["content"],
             lambda e: "".join(c["delta"].get("content", "") for c in e["choices"])),
    "responses": ("/v1/responses", lambda i, **more: {"model": "tiny", "input": f"Say {i}", "seed": i, "max_output_tokens": 30, "temperature": 1, **more},
                  lambda a: a["output"][0]["content"][0]["text"], lambda e: e["delta"] if e["type"] == "response.output_text.delta" else ""),
    "embeddings": ("/v1/embeddings", lambda i: {"model": "tiny", "input": [f"Say {i}", f"Say {i + 1}"]}, lambda a: [d["embedding"] for d in a["data"]], None),
}
STREAMED = [name for name, row in ENDPOINTS.items() if row[3]]


class Client:
    """Keeps its connection as a client of agents does, until one of the two hangs up."""

    def __init__(self, daemon, k, texts, counts):
        self.daemon, self.rng, self.texts, self.counts, self.conn = daemon, random.Random(k), texts, counts, None

    def connection(self):
        if not self.conn:
            self.conn = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=60 * SLOW)
        return self.conn

    def drop(self):
        if self.conn:
            self.conn.close()
            self.conn = None

    def post(self, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        c = self.connection()
        try:
            c.request("POST", path, data, {"Content-Type": "application/json"})
            r = c.getresponse()
        except (ConnectionError, http.client.BadStatusLine):  # the server closed it after the last answer: once more on a new one
            self.drop()
            c = self.connection()
            c.request("POST", path, data, {"Content-Type": "application/json"})
            r = c.getresponse()
        if r.headers.get("connection") == "close":
            self.conn = None  # the answer still reads from its socket
        return r

    def events(self, r, name):
        """The data of a stream's events; asserts the form of each and of the end."""
        done, last = False, None
        for line in iter(r.readline, b""):
            line = line.rstrip(b"\n")
            if line.startswith(b"data: "):
                assert not done
                if line == b"data: [DONE]":
                    done = True
                    continue
                last = json.loads(line[6:])
                check_event(last)
                if name != "responses":
                    check_chunk(last)
                yield last
            else:
                assert line in (b"", b": ping") or line.startswith(b"event: response."), line
        assert done if name != "responses" else last["type"] in ("response.completed", "response.incomplete"), f"a stream that survives is complete: {last}"

    def whole(self):
        i, name = self.rng.randrange(TEXTS), self.rng.choice(list(ENDPOINTS))
        path, body, text, _ = ENDPOINTS[name]
        r = self.post(path, body(i))
        a = json.loads(r.read())
        assert r.status == 200, a
        assert text(a) == self.texts[name, i]

    def stream(self, pause=0.0):
        i, name = self.rng.randrange(TEXTS), self.rng.choice(STREAMED)
        path, body, _, piece = ENDPOINTS[name]
        r = self.post(path, body(i, stream=True))
        assert r.status == 200, r.read()
        text = ""
        for n, e in enumerate(self.events(r, name)):
            text += piece(e)
            if pause and n % 10 == 0:
                time.sleep(pause)
        assert text == self.texts[name, i], (text, self.texts[name, i])

    def stall(self):
        self.stream(pause=self.rng.uniform(0.1, 0.5))

    def abort(self):
        """Leaves: with half of its body sent, before the head, after some events, or with its answer unread."""
        how = self.rng.randrange(4)
        long = {"stream": how != 3, "ignore_eos": True}
        path, data = self.rng.choice([("/v1/chat/completions", chat_body(1, **{**long, "max_tokens": 200})), ("/v1/responses", {**ENDPOINTS["responses"][1](1), **long, "max_output_tokens": 200}),
                                      ("/v1/embeddings", {"model": "tiny", "input": ["word " * 40] * 20})])
        data = json.dumps(data).encode()
        c = self.connection()
        c.putrequest("POST", path)
        c.putheader("Content-Length", str(len(data)))
        try:
            c.endheaders()
            c.send(data[: len(data) // 2] if how == 0 else data)
            if how == 1:
                time.sleep(self.rng.uniform(0, 0.05))
            elif how == 2:
                r = c.getresponse()
                for _ in range(self.rng.randrange(1, 12)):
                    r.readline()
                r.close()
        except (ConnectionError, http.client.BadStatusLine):
            pass  # the server had closed an idle connection
        self.drop()

    def drip(self):
        """A body that comes in pieces."""
        i = self.rng.randrange(TEXTS)
        data = json.dumps(chat_body(i)).encode()
        self.drop()
        c = self.connection()
        c.putrequest("POST", "/v1/chat/completions")
        c.putheader("Content-Length", str(len(data)))
        c.endheaders()
        for at in range(0, len(data), 40):
            c.send(data[at : at + 40])
            time.sleep(0.02)
        r = c.getresponse()
        assert json.loads(r.read())["choices"][0]["message"]["content"] == self.texts["chat", i]

    def bad(self):
        path, body, status, param = self.rng.choice(BAD)
        r = self.post(path, body)
        e = json.loads(r.read())["error"]
        assert r.status == status and e["param"] == param, (path, body[:80], r.status, e)

    def look(self):
        for path in ("/health", "/slots", "/metrics", "/v1/models", "/ready"):
            c = self.post(path, b"") if self.rng.randrange(8) == 0 else None  # the wrong method now and then
            if c:
                assert c.status == 405 and json.loads(c.read())["error"]
                continue
            assert self.daemon.get(path).status == 200

    def run(self, end, errors):
        try:
            while time.monotonic() < end and not errors:
                mood = self.rng.choice(MOODS)
                getattr(self, mood)()
                self.counts[mood] = self.counts.get(mood, 0) + 1
        except Exception as e:
            errors.append(f"{type(e).__name__}: {e}")
        self.drop()


def anonymous(d):
    """RssAnon in bytes: what the daemon itself holds."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", pathlib.Path(f"/proc/{d.process.pid}/status").read_text())[1]) * 1024


def flat(samples):
    """Whether memory stood still in the second half: its last fifth against its first, by medians."""
    half = samples[len(samples) // 2 :]
    fifth = max(1, len(half) // 5)
    first, last = statistics.median(half[:fifth]), statistics.median(half[-fifth:])
    print(f"memory in the second half: {first / 1e6:.1f} MB -> {last / 1e6:.1f} MB, most {max(half) / 1e6:.1f} MB")
    return last <= first * 1.03 + (4 << 20)


def test_many_clients_with_aborts_leave_nothing_behind(models, start):
    # what sanitizers keep of freed memory, and of what was done to it, is bounded, so that growth is the daemon's
    env = {name: os.environ.get(name, "") + option for name, option in (("ASAN_OPTIONS", ":quarantine_size_mb=16"), ("TSAN_OPTIONS", ":flush_memory_ms=15000"))}
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4\nmax_sessions: 4\nqueue: { depth: 256 }"), server="limits: { connections: 512 }"), env=env)
    texts = {(name, i): text(d.post(path, body(i)).json) for name, (path, body, text, _) in ENDPOINTS.items() for i in range(TEXTS)}
    errors, samples, end = [], [], time.monotonic() + SECONDS
    counts = [{} for _ in range(CLIENTS)]
    threads = [threading.Thread(target=Client(d, k, texts, counts[k]).run, args=(end, errors)) for k in range(CLIENTS)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        samples.append(anonymous(d))
        time.sleep(min(1, SECONDS / 20))
    total = {m: sum(c.get(m, 0) for c in counts) for c in counts for m in c}
    print(f"{SECONDS} s, {CLIENTS} clients: " + ", ".join(f"{n} {m}" for m, n in sorted(total.items())))
    assert not errors, errors[:3]
    assert set(total) == set(MOODS), total
    if LONG:
        assert flat(samples)
    wait_for(d.idle, 20)
    wait_for(lambda: d.get("/health").json["connections"] <= 2, 10, "no connection is left")
    assert not re.search(r"level=error", d.log), d.log[-2000:]
