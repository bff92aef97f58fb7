"""Memory that is short, as the kernel makes it: real limits around the daemon, and what it holds beside what it said it would."""
import concurrent.futures
import re

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


@pytest.mark.parametrize("ctx", [512, 1536])
def test_what_is_held_is_what_was_estimated(start, ctx):
    """Every position of every session is filled: within 1 % and 16 MiB, in which are the program itself, its threads and buffers."""
    d = start(manifest(("m", SMOL, f"ctx_cap: {ctx}\nmax_sessions: 4\nmax_concurrent: 4")))
    answers, _ = limits.crowd(d, "m", 4, ctx - 16, 16)
    assert [a.status for a in answers] == [200] * 4
    estimate, held = estimated(d, "m"), d.memory()
    assert abs(held - estimate) <= estimate / 100 + 16 * MIB, (held / MIB, estimate / MIB)


def test_pain_16_nothing_is_allocated_once_it_is_ready(start, scripts):
    """The largest step is tried at load. From then on every allocation of the die fails, and a thousand requests do not need one."""
    d = start(declared(("a", scripts["quick"], "max_concurrent: 4\nmax_sessions: 4\nctx_cap: 512"), s0=("300MB", "alloc 5- fails")))
    for _ in range(1000 // 8 // SLOW):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert {a.status for a in pool.map(lambda i: d.complete(f"Hello {i} " * 20, model="a", max_tokens=2), range(8))} == {200}


@kernel
def test_a_load_that_does_not_fit_the_limit_is_refused_with_numbers(start):
    r = limits.ask_at(start, 96 * MIB, SMOL, 4, 500, 20)
    assert r["good"] == 0
    for e in r["said"]:
        assert (e["code"], e["type"]) == ("model_unavailable", "server_error") and re.search(r"needs \d+ MiB on cpu .* where \d+ MiB are free", e["message"]), e
    assert r["status"]["status"] == "refused" and "MiB" in r["status"]["reason"], r["status"]


@kernel
def test_what_the_limit_leaves_room_for_completes(start):
    """From ample to where one fits: who trusts the load gets as much at once as there is room for, all of it in the end, and nobody is killed."""
    for limit in (400 * MIB, 125 * MIB):
        r = limits.ask_at(start, limit, SMOL, 8, 400, 16, lines="memory: trust")
        assert r["good"] == 8, r["said"]
        assert ("rung_applied" in r["log"]) == (limit < 300 * MIB), r["log"]
    assert "one_slot" in r["log"], r["log"]
