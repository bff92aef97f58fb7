"""`pantheon` at a shell's edges: what is closed, full or not a file."""
import json
import os
import subprocess

import pytest

from conftest import BUILD, ROOT, SLOW, manifest
from world import declared, model

CLI = str(BUILD / "pantheon-cpu")


def sh(command, **kw):
    return subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, **kw)


def test_a_failing_logits_removes_its_file_and_takes_no_device_away(models, tmp_path):
    """As root, `--out /dev/full` must not end as a folder without /dev/full: shown with a link to it."""
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to("/dev/full")
    logits = f"{CLI} logits --model {models['tiny']} --tokens 1,2 --out"
    r = sh(f"{logits} {link}")
    assert r.returncode == 1 and "No space left" in r.stderr and link.is_symlink(), r
    r = sh(f"trap '' XFSZ; ulimit -f 0; {logits} {file}")
    assert r.returncode == 1 and not file.exists(), "no half file that looks like a result"


@pytest.mark.parametrize("args", ["--version", "--help", "--backend", "inspect MODEL", "template --model MODEL --input -", "logits --model MODEL --tokens 1,2 --out -"])
def test_output_that_cannot_be_written_is_an_error(models, args):
    conversation = '{"messages": [ { "role": "user", "content": "hi" } ]}'
    for out in (">/dev/full", ">&-"):
        r = sh(f"{CLI} {args.replace('MODEL', str(models['tiny']))} {out}", input=conversation)
        assert r.returncode == 1 and r.stderr.count("\n") == 1, (out, r)


def test_a_closed_stdin_is_not_the_next_file(models):
    r = sh(f"{CLI} tokenize --model {models['tiny']} <&-")
    assert r.returncode == 1 and r.stdout == "" and "stdin" in r.stderr, r


def test_a_daemon_without_standard_descriptors_keeps_its_sockets_clean(models, start, tmp_path):
    d = start(manifest(("tiny", models["tiny"])))  # for its manifest and port
    d.stop()
    d.process = subprocess.Popen(["sh", "-c", f"exec {BUILD}/pantheond --log debug=all --config {d.manifest} <&- >&- 2>&-"], cwd=ROOT)
    d.wait_listening()
    for fd in range(3):
        assert os.readlink(f"/proc/{d.process.pid}/fd/{fd}") == "/dev/null"
    assert d.chat(max_tokens=1).status in (200, 503)


def test_inspect_prints_the_table_that_loading_then_fills(models, start):
    """For one die and split over two: the same bytes as a daemon measures once the model is there."""
    keys = "ctx_cap: 256\nmax_sessions: 3\nmax_concurrent: 2\n"
    flags = "--ctx-cap 256 --max-sessions 3 --max-concurrent 2 --kv f16"
    d = start(declared(("split", models["tiny"], keys + "dies: [s0, s1]"), ("whole", models["tiny"], keys + "dies: [s1]")))
    for name, dies in (("split", "s0,s1"), ("whole", "s1")):
        r = sh(f"{CLI} inspect {models['tiny']} {flags} --dies {dies} --json")
        assert r.returncode == 0, r
        table = json.loads(r.stdout)["dies"]
        measured = model(d, name)["placement"][0]["measured"]
        if SLOW == 1:  # debug builds have redzones and smaller pages
            assert [(t["die"], t["weights_bytes"], t["kv_bytes"], t["scratch_bytes"]) for t in table] == [(m["die"], m["weights_bytes"], m["kv_bytes"], m["scratch_bytes"]) for m in measured]
        assert all(t["total_bytes"] == t["weights_bytes"] + t["kv_bytes"] + t["scratch_bytes"] and t["total_bytes"] > 0 for t in table)
        assert sum(t["n_layers"] for t in table) == json.loads(r.stdout)["shape"]["layers"]
        text = sh(f"{CLI} inspect {models['tiny']} {flags} --dies {dies}").stdout
        assert f"over {len(table)} equal dies" in text and all(f"\n  {t['die']} " in text for t in table) and "can be served" in text


def test_bench_decodes_every_number_of_sequences_at_every_depth(models):
    bench = f"{CLI} bench --model {models['tiny']} --threads 1 --repeat 1"
    for memory in ("", "--no-mmap"):
        r = sh(f"{bench} {memory} --prefill 3,0,40 --decode 2 --depth 5,0 --sequences 1,3,2 --json")
        assert r.returncode == 0, r
        out = json.loads(r.stdout)
        assert [p["tokens"] for p in out["prefill"]] == [3, 40]
        assert [(d["depth"], d["sequences"]) for d in out["decode"]] == [(5, 1), (5, 3), (5, 2), (0, 1), (0, 3), (0, 2)]
        assert all(x["tokens_per_second"] > 0 for x in out["prefill"] + out["decode"])
    text = sh(f"{bench} --prefill 0 --decode 2 --sequences 1,4").stdout.splitlines()
    assert len(text) == 2 and text[0].endswith("tok/s") and text[1].endswith("tok/s of 4 sequences together"), text
    for wrong in ("0", "65", "1,x"):
        r = sh(f"{bench} --sequences {wrong}")
        assert r.returncode == 64 and "from 1 to 64" in r.stderr, r


@pytest.mark.parametrize(
    "flags,status,says",
    [
        ("--kv q9", 64, "'q9' is no type of a KV cache: f32, f16, q8_0 or q4_0"),
        ("--dies 0,0", 64, "stands there twice"),
        ("--dies 0,", 64, "must be names or numbers"),
        ("--dies 0,1,2", 1, "cannot be split over 3 dies"),
        ("--ctx-cap 512", 1, "above the 256 tokens"),
    ],
)
def test_inspect_says_why_not(models, flags, status, says):
    r = sh(f"{CLI} inspect {models['tiny']} {flags}")
    assert r.returncode == status and says in r.stdout + r.stderr, r


def test_a_mistyped_area_of_the_log_is_named():
    for command in (f"{BUILD}/pantheond --log debug=sched,typo", f"{CLI} serve --model x.gguf --log debug=typo"):
        r = sh(command)
        assert r.returncode == 64 and "'typo'" in r.stderr and "grammar, http, reconcile, sched" in r.stderr, r
