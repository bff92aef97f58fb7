"""Whose turn it is, through the daemon: tiers and what keys may ask for, sessions, what kept KV was worth and for whom, and a flood that waits."""
import json
import re
import threading

import pytest

from conftest import connection, manifest, wait_for
from test_access import bearer, line, put
from world import declared

KEYS = {"low": "sk-" + "11" * 24, "normal": "sk-" + "22" * 24, "high": "sk-" + "33" * 24}
TIERS = {"flex": "flex", "auto": "default", "default": "default", "scale": "default", "priority": "priority"}
RANK = {"flex": 0, "default": 1, "priority": 2}
MAY = {"low": "flex", "normal": "default", "high": "priority"}


@pytest.fixture
def keyed(models, scripts, start, tmp_path):
    file = tmp_path / "keys"
    put(file, line("low", KEYS["low"], "priority=low") + line("normal", KEYS["normal"]) + line("high", KEYS["high"], "priority=high"))
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 2\nmax_sessions: 8"), ("small", scripts["small"], "max_concurrent: 1\nqueue: { depth: 8 }"), server=f"api_keys_file: {file}"), wait=False)
    d.wait_listening()
    wait_for(lambda: len([m for m in d.get("/v1/models", headers=bearer(KEYS["high"])).json["data"] if m["status"] == "ready"]) == 2, 60)
    return d


def chat(d, key=None, **fields):
    return d.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}, headers=bearer(key) if key else None)


def test_the_tier_is_honoured_and_told_back(daemon):
    assert "service_tier" not in chat(daemon).json and "service_tier" not in chat(daemon, service_tier=None).json
    for asked, got in TIERS.items():
        assert chat(daemon, service_tier=asked).json["service_tier"] == got
        assert daemon.complete("ab", max_tokens=1, service_tier=asked).json["service_tier"] == got
        chunks = daemon.stream(max_tokens=2, service_tier=asked).chunks()
        assert {c["service_tier"] for c in chunks} == {got}
        r = daemon.post("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 2, "service_tier": asked}).json
        assert r["service_tier"] == got
    assert daemon.post("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 2}).json["service_tier"] == "default"


def test_a_key_gets_no_more_than_it_may(keyed):
    for name, key in KEYS.items():
        for asked, wants in TIERS.items():
            got = chat(keyed, key, service_tier=asked).json["service_tier"]
            assert RANK[got] == min(RANK[wants], RANK[MAY[name]]), (name, asked, got)


@pytest.mark.parametrize("field, bad", [("service_tier", "fast"), ("service_tier", 2), ("session_id", 7), ("session_id", "x" * 257), ("prompt_cache_key", ["a"]), ("prompt_cache_key", "\u00e4" * 129),
                                        ("session_id", "a\0b"), ("cache_prompt", "no")])
def test_a_bad_field_is_named(daemon, field, bad):
    r = chat(daemon, **{field: bad})
    assert r.status == 400 and r.error["param"] == field


def test_a_session_is_any_text_of_its_length(daemon):
    for session in ("x" * 256, "\u00e4" * 128, "../../etc", "%s%n", "", "\x01"):
        assert chat(daemon, session_id=session, prompt_cache_key=session).status == 200
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 1}
    for value, status in (("x" * 256, 200), ("x" * 257, 400), ("", 200), ("a b/c", 200), (b"\xff\xfe", 400)):
        r = daemon.post("/v1/completions", body, headers={"X-Session-Id": value})
        assert r.status == status, value
        if status == 400:
            assert r.error["param"] == "X-Session-Id"


def cache_of(d, prompt, key=None, **fields):
    r = d.post("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 3, **fields}, headers=bearer(key) if key else None)
    assert r.status == 200
    t, u = r.json["timings"], r.json["usage"]
    assert t["cache"]["hit"] == u["prompt_tokens_details"]["cached_tokens"]
    return t["cache"]


def misses(d, key):
    text = d.get("/metrics", headers=bearer(key)).body.decode()
    return {m[1]: int(m[2]) for m in re.finditer(r'^pantheon_cache_misses_total\{model="tiny",replica="0",reason="(\w+)"\} (\d+)$', text, re.M)}


def test_timings_say_what_kept_kv_was_worth_and_for_whom(keyed):
    d, a, b = keyed, KEYS["normal"], KEYS["high"]
    prompt = [5 + i % 90 for i in range(200)]
    before = misses(d, a)
    assert set(before) == {"off", "empty", "diverged", "evicted", "window", "state"}
    assert cache_of(d, prompt, a) == {"hit": 0, "shared": 0, "reason": "empty"}
    again = cache_of(d, prompt, a)
    assert again["hit"] >= 128 and again["reason"] == "full", again
    assert cache_of(d, prompt, a, session_id="other")["hit"] == again["hit"], "by the tokens, whatever the session is called"
    assert cache_of(d, prompt, b) == {"hit": 0, "shared": 0, "reason": "empty"}, "another key's is not found"
    assert cache_of(d, prompt, a, cache_prompt=False) == {"hit": 0, "shared": 0, "reason": "off"}
    forked = cache_of(d, prompt[:150] + [7] * 40, a)
    assert 128 <= forked["hit"] <= forked["shared"] <= 151 and forked["reason"] in ("full", "diverged"), forked
    after = misses(d, a)
    assert after["empty"] - before["empty"] == 2 and after["off"] - before["off"] == 1
    r = d.post("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 2}, headers=bearer(a)).json
    assert r["timings"]["cache"]["reason"] in ("empty", "diverged", "full")
    assert chat(d, a).json["timings"]["cache"]["shared"] > 0


def test_the_choices_of_a_request_share_its_prompt(daemon):
    prompt = [6 + i % 80 for i in range(190)]
    alone = daemon.complete(prompt, max_tokens=4, temperature=1.5, seed=3, n=3, cache_prompt=False).json
    r = daemon.complete(prompt, max_tokens=4, temperature=1.5, seed=3, n=3).json
    assert [c["text"] for c in r["choices"]] == [c["text"] for c in alone["choices"]]
    assert alone["timings"]["cache_n"] == 0 and alone["timings"]["prompt_n"] == 3 * 190
    assert r["timings"]["cache_n"] >= 2 * 128, "all but the first found it"
    many = daemon.complete([prompt, prompt[:170]], max_tokens=2).json
    assert many["timings"]["cache_n"] >= 2 * 128


def test_a_conversation_stays_at_the_replica_that_keeps_it(models, start):
    d = start(declared(("tiny", models["tiny"], "replicas: [ [ s0 ], [ s1 ] ]\nmax_concurrent: 2\nmax_sessions: 4")))
    ids = [5 + i * 7 % 90 for i in range(240)]
    said = set()
    for turn in range(10):
        d.complete([9 + turn] * 30, max_tokens=1)  # others come between
        c = cache_of(d, ids[:100 + 12 * turn])
        assert c["hit"] >= 64 if turn else c["hit"] == 0, (turn, c)
        text = d.get("/metrics").body.decode()
        said = {m[1]: int(m[2]) for m in re.finditer(r'^pantheon_prompt_tokens_cached_total\{model="tiny",replica="(\d)"\} (\d+)$', text, re.M)}
    assert sorted(said.values())[0] == 0 < sorted(said.values())[1], said


def test_what_waits_at_a_replica_that_fails_is_answered_by_the_other(scripts, start, tmp_path):
    lost = tmp_path / "lost"
    d = start(declared(("small", scripts["small"], "replicas: [ [ s0 ], [ s1 ] ]\nmax_concurrent: 1\nqueue: { depth: 8 }"), s0=("300MB", f"lost file={lost}"), s1=("300MB", "")))

    def sample(name, **labels):
        want = ",".join(f'{k}="{v}"' for k, v in {"model": "small", **labels}.items())
        found = re.search(rf"^{name}{{{want}}} (\d+)$", d.get("/metrics").body.decode(), re.M)
        return int(found[1]) if found else None

    wait_for(lambda: sample("pantheon_requests_running", replica=1) == 0, 20, "the second copy is there too")
    running = [d.stream(model="small") for _ in range(2)]  # one each
    wait_for(lambda: [sample("pantheon_requests_running", replica=r) for r in (0, 1)] == [1, 1], 20)
    got = []
    threads = [threading.Thread(target=lambda: got.append(d.chat(model="small", max_tokens=4))) for _ in range(8)]
    for t in threads:
        t.start()
    wait_for(lambda: sum(sample("pantheon_requests_queued", replica=r) for r in (0, 1)) == 8, 20)
    waited = sample("pantheon_requests_queued", replica=0)
    assert waited > 0
    lost.touch()
    wait_for(lambda: sample("pantheon_requests_queued", replica=1) == 8, 20, "the other has them")
    assert sample("pantheon_requests_total", replica=0, outcome="handed_over") == waited
    assert not got
    for s in running:
        s.close()
    for t in threads:
        t.join(60)
    assert [r.status for r in got] == [200] * 8
    assert {r.json["choices"][0]["message"]["content"] for r in got} == {"it g"}


def test_a_flood_waits_behind_one_request_of_another_key(keyed):
    d = keyed
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}

    def flood():
        conn = connection(d.port)
        conn.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), bearer(KEYS["normal"]))
        return conn, conn.getresponse()

    def counted():
        return next(m for m in d.get("/health").json["models"] if m["id"] == "small")

    running, waiting = flood(), [flood() for _ in range(6)]
    wait_for(lambda: counted()["running"] == 1 and counted()["queued"] == 6, 20)
    got = []
    t = threading.Thread(target=lambda: got.append(d.post("/v1/chat/completions", {**body, "max_tokens": 5}, headers=bearer(KEYS["high"]))))
    t.start()
    wait_for(lambda: counted()["queued"] == 7, 20)
    for part in running:  # the client leaves: the slot is free
        part.close()
    t.join(60)
    assert got and got[0].status == 200
    assert counted()["queued"] >= 5, "the flood's answers are endless: had one of them started before, it would be fewer"
    for conn, response in waiting:
        response.close()
        conn.close()
