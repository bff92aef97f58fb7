"""The models: SmolLM2 is real (scripts/get-model.sh), llama-1b has real shapes and random weights (BENCH_MODEL_TOOL, which needs numpy and
gguf: a venv in the cache folder). Made once, kept in the cache folder."""
import os
import pathlib
import shutil
import sys

import children
from builds import ROOT

MODELS = {  # name: None = SmolLM2, or (shape, mix, bytes the file will have)
    "SmolLM2-Q4_1": None,
    "llama-1b-Q4_K_M": ("llama-1b", "Q4_K_M", 800e6),
    "llama-1b-Q4_0": ("llama-1b", "Q4_0", 700e6),
    "llama-1b-Q8_0": ("llama-1b", "Q8_0", 1314e6),
    "llama-1b-Q6_K": ("llama-1b", "Q6_K", 1014e6),
    "llama-1b-Q5_K_M": ("llama-1b", "Q5_K_M", 904e6),
    "llama-1b-Q3_K_M": ("llama-1b", "Q3_K_M", 683e6),
}
PACKAGES = ("gguf==0.19.0", "numpy")


def python(cache, say):
    venv = cache / "venv"
    if not (venv / "bin" / "gguf-dump").exists():
        say("a venv with numpy and gguf ...")
        children.run([sys.executable, "-m", "venv", venv], 300)
        children.run([venv / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], 900)
    return venv / "bin" / "python"


def path(name, cache, say):
    """The file of a model, made when it is not there. Failed when it cannot be."""
    if MODELS[name] is None:
        children.run([ROOT / "scripts" / "get-model.sh"], 900, cwd=ROOT)
        return ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    shape, mix, size = MODELS[name]
    file = cache / f"{name}.gguf"
    if file.exists():
        return file
    tool = pathlib.Path(os.environ.get("BENCH_MODEL_TOOL") or ROOT.parent / "shared" / "tools" / "make_bench_model.py")
    if not tool.exists():
        raise children.Failed(f"{name} is not in {cache}, and there is no {tool} to make it (BENCH_MODEL_TOOL=PATH)")
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < size * 1.1:
        raise children.Failed(f"{name} takes {size / 1e6:.0f} MB and {cache} has {free / 1e6:.0f} MB free")
    say(f"making {name} ...")
    part = file.with_suffix(".part")
    try:
        children.run([python(cache, say), tool, shape, mix, part], 1800)
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)
    return file
