"""The logits of a GGUF file in double precision, for tests/gen/goldens.py: from the papers and the file format, with nothing of transformers
in it. Families llama (with Mistral's window, Mixtral's experts merged or one by one, linear and YaRN scaling), qwen2 and qwen3."""
import glob
import re

import gguf
import numpy as np


class Model:
    def __init__(self, path):
        shards = sorted(glob.glob(re.sub(r"-\d{5}-of-", "-*-of-", path)))
        assert len(shards) == int((re.search(r"-of-(\d+)\.gguf$", path) or [0, 1])[1])
        readers = [gguf.GGUFReader(p) for p in shards]
        self.keys = {k: f.contents() for k, f in readers[0].fields.items()}
        self.arch = self.keys["general.architecture"]
        self.tensors = {}
        for r in readers:
            for t in r.tensors:
                assert t.name not in self.tensors
                self.tensors[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)

    def key(self, name, default=None):
        v = self.keys.get(f"{self.arch}.{name}", default)
        assert v is not None, name
        return v

    def layer(self, i, name):
        return self.tensors.get(f"blk.{i}.{name}")

    def expert(self, i, name, e):
        merged = self.layer(i, f"{name}_exps.weight")
        return merged[e] if merged is not None else self.layer(i, f"{name}.{e}.weight")


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def swiglu(h, gate, up, down):
    g = h @ gate.T
    return (g / (1 + np.exp(-g)) * (h @ up.T)) @ down.T


def turns(m, head, n):
    """cos and sin [position][pair]"""
    base, kind = m.key("rope.freq_base"), m.key("rope.scaling.type", "none")
    theta = np.array([base ** (-2 * i / head) for i in range(head // 2)])
    amplitude = m.key("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        theta = theta / m.key("rope.scaling.factor")
    elif kind == "yarn":
        # By parts: how often a pair turns in the original context decides whether its angle stays (often) or is divided (seldom).
        s, length = m.key("rope.scaling.factor"), m.key("rope.scaling.original_context_length")
        def pair_of(rotations):
            return head * np.log(length / (rotations * 2 * np.pi)) / (2 * np.log(base))
        lo = max(np.floor(pair_of(m.key("rope.scaling.yarn_beta_fast", 32.0))), 0)
        hi = min(np.ceil(pair_of(m.key("rope.scaling.yarn_beta_slow", 1.0))), head - 1)
        gamma = 1 - np.clip((np.arange(head // 2) - lo) / max(hi - lo, 1e-3), 0, 1)
        theta = (1 - gamma) * theta / s + gamma * theta
        amplitude *= 0.1 * np.log(s) + 1
    angle = np.outer(np.arange(n), theta)
    return amplitude * np.cos(angle), amplitude * np.sin(angle)


def rotate(x, cos, sin, neighbours):
    """x [position][head][head_dim]"""
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])
    c, s = cos[:, None], sin[:, None]
    u, v = a * c - b * s, a * s + b * c
    return np.stack([u, v], -1).reshape(x.shape) if neighbours else np.concatenate([u, v], -1)


def attention(m, i, h, cos, sin):
    n, heads, kv = len(h), m.key("attention.head_count"), m.key("attention.head_count_kv")
    eps = m.key("attention.layer_norm_rms_epsilon")
    out = {}
    for name, count in (("q", heads), ("k", kv), ("v", kv)):
        y = h @ m.layer(i, f"attn_{name}.weight").T
        if m.layer(i, f"attn_{name}.bias") is not None:
            y = y + m.layer(i, f"attn_{name}.bias")
        y = y.reshape(n, count, -1)
        if m.layer(i, f"attn_{name}_norm.weight") is not None:
            y = rms_norm(y, m.layer(i, f"attn_{name}_norm.weight"), eps)
        out[name] = y if name == "v" else rotate(y, cos, sin, m.arch == "llama")
    k, v = (np.repeat(out[x], heads // kv, 1) for x in "kv")
    score = np.einsum("ihd,jhd->hij", out["q"], k) / np.sqrt(k.shape[-1])
    back = np.arange(n)[:, None] - np.arange(n)[None, :]
    seen = (back >= 0) & (back < (m.key("attention.sliding_window", 0) or n))
    p = np.where(seen, np.exp(score - np.where(seen, score, -np.inf).max(-1, keepdims=True)), 0)
    y = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)
    return y.reshape(n, -1) @ m.layer(i, "attn_output.weight").T


def feed_forward(m, i, h):
    if not m.key("expert_count", 0):
        return swiglu(h, *(m.layer(i, f"ffn_{x}.weight") for x in ("gate", "up", "down")))
    y, used = np.zeros_like(h), m.key("expert_used_count")
    router = np.exp(h @ m.layer(i, "ffn_gate_inp.weight").T)
    for t, row in enumerate(router):
        best = np.argsort(-row)[:used]
        for e in best:
            y[t] += row[e] / row[best].sum() * swiglu(h[t], *(m.expert(i, f"ffn_{x}", e) for x in ("gate", "up", "down")))
    return y


def forward(path, ids):
    """float64 [len(ids)][vocabulary]"""
    m = Model(path)
    eps = m.key("attention.layer_norm_rms_epsilon")
    head = m.key("attention.key_length", m.key("embedding_length") // m.key("attention.head_count"))
    cos, sin = turns(m, head, len(ids))
    x = m.tensors["token_embd.weight"][ids]
    for i in range(m.key("block_count")):
        x = x + attention(m, i, rms_norm(x, m.layer(i, "attn_norm.weight"), eps), cos, sin)
        x = x + feed_forward(m, i, rms_norm(x, m.layer(i, "ffn_norm.weight"), eps))
    return rms_norm(x, m.tensors["output_norm.weight"], eps) @ m.tensors.get("output.weight", m.tensors["token_embd.weight"]).T
