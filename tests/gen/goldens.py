#!/usr/bin/env python3
"""Makes tests/data/goldens/models: tiny models of what ../shared/goldens has none of, and what HuggingFace transformers answers.

    python3 -m venv V && V/bin/pip install torch transformers safetensors gguf
    V/bin/python tests/gen/goldens.py ../shared/goldens/tokenizers tests/data/goldens/models [--only NAME] [--llamacpp PROGRAM]

TOKENIZERS holds NAME/tokenizer.json, tokenizer_config.json and NAME-vocab.gguf. PROGRAM is tests/gen/llamacpp_logits.cpp, built beside
llama.cpp: it answers from the same GGUF files, for the rows "llamacpp_vs_this" (left as they are without it).

What is written is laid out as ../shared/goldens/models (its README has the words): NAME/hf, NAME/gguf, NAME/ref, NAME/golden.json, whose
entries also have a "form": directory, shards, or experts (a tensor for each). Weights are random, from the seed, and exact in bf16, f16 and
f32 at once, so that the directory, the F16 file and the reference are one model.
References are transformers in float32 with eager attention, the whole prompt at once; of a quantised file, on its dequantised weights.
A prompt grows token by token: a candidate stays if the two best logits after it are at least 1 apart in every file (and the router's second and
third 0.3), so that no engine may choose another token on the way. "without" says how far the logits go when what the model is there
for is left out: a test that cannot see it would be none. tests/gen/goldens_f64.py computes every file once more, by itself."""
import argparse
import copy
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import goldens_f64

BASE = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 352,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}


def config(architecture, **changes):
    model_type = architecture.removesuffix("ForCausalLM").lower()
    c = {**BASE, "architectures": [architecture], "model_type": model_type, **changes}
    return {k: v for k, v in c.items() if v is not None}


# name, tokenizer, seed of the weights, config.json, tokens of the prompt, files: (name, type, how), what "without" leaves out: config changes.
# A seed that occurs twice is one set of weights: the later hf/model.safetensors is a link. `how`: "" | "shards" | "experts" (one tensor each).
QWEN = {"bos_token_id": 0, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}
MODELS = [
    ("qwen3", "bpe352-qwen2", 11, config("Qwen3ForCausalLM", **QWEN, head_dim=24, tie_word_embeddings=False, attention_bias=False), 40,
     [("qwen3-F16.gguf", "F16", "")], {"q and k norms": "norms"}),
    ("qwen3-tied", "bpe352-qwen2", 12, config("Qwen3ForCausalLM", **QWEN, head_dim=32, num_hidden_layers=1, num_key_value_heads=1,
                                              attention_bias=False), 40,
     [("qwen3-tied-F16.gguf", "F16", "")], {"q and k norms": "norms"}),
    ("qwen2-untied", "bpe352-qwen2", 13, config("Qwen2ForCausalLM", **QWEN, hidden_size=64, intermediate_size=160, tie_word_embeddings=False,
                                                use_sliding_window=False), 40,
     [("qwen2-untied-F16.gguf", "F16", ""), ("qwen2-untied-Q8_0.gguf", "Q8_0", "shards")], {"biases": "biases"}),
    ("llama-linear", "spm352", 14, config("LlamaForCausalLM", head_dim=16, rope_theta=None, torch_dtype=None, dtype="bfloat16",
                                          rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}), 40,
     [("llama-linear-F16.gguf", "F16", "")], {"rope scaling": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}),
    ("llama-yarn", "spm352", 14, config("LlamaForCausalLM", head_dim=16, max_position_embeddings=128, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), 72,
     [("llama-yarn-F16.gguf", "F16", "")], {"rope scaling": {"rope_scaling": None}, "the ramp": {"rope_scaling": {
         "rope_type": "linear", "factor": 4.0}}}),
    ("llama-yarn-attn", "spm352", 14, config("LlamaForCausalLM", head_dim=16, max_position_embeddings=256, rope_scaling={
        "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.5, "beta_fast": 4.0, "beta_slow": 0.5}), 72,
     [("llama-yarn-attn-F16.gguf", "F16", "")], {"attention_factor": {"rope_scaling": {
         "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 0.5}},
         "the betas": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.5}}}),
    ("mistral-window", "spm352", 14, config("MistralForCausalLM", head_dim=16, sliding_window=20), 96,
     [("mistral-window-F16.gguf", "F16", "")], {"the window": {"sliding_window": None}, "one position of the window": {"sliding_window": 19}}),
    ("mixtral-experts", "spm352", 15, config("MixtralForCausalLM", hidden_size=64, head_dim=16, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                             sliding_window=None, output_router_logits=False), 40,
     [("mixtral-experts-F16.gguf", "F16", "experts"), ("mixtral-experts-Q8_0.gguf", "Q8_0", "experts"), ("mixtral-merged-Q8_0.gguf", "Q8_0", "")],
     {"the second expert": {"num_experts_per_tok": 1}}),
]
N_GREEDY = 32
LOGITS_STD = 6.0
MIN_GAP, MIN_ROUTER_GAP = 1.0, 0.3

# --- weights ---


def exact(t):
    """The nearest that bf16, f16 and f32 all have."""
    t = t.to(torch.bfloat16).float()
    return torch.where(t.to(torch.float16).float() == t, t, torch.zeros_like(t))


def weights(c, seed):
    g = torch.Generator().manual_seed(seed)
    embd, vocab, ff = c["hidden_size"], c["vocab_size"], c["intermediate_size"]
    head = c.get("head_dim", embd // c["num_attention_heads"])
    q, kv = head * c["num_attention_heads"], head * c["num_key_value_heads"]
    w = {}

    def put(name, *shape, std, mean=0.0):
        w[name] = exact(torch.randn(*shape, generator=g) * std + mean)

    put("model.embed_tokens.weight", vocab, embd, std=0.25)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        put(p + "input_layernorm.weight", embd, std=0.2, mean=1)
        for name, n in (("q", q), ("k", kv), ("v", kv)):
            put(p + f"self_attn.{name}_proj.weight", n, embd, std=(1.0 if name == "v" else 1.4) / math.sqrt(embd))
            if c["model_type"] == "qwen2":
                put(p + f"self_attn.{name}_proj.bias", n, std=0.5)
        put(p + "self_attn.o_proj.weight", embd, q, std=2 / math.sqrt(q))
        if c["model_type"] == "qwen3":
            put(p + "self_attn.q_norm.weight", head, std=0.4, mean=1.3)
            put(p + "self_attn.k_norm.weight", head, std=0.4, mean=1.3)
        put(p + "post_attention_layernorm.weight", embd, std=0.2, mean=1)
        if c["model_type"] == "mixtral":
            put(p + "block_sparse_moe.gate.weight", c["num_local_experts"], embd, std=2 / math.sqrt(embd))
            for e in range(c["num_local_experts"]):
                put(p + f"block_sparse_moe.experts.{e}.w1.weight", ff, embd, std=1.5 / math.sqrt(embd))
                put(p + f"block_sparse_moe.experts.{e}.w2.weight", embd, ff, std=3 / math.sqrt(ff))
                put(p + f"block_sparse_moe.experts.{e}.w3.weight", ff, embd, std=1.5 / math.sqrt(embd))
        else:
            put(p + "mlp.gate_proj.weight", ff, embd, std=1.5 / math.sqrt(embd))
            put(p + "mlp.up_proj.weight", ff, embd, std=1.5 / math.sqrt(embd))
            put(p + "mlp.down_proj.weight", embd, ff, std=3 / math.sqrt(ff))
    put("model.norm.weight", embd, std=0.2, mean=1)
    if not c["tie_word_embeddings"]:
        put("lm_head.weight", vocab, embd, std=0.25)
    # The last norm sets how far apart the logits are.
    with tempfile.TemporaryDirectory() as d:
        std = logits(load(d, c, w), torch.randint(3, vocab, (4, 24), generator=g)).std().item()
    w["model.norm.weight"] = exact(w["model.norm.weight"] * (LOGITS_STD / std))
    return w


# --- transformers ---


def load(folder, c, w):
    """The model that transformers makes of a directory with these weights, float32."""
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
    save_file({k: v.contiguous() for k, v in w.items()}, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    return reopen(folder)


def reopen(folder):
    m, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return m.eval()


@torch.no_grad()
def logits(m, ids):
    return m(ids, use_cache=False).logits


def gap(l):
    two = l.topk(2, dim=-1).values
    return two[..., 0] - two[..., 1]


@torch.no_grad()
def router_gap(m, ids):
    """[sequence][position]: how far the last expert taken is from the first not taken, at the closest layer."""
    c = m.config
    l = torch.stack([r.float() for r in m(ids, use_cache=False, output_router_logits=True).router_logits]) # [layer][sequence * position][expert]
    if l.dim() == 4:
        l = l.flatten(1, 2)
    top = l.topk(c.num_experts_per_tok + 1, dim=-1).values
    return (top[..., -2] - top[..., -1]).amin(0).view(ids.shape)


def choose_prompt(models, c, n, seed):
    g = torch.Generator().manual_seed(1000 + seed)
    ids = [c["bos_token_id"]]
    while len(ids) < n + 1: # the first may be a near tie: it is no choice; checked below
        for _ in range(40):
            tries = torch.randint(3, c["vocab_size"], (24,), generator=g)
            batch = torch.cat([torch.tensor(ids).repeat(24, 1), tries[:, None]], 1)
            good = torch.ones(24, dtype=torch.bool)
            for m in models:
                good &= gap(logits(m, batch)[:, -1]) >= MIN_GAP * 1.05
                if c["model_type"] == "mixtral":
                    good &= router_gap(m, batch)[:, -1] >= MIN_ROUTER_GAP * 1.05
            if good.any():
                ids.append(tries[good.nonzero()[0, 0]].item())
                break
        else:
            raise SystemExit(f"no token keeps the prompt free of near ties at {len(ids)}: another seed")
    return ids[1:] if min(gap(logits(m, torch.tensor([ids]))[0, 0]).item() for m in models) < MIN_GAP else ids[:n]


def greedy(m, ids):
    ids, out, gaps = list(ids), [], []
    for _ in range(N_GREEDY):
        last = logits(m, torch.tensor([ids]))[0, -1]
        gaps.append(round(gap(last).item(), 5))
        out.append(last.argmax().item())
        ids.append(out[-1])
    return out, gaps


# --- GGUF ---

LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "block_sparse_moe.gate": "ffn_gate_inp"}
FLOATS = {"F16": np.float16, "F32": np.float32}
EXPERT = {"w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up"}


def gguf_name(name):
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if name in fixed:
        return fixed[name]
    m = re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.(\d+)\.(w[123])\.weight", name)
    if m:
        return f"blk.{m[1]}.{EXPERT[m[3]]}.{m[2]}.weight"
    m = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.(weight|bias)", name)
    return f"blk.{m[1]}.{LAYER[m[2]]}.{m[3]}"


def pairs(w, n_head):
    """Rows of q or k as the architecture "llama" has them: of each head the first half's and the second's, by turns."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def gguf_tensors(c, w, how):
    """(name, float32) in the order of the layers."""
    merged = {}
    for name, t in w.items():
        t, to = t.numpy(), gguf_name(name)
        if c["model_type"] in ("llama", "mistral", "mixtral") and re.search(r"attn_[qk]\.", to):
            t = pairs(t, c["num_attention_heads" if "attn_q." in to else "num_key_value_heads"])
        expert = re.fullmatch(r"(blk\.\d+\.ffn_\w+)\.(\d+)\.weight", to)
        if expert and how != "experts":
            merged.setdefault(expert[1] + "_exps.weight", []).append(t)
            to = expert[1] + "_exps.weight"
            if len(merged[to]) < c["num_local_experts"]:
                continue
            t = np.stack(merged[to])
        yield to, t


def write_gguf(path, name, c, w, tokenizer, kind, how):
    arch = {"mistral": "llama", "mixtral": "llama"}.get(c["model_type"], c["model_type"])
    head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    tensors = list(gguf_tensors(c, w, how))
    out = gguf.GGUFWriter(None, arch, split_max_tensors=-(-len(tensors) // 3) if how == "shards" else 0)
    out.add_type("model")
    out.add_name(name)
    out.add_block_count(c["num_hidden_layers"])
    out.add_context_length(c["max_position_embeddings"])
    out.add_embedding_length(c["hidden_size"])
    out.add_feed_forward_length(c["intermediate_size"])
    out.add_head_count(c["num_attention_heads"])
    out.add_head_count_kv(c["num_key_value_heads"])
    scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
    out.add_rope_freq_base(scaling.get("rope_theta") or c["rope_theta"])
    out.add_layer_norm_rms_eps(c["rms_norm_eps"])
    out.add_file_type({"F32": gguf.LlamaFileType.ALL_F32, "F16": gguf.LlamaFileType.MOSTLY_F16, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[kind])
    out.add_quantization_version(2)
    if "head_dim" in c:
        out.add_key_length(head)
        out.add_value_length(head)
    if arch == "llama":
        out.add_vocab_size(c["vocab_size"])
        out.add_rope_dimension_count(head)
    if "num_local_experts" in c:
        out.add_expert_count(c["num_local_experts"])
        out.add_expert_used_count(c["num_experts_per_tok"])
    if c["model_type"] == "mistral":
        out.add_sliding_window(c["sliding_window"])
    rope_type = scaling.get("rope_type", scaling.get("type"))
    if rope_type:
        out.add_rope_scaling_type(gguf.RopeScalingType(rope_type))
        out.add_rope_scaling_factor(scaling["factor"])
    if rope_type == "yarn":
        out.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "attention_factor" in scaling: # in place of the paper's, which every reader of GGUF multiplies by itself
            out.add_rope_scaling_attn_factors(scaling["attention_factor"] / (0.1 * math.log(scaling["factor"]) + 1))
        if "beta_fast" in scaling:
            out.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
            out.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    for key, f in gguf.GGUFReader(tokenizer).fields.items():
        if key.startswith("tokenizer."):
            out.add_key_value(key, f.contents(), f.types[0], f.types[1] if len(f.types) > 1 else None)
    for to, t in tensors:
        if t.ndim < 2 or "ffn_gate_inp" in to:
            out.add_tensor(to, t)
        elif kind in FLOATS:
            out.add_tensor(to, t.astype(FLOATS[kind]))
        else:
            out.add_tensor(to, gguf.quants.quantize(t, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    out.write_header_to_file(pathlib.Path(path))
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def dequantised(c, w, kind):
    if kind == "F16":
        return w
    q = gguf.GGMLQuantizationType.Q8_0
    return {k: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(t.numpy(), q), q)) if t.dim() > 1 and ".gate.weight" not in k else t
            for k, t in w.items()}


# --- one model ---


def differences(got, want):
    d = np.abs(got.astype(np.float64) - want)
    return {"max_abs": float(f"{d.max():.3g}"), "mean_abs": float(f"{d.mean():.3g}"),
            "rms_rel": float(f"{np.sqrt((d ** 2).mean() / (want.astype(np.float64) ** 2).mean()):.3g}"),
            "argmax_equal": f"{int((got.argmax(-1) == want.argmax(-1)).sum())}/{len(want)}"}


def without(c, w, ids, want, change):
    """The logits' distance when something is left out."""
    c, w = copy.deepcopy(c), dict(w)
    if isinstance(change, dict):
        c.update(change)
        c = {k: v for k, v in c.items() if v is not None or k == "sliding_window"}
    for k in list(w):
        if change == "norms" and re.search(r"[qk]_norm", k):
            w[k] = torch.ones_like(w[k])
        if change == "biases" and k.endswith(".bias"):
            w[k] = torch.zeros_like(w[k])
    with tempfile.TemporaryDirectory() as d:
        return differences(logits(load(d, c, w), torch.tensor([ids]))[0].numpy(), want)


def no_window(c, w, ids):
    with tempfile.TemporaryDirectory() as d:
        return logits(load(d, {**c, "sliding_window": None}, w), torch.tensor([ids]))[0].numpy()


def write_hf(folder, c, w, tokenizer, twin):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
        f.write("\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(tokenizer, name), os.path.join(folder, name))
    path = os.path.join(folder, "model.safetensors")
    if twin:
        os.symlink(f"../../{twin}/hf/model.safetensors", path)
    else:
        save_file({k: v.to(torch.bfloat16).contiguous() for k, v in w.items()}, path, {"format": "pt"})
    transformers.AutoTokenizer.from_pretrained(folder)


def llamacpp(program, path, c, ids):
    """Its architecture "llama" reads neither the betas of YaRN nor a window from the file; the former can be given."""
    betas = [str(c["rope_scaling"][k]) for k in ("beta_fast", "beta_slow")] if "beta_fast" in c.get("rope_scaling", {}) else []
    with tempfile.NamedTemporaryFile() as f:
        subprocess.run([program, path, ",".join(map(str, ids)), f.name, *betas], check=True, stderr=subprocess.DEVNULL)
        return np.fromfile(f.name, np.float32).reshape(len(ids), c["vocab_size"])


def make(spec, out, tokenizers, twin, program):
    name, tok, seed, c, n, files, left_out = spec
    folder, tokenizer = os.path.join(out, name), os.path.join(tokenizers, tok)
    old = {}
    if os.path.exists(os.path.join(folder, "golden.json")):
        with open(os.path.join(folder, "golden.json")) as f:
            old = {e["file"]: e for e in json.load(f)["entries"]}
    shutil.rmtree(folder, ignore_errors=True)
    w = weights({**c, "rope_scaling": None, "rope_parameters": None, "rope_theta": 10000.0, "sliding_window": None} if seed == 14 else c, seed)
    write_hf(os.path.join(folder, "hf"), c, w, tokenizer, twin)
    os.makedirs(os.path.join(folder, "gguf"))
    os.makedirs(os.path.join(folder, "ref"))
    models = {"F16": reopen(os.path.join(folder, "hf"))}
    with tempfile.TemporaryDirectory() as d:
        for _, kind, _ in files:
            if kind not in models:
                models[kind] = load(d, c, dequantised(c, w, kind))
        ids = choose_prompt(models.values(), c, n, seed + len(name))
    golden = {"model": name, "arch": "llama" if c["model_type"] in ("mistral", "mixtral") else c["model_type"], "seed": seed, "tokenizer": tok,
              "prompt_ids": ids, "n_vocab": c["vocab_size"], "transformers": transformers.__version__, "without": {}, "entries": []}
    refs = {}
    for kind, m in models.items():
        refs[kind] = logits(m, torch.tensor([ids]))[0].numpy()
        np.save(os.path.join(folder, "ref", ("hf" if kind == "F16" else kind) + ".logits.npy"), refs[kind])
        golden["min_gap_prompt"] = min(golden.get("min_gap_prompt", 99), float(gap(torch.from_numpy(refs[kind])).min()))
    golden["logits_std"] = float(f"{refs['F16'].std():.3g}")
    assert golden["min_gap_prompt"] >= MIN_GAP
    for what, change in left_out.items():
        golden["without"][what] = without(c, w, ids, refs["F16"], change)
    for file, kind, how in [("hf", "F16", "directory")] + files:
        entry = {"file": file, **({"form": how} if how else {}), "logits": "ref/" + ("hf" if kind == "F16" else kind) + ".logits.npy"}
        entry["greedy_ids"], entry["greedy_gap"] = greedy(models[kind], ids)
        if file != "hf":
            path = os.path.join(folder, "gguf", file)
            write_gguf(path, name, c, w, os.path.join(tokenizer, tok + "-vocab.gguf"), kind, how)
            if how == "shards":
                file = file.replace(".gguf", "-00001-of-00003.gguf")
                path = os.path.join(folder, "gguf", file)
            entry["file"] = "gguf/" + file
            entry["numpy_f64_vs_this"] = differences(goldens_f64.forward(path, ids), refs[kind])
            if program:
                # Without a window where it knows of none, this is what it has to equal.
                want, against = (refs[kind], "vs_this") if c["model_type"] != "mistral" else (no_window(c, w, ids), "vs_this_without_window")
                if how != "experts": # it reads merged ones only
                    entry["llamacpp_" + against] = differences(llamacpp(program, path, c, ids), want)
                if kind == "F16": # its activations are f16 then: the same weights as F32 (and merged) show the graph alone
                    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
                        write_gguf(f.name, name, c, w, os.path.join(tokenizer, tok + "-vocab.gguf"), "F32", "")
                        entry["llamacpp_f32_" + against] = differences(llamacpp(program, f.name, c, ids), want)
            else:
                entry.update({k: v for k, v in old.get(entry["file"], {}).items() if k.startswith("llamacpp")})
        golden["entries"].append(entry)
        print(name, entry["file"], *(f"{k} {v}" for k, v in entry.items() if "_vs_" in k), flush=True)
    print(name, "logits std", golden["logits_std"], "without", golden["without"])
    text = json.dumps(golden, indent=1)
    with open(os.path.join(folder, "golden.json"), "w") as f: # each list of numbers on one line
        f.write(re.sub(r"\[\s*([-\d.,\s]+?)\s*\]", lambda m: "[" + ", ".join(m[1].replace(",", " ").split()) + "]", text) + "\n")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("tokenizers")
    p.add_argument("out")
    p.add_argument("--only")
    p.add_argument("--llamacpp")
    a = p.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    twins = {}
    for spec in MODELS:
        twin = twins.get(spec[2])
        twins.setdefault(spec[2], spec[0])
        if not a.only or a.only == spec[0]:
            make(spec, a.out, a.tokenizers, twin, a.llamacpp)


main()
