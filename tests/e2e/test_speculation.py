"""Speculation through the whole daemon: answers are the same with it and without, and what it does is told. SPECULATION_PROMPTS=200 for many
more, SPECULATION_MODEL=FILE for another model than the random one of the tests."""
import concurrent.futures
import json
import os
import random
import subprocess

from conftest import BUILD, ROOT, Daemon, manifest
from world import reconcile

N = int(os.environ.get("SPECULATION_PROMPTS", "30"))
MODEL = os.environ.get("SPECULATION_MODEL")
WORDS = "river stone light under seven garden machine letter quiet window copper answer signal winter paper".split()


def prompt(r):
    """Text, code or JSON, in which much stands more than once."""
    kind = r.randrange(3)
    if kind == 0:
        line = " ".join(r.sample(WORDS, 5))
        return f"Write this three times: {line}. {line}. And then: {r.choice(WORDS)}"
    if kind == 1:
        name = r.choice(WORDS)
        return f"Repeat this code:\ndef {name}(x):\n    if x > {r.randrange(99)}:\n        return {name}(x - 1)\n    return x\n"
    return "Repeat this JSON: " + json.dumps([{"name": r.choice(WORDS), "value": r.randrange(9)} for _ in range(4)])


def pair(tmp_path, path):
    more = ("ctx_cap: 1024\n" if MODEL else "") + "max_concurrent: 4\nmax_sessions: 4\nspeculation: "
    return Daemon(tmp_path, manifest(("on", path, more + "auto"), ("off", path, more + "off")))


def metric(d, name, model):
    return sum(float(line.rsplit(" ", 1)[1]) for line in d.get("/metrics").body.decode().splitlines() if line.startswith(name + "{") and f'model="{model}"' in line)


def test_answers_are_the_same_with_speculation_and_without(models, tmp_path):
    d = pair(tmp_path, MODEL or models["tiny"])
    most = 60 if MODEL else 30

    def one(i):
        r = random.Random(i // 2)
        fields = {"messages": [{"role": "user", "content": prompt(r)[: None if MODEL else 90]}], "max_tokens": most, "seed": i, "temperature": 0 if i % 2 == 0 else r.choice([0.3, 0.7, 1.0])}
        if i % 7 == 0:
            fields["response_format"] = {"type": "json_object"}
        if i % 5 == 0:
            fields["stop"] = [r.choice("aeiou,;") + r.choice(" tn")]
        if i % 11 == 0:
            fields |= {"n": 2, "logprobs": True, "top_logprobs": 2}
        told = []
        for name in ("on", "off"):
            a = d.post("/v1/chat/completions", {"model": name, **fields})
            assert a.status == 200, (i, a.body)
            told.append(a.json)
        on, off = told
        assert on["choices"] == off["choices"], (i, fields)
        assert on["usage"]["completion_tokens"] == off["usage"]["completion_tokens"]
        assert off["timings"]["draft_n"] == off["timings"]["draft_n_accepted"] == 0
        t = on["timings"]
        assert 0 <= t["draft_n_accepted"] <= t["draft_n"]
        return t["draft_n"], t["draft_n_accepted"], t["predicted_n"]

    try:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            drafted, accepted, n = map(sum, zip(*pool.map(one, range(2 * N))))
        assert metric(d, "pantheon_draft_tokens_total", "on") == drafted and metric(d, "pantheon_draft_tokens_accepted_total", "on") == accepted
        assert metric(d, "pantheon_draft_tokens_total", "off") == 0
        assert metric(d, "pantheon_generated_tokens_total", "on") == metric(d, "pantheon_generated_tokens_total", "off")
    finally:
        d.stop()
    print(f"{2 * N} answers of {n} tokens: {drafted} drafted, {accepted} accepted")
    if MODEL:
        assert accepted > 0, "nothing was ever drafted"


def test_speculation_is_switched_while_a_model_serves(start, tmp_path):
    path = tmp_path / "again.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "round and " * 40, "--pace-us", "3000", "--row-us", "10"], check=True, cwd=ROOT)
    how = lambda word: manifest(("m", path, f"speculation: {word}"))
    d = start(how("off"))
    said = [d.chat(model="m", max_tokens=200).json]
    for word in ("auto", "off"):
        d.write(how(word))
        assert reconcile(d).status == 200
        said.append(d.chat(model="m", max_tokens=200).json)
    assert len({x["choices"][0]["message"]["content"] for x in said}) == 1
    off, auto, again = (x["timings"] for x in said)
    assert off["draft_n"] == again["draft_n"] == 0
    assert auto["draft_n_accepted"] > 100 and auto["predicted_ms"] < off["predicted_ms"] / 1.5, (auto, off)
    assert metric(d, "pantheon_model_loads_total", "m") == 1


def test_the_command_line_takes_speculation(models):
    r = subprocess.run([str(BUILD / "pantheon-cpu"), "serve", "--model", str(models["tiny"]), "--speculation", "sometimes"], capture_output=True, text=True)
    assert r.returncode != 0 and "auto or off" in r.stderr
    r = subprocess.run([str(BUILD / "pantheon-cpu"), "bench", "-m", str(models["tiny"]), "--json", "-p", "0", "-n", "4", "-r", "1", "--drafts", "1,8"], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    drafts = json.loads(r.stdout)["drafts"]
    assert [x["drafted"] for x in drafts] == [1, 8]
    assert all(abs(x["all_accepted_per_second"] / x["none_accepted_per_second"] - 1 - x["drafted"]) < 0.01 for x in drafts)
