"""examples/deploy.sh against a real pantheond: what a file lists is made to serve, again and again, and a mistake changes nothing."""
import hashlib
import os
import re
import subprocess
import threading

import pytest

from conftest import BUILD, ROOT, SLOW, manifest, wait_for
from world import declared, model

SCRIPT = ROOT / "examples/deploy.sh"


def deploy(d, conf, *args, env=None):
    where = [] if "--url" in args else ["--socket", d.socket]
    return subprocess.run([SCRIPT, *where, *args, conf], capture_output=True, text=True, timeout=60 * SLOW, env={**os.environ, **(env or {})})


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "models.conf"

    def write(*lines):
        path.write_text("# a comment\n\n" + "\n".join(lines) + "\n")
        return path

    return write


def loads(d, name):
    return model(d, name)["counters"]["loads"]


def test_what_is_listed_serves_and_a_second_run_touches_nothing(scripts, models, start, conf):
    d = start(declared(("declared", scripts["small"]), s0=("300MB", ""), s1=("300MB", "")))
    file = conf(f"a | {scripts['small']} | max_sessions=2 aliases=default,org/a:1 dies=1", f'  b|{models["tiny"]}|ctx-cap=256 queue.timeout="120s" sampling.temperature=0.5',
                f"od | {scripts['other']} | state=on_demand ttl=15m")
    p = deploy(d, file, "--plan")
    assert p.returncode == 2 and re.findall(r"^(\S+) +(\S+)  load$", p.stdout, re.M) == [("+", "a"), ("+", "b"), ("+", "od")] and model(d, "a") is None, p.stdout + p.stderr
    p = deploy(d, file)
    assert p.returncode == 0 and p.stderr == "" and "\na: serves after" in p.stdout, p.stdout + p.stderr
    assert d.chat(model="org/a:1", max_tokens=1).status == 200 and model(d, "a")["placement"][0]["estimated"][0]["die"] == "s1", "dies count from 0"
    assert model(d, "b")["limits"]["ctx_cap"] == 256 and model(d, "a")["limits"]["max_sessions"] == 2
    for args in ((), ("--plan",), ("--prune", "--plan")):
        p = deploy(d, file, *args)
        assert p.returncode == 0 and len(re.findall(r"^= ", p.stdout, re.M)) == 3, p.stdout + p.stderr
    assert loads(d, "a") == loads(d, "b") == 1


def test_a_change_says_what_it_costs_and_prune_takes_what_is_not_listed(scripts, start, conf):
    d = start(declared(("declared", scripts["small"])))
    assert deploy(d, conf(f"a | {scripts['small']}", f"b | {scripts['small']} | max_sessions=2", f"c | {scripts['small']}")).returncode == 0
    file = conf(f"a | {scripts['small']} | priority=7", f"b | {scripts['small']} | max_sessions=3")
    p = deploy(d, file, "--plan")
    assert p.returncode == 2 and re.search(r"^~ +a  priority 0 -> 7$", p.stdout, re.M) and re.search(r"^-/\+ +b  .*max_sessions 2 -> 3$", p.stdout, re.M), p.stdout
    assert "unload" not in p.stdout, "what is not listed stays, unless --prune says otherwise"
    p = deploy(d, file, "--prune", "--plan")
    assert re.search(r"^- +c  unload$", p.stdout, re.M) and model(d, "c"), p.stdout
    p = deploy(d, file, "--prune")
    assert p.returncode == 0 and model(d, "c") is None and model(d, "declared"), p.stdout + p.stderr
    assert loads(d, "a") == 1 and loads(d, "b") == 2, "what costs nothing is done in place"


def test_every_mistake_is_named_with_its_line_and_nothing_is_done(scripts, start, conf):
    d = start(declared(("declared", scripts["small"])))
    file = conf(f"good | {scripts['small']}", f"bad | {scripts['small']} | ctx_kap=8", "good | /x", "no path", f"odd | {scripts['small']} | max_sessions 3",
                f"declared | {scripts['small']} | priority=1", f"twice | {scripts['small']} | priority=1 priority=2", "e | /x | | y", f"n | {scripts['small']} | ctx_cap=many")
    for args in ((), ("--plan",)):
        p = deploy(d, file, *args)
        assert p.returncode == 1 and "8 mistakes; nothing was changed" in p.stderr, p.stderr
        for line, text in ((4, "did you mean 'ctx_cap'"), (5, "in line 3 already"), (6, "name | path"), (7, "'max_sessions 3' does not begin"), (8, "declared in the manifest"),
                           (9, "'priority' is there twice"), (10, "name | path"), (11, "'ctx_cap'")):
            assert re.search(rf"^{file}:{line}: .*{re.escape(text)}", p.stderr, re.M), (line, p.stderr)
    assert model(d, "good") is None


def test_a_model_that_cannot_serve_is_told_and_the_others_do(scripts, start, conf, tmp_path):
    d = start(declared(("declared", scripts["small"]), s0=("50MB", "")))
    p = deploy(d, conf("absent | absent.gguf", f"big | {scripts['big']}", f"a | {scripts['small']}"))
    assert p.returncode == 3 and "2 of 3 failed" in p.stderr and str(tmp_path / "absent.gguf") in p.stderr and re.search(r"^big: .*needs? ", p.stderr, re.M), p.stderr
    assert model(d, "a")["status"] == "ready"


def test_a_run_that_was_killed_is_taken_up_by_the_next(scripts, start, conf):
    d = start(declared(("declared", scripts["small"]), s0=("300MB", ""), s1=("300MB", "upload 1 takes 2s")))
    file = conf(f"first | {scripts['small']} | dies=s0", f"slow | {scripts['half']} | dies=s1", f"last | {scripts['small']} | dies=s0")
    p = subprocess.Popen([SCRIPT, "--socket", d.socket, file], stdout=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: model(d, "slow"), 20, "the slow one is asked for")
    os.killpg(p.pid, 9)
    p.wait()
    assert model(d, "last") is None
    p = deploy(d, file)
    assert p.returncode == 0 and all(model(d, x)["status"] == "ready" and loads(d, x) == 1 for x in ("first", "slow", "last")), p.stdout + p.stderr


def test_two_runs_at_a_time_come_to_the_same(scripts, start, conf):
    d = start(declared(("declared", scripts["small"])))
    file = conf(*(f"m{i} | {scripts['small']}" for i in range(4)))
    runs = [threading.Thread(target=lambda: done.append(deploy(d, file).returncode)) for _ in range(3)]
    done = []
    for t in runs:
        t.start()
    for t in runs:
        t.join()
    assert done == [0, 0, 0] and all(loads(d, f"m{i}") == 1 for i in range(4))


def test_over_tcp_it_needs_a_key_that_may_and_no_command_line_shows_it(scripts, start, conf, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{n}:{hashlib.sha256(f'sk-{n}'.encode()).hexdigest()} {more}\n" for n, more in (("boss", "admin"), ("guest", ""))))
    keys.chmod(0o600)
    d = start(manifest(("declared", scripts["small"]), server=f"api_keys_file: {keys}"), wait=False)
    d.wait_listening()
    file, url = conf(f"a | {scripts['small']}"), f"http://127.0.0.1:{d.port}/"
    for env, code, text in (({}, 1, "API key"), ({"PANTHEON_API_KEY": "sk-guest"}, 1, "dministration"), ({"PANTHEON_API_KEY": "sk-boss"}, 0, "")):
        p = deploy(d, file, "--url", url, env=env)
        assert p.returncode == code and text in p.stderr, (env, p.stderr)
    for env, text in (({"PANTHEON_API_KEY": f'a"\noutput = "{tmp_path}/written'}, "a key has none"), ({"PANTHEON_API_KEY": 'a"b\\c'}, "API key")):
        p = deploy(d, file, "--url", url, env=env)  # no more than a key, whatever it holds
        assert p.returncode == 1 and text in p.stderr and not (tmp_path / "written").exists(), p.stdout + p.stderr
    assert "$PANTHEON_API_KEY" in SCRIPT.read_text() and not re.search(r"-H[^|]*PANTHEON_API_KEY", SCRIPT.read_text())


def test_this_machine_is_asked_without_a_proxy(scripts, start, conf):
    d = start(declared(("declared", scripts["small"])))
    for to in ((), ("--url", f"http://127.0.0.1:{d.port}"), ("--url", f"http://localhost:{d.port}")):
        p = deploy(d, conf(f"a | {scripts['small']}"), "--plan", *to, env={"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"})
        assert p.returncode == 2, p.stdout + p.stderr


def test_nobody_there_and_bad_usage(conf, tmp_path):
    file = conf("a | /x")
    p = subprocess.run([SCRIPT, "--socket", tmp_path / "none", file], capture_output=True, text=True)
    assert p.returncode == 1 and f"{tmp_path}/none" in p.stderr, p.stderr
    for args in (["--foo"], ["--socket"], [file, file]):
        assert subprocess.run([SCRIPT, *args], capture_output=True).returncode == 64, args
    assert subprocess.run([SCRIPT, tmp_path / "absent"], capture_output=True).returncode == 1
    assert subprocess.run([SCRIPT, "--help"], capture_output=True, text=True).stdout.startswith("usage:")


# of `pantheon serve`: what is not a model's but the server's or the process's
SERVERS = {"host", "port", "log", "log-format", "api-keys-file", "tls-cert", "tls-key", "allowed-host", "insecure", "threads", "isa", "no-mmap", "help"}


def test_every_option_of_a_model_that_serve_has_is_taken(scripts, models, start, conf, tmp_path):
    text = subprocess.run([BUILD / "pantheon-cpu", "serve", "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", text, re.M)) - SERVERS - {"model", "name"}
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    values = {"ctx-cap": "512", "max-sessions": "3", "max-concurrent": "2", "chat-template": "t.jinja", "reasoning-budget": "0", "dies": "0,1", "kv": "k=q8_0,v=q4_0", "speculation": "off"}
    assert options == set(values), "a new option of serve: say in models.conf how it is written, and here a value"
    described = (ROOT / "examples/models.conf").read_text()
    d = start(declared(("declared", scripts["small"])))
    for option, value in values.items():
        assert re.search(rf"^#   {option.replace('-', '_')}=", described, re.M), f"models.conf says nothing of {option}"
        p = deploy(d, conf(f"x | {scripts['small']} | {option}={value}"), "--plan")
        assert p.returncode == 2 and "+    x" in p.stdout, (option, p.stderr)
    p = deploy(d, conf(f"x | {models['slow']} | " + " ".join(f"{k}={v}" for k, v in values.items())))
    assert p.returncode == 0, p.stderr
    x = model(d, "x")
    assert x["placement"][0]["kv_type"] == "q8_0/q4_0" and [q["die"] for q in x["placement"][0]["estimated"]] == ["s0", "s1"] and x["limits"]["ctx_cap"] == 512


def test_the_example_is_read_as_it_is_described(start, scripts, conf):
    """The commented rows of models.conf, and each of the further keys it names, are good."""
    text = (ROOT / "examples/models.conf").read_text()
    rows = re.findall(r"^# (\w+ +\| .*)$", text, re.M)
    more = re.findall(r"(?<= )([a-z_.]+=\S+)", text[text.index("and what only the manifest has"):text.index("A value with blanks")])
    assert len(rows) == 2 and len(more) >= 12
    d = start(declared(("declared", scripts["small"])))
    p = deploy(d, conf(*rows), "--plan")
    assert p.returncode == 2 and p.stdout.count("+ ") == 2, p.stderr
    for option in more:
        p = deploy(d, conf(f"x | /x.gguf | {option} {'state=on_demand' if option.startswith('ttl') else ''}"), "--plan")
        assert p.returncode == 2, (option, p.stderr)


def test_a_dry_run_answers_what_a_load_would_change(scripts, start):
    d = start(declared(("declared", scripts["small"])))
    spec = {"name": "x", "source": {"path": str(scripts["small"])}}
    assert d.post("/admin/models/load?dry_run=1", spec).json == {"name": "x", "dry_run": True, "status": "absent", "reason": "", "changes": []} and model(d, "x") is None
    assert d.post("/admin/models/load?wait=1", spec).status == 200
    r = d.post("/admin/models/load?dry_run=1", {**spec, "max_sessions": 5, "priority": 3}).json
    assert r["status"] == "ready" and {(c["key"], c["change"], c["was"], c["is"]) for c in r["changes"]} == {("max_sessions", "reload", "4", "5"), ("priority", "live", "0", "3")}, r
    assert d.post("/admin/models/load?dry_run=1", {"name": "declared"}).json["changes"] == []
    assert d.post("/admin/models/load?dry_run=1", {**spec, "ctx_kap": 1}).status == 400 and model(d, "x")["limits"]["max_sessions"] == 4
