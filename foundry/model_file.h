/* A model on disk, whatever its form, as one description:
 *
 *     a file                              GGUF
 *     a file NAME-00001-of-00003.gguf     GGUF in shards, as llama.cpp's gguf-split writes them; any of them stands for all
 *     a directory                         safetensors, as HuggingFace's tools save a model: foundry/hf.h
 *
 * Everything behind this (binding, tokenizer, chat, inspection, estimates) sees a struct fo_gguf and cannot tell them apart. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_gguf;

/* Opens all files and checks each one wholly, so that nothing is found missing later. As fo_gguf_open; besides, FO_ENOENT names a shard
 * that is missing and FO_EFORMAT says which two files do not belong together. Close it with fo_gguf_close. */
int fo_model_open(const char *path, struct fo_gguf **ret, struct fo_err *e);

/* A number that changes when any file of the model is replaced, written to, added or removed: of names, device, inode, size and mtime. 0
 * when there is no such path. It opens no file. */
uint64_t fo_model_identity(const char *path);

/* The path's last name, without ".gguf" and without what makes it a shard's: *ret_len bytes within `path`. */
const char *fo_model_path_name(const char *path, size_t *ret_len);
