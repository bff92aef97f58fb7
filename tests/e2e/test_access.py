"""Who may use the server: keys with the official client, their rotation under load, hosts, origins, and the log."""
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest
from openai import AuthenticationError, OpenAI, PermissionDeniedError, RateLimitError

from conftest import BUILD, ROOT, SLOW, Stream, free_port, manifest, wait_for
from test_admin import UnixConnection

SECRET, ROOT_KEY = "sk-" + "a1" * 24, "sk-" + "b2" * 24


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def line(name, key, words=""):
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()} {words}\n"


def client(d, key="any", **kw):
    return OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key=key, max_retries=0, **kw)


def ask(d, key, **kw):
    return client(d, key).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=2, **kw)


def put(path, text):
    """As an editor does: a new file under the old name."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(path)


def admin(d, path="/admin/models", method="GET"):
    c = UnixConnection(d.socket)
    c.request(method, path)
    return json.loads(c.getresponse().read())


def keys_valid(d):
    c = next(c for c in admin(d)["conditions"] if c["type"] == "KeysValid")
    return c["status"], c["reason"], c["message"]


def access_lines(d, path):
    return [x for x in d.log.splitlines() if "area=http event=" in x and f'path="{path}"' in x]


@pytest.fixture
def keyed(models, start, tmp_path):
    """A daemon with two keys: alice's, one request at a time, and root's, which may administer."""
    file = tmp_path / "keys"
    put(file, "# who may\n\n" + line("alice", SECRET, "max_concurrent=1") + line("root", ROOT_KEY, "admin"))
    d = start(manifest(("tiny", models["tiny"]), ("slow", models["slow"], "max_concurrent: 4"), server=f"api_keys_file: {file}"), wait=False)
    d.wait_listening()
    d.keys = file
    wait_for(lambda: d.get("/ready").status == 200 and all(m["status"] == "ready" for m in admin(d)["models"]), 60)
    return d


def test_pain_50_a_key_is_needed_and_the_official_client_knows_why(keyed):
    d = keyed
    assert ask(d, SECRET).choices[0].finish_reason
    assert [m.id for m in client(d, SECRET).models.list()] == ["tiny", "slow"]
    for key in ("wrong", SECRET + "x", SECRET[:-1], SECRET.upper(), hashlib.sha256(SECRET.encode()).hexdigest()):
        with pytest.raises(AuthenticationError) as e:
            ask(d, key)
        assert e.value.code == "invalid_api_key" and e.value.type == "invalid_request_error" and e.value.status_code == 401
    for path in ("/", "/v1/models", "/v1/models/tiny", "/tokenize", "/metrics", "/admin/models", "/nothing"):
        r = d.get(path)
        assert r.status == 401 and r.error["code"] == "invalid_api_key" and r.headers["www-authenticate"] == "Bearer", path
    assert d.get("/health").status == 200 and d.request("HEAD", "/ready").status == 200
    assert d.post("/v1/chat/completions", {"model": "tiny"}).status == 401
    assert d.get("/v1/models", headers={"Authorization": f"bearer {SECRET}"}).status == 200
    assert d.get("/v1/models", headers={"Authorization": f"Basic {SECRET}"}).status == 401


def test_administration_needs_a_key_that_may_or_the_socket(keyed):
    d = keyed
    r = d.get("/admin/models", headers=bearer(SECRET))
    assert r.status == 403 and r.error["code"] == "admin_forbidden"
    assert d.get("/admin/models", headers={**bearer(ROOT_KEY), "X-Forwarded-For": "1.2.3.4"}).status == 200
    assert d.request("POST", "/admin/reconcile?wait=1", headers=bearer(ROOT_KEY)).status == 200
    assert [m["name"] for m in admin(d)["models"]] == ["tiny", "slow"]
    p = subprocess.run([str(BUILD / "pantheon-reconcile"), "--socket", d.socket, "--status", str(d.manifest)], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert p.returncode == 0 and "KeysValid=True (Accepted)" in p.stdout, p.stdout
    for key, rc in ((ROOT_KEY, 0), (SECRET, 1), ("", 1)):
        p = subprocess.run([str(BUILD / "pantheon-reconcile"), "--url", f"http://127.0.0.1:{d.port}", "--reload", "--wait", str(d.manifest)], capture_output=True, text=True, timeout=60, cwd=ROOT,
                           env={**os.environ, "PANTHEON_API_KEY": key})
        assert p.returncode == rc and ("status 40" in p.stderr) == (rc == 1), (key, p)


def test_a_key_has_its_own_number_of_requests(keyed):
    d = keyed
    body = {"model": "slow", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 4000, "ignore_eos": True}
    conn = socket.create_connection(("127.0.0.1", d.port), timeout=30 * SLOW)
    data = json.dumps(body).encode()
    conn.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (SECRET.encode(), len(data)) + data)
    assert conn.recv(100).startswith(b"HTTP/1.1 200")
    with pytest.raises(RateLimitError) as e:
        ask(d, SECRET)
    assert e.value.code == "key_limit" and int(e.value.response.headers["retry-after"]) >= 1 and "alice" in str(e.value)
    assert "context" not in e.value.message and "too many tokens" not in e.value.message
    assert ask(d, ROOT_KEY).choices and client(d, SECRET).models.list().data, "another key, and what needs no model"
    conn.close()
    wait_for(lambda: d.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, headers=bearer(SECRET)).status == 200, 10,
             "a client that left gives its place back")


def test_keys_are_changed_under_load_and_nobody_else_notices(keyed):
    d = keyed
    stop, wrong, done = threading.Event(), [], [0]

    def hammer():
        while not stop.is_set():
            r = d.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, headers=bearer(ROOT_KEY))
            done[0] += 1
            if r.status != 200:
                wrong.append((r.status, r.body))

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        new = "sk-" + "c3" * 24
        put(d.keys, line("root", ROOT_KEY, "admin") + line("carol", new))
        wait_for(lambda: d.get("/v1/models", headers=bearer(new)).status == 200, 5, "found without being told")
        assert d.get("/v1/models", headers=bearer(SECRET)).status == 401, "and what was taken out is no key any more"
        for broken in ("", "root\n", line("root", ROOT_KEY) + line("root", new), line("x", "") + "\n", "\0", "root:" + ROOT_KEY + "\n", "a:b " * 300_000):
            put(d.keys, broken)
            wait_for(lambda: keys_valid(d)[0] == "False", 5)
            status, reason, message = keys_valid(d)
            assert reason == "Refused" and message.startswith(str(d.keys)) and "the keys before stay in force" in message and ROOT_KEY not in message, message
            assert d.get("/v1/models", headers=bearer(new)).status == 200
            put(d.keys, line("root", ROOT_KEY, "admin") + line("carol", new))
            wait_for(lambda: keys_valid(d)[0] == "True", 5)
        os.unlink(d.keys)
        wait_for(lambda: keys_valid(d)[0] == "False" and "No such file" in keys_valid(d)[2], 5)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert done[0] > 10 and not wrong, wrong[:3]
    assert "event=keys_refused" in d.log and ROOT_KEY not in d.log and SECRET not in d.log, "no key stands in the log"


def test_keys_come_and_go_with_the_manifest(models, start, tmp_path):
    d = start(manifest(("tiny", models["tiny"])))
    assert ask(d, "anything").choices and keys_valid(d)[:2] == ("True", "NotConfigured")
    file = tmp_path / "keys"
    d.write(manifest(("tiny", models["tiny"]), server=f"api_keys_file: {file}"))
    admin(d, "/admin/reconcile?wait=1", "POST")
    r = d.post("/v1/completions", {"model": "tiny", "prompt": "a"}, headers=bearer(SECRET))
    assert r.status == 503 and r.error["code"] == "keys_unavailable" and int(r.headers["retry-after"]) <= 120, "a file that is not there lets nobody in"
    put(file, line("alice", SECRET))
    file.chmod(0o644)
    d.signal(signal.SIGHUP)
    wait_for(lambda: d.get("/v1/models", headers=bearer(SECRET)).status == 200, 5)
    wait_for(lambda: "chmod 600" in keys_valid(d)[2], 5)
    assert re.search(r"level=warn area=reconcile event=keys_exposed", d.log)
    d.write(manifest(("tiny", models["tiny"])))
    admin(d, "/admin/reconcile?wait=1", "POST")
    assert d.get("/v1/models").status == 200 and keys_valid(d)[1] == "NotConfigured"


def test_off_loopback_keys_are_protection_enough(models, start, tmp_path):
    put(tmp_path / "keys", line("alice", SECRET))
    d = start(manifest(("tiny", models["tiny"]), server=f"api_keys_file: {tmp_path}/keys").replace("127.0.0.1", "0.0.0.0"), wait=False)
    d.wait_listening()
    assert d.get("/v1/models", headers=bearer(SECRET)).status == 200 and d.get("/v1/models").status == 401


def test_pantheon_serve_takes_keys_and_json(models, tmp_path):
    put(tmp_path / "keys", line("alice", SECRET))
    port = free_port()
    p = subprocess.Popen([str(BUILD / "pantheon-cpu"), "serve", "--port", str(port), "--model", str(models["tiny"]), "--api-keys-file", str(tmp_path / "keys"), "--log-format", "json"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "STATE_DIRECTORY": str(tmp_path)}, cwd=ROOT)
    try:
        class At:
            pass
        d = At()
        d.port = port

        def served():
            try:
                return client(d, SECRET).models.list().data
            except Exception:
                assert p.poll() is None
                return None
        wait_for(served, 20)
        with pytest.raises(AuthenticationError):
            client(d, "wrong").models.list()
    finally:
        p.terminate()
        _, err = p.communicate(timeout=20 * SLOW)
    lines = [json.loads(x) for x in err.splitlines()]
    assert any(x["event"] == "answered" and x["key"] == "alice" and x["status"] == 200 for x in lines) and any(x.get("code") == "invalid_api_key" for x in lines), lines


# --- hosts and origins ---


def test_pain_50_no_page_reaches_the_server_under_its_own_name(models, start):
    d = start(manifest(("tiny", models["tiny"]), server='allowed_hosts: [ api.example.org ]'))
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "api.example.org", "API.EXAMPLE.ORG:443"):
        assert d.get("/v1/models", headers={"Host": host}).status == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "api.example.org.evil.example", "10.0.0.1", "0.0.0.0", ""):
        for path in ("/v1/models", "/", "/health"):
            r = d.get(path, headers={"Host": host})
            assert r.status == 403 and r.error["code"] == "host_not_allowed" and r.error["type"] == "permission_error", (host, path)
    with pytest.raises(PermissionDeniedError):
        client(d, default_headers={"Host": "evil.example"}).models.list()
    r = d.raw(b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert r.startswith(b"HTTP/1.1 403 ")
    assert d.raw(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "), "a probe that names no host is no browser"
    c = UnixConnection(d.socket)
    c.request("GET", "/v1/models", headers={"Host": "evil.example"})
    assert c.getresponse().status == 200
    d.write(manifest(("tiny", models["tiny"]), server='allowed_hosts: [ "*" ]'))
    admin(d, "/admin/reconcile?wait=1", "POST")
    assert d.get("/v1/models", headers={"Host": "evil.example"}).status == 200


def test_the_address_that_was_asked_at_is_the_servers_name(models, start):
    """Every address of 127/8 is loopback; what a wildcard is reached at elsewhere needs another address of this machine."""
    own = next((a[4][0] for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET) if not a[4][0].startswith("127.")), None)
    if not own:
        pytest.skip("this machine has no address but loopback")
    d = start(manifest(("tiny", models["tiny"]), server="insecure: true").replace("127.0.0.1", "0.0.0.0"))
    request = b"GET /v1/models HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n"
    assert d.raw(request % (own.encode(), d.port), host=own).startswith(b"HTTP/1.1 200 ")
    assert d.raw(request % (b"evil.example", d.port), host=own).startswith(b"HTTP/1.1 403 ")
    assert d.raw(request % (own.encode(), d.port)).startswith(b"HTTP/1.1 403 "), "on another address it is another's"
    assert d.raw(request.replace(b"/v1", b"/admin") % (own.encode(), d.port), host=own).startswith(b"HTTP/1.1 403 "), "and administration is for loopback"


CORS = re.compile("access-control", re.I)


def cors(headers):
    return [k for k in headers.keys() if CORS.match(k)]


def test_pain_50_no_origin_is_told_anything_unless_it_is_listed(models, start):
    d = start(manifest(("tiny", models["tiny"])))
    evil = {"Origin": "https://evil"}
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang"}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    for r in (d.get("/v1/models", headers=evil), d.get("/health", headers=evil), d.request("OPTIONS", "/v1/chat/completions", headers={**evil, **preflight})):
        assert r.status in (200, 204) and not cors(r.headers) and "vary" not in r.headers
    r = d.post("/v1/chat/completions", chat, headers={**evil, "Content-Type": "text/plain"})
    assert r.status == 403 and r.error["code"] == "origin_not_allowed" and not cors(r.headers), "what a browser sends without asking costs nothing"
    assert d.post("/v1/chat/completions", chat, headers={"Origin": f"http://127.0.0.1:{d.port}"}).status == 200, "a page of our own"
    d.write(manifest(("tiny", models["tiny"]), server='cors_origins: [ "https://app.example.org", "http://localhost:3000" ]'))
    admin(d, "/admin/reconcile?wait=1", "POST")
    for origin in ("https://app.example.org", "http://localhost:3000"):
        r = d.request("OPTIONS", "/v1/chat/completions", headers={"Origin": origin, **preflight})
        assert r.status == 204 and r.headers["access-control-allow-origin"] == origin and "POST" in r.headers["access-control-allow-methods"] and r.headers["vary"] == "Origin"
        assert r.headers["access-control-allow-headers"] == preflight["Access-Control-Request-Headers"]
        r = d.post("/v1/chat/completions", chat, headers={"Origin": origin})
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin and "x-request-id" in r.headers["access-control-expose-headers"].lower()
        assert "access-control-allow-credentials" not in r.headers
        r = d.post("/v1/chat/completions", {"model": "none"}, headers={"Origin": origin})
        assert r.status >= 400 and r.headers["access-control-allow-origin"] == origin, "a page reads its errors"
    stream = Stream(d, "/v1/chat/completions", {**chat, "stream": True})
    assert stream.status == 200 and stream.headers["vary"] == "Origin" and not cors(stream.headers)
    stream.close()
    for origin in ("https://evil", "https://app.example.org.evil", "https://app.example.org:444", "http://app.example.org", "null"):
        r = d.get("/v1/models", headers={"Origin": origin})
        assert r.status == 200 and not cors(r.headers) and r.headers["vary"] == "Origin"
        assert not cors(d.request("OPTIONS", "/v1/models", headers={"Origin": origin, **preflight}).headers)
    r = d.get("/admin/models", headers={"Origin": "https://app.example.org"})
    assert r.status == 403 and not cors(r.headers), "administration is for no page"


# --- the log ---


def test_each_request_has_one_line_and_no_prompt_in_it(models, start):
    d = start(manifest(("tiny", models["tiny"])))
    secret = "the-prompt-nobody-may-read"
    a = d.chat(secret, max_tokens=3)
    usage = a.json["usage"]
    refused = d.chat(secret, model="none")
    d.get("/v1/models?key=" + secret)
    stream = d.stream(secret, max_tokens=3)
    stream.chunks()
    stream.close()
    wait_for(lambda: len(access_lines(d, "/v1/chat/completions")) == 3 and access_lines(d, "/v1/models"), 5)

    def line_of(answer):  # lines are written by the requests' own threads: in any order
        (own,) = [x for x in d.log.splitlines() if answer.headers["x-request-id"] in x]
        return own
    want = (rf'event=answered request={a.headers["x-request-id"]} client="127\.0\.0\.1" method="POST" path="/v1/chat/completions" status=200 model="tiny" stream=0 '
            rf'prompt_tokens={usage["prompt_tokens"]} completion_tokens={usage["completion_tokens"]} queue_ms=\d+ prefill_ms=\d+ decode_ms=\d+ kv_need=\d+ kv_have=\d+ ms=\d+$')
    assert re.search(want, line_of(a)), line_of(a)
    assert "event=refused " in line_of(refused) and " status=404 code=model_not_found ms=" in line_of(refused) and " stream=1 " in line_of(stream), d.log
    assert len(access_lines(d, "/v1/models")) == 1 and secret not in d.log


def test_the_log_as_json(models, start):
    d = start(manifest(("tiny", models["tiny"])), args=("--log-format", "json"))
    r = d.chat("Hi", max_tokens=2)
    d.get('/v1/models/%22x%22%20y=1')
    d.get('/v1/models/"status":200')
    lines = wait_for(lambda: (got := [json.loads(x) for x in d.log.splitlines()]) and sum("request" in x and x["path"].startswith("/v1/") for x in got) == 3 and got, 5)
    mine = [x for x in lines if x.get("request") == r.headers["x-request-id"]]
    assert len(mine) == 1 and mine[0]["event"] == "answered" and mine[0]["status"] == 200 and mine[0]["completion_tokens"] == r.json["usage"]["completion_tokens"]
    assert all(isinstance(x["time"], str) and x["level"] in ("info", "warn", "debug", "error") and x["area"] for x in lines)
    assert {x["path"] for x in lines if x.get("path", "").startswith("/v1/models/")} == {"/v1/models/%22x%22%20y=1", '/v1/models/"status":200'}
    p = subprocess.run([str(BUILD / "pantheond"), "--log-format", "xml"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert p.returncode == 64 and "text or json" in p.stderr
