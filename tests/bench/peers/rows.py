"""What is compared: the table of rows. A row is one figure of Pantheon held against the best peer's; adding one is adding a line here.

Rows that the same process can measure are measured by one (`job`): a prefill and a decode of one model, or all numbers of sequences."""
from dataclasses import dataclass

LLAMA, IK = "llama.cpp", "ik_llama.cpp"
PARTIES = ("pantheon", LLAMA, IK)
DECODE_STALL = 0.5  # seconds: what a manifest's decode_stall is by default
FAST_HOP_NS = 100  # hosts whose cores lie this far apart have two memory paths: what is bound by memory has more room there


@dataclass(frozen=True)
class Row:
    name: str
    kind: str   # what measures it: a key of measure.KINDS
    model: str  # a key of models.MODELS
    n: int      # tokens; of "together" sequences; of "streams" requests; of "gap" tokens of a prompt
    metric: str  # prefill | decode | together | streams | gap | start | memory
    floor: float  # ratio to the best peer that must be held, and the one aimed at
    goal: float
    build: str = "native"  # a key of builds.CLASSES
    fast: tuple = None     # floor and goal where the host is in its fast state
    share: tuple = None    # floor and goal of the share of a pure read
    less: bool = False     # less is better: ratios are to be at most floor and goal
    most: float = None     # seconds that ours may be at most, and one of its steps more
    peers: tuple = (LLAMA, IK)
    repeat: int = 1        # repetitions within a process, whose median counts

    @property
    def job(self):
        return (self.kind, self.model, self.build)

    @property
    def key(self):
        """What a measurement calls this figure."""
        return f"{self.metric} {self.n}" if self.metric == "together" else self.metric


def _llama_1b():
    # type: decode floor, goal, in the fast state, share; prefill floor, goal
    for quant, decode, fast, share, prefill in (
        ("Q4_K_M", (1.05, 1.15), (1.15, 1.35), (0.85, 0.95), (1.1, 1.4)),
        ("Q4_0", (1.05, 1.15), (1.15, 1.35), (0.85, 0.95), (1.1, 1.4)),
        ("Q8_0", (1.05, 1.15), (1.15, 1.35), (0.85, 0.95), (1.1, 1.4)),
        ("Q6_K", (1.05, 1.15), (1.15, 1.35), (0.85, 0.95), (1.0, 1.3)),
        ("Q5_K_M", (1.05, 1.15), (1.15, 1.35), (0.85, 0.95), (1.0, 1.3)),
        ("Q3_K_M", (1.0, 1.3), None, None, (1.0, 1.3)),
    ):
        model = f"llama-1b-{quant}"
        yield Row(f"{model} decode 64", "bench", model, 64, "decode", *decode, fast=fast, share=share)
        yield Row(f"{model} prefill 512", "bench", model, 512, "prefill", *prefill)


ROWS = (
    Row("SmolLM2-Q4_1 decode 64", "bench", "SmolLM2-Q4_1", 64, "decode", 1.05, 1.3, repeat=3),
    Row("SmolLM2-Q4_1 prefill 512", "bench", "SmolLM2-Q4_1", 512, "prefill", 0.9, 1.2, repeat=3),
    *_llama_1b(),
    *(row for model in ("llama-1b-Q4_K_M", "llama-1b-Q8_0") for row in (
        Row(f"{model} AVX2 builds decode 64", "bench", model, 64, "decode", 1.0, 1.15, build="avx2"),
        Row(f"{model} AVX2 builds prefill 512", "bench", model, 512, "prefill", 0.9, 1.2, build="avx2"))),
    Row("llama-1b-Q4_0 x86-64-v2 builds decode 64", "bench", "llama-1b-Q4_0", 64, "decode", 1.2, 2.0, build="v2", peers=(LLAMA,)),
    Row("llama-1b-Q4_0 x86-64-v2 builds prefill 128", "bench", "llama-1b-Q4_0", 128, "prefill", 1.2, 2.0, build="v2", peers=(LLAMA,)),
    *(Row(f"llama-1b-Q4_K_M {n} sequences together", "together", "llama-1b-Q4_K_M", n, "together", 1.2, 1.6) for n in (2, 4, 8, 16)),
    Row("llama-1b-Q4_K_M decode 32 at depth 8192, q8_0 KV", "depth", "llama-1b-Q4_K_M", 32, "decode", 1.1, 1.5),
    Row("SmolLM2-Q4_1 8 chat streams", "streams", "SmolLM2-Q4_1", 8, "streams", 2.0, 3.0, peers=(LLAMA,)),
    Row("SmolLM2-Q4_1 p99 gap of a stream beside prompts of 4000 tokens", "gap", "SmolLM2-Q4_1", 4000, "gap", 1.0, 0.25, less=True, most=DECODE_STALL, peers=(LLAMA,)),
    Row("SmolLM2-Q4_1 start to first token", "start", "SmolLM2-Q4_1", 1, "start", 1.0, 0.5, less=True, peers=(LLAMA,)),
    Row("llama-1b-Q4_K_M memory over the weights, ctx 4096", "memory", "llama-1b-Q4_K_M", 1, "memory", 1.0, 0.7, less=True),
)
