#!/usr/bin/env python3
"""Makes tests/data/embeddings.json: what HuggingFace transformers makes of a few texts, pooled in each way.

    python3 -m venv V && V/bin/pip install torch transformers safetensors
    V/bin/python tests/gen/embeddings.py tests/data/goldens/models tests/data/embeddings.json [--only NAME]...

MODELS/NAME/hf is a directory with config.json, safetensors and tokenizer.json, and golden.json beside it has `prompt_ids`. The states are the base
model's last_hidden_state (after the output norm) in float32 with eager attention, the whole prompt at once; mean, first and last of them are made in float64
and divided by their length, as sentence-transformers' pooling and normalize layers do. Of each model a short text, a longer one with characters of
several bytes, and the golden prompt, which is longer than a sliding window."""
import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

TEXTS = ["Hello", "The quick brown fox jumps over the lazy dog. \u00c4pfel, \u65e5\u672c\u8a9e \U0001f600 1234567890 times."]


def vectors(states):
    pooled = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}
    return {k: [float(f"{x:.9g}") for x in v / np.linalg.norm(v)] for k, v in pooled.items()}


def entries(folder):
    model = transformers.AutoModel.from_pretrained(folder / "hf", dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    golden = json.loads((folder / "golden.json").read_text())
    for text, ids in [(t, tokenizer(t)["input_ids"]) for t in TEXTS] + [(None, golden["prompt_ids"])]:
        with torch.no_grad():
            states = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].double().numpy()
        yield {"text": text, "ids": ids, **vectors(states)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--only", action="append")
    a = p.parse_args()
    torch.set_num_threads(1)
    made = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}", "models": {}}
    for folder in sorted(a.models.iterdir()):
        if (folder / "hf").is_dir() and (not a.only or folder.name in a.only):
            made["models"][folder.name] = list(entries(folder))
    lines = [f"    {json.dumps(name)}: [\n" + ",\n".join("      " + json.dumps(e) for e in es) + "\n    ]" for name, es in made["models"].items()]
    a.out.write_text(f'{{\n  "made_with": {json.dumps(made["made_with"])},\n  "models": {{\n' + ",\n".join(lines) + "\n  }\n}\n")


if __name__ == "__main__":
    main()
