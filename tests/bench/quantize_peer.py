"""Quantises one model with `pantheon quantize` and with llama-quantize (llama.cpp), type by type, and prints as a Markdown table: how many
tensors got another type than there (0 is asked for) and other bytes, and the perplexity of both files on a text, computed by the same engine.

    tests/bench/quantize_peer.py PANTHEON LLAMA-QUANTIZE F32.gguf TEXT [TYPE ...]

F32.gguf is a model in F32, for instance made by `pantheon quantize models/SmolLM2-135M-Instruct.Q4_1.gguf f32.gguf F32`. Types that
llama-quantize has no name for are made there by naming the type of every matrix. --types leaves the perplexity out."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

TYPES = ("Q4_K_M Q3_K_M Q2_K IQ4_XS Q5_K_M Q6_K Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K_S Q3_K_S Q3_K_L Q4_K_S Q5_K_S IQ4_NL TQ1_0 TQ2_0 "
         "MXFP4 MXFP4_MOE NVFP4 F16 BF16 F32").split()
NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
         20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}


def tensors(path):
    """{name: (type, ne, place in the file)} of a GGUF, in file order."""
    f = open(path, "rb")

    def u(fmt):
        return struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))

    def text():
        return f.read(u("Q")[0])

    def skip(t):
        size = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
        if t == 8:
            text()
        elif t == 9:
            elem, n = u("IQ")
            if elem in size:
                f.seek(size[elem] * n, 1)
            else:
                for _ in range(n):
                    skip(elem)
        else:
            f.seek(size[t], 1)

    f.seek(8)
    n_tensors, n_kv = u("QQ")
    for _ in range(n_kv):
        text()
        skip(u("I")[0])
    out = {}
    for _ in range(n_tensors):
        name = text().decode()
        ne = u("%dQ" % u("I")[0])
        out[name] = (NAMES.get(u("I")[0], "?"), ne, u("Q")[0])
    start = (f.tell() + 31) // 32 * 32
    return {name: (kind, ne, start + at) for name, (kind, ne, at) in out.items()}


def differing(ours, theirs, mine, there):
    """Tensors whose bytes differ."""
    a, b = open(ours, "rb"), open(theirs, "rb")
    places, n = sorted(t[2] for t in mine.values()) + [ours.stat().st_size], 0
    ends = dict(zip(places, places[1:]))
    for name, (_, _, at) in mine.items():
        a.seek(at)
        b.seek(there[name][2])
        n += a.read(ends[at] - at) != b.read(ends[at] - at)
    return n


def peer(quantize, source, target, kind, imatrix):
    """Runs llama-quantize; False when it will not."""
    extra, name = [], kind
    if kind in ("MXFP4", "NVFP4"):  # the output as for every other type, the rest by name
        extra, name = ["--output-tensor-type", "q8_0", "--tensor-type", "(attn|ffn)_.*=" + kind.lower()], "MXFP4_MOE"
        if "output.weight" not in tensors(source):
            extra += ["--token-embedding-type", "q8_0"]
    if kind == "Q2_K_S" and imatrix:
        extra += ["--imatrix", imatrix]
    r = subprocess.run([quantize, "--allow-requantize", *extra, source, target, name], capture_output=True, text=True)
    return r.returncode == 0


def perplexity(pantheon, model, text):
    r = subprocess.run([pantheon, "perplexity", "--model", model, "--file", text, "--json"], capture_output=True, text=True)
    return json.loads(r.stdout) if r.returncode == 0 else {"perplexity": float("nan"), "error": 0, "why": r.stderr}


def flat_imatrix(path, source):
    """An importance matrix of ones: the type that is refused without one is made as without one."""
    with open(path, "wb") as f:
        names = {n: t for n, t in tensors(source).items() if n.endswith("weight") and len(t[1]) > 1}
        f.write(struct.pack("<i", len(names)))
        for n, (_, ne, _) in names.items():
            count = ne[0] * (ne[2] if len(ne) > 2 else 1)
            f.write(struct.pack("<i", len(n)) + n.encode() + struct.pack("<ii", 1, count) + struct.pack("<f", 1.0) * count)
        f.write(struct.pack("<i", 1) + struct.pack("<i", 4) + b"ones")


def main():
    args = sys.argv[1:]
    types_only = "--types" in args
    args = [a for a in args if a != "--types"]
    if len(args) < 4:
        sys.exit(__doc__)
    pantheon, quantize, source, text = args[:4]
    work = pathlib.Path(os.environ.get("WORK") or tempfile.mkdtemp(prefix="quantize-peer-"))
    flat_imatrix(work / "ones.dat", source)
    bad = 0
    print("| type | other types | other bytes | MB | perplexity | there | difference |\n| --- | --- | --- | --- | --- | --- | --- |")
    for kind in args[4:] or TYPES:
        ours, theirs = work / "ours.gguf", work / "theirs.gguf"
        subprocess.run([pantheon, "quantize", "--force", source, ours, kind], check=True, capture_output=True)
        mine = tensors(ours)
        there = tensors(theirs) if peer(quantize, source, theirs, kind, work / "ones.dat") else None
        if there is None:
            print(f"| {kind} | llama-quantize refuses |")
            continue
        other = sorted(n for n in mine if mine[n][0] != there[n][0])
        assert mine.keys() == there.keys() and all(mine[n][1][0] == there[n][1][0] for n in mine)
        bad += len(other)
        n = differing(ours, theirs, mine, there) if not other else len(mine)
        row = f"| {kind} | {len(other)} | {n} of {len(mine)} | {ours.stat().st_size / 1e6:.1f} |"
        if not types_only:
            a = perplexity(pantheon, ours, text)
            b = perplexity(pantheon, theirs, text) if n else a
            difference = 100 * (a["perplexity"] / b["perplexity"] - 1)
            bad += not difference <= 1
            row += f" {a['perplexity']:.3f} | {b['perplexity']:.3f} | {difference:+.2f}% |"
        print(row, *other[:3], flush=True)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
