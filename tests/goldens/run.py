#!/usr/bin/env python3
"""Runs the reference cases of a goldens folder through the `pantheon` binary, as a user would: logits, tokenize, detokenize, template.
Dequantised values have no command; the unit test that compares them is run over the folder instead.

usage: run.py GOLDENS [PANTHEON [TEST_QUANT]] [--only models|quants|tokenizers|templates] [--also DIR] [--table FILE] [--run COMMAND]
              [--verbose]

Prints each failure, what was left out by reason, and one total: `N passed, N failed, N left out`. A case is left out only for what this
build says it does not serve; everything else that goes wrong is a failure. A folder need not have all four parts. --also: the models of
one more folder. --table: write docs/numerics.md from what was measured (table.py). --run: what runs the binaries, an emulator
and its options. Standard library only.
"""

import argparse
import array
import collections
import concurrent.futures
import glob
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

import table

# What the binary says of things it does not serve -> the reason printed.
LEFT_OUT = [
    (re.compile(r"has the type (\w+), which this build does not serve"), r"type \1"),
    (re.compile(r'architecture "([^"]+)" is not one that this build serves'), r"architecture \1"),
    (re.compile(r"(\w+)\.expert_count is \d+, which this build does not serve"), r"mixture of experts (\1.expert_count)"),
    (re.compile(r"the pre-tokenizer '([^']+)' \(tokenizer.ggml.pre\) is not known"), r"pre-tokenizer \1"),
    (re.compile(r"the tokenizer model '([^']+)' \(tokenizer.ggml.model\) is not known"), r"tokenizer \1"),
]

# max abs and mean abs of logits, by what the engine computes with (the goldens' README).
EXACT = (5e-4, 5e-5)
EXACT_LONG = (2e-3, 1e-4)
FAST_F32 = (5e-2, 1e-2)
FAST_F16 = (0.1, 1.5e-2)
FAST_Q = (2.0, 0.25)
FAST_K = (3.0, 0.4)

ISAS = ["scalar", "sse", "avx2", "avx512", "neon", "dotprod"]

Result = collections.namedtuple("Result", "case verdict detail measured", defaults=[None])


def left_out(stderr):
    for pattern, reason in LEFT_OUT:
        m = pattern.search(stderr)
        if m:
            return m.expand(reason)
    return None


class Runner:
    def __init__(self, root, binary, test_quant, work):
        self.root, self.binary, self.test_quant, self.work = root, binary, test_quant, work
        self.models = [root]
        self.isas = [""]  # "" = the best this CPU has
        self.run = []

    def pantheon(self, *args, stdin=b""):
        p = subprocess.run([*self.run, self.binary, *args], input=stdin, capture_output=True, timeout=600)
        return p.returncode, p.stdout, p.stderr.decode(errors="replace").strip()

    def all_isas(self):
        """Every instruction set that this CPU has, least first."""
        folder, _, entry, _ = next(c for c in self.model_cases() if c[2]["file"].endswith(".gguf"))
        args = ["logits", "--model", os.path.join(folder, entry["file"]), "--tokens", "1", "--out", "-", "--isa"]
        return [isa for isa in ISAS if self.pantheon(*args, isa)[0] == 0]

    def verdict(self, case, rc, stderr):
        reason = left_out(stderr)
        if reason:
            return Result(case, "left out", reason)
        return Result(case, "failed", f"exit {rc}: {stderr}")

    # --- models ---

    def model_cases(self):
        for base in (os.path.join(root, "models") for root in self.models):
            for name in sorted(os.listdir(base)):
                with open(os.path.join(base, name, "golden.json")) as f:
                    golden = json.load(f)
                for entry in golden["entries"]:
                    if entry.get("window") == "ignored":
                        continue  # a window that the file names is honoured
                    for isa in [None, *self.isas]:
                        yield os.path.join(base, name), golden, entry, isa

    def model(self, case):
        folder, golden, entry, isa = case
        exact = isa is None
        label = f"{os.path.basename(folder)}/{entry['file']} {'exact' if exact else 'fast'}{isa and ' ' + isa or ''}"
        path = os.path.join(folder, entry["file"])
        prompt = golden[entry.get("prompt", "prompt_ids")]
        greedy = entry["greedy_ids"]
        # Fed with the reference's own continuation, every step must choose its next id: greedy decoding in one call.
        ids = prompt + greedy[:-1]
        out = os.path.join(self.work, re.sub(r"\W", "_", label + entry["logits"]))
        args = ["logits", "--model", path, "--tokens", ",".join(map(str, ids)), "--out", out]
        # Which rope factors are chosen depends on the context; an entry without one has that of the others with its reference.
        n_ctx = [e["n_ctx"] for e in (entry, *golden["entries"]) if "n_ctx" in e and e["logits"] == entry["logits"]]
        if n_ctx:
            args += ["--ctx-cap", str(n_ctx[0])]
        rc, _, err = self.pantheon(*args, *(["--exact"] if exact else ["--isa", isa] if isa else []))
        if rc != 0:
            return self.verdict(label, rc, err)
        with open(out, "rb") as f:
            got = array.array("f", f.read())
        os.unlink(out)
        want, shape = read_npy(os.path.join(folder, entry["logits"]))
        vocab = golden["n_vocab"]
        if len(got) != len(ids) * vocab or shape != (len(prompt), vocab):
            return Result(label, "failed", f"{len(got)} logits for {len(ids)} tokens of {vocab}")
        tol_max, tol_mean = self.tolerance(path, exact, len(prompt))
        diffs = [abs(a - b) for a, b in zip(got, want)]
        worst, mean = max(diffs), sum(diffs) / len(diffs)
        if not (worst <= tol_max and mean <= tol_mean) or any(d != d for d in diffs):
            return Result(label, "failed", f"max {worst:.2e} mean {mean:.2e}, allowed {tol_max} {tol_mean}")
        # The 300-token prompt is not chosen free of near ties (the goldens' README).
        for i in range(len(prompt)) if exact or len(prompt) < 100 else ():
            if argmax(got, i, vocab) != argmax(want, i, vocab):
                return Result(label, "failed", f"argmax differs at position {i}")
        for i, token in enumerate(greedy):
            if entry["greedy_gap"][i] < 2 * tol_max:
                break
            if argmax(got, len(prompt) - 1 + i, vocab) != token:
                return Result(label, "failed", f"greedy id {i} differs")
        rms = math.sqrt(sum(d * d for d in diffs) / sum(x * x for x in want))
        measured = table.Row(golden, entry, types_name(path), isa, worst, mean, rms, tol_max, tol_mean)
        return Result(label, "passed", f"max {worst:.2e} mean {mean:.2e} rms {rms:.1e}", measured)

    def tolerance(self, path, exact, n_prompt):
        if exact:
            return EXACT if n_prompt < 100 else EXACT_LONG
        types = tensor_types(path)
        if any(t >= 10 and t not in (20, 30) for t in types):
            return FAST_K
        if types - {0, 1, 30}:
            return FAST_Q
        return FAST_F32 if types == {0} else FAST_F16

    # --- quants ---

    def quant_cases(self):
        """Types of the folder, each with what the unit test says of it."""
        p = subprocess.run([*self.run, self.test_quant], env={**os.environ, "GOLDENS": self.root}, capture_output=True, text=True, timeout=600)
        said = dict(m.groups()[::-1] for m in re.finditer(r"^(equal|left out): type (\w+)$", p.stdout, re.M))
        with open(os.path.join(self.root, "quants", "manifest.json")) as f:
            for t in json.load(f)["types"]:
                yield t["type"], said.get(t["type"]), p

    def quant(self, case):
        name, verdict, p = case
        if verdict == "left out":
            return Result(name, "left out", f"type {name}")
        if verdict != "equal" or p.returncode != 0:
            return Result(name, "failed", f"test_quant ended with {p.returncode}: {p.stderr.strip()[-300:]}")
        return Result(name, "passed", "")

    # --- tokenizers ---

    def tokenizer_cases(self):
        base = os.path.join(self.root, "tokenizers")
        for name in sorted(os.listdir(base)):
            if not os.path.isdir(os.path.join(base, name)):
                continue
            models = [(name, os.path.join(base, name, name + "-vocab.gguf"))]
            if os.path.exists(os.path.join(base, name, "tokenizer.json")):
                models.append((name + "/tokenizer.json", os.path.join(base, name)))
            for kind in ("encode", "decode"):
                with open(os.path.join(base, name, kind + ".jsonl")) as f:
                    for line in f:
                        for label, path in models:
                            yield label, path, kind, json.loads(line)

    def tokenizer(self, case):
        name, path, kind, c = case
        if kind == "decode":
            label = f"{name} decode {str(c['ids'])[:60]}"
            rc, out, err = self.pantheon("detokenize", "--model", path, stdin=json.dumps(c["ids"]).encode())
            if rc != 0:
                return self.verdict(label, rc, err)
            if out != bytes.fromhex(c["bytes_hex"]):
                return Result(label, "failed", f"got {out.hex()}, expected {c['bytes_hex']}")
            return Result(label, "passed", "")
        label = f"{name} encode '{c['case']}' add={c['add_special']} special={c['parse_special']}"
        flags = ([] if c["add_special"] else ["--no-bos"]) + ([] if c["parse_special"] else ["--no-special"])
        rc, out, err = self.pantheon("tokenize", "--model", path, *flags, stdin=bytes.fromhex(c["hex"]))
        if rc != 0:
            return self.verdict(label, rc, err)
        if c["ids"] is not None:
            allowed = [c["ids"]]
        else:  # invalid UTF-8: any of three ways is right
            allowed = [c.get(k) for k in ("ids_llamacpp", "ids_hf_of_replaced_text", "ids_bytewise")]
        got = json.loads(out)
        if got not in allowed:
            return Result(label, "failed", f"got {got}, expected {allowed[0]}")
        return Result(label, "passed", "")

    # --- templates ---

    def template_cases(self):
        base = os.path.join(self.root, "templates")
        with open(os.path.join(base, "conversations.jsonl")) as f:
            for line in f:
                c = json.loads(line)
                with open(os.path.join(self.work, c["id"] + ".json"), "w") as out:
                    out.write(line)
        with open(os.path.join(base, "renders.jsonl")) as f:
            for line in f:
                yield json.loads(line)

    def template(self, c):
        base = os.path.join(self.root, "templates")
        label = f"{c['template']} on {c['conversation']}"
        rc, out, err = self.pantheon("template", "--template", os.path.join(base, "templates", c["template"]), "--input",
                                     os.path.join(self.work, c["conversation"] + ".json"), "--settings",
                                     os.path.join(base, "render_settings.json"))
        if "output" in c:
            if rc != 0:
                return self.verdict(label, rc, err)
            want = c["output"].encode()
            if out != want:
                at = next((i for i, (a, b) in enumerate(zip(out, want)) if a != b), min(len(out), len(want)))
                return Result(label, "failed", f"at byte {at}: got {out[at:at + 40]!r}, expected {want[at:at + 40]!r}")
            return Result(label, "passed", "")
        if rc == 0:
            return Result(label, "failed", f"rendered, expected {c['error_type']}: {c['error']}")
        reason = left_out(err)
        if reason:
            return Result(label, "left out", reason)
        if rc != 1:
            return Result(label, "failed", f"exit {rc}: {err}")
        # What a template raises itself is its author's message to the user; Python's own errors only have to be errors.
        if c["error_type"] == "TemplateError" and c["error"] not in err:
            return Result(label, "failed", f"got '{err}', expected '{c['error']}'")
        return Result(label, "passed", "")


def argmax(values, row, width):
    at = row * width
    best = max(values[at:at + width])
    return values.index(best, at) - at


def read_npy(path):
    with open(path, "rb") as f:
        data = f.read()
    assert data[:7] == b"\x93NUMPY\x01", path
    n = struct.unpack_from("<H", data, 8)[0]
    head = data[10:10 + n].decode()
    assert "'<f4'" in head and "False" in head, head
    shape = tuple(int(x) for x in re.search(r"\((\d+), (\d+)\)", head).groups())
    return array.array("f", data[10 + n:]), shape


def tensor_types(path):
    """The types of a model's tensors, as numbers of GGUF: of all shards, or of a directory's safetensors."""
    shards = re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"-[0-9]*\1", path)
    if not os.path.isdir(path):
        return set().union(*(gguf_types(p) for p in sorted(glob.glob(shards))))
    types = set()
    for p in glob.glob(os.path.join(path, "*.safetensors")):
        with open(p, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        types |= {{"F32": 0, "F16": 1, "BF16": 30}[t["dtype"]] for k, t in header.items() if k != "__metadata__"}
    return types


def types_name(path):
    """What people call a file of these types."""
    if os.path.isdir(path):
        return {0: "F32", 1: "F16", 30: "BF16"}[max(tensor_types(path))]
    return re.search(r"-([A-Z]+\d*\w*?)(-ggufv2)?(-\d{5}-of-\d{5})?\.gguf$", path)[1]


def gguf_types(path):
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as f:
        def number(fmt):
            return struct.unpack("<" + fmt, f.read(struct.calcsize(fmt)))[0]

        def skip(kind):
            if kind == 8:
                f.seek(number("Q"), 1)
            elif kind == 9:
                elem, n = number("I"), number("Q")
                if elem in sizes:
                    f.seek(sizes[elem] * n, 1)
                else:
                    for _ in range(n):
                        skip(elem)
            else:
                f.seek(sizes[kind], 1)

        f.read(8)
        n_tensors, n_keys = number("Q"), number("Q")
        for _ in range(n_keys):
            f.seek(number("Q"), 1)
            skip(number("I"))
        types = set()
        for _ in range(n_tensors):
            f.seek(number("Q"), 1)
            f.seek(8 * number("I"), 1)
            types.add(number("I"))
            f.seek(8, 1)
        return types


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("goldens")
    p.add_argument("pantheon", nargs="?", default="./pantheon")
    p.add_argument("test_quant", nargs="?", default="build/release/tests/foundry/test_quant")
    p.add_argument("--only", choices=["models", "quants", "tokenizers", "templates"])
    p.add_argument("--also", metavar="DIR")
    p.add_argument("--table", metavar="FILE")
    p.add_argument("--run", metavar="COMMAND", default="")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    binary = os.path.abspath(a.pantheon)
    total, reasons, measured, equal_types = collections.Counter(), collections.Counter(), [], 0
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        r = Runner(os.path.abspath(a.goldens), binary, a.test_quant, work)
        r.run = a.run.split()
        if a.also:
            r.models.append(os.path.abspath(a.also))
        if a.table:
            r.isas = r.all_isas()
        for part, cases, check in (("models", r.model_cases, r.model), ("quants", r.quant_cases, r.quant),
                                   ("tokenizers", r.tokenizer_cases, r.tokenizer), ("templates", r.template_cases, r.template)):
            if a.only and a.only != part or not a.only and not os.path.isdir(os.path.join(a.goldens, part)):
                continue
            count = collections.Counter()
            for result in pool.map(check, cases()):
                count[result.verdict] += 1
                if result.measured:
                    measured.append(result.measured)
                if result.verdict == "left out":
                    reasons[f"{part}: {result.detail}"] += 1
                if result.verdict == "failed" or a.verbose:
                    print(f"{result.verdict}: {result.case}  {result.detail}")
            print(f"{part}: {count['passed']} passed, {count['failed']} failed, {count['left out']} left out", flush=True)
            total += count
            if part == "quants":
                equal_types = count["passed"]
    for reason, n in sorted(reasons.items()):
        print(f"left out {n:4} {reason}")
    if a.table:
        with open(a.table, "w") as f:
            f.write(table.page(measured, " and ".join(r.isas), equal_types))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['left out']} left out")
    sys.exit(1 if total["failed"] or not total["passed"] else 0)


main()
