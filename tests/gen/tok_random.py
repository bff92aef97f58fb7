#!/usr/bin/env python3
"""The ids of 10,000 random Unicode strings by HuggingFace tokenizers, folded into one number for each tokenizer: the table in
tests/foundry/test_tok_golden.c.   tests/gen/tok_random.py FOLDER...   (each with a tokenizer.json; needs the tokenizers package)"""
import os
import sys

from tokenizers import Tokenizer

MASK = (1 << 64) - 1
# Blocks that are assigned throughout, so that no version of Unicode sees them otherwise.
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x30, 0x39), (0x09, 0x0D), (0xA0, 0x24F), (0x391, 0x3A1), (0x410, 0x44F), (0x5D0, 0x5EA),
          (0x621, 0x63A), (0x905, 0x939), (0x300, 0x36F), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F600, 0x1F64F), (0x2010, 0x2027), (0x2000, 0x200A), (0xFF10, 0xFF19), (0x20, 0x20)]


class Rng:
    """xorshift64*"""

    def __init__(self, seed):
        self.x = seed

    def next(self, n):
        x = self.x
        x ^= x >> 12
        x ^= (x << 25) & MASK
        x ^= x >> 27
        self.x = x
        return ((x * 2685821657736338717 & MASK) >> 33) % n


def strings():
    r = Rng(57)
    for _ in range(10000):
        s = ""
        for _ in range(1 + r.next(24)):
            lo, hi = RANGES[r.next(len(RANGES))]
            s += chr(lo + r.next(hi - lo + 1))
        yield s


def fold(h, v):
    for b in v.to_bytes(4, "little"):
        h = ((h ^ b) * 1099511628211) & MASK
    return h


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        h = 14695981039346656037
        for s in strings():
            ids = t.encode(s, add_special_tokens=False).ids
            for i in ids:
                h = fold(h, i)
            h = fold(h, 0xFFFFFFFF)
        print(f'{{ "{os.path.basename(os.path.normpath(folder))}", 0x{h:016x} }},')
