"""Where clients connect: several listeners, Unix sockets, and sockets that were passed as systemd passes them."""
import http.client
import json
import os
import socket
import stat
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, SLOW, free_port, manifest, wait_for
from test_admin import UnixConnection

# Becomes the daemon, with the descriptors it was given as 3, 4, ... and the variables of sd_listen_fds(3).
LAUNCH = """
import fcntl, os, sys
names, pid, *fds = sys.argv[1].split(",")
command = sys.argv[2:]
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 200) for fd in fds]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i, inheritable=True)
    os.close(fd)
os.environ.update(LISTEN_PID=pid or str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
os.execv(command[0], command)
"""


def passing(*sockets, names=None, pid=""):
    """Arguments of start() that pass these sockets."""
    fds = [s.fileno() for s in sockets]
    return {"launch": (sys.executable, "-c", LAUNCH, ",".join([names or ":".join(f"s{i}" for i in range(len(fds))), str(pid), *map(str, fds)])), "fds": fds}


def listening(host="127.0.0.1", kind=socket.SOCK_STREAM):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    s.bind((host, 0))
    if kind == socket.SOCK_STREAM:
        s.listen(64)
    return s, s.getsockname()[1]


def unix_listening(path, mode=0o660):
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(path))
    s.listen(64)
    os.chmod(path, mode)
    return s


def over(path, method, what, headers=None):
    c = UnixConnection(str(path))
    c.request(method, what, headers=headers or {})
    r = c.getresponse()
    return r.status, json.loads(r.read())


def fails(d, *words):
    assert d.wait(20) == 1, d.log
    for w in words:
        assert w in d.log, (w, d.log)


def test_both_loopbacks_and_a_unix_socket_at_one_time(models, start):
    try:
        six = free_port("::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    d = start(manifest(("tiny", models["tiny"])).replace('"127.0.0.1:PORT"', f'"127.0.0.1:PORT", "http://[::1]:{six}"'))
    for host, port in (("127.0.0.1", d.port), ("::1", six)):
        c = http.client.HTTPConnection(host, port, timeout=10 * SLOW)
        for method, path, status in (("GET", "/v1/models", 200), ("HEAD", "/health", 200), ("OPTIONS", "/v1/models", 204), ("GET", "/admin/models", 200)):
            c.request(method, path)
            r = c.getresponse()
            r.read()
            assert r.status == status, (host, path)


def test_a_unix_socket_of_the_list_is_for_requests_alone(models, start, tmp_path):
    path = tmp_path / "api.sock"
    d = start(manifest(("tiny", models["tiny"])).replace('"127.0.0.1:PORT"', f'"127.0.0.1:PORT", "unix:{path}"'))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert over(path, "GET", "/v1/models")[0] == 200
    status, body = over(path, "GET", "/admin/models")
    assert status == 403 and body["error"]["code"] == "admin_forbidden" and "socket of server.listen" in body["error"]["message"], "a proxy's client may be anybody"
    assert over(path, "GET", "/v1/models", {"Host": "evil.example"})[0] == 403
    assert over(d.socket, "GET", "/admin/models")[0] == 200
    d.stop()
    assert not path.exists()


def test_a_passed_socket_serves_beside_the_list_and_is_not_bound_twice(models, start):
    passed, port = listening()
    other = free_port()
    d = start(manifest(("tiny", models["tiny"])).replace('"127.0.0.1:PORT"', f'"127.0.0.1:{port}", "127.0.0.1:{other}"'), port=port, **passing(passed, names="web"))
    assert d.chat(max_tokens=2).status == 200
    with socket.create_connection(("127.0.0.1", other), timeout=10):
        pass
    assert f"address=127.0.0.1:{port} passed_as=\"web\"" in d.log and f"address=127.0.0.1:{port}\n" not in d.log and f"address=127.0.0.1:{other}" in d.log
    # it is not ours: a connection made while the daemon is away waits for the next one
    d.stop()
    with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        start(manifest(("tiny", models["tiny"])), port=port, **passing(passed))
        assert s.recv(100).startswith(b"HTTP/1.1 200 ")
    passed.close()


def test_a_passed_socket_for_both_kinds_of_addresses_knows_who_is_local(models, start):
    s = socket.socket(socket.AF_INET6)
    try:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        s.bind(("::", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    s.listen(64)
    port = s.getsockname()[1]
    d = start(manifest(("tiny", models["tiny"]), server="insecure: true"), port=port, **passing(s))
    assert d.get("/admin/models").status == 200, "::ffff:127.0.0.1 is 127.0.0.1"
    assert 'client="127.0.0.1"' in d.log and "event=not_bound" in d.log
    s.close()


def test_a_passed_unix_socket_is_the_admin_socket(models, start, tmp_path):
    path = tmp_path / "a.sock"
    passed = unix_listening(path)
    d = start(manifest(("tiny", models["tiny"]), server=f"admin_socket: {path}"), **passing(passed, names="admin"))
    assert over(path, "GET", "/admin/models", {"Host": "evil.example"})[0] == 200
    assert "for=administration" in d.log and d.log.count("event=listening socket=") == 1
    d.stop()
    assert path.exists(), "who made it removes it"
    passed.close()
    path.unlink()
    passed = unix_listening(path, 0o666)
    fails(start(manifest(("tiny", models["tiny"])), wait=False, **passing(passed)), "open to all (mode 0666)", "SocketMode=0660", str(path))
    d = start(manifest(("tiny", models["tiny"])).replace('"127.0.0.1:PORT"', f'"127.0.0.1:PORT", "unix:{path}"'), **passing(passed))
    assert over(path, "GET", "/v1/models")[0] == 200 and over(path, "GET", "/admin/models")[0] == 403, "a row says that it is none"
    passed.close()


def test_what_a_socket_unit_may_get_wrong_is_said_at_the_start(models, start):
    text = manifest(("tiny", models["tiny"]))
    datagram, _ = listening(kind=socket.SOCK_DGRAM)
    fails(start(text, wait=False, **passing(datagram, names="dns")), "passed socket 1 (descriptor 3, 'dns')", "ListenStream=")
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    good, _ = listening()
    fails(start(text, wait=False, **passing(good, silent)), "passed socket 2", "Accept=no")
    outside, port = listening("0.0.0.0")
    fails(start(text, wait=False, **passing(outside)), f"0.0.0.0:{port}", "reachable from outside", "api_keys_file")
    many = [listening()[0] for _ in range(17)]
    fails(start(text, wait=False, **passing(*many)), "at most 16 sockets may be passed")
    for variables in ({"LISTEN_FDS": "1000000"}, {"LISTEN_FDS": "-3"}, {"LISTEN_FDS": "x"}):
        launch = (sys.executable, "-c", "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[1], sys.argv[1:])")
        fails(start(text, wait=False, launch=launch, env=variables), f"LISTEN_FDS={variables['LISTEN_FDS']}", "no sockets can have been passed")
    for s in (datagram, silent, good, outside, *many):
        s.close()


def test_sockets_for_another_process_are_left_alone(models, start):
    passed, port = listening()
    d = start(manifest(("tiny", models["tiny"])), **passing(passed, pid=1))
    assert "event=sockets_ignored" in d.log and f":{port}" not in d.log
    assert d.chat(max_tokens=1).status == 200
    passed.close()


def test_keys_may_not_be_taken_away_while_the_world_reaches_a_listener(models, start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a:" + "0123456789abcdef" * 4 + "\n")
    keys.chmod(0o600)
    d = start(manifest(("tiny", models["tiny"]), server=f"api_keys_file: {keys}").replace("127.0.0.1", "0.0.0.0"), wait=False)
    d.wait_listening()
    d.write(manifest(("tiny", models["tiny"])))  # good by itself; but the process still listens where it did
    p = subprocess.run([str(BUILD / "pantheon-reconcile"), "--socket", d.socket, "--reload", "--wait", str(d.manifest)], capture_output=True, text=True, timeout=60 * SLOW, cwd=ROOT)
    assert p.returncode == 1 and "reachable from outside" in p.stdout + p.stderr, p
    assert d.get("/v1/models").status == 401


def test_a_client_that_says_nothing_is_probed(models, start):
    """One that vanished would hold its turn until its answer is complete."""
    d = start(manifest(("slow", models["slow"])))
    with socket.create_connection(("127.0.0.1", d.port), timeout=10) as s:
        body = b'{"model":"slow","prompt":"a","max_tokens":4000,"ignore_eos":true}'
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        port = s.getsockname()[1]

        def timer():
            for line in open("/proc/net/tcp"):
                f = line.split()
                if f[1].endswith(f":{d.port:04X}") and f[2].endswith(f":{port:04X}"):
                    return f[5].split(":")
        wait_for(lambda: (t := timer()) and t[0] == "02" and int(t[1], 16) <= 30 * os.sysconf("SC_CLK_TCK"), 5, "a keep-alive timer of half a minute")
