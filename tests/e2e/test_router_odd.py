"""`pantheon router` where something is wrong: refusals, keys, backends that misbehave, clients that do, and its own end."""
import concurrent.futures
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, SLOW, Stream, connection, manifest, wait_for
from router import Fake, Router, reply
from test_router import TEXT, body, route, serving, spoken, streamed, text_of  # noqa: F401 (fixtures)

CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}\n\n'
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(piece):
    return b"%x\r\n%s\r\n" % (len(piece), piece)


@pytest.fixture
def fake():
    made = []

    def go(answer, **kw):
        made.append(Fake(answer, **kw))
        return made[-1]

    yield go
    for f in made:
        f.close()


# --- whom a conversation belongs to ---


def test_a_conversation_stays_and_only_the_lost_ones_move(fake, route):
    def answer(s, head, data):
        s.sendall(reply(200, {"ok": True}))

    fakes = [fake(answer) for _ in range(3)]
    r = route(*fakes)

    def turn(k, n):
        """Who answers turn n of conversation k: told by its beginning (even) or its name (odd)."""
        asked = [len(f.asked) for f in fakes]
        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Conversation {k}"}] + [{"role": "user", "content": f"turn {i}"} for i in range(n)]
        headers = {"X-Session-Id": f"session-{k}"} if k % 4 == 1 else {}
        named = {"session_id": f"session-{k}"} if k % 4 == 3 else {}
        if k % 2:
            talk = talk[2:] or [{"role": "user", "content": "x"}]
        assert r.post("/v1/chat/completions", {"model": "m", "messages": talk, **named}, headers=headers).status == 200
        return next(i for i in range(3) if len(fakes[i].asked) > asked[i])

    homes = [turn(k, 0) for k in range(60)]
    assert min(homes.count(i) for i in range(3)) >= 4, homes
    for n in range(1, 10):
        assert [turn(k, n) for k in range(0, 60, 3)] == homes[::3], f"turn {n}"
    fakes[0].ready = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    wait_for(lambda: r.get("/health").json["backends_up"] == 2, 10)
    moved = [turn(k, 10) for k in range(60)]
    assert all(m == h for m, h in zip(moved, homes) if h != 0) and {m for m, h in zip(moved, homes) if h == 0} == {1, 2}
    fakes[0].ready = b"HTTP/1.1 200 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    wait_for(lambda: r.get("/health").json["backends_up"] == 3, 20)
    assert [turn(k, 11) for k in range(60)] == homes, "they come back with it"


# --- refusals ---


def test_a_refusal_goes_on_to_another_and_passes_when_nobody_takes_it(fake, route):
    busy = {"error": {"message": "busy", "type": "rate_limit_error", "param": None, "code": "queue_full"}}
    says = {"a": (429, 7), "b": (200, None)}

    def answerer(name):
        def answer(s, head, data):
            status, after = says[name]
            s.sendall(reply(status, busy if status != 200 else {"by": name}, *([f"Retry-After: {after}"] if after else []), "x-should-retry: true"))
        return answer

    a, b = fake(answerer("a")), fake(answerer("b"))
    r = route(a, b)
    for i in range(24):
        got = r.post("/v1/chat/completions", body(f"Question {i}"))
        assert (got.status, got.json) == (200, {"by": "b"})
    assert 0 < len(a.asked) < 24 and len(b.asked) == 24
    says["b"] = (503, 9)
    for i in range(4):
        got = r.post("/v1/chat/completions", body(f"Question {i}"))
        assert got.status in (429, 503) and got.headers["Retry-After"] == {429: "7", 503: "9"}[got.status] and got.headers["x-should-retry"] == "true"
        assert got.error["code"] == "queue_full"
    metrics = r.get("/metrics").body.decode()
    assert f'pantheon_router_backend_tries_total{{backend="http://127.0.0.1:{b.port}",outcome="refused"}} 4' in metrics
    assert f'pantheon_router_backend_retries_total{{backend="http://127.0.0.1:{a.port}"}}' in metrics


def test_a_full_queue_is_told_with_when_to_come_back(spoken, start, route):
    d = start(serving(("endless", spoken["endless"]), more="max_concurrent: 1\nmax_sessions: 1\nqueue: { depth: 1 }\nspeculation: off"))
    r = route(d)
    held = [Stream(r, "/v1/chat/completions", body(model="endless", stream=True)) for _ in range(1)]
    waits = connection(r.port)
    waits.request("POST", "/v1/chat/completions", json.dumps(body(model="endless")))
    wait_for(lambda: d.counters("endless")["queued"] == 1, 10)
    got = r.post("/v1/chat/completions", body(model="endless"))
    assert got.status == 429 and got.error["code"] == "queue_full" and int(got.headers["Retry-After"]) >= 1
    waits.close()
    held[0].close()


# --- keys ---


def test_keys_are_asked_as_the_server_asks_and_the_backends_get_their_own(spoken, start, route, tmp_path):
    keys, backend_keys, bearer = tmp_path / "keys", tmp_path / "backend_keys", tmp_path / "bearer"
    keys.write_text(f"one:{hashlib.sha256(b'client-key').hexdigest()} max_concurrent=1\n")
    backend_keys.write_text(f"router:{hashlib.sha256(b'backend-key').hexdigest()}\n")
    bearer.write_text("backend-key\n")
    for f in (keys, backend_keys, bearer):
        f.chmod(0o600)
    d = start(serving(("endless", spoken["endless"]), ("m", spoken["m"]), server=f'api_keys_file: {json.dumps(str(backend_keys))}'), wait=False)
    wait_for(lambda: d.log.count("event=ready"), 20)
    r = route(d, args=("--api-keys-file", keys, "--backend-key-file", bearer), wait=False)
    mine = {"Authorization": "Bearer client-key"}
    wait_for(lambda: r.get("/ready").status == 200, 20)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer backend-key"}):
        got = r.post("/v1/chat/completions", body(), headers=headers)
        assert got.status == 401 and got.error["code"] == "invalid_api_key" and got.headers["WWW-Authenticate"] == "Bearer"
        assert r.get("/v1/models", headers=headers).status == 401
        assert r.get("/", headers={**headers, "Accept": "text/html"}).status == 401, "a router has no page that would ask for the key"
    assert text_of(r.post("/v1/chat/completions", body(), headers=mine)) == TEXT
    assert r.get("/admin/models", headers=mine).status == 403
    held = connection(r.port)
    held.request("POST", "/v1/chat/completions", json.dumps(body(model="endless", stream=True)), mine)
    assert held.getresponse().status == 200
    got = r.post("/v1/chat/completions", body(), headers=mine)
    assert got.status == 429 and got.error["code"] == "key_limit"
    held.close()
    # without a key of its own it does not know what such a server has, and the client's passes
    open_r = route(d, wait=False)
    wait_for(lambda: open_r.get("/ready").status == 200, 20)
    assert open_r.get("/v1/models").json["data"] == []
    assert text_of(open_r.post("/v1/chat/completions", body(), headers={"Authorization": "Bearer backend-key"})) == TEXT
    assert open_r.post("/v1/chat/completions", body()).status == 401
    both = route(d, args=("--backend-key-file", bearer, "--pass-keys"))
    assert {m["id"] for m in both.get("/v1/models").json["data"]} == {"m", "endless"}
    assert both.post("/v1/chat/completions", body(), headers=mine).status == 401, "the client's key is what the server is asked with"
    assert text_of(both.post("/v1/chat/completions", body(), headers={"Authorization": "Bearer backend-key"})) == TEXT
    bearer.write_text("wrong-key\n")
    wrong = route(d, args=("--backend-key-file", bearer), wait=False)
    why = wait_for(lambda: next(iter(wrong.backends().values())).get("reason"), 10)
    assert "401" in why and "not one of this server's" in why


# --- backends that misbehave ---


def breaks(data):
    def answer(s, head, body):
        s.sendall(data)
    return answer


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BROKEN = {
    "garbage": (b"\x00\x01\x02 this is no HTTP\r\n\r\n", 502, "backend_failed"),
    "html": (b"<html><body>hello</body></html>", 502, "backend_failed"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-", 502, "backend_failed"),
    "a status that is none": (b"HTTP/1.1 abc OK\r\n\r\n", 502, "backend_failed"),
    "a huge head": (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(200)) + b"\r\n", 502, "backend_failed"),
    "one huge line": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 3000000, 502, "backend_failed"),
    "heads without end": (b"HTTP/1.1 100 Continue\r\n\r\n" * 20000, 502, "backend_failed"),
    "less than its length": (HEAD + b"Content-Length: 100\r\n\r\n{}", 502, "backend_failed"),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 7\r\n\r\n{}", 502, "backend_failed"),
    "a length that is none": (HEAD + b"Content-Length: -7\r\n\r\n{}", 502, "backend_failed"),
    "chunks without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", 502, "backend_failed"),
    "a broken chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", 502, "backend_failed"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_backend_that_breaks_the_rules_is_an_error_and_not_half_an_answer(fake, route, what):
    data, status, code = BROKEN[what]
    f = fake(breaks(data))
    r = route(f)
    got = r.post("/v1/chat/completions", body())
    assert got.status == status and got.error["code"] == code, got.json
    assert len(f.asked) == 1, "what began to answer is asked once"
    wait_for(lambda: r.backends()[f"http://127.0.0.1:{f.port}"]["downs"] == 1, 5)


def test_more_than_its_length_is_not_passed_on(fake, route):
    f = fake(breaks(HEAD + b"Content-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\nsmuggled"))
    r = route(f)
    assert [r.post("/v1/chat/completions", body()).body for _ in range(3)] == [b"{}"] * 3


def test_who_dies_before_it_answers_is_replaced_once(fake, route):
    dead = [fake(lambda s, head, data: None) for _ in range(3)]
    r = route(*dead)
    got = r.post("/v1/chat/completions", body())
    assert got.status == 502 and got.error["code"] == "backend_failed"
    assert sum(len(f.asked) for f in dead) == 2, "a request that kills its server kills two, not the fleet"
    good = fake(lambda s, head, data: s.sendall(reply(200, {"ok": True})))
    r = route(dead[0], good)
    for i in range(6):  # the first that belongs to the dead one finds out; it comes back by its probes
        assert r.post("/v1/chat/completions", body(f"Question {i}")).json == {"ok": True}


def test_who_dies_over_a_kept_connection_has_died_too(fake, route):
    def answer(i, s, data):
        if b"deadly" in data:
            fleet[i].close()
            return False
        s.sendall(reply(200, {"ok": True}))
        return True

    fleet = []
    for i in range(4):
        fleet.append(fake(lambda s, head, data, i=i: answer(i, s, data), keeps=True))
    r = route(*fleet)
    for i in range(40):
        assert r.post("/v1/chat/completions", body(f"Question {i}")).status == 200
    assert all(f.asked for f in fleet), "each has a connection that is kept"
    got = r.post("/v1/chat/completions", body("deadly"))
    assert got.status == 502 and got.error["code"] == "backend_failed", got.json
    assert sum("deadly" in data.decode() for f in fleet for _, data in f.asked) == 2, "that no new connection can be had does not mean that nothing was sent"


def test_streams_that_break_off_end_with_one_error_event(fake, route):
    half = CHUNK[:40]
    cases = {
        "between events": (EVENTS + chunked(CHUNK * 2), 2),
        "in an event": (EVENTS + chunked(CHUNK * 2 + half), 2),
        "in a chunk": (EVENTS + chunked(CHUNK * 3)[:-30], 2),
        "before the first": (EVENTS, 0),
        "a broken chunk": (EVENTS + chunked(CHUNK) + b"zz\r\n", 1),
    }
    now = {}
    f = fake(lambda s, head, data: s.sendall(now["data"]))
    r = route(f)
    for name, (data, n) in cases.items():
        now["data"] = data
        wait_for(lambda: r.get("/health").json["backends_up"] == 1, 20)
        s = Stream(r, "/v1/chat/completions", body(stream=True))
        text, error = streamed(s)
        assert (text, error["code"]) == ("x" * n, "backend_failed"), name
        assert s.response.read() == b"", "and nothing behind it"
    now["data"] = EVENTS + chunked(CHUNK + b"data: [DONE]\n\n")  # all was said: it is no failure that the connection broke then
    wait_for(lambda: r.get("/health").json["backends_up"] == 1, 20)
    assert streamed(Stream(r, "/v1/chat/completions", body(stream=True))) == ("x", None)


def test_a_large_answer_that_breaks_off_is_cut_and_not_taken_for_whole(fake, route):
    large = b'"' + b"x" * (3 << 20) + b'"'
    now = {"data": HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(large), large)}
    f = fake(lambda s, head, data: s.sendall(now["data"]))
    r = route(f)
    assert r.post("/v1/chat/completions", body()).body == large
    now["data"] = now["data"][:-100]
    with pytest.raises(http.client.IncompleteRead):
        r.post("/v1/chat/completions", body())


def test_timeouts_have_names(fake, route):
    def slow(s, head, data):
        if b'"stream"' in data:
            s.sendall(EVENTS + chunked(CHUNK))
        time.sleep(8)

    f = fake(slow)
    r = route(f, args=("--head-timeout", 1, "--idle-timeout", 1))
    begin = time.monotonic()
    got = r.post("/v1/chat/completions", body())
    assert got.status == 504 and got.error["code"] == "backend_timeout" and "--head-timeout" in got.error["message"]
    assert streamed(Stream(r, "/v1/chat/completions", body(stream=True)))[1]["code"] == "backend_timeout"
    assert time.monotonic() - begin < 6 * SLOW and len(f.asked) == 2, "and neither is asked again"
    assert r.get("/health").json["backends_up"] == 1, "a slow answer is no death"


def test_a_drip_is_passed_on_as_it_comes(fake, route):
    def drip(s, head, data):
        s.sendall(EVENTS)
        for i in range(len(CHUNK) * 2):
            s.sendall(chunked(CHUNK[i % len(CHUNK):i % len(CHUNK) + 1]))
        s.sendall(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    r = route(fake(drip))
    assert streamed(Stream(r, "/v1/chat/completions", body(stream=True))) == ("xx", None)


def test_a_client_that_does_not_read_holds_its_backend_and_no_memory(fake, route):
    sent = []

    def flood(s, head, data):
        s.settimeout(60)
        s.sendall(EVENTS)
        piece = chunked(CHUNK * 400)
        for _ in range(2000):  # 130 MB
            s.sendall(piece)
            sent.append(len(piece))

    f = fake(flood)
    r = route(f)
    before = r.memory()
    s = socket.create_connection(("127.0.0.1", r.port))
    data = json.dumps(body(stream=True)).encode()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    wait_for(lambda: sent, 10)
    last = -1
    while last != len(sent):  # until it stands still
        last = len(sent)
        time.sleep(0.5)
    assert sum(sent) < 40 << 20, "the backend waits for the client"
    assert r.memory() - before < (8 << 20) * SLOW
    s.close()


# --- clients ---


def test_what_is_passed_on_is_what_came(fake, route):
    f = fake(lambda s, head, data: s.sendall(reply(200, {"ok": True}, "X-Custom: yes", "Connection: close, X-Secret", "X-Secret: no", "Access-Control-Allow-Origin: *")))
    r = route(f)
    data = '{ "model" : "m",\n "messages":[],  "unknown": [1, 2.50, "\\u00e4"] }'
    got = r.post("/v1/chat/completions?x=1&y=%20", data, headers={"X-Forwarded-For": "10.9.9.9", "X-Request-Id": "mine", "X-Session-Id": "s", "Connection": "keep-alive, X-Hop", "X-Hop": "1", "Authorization": "Bearer k",
                                                                 "Content-Type": "application/json; charset=utf-8"})
    head, passed = f.asked[0]
    assert passed.decode() == data
    lines = head.split("\r\n")
    assert lines[0] == "POST /v1/chat/completions?x=1&y=%20 HTTP/1.1"
    for line in ("X-Forwarded-For: 10.9.9.9, 127.0.0.1", "X-Request-Id: mine", "X-Session-Id: s", "Authorization: Bearer k", f"Host: 127.0.0.1:{f.port}", "Content-Type: application/json; charset=utf-8"):
        assert line in lines, (line, lines)
    assert "X-Hop" not in head
    assert got.headers["X-Custom"] == "yes" and "X-Secret" not in got.headers and "Access-Control-Allow-Origin" not in got.headers


def test_hostile_clients_get_what_the_server_gives_them(fake, route):
    f = fake(lambda s, head, data: s.sendall(reply(200, {"ok": True})))
    r = route(f, args=("--max-body", 1))
    for data, status in ((b"GARBAGE\r\n\r\n", 400), (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
                         (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
                         (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431), (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
                         (b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403)):
        got = r.raw(data)
        assert got.split(b" ")[1] == str(status).encode(), (data[:60], got[:200])
    deep = '{"model":"m","x":' + "[" * 100000
    for data, status in (("{", 400), ("[]", 400), ('{"model":7}', 400), ("", 400), (deep, 400), ('{"model":"m","model":"n"}', 400), (b"\xff\xfe", 400), ('{"model":"m","x":"' + "y" * (2 << 20) + '"}', 413)):
        got = r.post("/v1/chat/completions", data)
        assert got.status == status and got.error["type"] == "invalid_request_error", (data[:40], got.json)
    assert f.asked == []
    idle = [socket.create_connection(("127.0.0.1", r.port)) for _ in range(100)]
    for s in idle[::2]:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: local")
    begin = time.monotonic()
    assert r.post("/v1/chat/completions", body()).json == {"ok": True}
    assert time.monotonic() - begin < 5
    for s in idle:
        s.close()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert {x.status for x in pool.map(lambda i: r.post("/v1/chat/completions", body(f"Q{i}")), range(200))} == {200}


# --- where backends are ---


def test_backends_over_tls_and_unix_sockets(spoken, start, route, tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(tmp_path / "cert"))
    over_tls = start(serving(("m", spoken["m"]), server=f"tls: {{ cert: {json.dumps(str(tmp_path / 'cert'))}, key: {json.dumps(str(tmp_path / 'key'))} }}"), tls=context)
    over_unix = start(serving(("fast", spoken["fast"])).replace('"127.0.0.1:PORT"', '"127.0.0.1:PORT", "unix:' + str(tmp_path / "sock") + '"'))
    r = route(f"https://127.0.0.1:{over_tls.port}", f"unix:{tmp_path / 'sock'}", env={"SSL_CERT_FILE": str(tmp_path / "cert")},
              args=("--tls-cert", tmp_path / "cert", "--tls-key", tmp_path / "key"), tls=context)
    assert text_of(r.post("/v1/chat/completions", body(model="m"))) == TEXT
    assert text_of(r.post("/v1/chat/completions", body(model="fast"))) == TEXT
    assert streamed(Stream(r, "/v1/chat/completions", body(model="m", stream=True))) == (TEXT, None)
    assert over_unix.counters("fast")["requests"] >= 1
    stranger = route(f"https://127.0.0.1:{over_tls.port}", wait=False)
    why = wait_for(lambda: next(iter(stranger.backends().values())).get("reason"), 10)
    assert "certificate" in why.lower()


# --- its own end ---


def test_it_drains_and_ends_what_is_left_with_an_error(spoken, start, route):
    d = start(serving(("endless", spoken["endless"]), ("m", spoken["m"])))
    r = route(d, args=("--drain", 2))
    s = Stream(r, "/v1/chat/completions", body(model="endless", stream=True))
    next(e for e in s.events() if isinstance(e, dict))
    r.signal(signal.SIGTERM)
    wait_for(lambda: r.get("/ready").status == 503, 5)
    got = r.post("/v1/chat/completions", body())
    assert got.status == 503 and got.error["code"] == "draining" and got.headers["Retry-After"]
    text, error = streamed(s)
    assert error["code"] == "draining" and text
    assert r.wait(20) == 0
    wait_for(lambda: d.idle("endless"), 5, "and its backend is let go")


def test_a_server_that_stops_is_left_before_it_refuses_anybody(spoken, start, route):
    a, b = start(serving(("m", spoken["m"]))), start(serving(("m", spoken["m"])))
    r = route(a, b)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(lambda i=i: r.post("/v1/chat/completions", body(f"Question {i}"))) for i in range(200)]
        wait_for(lambda: sum(j.done() for j in jobs) > 40, 60)
        a.signal(signal.SIGTERM)
        assert all(text_of(j.result()) == TEXT for j in jobs), "a rolling restart is nobody's error"
    assert a.wait(30) == 0


# --- the command line ---


@pytest.mark.parametrize("flags, why", [
    ((), "which servers?"), (("--backend", "10.0.0.1:80"), "http://HOST:PORT"), (("--backend", "http://x/v1"), "ends with the port"), (("--backend", "http://x", "--port", "70000"), "must be a number"),
    (("--backend", "http://x", "--backend-key-file", "/nonexistent"), "/nonexistent"), (("--backend", "http://x", "--log-format", "xml"), "text or json"),
    (("--backend", "http://x", "--backend", "http://X/"), "twice"), (("--backend", "http://x", "--host", "0.0.0.0"), "nothing protects"), (("--backend", "http://x", "--tls-cert", "c"), "key"), (("--backend", "http://x", "--model", "m"), "no such option"),
])
def test_mistakes_of_usage_are_said(flags, why):
    p = subprocess.run([str(BUILD / "pantheon-cpu"), "router", *flags], capture_output=True, text=True, timeout=20 * SLOW, cwd=ROOT)
    assert p.returncode == 64 and why in p.stderr, p.stderr


def test_a_key_that_everybody_may_read_is_refused(tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-x\n")
    key.chmod(0o644)
    p = subprocess.run([str(BUILD / "pantheon-cpu"), "router", "--backend", "http://x", "--backend-key-file", str(key)], capture_output=True, text=True, timeout=20 * SLOW, cwd=ROOT)
    assert p.returncode == 64 and "mode 0644" in p.stderr and "sk-x" not in p.stderr


def test_an_address_in_use_is_said(fake, route):
    r = route(fake(lambda s, head, data: None))
    p = subprocess.run([str(BUILD / "pantheon-cpu"), "router", "--backend", "http://x", "--port", str(r.port)], capture_output=True, text=True, timeout=20 * SLOW, cwd=ROOT)
    assert p.returncode == 1 and "in use" in p.stderr, p.stderr
