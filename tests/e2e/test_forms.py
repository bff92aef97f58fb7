"""Models that are a directory: served, failed with the reason, and noticed when their files change."""
import json
import os
import random
import struct

from conftest import SLOW, manifest, wait_for
from world import model, wait_status

EMBD, FF, VOCAB, HEADS, KV = 64, 128, 300, 4, 2


def write_directory(folder, files=2, **config):
    """A tiny Llama of random weights without a tokenizer; the same on every run."""
    rng = random.Random(3)
    shapes = {"model.embed_tokens.weight": (VOCAB, EMBD), "model.norm.weight": (EMBD,), "lm_head.weight": (VOCAB, EMBD)}
    for n in range(2):
        at = f"model.layers.{n}."
        shapes |= {at + "input_layernorm.weight": (EMBD,), at + "post_attention_layernorm.weight": (EMBD,)}
        shapes |= {at + f"self_attn.{x}_proj.weight": (EMBD // HEADS * KV, EMBD) for x in "kv"}
        shapes |= {at + f"self_attn.{x}_proj.weight": (EMBD, EMBD) for x in "qo"}
        shapes |= {at + "mlp.gate_proj.weight": (FF, EMBD), at + "mlp.up_proj.weight": (FF, EMBD), at + "mlp.down_proj.weight": (EMBD, FF)}
    folder.mkdir(exist_ok=True)
    names, where = list(shapes), {}
    for i in range(files):
        file, header, data = f"model-{i + 1:05}-of-{files:05}.safetensors", {}, b""
        for name in names[i::files]:
            n = 1
            for x in shapes[name]:
                n *= x
            values = struct.pack(f"<{n}f", *(rng.uniform(0.5, 1.5) if len(shapes[name]) == 1 else rng.uniform(-0.5, 0.5) for _ in range(n)))
            header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [len(data), len(data) + len(values)]}
            data += values
            where[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "hidden_size": EMBD, "intermediate_size": FF, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0} | config))
    return folder


def test_a_directory_is_served_and_takes_what_was_estimated(models, start, tmp_path):
    d = start(manifest(("dir", write_directory(tmp_path / "m")), ("tiny", models["tiny"])))
    wait_status(d, "dir", "ready")
    copy = model(d, "dir")["placement"][0]
    for was, is_ in zip(copy["estimated"], copy["measured"], strict=True):
        for part in ("weights_bytes", "kv_bytes", "scratch_bytes") if SLOW == 1 else ():  # debug builds have redzones
            assert was[part] == is_[part] > 0, (part, was, is_)
    r = d.post("/v1/completions", {"model": "dir", "prompt": [1, 2, 3], "max_tokens": 4})
    assert r.status == 400 and "tokenizer" in r.error["message"], r.body
    assert d.chat(max_tokens=2, model="tiny").status == 200


def test_a_file_of_a_directory_truncated_while_it_serves_fails_its_model_only(models, start, tmp_path):
    folder = write_directory(tmp_path / "m")
    d = start(manifest(("dir", folder), ("tiny", models["tiny"])))
    wait_status(d, "dir", "ready")
    os.truncate(folder / "model-00002-of-00002.safetensors", 5000)
    m = wait_status(d, "dir", "failed")
    assert "model-00002-of-00002.safetensors" in json.dumps(model(d, "dir")), m
    assert d.chat(max_tokens=2, model="tiny").status == 200 and d.process.poll() is None


def test_a_directory_is_looked_at_again_when_any_of_its_files_changes(models, start, tmp_path):
    folder = write_directory(tmp_path / "m", quantization_config={"quant_method": "gptq"})
    d = start(manifest(("dir", folder), ("tiny", models["tiny"])))
    assert model(d, "dir")["status"] == "failed" and "quantization_config (gptq)" in json.dumps(model(d, "dir"))
    os.unlink(folder / "model-00001-of-00002.safetensors")
    (folder / "config.json").unlink()
    write_directory(folder)
    wait_status(d, "dir", "ready", 15)
    wait_for(lambda: d.chat(max_tokens=2, model="tiny").status == 200, 5)
