"""One measurement of one party: the commands, and what is read from them. A kind is a function and the programs it needs of a peer. All of
them load without mmap but `start`, which measures loading and lets everyone do it as they do by default."""
import pathlib
from dataclasses import dataclass, field

import children
import clients
import figures
from builds import CLASSES
from rows import IK

CTX, SHORT = 4096, 16  # tokens: of a session where memory is counted; of the prompts of sequences together


@dataclass(frozen=True)
class Counts:
    """Tokens. The defaults are what rows mean; SMOKE only shows that everything runs."""
    most: int = 1 << 20   # of any prefill or decode a row names
    depth: int = 8192
    together: int = 32    # of each sequence
    stream: int = 128     # of each stream
    alone: int = 64       # of a running stream before prompts come to it; how many do, and how long they are at most
    prompts: int = 4
    prompt: int = 4000
    memory: int = 96      # generated while memory is looked at
    repeat: int = 1 << 20  # most repetitions in a process


SMOKE = Counts(most=4, depth=32, together=4, stream=8, alone=8, prompts=1, prompt=300, memory=16, repeat=1)


@dataclass
class Setting:
    """What a measurement is of. rows: of one job, all measured at once."""
    rows: tuple
    model: pathlib.Path
    threads: int
    pantheon: pathlib.Path
    cwd: str  # where peers may leave their logs
    peers: dict = field(default_factory=dict)  # party -> builds.Peer
    seconds: float = 600
    counts: Counts = Counts()

    @property
    def env(self):
        """What holds Pantheon to the instruction sets of the peers' builds."""
        isa = CLASSES[self.rows[0].build][1]
        return {"PANTHEON_ISA": isa} if isa else {}

    def tokens(self, metric):
        return min(self.counts.most, next((r.n for r in self.rows if r.metric == metric), 0))

    @property
    def sequences(self):
        return ",".join(str(r.n) for r in self.rows)


def _tool(s, party, program):
    return [s.peers[party].program(program), "-m", s.model, "-t", s.threads]


def _no_mmap(party, bench=False):
    return ["-lm", "none"] if party != IK else ["-mmp", "0"] if bench else ["--no-mmap"]


def _pantheon(s, *args, **kw):
    return children.run([s.pantheon, "bench", "--model", s.model, "--threads", s.threads, "--no-mmap", "--json", *args], s.seconds, env=s.env, cwd=s.cwd, **kw)


def bench(s, party):
    p, n, repeat = s.tokens("prefill"), s.tokens("decode"), min(s.counts.repeat, max(r.repeat for r in s.rows))
    if party == "pantheon":
        return figures.parse_pantheon(_pantheon(s, "--prefill", p, "--decode", n, "--repeat", repeat)[0])
    command = [*_tool(s, party, "llama-bench"), *_no_mmap(party, True), "-p", p, "-n", n, "-r", repeat, "-o", "json"]
    return figures.parse_llama_bench(children.run(command, s.seconds, cwd=s.cwd)[0])


def depth(s, party):
    n = s.tokens("decode")
    if party == "pantheon":
        return figures.parse_pantheon(_pantheon(s, "--prefill", 0, "--decode", n, "--depth", s.counts.depth, "--kv", "q8_0", "--repeat", 1)[0])
    how = ["-p", 0, "-n", 0, "-gp", f"{s.counts.depth},{n}", "-fa", 1] if party == IK else ["-p", 0, "-n", n, "-d", s.counts.depth, "-fa", "on"]
    command = [*_tool(s, party, "llama-bench"), *_no_mmap(party, True), *how, "-ctk", "q8_0", "-ctv", "q8_0", "-r", 1, "-o", "json"]
    return figures.parse_llama_bench(children.run(command, s.seconds, cwd=s.cwd)[0])


def _batched(s, party, sequences, decode, **kw):
    command = [*_tool(s, party, "llama-batched-bench"), *_no_mmap(party), "-c", CTX, "-npp", SHORT, "-ntg", decode, "-npl", sequences]
    command += [] if party == IK else ["--output-format", "jsonl"]
    return "\n".join(children.run(command, s.seconds, cwd=s.cwd, **kw))


def together(s, party):
    if party == "pantheon":
        return figures.parse_pantheon(_pantheon(s, "--prefill", 0, "--decode", s.counts.together, "--depth", SHORT, "--sequences", s.sequences, "--repeat", 1)[0])
    return figures.parse_batched_bench(_batched(s, party, s.sequences, s.counts.together))


def memory(s, party):
    """Bytes resident beyond the model's file, while a session of CTX tokens generates. The peers clear their whole cache when they make it, so
    all of it counts there; here what a session has filled."""
    samples = []

    def watch(pid):
        try:
            held = figures.resident_bytes(pathlib.Path(f"/proc/{pid}/status").read_text())
        except OSError:
            held = None
        if held is not None:
            samples.append(held)

    if party == "pantheon":
        _pantheon(s, "--prefill", 0, "--decode", s.counts.memory, "--depth", SHORT, "--ctx-cap", CTX, "--repeat", 1, watch=watch)
    else:
        _batched(s, party, 1, s.counts.memory, watch=watch)
    if len(samples) < 20:
        raise children.Failed("it ended before its memory could be looked at")
    return {"memory": figures.steady(samples) - s.model.stat().st_size}, {}


def _server(s, party, streams, extra, ctx=1024):
    """The command that serves the model with room for `streams` sessions of ctx tokens, given a port."""
    if party == "pantheon":
        return lambda port: [s.pantheon, "serve", "--port", port, "--threads", s.threads, "--ctx-cap", ctx, "--max-sessions", streams,
                             "--max-concurrent", streams, *extra, "--model", s.model, "--name", "bench"]
    return lambda port: [*_tool(s, party, "llama-server"), "--host", "127.0.0.1", "--port", port, "-c", ctx * streams, "-np", streams, *extra]


def _server_env(s):
    return s.env | {"STATE_DIRECTORY": s.cwd}  # what we keep goes with the run; the peers know neither


def streams(s, party):
    n = s.rows[0].n
    command = _server(s, party, n, ["--no-mmap"] if party == "pantheon" else _no_mmap(party))
    return {"streams": clients.tokens_of_streams(command, _server_env(s), s.cwd, s.seconds, n, s.counts.stream)}, {}


def gap(s, party):
    """Seconds between two texts of a running stream that 99 of 100 stay within, while prompts arrive one after the other; and the median without them,
    which is a step. Prompts differ from their first word on, so nothing that is kept shortens them."""
    ctx, words = 8192, min(s.rows[0].n, s.counts.prompt) - 40  # the template's
    command = _server(s, party, 2, ["--no-mmap"] if party == "pantheon" else _no_mmap(party), ctx)
    alone, beside = clients.gaps_beside_prompts(command, _server_env(s), s.cwd, s.seconds, s.counts.alone, s.counts.prompts, words, ctx - 200)
    return {"gap": figures.percentile(beside, 99), "step": figures.median(alone)}, {"gaps": len(beside), "longest": max(beside), "median": figures.median(beside)}


def start(s, party):
    """Server against server, each mapping the file as it does by default, the peer without its warming run (we have none)."""
    with open(s.model, "rb") as f:  # into the page cache
        while f.read(1 << 24):
            pass
    command = _server(s, party, 1, [] if party == "pantheon" else ["--no-warmup"])
    return {"start": clients.start_to_first_token(command, _server_env(s), s.cwd, s.seconds)}, {}


KINDS = {  # kind: what measures it, the program of a peer it needs, most seconds of one run
    "bench": (bench, "llama-bench", 900),
    "depth": (depth, "llama-bench", 2400),
    "together": (together, "llama-batched-bench", 900),
    "memory": (memory, "llama-batched-bench", 300),
    "streams": (streams, "llama-server", 300),
    "gap": (gap, "llama-server", 600),
    "start": (start, "llama-server", 120),
}
