/* A model as HuggingFace's tools save it: a directory with config.json, model.safetensors (or model.safetensors.index.json and the files that
 * it names) and the tokenizer's files. Opened by fo_model_open. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_err;
struct fo_gguf;

/* What fo_model_open does of a directory. Matrices stay where the files are mapped. A tokenizer that is missing or cannot be served is no failure:
 * tokenizer.pantheon.error says why. */
int fo_hf_open(const char *dir, struct fo_gguf **ret, struct fo_err *e);

/* What GGUF calls a tensor of transformers' decoders: "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight". A name that is none of
 * theirs stays as it is, to be refused by the family that does not know it. False: a buffer that old files carry and nothing needs. */
bool fo_hf_tensor_name(const char *name, char *out, size_t size);
