"""`pantheon serve`: flags as a manifest."""
import http.client
import json
import os
import re
import subprocess

import pytest

from conftest import BUILD, ROOT, SLOW, free_port, wait_for

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


def test_weights_are_mapped_or_read_as_asked(models, serve):
    for flags, mapped in (((), True), (("--no-mmap",), False)):
        placed = serve("--model", models["tiny"], *flags)("/admin/models")[1]["models"][0]["placement"]
        assert [m["mapped"] for m in placed[0]["measured"]] == [mapped], placed


SIMS = {"PANTHEON_SIM": "s0:300MiB;s1:300MiB"}


def placements(get, name):
    m = next(m for m in get("/admin/models")[1]["models"] if m["name"] == name)
    return [[p["die"] for p in i["estimated"]] for i in m["placement"]]


def test_a_name_twice_is_two_copies_and_requests_are_shared_out(scripts, serve):
    get = serve("--model", scripts["small"], "--name", "m", "--dies", "0", "--model", scripts["small"], "--name", "m", "--dies", "s1", "--model", scripts["other"], env=SIMS)
    assert sorted(placements(get, "m")) == [["s0"], ["s1"]] and len(placements(get, "other")) == 1

    held = []
    for _ in range(4):  # each is answered for as long as its client is there
        c = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=20 * SLOW)
        c.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "it goes", "stream": True}))
        held.append((c, c.getresponse()))
        assert held[-1][1].status == 200
    wait_for(lambda: [i["running"] for i in get("/admin/facts")[1]["instances"] if i["name"] == "m"] == [2, 2], 20, "each copy runs two")
    for c, _ in held:
        c.close()


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


def test_a_budget_of_thoughts_belongs_to_a_model(serve, tmp_path):
    from dialects import DIALECTS, write
    path = write(DIALECTS[0], tmp_path / "m.gguf")
    serve("--reasoning-budget", "3", "--model", path, "--name", "some", "--model", path, "--name", "none", "--reasoning-budget", "0")
    thoughts = {}
    for model, fields in (("some", {}), ("none", {}), ("free", {"reasoning_budget": -1})):
        c = http.client.HTTPConnection("127.0.0.1", serve.port, timeout=20 * SLOW)
        c.request("POST", "/v1/chat/completions", json.dumps({"model": "some" if model == "free" else model, "messages": [{"role": "user", "content": "case 6"}], "temperature": 0, **fields}))
        thoughts[model] = json.loads(c.getresponse().read())["choices"][0]["message"].get("reasoning_content", "")
        c.close()
    assert thoughts["none"] == "" and 0 < len(thoughts["some"]) <= 3 and thoughts["free"] == "Nothing to call."
