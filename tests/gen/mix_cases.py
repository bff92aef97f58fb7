"""Writes tests/data/mixes: which types llama-quantize (llama.cpp) gives the tensors of models of several kinds, for every mix that it and
`pantheon quantize` both have. The models are names and shapes with hardly any weights: only the length of rows matters.

    tests/gen/mix_cases.py LLAMA-QUANTIZE

A file holds the metadata that counts, the mixes (a column each), the letter of each type, then a line a tensor: name, shape, a letter a
mix."""
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import quantize_peer  # noqa: E402  (reads the directory of a GGUF)

MIXES = [t for t in quantize_peer.TYPES if t not in ("MXFP4", "NVFP4")]


def layers(n, embd, ff, per_layer):
    out = []
    for i in range(n):
        for name, ne in per_layer(embd, ff):
            out.append((f"blk.{i}.{name}", ne))
    return out


def dense(embd, ff):
    return [("attn_norm.weight", [embd]), ("ffn_down.weight", [ff, 2]), ("ffn_gate.weight", [embd, 2]), ("ffn_up.weight", [embd, 2]),
            ("ffn_norm.weight", [embd]), ("attn_k.weight", [embd, 2]), ("attn_output.weight", [embd, 2]), ("attn_q.weight", [embd, 2]),
            ("attn_v.weight", [embd, 2])]


def biased(embd, ff):
    return dense(embd, ff) + [("attn_k.bias", [4]), ("attn_q.bias", [4]), ("attn_v.bias", [4])]


def few(embd, ff):
    return [("attn_v.weight", [embd, 2]), ("ffn_down.weight", [ff, 2]), ("attn_output.weight", [embd, 2])]


def fused(embd, ff):
    return [("attn_norm.weight", [embd]), ("attn_qkv.weight", [embd, 2]), ("attn_output.weight", [embd, 2]), ("ffn_norm.weight", [embd]),
            ("ffn_up.weight", [embd, 2]), ("ffn_down.weight", [ff, 2])]


def experts(n, norms=()):
    def per_layer(embd, ff):
        attn = [x for x in dense(embd, ff) if not x[0].startswith("ffn_") or x[0] == "ffn_norm.weight"]
        return attn + [(x, [8]) for x in norms] + [("ffn_gate_inp.weight", [embd, n]), ("ffn_down_exps.weight", [ff, 2, n]),
                                                   ("ffn_gate_exps.weight", [embd, 2, n]), ("ffn_up_exps.weight", [embd, 2, n])]
    return per_layer


def experts_apart(embd, ff):
    attn = [x for x in dense(embd, ff) if not x[0].startswith("ffn_") or x[0] == "ffn_norm.weight"]
    return attn + [("ffn_gate_inp.weight", [embd, 8])] + [(f"ffn_{k}.{i}.weight", [ff if k == "down" else embd, 2])
                                                          for i in range(8) for k in ("gate", "down", "up")]


def case(arch, n_layer, embd, ff, heads, kv_heads, per_layer, tied, n_expert=0, last_first=False):
    tensors = [("token_embd.weight", [embd, 4]), ("output_norm.weight", [embd])] + ([] if tied else [("output.weight", [embd, 4])])
    rest = layers(n_layer, embd, ff, per_layer)
    kv = {"block_count": n_layer, "attention.head_count": heads, "attention.head_count_kv": kv_heads, "embedding_length": embd,
          "feed_forward_length": ff, "context_length": 512}
    if n_expert:
        kv |= {"expert_count": n_expert, "expert_used_count": 2}
    return arch, kv, (rest[::-1] + tensors if last_first else tensors + rest)


CASES = {
    "smollm2": case("llama", 30, 576, 1536, 9, 3, dense, True),
    "llama": case("llama", 32, 256, 512, 32, 8, dense, False),
    "llama-of-80-layers": case("llama", 80, 256, 256, 64, 8, few, False),
    "qwen2": case("qwen2", 24, 896, 4864, 14, 2, biased, True, last_first=True),
    "phi3": case("phi3", 20, 256, 512, 32, 32, fused, False),
    "mixtral": case("llama", 16, 256, 512, 32, 8, experts(8), False, n_expert=8),
    "mixtral-apart": case("llama", 6, 256, 512, 8, 4, experts_apart, False, n_expert=8),
    "qwen3moe": case("qwen3moe", 12, 256, 768, 8, 1, experts(16, ("attn_q_norm.weight", "attn_k_norm.weight")), True, n_expert=16),
    "rows-of-80": case("llama", 4, 80, 288, 4, 4, dense, False),
}


def write(path, arch, kv, tensors):
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    head = text("general.architecture") + struct.pack("<I", 8) + text(arch)
    for k, v in kv.items():
        head += text(f"{arch}.{k}") + struct.pack("<II", 4, v)
    for k in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
        head += text(f"{arch}.{k}") + struct.pack("<If", 6, 1e-5)
    infos, at = b"", 0
    for name, ne in tensors:
        infos += text(name) + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", 0, at)
        n = 4
        for d in ne:
            n *= d
        at += (n + 31) // 32 * 32
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3 + len(kv)) + head + infos
    out += b"\0" * (-len(out) % 32)
    path.write_bytes(out + b"\0" * at)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = ROOT / "tests" / "data" / "mixes"
    folder.mkdir(exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="mixes-"))
    letters = {name: chr(ord("a") + i) for i, name in enumerate(sorted(set(quantize_peer.NAMES.values())))}
    for name, (arch, kv, tensors) in CASES.items():
        source, target = work / "in.gguf", work / "out.gguf"
        write(source, arch, kv, tensors)
        quantize_peer.flat_imatrix(work / "ones.dat", source)
        columns = []
        for mix in MIXES:
            target.unlink(missing_ok=True)
            if not quantize_peer.peer(sys.argv[1], source, target, mix, work / "ones.dat"):
                sys.exit(f"{name}: llama-quantize refuses {mix}")
            columns.append(quantize_peer.tensors(target))
        lines = ["# Generated by tests/gen/mix_cases.py: the types that llama-quantize chooses.", f"arch {arch}"]
        lines += [f"key {k} {v}" for k, v in kv.items()]
        lines += ["mixes " + " ".join(MIXES), "letters " + " ".join(f"{v}={k}" for k, v in letters.items())]
        for t, ne in tensors:
            lines.append(f"{t} {'x'.join(map(str, ne))} " + "".join(letters[c[t][0]] for c in columns))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print(name, len(tensors))
    for f in work.iterdir():
        os.unlink(f)
    work.rmdir()


if __name__ == "__main__":
    main()
