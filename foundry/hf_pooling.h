/* How a HuggingFace directory says that the states of a text become one vector: the files of sentence-transformers beside config.json, in GGUF's
 * words. For hf.c. */
#pragma once

struct fo_err;
struct fo_gguf_writer;

/* Appends `<arch>.pooling_type` when the directory has modules.json or 1_Pooling/config.json: 1 the mean over the tokens, 2 the first, 3 the last; 0
 * when they ask for what is not computed (another pooling, several, a layer behind it), so that the model generates and embeds nothing. A
 * length that everything is divided by at the end does not tell mean_sqrt_len from mean. FO_EFORMAT names file and key; FO_ENOMEM. */
int fo_hf_pooling(const char *dir, const char *arch, struct fo_gguf_writer *w, struct fo_err *e);
