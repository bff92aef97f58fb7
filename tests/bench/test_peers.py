"""The tests of tests/bench/peers: its arithmetic, its parsing and its table; then the whole program with small scripts in place of Pantheon, of
the peers and of the reading of the host. No network, no compiler.   python3 tests/bench/test_peers.py"""
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
import builds  # noqa: E402
import children  # noqa: E402
import clients  # noqa: E402
import figures  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import report  # noqa: E402
from rows import IK, LLAMA, PARTIES, ROWS, Row  # noqa: E402

ROW = Row("x", "bench", "m", 64, "decode", 1.05, 1.3)


def alive(pid):
    """Also false for one that is dead and not yet reaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid, seconds=10):
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


class Arithmetic(unittest.TestCase):
    def test_the_ratio_is_the_median_of_pairs_not_a_ratio_of_medians(self):
        self.assertEqual(figures.pair_ratios([10, 40, 90], [20, 40, 60]), [0.5, 1.0, 1.5])
        s = figures.summarise(ROW, {"pantheon": [10, 20, 90], LLAMA: [5, 40, 45]}, [], 0, False)
        self.assertEqual(s["ratio_to_best"], 2.0)
        self.assertEqual(s["median"]["pantheon"] / s["median"][LLAMA], 0.5)

    def test_a_round_that_failed_is_no_pair(self):
        self.assertEqual(figures.pair_ratios([1, None, 3], [None, 2, 2]), [None, None, 1.5])
        self.assertEqual(figures.median([None, 3, None, 1]), 2)
        self.assertIsNone(figures.median([None]))

    def test_the_best_peer_is_that_of_each_round(self):
        self.assertEqual(figures.best_of_rounds([[1, 5, None], [2, 4, None]], less=False), [2, 5, None])
        self.assertEqual(figures.best_of_rounds([[1, 5, 7], [2, 4, None]], less=True), [1, 4, 7])
        s = figures.summarise(ROW, {"pantheon": [4, 10], LLAMA: [1, 5], IK: [2, 4]}, [], 0, False)
        self.assertEqual(s["best_pairs"], [2.0, 2.0])
        self.assertEqual(s["ratio"], {LLAMA: 3.0, IK: 2.25})

    def test_verdicts_both_ways(self):
        self.assertEqual([figures.verdict(v, 1.05, 1.3) for v in (1.04, 1.05, 1.3, None)], ["missed", "floor", "goal", "-"])
        self.assertEqual([figures.verdict(v, 1.0, 0.5, True) for v in (1.1, 1.0, 0.5)], ["missed", "floor", "goal"])

    def test_shares_and_the_fast_state(self):
        row = Row("x", "bench", "m", 64, "decode", 1.05, 1.15, fast=(1.15, 1.35), share=(0.85, 0.95))
        runs = {"pantheon": [45.0, 40.0, None], LLAMA: [40.0, 40.0, 40.0]}
        s = figures.summarise(row, runs, [50e9, 40e9, 40e9], 1e9, False)
        self.assertEqual(s["share"], [0.9, 1.0, None])
        self.assertEqual((s["share_verdict"], s["floor"], s["verdict"]), ("goal", 1.05, "floor"))
        s = figures.summarise(row, runs, [50e9, 40e9, 40e9], 1e9, True)
        self.assertEqual((s["floor"], s["goal"], s["verdict"]), (1.15, 1.35, "missed"))

    def test_no_peer_is_no_verdict(self):
        self.assertEqual(figures.summarise(ROW, {"pantheon": [1.0]}, [1], 0, False)["verdict"], "-")

    def test_a_percentile_is_one_of_the_values(self):
        self.assertEqual([figures.percentile(v, 99) for v in ([], [3.0], list(range(100, 0, -1)), list(range(1, 201)))], [None, 3.0, 99, 198])

    def test_a_figure_may_have_a_bound_of_its_own(self):
        row = Row("x", "gap", "m", 4000, "gap", 1.0, 0.5, less=True, most=0.5)
        for gaps, steps, most, verdict in (([0.4, 0.5, 0.6], [0.01, 0.03, 0.02], 0.52, "goal"), ([0.53, 0.6], [0.02, 0.02], 0.52, "missed"), ([None], [None], None, "-"), ([0.4], [None], None, "-")):
            s = figures.summarise(row, {"pantheon": gaps, LLAMA: [5.0] * len(gaps)}, [], 0, False, steps)
            self.assertEqual((s["most"], s["most_verdict"], s["unit"]), (most, verdict, "s"))
        self.assertNotIn("most", figures.summarise(ROW, {"pantheon": [1.0]}, [], 0, False))

    def test_memory_is_that_of_the_second_half(self):
        self.assertEqual(figures.steady([1, 900, 50, 51, 52]), 51)


class Parsing(unittest.TestCase):
    def test_pantheon(self):
        got, about = figures.parse_pantheon('{"isa":"avx2","build":"b","prefill":[{"tokens":512,"tokens_per_second":300.5}],'
                                            '"decode":[{"depth":0,"sequences":1,"tokens_per_second":40},{"depth":0,"sequences":4,"tokens_per_second":90.0}]}')
        self.assertEqual(got, {"prefill": 300.5, "decode": 40, "together 4": 90.0})
        self.assertEqual(about["isa"], "avx2")

    def test_llama_bench_whatever_stands_around_it(self):
        tests = [{"n_prompt": 512, "n_gen": 0, "avg_ts": 9.0, "samples_ts": [100.0, 300.0, 200.0], "build_commit": "abc", "build_number": 5},
                 {"n_prompt": 0, "n_gen": 64, "avg_ts": 41.5}]
        self.assertEqual(figures.parse_llama_bench("warning: x\n" + json.dumps(tests, indent=2) + "\n\nbye\n")[0], {"prefill": 200.0, "decode": 41.5})

    def test_llama_bench_at_a_depth_in_both_peers_ways(self):
        for test in ({"n_prompt": 0, "n_gen": 32, "n_depth": 8192, "samples_ts": [20.0]}, {"n_prompt": 8192, "n_gen": 32, "test": "tg32@pp8192", "samples_ts": [20.0]}):
            self.assertEqual(figures.parse_llama_bench(json.dumps([test]))[0], {"decode": 20.0})

    def test_batched_bench_as_lines_and_as_table(self):
        lines = '\n{"n_kv_max": 4096, "pp": 16, "tg": 32, "pl": 2, "t_tg": 1.0, "speed_tg": 64.5, "speed": 3}\nfoo\n{"pp": 16, "pl": 16, "speed_tg": 128.0}\n'
        self.assertEqual(figures.parse_batched_bench(lines)[0], {"together 2": 64.5, "together 16": 128.0})
        table = """main: n_kv_max = 4096
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    16 |     32 |    2 |     96 |    0.100 |   320.00 |    1.000 |    64.00 |    1.100 |    87.27 |
|    16 |     32 |    8 |    384 |    0.400 |   320.00 |    2.000 |   128.25 |    2.400 |   160.00 |
"""
        self.assertEqual(figures.parse_batched_bench(table)[0], {"together 2": 64.0, "together 8": 128.25})

    def test_what_is_no_result_is_refused(self):
        for parse in (figures.parse_pantheon, figures.parse_llama_bench, figures.parse_batched_bench):
            for text in ("", "[]", "{", "null", '{"speed_tg": }', '[{"n_gen": 1}]', "Segmentation fault"):
                self.assertRaises(figures.Unreadable, parse, text)

    def test_a_stream(self):
        lines = ["", ": ping", 'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}', 'data: {"choices":[{"delta":{"content":"Hi"}}]}',
                 'data: {"choices":[{"delta":{},"finish_reason":"length"}]}', 'data: {"choices":[],"usage":{"completion_tokens":7}}', "data: [DONE]"]
        self.assertEqual(figures.stream_tokens(lines), (1, 7))
        self.assertEqual(figures.stream_tokens(lines[:3]), (0, None))
        self.assertRaises(figures.Unreadable, figures.stream_tokens, ['data: {"error":{"message":"no"}}'])

    def test_status_and_cpuinfo_and_cmake(self):
        self.assertEqual(figures.resident_bytes("VmHWM: 9 kB\nRssAnon:\t 10 kB\nRssFile:\t 2 kB\nRssShmem:\t 1 kB\n"), 13 << 10)
        self.assertIsNone(figures.resident_bytes("State: Z (zombie)\n"))
        self.assertEqual(figures.cpuinfo("processor : 0\nmodel name\t: A B\nflags\t\t: sse4_1 avx2\n"), ("A B", {"sse4_1", "avx2"}))
        self.assertEqual(figures.cmake_cache("//x\nGGML_AVX:BOOL=OFF\nA-ADVANCED:INTERNAL=1\n")["GGML_AVX"], "OFF")
        self.assertEqual(figures.cmake_sets("set(LLAMA_VERSION_MAJOR 0)\n  set(B \"x y\")\n"), {"LLAMA_VERSION_MAJOR": "0"})


class Table(unittest.TestCase):
    def test_rows_are_sound(self):
        self.assertEqual(len({r.name for r in ROWS}), len(ROWS))
        for r in ROWS:
            self.assertIn(r.model, models.MODELS, r.name)
            self.assertIn(r.kind, measure.KINDS, r.name)
            self.assertIn(r.build, builds.CLASSES, r.name)
            self.assertTrue(set(r.peers) <= set(PARTIES) and r.peers, r.name)
            for floor, goal in [(r.floor, r.goal), *filter(None, (r.fast, r.share))]:
                self.assertTrue(goal < floor if r.less else floor < goal, r.name)

    def test_a_job_measures_each_figure_once_with_the_same_peers(self):
        seen = {}
        for r in ROWS:
            seen.setdefault(r.job, []).append(r)
        for rows in seen.values():
            self.assertEqual(len({r.key for r in rows}), len(rows))
            self.assertEqual(len({r.peers for r in rows}), 1)

    def test_everything_that_must_be_shown_is_a_row(self):
        have = {(r.kind, r.model, r.build, r.key, r.n) for r in ROWS}
        for quant in ("Q4_K_M", "Q4_0", "Q8_0", "Q6_K", "Q5_K_M", "Q3_K_M"):
            self.assertTrue({("bench", f"llama-1b-{quant}", "native", "decode", 64), ("bench", f"llama-1b-{quant}", "native", "prefill", 512)} <= have)
        for n in (2, 4, 8, 16):
            self.assertIn(("together", "llama-1b-Q4_K_M", "native", f"together {n}", n), have)
        self.assertEqual({r.kind for r in ROWS}, set(measure.KINDS))
        self.assertEqual({r.build for r in ROWS}, set(builds.CLASSES))

    def test_the_avx2_build_is_the_native_one_where_nothing_is_beyond(self):
        self.assertEqual(builds.class_of_machine("avx2", {"avx2", "fma"}), "native")
        for more in ("avx512f", "avx_vnni", "amx_int8"):
            self.assertEqual(builds.class_of_machine("avx2", {"avx2", more}), "avx2")
        self.assertEqual(builds.class_of_machine("avx2", {"sse4_1"}), "avx2")
        self.assertEqual(builds.class_of_machine("v2", {"avx2"}), "v2")


class Children(unittest.TestCase):
    def test_output_status_and_signals(self):
        self.assertEqual(children.run(["sh", "-c", "echo a; echo b >&2"], 10), ("a\n", "b\n"))
        for script, says in (("echo why >&2; exit 3", "status 3: why"), ("kill -SEGV $$", "signal 11"), ("exit 1", "said nothing")):
            with self.assertRaisesRegex(children.Failed, says):
                children.run(["sh", "-c", script], 10)
        with self.assertRaisesRegex(children.Failed, "No such file"):
            children.run(["/nowhere/at-all"], 10)

    def test_a_timeout_ends_the_whole_group(self):
        with tempfile.TemporaryDirectory() as d:
            with self.assertRaisesRegex(children.Failed, "took more than"):
                children.run(["sh", "-c", f"sleep 300 & echo $! > {d}/pid; wait"], 0.5)
            self.assertTrue(gone(int(pathlib.Path(d, "pid").read_text())))


FAKES = {
    # each is python; PANTHEON, HOST and the peers' programs
    "pantheon-cpu": """
        if "--version" in A: print("Pantheon v0")
        elif A[0] == "inspect": print(json.dumps({"memory": {"weights_bytes": 1 << 30}}))
        elif A[0] == "bench":
            seqs = [int(x) for x in value("--sequences", "1").split(",")]
            time.sleep(0.3 if "--ctx-cap" in A else 0)
            print(json.dumps({"isa": os.environ.get("PANTHEON_ISA", "best"), "build": "b", "prefill": [{"tokens": 1, "tokens_per_second": 300}],
                              "decode": [{"depth": 0, "sequences": s, "tokens_per_second": 60 * s} for s in seqs]}))
        else: serve(0.5, float(os.environ.get("STALL", "0.2")))
    """,
    "bench_host": """
        print(json.dumps({"bytes": int(A[0]), "threads": int(A[1]), "cores": 2, "loads": "plain", "read_gb_s_1": 60, "read_gb_s": 64.424509440, "hop_ns": 50}))
    """,
    "llama-bench": """
        if os.environ.get("CRASH") in A[1]: os.kill(os.getpid(), signal.SIGSEGV)
        if os.environ.get("HANG") == "1":
            open(os.environ["HUNG"], "w").write(str(os.getpid())); time.sleep(300)
        print(json.dumps([{"n_gen": n, "samples_ts": [50.0]} for n in (0, 64)]))
    """,
    "llama-batched-bench": """
        time.sleep(0.3)
        for n in value("-npl", "1").split(","): print(json.dumps({"pl": int(n), "speed_tg": 50.0}))
    """,
    "llama-server": "serve(0.2)",
}
PREAMBLE = """#!{python}
import http.server, json, os, signal, sys, threading, time
A = sys.argv[1:]
def value(name, otherwise): return A[A.index(name) + 1] if name in A else otherwise
def serve(load, stall=0.2, n_long=1000):
    ready, busy = time.monotonic() + load, threading.Lock()
    class H(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"
        def log_message(self, *_): pass
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if time.monotonic() < ready: return self.send_error(503)
            self.send_response(200); self.end_headers()
            if len(body["messages"][0]["content"]) > 1000: # a long prompt holds the others up
                with busy: time.sleep(stall)
            for i in range(1 if body["max_tokens"] < 1000 else n_long):
                with busy: pass
                time.sleep(0.05 if body["max_tokens"] < 1000 else 0.005)
                self.wfile.write(b'data: {{"choices": [{{"delta": {{"content": "x"}}}}]}}\\n\\n')
            time.sleep(0.05)
            self.wfile.write(b'data: {{"choices": [], "usage": {{"completion_tokens": 128}}}}\\n\\n')
    http.server.ThreadingHTTPServer(("127.0.0.1", int(value("--port", "0"))), H).serve_forever()
"""


class Whole(unittest.TestCase):
    """The program as it is run, in front of scripts."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        d = pathlib.Path(self.dir.name)
        self.build, self.peers = d / "build", d / "peers"
        self.fake(self.build, "pantheon-cpu")
        self.fake(self.build / "tests" / "bench", "bench_host")
        for peer in ("llama-native", "ik-native", "llama-avx2", "ik-avx2", "llama-v2"):
            for program in ("llama-bench", "llama-batched-bench", "llama-server"):
                self.fake(self.peers / peer / "bin", program)
        (self.peers / "llama-native" / "CMakeCache.txt").write_text("GGML_NATIVE:BOOL=ON\nCMAKE_BUILD_TYPE:STRING=Release\n")
        for name in models.MODELS:
            (self.peers / f"{name}.gguf").write_bytes(b"GGUF")
        self.env = {**os.environ, "PEERS": str(self.peers), "CRASH": "nothing", "HUNG": str(d / "hung")}
        self.env.pop("PEER_IK", None)
        self.json, self.markdown = d / "out.json", d / "out.md"

    def fake(self, folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        file.write_text(PREAMBLE.format(python=sys.executable) + textwrap.dedent(FAKES[name]))
        file.chmod(0o755)

    def command(self, *args):
        return [sys.executable, str(HERE / "peers"), str(self.build), "--no-build", "--json", str(self.json), "--markdown", str(self.markdown), *args]

    def bench(self, *args, **env):
        p = subprocess.run(self.command(*args), env={**self.env, **env}, capture_output=True, text=True, timeout=120)
        return p, json.loads(self.json.read_text()) if self.json.exists() else None

    def test_every_kind_of_row_on_a_synthetic_model(self):
        p, out = self.bench("--rounds", "2", "--rows", "llama-1b-Q4_K_M|v2")
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = {r["name"]: r for r in out["rows"]}
        decode = rows["llama-1b-Q4_K_M decode 64"]
        self.assertEqual(decode["runs"], {"pantheon": [60, 60], LLAMA: [50.0, 50.0], IK: [50.0, 50.0]})
        self.assertEqual((decode["ratio_to_best"], decode["verdict"], decode["share_verdict"]), (1.2, "goal", "goal"))
        self.assertEqual(rows["llama-1b-Q4_K_M 16 sequences together"]["ratio_to_best"], 19.2)
        self.assertIn("llama-1b-Q4_K_M decode 32 at depth 8192, q8_0 KV", rows)
        self.assertGreater(rows["llama-1b-Q4_K_M memory over the weights, ctx 4096"]["median"]["pantheon"], 1 << 20)
        self.assertEqual(list(rows["llama-1b-Q4_0 x86-64-v2 builds decode 64"]["runs"]), ["pantheon", LLAMA])
        self.assertIn("GGML_NATIVE=ON", out["peers"]["llama.cpp (native)"]["flags"])
        self.assertEqual([rows[n]["about"]["pantheon"]["isa"] for n in ("llama-1b-Q4_K_M AVX2 builds decode 64", "llama-1b-Q4_0 x86-64-v2 builds decode 64")], ["avx2", "sse"])
        self.assertTrue("goal met" in p.stdout and "Pantheon by sse" in p.stdout)
        table = [line for line in self.markdown.read_text().splitlines() if line.startswith("| ")]
        self.assertEqual(len({line.count("|") for line in table}), 1)
        self.assertEqual(len(table), len(rows) + 2)

    def test_the_gap_beside_prompts_is_held_against_its_own_bound_too(self):
        p, out = self.bench("--rounds", "1", "--rows", "gap", STALL="0.3")
        self.assertEqual(p.returncode, 0, p.stderr)
        (row,) = out["rows"]
        self.assertEqual((row["unit"], list(row["runs"]), row["most_verdict"]), ("s", ["pantheon", LLAMA], "goal"))
        self.assertTrue(0.3 <= row["runs"]["pantheon"][0] < 0.5 < row["most"] < 0.6 and row["about"]["pantheon"]["gaps"] >= 4, row)
        self.assertIn("by itself at most", p.stdout)
        p, out = self.bench("--rounds", "1", "--rows", "gap", STALL="0.7")
        self.assertEqual(out["rows"][0]["most_verdict"], "missed")

    def test_a_peer_that_crashes_is_told_and_the_rest_goes_on(self):
        p, out = self.bench("--rounds", "3", "--rows", "llama-1b-Q8_0 (de|pre)", CRASH="Q8_0")
        self.assertEqual(p.returncode, 1)
        self.assertEqual(len(out["rows"]), 2)
        self.assertEqual(out["rows"][0]["runs"]["pantheon"], [60, 60, 60])
        self.assertEqual(out["rows"][0]["runs"][IK], [None, None, None])
        self.assertEqual(sum("signal 11" in f for f in out["failures"]), 4, "twice each, then left out")

    def test_a_build_that_is_not_there_is_left_out(self):
        (self.peers / "ik-native" / "bin" / "llama-bench").unlink()
        (self.peers / "llama-native" / "bin" / "llama-bench").unlink()
        p, out = self.bench("--rounds", "1", "--rows", "Q5_K_M decode")
        self.assertEqual((p.returncode, out["rows"][0]["verdict"], list(out["rows"][0]["runs"])), (1, "-", ["pantheon"]))
        self.assertTrue(any("llama-bench is not in" in f for f in out["failures"]) and any("ik-native" in n for n in out["notes"]))

    def test_the_limit_ends_it_with_what_is_there(self):
        p, out = self.bench("--rounds", "500", "--rows", "Q5_K_M|Q6_K", "--limit", "3")
        self.assertEqual(p.returncode, 1)
        self.assertEqual(len(out["rows"]), 2)
        self.assertTrue(any("the time was up after" in f for f in out["failures"]) and any("not measured" in f for f in out["failures"]))

    def end_by(self, sig):
        p = subprocess.Popen(self.command("--rounds", "1", "--rows", "Q5_K_M decode"), env={**self.env, "HANG": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        hung = pathlib.Path(self.env["HUNG"])
        until = time.monotonic() + 60
        while not (hung.exists() and hung.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        child = int(hung.read_text())
        self.assertTrue(alive(child))
        p.send_signal(sig)
        p.wait(30)
        self.assertTrue(gone(child), signal.Signals(sig).name)
        return p.returncode

    def test_no_process_is_left_however_it_ends(self):
        for sig, status in ((signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
            pathlib.Path(self.env["HUNG"]).unlink(missing_ok=True)
            self.json.unlink(missing_ok=True)
            self.assertEqual(self.end_by(sig), status)
            self.assertEqual(self.json.exists(), sig != signal.SIGKILL)
            if sig != signal.SIGKILL:
                self.assertEqual(json.loads(self.json.read_text())["rows"][0]["runs"]["pantheon"], [60], "what is known is written")

    def test_wrong_arguments(self):
        for args, says in ((["--rows", "no such row"], "--list"), (["--rows", "("], "--rows"), (["--rounds", "0"], "more than 0")):
            p = subprocess.run(self.command(*args), env=self.env, capture_output=True, text=True, timeout=60)
            self.assertTrue(p.returncode == 2 and says in p.stderr, p)

    def server(self, program, **env):
        file = self.build / "server"
        file.write_text(PREAMBLE.format(python=sys.executable) + textwrap.dedent(program))
        file.chmod(0o755)
        return lambda port: [file, "--port", port], env, self.dir.name

    def test_streams_wait_for_the_server_and_are_counted_together(self):
        rate = clients.tokens_of_streams(*self.server("serve(0.3)"), 30, 4, 128)
        self.assertTrue(4 * 128 / 5 < rate < 4 * 128 / 0.1, rate)
        seconds = clients.start_to_first_token(*self.server("serve(0.3)"), 30)
        self.assertTrue(0.3 < seconds < 10, seconds)

    def test_the_gaps_of_a_stream_beside_prompts(self):
        alone, beside = clients.gaps_beside_prompts(*self.server("serve(0.1, stall=0.4)"), 30, 20, 3, 500, 2000)
        self.assertTrue(len(alone) >= 20 and figures.median(alone) < 0.1, alone)
        self.assertEqual(sum(g > 0.35 for g in beside), 3, beside)
        self.assertEqual(sum(g > 0.35 for g in alone), 0, "none of them is counted as one without prompts")
        self.assertTrue(figures.percentile(beside, 99) >= 0.4)

    def test_a_running_stream_that_ends_too_early_is_a_failure(self):
        with self.assertRaisesRegex(children.Failed, "ended too early"):
            clients.gaps_beside_prompts(*self.server("serve(0.1, n_long=25)"), 30, 20, 3, 500, 2000)
        self.assertEqual(children._live, {})

    def test_prompts_differ_from_the_first_word_on(self):
        texts = [clients.words(400, i) for i in range(1, 5)]
        self.assertEqual(texts, [clients.words(400, i) for i in range(1, 5)], "and are the same for everybody")
        self.assertEqual((len({t[0] for t in texts}), {len(t.split()) for t in texts}), (4, {401}))

    def test_a_server_that_ends_or_never_comes_is_a_failure(self):
        with self.assertRaisesRegex(children.Failed, "status 3: no such model"):
            clients.start_to_first_token(*self.server("print('no such model'); sys.exit(3)"), 30)
        with self.assertRaisesRegex(children.Failed, "not ready in time"):
            clients.start_to_first_token(*self.server("time.sleep(60)"), 1)
        self.assertEqual(children._live, {})


class Making(unittest.TestCase):
    """What is fetched, built and made, with stand-ins for PyPI, cmake, ninja and the model tool."""

    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.dir, environ = pathlib.Path(work.name), dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(environ)))
        self.cache = self.dir / "cache"
        self.said = []

    def tool(self, name, script):
        file = self.dir / "tools" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)

    def fake_build(self):
        os.environ["PATH"] = f"{self.dir}/tools:{os.environ['PATH']}"
        self.tool("cmake", f'echo "$@" >>{self.dir}/cmake.txt; mkdir -p "$4"; echo CMAKE_HOME_DIRECTORY:INTERNAL="$2" >"$4/CMakeCache.txt"\n')
        self.tool("ninja", 'mkdir -p "$2/bin"; d=$2; shift 2; for t; do printf "#!/bin/sh\n" >"$d/bin/$t"; chmod 755 "$d/bin/$t"; done\n')

    def package(self, members):
        def sdist(work):
            where = os.path.join(work, "p.tar.gz")
            with tarfile.open(where, "w:gz") as tar:
                for name, text in members.items():
                    m = tarfile.TarInfo(name)
                    m.size = len(text)
                    tar.addfile(m, io.BytesIO(text))
            return where
        module = builds.vocabs()
        self.addCleanup(setattr, module, "sdist", module.sdist)
        module.sdist = sdist

    def test_llama_is_fetched_and_built_once_with_the_flags_of_its_class(self):
        self.fake_build()
        self.package({"p/vendor/llama.cpp/CMakeLists.txt": b"set(LLAMA_VERSION_MAJOR 7)\n", "p/setup.py": b"", "p/vendor/llama.cpp/../../../../escaped": b"x"})
        peer = builds.Peer(LLAMA, "v2", self.cache)
        for _ in range(2):
            peer.make(["llama-bench"], self.said.append)
        configured = (self.dir / "cmake.txt").read_text().splitlines()
        self.assertEqual(len(configured), 1)
        self.assertIn("-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=OFF", configured[0])
        self.assertEqual([f.name for f in (self.cache / "llama-src").rglob("*")], ["CMakeLists.txt"])
        self.assertFalse(list(self.dir.rglob("escaped")))
        self.assertTrue(peer.describe()["version"].startswith("7."))
        peer.make(["llama-bench", "llama-server"], self.said.append)
        self.assertTrue(peer.has(["llama-server"]))

    def test_a_package_that_does_not_come_leaves_nothing(self):
        def sdist(work):
            raise subprocess.CalledProcessError(1, "pip")
        module = builds.vocabs()
        self.addCleanup(setattr, module, "sdist", module.sdist)
        module.sdist = sdist
        with self.assertRaisesRegex(children.Failed, "could not be fetched"):
            builds.Peer(LLAMA, "native", self.cache).make(["llama-bench"], self.said.append)
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_ik_is_built_from_a_checkout_only(self):
        os.environ.pop("PEER_IK", None)
        peer = builds.Peer(IK, "native", self.cache)
        with self.assertRaisesRegex(children.Failed, "PEER_IK"):
            peer.make(["llama-bench"], self.said.append)
        self.fake_build()
        os.environ["PEER_IK"] = str(self.dir / "checkout")
        peer.make(["llama-bench"], self.said.append)
        self.assertIn(f"-S {self.dir / 'checkout'} ", (self.dir / "cmake.txt").read_text())

    def test_a_build_that_fails_says_why(self):
        self.fake_build()
        self.tool("ninja", "echo no space left; exit 1\n")
        (self.cache / "llama-src").mkdir(parents=True)
        with self.assertRaisesRegex(children.Failed, "no space left"):
            builds.Peer(LLAMA, "native", self.cache).make(["llama-bench"], self.said.append)

    def test_a_model_is_made_once_and_never_left_half(self):
        (self.cache / "venv" / "bin").mkdir(parents=True)
        (self.cache / "venv" / "bin" / "gguf-dump").touch()
        (self.cache / "venv" / "bin" / "python").symlink_to("/bin/sh")
        name = "llama-1b-Q3_K_M"
        for script, works in (("echo half >$3; exit 1", False), ("echo $1 $2 >$3", True), ("exit 1", True)):
            self.tool("make.py", script + "\n")
            os.environ["BENCH_MODEL_TOOL"] = str(self.dir / "tools" / "make.py")
            try:
                self.assertEqual(models.path(name, self.cache, self.said.append).read_text(), "llama-1b Q3_K_M\n")
                self.assertTrue(works)
            except children.Failed:
                self.assertFalse(works)
                self.assertEqual([f.name for f in self.cache.iterdir()], ["venv"])
        os.environ["BENCH_MODEL_TOOL"] = "/nowhere"
        with self.assertRaisesRegex(children.Failed, "BENCH_MODEL_TOOL"):
            models.path("llama-1b-Q8_0", self.cache, self.said.append)


class Report(unittest.TestCase):
    def test_figures_for_people(self):
        self.assertEqual([report.figure(*x) for x in ((123.456, "tok/s"), (0.25, "s"), (5e6, "bytes"), (None, "s"))], ["123.5", "250 ms", "5.0 MB", "-"])
        self.assertEqual(report.spread([None, 2.0, 1.0], "tok/s"), "1.0 - 2.0")


if __name__ == "__main__":
    unittest.main()
