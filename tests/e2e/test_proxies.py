"""nginx and HAProxy in front, with the files of contrib/ as they stand but for the ports. Where a proxy is not installed, Debian's package is
unpacked into the build folder: nothing is installed and no service is started."""
import http.client
import json
import os
import re
import shutil
import subprocess
import time

import pytest

from conftest import ROOT, Stream, free_port, manifest, wait_for

# what the binary needs beyond the libraries of every Debian
PACKAGES = {"nginx": ["nginx"], "haproxy": ["haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"]}


def unpacked(name):
    """The binary of a proxy with its environment; None where there is no apt-get, or no network."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found:
        return found, dict(os.environ)
    folder = ROOT / "build/proxies" / name  # beside the flavours: make takes all that ends in .d there for its own
    binary = folder / "root/usr/sbin" / name
    if not binary.exists():
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            return None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if subprocess.run(["apt-get", "download", "-qq", *PACKAGES[name]], cwd=folder, capture_output=True).returncode:
            return None
        for deb in sorted(folder.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", deb, folder / "root"], check=True)
    libraries = ":".join(str(p) for p in (folder / "root/usr/lib").glob("*-linux-gnu"))
    return str(binary), {**os.environ, "LD_LIBRARY_PATH": libraries}


def haproxy_config(port, servers):
    """contrib/haproxy/haproxy.cfg, listening on this port of loopback, in front of these."""
    text = (ROOT / "contrib/haproxy/haproxy.cfg").read_text()
    assert text.count("bind :8080 ") == 1
    text, n = re.subn(r"^    server .*\n", "", text.replace("bind :8080 ", f"bind 127.0.0.1:{port} "), flags=re.M)
    assert n == 2 and text.rstrip().splitlines()[-1].startswith("    default-server"), "the servers are its last lines"
    return text + "".join(f"    server {chr(ord('a') + i)} 127.0.0.1:{p}\n" for i, p in enumerate(servers))


def nginx_config(port, server, folder):
    text = (ROOT / "contrib/nginx/pantheon.conf").read_text()
    assert text.count("127.0.0.1:8080") == text.count("listen 80;") == 1
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{server}").replace("listen 80;", f"listen 127.0.0.1:{port};")
    temp = "".join(f"{k}_temp_path {folder}/{k};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}} http {{ access_log off; {temp}\n{text}\n}}"
    return "user root;\n" + text if os.getuid() == 0 else text  # its temporary files are in a folder that only root may enter


class Proxy:
    """One of them in front of a daemon; has the `port` and `tls` that Stream asks with."""

    tls = None

    def __init__(self, name, daemon, folder):
        got = unpacked(name)
        if not got:
            pytest.skip(f"{name} is not installed and cannot be had")
        binary, env = got
        self.port = free_port()
        conf = folder / "proxy.conf"
        conf.write_text(nginx_config(self.port, daemon.port, folder) if name == "nginx" else haproxy_config(self.port, [daemon.port]))
        command = [binary, "-c", conf, "-p", folder] if name == "nginx" else [binary, "-f", conf, "-db"]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=(folder / "proxy.log").open("wb"))

        def up():
            assert self.process.poll() is None, (folder / "proxy.log").read_text()
            try:
                return self.ask("GET", "/ready")[0] == 200
            except OSError:
                return False

        wait_for(up, 20, "the proxy reaches the daemon")

    def ask(self, method, path, body=None, headers=None):
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            conn.request(method, path, body, headers or {})
            r = conn.getresponse()
            return r.status, r.headers, r.read()
        finally:
            conn.close()

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture(params=["nginx", "haproxy"])
def behind(request, models, start, tmp_path):
    d = start(manifest(("tiny", models["tiny"]), ("slow", models["slow"], "max_concurrent: 1")))
    folder = tmp_path / "proxy"
    folder.mkdir()
    p = Proxy(request.param, d, folder)
    yield p, d
    p.stop()


def body(model, **fields):
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, **fields}


def test_a_stream_passes_unbuffered_and_is_the_same_text(behind):
    p, d = behind
    whole = json.loads(p.ask("POST", "/v1/chat/completions", json.dumps(body("slow", max_tokens=200)))[2])
    s = Stream(p, "/v1/chat/completions", body("slow", max_tokens=200, stream=True))
    times, text = [], ""
    for e in s.events():
        if isinstance(e, dict) and e["choices"] and e["choices"][0]["delta"].get("content"):
            times.append(time.monotonic())
            text += e["choices"][0]["delta"]["content"]
    assert text == whole["choices"][0]["message"]["content"]
    assert len(times) > 20
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    assert gaps[-1] < (times[-1] - times[0]) / 2, "they do not come in one or two lumps"
    assert gaps[len(gaps) // 2] > 0, "nor all at once"


def test_who_leaves_cancels(behind):
    p, d = behind
    s = Stream(p, "/v1/chat/completions", body("slow", max_tokens=4000, stream=True))
    next(e for e in s.events() if isinstance(e, dict))
    waits = Stream.__new__(Stream)  # a second one, whole and queued behind the first
    waits.conn = http.client.HTTPConnection("127.0.0.1", p.port, timeout=60)
    waits.conn.request("POST", "/v1/chat/completions", json.dumps(body("slow", max_tokens=4000)))
    wait_for(lambda: d.counters("slow")["queued"] == 1, 10)
    waits.conn.close()
    wait_for(lambda: d.counters("slow")["queued"] == 0, 10, "who waits and leaves is forgotten")
    s.close()
    wait_for(lambda: d.idle("slow"), 10, "the stream's request ends")
    assert d.counters("slow")["cancelled"] == 2


def test_admin_stays_closed_and_errors_keep_their_bodies(behind):
    p, d = behind
    assert p.ask("GET", "/admin/models")[0] == 403
    assert p.ask("GET", "/%61dmin/models")[0] in (403, 404)
    assert p.ask("POST", "/admin/models/unload", '{"name":"tiny"}')[0] == 403
    assert d.get("/admin/models", headers={"X-Forwarded-For": "192.0.2.1"}).status == 403, "the daemon by itself"
    status, headers, text = p.ask("POST", "/v1/chat/completions", '{"model":"absent","messages":[{"role":"user","content":"x"}]}')
    assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found"
    assert headers["x-request-id"].startswith("req_")
    status, _, text = p.ask("POST", "/v1/chat/completions", json.dumps(body("tiny", max_tokens=4)) + " " * (2 << 20))
    assert status == 200, "a body of 2 MB"


def test_a_conversation_of_many_requests_over_one_connection(behind):
    p, d = behind
    conn = http.client.HTTPConnection("127.0.0.1", p.port, timeout=60)
    for _ in range(20):
        conn.request("POST", "/v1/chat/completions", json.dumps(body("tiny", max_tokens=4)))
        r = conn.getresponse()
        assert r.status == 200 and json.loads(r.read())["choices"]
    conn.close()
