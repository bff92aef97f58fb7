#!/usr/bin/env python3
"""Tokenizer speed against HuggingFace's `tokenizers` on the same vocabularies and texts, one thread each.

usage: tokenizers_peer.py [--rounds N] [--write DIR] BENCH_TOK FILE.gguf ...      (python3 with `pip install tokenizers`)

BENCH_TOK is build/release/tests/bench/bench_tok. Of each GGUF a tokenizer.json is made (--write: kept as DIR/NAME/tokenizer.json), both
sides encode the same texts in turn, and the better of N rounds counts: CPU time of the encoding thread, since the machine may be busy.
A last column says whether the ids are equal. The peer gets the first megabyte of the long hostile texts, where its speed per byte is at its best.
"""
import argparse
import json
import os
import re
import struct
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402

GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
LLAMA3 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
          "\\s+(?!\\S)|\\s+")


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


SMOLLM = [{"type": "Digits", "individual_digits": True}, byte_level(True)]
PRE = {
    "gpt-2": [byte_level(True)],
    "mpt": [byte_level(True)],
    "smollm": SMOLLM,
    "starcoder": SMOLLM,
    "refact": SMOLLM,
    "command-r": SMOLLM,
    "llama-bpe": [split(LLAMA3), byte_level(False)],
    "qwen2": [split(LLAMA3.replace("\\p{N}{1,3}", "\\p{N}")), byte_level(False)],
}


def read_gguf(path):
    """The metadata of a file."""
    with open(path, "rb") as f:
        data = f.read(64 << 20)
    at = 8

    def take(fmt):
        nonlocal at
        values = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return values

    def text():
        nonlocal at
        n = take("Q")[0]
        at += n
        return data[at - n:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            elem, n = take("IQ")
            return [text() for _ in range(n)] if elem == 8 else list(take("%d%s" % (n, "BbHhIif?__QqdX"[elem])))
        return take("BbHhIif?__QqdX"[kind])[0]

    _, n = take("QQ")
    return {text(): value(take("I")[0]) for _ in range(n)}


def merges_of(tokens, scores, types):
    """What transformers makes of a SentencePiece model: every way to cut a token in two tokens, the best scores first."""
    ids = {t: i for i, t in enumerate(tokens) if types[i] == 1}
    merges = []
    for t, i in ids.items():
        cuts = [(t[:k], t[k:]) for k in range(1, len(t)) if t[:k] in ids and t[k:] in ids]
        merges += [(-scores[i], ids[a], ids[b], a, b) for a, b in cuts]
    return [[a, b] for *_, a, b in sorted(merges)]


def tokenizer_json(meta):
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    spm = meta["tokenizer.ggml.model"] == "llama"
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": types[i] != 4}
             for i, t in enumerate(tokens) if types[i] in (2, 3, 4)]
    merges = merges_of(tokens, meta["tokenizer.ggml.scores"], types) if spm else [m.split(" ") for m in meta["tokenizer.ggml.merges"]]
    vocab = {}
    for i, t in enumerate(tokens):
        if types[i] != 5:
            vocab.setdefault(t, i)
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]} if spm else None,
        "pre_tokenizer": None if spm else {"type": "Sequence", "pretokenizers": PRE[meta["tokenizer.ggml.pre"]]},
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>" if spm else None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": spm, "byte_fallback": spm,
                  "ignore_merges": meta.get("tokenizer.ggml.pre") == "llama-bpe", "vocab": vocab, "merges": merges},
    }


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--write")
    p.add_argument("bench_tok")
    p.add_argument("files", nargs="+")
    a = p.parse_args()
    print("tokenizers", tokenizers.__version__)
    worst = None
    with tempfile.TemporaryDirectory() as work:
        for path in a.files:
            name = os.path.basename(path).removesuffix(".gguf")
            made = json.dumps(tokenizer_json(read_gguf(path)), ensure_ascii=False)
            if a.write:
                os.makedirs(os.path.join(a.write, name), exist_ok=True)
                with open(os.path.join(a.write, name, "tokenizer.json"), "w") as f:
                    f.write(made)
            peer = tokenizers.Tokenizer.from_str(made)
            ours, theirs, equal = {}, {}, {}
            for _ in range(a.rounds):
                out = subprocess.run([a.bench_tok, path], env={**os.environ, "TEXTS": work}, capture_output=True, text=True, check=True).stdout
                for text, rate in re.findall(r"^tok \S+ +(\w+) +([\d.]+) MB/s", out, re.M):
                    ours[text] = max(ours.get(text, 0), float(rate))
                for text in ours:
                    with open(os.path.join(work, text + ".txt"), "rb") as f:
                        data = f.read(1 << 20).decode("utf-8", "ignore")
                    start = time.thread_time()
                    ids = peer.encode_batch_fast([data], add_special_tokens=False)[0].ids
                    rate = len(data.encode()) / (time.thread_time() - start) / 1e6
                    theirs[text] = max(theirs.get(text, 0), rate)
                    if text not in equal:
                        with open(os.path.join(work, "cut"), "wb") as cut:
                            cut.write(data.encode())
                        equal[text] = subprocess.run([a.bench_tok, path], env={**os.environ, "IDS_OF": cut.name}, capture_output=True,
                                                     text=True, check=True).stdout.split() == [str(i) for i in ids]
            for text in ours:
                ratio = ours[text] / theirs[text]
                worst = min(worst or ratio, ratio)
                print(f"{name:26} {text:8} {ours[text]:8.2f} MB/s, peer {theirs[text]:6.2f} MB/s, ratio {ratio:6.1f}, ids "
                      f"{'equal' if equal[text] else 'DIFFERENT'}", flush=True)
    print(f"least ratio {worst:.1f}")


main()
