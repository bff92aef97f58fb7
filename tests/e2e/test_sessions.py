"""Sessions as bytes: they go to their user and come back, survive the daemon, and belong to their key. Pains 60, 62 and 63."""
import concurrent.futures
import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, SLOW, connection, manifest, wait_for

HEAD = 24  # bytes of a blob before what it goes with: magic, version, lengths


def url(session, model=None):
    return f"/v1/sessions/{session}" + (f"?model={model}" if model else "")


def say(d, ids, n, session=None, model="ids", key=None, **fields):
    """A turn of tokens: (what it said, tokens that were not computed)."""
    headers = {"X-Session-Id": session} if session else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    r = d.post("/v1/completions", {"model": model, "prompt": ids, "max_tokens": n, "temperature": 0, **fields}, headers=headers)
    assert r.status == 200, r.body
    return r.json["choices"][0]["text"], r.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def words(n, seed=1):
    r = random.Random(seed)
    return [r.randrange(3, 250) for _ in range(n)]


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "stateful.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "and so on", "--endless", "--ctx", "2048", "--state-bytes", "320"], check=True, cwd=ROOT)
    return path


@pytest.mark.parametrize("which", ["tiny", "stateful"])
def test_a_session_saved_before_a_restart_goes_on_after_it(start, models, stateful, which):
    """Pain 60: save, restart, restore, continue. cached_tokens is what was saved, and the text what it would have been."""
    text = manifest(("m", stateful if which == "stateful" else models["slow"], "max_sessions: 2"))
    ids = words(150)
    d = start(text)
    say(d, ids, 1, "talk", "m")
    got = d.get(url("talk"))
    assert got.status == 200 and got.headers["content-type"] == "application/octet-stream"
    n = int(got.headers["x-session-tokens"])
    assert n == len(ids)
    unbroken, cached = say(d, ids + words(20, 2), 24, "talk", "m")
    assert cached == n
    d.stop()
    d = start(text)
    assert d.get(url("talk")).error["code"] == "session_not_found"
    back = d.request("PUT", url("talk"), got.body)
    assert (back.status, back.json["tokens"], back.json["model"]) == (200, n, "m")
    restored, cached = say(d, ids + words(20, 2), 24, "talk", "m")
    assert cached == n and restored == unbroken
    assert d.request("DELETE", url("talk")).json["deleted"]
    assert d.request("DELETE", url("talk")).error["code"] == "session_not_found"


def mutants(blob, n, seed=7):
    r = random.Random(seed)
    for _ in range(n):
        b = bytearray(blob)
        for _ in range(r.randrange(1, 4)):
            b[r.randrange(len(b))] ^= 1 << r.randrange(8)
        if r.randrange(4) == 0:
            del b[r.randrange(len(b)):]
        if bytes(b) != blob:
            yield bytes(b)


def test_what_is_altered_or_cut_is_refused_and_nothing_stays(start, models):
    """Pain 63. Ten thousand of them are in tests/fuzz (make check-mutants)."""
    d = start(manifest(("m", models["tiny"], "max_sessions: 2")))
    say(d, words(100), 1, "s", "m")
    blob = d.get(url("s")).body
    for b in [b"", b"no session", blob[:-1], blob + b"x", *mutants(blob, 100)]:
        r = d.request("PUT", url("t"), b)
        assert r.status in (400, 409), r.body
        assert r.error["code"] in ("session_invalid", "session_mismatch")
    assert d.get(url("t")).error["code"] == "session_not_found"
    assert d.get(url("s")).body == blob
    assert say(d, words(100) + [5], 1, "s", "m")[1] == 100


def test_what_a_session_does_not_go_with_is_named(start, models, tmp_path):
    """Pain 63: the settings of a load, each changed once."""
    own, other = tmp_path / "own.gguf", tmp_path / "seed.gguf"
    subprocess.run([str(BUILD / "tests/gen/tiny"), str(own), "--chatml", "--ctx", "1024", "--embd", "64", "--heads", "1", "--kv-heads", "1"], check=True, cwd=ROOT)
    subprocess.run([str(BUILD / "tests/gen/tiny"), str(other), "--chatml", "--ctx", "1024", "--embd", "64", "--heads", "1", "--kv-heads", "1", "--seed", "2"], check=True, cwd=ROOT)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    d = start(manifest(("m", own)))
    say(d, words(300), 1, "s", "m")
    blob = d.get(url("s")).body
    rows = [("weights", other, ""), ("kv.k", own, "kv: { k: q8_0 }"), ("kv.v", own, "kv: { v: q8_0 }"), ("kv.floor", own, "kv: { floor: f16 }"),
            ("chat_template", own, f"chat_template: {template}"), ("ctx_cap", own, "ctx_cap: 256")]
    for field, path, more in rows:
        d2 = start(manifest(("m", path, more)))
        r = d2.request("PUT", url("s"), blob)
        assert r.status == 409 and r.error["code"] == "session_mismatch", r.body
        assert r.error["param"].startswith(field) and field in r.error["message"]
        assert d2.get(url("s")).status == 404
        d2.stop()


def test_two_keys_do_not_see_each_others_sessions(start, models, tmp_path):
    keys = {"anna": "sk-" + "aa" * 24, "bert": "sk-" + "bb" * 24}
    file = tmp_path / "keys"
    file.write_text("".join(f"{name}:{hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in keys.items()))
    file.chmod(0o600)
    d = start(manifest(("m", models["tiny"], "max_sessions: 4"), server=f"api_keys_file: {file}"), wait=False)
    d.wait_listening()
    head = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
    wait_for(lambda: d.get("/v1/models", headers=head["anna"]).json["data"][0]["status"] == "ready", 30)
    say(d, words(80), 1, "s", "m", keys["anna"])
    assert d.get(url("s")).status == 401
    assert d.get(url("s"), headers=head["bert"]).status == 404
    assert d.request("DELETE", url("s"), headers=head["bert"]).status == 404
    blob = d.get(url("s"), headers=head["anna"])
    assert blob.status == 200
    assert d.request("PUT", url("s"), blob.body, headers=head["bert"]).status == 200  # whoever has the bytes has the session
    assert d.request("DELETE", url("s"), headers=head["bert"]).status == 200
    assert d.get(url("s"), headers=head["anna"]).body == blob.body
    assert say(d, words(80) + [9], 1, "s", "m", keys["bert"])[1] == 0
    assert say(d, words(80) + [9], 1, "s", "m", keys["anna"])[1] == 80


def test_which_model_and_what_is_no_id(start, models):
    d = start(manifest(("a", models["tiny"]), ("b", models["plain"])))
    assert d.get(url("s")).error["param"] == "model"
    assert d.get(url("s", "c")).error["code"] == "model_not_found"
    assert d.get(url("s", "a")).error["code"] == "session_not_found"
    assert d.get(url("s") + "?modl=a").error["code"] == "unknown_parameter"
    assert d.get(url("x" * 257, "a")).error["param"] == "id"
    assert d.get(url("%ff", "a")).error["param"] == "id"
    assert d.request("POST", url("s", "a"), b"").status == 405
    say(d, words(70), 1, "a/b c", "a")
    assert d.get(url("a%2Fb%20c", "a")).status == 200
    whole = d.get(url("a%2Fb%20c", "a"))
    head = d.request("HEAD", url("a%2Fb%20c", "a"))
    assert head.status == 200 and head.body == b"" and head.headers["content-length"] == str(len(whole.body))


def test_bodies_that_are_too_long_stall_or_break_off(start, models):
    d = start(manifest(("m", models["tiny"], "max_sessions: 2"), server="limits: { body: 16KiB, body_idle: 1s }"))
    say(d, words(200), 1, "s", "m")
    blob = d.get(url("s")).body
    assert len(blob) > 16384  # its own limit, not that of other bodies
    assert d.request("PUT", url("t"), blob).status == 200
    r = d.raw(b"PUT /v1/sessions/u HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n" + blob[:2000])
    assert b" 413 " in r.split(b"\r\n")[0] and b"body_too_large" in r
    half = b"PUT /v1/sessions/u HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(blob) + blob[:len(blob) // 2]
    assert b" 408 " in d.raw(half).split(b"\r\n")[0]
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", d.port)) as s:
            s.sendall(half)
    chunked = b"PUT /v1/sessions/v HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = b"".join(b"%04x\r\n%s\r\n" % (len(p), p) for p in (blob[i:i + 5000] for i in range(0, len(blob), 5000)))
    wait_for(lambda: b" 200 " in d.raw(chunked + pieces + b"0\r\n\r\n").split(b"\r\n")[0], 10, "the room of those who left")
    assert b" 400 " in d.raw(chunked + pieces[:2 * 5008] + b"0\r\n\r\n").split(b"\r\n")[0]
    assert d.get(url("u")).status == 404
    assert say(d, words(200) + [3], 1, "s", "m")[1] == 200
    wait_for(lambda: "event=client_left" in d.log, 10)


def test_a_session_is_fetched_while_it_runs(start, models):
    d = start(manifest(("m", models["slow"], "max_sessions: 2\nspeculation: off")))
    ids = words(300)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = pool.submit(say, d, ids, 200, "s", "m", ignore_eos=True)
        wait_for(lambda: d.counters("m")["running"] == 1 and d.get("/slots").json["models"][0]["slots"][0].get("generated_tokens", 0) > 5, 30)
        got = d.get(url("s"))
        assert got.status == 200 and int(got.headers["x-session-tokens"]) >= 256 // (1 if SLOW == 1 else 16)
        text, _ = running.result()
    assert d.request("PUT", url("copy"), got.body).json["tokens"] == int(got.headers["x-session-tokens"])
    assert say(d, ids, 200, "again", "m", ignore_eos=True)[0] == text


def test_a_hundred_clients_put_sessions_and_nothing_is_lost(start, models):
    """Each is taken or refused by name; what runs goes on; idle ones give way to the newest."""
    d = start(manifest(("m", models["slow"], "ctx_cap: 2048\nmax_sessions: 2\nmax_concurrent: 2"), server="limits: { connections: 256, connections_per_address: 256 }"))
    ids = words(600)
    say(d, ids, 1, "s", "m")
    blob = d.get(url("s")).body
    with concurrent.futures.ThreadPoolExecutor(101) as pool:
        running = pool.submit(say, d, words(40, 5), 64, "r", "m", ignore_eos=True)
        answers = list(pool.map(lambda i: d.request("PUT", url(f"c{i}"), blob, timeout=120), range(100)))
        assert running.result()[0]
    kinds = {r.status if r.status == 200 else r.error["code"] for r in answers}
    assert 200 in kinds and kinds <= {200, "session_no_room", "out_of_memory"}, kinds
    assert all(r.json["tokens"] == 600 for r in answers if r.status == 200)
    for r in answers:
        if r.status != 200:
            assert r.headers["retry-after"]
    assert d.request("PUT", url("last"), blob).status == 200
    assert say(d, ids + [7], 1, "last", "m")[1] == 600


# --- on disk ---


def kept(d):
    folder = d.state / "sessions"
    return sorted(folder.glob("*.session")) if folder.exists() else []


def told(d, event):
    return re.findall(rf'event={event} model="m" text="([^"]*)"', d.log)


def restarted(start, d, text, how=signal.SIGTERM):
    """Another daemon over the state of this one, which is ended first."""
    if how == signal.SIGTERM:
        d.stop()
    else:
        d.process.kill()
        d.process.wait()
        d.process.returncode = 0  # as asked
    return start(text, env={"STATE_DIRECTORY": str(d.state)})


@pytest.mark.parametrize("which", ["tiny", "stateful"])
def test_an_unloaded_model_has_its_sessions_back_when_it_is_loaded(start, models, stateful, which):
    """Pain 62: unload, load, continue: what was computed is not computed again. With a session's id and without."""
    d = start(manifest(("m", stateful if which == "stateful" else models["slow"], "max_sessions: 4\nsave_on_unload: true")))
    a, b = words(150), words(130, 9)
    say(d, a, 1, "talk", "m")
    say(d, b, 1, None, "m")
    assert d.post("/admin/models/unload?wait=1", {"name": "m"}).status == 200
    assert len(kept(d)) == 2 and (d.state / "sessions").stat().st_mode & 0o777 == 0o700
    assert told(d, "sessions_saved")[-1].startswith("2, ")
    assert d.post("/admin/models/load?wait=1", {"name": "m"}).status == 200
    assert say(d, a + [5], 1, "talk", "m")[1] == 150
    assert say(d, b + [5], 1, None, "m")[1] == 130
    # what a session has become takes the place of what it was; DELETE reaches the disk too
    assert d.post("/admin/models/unload?wait=1", {"name": "m"}).status == 200
    assert d.request("DELETE", url("talk")).json["deleted"]
    assert d.post("/admin/models/load?wait=1", {"name": "m"}).status == 200
    assert d.get(url("talk")).status == 404
    assert say(d, b + [5, 6], 1, None, "m")[1] >= 130


def test_sessions_survive_the_daemon(start, models):
    text = manifest(("m", models["slow"], "max_sessions: 4\nsave_on_unload: true"))
    d = start(text)
    ids = words(150)
    say(d, ids, 1, "talk", "m")
    d2 = restarted(start, d, text)
    assert say(d2, ids + words(20, 2), 24, "talk", "m") == (say(d2, ids + words(20, 2), 24, "other", "m", cache_prompt=False)[0], 150)
    # other settings: dropped, and said so
    d2.stop()
    d3 = start(manifest(("m", models["slow"], "max_sessions: 4\nsave_on_unload: true\nkv: { type: q8_0 }")), env={"STATE_DIRECTORY": str(d.state)})
    assert told(d3, "session_outdated") and not kept(d)
    assert say(d3, ids + [5], 1, "talk", "m")[1] == 0


def test_the_quota_holds_and_what_was_used_last_stays(start, models):
    d = start(manifest(("m", models["slow"], "max_sessions: 8\nsave_on_unload: true"), top="sessions: { quota: 2MiB }"))
    for i in range(8):
        say(d, words(200, i), 1, f"s{i}", "m")
    size = len(d.get(url("s0")).body)
    fit = 2 * 1024 * 1024 // (size + 200)
    assert 0 < fit < 8, size
    assert d.post("/admin/models/unload?wait=1", {"name": "m"}).status == 200
    assert len(kept(d)) == fit and sum(p.stat().st_size for p in kept(d)) <= 2 * 1024 * 1024
    assert "quota" in told(d, "sessions_not_saved")[-1]
    assert d.post("/admin/models/load?wait=1", {"name": "m"}).status == 200
    assert [d.get(url(f"s{i}")).status for i in range(8)] == [404] * (8 - fit) + [200] * fit


def test_a_folder_that_cannot_be_used_keeps_no_model_from_leaving(start, models, tmp_path):
    """No permission, and damaged files: an event, and all goes on."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    d = start(manifest(("m", models["slow"], "save_on_unload: true"), top=f"sessions: {{ path: {open_to_all} }}"))
    say(d, words(100), 1, "s", "m")
    assert d.post("/admin/models/unload?wait=1", {"name": "m"}).status == 200
    assert "0700" in told(d, "sessions_not_saved")[-1] and not list(open_to_all.iterdir())
    open_to_all.chmod(0o700)
    for _ in range(2):
        assert d.post("/admin/models/load?wait=1", {"name": "m"}).status == 200
        say(d, words(100), 1, "s", "m")
        assert d.post("/admin/models/unload?wait=1", {"name": "m"}).status == 200
        file = next(open_to_all.iterdir())
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert d.post("/admin/models/load?wait=1", {"name": "m"}).status == 200
    assert told(d, "session_dropped") and not list(open_to_all.iterdir())


def test_a_full_disk_is_said_and_the_unload_goes_on(start, models, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(small)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        d = start(manifest(("m", models["slow"], "save_on_unload: true"), top=f"sessions: {{ path: {small} }}"))
        say(d, words(300), 1, "s", "m")
        assert d.post("/admin/models/unload?wait=1", {"name": "m"}).status == 200
        assert "its file system has" in told(d, "sessions_not_saved")[-1] and not list(small.iterdir())
        d.stop()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_daemon_killed_while_it_saves_leaves_the_old_or_the_new(start, models):
    text = manifest(("m", models["slow"], "max_sessions: 8\nsave_on_unload: true"))
    state = None
    for wait in (0, 0.005, 0.02, 0.05):
        d = start(text, env={"STATE_DIRECTORY": str(state)} if state else {})
        d.state = state = state or d.state
        for i in range(6):
            say(d, words(250, i), 1, f"s{i}", "m")
        d.post("/admin/models/unload", {"name": "m"})
        time.sleep(wait)
        d.process.kill()
        d.process.wait()
        d.process.returncode = 0  # as asked
    d = start(text, env={"STATE_DIRECTORY": str(state)})
    assert not told(d, "session_dropped"), d.log  # nothing that is there is damaged
    for i in range(6):
        assert say(d, words(250, i) + [5], 1, f"s{i}", "m")[1] in (0, 250)
