"""A crowd that means no good: those who send a byte now and then, those who listen and never leave, endless uploads, JSON that is all
brackets, and more connections than there may be. Whoever asks for something gets it as if they were not there."""
import json
import os
import resource
import socket
import statistics
import threading
import time

import pytest

from conftest import BUILD, SLOW, manifest, wait_for
from test_admin import UnixConnection

CONNECTIONS, SENDERS, STREAMS = 1024, 500, 200
MiB = 1 << 20


@pytest.fixture(autouse=True)
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2,048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(d):
    return socket.create_connection(("127.0.0.1", d.port), timeout=30 * SLOW)


def post(path, body, more=b""):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (path, more, len(body)) + body


def read_all(s):
    got = b""
    try:
        while piece := s.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


class SlowSenders(threading.Thread):
    """A byte of a header every five seconds from each; whoever was cut off comes again."""

    def __init__(self, d, n):
        super().__init__(daemon=True)
        self.d, self.over, self.cut, self.refused = d, threading.Event(), 0, set()
        self.sockets = [self.begin() for _ in range(n)]

    def begin(self):
        s = dial(self.d)
        s.setblocking(False)
        s.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        return s

    def run(self):
        while not self.over.is_set():
            for i, s in enumerate(self.sockets):
                try:
                    s.send(b"a")
                    answer = s.recv(4096)
                    self.refused.add(answer.split(b"\r\n")[0])
                    raise ConnectionResetError
                except BlockingIOError:
                    continue
                except OSError:
                    s.close()
                    self.cut += 1
                    self.sockets[i] = self.begin()
            self.over.wait(5)

    def stop(self):
        self.over.set()
        self.join()
        for s in self.sockets:
            s.close()


class Uploads(threading.Thread):
    """One upload of a gigabyte in chunks after the other. The client reads its answer only when it cannot send on."""

    def __init__(self, d):
        super().__init__(daemon=True)
        self.d, self.over, self.answers, self.sent = d, threading.Event(), [], []

    def run(self):
        chunk = b"100000\r\n" + b" " * MiB + b"\r\n"
        while not self.over.is_set():
            s, sent = dial(self.d), 0
            try:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
                while sent < 1024 * MiB:
                    s.sendall(chunk)
                    sent += MiB
            except OSError:
                pass
            self.answers.append(read_all(s))
            self.sent.append(sent)
            s.close()


def timed(what):
    t = time.monotonic()
    what()
    return time.monotonic() - t


def test_a_crowd_that_means_no_good_holds_nobody_up(models, scripts, start):
    d = start(manifest(("tiny", models["tiny"]), ("endless", scripts["small"], f"max_concurrent: 1\nqueue: {{ depth: {STREAMS}, timeout: 10min }}"),
                       server=f"limits: {{ connections: {CONNECTIONS}, header_time: 8s, body_idle: 8s }}\nsse_ping: 2s"), env={"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=16"})
    for _ in range(8):  # what a first request takes for good
        assert d.chat(max_tokens=8).status == 200
    assert d.post("/v1/chat/completions", b"[" * 100000).status == 400
    before = d.memory()
    senders, uploads, streams = SlowSenders(d, SENDERS), Uploads(d), []
    body = json.dumps({"model": "endless", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}).encode()
    for _ in range(STREAMS):
        s = dial(d)
        s.sendall(post(b"/v1/chat/completions", body))
        streams.append(s)
    for s in streams:
        assert s.recv(100).startswith(b"HTTP/1.1 200 "), "a stream that waits has its head"
    crowded = d.memory()
    senders.start()
    uploads.start()
    chats, healths, deeps, most = [], [], [], 0
    end = time.monotonic() + 16
    while time.monotonic() < end:
        chats.append(timed(lambda: d.chat(max_tokens=8).json["choices"][0]))
        for _ in range(5):
            healths.append(timed(lambda: d.get("/health")))
        deeps.append(timed(lambda: d.post("/v1/chat/completions", b"[" * 100000).error["message"]))
        most = max(most, d.memory())
        time.sleep(0.05)
    uploads.over.set()
    uploads.join()
    senders.stop()
    after = d.memory()

    def p95(x):
        return sorted(x)[int(len(x) * 0.95)] * 1000
    print(f"beside {SENDERS} slow senders ({senders.cut} cut), {STREAMS} streams, {len(uploads.answers)} uploads: chat p50 {statistics.median(chats) * 1000:.1f} p95 {p95(chats):.1f} "
          f"max {max(chats) * 1000:.1f} ms of {len(chats)}; /health p50 {statistics.median(healths) * 1000:.1f} p95 {p95(healths):.1f} ms of {len(healths)}; "
          f"100,000 brackets p50 {statistics.median(deeps) * 1000:.1f} ms; memory {before / MiB:.1f} MiB, crowded {crowded / MiB:.1f}, most {most / MiB:.1f}, after {after / MiB:.1f}")
    assert statistics.median(chats) < 1 * SLOW and statistics.median(healths) < 0.05 * SLOW
    assert senders.cut >= SENDERS and senders.refused <= {b"HTTP/1.1 408 Request Timeout"}, senders.refused
    assert uploads.answers and all(a.startswith(b"HTTP/1.1 413 ") and b'"body_too_large"' in a for a in uploads.answers), uploads.answers[:2]
    if BUILD.name != "tsan":  # whose threads take megabytes
        # 700 connections have a stack and a buffer each; above them, one body of 32 MiB at a time, and nothing that stays
        assert crowded - before < 700 * 64 * 1024 * SLOW
        assert most - crowded < 80 * MiB * SLOW and after - crowded < 24 * MiB * SLOW
    for s in streams:
        s.close()
    wait_for(lambda: d.idle("endless"), 10, "all streams are cancelled")
    assert d.chat(max_tokens=8).status == 200


def test_connections_past_the_limit_are_told_so_and_hang_nowhere(models, start):
    d = start(manifest(("tiny", models["tiny"]), server=f"limits: {{ connections: {CONNECTIONS}, header_time: {20 * SLOW}s }}"))
    held = [dial(d) for _ in range(CONNECTIONS)]
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for s in held[-10:]:
        s.sendall(request)
    assert all(s.recv(4096).startswith(b"HTTP/1.1 200 ") for s in held[-10:]), "as many as there may be"
    before, over = d.memory(), [dial(d) for _ in range(300)]
    t = time.monotonic()
    for s in over:
        try:
            s.sendall(request)
        except OSError:
            pass  # refused already
    answers = [read_all(s) for s in over]
    took = time.monotonic() - t
    for a in answers:
        assert a.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in a and b"\r\nConnection: close\r\n" in a and b'"code":"connection_limit"' in a, a[:300]
    print(f"300 over {CONNECTIONS} told within {took:.2f} s, {(d.memory() - before) / MiB:.1f} MiB more")
    assert took < 10 * SLOW
    c = UnixConnection(d.socket)  # whoever administers gets in all the same
    c.request("GET", "/admin/models")
    assert c.getresponse().status == 200
    for s in held + over:
        s.close()
    wait_for(lambda: d.get("/health").status == 200, 10, "room again")
