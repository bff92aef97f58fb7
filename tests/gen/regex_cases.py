#!/usr/bin/env python3
"""Writes tests/data/regex.txt: random regular expressions and short texts, with what Python's re says of each.

A line is: the expression, texts that match it as a whole, texts that do not; by tabs, texts by blanks, ~ for the empty one.    python3 tests/gen/regex_cases.py > tests/data/regex.txt"""
import random
import re

ALPHABET = "abc01_-"
rng = random.Random(8)


def atom(depth):
    kind = rng.randrange(12)
    if kind < 5:
        return rng.choice(["a", "b", "c", "0", "1", "_", "-", r"\-", r"\x61", r"\u0062"])
    if kind < 9:
        return rng.choice([".", "[ab]", "[^a]", "[a-c]", r"[\d_]", r"[^\w]", r"\d", r"\D", r"\w", r"\W", r"\S", "[b-]", r"[^\Da]"])
    if depth == 0:
        return "a"
    return rng.choice(["(%s)", "(?:%s)", "(%s)", "(?P<n%d>%%s)" % rng.randrange(10 ** 6)]) % alternatives(depth - 1)


def part(depth):
    count = rng.choice(["", "", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "{,3}", "{2,4}", "{0}", "{1,1}"])
    lazy = "?" if count and rng.random() < 0.2 else ""
    return atom(depth) + count + lazy


def alternatives(depth):
    return "|".join("".join(part(depth) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))) for _ in range(rng.choice([1, 1, 1, 2, 3])))


def texts(n):
    return {"".join(rng.choice(ALPHABET) for _ in range(rng.randrange(8))) for _ in range(n)} | {""}


def main():
    seen = set()
    while len(seen) < 1500:
        pattern = alternatives(3)
        if rng.random() < 0.3:
            pattern = "^" * rng.randrange(2) + "(?:" + pattern + ")" + "$" * rng.randrange(2)
        if pattern in seen or len(pattern) > 60:
            continue
        rx = re.compile(pattern, re.ASCII)
        yes, no = [], []
        for t in sorted(texts(40)):
            (yes if rx.fullmatch(t) else no).append(t or "~")
        if not (yes and no):
            continue
        seen.add(pattern)
        print(pattern, " ".join(yes[:8]), " ".join(no[:8]), sep="\t")


main()
