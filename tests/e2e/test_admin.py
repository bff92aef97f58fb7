"""The admin API, pantheon-reconcile, the kept manifest, and what systemd hears."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, SLOW, manifest, wait_for
from world import admin, cli, condition, declared, model, notify_socket, reconcile, wait_status

# --- over the admin API ---

def test_ad_hoc_models_come_and_go(scripts, start):
    d = start(declared(("a", scripts["small"])))
    r = d.post("/admin/models/load?wait=1", {"name": "x", "source": {"path": str(scripts["other"])}, "aliases": ["y"]})
    assert r.status == 200 and r.json["ad_hoc"] and r.json["status"] == "ready", r.body
    assert d.chat(model="y", max_tokens=1).status == 200
    assert reconcile(d).status == 200 and model(d, "x"), "a reload keeps it"
    p = cli(d, "--plan")
    assert p.returncode == 0, p.stdout
    assert cli(d, "--plan", "--prune").returncode == 2
    assert cli(d, "--prune").returncode == 0 and model(d, "x") is None
    assert d.post("/admin/models/load?wait=1", {"name": "x", "source": {"path": str(scripts["other"])}}).status == 200
    assert d.post("/admin/models/unload?wait=1", {"name": "x"}).status == 200 and model(d, "x") is None
    r = d.post("/admin/models/load?wait=1", {"name": "huge", "source": {"path": str(scripts["big"])}, "dies": ["nowhere"]})
    assert r.status == 503 and "nowhere" in r.error["message"]


def test_unloading_a_declared_model_holds_it_until_it_is_loaded_or_the_manifest_changes(scripts, start):
    d = start(declared(("a", scripts["small"]), ("b", scripts["small"])))
    assert d.post("/admin/models/unload?wait=1", {"name": "a"}).status == 200
    a = model(d, "a")
    assert a["status"] == "held" and condition(a, "Ready")["reason"] == "AdminUnloaded"
    assert d.chat(model="a").error["code"] == "model_unavailable"
    assert reconcile(d).status == 200 and model(d, "a")["status"] == "held", "the same manifest changes nothing"
    assert d.post("/admin/models/load?wait=1", {"name": "a"}).status == 200 and model(d, "a")["status"] == "ready"
    assert d.post("/admin/models/unload", {"name": "a"}).status == 202
    wait_status(d, "a", "held")
    d.write(declared(("a", scripts["small"]), ("b", scripts["small"], "aliases: [ z ]")))
    assert reconcile(d).status == 200 and model(d, "a")["status"] == "ready"


def test_bad_admin_requests_are_explained(scripts, start):
    d = start(declared(("a", scripts["small"], "aliases: [ z ]")))
    for path, body, status, param in [
        ("load", "nonsense", 400, None), ("load", {}, 400, "name"), ("load", {"name": "new"}, 404, "name"),
        ("load", {"name": "a", "ctx_cap": 512}, 409, "name"), ("load", {"name": "z"}, 409, "name"),
        ("load", {"name": "new", "source": {"path": "/x"}, "ctx_kap": 1}, 400, None),
        ("load", {"name": "new", "source": {"path": "/x"}, "aliases": ["z"]}, 409, "aliases"),
        ("unload", {"name": "new"}, 404, "name"), ("unload", {"name": "z"}, 404, "name"),
    ]:
        r = d.post(f"/admin/models/{path}", body)
        assert (r.status, r.error["param"]) == (status, param), (path, body, r.body)
    assert "did you mean 'ctx_cap'" in d.post("/admin/models/load", {"name": "n", "source": {"path": "/x"}, "ctx_kap": 1}).error["message"]
    for value in ("", "x", "1x", "-1"):
        r = d.post(f"/admin/reconcile?if_generation={value}", None)
        assert r.status == 400 and r.error["param"] == "if_generation", value
    for path in ("/admin/reconcile?if_generaton=1", "/admin/reconcile?wait=1&dry_run", "/admin/models/unload?wati=1"):  # a typo is not left out
        r = d.post(path, {"name": "nobody"})
        assert r.status == 400 and r.error["code"] == "unknown_parameter" and r.error["param"] in ("if_generaton", "dry_run", "wati"), r.body
    assert d.get("/admin/models?x=1").status == d.get("/v1/models?api-version=1").status == 200
    r = d.post("/admin/reconcile?if_generation=7", None)
    assert r.status == 409 and r.error["code"] == "conflict"
    assert cli(d, "--reload", "--wait", "--if-generation", "7").returncode == 1 and cli(d, "--reload", "--wait", "--if-generation", "1").returncode == 0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10 * SLOW)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def test_administration_is_for_the_socket_and_this_machine(scripts, start):
    d = start(declared(("a", scripts["small"])))
    assert os.stat(d.socket).st_mode & 0o777 == 0o660
    c = UnixConnection(d.socket)
    for headers in ({}, {"Host": "anything.example", "Origin": "https://x"}):
        c.request("GET", "/admin/dies", headers=headers)
        r = c.getresponse()
        assert r.status == 200 and [x["name"] for x in json.loads(r.read())["dies"]] == ["s0", "s1"]
    for host in ("localhost", "127.0.0.1:8080", "[::1]:80", "LOCALHOST:1"):
        assert d.get("/admin/dies", headers={"Host": host}).status == 200, host
    for host in ("127.0.0.1:80@evil.example", "localhost:evil.example", "[::1].evil.example", "[::1", "127.0.0.1 evil.example", "0.0.0.0"):
        assert d.get("/admin/dies", headers={"Host": host}).status in (400, 403), host
    for headers in ({"Host": "evil.example"}, {"Host": "127.evil.example"}, {"Host": "localhost.evil.example"}, {"Origin": "http://localhost"}, {"Forwarded": "for=1.2.3.4"},
                    {"X-Forwarded-For": "1.2.3.4"}, {"X-Forwarded-Host": "localhost"}, {"Host": "127.0.0.1", "x-forwarded-proto": "http"}):
        r = d.get("/admin/dies", headers=headers)
        assert r.status == 403 and r.error["code"] == "admin_forbidden", headers
    assert d.raw(b"GET /admin/dies HTTP/1.0\r\n\r\n").split()[1] == b"403", "no Host at all"
    assert d.request("POST", "/admin/models/unload", {"name": "a"}, headers={"Origin": "http://evil"}).status == 403 and model(d, "a")["status"] == "ready"


def test_a_socket_left_behind_is_replaced_and_a_live_one_is_not(scripts, start):
    d = start(declared(("a", scripts["small"])))
    other = start(declared(("a", scripts["small"])).replace("server:\n", f"server:\n  admin_socket: {d.socket}\n"))
    assert "event=no_admin_socket" in other.log and "another process listens there" in other.log
    other.stop()
    assert cli(d, "--status").returncode == 0, "the first one's socket is still there"
    d.process.kill()
    d.process.wait()
    assert os.path.exists(d.socket)
    d.process = subprocess.Popen([str(BUILD / "pantheond"), "--config", str(d.manifest)], stdout=d.log_file, stderr=d.log_file, env={**os.environ, "STATE_DIRECTORY": str(d.state)}, cwd=ROOT)
    d.wait_listening()
    assert cli(d, "--status").returncode == 0


# --- the tool ---

def test_plan_apply_and_facts(scripts, start, tmp_path):
    d = start(declared(("a", scripts["small"])))
    assert cli(d, "--plan").returncode == 0
    d.write(declared(("a", scripts["small"], "aliases: [ z ]\nmax_sessions: 5"), ("b", scripts["small"])))
    p = cli(d, "--plan")
    assert p.returncode == 2 and re.search(r"^\+ +b ", p.stdout, re.M) and re.search(r"^-/\+ +a .*max_sessions 4 -> 5", p.stdout, re.M), p.stdout
    facts = tmp_path / "facts.json"
    p = cli(d, "--save-facts", facts, "--plan")
    assert p.returncode == 2
    q = cli(d, "--plan", "--facts", facts)
    assert q.stdout == p.stdout and q.returncode == 2, "the same facts, the same plan; the facts hold the estimates too"
    assert json.loads(cli(d, "--plan", "--json").stdout)
    assert model(d, "b") is None, "nothing was changed"
    p = cli(d)
    assert p.returncode == 0 and "2 of 2 models serve" in p.stdout
    assert cli(d, "--plan").returncode == 0
    p = cli(d, "--json")
    assert p.returncode == 0 and json.loads(p.stdout.splitlines()[-1])["result"] == "applied"


def test_status_is_a_table(scripts, start):
    d = start(declared(("a", scripts["small"]), ("b", scripts["big"]), s0=("100MB", "")))
    p = cli(d, "--status")
    assert p.returncode == 0 and "ManifestValid=True" in p.stdout and re.search(r"^a +ready +s0 ", p.stdout, re.M) and re.search(r"^b +refused ", p.stdout, re.M), p.stdout
    assert len(json.loads(cli(d, "--status", "--json").stdout)["models"]) == 2
    for args in ("--status", "--plan", "--check", "--json"):
        with open("/dev/full", "w") as full:
            p = subprocess.run([str(BUILD / "pantheon-reconcile"), args, str(d.manifest)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30 * SLOW)
        assert p.returncode == 1 and "cannot be written" in p.stderr, args


def test_status_can_be_watched_and_interrupted(scripts, start):
    d = start(declared(("a", scripts["small"])))
    # A shell starts what it puts in the background with SIGINT ignored, and everything below inherits that.
    p = subprocess.Popen([str(BUILD / "pantheon-reconcile"), "--status", "--watch", "--socket", d.socket, str(d.manifest)], stdout=subprocess.PIPE, text=True,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        for _ in range(2):
            assert any("MODEL" in p.stdout.readline() for _ in range(8))
        p.send_signal(signal.SIGINT)
        assert p.wait(5 * SLOW) == -signal.SIGINT
    finally:
        p.kill()
        p.wait()


def test_a_socket_without_permission_says_so(scripts, start):
    if os.getuid() != 0:
        pytest.skip("needs another user")
    d = start(declared(("a", scripts["small"])))
    os.chmod(d.socket_dir, 0o755)
    tool = shutil.copy(BUILD / "pantheon-reconcile", d.socket_dir)  # the clone may lie where others cannot look, below /root say
    os.chmod(tool, 0o755)

    def as_nobody(*args):
        return subprocess.run([str(tool), "--status", *args, "/none"], capture_output=True, text=True, user=65534, group=65534, extra_groups=[], cwd="/", timeout=30 * SLOW)

    p = as_nobody("--socket", d.socket)
    assert p.returncode == 1 and "Permission denied" in p.stderr, p.stderr
    p = as_nobody("--url", f"http://127.0.0.1:{d.port}")
    assert p.returncode == 0 and "ready" in p.stdout, p.stderr


def test_applying_waits_no_longer_than_told(scripts, start):
    sims = {"s0": ("300MB", ""), "s1": ("300MB", "upload 1 takes 3s")}
    d = start(declared(("a", scripts["small"], "dies: [ s0 ]"), **sims))
    d.write(declared(("a", scripts["small"], "dies: [ s0 ]"), ("b", scripts["small"], "dies: [ s1 ]"), **sims))
    t = time.monotonic()
    p = cli(d, "--timeout", "500ms")
    assert p.returncode == 4 and time.monotonic() - t < 2 * SLOW, p.stdout + p.stderr
    wait_status(d, "b", "ready")


def test_another_file_than_the_daemons_is_not_applied(scripts, start, tmp_path):
    d = start(declared(("a", scripts["small"])))
    other = tmp_path / "other.yaml"
    other.write_text(d.manifest.read_text())
    p = subprocess.run([BUILD / "pantheon-reconcile", other], capture_output=True, text=True)
    assert p.returncode == 1 and "the daemon reads" in p.stderr
    assert subprocess.run([BUILD / "pantheon-reconcile", "--plan", other], capture_output=True).returncode == 0


def test_without_a_daemon_it_says_so(tmp_path):
    good = tmp_path / "m.yaml"
    good.write_text(f"version: 1\nserver: {{ admin_socket: {tmp_path}/none.sock }}\nmodels: []\n")
    run = lambda *a: subprocess.run([BUILD / "pantheon-reconcile", *a], capture_output=True, text=True)
    assert run("--check", good).returncode == 0 and json.loads(run("--check", "--json", good).stdout)["good"] is True
    p = run("--check", "--json", tmp_path / "absent")
    assert p.returncode == 1 and "absent" in json.loads(p.stdout)["report"] and not p.stderr
    for args in ([good], ["--plan", good], ["--status", good], ["--reload", "--wait", good]):
        p = run(*args)
        assert p.returncode == 1 and "no daemon answers at" in p.stderr and "none.sock" in p.stderr, p.stderr
    for args in (["--nonsense"], ["--check", "--plan"], ["--wait"], ["--watch"], ["--facts", "x"], ["--if-generation", "x"], ["a", "b"], ["--socket", "a", "--url", "b"], ["--timeout", "soon", good], ["--timeout", "0s", good]):
        assert run(*args).returncode == 64, args
    assert run("--help").returncode == 0 and run("--version").stdout.startswith("Pantheon v")


# --- the kept manifest ---

def test_the_last_good_manifest_serves_when_the_file_is_bad_at_start(scripts, start):
    d = start(declared(("a", scripts["small"])))
    d.write(declared(("a", scripts["small"], "aliases: [ z ]")))
    assert reconcile(d).status == 200
    d.stop()
    os.makedirs(d.socket_dir)
    good = d.manifest.read_text()
    d.manifest.write_text(good + "    colour: red\n")
    args = [str(BUILD / "pantheond"), "--config", str(d.manifest)]
    p = subprocess.run(args, capture_output=True, text=True, env={**os.environ, "STATE_DIRECTORY": str(d.state / "none")})
    assert p.returncode == 78 and "colour" in p.stderr, "without a kept copy there is nothing to serve"
    d.log_file = open(d.log_path, "a")
    d.process = subprocess.Popen(args, stdout=d.log_file, stderr=d.log_file, env={**os.environ, "STATE_DIRECTORY": str(d.state)}, cwd=ROOT)
    d.wait_listening()
    wait_for(d.settled, 10)
    s = admin(d)
    c = condition(s, "ManifestValid")
    assert s["generation"] == 2 and c["reason"] == "ServingLastAccepted" and "colour" in c["message"] and d.chat(model="z", max_tokens=1).status == 200
    assert "THE MANIFEST IS BAD" in d.log
    d.manifest.write_text(good.replace("[ z ]", "[ other ]"))
    assert cli(d, "--reload", "--wait").returncode == 0 and admin(d)["generation"] == 3 and condition(admin(d), "ManifestValid")["status"] == "True"


def test_a_state_directory_that_cannot_be_written_is_a_warning(scripts, start, tmp_path):
    d = start(declared(("a", scripts["small"])), env={"STATE_DIRECTORY": str(tmp_path / "nowhere")})
    assert "event=manifest_not_kept" in d.log and d.chat(model="a", max_tokens=1).status == 200


# --- systemd and readiness ---

def test_pain_74_systemd_hears_of_every_phase(scripts, start, tmp_path):
    with notify_socket(tmp_path) as (n, env):
        d = start(declared(("a", scripts["small"]), s0=("300MB", "upload 1 takes 1s")), env=env, wait=False)
        heard = n.until(lambda h: "READY=1" in h, 20)
        before = heard[: heard.index("READY=1")]
        assert any(x.startswith("STATUS=Loading a (1 of 1)") for x in before) and any(x.startswith("EXTEND_TIMEOUT_USEC=") for x in before), heard
        assert d.get("/ready").status == 200
        n.until(lambda h: any(x.startswith("STATUS=Serving 1 of 1 models; generation 1") for x in h), 5)
        n.drain()
        d.write(declared(("a", scripts["small"], "aliases: [ z ]"), s0=("300MB", "upload 1 takes 1s")))
        now = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
        d.signal(signal.SIGHUP)
        heard = n.until(lambda h: "READY=1" in h, 5)
        assert heard.index("RELOADING=1") < heard.index("READY=1")
        stamp = next(int(x.split("=")[1]) for x in heard if x.startswith("MONOTONIC_USEC="))
        assert abs(stamp - now) < 5e6
        d.manifest.write_text("version: 2\n")
        d.signal(signal.SIGHUP)
        n.until(lambda h: any("MANIFEST REFUSED" in x for x in h), 5)
        d.signal(signal.SIGTERM)
        heard = n.until(lambda h: "STOPPING=1" in h, 5)
        assert d.wait(10) == 0
        n.until(lambda h: any(x.startswith("EXTEND_TIMEOUT_USEC=") for x in h[h.index("STOPPING=1"):]), 5)


def test_pain_37_a_drain_ends_streams_whole_and_pages_still_answer(scripts, start):
    d = start(declared(("a", scripts["small"])))
    s = d.stream(model="a", max_tokens=400)
    next(s.events())
    d.signal(signal.SIGTERM)
    wait_for(lambda: d.get("/health").json["status"] == "draining", 2)
    assert d.get("/ready").status == 503 and d.get("/ready").error["code"] == "draining"
    assert condition(admin(d), "Draining")["status"] == "True" and d.chat(model="a").error["code"] == "draining"
    assert d.post("/admin/models/unload", {"name": "a"}).status == 503
    assert list(s.events())[-1] == "[DONE]" and d.wait(10) == 0


def test_pain_39_ready_and_models_tell_the_truth_about_one_bad_model(scripts, start, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    d = start(declared(("a", scripts["small"]), ("bad", bad)))
    assert d.get("/ready").status == 200
    b = model(d, "bad")
    assert b["status"] == "failed" and condition(b, "Healthy")["status"] == "False" and condition(b, "Ready")["reason"] == "FileNotUsable"
    r = d.chat(model="bad")
    assert r.status == 503 and "bad.gguf" in r.error["message"]
    only = start(declared(("bad", bad)))
    assert only.get("/ready").status == 503 and "bad" in only.get("/ready").error["message"]


def test_nothing_declared_is_ready_and_absent_is_not_loaded(scripts, start):
    d = start(manifest().replace("models:\n", "models: []\n"))
    assert d.get("/ready").status == 200
    d = start(declared(("a", scripts["small"], "state: absent")))
    assert d.get("/ready").status == 200 and model(d, "a")["status"] == "absent" and d.chat(model="a").status == 503
