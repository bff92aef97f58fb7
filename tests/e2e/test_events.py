"""What happened, who asked for it, what is planned and how dies are: over the API, in the log, in the journal, on the command line."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

from conftest import BUILD, SLOW, Daemon, connection, manifest, wait_for
from test_access import ROOT_KEY, bearer, line, put
from test_admin import UnixConnection
from world import admin, cli, declared, model, reconcile


@pytest.fixture
def d(start, scripts):
    return start(declared(("a", scripts["small"]), ("b", scripts["quick"]), s0=("300MB", "reads temperature 71, reads corrected 4"), s1=("300MB", "")))


def events(d, query="", **kw):
    return d.get("/admin/events" + query, **kw).json


def test_events_are_numbered_filtered_and_paged(d):
    all_ = events(d)
    assert [e["seq"] for e in all_["events"]] == list(range(1, all_["newest"] + 1)) and all_["oldest"] == 1
    assert [e["event"] for e in events(d, "?model=b")["events"]] == ["load_started", "load_done"]
    assert [e["seq"] for e in events(d, "?limit=2")["events"]] == [all_["newest"] - 1, all_["newest"]], "the newest"
    assert [e["seq"] for e in events(d, "?since=1&limit=2")["events"]] == [2, 3], "from where one was, the oldest first"
    assert events(d, f"?since={all_['newest']}")["events"] == [] and events(d, "?since=9223372036854775807")["events"] == [] and events(d, "?limit=0")["events"] == []
    for query in ("?since=x", "?since=-1", "?limit=1001", "?limit=", "?since=99999999999999999999"):
        assert d.get("/admin/events" + query).status == 400, query
    assert d.get("/admin/events?color=red").error["code"] == "unknown_parameter"


def test_the_ring_keeps_a_thousand(d):
    while events(d, "?limit=1")["newest"] <= 1010:
        assert reconcile(d, "wait=1").status == 200  # asked for, and unchanged: two
    r = events(d, "?limit=1000")
    assert len(r["events"]) == 1000 and r["oldest"] == r["newest"] - 999 == r["events"][0]["seq"]


def blocks(r):
    """The blocks of a stream, as dicts."""
    block = {}
    while True:
        text = r.readline().decode().rstrip("\n")
        if text.startswith(":"):
            continue
        if text:
            key, value = text.split(": ", 1)
            block[key] = value
        elif block:
            yield block
            block = {}


def test_a_stream_has_them_as_they_happen_and_goes_on_where_a_client_was(d):
    def open_(query="", **headers):
        c = connection(d.port, timeout=20)
        c.request("GET", "/admin/events" + query, headers={"Accept": "text/event-stream", **headers})
        r = c.getresponse()
        assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream")
        return c, blocks(r)

    newest = events(d)["newest"]
    c, first = open_()
    seen = [next(first) for _ in range(newest)]
    assert [int(b["id"]) for b in seen] == list(range(1, newest + 1)) and all(json.loads(b["data"])["event"] == b["event"] for b in seen)
    only, of_b = open_("?model=b&since=" + str(newest))
    assert d.post("/admin/models/unload?wait=1", {"name": "a"}).status == 200
    assert [next(first)["event"] for _ in range(3)] == ["admin_unload", "unload_started", "unload_done"]
    assert d.post("/admin/models/unload?wait=1", {"name": "b"}).status == 200
    assert next(of_b)["event"] == "admin_unload", "others' are left out"
    again, rest = open_(**{"Last-Event-ID": str(newest + 1)})
    assert int(next(rest)["id"]) == newest + 2
    d.signal(signal.SIGTERM)
    assert d.wait(10) == 0, "who listens does not hold the stop back"
    for x in (c, only, again):
        x.close()


def test_the_head_of_a_stream_is_an_answer_of_its_own(d):
    c = connection(d.port, timeout=10)
    for path in ("/admin/events", "/admin/live", "/admin/events"):
        c.request("HEAD", path, headers={"Accept": "text/event-stream"})
        r = c.getresponse()
        assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream") and r.read() == b"", "and the connection goes on"
    c.close()


def test_every_action_says_who_asked(d):
    u = UnixConnection(d.socket)
    u.request("POST", "/admin/models/unload?wait=1", json.dumps({"name": "a"}))
    assert u.getresponse().status == 200
    assert d.post("/admin/models/load?wait=1", {"name": "a"}).status == 200
    d.signal(signal.SIGHUP)
    wait_for(lambda: events(d)["events"][-1]["event"] == "manifest_unchanged", 10)
    reconcile(d, "prune=1&wait=1")
    who = {e["event"]: e.get("who") for e in events(d)["events"]}
    mine = f"uid {os.getuid()}, pid {os.getpid()}"
    assert who["admin_unload"] == mine and who["admin_load"] == who["admin_prune"] == "loopback" and who["load_done"] is None
    assert [e["who"] for e in events(d)["events"] if e["event"] == "admin_reload"] == [mine, "loopback"]
    assert f'event=admin_unload model="a" who="{mine}" text=' in d.log
    d.signal(signal.SIGTERM)
    assert d.wait(10) == 0 and f'event=stopping signal=SIGTERM who="{mine}"' in d.log


def test_a_key_is_named(start, scripts, tmp_path):
    put(tmp_path / "keys", line("root", ROOT_KEY, "admin"))
    d = start(manifest(("a", scripts["small"]), server=f"api_keys_file: {tmp_path / 'keys'}"), wait=False)
    d.wait_listening()
    assert d.post("/admin/models/unload?wait=1", {"name": "a"}, headers=bearer(ROOT_KEY)).status == 200
    got = events(d, "?model=a", headers=bearer(ROOT_KEY))["events"]
    assert next(e for e in got if e["event"] == "admin_unload")["who"] == "key root"


def test_the_last_plan_and_what_was_done_about_it(d, scripts):
    p = admin(d, "/admin/plan")
    assert p["generation"] == p["observed_generation"] == 1 and p["settled"] and p["made_at"] > 0 and p["plan"]["exit"] == 0 and "in sync" in p["text"]
    assert [(x["step"], x["model"], x["result"], x["why"]) for x in p["performed"]] == [("load", "a", "done", "declared"), ("load", "b", "done", "declared")]
    assert all(x["ms"] >= 0 and x["time"] > 0 for x in p["performed"])
    d.write(declared(("a", scripts["small"], "max_concurrent: 1"), ("b", scripts["quick"]), ("c", scripts["big"], "dies: [ s0 ]\nmax_sessions: 64\nctx_cap: 100000"), s0=("300MB", ""), s1=("300MB", "")))
    reconcile(d)
    p = admin(d, "/admin/plan")
    assert p["observed_generation"] == 2 and p["plan"]["exit"] == 3 and [v["verdict"] for v in p["plan"]["verdicts"]] == ["in_sync", "in_sync", "refused"]
    assert [(x["step"], x["model"]) for x in p["performed"]][2:] == [("set", "a")]
    assert admin(d)["observed_generation"] == admin(d)["generation"] == 2


def test_a_step_that_failed_says_why(start, scripts):
    d = start(declared(("a", scripts["small"], "dies: [ s0 ]"), s0=("300MB", "alloc 1 fails")), env={"PANTHEON_BACKOFF_MS": "100"})
    wait_for(lambda: (model(d, "a") or {}).get("status") == "ready", 20, "the second try")
    first, second = admin(d, "/admin/plan")["performed"]
    assert first["result"] == "failed" and "alloc 1 failed" in first["error"] and second["result"] == "done" and "error" not in second


def test_dies_say_what_their_drivers_do(d):
    s0, s1 = admin(d, "/admin/dies")["dies"]
    assert (s0["temperature_celsius"], s0["ecc_corrected"], s0["ecc_uncorrected"]) == (71, 4, 0) and "power_watts" not in s0
    assert not {"temperature_celsius", "power_watts", "ecc_corrected"} & set(s1)
    text = d.get("/metrics").body.decode()
    assert 'pantheon_die_temperature_celsius{die="s0"} 71\n' in text and 'pantheon_die_ecc_errors_total{die="s0",kind="corrected"} 4\n' in text
    assert "pantheon_die_power_watts{" not in text and 'celsius{die="s1"}' not in text
    shown = cli(d, "--status").stdout
    assert re.search(r"^s0 +sim +ok .* 71 C +- +4/0$", shown, re.M) and re.search(r"^s1 +sim +ok .* - +- +-$", shown, re.M), shown


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="a journal of the test's own needs root and unshare")
def test_the_journal_has_fields_and_no_line_twice(scripts, tmp_path):
    """As under systemd: stderr is a stream that JOURNAL_STREAM names, and /run/systemd/journal/socket takes entries."""
    at = tmp_path / "journal"
    at.mkdir()
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(at / "socket"))
    journal.settimeout(20 * SLOW)
    read, write = os.pipe()
    st = os.fstat(write)
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    script = f'mount -t tmpfs none /run && mkdir -p /run/systemd && ln -s "{at}" /run/systemd/journal && exec "$@" 2>&{write}'
    d = Daemon(tmp_path, manifest(("a", scripts["quick"])), launch=("unshare", "-m", "bash", "-c", script, "bash"), fds=(write,), env={"JOURNAL_STREAM": f"{st.st_dev}:{st.st_ino}"}, wait=False)
    os.close(write)
    entries = []
    while not any(b"PANTHEON_EVENT=load_done" in e for e in entries):
        entries.append(journal.recv(1 << 16))
    d.stop()
    stream = b""
    while piece := os.read(read, 1 << 16):
        stream += piece
    os.close(read)
    journal.close()
    fields = dict(x.split(b"=", 1) for x in entries[-1].split(b"\n") if b"=" in x)
    ids = dict(re.findall(r"`(\w+)`(?:\*\*)? \| `([0-9a-f]{32})`", (BUILD.parents[1] / "docs/events.md").read_text()))
    assert fields[b"MESSAGE_ID"].decode() == ids["load_done"] and fields[b"PANTHEON_MODEL"] == b"a" and fields[b"PRIORITY"] == b"6"
    assert b'event=load_done model="a"' in fields[b"MESSAGE"] and b"PANTHEON_WHO" not in fields and not any(k.startswith(b"CODE_") for k in fields)
    assert b"event=load_done" not in stream and b"<6>level=info area=serve event=model_ready" in stream, "each line once"
