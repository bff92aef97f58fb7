"""`pantheon quantize` and `pantheon perplexity` as people run them."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, SLOW

CLI = str(BUILD / "pantheon-cpu")


def run(*args, **kw):
    return subprocess.run([CLI, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=120 * SLOW, **kw)


def test_a_quantised_model_answers(models, tmp_path):
    out = tmp_path / "q8.gguf"
    r = run("quantize", models["tiny"], out, "q8_0")
    assert r.returncode == 0 and r.stderr == "" and re.match(r".*q8.gguf: Q8_0, \d+ tensors, ", r.stdout), r
    r = run("--model", out, "--prompt", "hi", "--raw", "--max-tokens", "4", "--temperature", "0")
    assert r.returncode == 0 and r.stdout.startswith("hi"), r
    assert "Q8_0" in run("inspect", out).stdout
    assert os.listdir(tmp_path) == ["q8.gguf"]


def test_what_stands_there_is_not_overwritten_unasked(models, tmp_path):
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    r = run("quantize", models["tiny"], out, "F16")
    assert r.returncode == 1 and "exists" in r.stderr and out.read_text() == "precious", r
    assert run("quantize", "--force", models["tiny"], out, "F16").returncode == 0
    assert out.read_bytes()[:4] == b"GGUF"
    before = out.read_bytes()
    r = run("quantize", "--force", out, out, "Q8_0")
    assert r.returncode == 1 and "is the input" in r.stderr and out.read_bytes() == before, r
    assert os.listdir(tmp_path) == ["out.gguf"]


@pytest.mark.parametrize("args, says", [([], "IN, OUT and TYPE"), (["a", "b"], "IN, OUT and TYPE"), (["a", "b", "IQ2_XXS"], "TYPE is one of F32, F16"),
                                        (["a", "b", "Q8_0", "d"], "one argument too many")])
def test_a_command_that_makes_no_sense_says_what_would(args, says):
    r = run("quantize", *args)
    assert r.returncode == 64 and says in r.stderr, r


def test_a_full_disk_is_an_error_and_leaves_nothing(models, tmp_path):
    r = subprocess.run(["sh", "-c", f"ulimit -f 8; exec {CLI} quantize {models['tiny']} {tmp_path}/out.gguf F32"], cwd=ROOT, capture_output=True,
                       text=True, timeout=60 * SLOW)
    assert r.returncode == 1 and "out.gguf" in r.stderr and "too large" in r.stderr.lower() and os.listdir(tmp_path) == [], r
    r = run("quantize", "--force", models["tiny"], "/dev/full", "F32")
    assert r.returncode == 1 and "not a file to write" in r.stderr and os.path.exists("/dev/full"), r
    mount = tmp_path / "small"
    mount.mkdir()
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", mount], capture_output=True).returncode == 0:
        try:
            r = run("quantize", models["tiny"], mount / "out.gguf", "F32")
            assert r.returncode == 1 and "its file system has" in r.stderr and os.listdir(mount) == [], r
        finally:
            subprocess.run(["umount", mount], check=True)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_leaves_nothing(models, tmp_path, sig):
    out = tmp_path / "out.gguf"
    p = subprocess.Popen([CLI, "quantize", "--threads", "1", models["slow"], out, "Q2_K"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60 * SLOW
    while not os.listdir(tmp_path) and time.monotonic() < end and p.poll() is None:
        time.sleep(0.002)  # until the output has begun under its other name
    p.send_signal(sig)
    _, err = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 130 and "interrupted" in err and os.listdir(tmp_path) == [], (p.returncode, err)


def test_perplexity_prints_one_line_or_json(models):
    r = run("perplexity", "--model", models["tiny"], "--file", "tests/data/text/jargon.txt", "--ctx", "64")
    assert r.returncode == 0 and r.stderr == "" and re.fullmatch(r"perplexity \d+\.\d{4} \+/- \d+\.\d{4} over \d+ tokens \(\d+ windows of 64\)\n", r.stdout), r
    j = json.loads(run("perplexity", "--model", models["tiny"], "--file", "tests/data/text/jargon.txt", "--ctx", "64", "--json", "--exact").stdout)
    assert j["tokens"] == 31 * j["windows"] and j["window"] == 64
    assert abs(j["perplexity"] / float(r.stdout.split()[1]) - 1) < 0.02
    r = run("perplexity", "--model", models["tiny"], "--file", "-", "--ctx", "64", input="too short")
    assert r.returncode == 1 and "less than one window of 64" in r.stderr, r
    assert run("perplexity", "--model", models["tiny"]).returncode == 64
