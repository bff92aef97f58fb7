"""Memory that is short, as the kernel makes it: real limits around the daemon, and what it holds beside what it said it would."""
import concurrent.futures

import pytest

import limits
from conftest import SLOW, SMOL, manifest
from world import declared, model

MIB = 1 << 20
kernel = pytest.mark.skipif(not limits.available(), reason="no control group for memory can be made here")


def estimated(d, name):
    """Bytes that a model was said to take, all parts of it."""
    p = model(d, name)["placement"][0]
    return p["host_bytes"] + sum(x["weights_bytes"] + x["kv_bytes"] + x["scratch_bytes"] for x in p["estimated"])


@pytest.mark.parametrize("ctx", [512, 2048])
def test_what_is_held_is_what_was_estimated(start, ctx):
    """Every position of every session is filled: within 1 % and 16 MiB, in which are the program itself, its threads and buffers."""
    d = start(manifest(("m", SMOL, f"ctx_cap: {ctx}\nmax_sessions: 4\nmax_concurrent: 4")))
    answers, _ = limits.crowd(d, "m", 4, ctx - 16, 16)
    assert [a.status for a in answers] == [200] * 4
    estimate, held = estimated(d, "m"), d.memory()
    assert abs(held - estimate) <= estimate / 100 + 16 * MIB, (held / MIB, estimate / MIB)


def test_pain_16_nothing_is_allocated_once_it_is_ready(start, scripts):
    """The largest step is tried at load. From then on every allocation of the die fails, and a thousand requests do not need one."""
    d = start(declared(("a", scripts["small"], "max_concurrent: 4\nmax_sessions: 4\nctx_cap: 512"), s0=("300MB", "alloc 5- fails")))
    for _ in range(1000 // 8 // SLOW):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert {a.status for a in pool.map(lambda i: d.complete(f"Hello {i} " * 20, model="a", max_tokens=8), range(8))} == {200}


def ask_at(start, limit, path, sessions, prompt, answer, lines=""):
    """`sessions` requests at once under a limit: (statuses, tokens a second, kills, peak, daemon)."""
    limits.forget_cache(path)
    with limits.Group(limit) as g:
        text = manifest(("m", path, f"ctx_cap: {prompt + answer + 24}\nmax_sessions: {sessions}\nmax_concurrent: {sessions}\nqueue: {{ depth: {sessions}, timeout: 600s }}\n{lines}"),
                        top="host: { ram_reserve: 16MiB }")
        d = start(text, launch=g.launch)
        answers, seconds = limits.crowd(d, "m", sessions, prompt, answer)
        assert d.process.poll() is None, d.log
        tokens = sum(a.json["usage"]["total_tokens"] for a in answers if a.status == 200)
        said = [a.error for a in answers if a.status != 200]
        result = {"limit": limit, "good": sum(a.status == 200 for a in answers), "said": said, "tps": tokens / seconds, "kills": g.oom_kills(), "peak": g.peak(),
                  "status": model(d, "m"), "log": d.log}
        d.stop()
        assert g.oom_kills() == 0, d.log[-3000:]
        return result


@kernel
def test_a_load_that_does_not_fit_the_limit_is_refused_with_numbers(start):
    r = ask_at(start, 96 * MIB, SMOL, 4, 500, 20)
    assert r["good"] == 0 and r["kills"] == 0
    for e in r["said"]:
        assert e["code"] == "model_refused" or "MiB" in e["message"], e
    assert r["status"]["status"] == "refused" and "MiB" in r["status"]["reason"], r["status"]


@kernel
def test_what_the_limit_leaves_room_for_completes(start):
    """From ample to where one fits: who trusts the load gets as much at once as there is room for, all of it in the end, and nobody is killed."""
    best = None
    for limit in (600 * MIB, 260 * MIB, 180 * MIB):
        r = ask_at(start, limit, SMOL, 8, 900, 100, lines="memory: trust")
        assert r["good"] + len(r["said"]) == 8
        assert r["good"] >= 1, r
        for e in r["said"]:
            assert e["code"] in ("queue_full", "rate_limit_exceeded", "overloaded", "memory_short"), e
        assert r["peak"] <= limit
        best = best or r
    assert best["good"] == 8
