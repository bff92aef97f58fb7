"""Model files that are fetched: from a server that stalls, cuts, lies, changes its mind and its files, onto disks that are full. Never half a file
under the name that is served, and never a word to the other models."""
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from conftest import BUILD, ROOT, SLOW, wait_for
from origin import Origin
from test_tls import Pair
from world import FAST, admin, cli, condition, declared, events, model, notify_socket, reconcile, wait_status

ENV = {**FAST, "PANTHEON_FETCH_STALL_S": "1"}


@pytest.fixture
def origin():
    o = Origin()
    yield o
    o.close()


@pytest.fixture(scope="module")
def data(scripts):
    return scripts["small"].read_bytes()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def fetched(name, path, url, sha256=None, mirrors=(), more=""):
    """An entry of declared() whose file is fetched. declared() writes the path; the rest goes in beside it."""
    keys = [f"url: {json.dumps(url)}"] * bool(url) + [f"sha256: {json.dumps(sha256)}"] * bool(sha256) + [f"mirrors: {json.dumps(list(mirrors))}"] * bool(mirrors)
    return (name, str(path) + "\0" + ", ".join(keys), *([more] if more else []))


def text(*models, **sims):
    return re.sub(r'\\u0000([^}]*?)" }', lambda m: '", ' + m[1].replace('\\"', '"') + " }", declared(*models, **sims))


def up(start, manifest, env=ENV, **more):
    """A daemon that listens, whatever becomes of its models."""
    d = start(manifest, wait=False, env=env, **more)
    d.wait_listening()
    return d


def why(d, name="f"):
    """The reason of Fetched, as long as it is not fetched."""
    c = condition(model(d, name), "Fetched")
    return None if c["status"] == "True" else c["reason"]


def wait_why(d, reason, name="f", timeout=20):
    wait_for(lambda: why(d, name) == reason, timeout, f"Fetched is {reason}")
    return condition(model(d, name), "Fetched")["message"]


def names(folder):
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".log" and ".gguf" in p.name)


def test_what_is_declared_is_fetched_while_others_serve(scripts, origin, data, start, tmp_path):
    url = origin.put("f.gguf", data, ways=["held"])
    path = tmp_path / "f.gguf"
    with notify_socket(tmp_path) as (heard, env):
        d = up(start, text(("there", scripts["quick"]), fetched("f", path, url)), env={**ENV, **env})
        heard.until(lambda h: "READY=1" in h, 60)
        wait_status(d, "there", "ready")
        wait_for(lambda: (model(d, "f") or {}).get("reason", "").startswith("its file is being fetched: 50% of"), 20)
        heard.until(lambda h: any("fetching f" in x.lower() for x in h), 20)
    assert why(d) == "Downloading" and model(d, "f")["status"] == "waiting"
    assert d.chat(model="there", max_tokens=2).status == 200
    r = d.chat(model="f", max_tokens=2)
    assert r.status == 503 and "50%" in r.error["message"], r.body
    assert not path.exists() and names(tmp_path) == ["f.gguf.part", "f.gguf.part.from"]
    p = cli(d, "--plan")
    assert p.returncode == 2 and "waiting: its file is being fetched: 50% of" in p.stdout, p.stdout + p.stderr
    file = next(f for f in admin(d, "/admin/facts")["files"] if f["model"] == "f")
    assert file["state"] == "fetching" and file["bytes"] == len(data) and file["part_bytes"] == len(data) // 2
    metrics = d.get("/metrics").body.decode()
    assert f'pantheon_file_bytes{{model="f"}} {len(data)}' in metrics and f'pantheon_file_here_bytes{{model="f"}} {len(data) // 2}' in metrics
    origin.go.set()
    wait_status(d, "f", "ready", 30)
    assert path.read_bytes() == data and names(tmp_path) == ["f.gguf"] and condition(model(d, "f"), "Fetched")["reason"] == "Present"
    assert d.chat(model="f", max_tokens=2).status == 200 and [e for e in events(d, "f") if e.startswith("fetch")] == ["fetch_started", "fetch_done"]
    assert "pantheon_fetched_bytes_total %d" % len(data) in d.get("/metrics").body.decode()
    assert model(d, "there")["counters"]["loads"] == 1 and "load_started" not in events(d, "there")[1:]


def test_nothing_is_fetched_without_a_declaration(origin, data, start, tmp_path):
    origin.put("f.gguf", data)
    d = start(text(("f", tmp_path / "f.gguf"), fetched("absent", tmp_path / "g.gguf", origin.url + "/f.gguf", more="state: absent")))
    assert model(d, "f")["status"] == "failed" and condition(model(d, "f"), "Ready")["reason"] == "FileNotUsable"
    assert condition(model(d, "f"), "Fetched") ["reason"] == "NotDeclared" and origin.asked == [] and names(tmp_path) == []


def test_a_download_that_was_cut_goes_on_where_it_ended(origin, data, start, tmp_path):
    url = origin.put("f.gguf", data, tag='"one"', ways=["cut", "good"])
    d = up(start, text(fetched("f", tmp_path / "f.gguf", url)))
    wait_status(d, "f", "ready", 30)
    half = len(data) // 2
    assert origin.ranges("f.gguf") == [None, f"bytes={half}-"] and origin.asked[1][1]["If-Range"] == '"one"'
    assert "fetch_resumed" in events(d, "f") and re.search(r"event=fetch_failed .*Cut: .*the connection ended after", d.log)
    assert (tmp_path / "f.gguf").read_bytes() == data


def test_a_file_that_changed_meanwhile_is_fetched_anew(scripts, origin, data, start, tmp_path):
    """By its ETag where the server heeds it, by its sum where it does not; a server without ranges, and one that sends another part than asked for."""
    other = scripts["other"].read_bytes()
    urls = {}
    for name, ways in (("heeds", ["cut", "good"]), ("plain", ["cut", "no ranges"]), ("confused", ["cut", "other part", "good"])):
        urls[name] = origin.put(f"{name}.gguf", data, tag='"old"', ways=ways)
    urls["glued"] = origin.put("glued.gguf", data, tag='"old"', ways=["cut", "heedless", "good"])
    d = start(text(("x", tmp_path / "x.gguf")), env=ENV)
    for name, url in urls.items():
        path = tmp_path / f"{name}.gguf"
        sum_ = sha(other[:len(data)]) if name == "glued" else None
        d.write(text(fetched("f", path, url, sha256=sum_)))
        assert reconcile(d, "wait=1").status == 200
        wait_for(lambda: len(origin.ranges(path.name)) >= 1, 20)
        is_ = other[:len(data)] if name == "glued" else other
        origin.files[path.name], origin.tags[path.name] = is_, '"new"'
        wait_for(path.exists, 30, name)
        assert path.read_bytes() == is_, name
        assert origin.ranges(path.name)[:2] == [None, f"bytes={len(data) // 2}-"], (name, origin.ranges(path.name))
    assert names(tmp_path) == sorted(f"{n}.gguf" for n in urls)


def test_a_server_that_heeds_no_if_range_does_not_glue_two_files_together(scripts, origin, data, start, tmp_path):
    """Without a sum nothing else would tell: the file has the size of the one before, and begins as a model does."""
    path, other = tmp_path / "f.gguf", data[:-1] + b"!"
    url = origin.put("f.gguf", data, tag='"old"', ways=["cut", "heedless", "good"])
    d = up(start, text(fetched("f", path, url)), env={**ENV, "PANTHEON_BACKOFF_MS": "1000"})
    wait_why(d, "Cut")
    origin.files["f.gguf"], origin.tags["f.gguf"] = other, '"new"'
    wait_for(path.exists, 30)
    assert path.read_bytes() == other and origin.ranges("f.gguf") == [None, f"bytes={len(data) // 2}-", None]


def test_a_limit_on_file_sizes_is_a_full_disk_and_no_end(scripts, origin, start, tmp_path):
    big = scripts["half"].read_bytes()
    d = up(start, text(("there", scripts["quick"]), fetched("f", tmp_path / "f.gguf", origin.put("f.gguf", big))), launch=["prlimit", "--fsize=4194304:unlimited"])
    assert "File too large" in wait_why(d, "DiskFull")
    wait_status(d, "there", "ready")
    assert d.chat(model="there", max_tokens=1).status == 200 and names(tmp_path) == ["f.gguf.part", "f.gguf.part.from"]


def test_a_link_to_a_disk_that_is_not_there_is_left_alone(origin, data, start, tmp_path):
    path, disk = tmp_path / "f.gguf", tmp_path / "disk"
    path.symlink_to(disk / "f.gguf")
    d = up(start, text(fetched("f", path, origin.put("f.gguf", data))))
    assert "is a symbolic link to what cannot be reached" in wait_why(d, "NotWritable") and path.is_symlink() and origin.asked == []
    disk.mkdir()
    (disk / "f.gguf").write_bytes(data)
    wait_status(d, "f", "ready", 30)
    assert path.is_symlink() and origin.asked == []


def test_one_that_stalls_gives_way_to_a_mirror(origin, data, start, tmp_path):
    slow = origin.put("slow/f.gguf", data, ways=["stall"])
    gone, good = origin.url + "/gone/f.gguf", origin.put("good/f.gguf", data)
    d = up(start, text(fetched("f", tmp_path / "f.gguf", slow, sha(data), [gone, good])))
    wait_status(d, "f", "ready", 40)
    assert [n for n, _ in origin.asked] == ["slow/f.gguf", "gone/f.gguf", "good/f.gguf"]
    assert origin.ranges("good/f.gguf") == [f"bytes={len(data) // 2}-"], "with a sum, a mirror goes on with what is there"


@pytest.mark.parametrize("ways, summed, reason, says", [
    (["stall"], False, "Stalled", "it stalls"),
    (["cut"], True, "Cut", "ended after"),
    (["too long"], False, "Cut", "ended after"),
    (["too short"], False, "NotAModel", "no whole GGUF file"),
    (["too short"], True, "ChecksumMismatch", "is declared"),
    ([404], False, "NotFound", "no such file there"),
    ([403], False, "Forbidden", "not for everybody"),
    ([503], False, "Refused", "status 503"),
    (["to http://127.0.0.1:9/elsewhere"], True, "RedirectRefused", "only https://"),
    (["endless"], False, "DiskFull", "may be written"),
    (["babble 503"], False, "Refused", "status 503"),
    (["babble 302"], True, "RedirectRefused", "only https://"),
])
def test_each_failure_has_its_condition(ways, summed, reason, says, scripts, origin, data, start, tmp_path):
    url = origin.put("f.gguf", data, ways=ways)
    d = up(start, text(("there", scripts["quick"]), fetched("f", tmp_path / "f.gguf", url, sha(data) if summed else None)))
    message = wait_why(d, reason)
    assert says in message, message
    wait_status(d, "f", "failed")  # between two tries
    r = d.chat(model="f", max_tokens=1)
    assert r.status == 503 and "retry-after" in r.headers and says in r.error["message"], r.body
    assert not (tmp_path / "f.gguf").exists()
    wait_status(d, "there", "ready")
    assert d.chat(model="there", max_tokens=2).status == 200 and model(d, "there")["counters"]["loads"] == 1
    origin.ways["f.gguf"] = []  # and it heals by itself
    origin.go.set()
    wait_status(d, "f", "ready", 60)
    assert (tmp_path / "f.gguf").read_bytes() == data and names(tmp_path) == ["f.gguf"]


def test_a_wrong_file_is_thrown_away_and_never_served(origin, data, start, tmp_path):
    page = b"<!DOCTYPE html><title>Please log in</title>" * 100
    d = up(start, text(fetched("f", tmp_path / "f.gguf", origin.put("page.gguf", page)), fetched("g", tmp_path / "g.gguf", origin.put("other.gguf", data), sha(b"something else"))))
    assert "it begins with '<!DOCTYPE html>" in wait_why(d, "NotAModel", "f")
    assert sha(data) in wait_why(d, "ChecksumMismatch", "g")
    assert not (tmp_path / "f.gguf").exists() and not (tmp_path / "g.gguf").exists()
    assert all(p.stat().st_size == 0 for p in tmp_path.glob("*.part"))


def test_a_disk_that_is_full_is_a_condition_with_numbers(origin, scripts, start, tmp_path):
    big = scripts["half"].read_bytes()
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        d = up(start, text(("there", scripts["quick"]), fetched("f", disk / "f.gguf", origin.put("f.gguf", big))))
        message = wait_why(d, "DiskFull")
        assert re.search(r"\d+(\.\d+)? MiB more are needed, and \d+(\.\d+)? MiB may be written", message), message
        wait_status(d, "there", "ready")
        assert not (disk / "f.gguf").exists() and d.chat(model="there", max_tokens=1).status == 200
        subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)
        wait_status(d, "f", "ready", 60)
    finally:
        for d_ in (d,):
            d_.signal(signal.SIGTERM)
            d_.wait()
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_is_not_there_is_not_made(origin, data, start, tmp_path):
    d = up(start, text(fetched("f", tmp_path / "mnt" / "f.gguf", origin.put("f.gguf", data))))
    assert "the folder" in wait_why(d, "NotWritable") and not (tmp_path / "mnt").exists()
    (tmp_path / "mnt").mkdir()
    wait_status(d, "f", "ready", 30)


def test_a_daemon_that_was_killed_goes_on(origin, data, start, tmp_path):
    url = origin.put("f.gguf", data, ways=["held", "good"])
    part = tmp_path / "f.gguf.part"
    manifest = text(fetched("f", tmp_path / "f.gguf", url, sha(data)))
    d = up(start, manifest)
    wait_for(lambda: part.exists() and part.stat().st_size == len(data) // 2, 20)
    d.signal(signal.SIGKILL)
    d.wait()
    d.process.returncode = 0  # as this test wants it
    d2 = up(start, manifest)
    wait_status(d2, "f", "ready", 30)
    assert origin.ranges("f.gguf") == [None, f"bytes={len(data) // 2}-"] and (tmp_path / "f.gguf").read_bytes() == data


def test_a_stop_does_not_wait_for_a_download(origin, data, start, tmp_path):
    d = up(start, text(fetched("f", tmp_path / "f.gguf", origin.put("f.gguf", data, ways=["held"]))))
    wait_for(lambda: (tmp_path / "f.gguf.part").exists(), 20)
    d.signal(signal.SIGTERM)
    assert d.wait(10) == 0 and not (tmp_path / "f.gguf").exists()


def test_what_lies_beside_a_part_holds_nobody_up(origin, data, start, tmp_path):
    os.mkfifo(tmp_path / "f.gguf.part.from.new")
    d = up(start, text(fetched("f", tmp_path / "f.gguf", origin.put("f.gguf", data))))
    wait_status(d, "f", "ready", 30)
    assert names(tmp_path) == ["f.gguf"]


def test_what_the_manifest_drops_is_not_fetched_any_more(origin, data, start, tmp_path):
    url = origin.put("f.gguf", data, ways=["held"])
    two = origin.put("g.gguf", data)
    d = up(start, text(fetched("f", tmp_path / "f.gguf", url, more="priority: 5"), fetched("g", tmp_path / "g.gguf", two)))
    wait_for(lambda: why(d) == "Downloading", 20)
    assert why(d, "g") == "Pending" and "when the one before it is done" in model(d, "g")["reason"]
    d.write(text(fetched("g", tmp_path / "g.gguf", two)))
    assert reconcile(d, "wait=1").status == 200
    wait_status(d, "g", "ready", 30)
    assert re.search(r"event=fetch_failed model=\"f\" .*cancelled: it is no longer wanted", d.log) and not (tmp_path / "f.gguf").exists()


def test_models_of_one_path_share_its_download(origin, data, start, tmp_path):
    url = origin.put("f.gguf", data)
    d = up(start, text(fetched("f", tmp_path / "f.gguf", url), fetched("g", tmp_path / "f.gguf", url, more="ctx_cap: 512")))
    wait_status(d, "f", "ready", 30)
    wait_status(d, "g", "ready", 30)
    assert len(origin.asked) == 1


def test_a_sum_is_checked_once_and_a_wrong_file_is_left_alone(data, start, tmp_path):
    path = tmp_path / "f.gguf"
    path.write_bytes(data)
    manifest = text(fetched("f", path, None, sha(data)))
    d = start(manifest)
    assert model(d, "f")["status"] == "ready" and [e for e in events(d, "f") if e.startswith("fetch")] == ["fetch_started", "fetch_done"]
    state = d.state
    d.stop()
    d = start(manifest, env={"STATE_DIRECTORY": str(state)})
    assert model(d, "f")["status"] == "ready" and not [e for e in events(d, "f") if e.startswith("fetch")], "it is remembered"
    d.stop()
    path.write_bytes(data[:-1] + b"!")
    d = start(manifest, env={"STATE_DIRECTORY": str(state), **FAST})
    wait_status(d, "f", "failed", 20)
    assert why(d) == "ChecksumMismatch" and "it is not served" in model(d, "f")["reason"] and path.exists()
    assert len([e for e in events(d, "f") if e == "fetch_started"]) == 1, "nor read again and again"
    p = cli(d, "--plan")
    assert p.returncode == 3 and "refused: " in p.stdout, p.stdout
    path.write_bytes(data)
    wait_status(d, "f", "ready", 20)


def test_hf_sends_its_token_there_and_nowhere_else(origin, data, start, tmp_path):
    origin.put("org/repo/resolve/main/f.gguf", data)
    origin.put("org/repo/resolve/v1.0/sub/g.gguf", data)
    d = up(start, text(fetched("f", tmp_path / "f.gguf", "hf:org/repo/f.gguf"), fetched("g", tmp_path / "g.gguf", "hf:org/repo@v1.0/sub/g.gguf"), fetched("h", tmp_path / "h.gguf", origin.put("h.gguf", data))),
           env={**ENV, "PANTHEON_HF_ENDPOINT": origin.url + "/", "HF_TOKEN": "hf_secret"})
    for name in "fgh":
        wait_status(d, name, "ready", 30)
    assert {n: h.get("Authorization") for n, h in origin.asked} == {"org/repo/resolve/main/f.gguf": "Bearer hf_secret", "org/repo/resolve/v1.0/sub/g.gguf": "Bearer hf_secret", "h.gguf": None}
    assert "hf_secret" not in d.log and "hf_secret" not in d.get("/admin/facts").body.decode()


def test_https_is_trusted_by_its_certificate_and_followed_to(data, origin, start, tmp_path):
    pair = Pair(tmp_path, "origin")
    safe = Origin(pair)
    try:
        there = safe.put("org/repo/resolve/main/f.gguf", data)
        on = origin.put("on.gguf", data, ways=[f"to {there}"])
        manifest = text(fetched("f", tmp_path / "f.gguf", there), fetched("g", tmp_path / "g.gguf", on))
        d = up(start, manifest)
        assert "SSL_CERT_FILE" in wait_why(d, "NotTrusted") and safe.asked == []
        d.stop()
        d = up(start, manifest, env={**ENV, "SSL_CERT_FILE": str(pair.cert)})
        wait_status(d, "f", "ready", 30)
        wait_status(d, "g", "ready", 30)
        assert (tmp_path / "g.gguf").read_bytes() == data and len(safe.asked) == 2
    finally:
        safe.close()


def test_a_server_that_says_when_is_heeded_and_an_administrator_before_it(origin, data, start, tmp_path):
    d = up(start, text(fetched("f", tmp_path / "f.gguf", origin.put("f.gguf", data, ways=["busy", "good"]))))
    assert "status 429" in wait_why(d, "Refused")
    m = re.search(r"next try in (\d+) s", model(d, "f")["reason"])
    assert m and int(m[1]) > 3000, model(d, "f")["reason"]
    assert d.post("/admin/models/load", {"name": "f"}).status in (200, 202)
    wait_status(d, "f", "ready", 30)


def fetch(folder, manifest, *args, env={}):
    (folder / "models.yaml").write_text(manifest.replace("PORT", "1"))
    return subprocess.run([str(BUILD / "pantheon-reconcile"), "--fetch", *args, str(folder / "models.yaml")], capture_output=True, text=True, timeout=60 * SLOW, cwd=ROOT, env={**os.environ, **ENV, "STATE_DIRECTORY": str(folder), **env})


def test_fetch_by_hand_needs_no_daemon(origin, data, tmp_path):
    url = origin.put("f.gguf", data, ways=["cut", "good"])
    shards = [data[:100], data[100:]]
    for i in (0, 1):
        origin.put(f"s-0000{i + 1}-of-00002.gguf", shards[i])
    manifest = text(fetched("f", tmp_path / "f.gguf", url), fetched("s", tmp_path / "s-00001-of-00002.gguf", origin.url + "/s-00002-of-00002.gguf", [sha(x) for x in shards]), ("plain", tmp_path / "plain.gguf"))
    p = fetch(tmp_path, manifest)
    assert p.returncode == 1 and "f: " in p.stderr and "ended after" in p.stderr and "plain" not in p.stdout + p.stderr, p.stdout + p.stderr
    assert (tmp_path / "s-00001-of-00002.gguf").read_bytes() == shards[0] and (tmp_path / "s-00002-of-00002.gguf").read_bytes() == shards[1]
    p = fetch(tmp_path, manifest)
    assert p.returncode == 0 and (tmp_path / "f.gguf").read_bytes() == data, p.stdout + p.stderr
    assert origin.ranges("f.gguf")[1] == f"bytes={len(data) // 2}-"
    n = len(origin.asked)
    p = fetch(tmp_path, manifest)
    assert p.returncode == 0 and len(origin.asked) == n and p.stdout.count("is there") == 2, p.stdout


def test_the_plan_says_what_would_be_fetched(origin, data, start, tmp_path):
    d = start(text(("x", tmp_path / "x.gguf")))
    d.write(text(fetched("f", tmp_path / "f.gguf", origin.put("f.gguf", data), more="priority: 3"), fetched("g", tmp_path / "g.gguf", "hf:org/repo/g.gguf")))
    p = cli(d, "--plan")
    assert p.returncode == 2 and re.search(r"^< +f +from http", p.stdout, re.M) and "1. fetch f" in p.stdout and "2. fetch g" in p.stdout and "2 to fetch" in p.stdout, p.stdout + p.stderr
    assert origin.asked == [], "a plan asks nobody"
