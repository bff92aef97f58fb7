/* The hyperparameters that decoder families share, read from GGUF keys and checked: what a family's probe begins with. */
#pragma once
#include "engine/family.h"

struct fo_err;
struct fo_gguf;

/* Reads "<arch>.block_count" and the rest. FO_EFORMAT names a key that is missing or out of its bounds; FO_EUNSUPPORTED one that asks
 * for something that is computed nowhere in this build. */
int pn_hparams_probe(const struct fo_gguf *g, const char *arch, struct pn_hparams *ret, struct fo_err *e);
