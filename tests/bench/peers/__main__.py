"""Pantheon against its peers on this machine: `make bench-peers`, or python3 tests/bench/peers BUILD-FOLDER [options].

Everybody runs in turn (A B C A B C ...), with the same threads and model files, beside a pure read of the same bytes; what counts is the median
of the ratios of pairs. Environment: PEERS (the folder for sources, builds and models; ~/.cache/pantheon/peers), PEER_IK (a checkout of
ik_llama.cpp), BENCH_MODEL_TOOL (make_bench_model.py). The time it takes is worth nothing while the machine does anything else."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import sys
import tempfile
import time

import builds
import children
import figures
import measure
import models
import report
from rows import FAST_HOP_NS, IK, ROWS

FLAGS = ("ssse3 sse4_1 sse4_2 avx f16c fma avx2 bmi2 avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_vbmi avx512_bf16 amx_int8 "
         "asimd asimddp i8mm sve").split()


def say(text):
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def arguments(argv):
    p = argparse.ArgumentParser(prog="bench-peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path, help="where Pantheon is built: build/release")
    p.add_argument("--rows", default="", metavar="PATTERN", help="only rows whose name has this regular expression in it")
    p.add_argument("--list", action="store_true", help="name the rows with their floors and goals, and end")
    p.add_argument("--rounds", type=int, default=5, metavar="N", help="how often everybody runs (default 5)")
    p.add_argument("--threads", type=int, default=0, metavar="N", help="of everybody (default: the cores of this machine)")
    p.add_argument("--limit", type=float, default=4 * 3600, metavar="SECONDS", help="most time for all of it (default 4 hours)")
    p.add_argument("--smoke", action="store_true", help="a few tokens of each: shows that everything runs, the figures are worth nothing")
    p.add_argument("--no-build", action="store_true", help="build no peer: one that is not there is left out")
    p.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all figures there")
    p.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write a table for docs/performance.md there")
    a = p.parse_args(argv)
    if a.rounds < 1 or a.threads < 0 or a.limit <= 0:
        p.error("rounds, threads and the limit are more than 0")
    try:
        a.rows = [r for r in ROWS if re.search(a.rows, r.name, re.I)]
    except re.error as e:
        p.error(f"--rows: {e}")
    if not a.rows:
        p.error("no row has such a name; --list names them")
    a.folder = a.folder.resolve()
    return a


class Bench:
    def __init__(self, a):
        self.a, self.cache = a, builds.cache_folder()
        self.until = time.monotonic() + a.limit
        self.started = time.monotonic()
        self.pantheon, self.host_tool = a.folder / "pantheon-cpu", a.folder / "tests" / "bench" / "bench_host"
        self.cpu, self.flags = figures.cpuinfo(pathlib.Path("/proc/cpuinfo").read_text())
        self.notes, self.failures, self.rows, self.peers, self.reads = ["--smoke: these figures are worth nothing"] if a.smoke else [], [], [], {}, []
        self.threads = a.threads or self.read_host(1 << 20, 1)["cores"]

    def left(self):
        return self.until - time.monotonic()

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
            say(text)

    def fail(self, where, why):
        text = f"{where}: {why}"
        if text not in self.failures:
            self.failures.append(text)
            say(text)

    def read_host(self, n_bytes, threads):
        return json.loads(children.run([self.host_tool, n_bytes, threads, 5], 120)[0])

    def peers_of(self, job):
        """party -> build, of those that can be had."""
        got, program = {}, measure.KINDS[job[0].kind][1]
        for name in job[0].peers:
            wanted = job[0].build
            build = builds.class_of_machine(wanted, self.flags)
            if build != wanted:
                self.note(f"this CPU has nothing beyond AVX2: the native builds are the {wanted} builds")
            peer = builds.Peer(name, build, self.cache)
            try:
                if not self.a.no_build:
                    peer.make([program], say)
                elif not peer.has([program]):
                    raise children.Failed(f"{program} is not in {peer.folder}, and nothing is built")
                got[name] = peer
                self.peers.setdefault(f"{name} ({build})", None)
                self.peers[f"{name} ({build})"] = peer.describe()
            except children.Failed as e:
                if name == IK and not os.environ.get("PEER_IK"):
                    self.note(str(e))
                else:
                    self.fail(f"{name} ({build}), {program}", e)
        return got

    def weight_bytes(self, model):
        """What a token reads: all tensors, as these models use the embedding as output too."""
        return json.loads(children.run([self.pantheon, "inspect", model, "--json"], 60)[0])["memory"]["weights_bytes"]

    def measure_job(self, job):
        name = " + ".join(r.name for r in job)
        model, peers = models.path(job[0].model, self.cache, say), self.peers_of(job)
        function, _, seconds = measure.KINDS[job[0].kind]
        n_bytes, parties = self.weight_bytes(model), ["pantheon", *peers]
        runs = {r.key: {p: [] for p in parties} for r in job}
        reads, hops, steps, bad, about = [], [], [], dict.fromkeys(parties, 0), {}
        try:
            with tempfile.TemporaryDirectory(prefix="bench-peers-") as cwd:
                s = measure.Setting(tuple(job), model.resolve(), self.threads, self.pantheon, cwd, peers, counts=measure.SMOKE if self.a.smoke else measure.Counts())
                for i in range(self.a.rounds):
                    if self.left() <= 0:
                        self.fail(name, f"the time was up after {i} of {self.a.rounds} rounds")
                        break
                    say(f"{name}: round {i + 1} of {self.a.rounds}")
                    host = self.read_host(n_bytes, self.threads)
                    self.reads.append(host)
                    reads.append(host["read_gb_s"] * 1e9)
                    hops.append(host["hop_ns"])
                    for party in parties:
                        got = {}
                        if bad[party] < 2 and self.left() > 0:
                            s.seconds = max(1, min(seconds, self.left()))
                            try:
                                got, about[party] = function(s, party)
                                bad[party] = 0
                            except (children.Failed, figures.Unreadable) as e:
                                bad[party] += 1
                                self.fail(f"{name}, {party}, round {i + 1}", f"{e}" + (" (left out from here on)" if bad[party] == 2 else ""))
                        if party == "pantheon":
                            steps.append(got.get("step"))
                        for r in job:
                            runs[r.key][party].append(got.get(r.key))
        finally:  # the rounds that were, however it ends
            hop = figures.median(hops)
            fast = hop is not None and hop >= FAST_HOP_NS
            for r in job:
                row = figures.summarise(r, runs[r.key], reads, n_bytes, fast, steps) | {"fast_state": bool(fast and r.fast), "reads": reads, "hops": hops, "about": about}
                self.rows.append(row | {k: "-" for k in ("verdict", "share_verdict", "most_verdict") if self.a.smoke and k in row})

    def result(self):
        def over(key):
            values = [h[key] for h in self.reads if h[key] is not None]
            return f"{figures.median(values):.1f} ({min(values):.1f} - {max(values):.1f})" if values else "-"
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "rounds": self.a.rounds, "threads": self.threads,
            "seconds": time.monotonic() - self.started,
            "host": {"cpu": self.cpu, "system": f"{platform.system()} {platform.release()} {platform.machine()}", "flags": [f for f in FLAGS if f in self.flags],
                     "read": over("read_gb_s"), "read_1": over("read_gb_s_1"), "hop": over("hop_ns"), "loads": self.reads[0]["loads"] if self.reads else "-"},
            "pantheon": {"version": builds.output([self.pantheon, "--version"]), "compiler": builds.compiled_by(self.a.folder)},
            "peers": self.peers, "notes": self.notes, "failures": self.failures, "rows": self.rows,
        }

    def write(self):
        result = self.result()
        if self.a.json:
            self.a.json.write_text(json.dumps(result, indent=1) + "\n")
        if self.a.markdown:
            self.a.markdown.write_text(report.markdown(result))
        return result

    def run(self):
        jobs = {}
        for r in self.a.rows:
            jobs.setdefault(r.job, []).append(r)
        for job in jobs.values():
            name = " + ".join(r.name for r in job)
            if self.left() <= 0:
                self.fail(name, "not measured: the time was up")
                continue
            try:
                self.measure_job(job)
            except (children.Failed, ValueError, KeyError) as e:
                self.fail(name, e)
            self.write()  # what is there is kept, whatever comes


class Stopped(BaseException):
    """A signal asks for the end."""


def stop(sig, _):
    raise Stopped(sig)


def main():
    a = arguments(sys.argv[1:])
    if a.list:
        for r in a.rows:
            share = f", share of a pure read {r.share[0]:g} and {r.share[1]:g}" if r.share else ""
            most = f", at most {r.most:g} s and a step" if r.most is not None else ""
            print(f"{r.name}: floor {'<= ' if r.less else ''}{r.floor:g}, goal {r.goal:g}" + (f" (fast state {r.fast[0]:g}, {r.fast[1]:g})" if r.fast else "") + share + most)
        return 0
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, stop)
    try:
        b, status = Bench(a), 0
        try:
            b.run()
        except Stopped as e:
            for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(sig, signal.SIG_DFL)
            children.end_all()
            b.fail("bench-peers", f"ended by {signal.Signals(e.args[0]).name}")
            status = 128 + e.args[0]
        print(report.text(b.write()), end="")
        return status or (1 if b.failures else 0)
    except (children.Failed, OSError, ValueError) as e:
        say(e)
        return 1
    except Stopped as e:
        return 128 + e.args[0]
    finally:
        children.end_all()


if __name__ == "__main__":
    sys.exit(main())
