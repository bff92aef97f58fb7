/* Which type each tensor of a model gets when the whole is quantised to "Q4_K_M" and the like. A mix is a row of a table: its base type, and
 * rules that give more bits to the tensors on which quality hangs most. The choices are those that llama-quantize (llama.cpp) makes
 * without an importance matrix, tensor for tensor, so that files and their figures compare; left out are its exceptions for architectures
 * that are not served here. Pure; any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "foundry/dtype.h"

struct fo_err;
struct fo_gguf;
struct pn_mix;

/* By name, in any case ("q4_k_m"); NULL when there is none. */
const struct pn_mix *pn_mix_find(const char *name);
/* Row i of the table, NULL past its end. */
const struct pn_mix *pn_mix_at(size_t i);

const char *pn_mix_name(const struct pn_mix *m);
/* general.file_type, as llama.cpp numbers it. */
uint32_t pn_mix_file_type(const struct pn_mix *m);

/* The type of every tensor of g, in its order: ret_types[fo_gguf_n_tensors(g)]. Tensors that are not to be quantised (norms, biases, routers,
 * everything of one dimension) keep the type they have, or become F32 where
 * they come in 16 bits from a HuggingFace directory. *ret_n_fallback counts those whose rows are no multiple of the block of the type
 * chosen, so that they got one with a smaller block. FO_EFORMAT when metadata or names make no sense, FO_ENOMEM. */
int pn_mix_types(const struct pn_mix *m, const struct fo_gguf *g, enum fo_dtype *ret_types, size_t *ret_n_fallback, struct fo_err *e);
