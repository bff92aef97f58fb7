"""The type that keys and values are kept in: from the manifest and from flags, in what is planned, taken and shown."""
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import BUILD, ROOT, SLOW, free_port
from world import cli, declared, events, model, reconcile
from test_serve import serve  # noqa: F401  (a fixture)

CLI = str(BUILD / "pantheon-cpu")
# bytes of 32 numbers: half precision, and blocks of 8 and of 4 bits with a scale of half precision each
BLOCK = {"f16": 64, "q8_0": 34, "q4_0": 18}

# the other builds have pages of four tokens, of which a quantised one takes the room of eight: no smaller then
SIZES_HOLD = SLOW == 1


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Tiny models by the dimensions of their heads."""
    folder = tmp_path_factory.mktemp("heads")

    def make(n):
        path = folder / f"{n}.gguf"
        subprocess.run([str(BUILD / "tests/gen/tiny"), str(path), "--chatml", "--ctx", "512", "--embd", str(4 * n), "--heads", "4", "--kv-heads", "2"], check=True, cwd=ROOT)
        return path

    return {n: make(n) for n in (16, 32)}


def planned(d, name):
    """KV bytes that the plan counts for the copy that runs."""
    return sum(p["kv_bytes"] for p in model(d, name)["placement"][0]["estimated"])


def test_kv_types_answer_and_take_what_they_promise(heads, start):
    d = start(declared(*((k, heads[32], f"kv: {{ type: {k} }}") for k in BLOCK), ("none", heads[32])))
    taken = {}
    for name in (*BLOCK, "none"):
        r = d.chat(model=name, max_tokens=20)
        assert r.status == 200 and r.json["usage"]["completion_tokens"] > 0, r.body
        copy = model(d, name)["placement"][0]
        assert copy["kv_type"] == (name if name in BLOCK else "f16")
        taken[name] = planned(d, name)
        if SLOW == 1:  # debug builds have redzones
            assert [p["kv_bytes"] for p in copy["measured"]] == [p["kv_bytes"] for p in copy["estimated"]]
    assert taken["none"] == taken["f16"] and taken["q8_0"] > taken["q4_0"]
    if SIZES_HOLD:
        for k, block in BLOCK.items():
            assert abs(taken[k] / taken["f16"] - block / 64) < 0.01, taken
    facts = d.get("/admin/facts").json["estimates"]
    assert sorted(x["kv"]["k_type"] for x in facts) == ["f16", "q4_0", "q8_0"], "one estimate of each type"
    d.write(declared(*((k, heads[32], f"kv: {{ type: {k} }}") for k in BLOCK), ("none", heads[32], "kv: { type: f16 }")))
    assert cli(d, "--plan").returncode == 0, "f16 is what it was"


@pytest.mark.skipif(not SIZES_HOLD, reason="it is all about the size")
def test_pain_08_kv_falls_by_the_exact_ratio_of_the_blocks_keys_and_values_apart(heads, start):
    forms = [("f16", "f16"), ("q8_0", "f16"), ("f16", "q4_0"), ("q8_0", "q4_0"), ("q4_0", "q4_0")]
    d = start(declared(*((f"m{i}", heads[32], f"kv: {{ k: {k}, v: {v} }}") for i, (k, v) in enumerate(forms))))
    taken = [planned(d, f"m{i}") for i in range(len(forms))]
    for i, (k, v) in enumerate(forms):
        r = d.chat(model=f"m{i}", max_tokens=20)
        assert r.status == 200 and r.json["usage"]["completion_tokens"] > 0, r.body
        copy = model(d, f"m{i}")["placement"][0]
        assert copy["kv_type"] == (k if k == v else f"{k}/{v}")
        assert [p["kv_bytes"] for p in copy["measured"]] == [p["kv_bytes"] for p in copy["estimated"]]
        assert taken[i] * 2 * BLOCK["f16"] == taken[0] * (BLOCK[k] + BLOCK[v]), "the exact ratio of the blocks"


def test_the_same_kv_in_other_words_is_no_change(heads, start):
    d = start(declared(("a", heads[32], "kv: { type: q8_0 }"), ("b", heads[32], "kv: { type: q4_0, floor: q8_0 }")))
    d.write(declared(("a", heads[32], "kv: { k: q8_0, v: q8_0 }"), ("b", heads[32], "kv: { k: q4_0, type: q4_0, floor: f16 }")))
    assert reconcile(d).status == 200
    assert [model(d, n)["counters"]["loads"] for n in "ab"] == [1, 1]
    d.write(declared(("a", heads[32], "kv: { k: q8_0, v: q4_0 }"), ("b", heads[32], "kv: { type: q4_0 }")))
    p = cli(d, "--plan")
    assert re.search(r"^-/\+ a +kv\.v q8_0 -> q4_0 needs a reload", p.stdout, re.M) and not re.search(r"^\S+ b ", p.stdout, re.M), p.stdout


def test_overcommit_takes_less_and_everybody_is_served(heads, start):
    """Four sessions of the cap are promised, there is KV for one: the requests that do not fit beside each other take turns."""
    d = start(declared(("all", heads[32], "ctx_cap: 256\nmax_sessions: 4\nmax_concurrent: 4\nkv: { floor: f16 }"),
                       ("over", heads[32], "ctx_cap: 256\nmax_sessions: 4\nmax_concurrent: 4\nkv: { floor: f16, overcommit: 400% }")))
    if SLOW == 1:  # debug builds have redzones
        assert planned(d, "all") == 4 * planned(d, "over")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: d.chat(model="over", max_tokens=200, temperature=0, messages=[{"role": "user", "content": f"{i}"}]), range(8)))
    assert [r.status for r in answers] == [200] * 8, [r.body for r in answers]
    alone = d.chat(model="all", max_tokens=200, temperature=0, messages=[{"role": "user", "content": "5"}])
    assert answers[5].json["choices"][0]["message"] == alone.json["choices"][0]["message"]


def test_a_new_kv_type_reloads_that_model_and_no_other(heads, start):
    d = start(declared(("a", heads[32]), ("b", heads[32])))
    before = planned(d, "a")
    d.write(declared(("a", heads[32], "kv: { type: q8_0 }"), ("b", heads[32])))
    p = cli(d, "--plan")
    assert p.returncode == 2 and re.search(r"^-/\+ a +kv\.type f16 -> q8_0 needs a reload; .* KV ", p.stdout, re.M), p.stdout + p.stderr
    assert reconcile(d).status == 200
    assert model(d, "a")["placement"][0]["kv_type"] == "q8_0" and (planned(d, "a") < before or not SIZES_HOLD)
    assert model(d, "b")["placement"][0]["kv_type"] == "f16" and planned(d, "b") == before
    assert model(d, "a")["counters"]["loads"] == 2 and model(d, "b")["counters"]["loads"] == 1
    assert d.chat(model="a", max_tokens=3).status == 200 and cli(d, "--plan").returncode == 0


@pytest.mark.skipif(not SIZES_HOLD, reason="it is all about the size")
def test_kv_of_q8_0_fits_where_f16_does_not(heads, start):
    d = start(declared(("a", heads[32], "max_sessions: 16")))
    parts = model(d, "a")["placement"][0]["estimated"]
    need = sum(p[k] for p in parts for k in ("weights_bytes", "kv_bytes", "scratch_bytes"))
    small = {"s0": (f"{need - 1}B", "")}
    assert model(start(declared(("a", heads[32], "max_sessions: 16"), **small)), "a")["status"] == "refused"
    assert model(start(declared(("a", heads[32], "max_sessions: 16\nkv: { type: q8_0 }"), **small)), "a")["status"] == "ready"


def test_heads_that_a_kv_type_does_not_fit_are_refused_before_a_load(heads, start):
    d = start(declared(("a", heads[16]), ("b", heads[16], "kv: { type: q8_0 }")))
    b = model(d, "b")
    assert b["status"] == "failed" and b["counters"]["loads"] == 0 and "load_started" not in events(d, "b"), b
    for word in ("Q8_0", "multiple of 32", "16", "f16", "kv.type"):
        assert word in b["reason"], b["reason"]
    d.write(declared(("a", heads[16], "kv: { type: q4_0 }"), ("b", heads[16], "kv: { type: f16 }")))
    p = cli(d, "--plan")
    assert p.returncode == 3 and re.search(r"^! +a +refused: .*multiple of 32", p.stdout, re.M) and re.search(r"^\+ +b ", p.stdout, re.M), p.stdout + p.stderr
    reconcile(d)
    assert model(d, "a")["placement"][0]["kv_type"] == "f16" and model(d, "a")["counters"]["loads"] == 1, "the old form stays"
    assert d.chat(model="a", max_tokens=2).status == d.chat(model="b", max_tokens=2).status == 200


def test_a_loaded_by_hand_model_has_its_kv_type(heads, start):
    d = start(declared(("first", heads[16])))
    r = d.post("/admin/models/load?wait=1", {"name": "x", "source": {"path": str(heads[32])}, "kv": {"type": "q4_0"}})
    assert r.status == 200 and r.json["placement"][0]["kv_type"] == "q4_0", r.body
    assert d.post("/admin/models/load", {"name": "y", "source": {"path": str(heads[32])}, "kv": {"type": "f32"}}).status == 400


def test_serve_keeps_kv_as_its_flag_says(heads, serve):  # noqa: F811
    get = serve("--kv", "Q8_0", "--model", heads[32], "--name", "a", "--model", heads[32], "--name", "b", "--kv", "K=Q8_0,v=q4_0")
    assert [m["placement"][0]["kv_type"] for m in get("/admin/models")[1]["models"]] == ["q8_0", "q8_0/q4_0"]


@pytest.mark.parametrize(
    "flags,says",
    [
        ("--kv f32 --model {}", "--kv f32: a server keeps KV as f16, q8_0 or q4_0"),
        ("--kv k=q8_0 --model {}", "--kv k=q8_0: a server keeps KV as f16, q8_0 or q4_0, or keys and values apart, as in k=q8_0,v=q4_0"),
        ("--kv q9 --model {}", "--kv q9: a server keeps KV as f16, q8_0 or q4_0"),
        ("--model {0} --kv q8_0 --model {0} --kv q4_0", "its copies differ"),
    ],
)
def test_serve_says_which_kv_types_there_are(heads, flags, says):
    r = subprocess.run([CLI, "serve", "--port", str(free_port()), *flags.format(heads[32]).split()], cwd=ROOT, capture_output=True, text=True, timeout=20 * SLOW)
    assert r.returncode == 64 and says in r.stderr, r


def test_serve_ends_when_the_heads_do_not_fit_the_kv_type(heads, tmp_path):
    r = subprocess.run([CLI, "serve", "--port", str(free_port()), "--model", str(heads[16]), "--kv", "q8_0"], cwd=ROOT, capture_output=True, text=True, timeout=20 * SLOW,
                       env={**os.environ, "STATE_DIRECTORY": str(tmp_path)})
    assert r.returncode == 1 and "multiple of 32" in r.stderr and "--kv" in r.stderr, r


def test_drift_looks_at_the_kv_type_that_is_asked_for(heads):
    def drift(*args):
        return subprocess.run([CLI, "drift", *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=60 * SLOW)

    for kv in BLOCK:
        r = drift("--model", heads[32], "--kv", kv, "--json")
        j = json.loads(r.stdout)
        assert r.returncode == 0 and j["kv"].lower() == kv and not j["past"], r
        assert [k["type"].lower() for k in j["kinds"] if k["op"] == "attend"] == [kv], j["kinds"]
    r = drift("--model", heads[16], "--kv", "q8_0")
    assert r.returncode == 1 and "multiple of 32" in r.stderr, r
    r = drift("--model", heads[32], "--kv", "q9")
    assert r.returncode == 64 and "'q9' is no type of a KV cache" in r.stderr, r


def test_inspect_splits_by_the_kv_type(heads, start):
    d = start(declared(("a", heads[32], "ctx_cap: 256\nmax_sessions: 3\ndies: [s0, s1]\nkv: { type: q8_0 }")))
    flags = "--ctx-cap 256 --max-sessions 3 --kv q8_0 --dies s0,s1 --json"
    r = subprocess.run([CLI, "inspect", str(heads[32]), *flags.split()], cwd=ROOT, capture_output=True, text=True, timeout=20 * SLOW)
    assert r.returncode == 0, r
    if SLOW == 1:
        assert [t["kv_bytes"] for t in json.loads(r.stdout)["dies"]] == [m["kv_bytes"] for m in model(d, "a")["placement"][0]["measured"]]
    if not SIZES_HOLD:
        return
    f32 = subprocess.run([CLI, "inspect", str(heads[32]), *flags.replace("q8_0", "f32").split()], cwd=ROOT, capture_output=True, text=True, timeout=20 * SLOW)
    assert sum(t["kv_bytes"] for t in json.loads(f32.stdout)["dies"]) > 3 * sum(t["kv_bytes"] for t in json.loads(r.stdout)["dies"])
