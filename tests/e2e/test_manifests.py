"""Manifests of several files, and many reloads of one: what is declared in all of them runs, and what runs is not disturbed."""
import os
import re
import signal
import subprocess
import threading

from conftest import BUILD, ROOT, SLOW, wait_for
from world import admin, cli, condition, declared, events, model, reconcile

FIGURES = SLOW == 1  # a sanitizer keeps what was freed


def included(name, path, more=""):
    return f"models:\n  - {{ name: {name}, source: {{ path: {path} }}{more} }}\n"


def with_include(d_or_text):
    return d_or_text.replace("version: 1\n", 'version: 1\ninclude: [ "models.d/*.yaml" ]\n', 1)


def test_models_of_included_files_come_change_and_go(scripts, start):
    d = start(with_include(declared(("own", scripts["small"]))))
    folder = d.folder / "models.d"
    folder.mkdir()
    (folder / "a.yaml").write_text(included("a", scripts["small"]))
    p = cli(d, "--plan")
    assert p.returncode == 2 and re.search(r"^\+ +a\b", p.stdout, re.M), p.stdout + p.stderr
    assert reconcile(d).status == 200 and model(d, "a")["status"] == "ready" and admin(d)["generation"] == 2
    assert cli(d, "--plan").returncode == 0
    (folder / "a.yaml").write_text(included("a", scripts["small"], ", aliases: [ fresh ]"))
    assert reconcile(d).status == 200 and d.chat(model="fresh", max_tokens=1).status == 200 and model(d, "a")["counters"]["loads"] == 1
    (folder / "a.yaml").unlink()
    assert reconcile(d).status == 200 and model(d, "a") is None and model(d, "own")["counters"]["loads"] == 1
    assert reconcile(d).status == 200 and admin(d)["generation"] == 4, "the same files are the same generation"


def test_a_mistake_in_an_included_file_refuses_all_of_it_and_says_where(scripts, start):
    d = start(with_include(declared(("own", scripts["small"]))))
    folder = d.folder / "models.d"
    folder.mkdir()
    (folder / "a.yaml").write_text(included("own", scripts["small"]))
    p = cli(d, "--reload", "--wait")
    assert p.returncode == 1 and f"{folder}/a.yaml:2:13: error: 'own' is taken already: a name in {d.manifest}, line " in p.stderr, p.stderr
    for mode in ("--check", "--plan"):
        assert cli(d, mode).returncode == 1
    assert condition(admin(d), "ManifestValid")["status"] == "False" and admin(d)["generation"] == 1 and model(d, "own")["status"] == "ready"
    (folder / "a.yaml").write_text(included("a", scripts["small"]))
    assert cli(d, "--reload", "--wait").returncode == 0 and condition(admin(d), "ManifestValid")["status"] == "True"
    wait_for(lambda: model(d, "a")["status"] == "ready", 10)


def test_a_start_with_a_bad_included_file_serves_all_that_was_accepted(scripts, start):
    d = start(with_include(declared(("own", scripts["small"]))))
    folder = d.folder / "models.d"
    folder.mkdir()
    (folder / "a.yaml").write_text(included("a", scripts["small"]))
    assert reconcile(d).status == 200 and model(d, "a")["status"] == "ready"
    d.signal(signal.SIGTERM)
    assert d.wait() == 0
    (folder / "a.yaml").write_text("models: [[[\n")
    d.process = subprocess.Popen([str(BUILD / "pantheond"), "--config", str(d.manifest)], stdout=d.log_file, stderr=d.log_file, env={**os.environ, "STATE_DIRECTORY": str(d.state)}, cwd=ROOT)
    d.wait_listening()
    wait_for(d.settled, 30)
    assert model(d, "a")["status"] == model(d, "own")["status"] == "ready"
    s = admin(d)
    assert condition(s, "ManifestValid")["status"] == "False" and s["generation"] == 2 and f"{folder}/a.yaml:1:" in s["report"]
    (folder / "a.yaml").unlink()
    assert reconcile(d).status == 200 and condition(admin(d), "ManifestValid")["status"] == "True" and model(d, "a") is None


def descriptors(d):
    return len(os.listdir(f"/proc/{d.process.pid}/fd"))


def rss(d):
    with open(f"/proc/{d.process.pid}/status") as f:
        return int(re.search(r"RssAnon:\s+(\d+) kB", f.read())[1]) << 10


def test_pain_69_two_hundred_reloads_while_sixteen_clients_stream(scripts, start):
    """Every reload is another manifest (an alias, a live limit, an included file that comes and goes): no request fails, nothing is loaded
    again, and neither memory nor descriptors grow."""
    eight = "max_concurrent: 8\nmax_sessions: 8"
    d = start(with_include(declared(("a", scripts["small"], eight), ("b", scripts["other"], eight))))
    folder = d.folder / "models.d"
    folder.mkdir()

    def reload(i):
        more = f"\naliases: [ v{i} ]\nqueue: {{ depth: {8 + i % 4} }}\npriority: {i % 3}"
        d.write(with_include(declared(("a", scripts["small"], eight + more), ("b", scripts["other"], eight))))
        held = folder / "held.yaml"
        held.write_text(included("held", scripts["small"], ", state: absent")) if i % 2 else held.unlink(missing_ok=True)
        assert reconcile(d).status == 200
        assert admin(d)["generation"] == i + 1

    over, done, failed = threading.Event(), [0] * 16, []

    def client(k):
        while not over.is_set():
            try:
                chunks = d.stream(model="ab"[k % 2], max_tokens=60).chunks()
                if chunks[-1]["choices"][0]["finish_reason"] != "length":
                    failed.append(chunks[-1])
                done[k] += 1
            except Exception as e:  # whatever it is, it is a request that was dropped
                failed.append(repr(e))
                return

    threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
    for t in threads:
        t.start()
    wait_for(lambda: d.counters("a")["running"] + d.counters("b")["running"] >= 8, 10, "the clients stream")
    for i in range(1, 41):  # what grows once only: pools, caches, the rings of events
        reload(i)
    before = rss(d)
    for i in range(41, 201):
        reload(i)
    after = rss(d)
    over.set()
    for t in threads:
        t.join()
    assert not failed and min(done) >= 1, failed or done
    for n in "ab":
        c = model(d, n)["counters"]
        assert c["failed"] == c["cancelled"] == 0 and c["loads"] == 1, c
        assert events(d, n).count("load_done") == 1
    wait_for(lambda: d.idle("a") and d.idle("b"), 10)
    idle = descriptors(d)
    for i in range(201, 206):
        reload(i)
    wait_for(lambda: descriptors(d) <= idle, 10, "reloads leave no descriptor")
    if FIGURES:
        assert after - before < 3 << 20, f"{(after - before) >> 10} KiB more after 160 reloads"
