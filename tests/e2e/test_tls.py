"""TLS: clients over it, what is refused, what hangs nothing, and certificates that change while the daemon runs."""
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from openai import APIConnectionError, DefaultHttpxClient, OpenAI

from conftest import BUILD, ROOT, SLOW, Stream, free_port, manifest, wait_for
from test_admin import UnixConnection
from world import condition

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def openssl(*args):
    return subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=60)


class Pair:
    """A certificate for 127.0.0.1 that signs itself, and its key, as two files."""

    def __init__(self, folder, name="server", days=2):
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", days, "-subj", f"/CN={name}", "-addext",
                "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", self.key, "-out", self.cert)
        self.key.chmod(0o600)

    @property
    def lines(self):
        return f"tls: {{ cert: {self.cert}, key: {self.key} }}"

    @property
    def context(self):
        return ssl.create_default_context(cafile=str(self.cert))

    def put_over(self, other):
        """As a renewal does: new files under the other's names, the certificate first."""
        for mine, theirs in ((self.cert, other.cert), (self.key, other.key)):
            new = theirs.with_suffix(".new")
            new.write_bytes(mine.read_bytes())
            new.chmod(0o600)
            new.rename(theirs)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return [Pair(folder, "one"), Pair(folder, "two")]


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


@pytest.fixture(scope="module")
def secure(pairs, models, scripts, tmp_path_factory):
    """One daemon over TLS for the tests that only ask."""
    from conftest import Daemon
    d = Daemon(tmp_path_factory.mktemp("secure"), manifest(("tiny", models["tiny"]), ("endless", scripts["small"], "max_concurrent: 4"),
                                                           server=pairs[0].lines + "\nlimits: { header_time: 2s, body_idle: 2s, write_idle: 2s }"), tls=pairs[0].context)
    yield d
    d.stop()


def client(d, context=None, **kw):
    return OpenAI(base_url=f"https://127.0.0.1:{d.port}/v1", api_key="any", max_retries=0, http_client=DefaultHttpxClient(verify=context or d.tls, timeout=30 * SLOW), **kw)


def dial(d, context=None):
    s = socket.create_connection(("127.0.0.1", d.port), timeout=20 * SLOW)
    return (context or d.tls).wrap_socket(s, server_hostname="localhost")


def ask(s, data=GET):
    s.sendall(data)
    got = b""
    while piece := s.recv(65536):
        got += piece
    return got


def served(d):
    """The certificate that a new connection sees."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with dial(d, context) as s:
        return s.getpeercert(binary_form=True)


def client_hello(d):
    out = ssl.MemoryBIO()
    obj = d.tls.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        obj.do_handshake()
    return out.read()


def der(p):
    return ssl.PEM_cert_to_DER_cert(p.cert.read_text())


def tls_valid(d):
    c = UnixConnection(d.socket)
    c.request("GET", "/admin/models")
    c = condition(json.loads(c.getresponse().read()), "TlsValid")
    return {**c, "status": c["status"] == "True"}


def test_the_official_client_talks_and_streams_over_tls(secure):
    c = client(secure)
    assert [m.id for m in c.models.list()] == ["tiny", "endless"]
    whole = c.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=20, temperature=0)
    stream = c.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=20, temperature=0, stream=True)
    assert "".join(x.choices[0].delta.content or "" for x in stream) == whole.choices[0].message.content
    big = "a" * (1 << 20)  # a body of many records, and an error behind it
    assert secure.chat(big).error["code"] == "context_length_exceeded"
    with pytest.raises(APIConnectionError):
        client(secure, ssl.create_default_context()).models.list()


def test_a_client_that_leaves_cancels_its_request(secure):
    d = secure
    for leave in ("close", "half", "goodbye"):
        stream = Stream(d, "/v1/chat/completions", {"model": "endless", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000})
        assert stream.status == 200 and next(stream.events())
        assert not d.idle("endless")
        raw = stream.sock
        if leave == "half":
            raw.shutdown(socket.SHUT_WR)
        elif leave == "goodbye":  # TLS's own, with the connection left open
            raw.settimeout(0.2)
            try:
                raw.unwrap()
            except (OSError, ValueError):
                pass
        else:
            stream.close()
            raw.close()
        wait_for(lambda: d.idle("endless"), 5, leave)
        stream.close()


def test_bytes_of_the_next_request_survive_the_look_for_the_client(secure):
    body = json.dumps({"model": "endless", "messages": [{"role": "user", "content": "a"}], "max_tokens": 200}).encode()
    first = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with dial(secure) as s:
        s.sendall(first + first)  # in one record: what is left of it waits inside TLS
        s.sendall(GET)
        got = ask(s, b"")
    assert got.count(b"HTTP/1.1 200 OK") == 3 and got.count(b'"chat.completion"') == 2, got[:2000]


def test_plain_http_to_a_tls_port_is_told_so(secure):
    for data in (GET, GET.replace(b"GET", b"POST"), b"\r\n" + GET, b"OPTIONS * HTTP/1.0\r\n\r\n"):
        a = secure.raw(data)
        assert a.startswith(b"HTTP/1.1 400 ") and b"\r\nContent-Type: application/json\r\n" in a and b"\r\nConnection: close\r\n" in a, a
        e = json.loads(a.partition(b"\r\n\r\n")[2])["error"]
        assert e["code"] == "tls_required" and "https://" in e["message"]
    assert secure.raw(b"\x00\x01\x02nonsense" * 10)[:1] in (b"", b"\x15"), "an alert, or nothing"


def test_slow_handshakes_are_bounded_and_hold_nobody_up(secure):
    d, hello = secure, client_hello(secure)
    slow = []
    for part in (0, 1, 5, len(hello) // 2, len(hello)):
        for _ in range(20):
            s = socket.create_connection(("127.0.0.1", d.port), timeout=20 * SLOW)
            s.sendall(hello[:part])
            slow.append(s)
    t = time.monotonic()
    assert d.get("/health").status == 200 and d.chat(max_tokens=2).status == 200
    assert time.monotonic() - t < 1 * SLOW
    for s in slow:
        while s.recv(65536):
            pass
        s.close()
    assert time.monotonic() - t < 8 * SLOW, "the deadline of a header counts from the first byte of the handshake"
    with dial(d) as s:  # a handshake, and then silence
        t = time.monotonic()
        assert s.recv(1) == b"" and time.monotonic() - t < 6 * SLOW


def test_broken_handshakes_harm_nothing(secure):
    rng, hello = random.Random(7), client_hello(secure)
    for _ in range(300):
        data = bytearray(hello)
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            at = rng.randrange(len(data))
            data[at:at + rng.choice((0, 1, 1, 1, 5))] = rng.randbytes(rng.choice((0, 1, 1, 1, 9)))
        with socket.create_connection(("127.0.0.1", secure.port), timeout=20 * SLOW) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not s.recv(65536):
                        break
                except ConnectionResetError:
                    break
    assert secure.chat(max_tokens=2).status == 200


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
def test_old_versions_and_foreign_protocols_are_refused(secure):
    d = secure
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        dial(d, context)
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        context = ssl.create_default_context(cafile=None)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with dial(d, context) as s:
            assert s.version() == name and s.selected_alpn_protocol() == "http/1.1"
            assert ask(s).startswith(b"HTTP/1.1 200 ")
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError):
        with dial(d, context) as s:
            s.recv(1)


def test_a_reader_that_does_not_read_is_given_up(secure):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(20 * SLOW)
    s.connect(("127.0.0.1", secure.port))
    s = secure.tls.wrap_socket(s, server_hostname="localhost")
    body = json.dumps({"model": "endless", "prompt": "a", "stream": True, "max_tokens": 4000}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: not secure.idle("endless"), 5)
    wait_for(lambda: secure.idle("endless"), 30, "the write deadline")
    s.close()


def test_idle_connections_over_tls_are_cheap(pairs, models, start):
    d = start(manifest(("tiny", models["tiny"]), server=pairs[0].lines), tls=pairs[0].context)
    keep = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def crowd(n):
        out = []
        for _ in range(n):
            s = dial(d)
            s.sendall(keep)
            assert s.recv(65536).startswith(b"HTTP/1.1 200")
            out.append(s)
        return out

    warm = crowd(20)
    before = d.memory()
    more = crowd(200)
    each = (d.memory() - before) / 200
    print(f"{each / 1024:.1f} KiB for an idle connection over TLS")
    assert SLOW > 1 or each < 100 * 1024, "a thread of a sanitizer's costs more"
    for s in warm + more:
        s.close()


def test_over_the_cap_a_client_is_told_under_tls_too(pairs, models, start):
    d = start(manifest(("tiny", models["tiny"]), server=pairs[0].lines + "\nlimits: { connections: 2 }"), tls=pairs[0].context)
    wait_for(lambda: http_connections(d) == 0, 5)
    held = [dial(d) for _ in range(2)]
    for s in held:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert s.recv(65536)
    r = d.get("/health")
    assert r.status == 503 and r.error["code"] == "connection_limit"
    for s in held:
        s.close()


def http_connections(d):
    c = UnixConnection(d.socket)
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    return next(float(x.split()[1]) for x in text.splitlines() if x.startswith("pantheon_http_connections "))


def test_a_plain_listener_and_the_sockets_stay_beside_tls(pairs, models, start, tmp_path):
    plain, path = free_port(), tmp_path / "api.sock"
    d = start(manifest(("tiny", models["tiny"]), server=pairs[0].lines).replace('"127.0.0.1:PORT"', f'"https://127.0.0.1:PORT", "http://127.0.0.1:{plain}", "unix:{path}"'), tls=pairs[0].context)
    assert d.get("/v1/models").status == 200 and d.get("/admin/models").status == 200
    c = http.client.HTTPConnection("127.0.0.1", plain, timeout=10)
    c.request("GET", "/v1/models")
    assert c.getresponse().status == 200
    c = UnixConnection(str(path))
    c.request("GET", "/v1/models")
    assert c.getresponse().status == 200
    p = subprocess.run([str(BUILD / "pantheon-reconcile"), "--socket", d.socket, "--status", str(d.manifest)], capture_output=True, text=True, timeout=60 * SLOW, cwd=ROOT)
    assert p.returncode == 0 and "TlsValid=True (Accepted)" in p.stdout, p.stdout
    for env, rc, says in (({}, 1, "SSL_CERT_FILE=FILE"), ({"SSL_CERT_FILE": str(pairs[0].cert)}, 0, "")):
        p = subprocess.run([str(BUILD / "pantheon-reconcile"), "--url", f"https://127.0.0.1:{d.port}", "--status", str(d.manifest)], capture_output=True, text=True, timeout=60 * SLOW, cwd=ROOT,
                           env={**os.environ, **env})
        assert p.returncode == rc and says in p.stderr, p


# --- certificates that cannot be used, and new ones ---


def test_a_start_without_a_good_certificate_says_what_to_do(models, start, pair, pairs, tmp_path):
    def fails(cert, key, *words):
        d = start(manifest(("tiny", models["tiny"]), server=f"tls: {{ cert: {cert}, key: {key} }}"), wait=False)
        assert d.wait(20) == 1, d.log
        assert "event=cannot_start" in d.log
        for w in words:
            assert str(w) in d.log, (w, d.log)

    nowhere, garbage, locked = tmp_path / "no.pem", tmp_path / "garbage.pem", tmp_path / "locked.key"
    garbage.write_text("hello")
    garbage.chmod(0o600)
    openssl("pkey", "-in", pair.key, "-aes256", "-passout", "pass:secret", "-out", locked)
    locked.chmod(0o600)
    fails(nowhere, pair.key, "server.tls.cert", nowhere, "No such file", "name another file")
    fails(pair.cert, nowhere, "server.tls.key", nowhere, "No such file")
    fails(garbage, pair.key, garbage, "no certificate in PEM form")
    fails(pair.cert, garbage, garbage, "no private key in PEM form")
    fails(pair.key, pair.key, "swapped")
    fails(pair.cert, pairs[1].key, pair.cert, pairs[1].key, "not the key of the certificate")
    fails(pair.cert, locked, locked, "openssl pkey")
    pair.cert.chmod(0o600)
    fails(pair.cert, pair.cert, "swapped")
    pair.key.chmod(0o644)
    fails(pair.cert, pair.key, "mode 0644", "chmod 640")
    pair.key.chmod(0o640)
    broken = tmp_path / "chain.pem"
    broken.write_text(pair.cert.read_text() + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    fails(broken, pair.key, broken, "behind its first certificate")
    chain = tmp_path / "fullchain.pem"
    chain.write_text(pair.cert.read_text() + pairs[1].cert.read_text())
    d = start(manifest(("tiny", models["tiny"]), server=f"tls: {{ cert: {chain}, key: {pair.key} }}"), tls=pair.context)
    assert d.get("/health").status == 200


def test_a_renewed_certificate_is_served_without_a_restart(models, scripts, start, pair, pairs):
    d = start(manifest(("tiny", models["tiny"]), ("endless", scripts["small"]), server=pair.lines), tls=pair.context)
    first = der(pair)
    assert served(d) == first and tls_valid(d)["status"] and "valid until" in tls_valid(d)["message"]
    stream = Stream(d, "/v1/chat/completions", {"model": "endless", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000})
    assert next(stream.events())
    pairs[1].put_over(pair)
    wait_for(lambda: served(d) == der(pairs[1]), 5, "the new certificate")
    assert next(stream.events()), "a stream goes on with the old one"
    # a broken one changes nothing but the condition
    good = pair.cert.read_bytes()
    pair.cert.write_text("broken")
    wait_for(lambda: not tls_valid(d)["status"], 5)
    c = tls_valid(d)
    assert c["reason"] == "Refused" and str(pair.cert) in c["message"] and "before stays in force" in c["message"]
    assert served(d) == der(pairs[1]) and d.log.count("event=tls_refused") == 1
    time.sleep(2.5)
    assert d.log.count("event=tls_refused") == 1, "said once"
    d.signal(signal.SIGHUP)
    wait_for(lambda: "event=manifest_unchanged" in d.log, 5)
    assert served(d) == der(pairs[1])
    pair.cert.write_bytes(good)
    wait_for(lambda: tls_valid(d)["status"], 5)
    stream.close()


def test_certificates_change_under_load_and_nobody_notices(models, start, pair, tmp_path):
    """Eight clients that stream, ask and leave in the middle, while a new pair comes every half second."""
    others = [Pair(tmp_path, f"other{i}") for i in range(3)]
    trusted = tmp_path / "all.pem"
    trusted.write_text("".join(p.cert.read_text() for p in (pair, *others)))
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4\nqueue: { depth: 64 }"), server=pair.lines), tls=pair.context)
    d.tls = ssl.create_default_context(cafile=str(trusted))
    over, wrong, seen, done = threading.Event(), [], set(), []

    def work(n):
        rng = random.Random(n)
        while not over.is_set():
            try:
                if rng.random() < 0.5:
                    assert d.chat(max_tokens=4).status == 200
                else:
                    s = d.stream(max_tokens=60, ignore_eos=True)
                    assert s.status == 200
                    if rng.random() < 0.5:
                        assert s.chunks()
                    else:
                        next(s.events())
                    s.close()
                done.append(n)
            except (AssertionError, OSError, ValueError) as e:
                wrong.append(repr(e))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for i in range(8 if SLOW == 1 else 16):
        others[i % 3].put_over(pair)
        time.sleep(0.5 if SLOW == 1 else 1)
        seen.add(served(d))
    over.set()
    for t in threads:
        t.join()
    assert not wrong and len(done) > 30, wrong[:5]
    assert len(seen) >= 2, "several certificates have been served"
    wait_for(d.idle, 20)


def test_a_reload_turns_tls_on_and_off_and_refuses_a_bad_one(models, start, pair):
    text = manifest(("tiny", models["tiny"]))
    d = start(text)
    assert d.get("/health").status == 200

    def reload(new):
        d.write(new)
        return subprocess.run([str(BUILD / "pantheon-reconcile"), "--socket", d.socket, "--reload", "--wait", str(d.manifest)], capture_output=True, text=True, timeout=60 * SLOW, cwd=ROOT)

    p = reload(manifest(("tiny", models["tiny"]), server="tls: { cert: none.pem, key: none.key }"))
    assert p.returncode == 1 and str(d.folder / "none.pem") in p.stdout + p.stderr, p
    assert d.get("/health").status == 200, "as before: in the clear"
    assert reload(manifest(("tiny", models["tiny"]), server=pair.lines)).returncode == 0
    d.tls = pair.context
    assert d.get("/health").status == 200 and b"tls_required" in d.raw(GET)
    p = reload(manifest(("tiny", models["tiny"]), server="tls: { cert: none.pem, key: none.key }"))
    assert p.returncode == 1 and d.get("/health").status == 200, "the one before serves"
    assert reload(text).returncode == 0
    d.tls = None
    assert d.get("/health").status == 200


def test_an_expired_certificate_is_served_and_shouted_about(models, start, tmp_path):
    expired = Pair(tmp_path, "expired")
    openssl("req", "-new", "-key", expired.key, "-subj", "/CN=expired", "-out", tmp_path / "csr")
    openssl("x509", "-req", "-in", tmp_path / "csr", "-key", expired.key, "-days", "-1", "-out", expired.cert)
    d = start(manifest(("tiny", models["tiny"]), server=expired.lines), wait=False)
    wait_for(lambda: pathlib.Path(d.socket).exists() and "event=ready" in d.log, 20)
    c = tls_valid(d)
    assert not c["status"] and c["reason"] == "Expired" and "event=tls_expired" in d.log
    assert served(d) == der(expired)


def test_pantheon_serve_takes_a_certificate_from_its_flags(models, pair):
    port = free_port()
    command = [str(BUILD / "pantheon-cpu"), "serve", "--model", str(models["tiny"]), "--port", str(port)]
    p = subprocess.run([*command, "--tls-cert", str(pair.cert)], capture_output=True, text=True, timeout=60 * SLOW, cwd=ROOT)
    assert p.returncode == 64 and "'key' is missing in 'server.tls'" in p.stderr, p
    p = subprocess.Popen([*command, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        def up():
            c = http.client.HTTPSConnection("127.0.0.1", port, timeout=10 * SLOW, context=pair.context)
            try:
                c.request("GET", "/ready")
                return c.getresponse().status == 200
            except ConnectionRefusedError:
                return False
        wait_for(up, 20)
    finally:
        p.terminate()
        p.wait(20 * SLOW)
