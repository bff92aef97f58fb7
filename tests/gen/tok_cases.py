#!/usr/bin/env python3
"""Copies the tokenizer goldens into tests/data/tokenizers, smaller: only what the tests read.

    python3 tests/gen/tok_cases.py ../shared/goldens/tokenizers tests/data/tokenizers

encode.jsonl keeps hex, add_special, parse_special and ids (for invalid UTF-8, where references differ: any_of). decode.jsonl keeps
ids, pieces_hex, stream_emit, stream_tail. A vocabulary over 1 MB is not copied but rewritten as vocab.bin, from which the test makes a GGUF again:
a byte-level BPE vocabulary is its first tokens and then one token per merge, so that two 16-bit ids a merge say it all:
    u32 n_first | n_first times: u8 type, u16 length, bytes | u32 n_merges | n_merges times: u16 left, u16 right
"""
import json
import os
import shutil
import struct
import sys

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(path):
    data = open(path, "rb").read()
    at = 8

    def take(fmt):
        nonlocal at
        value = struct.unpack_from("<" + fmt, data, at)[0]
        at += struct.calcsize("<" + fmt)
        return value

    def take_value(kind):
        nonlocal at
        if kind == 8:
            n = take("Q")
            at += n
            return data[at - n:at]
        if kind == 9:
            kind, n = take("I"), take("Q")
            return [take_value(kind) for _ in range(n)]
        return take(FORMATS[kind])

    take("Q")
    out = {}
    for _ in range(take("Q")):
        key = take_value(8).decode()
        out[key] = take_value(take("I"))
    return out


def write_bin(vocab, path):
    tokens, merges, types = (vocab["tokenizer.ggml." + k] for k in ("tokens", "merges", "token_type"))
    first = len(tokens) - len(merges)
    ids = {t: i for i, t in enumerate(tokens)}
    with open(path, "wb") as f:
        f.write(struct.pack("<I", first))
        for t, kind in zip(tokens[:first], types):
            f.write(struct.pack("<BH", kind, len(t)) + t)
        f.write(struct.pack("<I", len(merges)))
        for i, m in enumerate(merges):
            left, right = m.split(b" ")
            assert tokens[first + i] == left + right and types[first + i] == 1
            f.write(struct.pack("<HH", ids[left], ids[right]))


def encode_case(c):
    out = {"hex": c["hex"], "add_special": c["add_special"], "parse_special": c["parse_special"]}
    if c["ids"] is None:
        out["any_of"] = [c[k] for k in ("ids_bytewise", "ids_llamacpp", "ids_hf_of_replaced_text") if isinstance(c.get(k), list)]
    else:
        out["ids"] = c["ids"]
    return out


def copy_cases(source, target, pick):
    with open(source) as f, open(target, "w") as g:
        for line in f:
            g.write(json.dumps(pick(json.loads(line)), ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    source, target = sys.argv[1:]
    for name in sorted(os.listdir(source)):
        folder = os.path.join(source, name)
        if not os.path.isdir(folder):
            continue
        out = os.path.join(target, name)
        os.makedirs(out, exist_ok=True)
        vocab = os.path.join(folder, name + "-vocab.gguf")
        if os.path.getsize(vocab) > 1 << 20:
            write_bin(read_gguf(vocab), os.path.join(out, "vocab.bin"))
        else:
            shutil.copyfile(vocab, os.path.join(out, "vocab.gguf"))
        copy_cases(os.path.join(folder, "encode.jsonl"), os.path.join(out, "encode.jsonl"), encode_case)
        copy_cases(os.path.join(folder, "decode.jsonl"), os.path.join(out, "decode.jsonl"),
                   lambda c: {k: c[k] for k in ("ids", "pieces_hex", "stream_emit", "stream_tail")})


main()
