"""The loop: what runs becomes what the manifest declares, on dies whose faults are scripted, with models that say what a file tells them."""
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BUILD, ROOT, SLOW, free_port, manifest, wait_for

MB = 1000 * 1000
FAST = {"PANTHEON_BACKOFF_MS": "100"}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Scripted models: `big` (160 MiB), `half` (80 MiB), `small` (1 MiB), `quick` (1 MiB, no pace); all talk without end."""
    folder = tmp_path_factory.mktemp("scripts")

    def make(name, weights, pace="2000", *more):
        path = folder / f"{name}.gguf"
        subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "it goes on and on", "--endless", "--pace-us", pace, "--weights", weights, *more], check=True, cwd=ROOT)
        return path

    return {"big": make("big", "160MiB"), "half": make("half", "80MiB", "2000", "--layers", "8"), "small": make("small", "1MiB"), "quick": make("quick", "1MiB", "0"), "other": make("other", "2MiB")}


def dies(**sims):
    """A dies section: name=(size, script)."""
    return "dies:\n" + "".join(f"  - {{ name: {n}, kind: sim, memory: {size}{', script: ' + json.dumps(script) if script else ''} }}\n" for n, (size, script) in sims.items())


def declared(*models, **sims):
    return manifest(*models, top="host: { ram_reserve: 16MiB, settle: { timeout: 5s, stable: 1s } }\n" + dies(**(sims or {"s0": ("300MB", ""), "s1": ("300MB", "")})).rstrip())


def admin(d, path="/admin/models"):
    return d.get(path).json


def model(d, name):
    return next((m for m in admin(d)["models"] if m["name"] == name), None)


def condition(o, name):
    return next(c for c in o["conditions"] if c["type"] == name)


def events(d, name=None):
    """(event, model) in the order they were logged."""
    out = [(m[1], m[2]) for m in re.finditer(r'area=reconcile event=(\S+) model="([^"]*)"', d.log)]
    return [e for e, m in out if m == name] if name else out


def cli(d, *args, timeout=60):
    where = ["--socket", d.socket] if "--facts" not in args else []
    return subprocess.run([str(BUILD / "pantheon-reconcile"), *where, *map(str, args), str(d.manifest)], capture_output=True, text=True, timeout=timeout * SLOW, cwd=ROOT)


def reconcile(d, query="wait=applied"):
    return d.post(f"/admin/reconcile?{query}", None)


def wait_status(d, name, status, timeout=10):
    wait_for(lambda: (model(d, name) or {}).get("status") == status, timeout, f"{name} {status}")


# --- bring-up ---

def test_what_fits_is_loaded_one_at_a_time_in_order_and_the_rest_refused(scripts, start):
    d = start(declared(*((n, scripts["big"]) for n in "abc")))
    assert [m["status"] for m in admin(d)["models"]] == ["ready", "ready", "refused"]
    order = [e for e in events(d) if e[0].startswith("load_")]
    assert order == [("load_started", "a"), ("load_done", "a"), ("load_started", "b"), ("load_done", "b")]
    c = model(d, "c")
    assert re.search(r"needs \d+ MiB on s\d \(weights 160 MiB, KV .*, where \d+ MiB are free", c["reason"]), c["reason"]
    assert condition(c, "Placed")["reason"] == "DoesNotFit" and condition(c, "Ready")["status"] == "False"
    r = d.chat(model="c")
    assert r.status == 503 and r.error["code"] == "model_unavailable" and "needs" in r.error["message"]
    p = cli(d, "--plan")
    assert p.returncode == 3 and "1 refused, 2 in sync." in p.stdout and re.search(r"^s0 +286 MiB", p.stdout, re.M), p.stdout + p.stderr


def test_pain_06_what_was_measured_is_what_was_estimated(scripts, models, start):
    text = declared(("one", scripts["half"], "max_sessions: 1"), ("eight", scripts["half"], "max_sessions: 8\nctx_cap: 1024"), ("split", scripts["half"], "dies: [ s0, s1 ]"),
                    ("tiny", models["tiny"], "dies: [ s0 ]"), ("halves", models["tiny"], "dies: [ s1, s0 ]"), ("host", scripts["small"], "dies: [ cpu ]"), ("tiny-host", models["tiny"], "dies: [ cpu ]"))
    d = start(text.replace("dies:\n", "dies:\n  - { name: cpu, kind: cpu }\n", 1))
    for m in admin(d)["models"]:
        copy = m["placement"][0]
        assert len(copy["estimated"]) == len(copy["measured"])
        for was, is_ in zip(copy["estimated"], copy["measured"]):
            assert was["die"] == is_["die"]
            for part in ("weights_bytes", "kv_bytes", "scratch_bytes") if SLOW == 1 else ():  # debug builds have redzones and smaller pages
                assert was[part] == is_[part], (m["name"], part, was, is_)
    for die in admin(d, "/admin/dies")["dies"]:
        assert die["foreign_bytes"] == 0, "the driver's figure is ours to the byte"


def test_pain_01_no_request_outgrows_memory(scripts, start):
    """All that four streams will need was taken at load: a die that gives nothing after that ends none of them."""
    d = start(declared(("a", scripts["small"], "max_concurrent: 4\nmax_sessions: 4\nctx_cap: 1024"), s0=("300MB", "alloc 5- fails")))
    streams = [d.stream(model="a", max_tokens=900) for _ in range(4)]
    got = [None] * 4

    def read(i):
        got[i] = streams[i].chunks()

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(g and g[-1]["choices"][0]["finish_reason"] == "length" for g in got) and d.process.poll() is None
    assert model(d, "a")["counters"]["loads"] == 1 and model(d, "a")["counters"]["failed"] == 0


def test_pain_13_an_unloaded_model_leaves_nothing_on_its_die(scripts, start):
    d = start(declared(("a", scripts["small"]), s0=("300MB", "")))
    for _ in range(20):
        assert d.post("/admin/models/unload?wait=1", {"name": "a"}).status == 200
        die = admin(d, "/admin/dies")["dies"][0]
        assert die["ours_bytes"] == die["foreign_bytes"] == 0 and die["contexts"] == 0, die
        assert d.post("/admin/models/load?wait=1", {"name": "a"}).status == 200
        assert admin(d, "/admin/dies")["dies"][0]["contexts"] == 1


def test_pain_70_names_states_and_versions_mean_what_they_say(scripts, start):
    """A model renamed, one declared absent, a name twice and a version of tomorrow: no phantom, no guess. tests/cases/plan has a hundred plans more."""
    d = start(declared(("a", scripts["small"]), ("off", scripts["small"], "state: absent")))
    names = lambda: sorted(m["id"] for m in d.get("/v1/models").json["data"])
    assert names() == ["a", "off"] and model(d, "off")["counters"]["loads"] == 0
    d.write(declared(("b", scripts["small"]), ("off", scripts["small"], "state: absent")))
    assert reconcile(d).status == 200 and names() == ["b", "off"]
    assert d.chat(model="a").status == 404 and d.chat(model="b", max_tokens=1).status == 200 and [m["name"] for m in admin(d)["models"]] == ["b", "off"]
    for bad, why in ((declared(("b", scripts["small"]), ("b", scripts["half"])), "'b'"), (declared(("b", scripts["small"])).replace("version: 1", "version: 2"), "version")):
        d.write(bad)
        r = reconcile(d)
        assert r.status == 400 and why in r.json["report"], r.body
    assert names() == ["b", "off"] and admin(d)["generation"] == 2


def test_priority_goes_before_order(scripts, start):
    d = start(declared(("a", scripts["big"]), ("b", scripts["big"], "priority: 5"), s0=("300MB", "")))
    assert model(d, "b")["status"] == "ready" and model(d, "a")["status"] == "refused"


def test_pain_05_what_does_not_fit_is_never_attempted(scripts, start):
    d = start(declared(("a", scripts["half"]), s0=("64MB", "")))
    p = cli(d, "--plan")
    assert p.returncode == 3 and "refused" in p.stdout
    assert "half.gguf" not in open(f"/proc/{d.process.pid}/maps").read() and "load_started" not in d.log


def test_pain_04_a_refusal_names_die_part_need_and_room(scripts, start):
    d = start(declared(("a", scripts["half"]), s0=("64MB", "")))
    why = model(d, "a")["reason"]
    assert all(w in why for w in ("s0", "weights 80", "KV", "scratch", "free")), why


def test_pain_10_a_die_of_exactly_the_need_loads(scripts, start):
    d = start(declared(("a", scripts["small"])))
    part = model(d, "a")["placement"][0]["estimated"][0]
    need = part["weights_bytes"] + part["kv_bytes"] + part["scratch_bytes"]
    d2 = start(declared(("a", scripts["small"]), s0=(f"{need}B", "")))
    assert model(d2, "a")["status"] == "ready"
    d3 = start(declared(("a", scripts["small"]), s0=(f"{need - 1}B", "")))
    assert model(d3, "a")["status"] == "refused"


def test_pain_10_memory_trust_loads_anyway_and_says_so(scripts, start):
    """A reserve that is larger than what would be left: the gate says no, trust says yes, the die has the room."""
    text = declared(("a", scripts["small"], "memory: trust"), s0=("8MB", "")).replace("memory: 8MB", "memory: 8MB, reserve: 7MB")
    d = start(text)
    assert model(d, "a")["status"] == "ready" and "gate_overridden" in events(d, "a")


def test_pain_09_the_host_gate_refuses_before_the_machine_swaps(scripts, start):
    d = start(manifest(("a", scripts["big"]), top="host: { ram_reserve: 1TiB }\ndies: [ { name: cpu, kind: cpu } ]"))
    assert model(d, "a")["status"] == "refused" and "host" in model(d, "a")["reason"]


def test_pain_17_a_split_keeps_each_die_under_its_cap(scripts, start):
    d = start(declared(("a", scripts["half"], "dies: [ s0, s1 ]"), s0=("60MB", ""), s1=("40MB", "")))
    parts = model(d, "a")["placement"][0]["estimated"] if model(d, "a")["status"] == "ready" else None
    assert parts and [p["die"] for p in parts] == ["s0", "s1"], model(d, "a")
    for p, cap in zip(parts, (60 * MB, 40 * MB)):
        assert p["weights_bytes"] + p["kv_bytes"] + p["scratch_bytes"] <= cap
    assert d.chat(model="a", max_tokens=3).status == 200


def test_a_file_that_comes_later_is_served_then(scripts, start, tmp_path):
    path = tmp_path / "late.gguf"
    d = start(declared(("a", path)))
    assert model(d, "a")["status"] == "failed"
    path.symlink_to(scripts["small"])
    wait_status(d, "a", "ready", 15)


# --- faults ---

def test_pain_12_memory_that_comes_back_late_is_waited_for(scripts, start):
    d = start(declared(("a", scripts["big"]), s0=("300MB", "free late 500ms")))
    d.write(declared(("b", scripts["big"]), s0=("300MB", "free late 500ms")))
    r = reconcile(d)
    assert r.status == 200 and model(d, "b")["status"] == "ready" and model(d, "a") is None
    waited = re.search(r"event=settled .*after (\d+) ms", d.log)
    assert waited and int(waited[1]) >= 400 and model(d, "b")["counters"]["load_failures"] == 0


def test_a_load_that_fails_twice_works_the_third_time(scripts, start):
    d = start(declared(("a", scripts["small"]), s0=("300MB", "alloc 1-2 fails")), env=FAST, wait=False)
    d.wait_listening()
    wait_status(d, "a", "ready")
    c = model(d, "a")["counters"]
    assert (c["loads"], c["load_failures"]) == (1, 2)
    waits = re.findall(r'event=model_failed model="a" .*next try in (\d+ ms)', d.log)
    assert waits == ["100 ms", "200 ms"], "the wait doubles"
    assert condition(model(d, "a"), "Healthy")["status"] == "True"


def test_backoff_is_shown_and_ends_with_a_new_generation(scripts, start):
    sims = {"s0": ("300MB", "alloc 1 fails")}
    d = start(declared(("a", scripts["small"]), **sims))
    a = model(d, "a")
    assert a["status"] == "failed" and "next try in" in a["reason"] and condition(a, "Ready")["reason"] == "Backoff", a
    assert cli(d, "--reload", "--wait").returncode == 0 and model(d, "a")["status"] == "failed", "the same text is the same generation"
    d.write(declared(("a", scripts["small"], "aliases: [ x ]"), **sims))
    assert reconcile(d).status == 200 and model(d, "a")["status"] == "ready"


def test_a_die_lost_in_mid_stream_ends_the_stream_and_its_model_moves(scripts, start, tmp_path):
    gone = tmp_path / "gone"
    d = start(declared(("a", scripts["big"], "dies: [ s0 ]"), ("b", scripts["half"]), s0=("300MB", f"lost file={gone}"), s1=("300MB", "")), env=FAST)
    s = d.stream(model="a", max_tokens=4000)
    events_of = s.events()
    for _ in range(3):
        next(events_of)
    on = model(d, "b")["placement"][0]["estimated"][0]["die"]
    gone.touch()
    last = list(events_of)[-1]
    assert last["error"]["code"] == "device_error" and "s0" in last["error"]["message"], last
    wait_for(lambda: model(d, "a")["status"] != "ready", 5)
    wait_for(lambda: "s0" in condition(model(d, "a"), "Ready")["message"], 5)
    die = next(x for x in admin(d, "/admin/dies")["dies"] if x["name"] == "s0")
    assert die["health"] == "lost" and "gone" in die["reason"]
    wait_status(d, "b", "ready")
    assert model(d, "b")["placement"][0]["estimated"][0]["die"] == "s1", f"it was on {on}"
    assert d.chat(model="b", max_tokens=2).status == 200
    gone.unlink()
    wait_status(d, "a", "ready")
    assert model(d, "a")["counters"]["load_failures"] == 0, "the die's fault is not the model's"
    assert d.chat(model="a", max_tokens=2).status == 200


def test_pain_02_a_failed_op_makes_it_unready_until_it_serves_again(scripts, start):
    d = start(declared(("a", scripts["small"]), s0=("300MB", "op 40 fails")), env={"PANTHEON_BACKOFF_MS": "1500"})
    assert d.get("/ready").status == 200
    assert d.chat(model="a", max_tokens=400).status == 503
    t = time.monotonic()
    r = wait_for(lambda: (x := d.get("/ready")).status == 503 and x, 2)
    assert "s0" in r.error["message"] and "'a' is failed" in r.error["message"], r.error["message"]
    wait_for(lambda: d.get("/ready").status == 200, 5)
    assert time.monotonic() - t >= 1
    assert d.chat(model="a", max_tokens=3).status == 200


def test_pain_38_an_idle_model_on_a_lost_die_is_noticed_without_a_request(scripts, start, tmp_path):
    gone = tmp_path / "gone"
    d = start(declared(("a", scripts["small"], "dies: [ s0 ]"), s0=("300MB", f"lost file={gone}")))
    gone.touch()
    r = wait_for(lambda: (x := d.get("/ready")).status == 503 and x, 2)
    assert "s0" in r.error["message"]


def test_pain_30_a_stuck_step_stops_the_watchdog_and_no_page(scripts, start, tmp_path):
    with notify_socket(tmp_path) as (n, env):
        d = start(declared(("a", scripts["small"]), s0=("300MB", "op 30 takes 6s")), env={**env, "WATCHDOG_USEC": "4000000"})
        heard = n.until(lambda h: h.count("WATCHDOG=1") >= 2, 10)
        t = threading.Thread(target=lambda: d.chat(model="a", max_tokens=100))
        t.start()
        wait_for(lambda: d.counters("a")["running"] == 1, 5)
        time.sleep(1.5)
        n.drain()
        for path in ("/health", "/ready", "/admin/models", "/v1/models"):
            took = []
            for _ in range(5):
                before = time.monotonic()
                assert d.get(path).status == 200
                took.append(time.monotonic() - before)
            assert min(took) < 0.05 * SLOW, (path, took)  # a busy host may hold up some, a page that waits for the scheduler all
        time.sleep(1.5)
        assert "WATCHDOG=1" not in n.drain(), "a scheduler that does not move starves the watchdog"
        n.until(lambda h: "WATCHDOG=1" in h, 10)
        t.join()
        assert "READY=1" in heard


def test_a_copy_that_vanishes_is_drift_and_repaired(scripts, start, tmp_path):
    """A model file truncated under its map fails the copy at the next step; the file comes back, and so does the model."""
    path = tmp_path / "m.gguf"
    path.write_bytes(scripts["small"].read_bytes())
    d = start(manifest(("a", path), top="host: { ram_reserve: 16MiB }"), env=FAST)
    assert d.chat(model="a", max_tokens=2).status == 200
    whole = path.read_bytes()
    os.truncate(path, 4096)
    assert d.chat(model="a", max_tokens=2).status == 503
    wait_for(lambda: model(d, "a")["status"] == "failed", 10)
    new = tmp_path / "new"
    new.write_bytes(whole)
    new.rename(path)
    wait_status(d, "a", "ready", 15)
    assert d.chat(model="a", max_tokens=2).status == 200


@pytest.mark.slow
def test_fifty_kills_during_bring_up_and_the_declared_state_is_reached_each_time(scripts, start):
    names = [f"m{i}" for i in range(5)]
    d = start(declared(*((n, scripts["quick"]) for n in names)))
    rng = random.Random(1)
    args = [str(BUILD / "pantheond"), "--config", str(d.manifest)]
    env = {**os.environ, "STATE_DIRECTORY": str(d.state)}
    t = time.monotonic()
    d.process.kill()
    d.process.wait()
    for i in range(50):
        p = subprocess.Popen(args, stdout=d.log_file, stderr=d.log_file, env=env, cwd=ROOT)
        time.sleep(rng.random() * 0.15)
        p.kill()
        p.wait()
        d.process = subprocess.Popen(args, stdout=d.log_file, stderr=d.log_file, env=env, cwd=ROOT)
        d.wait_listening()
        wait_for(d.settled, 10)
        assert all(m["status"] == "ready" for m in admin(d)["models"]) and d.chat(model=rng.choice(names), max_tokens=1).status == 200, i
        assert os.stat(d.socket).st_mode & 0o777 == 0o660 and admin(d)["generation"] == 1
        if i < 49:
            d.process.kill()
            d.process.wait()
    print(f"50 kills in {time.monotonic() - t:.0f} s")


def test_ready_means_that_a_step_was_computed(scripts, start):
    d = start(declared(("a", scripts["small"]), s0=("300MB", "op 3 fails")), env=FAST, wait=False)
    d.wait_listening()
    wait_status(d, "a", "ready")
    assert model(d, "a")["counters"]["load_failures"] == 1 and "the first step" in d.log and model(d, "a")["counters"]["requests"] == 0


def test_a_load_past_its_timeout_fails_and_is_tried_again(scripts, start):
    d = start(declared(("a", scripts["small"]), s0=("300MB", "upload 1 takes 1500ms")).replace("ram_reserve", "load_timeout: 1s, ram_reserve"), env=FAST, wait=False)
    d.wait_listening()
    wait_status(d, "a", "ready")
    assert model(d, "a")["counters"]["load_failures"] == 1 and "longer than host.load_timeout (1 s)" in d.log


def test_a_load_past_its_timeout_is_cut_between_two_pieces(scripts, start, tmp_path):
    path = tmp_path / "pieces.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "on", "--weights", "240MiB", "--layers", "8"], check=True, cwd=ROOT)
    d = start(declared(("a", path), s0=("300MB", "upload takes 500ms")).replace("ram_reserve", "load_timeout: 1s, ram_reserve"), wait=False)
    d.wait_listening()
    t = time.monotonic()
    wait_for(lambda: (model(d, "a") or {}).get("counters", {}).get("load_failures") == 1, 30)
    assert time.monotonic() - t < 5 * SLOW, "thirty pieces of half a second each were not waited for"
    assert "longer than host.load_timeout (1 s)" in d.log
    d.signal(signal.SIGTERM)
    assert d.wait(5) == 0


def test_a_stop_during_a_load_does_not_wait_for_it(scripts, start):
    d = start(declared(("a", scripts["small"]), s0=("300MB", "upload 1 takes 8s")), wait=False)
    d.wait_listening()
    wait_for(lambda: (model(d, "a") or {}).get("status") == "loading", 5)
    t = time.monotonic()
    d.signal(signal.SIGTERM)
    assert d.wait(5) == 0 and time.monotonic() - t < 2 * SLOW and not os.path.exists(d.socket)


@pytest.mark.skipif(SLOW > 1, reason="figures are those of the release build")
def test_pain_31_a_long_prompt_does_not_stall_a_running_stream(scripts, start, tmp_path):
    path = tmp_path / "rows.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "on", "--endless", "--pace-us", "5000", "--row-us", "1000", "--ctx", "8192"], check=True, cwd=ROOT)
    d = start(declared(("a", path, "ctx_cap: 8192\ndecode_stall: 300ms")))
    s = d.stream(model="a", max_tokens=600)
    events_of = (e for e in s.events() if not isinstance(e, tuple))
    for _ in range(20):
        next(events_of)
    done = []
    t = threading.Thread(target=lambda: done.append(d.complete(list(range(1, 200)) * 20, model="a", max_tokens=1).status))
    t.start()
    gaps, last = [], time.monotonic()
    for e in events_of:
        now = time.monotonic()
        gaps.append(now - last)
        last = now
    t.join()
    assert done == [200] and max(gaps) <= 0.3 + 0.05 + 0.1, f"longest gap {max(gaps):.3f} s"
    print(f"longest gap {max(gaps) * 1000:.0f} ms")


# --- reloads ---

def test_pain_67_fifty_reloads_in_a_second_during_a_load_are_one_instance(scripts, start):
    sims = {"s0": ("300MB", "upload 1 takes 2s")}
    d = start(declared(("a", scripts["small"]), **sims), wait=False)
    d.wait_listening()
    wait_for(lambda: (model(d, "a") or {}).get("status") == "loading", 5)
    t = time.monotonic()
    for i in range(50):
        d.write(declared(("a", scripts["small"], f"aliases: [ v{i} ]"), **sims))
        d.signal(signal.SIGHUP) if i % 2 else d.post("/admin/reconcile", None)
    assert time.monotonic() - t < 1 * SLOW
    assert reconcile(d).status == 200
    a = model(d, "a")
    assert a["status"] == "ready" and a["aliases"] == ["v49"] and len(a["placement"]) == 1 and a["counters"]["loads"] == 1
    assert a["observed_generation"] == a["generation"] == admin(d)["generation"]
    assert d.chat(model="v49", max_tokens=1).status == 200 and d.chat(model="v48", max_tokens=1).status == 404


def test_pain_69_an_alias_changed_under_streams_fails_no_request(scripts, start):
    four = "max_concurrent: 4\nmax_sessions: 4"
    d = start(declared(("a", scripts["small"], four), ("b", scripts["other"], four)))
    before = {n: model(d, n) for n in "ab"}
    streams = [d.stream(model="ab"[i % 2], max_tokens=300) for i in range(8)]
    got = [None] * 8

    def read(i):
        got[i] = streams[i].chunks()

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    d.write(declared(("a", scripts["small"], four + "\naliases: [ fresh ]"), ("b", scripts["other"], four)))
    assert reconcile(d).status == 200
    assert d.counters("a")["running"] == 4, "the streams are still going"
    assert d.counters("b")["running"] == 4
    for t in threads:
        t.join()
    assert all(g and g[-1]["choices"][0]["finish_reason"] == "length" for g in got)
    for n in "ab":
        m = model(d, n)
        assert m["counters"]["failed"] == m["counters"]["cancelled"] == 0 and m["counters"]["loads"] == 1
        assert m["placement"] [0]["estimated"] == before[n]["placement"][0]["estimated"] and m["since"] == before[n]["since"]
    assert d.chat(model="fresh", max_tokens=1).status == 200
    assert events(d, "b") == ["load_started", "load_done"]


def test_pain_69_a_reload_touches_no_kv_of_what_runs(models, start):
    """A real model's next token depends on all of its KV: eight sampled streams beside a reload say what they say without one."""
    four = "max_concurrent: 4\nmax_sessions: 4"
    d = start(declared(("a", models["slow"], four), ("b", models["slow"], four)))

    def fields(i):
        return {"model": "ab"[i % 2], "max_tokens": 150, "ignore_eos": True, "temperature": 1, "seed": i}

    def text(prompt, i):
        return d.chat(prompt, **fields(i)).json["choices"][0]["message"]["content"]

    want = [text(f"Story {i}", i) for i in range(8)]
    assert text("Story 1", 0) != want[0], "the same seed over another KV says something else"
    streams = [d.stream(f"Story {i}", **fields(i)) for i in range(8)]
    got = [None] * 8

    def read(i):
        got[i] = "".join(c["choices"][0]["delta"].get("content", "") for c in streams[i].chunks())

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    d.write(declared(("a", models["slow"], four + "\naliases: [ fresh ]"), ("b", models["slow"], four)))
    assert reconcile(d).status == 200
    assert d.counters("a")["running"] == d.counters("b")["running"] == 4, "the streams are still going"
    for t in threads:
        t.join()
    assert got == want


def test_a_third_model_is_added_beside_running_streams(scripts, start):
    d = start(declared(("a", scripts["small"])))
    s = d.stream(model="a", max_tokens=300)
    d.write(declared(("a", scripts["small"]), ("c", scripts["half"])))
    p = cli(d)
    assert p.returncode == 0 and "load_done          c" in p.stdout and "2 of 2 models serve" in p.stdout, p.stdout + p.stderr
    assert len(s.chunks()) > 100 and model(d, "a")["counters"]["loads"] == 1


def test_pain_75_a_broken_manifest_changes_nothing_and_says_where(scripts, start):
    d = start(declared(("a", scripts["small"])))
    good = d.manifest.read_text()
    d.manifest.write_text(good.replace("    source:", "    ctx_kap: 512\n    source:") + "    max_sessions: many\n    color: red\n")
    p = cli(d, "--reload", "--wait")
    assert p.returncode == 1 and p.stderr.count("error:") == 3, p.stderr
    line = 1 + good[: good.index("    source:")].count("\n")
    assert f"{d.manifest}:{line}:5: error: 'ctx_kap': no such key in a model; did you mean 'ctx_cap'?" in p.stderr, p.stderr
    assert cli(d, "--check").returncode == 1 and cli(d, "--plan").returncode == 1 and cli(d).returncode == 1
    s = admin(d)
    assert condition(s, "ManifestValid")["status"] == "False" and s["generation"] == 1 and model(d, "a")["status"] == "ready"
    assert f":{line}:5: error:" in d.log and "event=manifest_refused" in d.log
    r = reconcile(d, "wait=1")
    assert r.status == 400 and r.error["code"] == "manifest_invalid" and r.json["report"].count("error:") == 3
    d.manifest.write_text(good)
    assert cli(d, "--reload", "--wait").returncode == 0 and condition(admin(d), "ManifestValid")["status"] == "True"


def test_a_reload_that_fails_brings_the_old_form_back(scripts, start):
    """The first load takes four blocks of the die; the fifth is the new form's first."""
    sims = {"s0": ("300MB", "alloc 5 fails")}
    d = start(declared(("a", scripts["small"]), **sims))
    d.write(declared(("a", scripts["small"], "ctx_cap: 512"), **sims))
    p = cli(d)
    a = model(d, "a")
    assert a["status"] == "ready" and "rolled_back" in events(d, "a"), p.stdout + p.stderr
    assert p.returncode == 1 and condition(a, "Degraded")["reason"] == "OldForm" and a["observed_generation"] == 1
    assert d.get("/v1/models").json["data"][0]["ctx_cap"] == 4096 and d.chat(model="a", max_tokens=2).status == 200


def test_the_old_form_comes_back_by_its_own_die_s_reserve(scripts, start):
    s0, s1 = "  - { name: s0, kind: sim, memory: 4MiB }\n", '  - { name: s1, kind: sim, memory: 300MiB, reserve: 100MiB, script: "alloc 1 fails" }'
    text = lambda die: declared(("a", scripts["small"], f"dies: [ {die} ]\nctx_cap: 512")).split("dies:\n")[0] + "dies:\n" + s0 + s1 + "\nmodels:\n" + declared(("a", scripts["small"], f"dies: [ {die} ]\nctx_cap: 512")).split("models:\n")[1]
    d = start(text("s0"))
    d.write(text("s1"))
    cli(d, "--timeout", "5s")
    assert "rolled_back" in events(d, "a") and "rollback_failed" not in events(d, "a"), d.log


def test_a_form_that_does_not_fit_leaves_the_old_one_alone(scripts, start, tmp_path):
    d = start(declared(("a", scripts["half"]), s0=("100MB", "")))
    d.write(declared(("a", scripts["big"]), s0=("100MB", "")))
    p = cli(d)
    assert p.returncode == 3 and model(d, "a")["status"] == "ready" and "reload_started" not in d.log, p.stdout + p.stderr
    assert d.chat(model="a", max_tokens=2).status == 200


def test_a_model_no_longer_declared_is_drained_and_unloaded(scripts, start):
    d = start(declared(("a", scripts["small"]), ("b", scripts["small"])))
    s = d.stream(model="a", max_tokens=200)
    next(s.events())
    d.write(declared(("b", scripts["small"])))
    d.post("/admin/reconcile", None)
    wait_for(lambda: "unload_started" in events(d, "a"), 5)
    rest = list(s.events())
    assert rest[-1] == "[DONE]", "the running stream is whole"
    wait_for(lambda: model(d, "a") is None, 5)
    assert d.chat(model="a").status == 404 and d.chat(model="b", max_tokens=1).status == 200


def test_the_address_needs_a_restart_and_the_status_says_so(scripts, start):
    d = start(declared(("a", scripts["small"])))
    d.write(declared(("a", scripts["small"])).replace("127.0.0.1:PORT", f"127.0.0.1:{free_port()}"))
    assert reconcile(d).status == 200
    c = condition(admin(d), "Reconciled")
    assert c["reason"] == "RestartNeeded" and c["message"].count("server.listen") == 1
    d.write(d.manifest.read_text() + "    aliases: [ z ]\n")
    assert reconcile(d).status == 200
    assert condition(admin(d), "Reconciled")["message"].count("server.listen") == 1
    d.write(declared(("a", scripts["small"])))
    assert reconcile(d).status == 200
    assert condition(admin(d), "Reconciled")["reason"] == "AsDeclared", "it is as it was at start again"


def test_limits_change_in_place(scripts, start):
    d = start(declared(("a", scripts["small"])))
    big = {"model": "a", "prompt": "x" * 5000, "max_tokens": 1}
    assert d.post("/v1/completions", big).status == 400, "over its context"
    d.write(declared(("a", scripts["small"])).replace("server:\n", "server:\n  limits: { body: 4KiB }\n"))
    assert reconcile(d).status == 200 and condition(admin(d), "Reconciled")["status"] == "True"
    assert d.post("/v1/completions", big).status == 413


def test_a_die_is_not_closed_under_a_load_that_is_on_its_way_to_it(scripts, start):
    """The model moves to s1, and while it does the manifest forgets s1: what is there is finished, then undone, then s1 is closed."""
    slow = ("300MB", "upload 1 takes 1s")
    d = start(declared(("a", scripts["small"], "dies: [ s0 ]"), s0=("300MB", "")))
    d.write(declared(("a", scripts["small"], "dies: [ s1 ]"), s0=("300MB", ""), s1=slow))
    assert reconcile(d, "wait=1").status == 200
    wait_for(lambda: "reload_started" in events(d, "a"), 5)
    d.write(declared(("a", scripts["small"], "dies: [ s0 ]"), s0=("300MB", "")))
    assert reconcile(d).status == 200
    a = model(d, "a")
    assert a["status"] == "ready" and a["placement"][0]["estimated"][0]["die"] == "s0" and d.chat(model="a", max_tokens=2).status == 200
    assert [x["name"] for x in admin(d, "/admin/dies")["dies"]] == ["s0"]
    d.write(declared(("a", scripts["small"], "dies: [ s1 ]"), s0=("300MB", ""), s1=("200MB", "")))
    assert reconcile(d).status == 200
    assert condition(admin(d), "Reconciled")["reason"] == "AsDeclared", "s1 was closed: it is opened anew, with its new size"


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
    p = subprocess.Popen([str(BUILD / "pantheon-reconcile"), "--status", "--watch", "--socket", d.socket, str(d.manifest)], stdout=subprocess.PIPE, text=True)
    for _ in range(2):
        assert any("MODEL" in p.stdout.readline() for _ in range(8))
    p.send_signal(signal.SIGINT)
    assert p.wait(5 * SLOW) == -signal.SIGINT


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


# --- systemd ---

class Notify:
    def __init__(self, s):
        self.s, self.heard = s, []

    def until(self, done, timeout):
        end = time.monotonic() + timeout * SLOW
        while not done(self.heard):
            assert time.monotonic() < end, self.heard
            self.s.settimeout(max(0.01, end - time.monotonic()))
            try:
                self.heard += self.s.recv(4096).decode().split("\n")
            except socket.timeout:
                pass
        return self.heard

    def drain(self):
        """What came since the last time; forgets it."""
        self.s.settimeout(0.01)
        try:
            while True:
                self.heard += self.s.recv(4096).decode().split("\n")
        except socket.timeout:
            pass
        got, self.heard = self.heard, []
        return got


class notify_socket:
    def __init__(self, folder):
        self.path = str(folder / "n")

    def __enter__(self):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(self.path)
        return Notify(self.s), {"NOTIFY_SOCKET": self.path}

    def __exit__(self, *_):
        self.s.close()


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


# --- pantheon serve ---

@pytest.fixture
def serve(tmp_path):
    started = []

    def go(*args, env=None):
        port = free_port()
        p = subprocess.Popen([str(BUILD / "pantheon-cpu"), "serve", "--port", str(port), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "STATE_DIRECTORY": str(tmp_path), **(env or {})}, cwd=ROOT)
        started.append(p)

        def get(path):
            assert p.poll() is None, p.stderr.read()
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=10 * SLOW)
            try:
                c.request("GET", path)
                r = c.getresponse()
                return r.status, json.loads(r.read())
            except OSError:
                return 0, {}
            finally:
                c.close()

        wait_for(lambda: get("/ready")[0] == 200, 10)
        go.port = port
        return get

    yield go
    for p in started:
        p.terminate()
        p.communicate(timeout=20 * SLOW)


SIMS = {"PANTHEON_SIM": "s0:300MiB;s1:300MiB"}


def placements(get, name):
    m = next(m for m in get("/admin/models")[1]["models"] if m["name"] == name)
    return [[p["die"] for p in i["estimated"]] for i in m["placement"]]


def test_a_name_twice_is_two_copies_and_requests_are_shared_out(scripts, serve):
    get = serve("--model", scripts["small"], "--name", "m", "--dies", "0", "--model", scripts["small"], "--name", "m", "--dies", "s1", "--model", scripts["other"], env=SIMS)
    assert sorted(placements(get, "m")) == [["s0"], ["s1"]] and len(placements(get, "other")) == 1

    def ask():
        c = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=20 * SLOW)
        c.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "it goes", "max_tokens": 500}))
        assert c.getresponse().status == 200
        c.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    wait_for(lambda: [i["running"] for i in get("/admin/facts")[1]["instances"] if i["name"] == "m"] == [2, 2], 2, "each copy runs two")
    for t in threads:
        t.join()


def test_copies_without_dies_are_placed_apart(scripts, serve):
    get = serve("--model", scripts["small"], "--model", scripts["small"], env=SIMS)
    assert sorted(placements(get, "small")) == [["s0"], ["s1"]]


def test_flags_after_a_model_belong_to_it(scripts, serve):
    get = serve("--dies", "1", "--model", scripts["small"], "--model", scripts["other"], "--dies", "0,1", env=SIMS)
    assert placements(get, "small") == [["s1"]] and placements(get, "other") == [["s0", "s1"]]


def test_serve_ends_with_the_reason_when_nothing_can_be_served(scripts, serve, tmp_path):
    """A daemon waits for its file to come; a command line says so and ends. One model that serves is enough to go on."""
    def run(*args, sim):
        return subprocess.run([str(BUILD / "pantheon-cpu"), "serve", "--port", str(free_port()), *map(str, args)], capture_output=True, text=True, timeout=20 * SLOW,
                              env={**os.environ, "PANTHEON_SIM": sim}, cwd=ROOT)

    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    for args, sim, why in ((["--model", tmp_path / "none.gguf"], "", "none.gguf"), (["--model", bad], "", "bad.gguf"),
                           (["--model", scripts["half"], "--dies", "0"], "s0:16MiB", "needs"), (["--model", scripts["small"], "--dies", "0"], "s0:300MiB,alloc fails", "s0")):
        p = run(*args, sim=sim)
        assert p.returncode == 1 and re.search(f"event=model_unusable .*{why}", p.stderr) and "event=ready" not in p.stderr, p.stderr
    assert serve("--model", bad, "--model", scripts["small"])("/ready")[0] == 200


def test_what_serve_cannot_mean_is_refused(scripts):
    run = lambda *a, env=None: subprocess.run([BUILD / "pantheon-cpu", "serve", "--port", "0", *map(str, a)], capture_output=True, text=True, env={**os.environ, **(env or {})}, cwd=ROOT, timeout=20 * SLOW)
    for args, env, words in [
        (["--model", scripts["small"], "--name", "m", "--model", scripts["other"], "--name", "m"], None, "stands for two files"),
        (["--model", scripts["small"], "--model", scripts["small"], "--ctx-cap", "512"], None, "differ in a cap"),
        (["--model", scripts["small"], "--dies", "0"], None, "no accelerator dies"),
        (["--model", scripts["small"], "--dies", "2"], SIMS, "there are 2, from 0"),
        (["--model", scripts["small"], "--dies", ","], SIMS, "numbers or names"),
    ]:
        p = run(*args, env=env)
        assert p.returncode == 64 and words in p.stderr, (args, p.returncode, p.stderr)
