"""How a model gives way when the kernel's limit on memory gets tighter: python3 tests/bench/memory MODEL.gguf [--build DIR] [--from MIB] [--to MIB].

For each limit, from ample down: a daemon in a control group of its own, 8 requests of 1,000 tokens at once; who completes, who is refused and why, tokens a
second, the peak that the kernel counted, the rungs in force. It needs root, and a memory controller that is free to use. Prints a table for docs/memory.md."""
import argparse
import os
import pathlib
import re
import sys
import tempfile

E2E = pathlib.Path(__file__).resolve().parents[2] / "e2e"
MIB = 1 << 20
BAR = 40


def arguments(argv):
    p = argparse.ArgumentParser(prog="memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--build", default="build/release", help="where Pantheon is built (default build/release)")
    p.add_argument("--limits", default="", metavar="MIB,MIB,...", help="which limits (default: eleven from twice the model down to a quarter of it)")
    p.add_argument("--sessions", type=int, default=8)
    p.add_argument("--prompt", type=int, default=900)
    p.add_argument("--answer", type=int, default=100)
    p.add_argument("--lines", default="memory: trust", help="further lines of the model in the manifest")
    return p.parse_args(argv)


def main(argv):
    a = arguments(argv)
    os.environ["B"] = a.build
    sys.path.insert(0, str(E2E))
    import conftest
    import limits
    if not limits.available():
        sys.exit("memory: no control group for memory can be made here (root, and a controller that is free to use)")
    size = a.model.stat().st_size // MIB
    which = [int(x) for x in a.limits.split(",")] if a.limits else [int(size * f) for f in (2, 1.7, 1.5, 1.3, 1.2, 1.1, 1.0, 0.7, 0.5, 0.35, 0.25)]
    rows = []
    for mib in which:
        with tempfile.TemporaryDirectory() as folder:
            r = limits.ask_at(lambda text, launch: conftest.Daemon(pathlib.Path(folder), text, launch=launch), mib * MIB, a.model.resolve(), a.sessions, a.prompt, a.answer, a.lines.replace("\\n", "\n"))
        levels = re.findall(r'event=memory_pressure text="([^"]*)"', r["log"])
        rows.append((mib, r))
        print(f"memory: {mib} MiB: {r['good']} of {a.sessions} in {r['seconds']:.0f} s, {r['tps']:.0f} tok/s, peak {r['peak'] / MIB:.0f} MiB, {sorted({e['code'] or e['type'] for e in r['said']})} {levels[-3:]}",
              file=sys.stderr, flush=True)
    top = max(r["tps"] for _, r in rows) or 1
    print("| limit | completed | refused | tokens a second | peak | |\n| --- | --- | --- | --- | --- | --- |")
    for mib, r in rows:
        said = ", ".join(sorted({e["code"] or e["type"] for e in r["said"]})) or "none"
        print(f"| {mib} MiB | {r['good']} | {said} | {r['tps']:.0f} | {r['peak'] / MIB:.0f} MiB | {'#' * round(BAR * r['tps'] / top)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
