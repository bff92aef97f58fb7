"""`pantheon drift` as people run it."""
import json
import re
import subprocess

from conftest import BUILD, ROOT, SLOW

CLI = str(BUILD / "pantheon-cpu")


def run(*args, **kw):
    return subprocess.run([CLI, "drift", *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=120 * SLOW, **kw)


def test_a_right_build_exits_0_and_shows_every_kind_of_op(models):
    r = run("--model", models["tiny"])
    assert r.returncode == 0 and r.stderr == "", r
    assert re.search(r"^No difference of \d+ ops passes its tolerance\.$", r.stdout, re.M), r.stdout
    for op in "get_rows", "rms_norm", "matmul", "rope", "attend", "add", "silu_mul":
        assert re.search(rf"^{op} ", r.stdout, re.M), (op, r.stdout)
    assert "logits: largest difference" in r.stdout
    j = json.loads(run("--model", models["tiny"], "--json", "--text", "Hello you", "--threads", "1").stdout)
    assert j["past"] is False and j["first"] is None and j["ops_past"] == 0 and len(j["layers"]) == 2, j
    assert all(k["past"] == 0 and 0 <= k["worst"]["share"] <= 1 for k in j["kinds"]), j


def test_a_difference_past_its_tolerance_exits_2_and_is_named(models, tmp_path):
    q8 = tmp_path / "q8.gguf"
    assert subprocess.run([CLI, "quantize", models["tiny"], str(q8), "Q8_0"], cwd=ROOT).returncode == 0
    r = run("--model", q8, "--device", "exact", "--against", "cpu", "--tokens", "5,6,7,8,9,10,11,12,13")  # two devices that round differently
    assert r.returncode == 2 and r.stderr == "", r
    assert re.search(r"^FIRST PAST ITS TOLERANCE: matmul, layer 0, blk\.0\.attn_[qkv]\.weight$", r.stdout, re.M), r.stdout
    r = run("--model", q8, "--device", "exact", "--against", "cpu", "--tokens", "5,6,7,8,9,10,11,12,13", "--json")
    j = json.loads(r.stdout)
    assert r.returncode == 2 and j["past"] and j["steps"] == [5, 3, 1], j
    assert j["first"]["layer"] == 0 and j["first"]["step"] == 0 and j["first"]["difference"] > j["first"]["allowed"] > 0, j["first"]


def test_what_cannot_be_done_is_said(models, tmp_path):
    for args, code, says in (
        (("--model", models["tiny"], "--tokens", "1,512"), 1, "token 512 (number 2) is out of range"),
        (("--model", models["tiny"], "--tokens", "1,x"), 64, "number 2 is no token id"),
        (("--model", models["tiny"], "--tokens", "1", "--text", "a"), 64, "give one of"),
        (("--model", models["tiny"], "--device", "cpu:mmx"), 1, "unknown instruction set 'mmx'"),
        (("--model", models["tiny"], "--against", "k80"), 1, "no device of kind 'k80'"),
        (("--model", models["tiny"], "--text", ""), 1, "0 tokens"),
        (("--model", tmp_path / "none.gguf"), 1, "none.gguf"),
        ((), 64, "--model"),
    ):
        r = run(*args)
        assert r.returncode == code and says in r.stderr and r.stdout == "", (args, r)


def test_a_file_of_text_is_fed_and_long_ones_are_cut(models):
    j = json.loads(run("--model", models["tiny"], "--file", "tests/data/text/jargon.txt", "--max-tokens", "21", "--json").stdout)
    assert j["tokens"] == 21 and j["steps"] == [17, 3, 1], j
    j = json.loads(run("--model", models["tiny"], "--file", "-", "--json", input="Hello").stdout)
    assert j["steps"] in ([1], [1, 1]), j
