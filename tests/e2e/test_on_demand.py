"""Models that are loaded on demand: by their first request, in each other's place, and gone when they are idle. Clients come back when Retry-After says."""
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import BUILD, ROOT, SLOW, wait_for
from world import FAST, admin, cli, condition, declared, events, model, notify_socket, reconcile, wait_status

ON = "state: on_demand\nmax_sessions: 1\nctx_cap: 512"
ONE = {"s0": ("220MB", "")}  # one `big` at a time


def patient(d, name, seconds=60, ask=None, **fields):
    """As a client that honours Retry-After: the answer that is not 503, and the refusals before it."""
    refused, end = [], time.monotonic() + seconds * SLOW
    while True:
        r = ask(name) if ask else d.chat(model=name, max_tokens=3, **fields)
        if r.status != 503:
            return r, refused
        refused.append(r)
        after = int(r.headers["retry-after"])
        assert 1 <= after <= 120 and r.headers.get("x-should-retry") != "false" and r.error["code"] == "model_loading", r.body
        assert time.monotonic() < end, refused[-1].body
        time.sleep(min(after, 1))


def unloads(d, name):
    return re.findall(rf'event=unload_started model="{name}" text="([^"]*)"', d.log)


def rest(d):
    """Until what was loaded gives way again: it serves for as long as its load took, and at least a second."""
    unit = {"ms": 0.001, "s": 1, "min": 60}
    time.sleep(max([1.0] + [float(n) * unit[u] for n, u in re.findall(r'event=load_done .*text="after ([\d.]+) (ms|s|min)"', d.log)]) + 0.2)


def test_the_first_request_loads_it_and_is_told_when_to_come_back(scripts, start):
    d = start(declared(("a", scripts["small"], ON + "\naliases: [ first, second ]"), ("b", scripts["small"], ON)))
    assert [m["status"] for m in admin(d)["models"]] == ["on_demand", "on_demand"] and "load_started" not in d.log
    listed = d.get("/v1/models").json["data"]
    assert [(m["id"], m["status"]) for m in listed] == [("a", "on_demand"), ("b", "on_demand")]
    assert d.get("/ready").json == {"status": "ready", "serving": 0, "on_demand": 2, "declared": 2}
    assert cli(d, "--plan").returncode == 0
    r = d.chat(model="second", max_tokens=2)
    assert r.status == 503 and r.error["type"] == "server_error" and r.error["code"] == "model_loading" and int(r.headers["retry-after"]) <= 3, r.body
    r, _ = patient(d, "first")
    assert r.status == 200 and r.json["model"] == "a"
    assert [m["status"] for m in admin(d)["models"]] == ["ready", "on_demand"] and events(d, "a")[:2] == ["load_started", "load_done"]
    assert d.get("/ready").json["serving"] == 1
    assert cli(d, "--plan").returncode == 0, "what was asked for runs as declared"


@pytest.mark.parametrize("path,body", [("/v1/completions", {"prompt": "x", "max_tokens": 2}), ("/v1/embeddings", {"input": "x"}), ("/tokenize", {"content": "x"}),
                                       ("/v1/responses", {"input": "x", "max_output_tokens": 2})])
def test_every_endpoint_asks_for_it(models, start, path, body):
    d = start(declared(("a", models["tiny"], "state: on_demand")))
    r = d.post(path, {"model": "a", **body})
    assert r.status == 503 and r.error["code"] == "model_loading" and "retry-after" in r.headers, r.body
    wait_status(d, "a", "ready")
    assert d.post(path, {"model": "a", **body}).status == 200


def test_pain_11_two_that_fit_only_alone_are_served_in_turn(scripts, start):
    d = start(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON), **ONE))
    for name in "aba":
        r, refused = patient(d, name)
        assert r.status == 200 and refused, r.body
    assert d.process.poll() is None and [e for e in events(d) if e[0] in ("load_done", "unload_done")] == [
        ("load_done", "a"), ("unload_done", "a"), ("load_done", "b"), ("unload_done", "b"), ("load_done", "a")]
    assert unloads(d, "a") == ["on s0: makes room for 'b'"] and unloads(d, "b") == ["on s0: makes room for 'a'"]


def test_pain_12_a_swap_waits_for_memory_that_comes_back_late(scripts, start):
    d = start(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON), s0=("220MB", "free late 500ms")))
    for name in "ab":
        assert patient(d, name)[0].status == 200
    waited = re.search(r"event=settled .*after (\d+) ms", d.log)
    assert waited and int(waited[1]) >= 400 and model(d, "b")["counters"]["load_failures"] == 0


@pytest.mark.parametrize("path,body", [("/v1/embeddings", {"input": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})])
def test_pain_15_a_pinned_model_does_not_give_way(scripts, start, path, body):
    d = start(declared(("a", scripts["big"], "max_sessions: 1\nctx_cap: 512"), ("b", scripts["big"], ON), **ONE))
    wait_status(d, "a", "ready")
    d.post(path, {"model": "b", **body})
    wait_status(d, "b", "refused")
    r = d.post(path, {"model": "b", **body})
    assert r.status == 503 and r.error["code"] == "would_evict_pinned" and r.error["type"] == "server_error" and r.headers["x-should-retry"] == "false", r.body
    assert "'a'" in r.error["message"] and "needs" in r.error["message"]
    assert r.error["need_bytes"] > 160 << 20 and r.error["have_bytes"] < r.error["need_bytes"]
    assert condition(model(d, "b"), "Placed")["reason"] == "WouldEvictPinned"
    p = cli(d, "--plan")
    assert p.returncode == 3 and re.search(r"^! +b +refused \(would_evict_pinned\): needs .*'a'", p.stdout, re.M), p.stdout
    assert d.chat(model="a", max_tokens=2).status == 200 and not unloads(d, "a")


def test_a_higher_priority_does_not_give_way_and_a_lower_one_does(scripts, start):
    d = start(declared(("high", scripts["big"], ON + "\npriority: 5"), ("low", scripts["big"], ON), **ONE))
    assert patient(d, "high")[0].status == 200
    d.chat(model="low")
    wait_status(d, "low", "refused")
    r = d.chat(model="low")
    assert r.status == 503 and r.error["code"] == "would_evict_pinned" and "'high'" in r.error["message"], r.body
    assert d.post("/admin/models/unload", {"name": "high"}).status in (200, 202)
    wait_status(d, "low", "ready")
    assert d.chat(model="low", max_tokens=2).status == 200 and d.chat(model="high").error["code"] == "model_unavailable", "held: nobody's request brings it back"
    assert d.post("/admin/models/load?wait=1", {"name": "high"}).status == 200 and unloads(d, "low") == ["on s0: makes room for 'high'"]


def test_only_what_frees_the_memory_that_is_short_goes_and_the_least_recently_used_first(scripts, start):
    """`other` is the least recently used and frees nothing on s0; of the two halves there the older goes."""
    d = start(declared(("other", scripts["small"], ON + "\ndies: [ s1 ]"), ("old", scripts["half"], ON + "\ndies: [ s0 ]"), ("new", scripts["half"], ON + "\ndies: [ s0 ]"),
                       ("comes", scripts["half"], ON + "\ndies: [ s0 ]"), s0=("220MB", ""), s1=("300MB", "")))
    for name in ("other", "new", "old", "new"):
        assert patient(d, name)[0].status == 200
    rest(d)
    assert patient(d, "comes")[0].status == 200
    assert [m["status"] for m in admin(d)["models"]] == ["ready", "on_demand", "ready", "ready"]


def test_a_model_that_becomes_loaded_takes_the_place_of_one_on_demand(scripts, start):
    d = start(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON), **ONE))
    assert patient(d, "a")[0].status == 200
    rest(d)
    d.write(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON.replace("on_demand", "loaded")), **ONE))
    assert reconcile(d).status == 200
    assert [m["status"] for m in admin(d)["models"]] == ["on_demand", "ready"] and unloads(d, "a") == ["on s0: makes room for 'b'"]


def test_loaded_and_on_demand_change_places_without_a_reload(scripts, start):
    d = start(declared(("a", scripts["small"], ON), ("b", scripts["small"], ON.replace("on_demand", "loaded"))))
    assert patient(d, "a")[0].status == 200
    d.write(declared(("a", scripts["small"], ON.replace("on_demand", "loaded")), ("b", scripts["small"], ON + "\nttl: 1s")))
    assert reconcile(d).status == 200 and model(d, "a")["status"] == "ready" and model(d, "a")["counters"]["loads"] == 1
    wait_status(d, "b", "on_demand")
    assert model(d, "b")["counters"]["loads"] == 1 and unloads(d, "b") == ["on s1: idle for its ttl of 1 s"] or unloads(d, "b") == ["on s0: idle for its ttl of 1 s"]
    d.write(declared(("a", scripts["small"], "state: absent"), ("b", scripts["small"], ON.replace("on_demand", "loaded"))))
    assert reconcile(d).status == 200 and [m["status"] for m in admin(d)["models"]] == ["absent", "ready"]


def test_one_that_is_idle_for_its_ttl_goes_and_one_that_answers_does_not(scripts, start):
    d = start(declared(("a", scripts["small"], ON + "\nttl: 1s")))
    assert patient(d, "a")[0].status == 200
    s = d.stream(model="a", max_tokens=400)  # of more than its ttl
    text = s.chunks()
    assert text[-1]["choices"][0]["finish_reason"] == "length" and model(d, "a")["status"] == "ready" and not unloads(d, "a")
    ended = time.monotonic()
    wait_status(d, "a", "on_demand", 5)
    assert time.monotonic() - ended >= 0.6, "counted from the end of its last request"
    assert unloads(d, "a") == ["on s0: idle for its ttl of 1 s"]
    die = admin(d, "/admin/dies")["dies"][0]
    assert die["ours_bytes"] == 0 and die["contexts"] == 0
    assert patient(d, "a")[0].status == 200, "and it comes back"


def test_a_request_that_no_worker_sees_is_one_too(models, start):
    d = start(declared(("a", models["tiny"], "state: on_demand\nttl: 1s")))
    end = time.monotonic() + 3
    while time.monotonic() < end:
        d.post("/tokenize", {"model": "a", "content": "x"})
        time.sleep(0.1)
    assert model(d, "a")["counters"]["loads"] == 1 and not unloads(d, "a")
    wait_status(d, "a", "on_demand", 5)


def test_what_gives_way_ends_its_answers_first(scripts, start):
    d = start(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON), **ONE))
    assert patient(d, "a")[0].status == 200
    rest(d)
    s = d.stream(model="a", max_tokens=400)
    d.chat(model="b")
    wait_for(lambda: unloads(d, "a"), 10, "a drain")
    r = d.chat(model="a")
    assert r.status == 503 and r.error["code"] == "model_loading" and "retry-after" in r.headers, r.body
    got = s.chunks()
    assert got[-1]["choices"][0]["finish_reason"] == "length"
    assert patient(d, "b")[0].status == 200 and patient(d, "a")[0].status == 200


def test_copies_of_one_share_a_wish_and_only_the_first_makes_room(scripts, start):
    copies = "state: on_demand\nmax_sessions: 1\nctx_cap: 512\nreplicas: [ [ s0 ], [ s1 ] ]"
    d = start(declared(("both", scripts["big"], copies), ("one", scripts["big"], ON + "\ndies: [ s1 ]"), s0=("220MB", ""), s1=("220MB", "")))
    assert patient(d, "one")[0].status == 200
    rest(d)
    assert patient(d, "both")[0].status == 200
    assert not unloads(d, "one") and [p["replica"] for p in model(d, "both")["placement"]] == [0]
    assert cli(d, "--plan").returncode == 0
    rest(d)
    assert d.post("/admin/models/unload", {"name": "one"}).status in (200, 202)
    wait_for(lambda: [p["replica"] for p in model(d, "both")["placement"] if p["state"] == "ready"] == [0, 1], 10, "the second copy where there is room now")


def test_a_split_on_demand_takes_the_dies_that_it_needs(scripts, start):
    d = start(declared(("wide", scripts["half"], ON + "\ndies: 'auto:2'"), ("a", scripts["half"], ON + "\ndies: [ s0 ]"), ("b", scripts["half"], ON + "\ndies: [ s1 ]"), s0=("90MB", ""), s1=("90MB", "")))
    for name in "ab":
        assert patient(d, name)[0].status == 200
    assert patient(d, "wide")[0].status == 200
    assert [m["status"] for m in admin(d)["models"]] == ["ready", "on_demand", "on_demand"]
    assert patient(d, "a")[0].status == 200 and model(d, "wide")["status"] == "on_demand"


def test_a_file_that_cannot_be_served_is_told_before_anybody_asks(scripts, start, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    d = start(declared(("bad", path, ON), ("good", scripts["small"], ON)))
    assert model(d, "bad")["status"] == "failed" and cli(d, "--plan").returncode == 3
    r = d.chat(model="bad")
    assert r.status == 503 and r.error["code"] == "model_unavailable" and "m.gguf" in r.error["message"], r.body
    assert patient(d, "good")[0].status == 200


def test_a_file_that_vanishes_is_an_error_with_its_name_and_others_are_served(scripts, start, tmp_path):
    path = tmp_path / "m.gguf"
    path.symlink_to(scripts["big"])
    d = start(declared(("a", path, ON), ("b", scripts["big"], ON), **ONE), env=FAST)
    assert patient(d, "a")[0].status == 200 and patient(d, "b")[0].status == 200
    path.unlink()
    d.chat(model="a")
    wait_status(d, "a", "failed")
    r = d.chat(model="a")
    assert r.status == 503 and r.error["code"] == "model_unavailable" and "m.gguf" in r.error["message"], r.body
    assert d.chat(model="b", max_tokens=2).status == 200 and not unloads(d, "b"), "nothing gave way to it"
    path.symlink_to(scripts["big"])
    wait_for(lambda: model(d, "a")["status"] != "failed", 15, "the file is looked at again")
    assert patient(d, "a")[0].status == 200


def test_a_load_that_fails_backs_off_and_the_other_keeps_serving(scripts, start):
    d = start(declared(("a", scripts["small"], ON), ("b", scripts["small"], ON), s0=("300MB", "alloc 1-2 fails")), env=FAST)
    d.chat(model="a")
    wait_status(d, "a", "ready")
    assert model(d, "a")["counters"]["load_failures"] == 2 and patient(d, "b")[0].status == 200


def test_pain_77_thirty_clients_of_three_that_fit_one_at_a_time_are_all_served(scripts, start):
    d = start(declared(*((n, scripts["big"], ON + "\nmax_concurrent: 1\nqueue: { depth: 64 }") for n in "abc"), **ONE))
    began = time.monotonic()
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda i: patient(d, "abc"[i % 3], 90), range(30)))
    assert [r.status for r, _ in answers] == [200] * 30
    loads = [m["counters"]["loads"] for m in admin(d)["models"]]
    assert all(n >= 1 for n in loads) and sum(loads) <= 12, loads
    assert time.monotonic() - began < 60 * SLOW and d.process.poll() is None


def test_two_asked_for_in_turn_without_patience_both_make_progress(scripts, start):
    """Nobody waits: both are asked for all the time. Each load serves before it gives way."""
    d = start(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON), **ONE))
    served, over, began = {"a": 0, "b": 0}, threading.Event(), time.monotonic()

    def loads():
        return [m["counters"]["loads"] for m in admin(d)["models"]]

    def hammer(name):
        while not over.is_set():
            r = d.chat(model=name, max_tokens=1)
            assert r.status in (200, 503) and (r.status == 200 or r.error["code"] == "model_loading"), r.body
            served[name] += r.status == 200
            time.sleep(0.05)

    threads = [threading.Thread(target=hammer, args=(n,)) for n in "ab"]
    for t in threads:
        t.start()
    try:
        wait_for(lambda: min(loads()) >= 3, 60, "turns")
    finally:
        over.set()
        for t in threads:
            t.join()
    assert min(served.values()) >= 3, served
    assert sum(loads()) <= time.monotonic() - began + 2, "each serves for a second before it gives way"


def test_a_crowd_that_never_waits_changes_nothing_for_those_who_do(scripts, start):
    """Twelve clients that ask again at once, for three models that fit one at a time: pages answer, and a client with patience is served of each."""
    d = start(declared(*((n, scripts["big"], ON + "\nqueue: { depth: 64 }") for n in "abc"), **ONE))
    over, seen, slowest = threading.Event(), set(), [0.0]

    def hammer(i):
        while not over.is_set():
            r = d.chat(model="abc"[i % 3], max_tokens=1)
            seen.add((r.status, r.error["code"] if r.status != 200 else None))

    def look():
        while not over.is_set():
            t = time.monotonic()
            assert d.get("/health").status == 200 and d.get("/admin/models").status == 200
            slowest[0] = max(slowest[0], time.monotonic() - t)
            time.sleep(0.1)

    threads = [threading.Thread(target=hammer, args=(i,)) for i in range(12)] + [threading.Thread(target=look)]
    for t in threads:
        t.start()
    try:
        for name in "cab":
            assert patient(d, name, 40)[0].status == 200
    finally:
        over.set()
        for t in threads:
            t.join()
    assert seen <= {(200, None), (503, "model_loading"), (429, "queue_full")}, seen
    assert slowest[0] < 5 * SLOW and d.log.count("event=unload_started") <= 60 * SLOW


def test_a_conversation_survives_that_its_model_gave_way(models, start):
    """save_on_unload: what was computed before the swap is not computed again after it."""
    keep = "state: on_demand\nsave_on_unload: true\nmax_sessions: 2"
    part = model(start(declared(("a", models["slow"], "max_sessions: 2"))), "a")["placement"][0]["estimated"][0]
    need = part["weights_bytes"] + part["kv_bytes"] + part["scratch_bytes"]
    d = start(declared(("a", models["slow"], keep), ("b", models["slow"], keep), s0=(f"{need * 3 // 2}B", "")))
    prompt = list(range(3, 200))

    def say(name):
        return d.post("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0}, headers={"X-Session-Id": "talk"})

    for name in "ab":
        assert patient(d, name, ask=say)[0].json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert unloads(d, "a") == ["on s0: makes room for 'b'"]
    prompt.append(5)
    assert patient(d, "a", ask=say)[0].json["usage"]["prompt_tokens_details"]["cached_tokens"] == 197


def test_a_kill_in_a_load_leaves_nothing_to_resume(scripts, start):
    d = start(declared(("a", scripts["big"], ON), s0=("220MB", "upload takes 20ms")))
    d.chat(model="a")
    wait_for(lambda: ("load_started", "a") in events(d), 10, "a load")
    d.process.kill()
    d.process.wait()
    d.process = subprocess.Popen([str(BUILD / "pantheond"), "--config", str(d.manifest)], stdout=d.log_file, stderr=d.log_file, env={**os.environ, "STATE_DIRECTORY": str(d.state)}, cwd=ROOT)
    d.wait_listening()
    wait_for(d.settled, 10, "settled")
    assert model(d, "a")["status"] == "on_demand" and patient(d, "a")[0].status == 200


def test_a_reload_in_a_swap_keeps_to_the_newest_manifest(scripts, start):
    sims = {"s0": ("220MB", "free late 800ms")}
    d = start(declared(("a", scripts["big"], ON), ("b", scripts["big"], ON), **sims))
    assert patient(d, "a")[0].status == 200
    rest(d)
    d.chat(model="b")
    wait_for(lambda: unloads(d, "a"), 10, "the swap")
    d.write(declared(("a", scripts["big"], ON), ("c", scripts["big"], ON), **sims))
    os.kill(d.process.pid, signal.SIGHUP)
    wait_for(lambda: model(d, "b") is None and model(d, "c"), 20, "b gone")
    assert d.chat(model="b").status == 404
    assert patient(d, "c")[0].status == 200 and patient(d, "a")[0].status == 200


def test_ready_counts_what_is_on_demand(scripts, start, tmp_path):
    with notify_socket(tmp_path) as (n, env):
        start(declared(("a", scripts["small"], ON)), env=env)
        assert "READY=1" in n.until(lambda h: "READY=1" in h, 10)


def test_pain_27_hardware_does_not_change_a_cap(scripts, start):
    """The caps that the manifest leaves open are the same on a die of any size."""
    caps = []
    for size in ("40MB", "300MB", "3000MB"):
        d = start(declared(("a", scripts["small"]), s0=(size, "")))
        m = d.get("/v1/models/a").json
        caps.append((m["ctx_cap"], m["effective_ctx"], m["max_concurrent"]))
        assert model(d, "a")["status"] == "ready"
    assert len(set(caps)) == 1, caps
