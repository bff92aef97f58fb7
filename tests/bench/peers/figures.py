"""The arithmetic and the parsing: nothing here runs anything."""
import json
import math
import re
import statistics


class Unreadable(Exception):
    pass


# --- figures of pairs ---

def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def percentile(values, p):
    """The least of the values that p of a hundred are at most."""
    values = sorted(values)
    return values[max(0, math.ceil(len(values) * p / 100) - 1)] if values else None


def pair_ratios(ours, theirs):
    """Round by round: a pair is two runs beside each other, and a ratio of medians would compare different states of the host."""
    return [a / b if a is not None and b else None for a, b in zip(ours, theirs)]


def best_of_rounds(peers, less):
    """The best peer's figure in each round; `peers` holds a list of rounds each."""
    best = min if less else max
    return [best(got) if (got := [v for v in values if v is not None]) else None for values in zip(*peers)]


def verdict(value, floor, goal, less=False):
    """"goal", "floor" (held, goal missed) or "missed"; "-" without a value."""
    if value is None:
        return "-"
    held = (lambda limit: value <= limit) if less else (lambda limit: value >= limit)
    return "goal" if held(goal) else "floor" if held(floor) else "missed"


def summarise(row, runs, reads, weight_bytes, fast, steps=()):
    """One row's figures. runs: party -> its figure in each round, or None; reads: bytes/s of a pure read beside each round; steps: seconds of one of
    our steps in each round, which row.most is stretched by."""
    ours = runs.get("pantheon", [])
    peers = {p: v for p, v in runs.items() if p != "pantheon"}
    ratios = {p: pair_ratios(ours, v) for p, v in peers.items()}
    best = pair_ratios(ours, best_of_rounds(peers.values(), row.less)) if peers else []
    floor, goal = row.fast if fast and row.fast else (row.floor, row.goal)
    share = [v * weight_bytes / r if v is not None and r else None for v, r in zip(ours, reads)] if row.share and weight_bytes else []
    out = {
        "name": row.name, "unit": {"start": "s", "gap": "s", "memory": "bytes"}.get(row.metric, "tok/s"), "less_is_better": row.less,
        "runs": runs, "median": {p: median(v) for p, v in runs.items()}, "pairs": ratios,
        "ratio": {p: median(v) for p, v in ratios.items()}, "best_pairs": best, "ratio_to_best": median(best),
        "floor": floor, "goal": goal, "verdict": verdict(median(best), floor, goal, row.less),
    }
    if row.share:
        out |= {"share": share, "share_median": median(share), "share_floor": row.share[0], "share_goal": row.share[1],
                "share_verdict": verdict(median(share), *row.share)}
    if row.most is not None:
        step = median(steps)
        most = None if step is None else row.most + step
        out |= {"step": step, "most": most, "most_verdict": "-" if most is None or median(ours) is None else "goal" if median(ours) <= most else "missed"}
    return out


# --- what programs print ---

def parse_pantheon(text):
    """`pantheon bench --json`: {"prefill": tok/s, "decode": tok/s of one sequence, "together N": tok/s of N}."""
    try:
        out = json.loads(text)
        got = {"prefill": p["tokens_per_second"] for p in out["prefill"]}
        for d in out["decode"]:
            got["decode" if d["sequences"] == 1 else f"together {d['sequences']}"] = d["tokens_per_second"]
        return got, {"isa": out["isa"], "build": out["build"]}
    except (ValueError, KeyError, TypeError) as e:
        raise Unreadable(f"pantheon bench --json: {e!r}") from e


def parse_llama_bench(text):
    """llama-bench -o json of either peer, whatever it prints around: the median of a test's samples. A decode after a prompt (ik's -gp) names
    itself tgN@ppM."""
    start, end = text.find("["), text.rfind("]")
    try:
        tests = json.loads(text[start:end + 1])
        got, build = {}, ""
        for t in tests:
            prefill = t["n_gen"] == 0
            got["prefill" if prefill else "decode"] = statistics.median(t.get("samples_ts") or [t["avg_ts"]])
            build = f"{t.get('build_commit', '')} {t.get('build_number', '')}".strip()
        if not got:
            raise ValueError("no test in it")
        return got, {"build": build}
    except (ValueError, KeyError, TypeError) as e:
        raise Unreadable(f"llama-bench -o json: {e!r}") from e


def parse_batched_bench(text):
    """llama-batched-bench: its JSON lines, or its table (PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, ...) where it has no JSON."""
    got = {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("{") and '"speed_tg"' in line:
            try:
                t = json.loads(line)
                got[f"together {t['pl']}"] = float(t["speed_tg"])
            except (ValueError, KeyError) as e:
                raise Unreadable(f"llama-batched-bench: {e!r}") from e
        elif re.fullmatch(r"\|(\s*[\d.]+\s*\|){10}", line):
            cell = [c.strip() for c in line.strip("|").split("|")]
            got[f"together {int(cell[2])}"] = float(cell[7])
    if not got:
        raise Unreadable("llama-batched-bench: no result in what it printed")
    return got, {}


def resident_bytes(status):
    """RssAnon + RssFile + RssShmem of a /proc/PID/status, or None when the process is no more."""
    kib = re.findall(r"^Rss(?:Anon|File|Shmem):\s+(\d+) kB$", status, re.M)
    return sum(map(int, kib)) << 10 if len(kib) == 3 else None


def steady(samples):
    """The median of the second half: what a process holds once it is loaded and works."""
    return median(samples[len(samples) // 2:])


def stream_tokens(lines):
    """Of a streamed chat completion's lines: (texts that came, completion tokens as `usage` says or None)."""
    texts, usage = 0, None
    for line in lines:
        if not line.startswith("data:") or line[5:].strip() == "[DONE]":
            continue
        try:
            event = json.loads(line[5:])
        except ValueError as e:
            raise Unreadable(f"an event of a stream is no JSON: {e}") from e
        if "error" in event:
            raise Unreadable(f"a stream says: {event['error']}")
        texts += any((c.get("delta") or {}).get("content") for c in event.get("choices", []))
        usage = (event.get("usage") or {}).get("completion_tokens", usage)
    return texts, usage


def cmake_cache(text):
    """NAME -> value of a CMakeCache.txt."""
    return {m[1]: m[2] for m in re.finditer(r"^([A-Za-z0-9_]+):[A-Z]+=(.*)$", text, re.M)}


def cpuinfo(text):
    """(model name, set of flags) of /proc/cpuinfo."""
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    return name[1].strip() if name else "unknown", set(flags[1].split()) if flags else set()


def cmake_sets(text):
    """NAME -> value of a CMakeLists.txt's plain `set(NAME value)`."""
    return {m[1]: m[2] for m in re.finditer(r"^\s*set\(([A-Z_]+) ([\w.]+)\)", text, re.M)}
