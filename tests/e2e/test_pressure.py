"""Memory that becomes short: levels, what models give way by, that it is told, and that all of it is taken back."""
import concurrent.futures
import re
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, SLOW, manifest, wait_for
from world import condition, declared, model, notify_socket, reconcile

ORDER = ["kv_floor", "requantise_cold", "half_concurrency", "prefill_clamp", "evict_cold", "drop_page_cache", "one_slot"]
AT = {"normal": 0, "watch": 2, "tight": 6, "critical": 7}  # so many rungs are applied
PRESSURE = "pressure: { watch: 80%, tight: 90%, critical: 96%, leave: 5%, hold: 300ms }"
GIB = 1 << 30


class Host:
    """A made-up host: 8 GiB of which so much is in use, and who waits for memory."""

    def __init__(self, folder):
        self.root = folder / "host"
        (self.root / "proc/pressure").mkdir(parents=True)
        (self.root / "proc/self").mkdir()
        self.env = {"PANTHEON_HOST_ROOT": str(self.root)}
        self.use(20)

    def put(self, path, text):
        new = self.root / "new"
        new.write_text(text)
        new.rename(self.root / path)

    def use(self, percent):
        kib = 8 * GIB // 1024
        self.put("proc/meminfo", f"MemTotal: {kib} kB\nMemFree: 0 kB\nMemAvailable: {int(kib * (100 - percent) / 100)} kB\n")

    def stalls(self, some, full):
        self.put("proc/pressure/memory", f"some avg10={some} avg60=0.00 avg300=0.00 total=0\nfull avg10={full} avg60=0.00 avg300=0.00 total=0\n")


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def memory(d, name="tiny"):
    return model(d, name)["placement"][0]["memory"]


def wait_level(d, level, name="tiny", timeout=10):
    wait_for(lambda: memory(d, name)["pressure"] == level, timeout, f"{name} at {level}")


def wait_heard(said, text, timeout=10):
    """The newest STATUS= has this."""
    def heard():
        said.heard += said.drain()
        status = [x for x in said.heard if x.startswith("STATUS=")]
        return status and text in status[-1]
    wait_for(heard, timeout, f"a STATUS= with {text!r}")


def rungs(d, name="tiny"):
    """(+1 or -1, rung) of a model as they were logged."""
    return [(1 if m[1] == "applied" else -1, m[2]) for m in re.finditer(rf'event=rung_(applied|undone) model="{name}" text="(\w+)', d.log)]


def samples(d):
    return dict(re.findall(r"^(pantheon_\w*(?:pressure|prefill|slots)\w*(?:\{[^}]*\})?) (\S+)$", d.get("/metrics").body.decode(), re.M))


def one(d, name):
    return next(float(v) for k, v in samples(d).items() if k.split("{")[0] == name)


def test_pain_18_rungs_come_in_their_order_and_go_in_reverse(models, start, host, tmp_path):
    with notify_socket(tmp_path) as (said, env):
        d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4\nctx_cap: 256"), top=PRESSURE), env={**host.env, **env})
        wait_for(d.settled, 20)
        assert memory(d)["rungs"] == [] and memory(d)["pressure"] == "normal"
        before = memory(d)["effective"]
        for percent, level in ((85, "watch"), (92, "tight"), (98, "critical")):
            host.use(percent)
            wait_level(d, level)
            assert memory(d)["rungs"] == ORDER[: AT[level]]
            assert rungs(d) == [(1, r) for r in ORDER[: AT[level]]]
            wait_heard(said, f"memory {level} on host")
            assert one(d, "pantheon_host_pressure_level") == list(AT).index(level)
            assert one(d, "pantheon_pressure_rungs") == AT[level]
        now = memory(d)["effective"]
        assert now["max_concurrent"] == 1 and now["prefill_chunk"] == max(16, before["prefill_chunk"] // 4)
        assert now["ctx"] == before["ctx"], "a promised conversation stays possible"
        assert d.get("/admin/dies").json["host"]["pressure"] == "critical"
        r = d.chat(max_tokens=20)
        assert r.status == 200 and r.json["usage"]["completion_tokens"] > 0, "a single request always completes"
        host.use(10)
        wait_level(d, "normal")
        assert rungs(d) == [(1, r) for r in ORDER] + [(-1, r) for r in reversed(ORDER)]
        assert memory(d)["effective"] == before and memory(d)["rungs"] == []
        levels = re.findall(r'event=memory_(?:pressure|relieved) text="host: (\w+), was (\w+): ([0-9.]+)% in use, \S+ \w+ of \S+ \w+ available', d.log)
        assert [(x[0], x[1]) for x in levels] == [("watch", "normal"), ("tight", "watch"), ("critical", "tight"), ("tight", "critical"), ("watch", "tight"), ("normal", "watch")]
        assert [float(x[2]) for x in levels[:3]] == [85, 92, 98], "each line has its numbers"
        wait_heard(said, "Serving 1 of 1 models; generation 1")
        assert "memory" not in [x for x in said.heard if x.startswith("STATUS=")][-1]


def test_all_rungs_at_once_are_still_in_order(models, start, host):
    d = start(manifest(("tiny", models["tiny"]), ("plain", models["plain"]), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    host.use(99)
    for name in ("tiny", "plain"):
        wait_level(d, "critical", name)
        assert rungs(d, name) == [(1, r) for r in ORDER]
    assert len(re.findall("event=memory_pressure", d.log)) == 1


def test_who_waits_for_memory_counts_whatever_is_available(models, start, host):
    d = start(manifest(("tiny", models["tiny"]), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    host.stalls(12, 0)
    wait_level(d, "watch")
    host.stalls(40, 25)
    wait_level(d, "critical")
    assert "some tasks waited for memory 40.0% of the time, all 25.0%" in d.log
    host.stalls(0, 0)
    wait_level(d, "normal")


def test_pain_66_an_answer_says_what_touched_it(models, start, host):
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4"), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    assert "x-pantheon-pressure" not in d.chat(max_tokens=2).headers
    assert condition(model(d, "tiny"), "Degraded")["status"] == "False"
    host.use(93)
    wait_level(d, "tight")
    header = d.chat(max_tokens=2).headers["x-pantheon-pressure"]
    assert header.startswith("tight; ") and "max_concurrent=2" in header and "prefill_chunk=" in header
    s = d.stream(max_tokens=2)
    assert s.headers["x-pantheon-pressure"] == header
    s.close()
    k = condition(model(d, "tiny"), "Degraded")
    assert k["status"] == "True" and k["reason"] == "MemoryPressure" and "memory tight on host: kv_floor, " in k["message"], k
    host.use(10)
    wait_level(d, "normal")
    assert "x-pantheon-pressure" not in d.chat(max_tokens=2).headers
    assert condition(model(d, "tiny"), "Degraded")["status"] == "False"


def test_new_kv_is_of_the_floor_type_and_an_answer_says_so(start, host, tmp_path):
    """With heads that a quantised type fits: what pressure turns KV into, by how much, and what `kv: { floor: f16 }` forbids."""
    path = tmp_path / "heads.gguf"
    subprocess.run([str(BUILD / "tests/gen/tiny"), str(path), "--chatml", "--ctx", "512", "--embd", "128", "--heads", "4", "--kv-heads", "2"], check=True, cwd=ROOT)
    d = start(manifest(("floor", path), ("none", path, "kv: { floor: f16 }"), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    text = "word " * 40
    assert d.chat(text, "floor", max_tokens=4).status == 200
    before = memory(d, "floor")
    assert before["effective"]["kv"] == "f16/f16" and before["kv_floor_pages"] == 0 and before["kv_bytes_used"] > 0
    host.use(85)
    wait_level(d, "watch", "floor")
    wait_level(d, "watch", "none")
    assert d.chat("other " + text, "floor", max_tokens=4).headers["x-pantheon-pressure"] == "watch; kv=q4_0" or SLOW > 1
    assert "x-pantheon-pressure" not in d.chat("other " + text, "none", max_tokens=4).headers
    assert memory(d, "none")["effective"]["kv"] == "f16/f16" and memory(d, "none")["kv_floor_pages"] == 0
    if SLOW > 1:
        return  # pages of a few tokens: there are no smaller ones
    now = memory(d, "floor")
    assert now["effective"]["kv"] == "q4_0/q4_0" and now["kv_floor_pages"] > 0
    # and what was kept before, when nobody has used it for a while
    wait_for(lambda: memory(d, "floor")["kv_floor_pages"] > now["kv_floor_pages"], 20, "the first conversation made small")
    assert memory(d, "floor")["kv_bytes_used"] <= before["kv_bytes_used"], "two conversations in no more than the place of one"
    r = d.chat(text, "floor", max_tokens=4)
    assert r.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "and it is still found"
    # who goes on with it when there is no pressure any more is told in the answer: its head could not know
    host.use(10)
    wait_for(lambda: not memory(d, "floor")["rungs"], 20, "nothing is in force")
    r = d.chat(text, "floor", max_tokens=4)
    cache = r.json["timings"]["cache"]
    assert "x-pantheon-pressure" not in r.headers and 0 < cache["floor"] <= cache["hit"], r.text
    assert "floor" not in d.chat("a third " + text, "floor", max_tokens=4).json["timings"]["cache"]


def test_pain_27_the_status_says_what_is_lower_than_declared_and_why(models, start, host):
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4\nctx_cap: 256"), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    host.use(97)
    wait_level(d, "critical")
    m = model(d, "tiny")
    assert m["limits"]["max_concurrent"] == 4 and m["limits"]["ctx_cap"] == 256, "what was declared stands there too"
    now = m["placement"][0]["memory"]
    assert now["effective"]["max_concurrent"] == 1 and now["effective"]["ctx"] == 256 and now["rungs"] == ORDER
    assert "memory critical on host" in condition(m, "Degraded")["message"]


def test_those_who_run_go_on_and_the_others_wait(models, start, host):
    d = start(manifest(("slow", models["slow"], "max_concurrent: 4\nmax_sessions: 4"), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        first = [pool.submit(d.chat, f"a{i}", "slow", max_tokens=100, ignore_eos=True) for i in range(3)]
        wait_for(lambda: model(d, "slow")["counters"]["running"] == 3, 10)
        host.use(99)
        wait_level(d, "critical", "slow")
        later = [pool.submit(d.chat, f"b{i}", "slow", max_tokens=20, ignore_eos=True) for i in range(3)]
        most = 0
        while not all(f.done() for f in later):
            c = model(d, "slow")["counters"]
            if all(f.done() for f in first):
                most = max(most, c["running"])
            time.sleep(0.01)
        assert all(f.result().status == 200 for f in first + later)
        assert all(f.result().json["usage"]["completion_tokens"] == 100 for f in first), "promised is promised"
        assert most == 1


def test_who_finds_no_place_at_critical_is_told_when_to_come_back(models, start, host):
    d = start(manifest(("slow", models["slow"], "max_concurrent: 4\nmax_sessions: 4\nqueue: { depth: 1 }"), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    host.use(99)
    wait_level(d, "critical", "slow")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = pool.submit(d.chat, "a", "slow", max_tokens=300, ignore_eos=True)
        wait_for(lambda: model(d, "slow")["counters"]["running"] == 1, 10)
        waiting = pool.submit(d.chat, "b", "slow", max_tokens=10, ignore_eos=True)
        wait_for(lambda: model(d, "slow")["counters"]["queued"] == 1, 10)
        r = d.chat("c", "slow", max_tokens=10)
        assert r.status == 429 and int(r.headers["Retry-After"]) > 0
        assert running.result().status == waiting.result().status == 200


def test_kept_conversations_go_when_memory_is_critical(models, start, host):
    d = start(manifest(("tiny", models["tiny"]), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    text = "the same beginning of a conversation " * 3
    assert d.chat(text, max_tokens=2).status == 200
    assert d.chat(text, max_tokens=2).json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert one(d, "pantheon_pressure_level") == 0
    used = lambda: memory(d)["kv_bytes_used"]  # noqa: E731
    assert used() > 0
    host.use(99)
    wait_level(d, "critical")
    wait_for(lambda: used() == 0, 10, "nothing is kept")


def test_a_die_whose_memory_others_take(models, start, tmp_path):
    """Of a die with memory of its own, what is not ours counts; the other die's model is not touched."""
    foreign = tmp_path / "foreign"
    d = start(declared(("a", models["slow"], "dies: [ s0 ]\nmax_concurrent: 4"), ("b", models["tiny"], "dies: [ s1 ]"), s0=("300MB", f"foreign file={foreign}"), s1=("300MB", "")).replace("models:", PRESSURE + "\nmodels:", 1))
    wait_for(d.settled, 20)
    s0 = next(x for x in d.get("/admin/dies").json["dies"] if x["name"] == "s0")
    rest = s0["total_bytes"] - s0["ours_bytes"]
    answers = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for percent, level in ((85, "watch"), (92, "tight"), (98, "critical"), (10, "normal")):
            (tmp_path / "new").write_text(str(rest * percent // 100))
            answers += [pool.submit(d.chat, f"x{percent}{i}", "a", max_tokens=10, ignore_eos=True) for i in range(2)]
            (tmp_path / "new").rename(foreign)
            wait_level(d, level, "a")
            assert memory(d, "a")["rungs"] == ORDER[: AT[level]]
            assert memory(d, "b")["rungs"] == []
        assert all(f.result().status == 200 for f in answers)
    assert rungs(d, "a") == [(1, r) for r in ORDER] + [(-1, r) for r in reversed(ORDER)]
    assert rungs(d, "b") == []
    assert 'event=memory_pressure text="die s0: watch, was normal: 85' in d.log


def test_thresholds_are_live(models, start, host):
    d = start(manifest(("tiny", models["tiny"]), top=PRESSURE), env=host.env)
    wait_for(d.settled, 20)
    host.use(60)
    time.sleep(0.6)
    assert memory(d)["pressure"] == "normal"
    d.write(manifest(("tiny", models["tiny"]), top="pressure: { watch: 50%, tight: 70%, critical: 80%, leave: 0%, hold: 0s }"))
    reconcile(d)
    wait_level(d, "watch")
    assert model(d, "tiny")["counters"]["loads"] == 1, "nothing was loaded anew"


def test_the_log_has_need_and_have_of_kv(models, start):
    d = start(manifest(("tiny", models["tiny"])))
    wait_for(d.settled, 20)

    def numbers(event):
        m = wait_for(lambda: re.search(rf"{event} .*kv_need=(\d+) kv_have=(\d+)", d.log), 5, event)
        return int(m[1]), int(m[2])

    assert d.chat(max_tokens=10).status == 200
    need, have = numbers("event=answered")
    assert 0 < need <= have
    assert d.complete("x" * 4000).status == 400
    need, have = numbers("code=context_length_exceeded")
    assert need > 0 and have > 0
