/* What a model can give back of the host's memory while it serves, and what it has taken. The model's worker only. */
#pragma once
#include <stdint.h>

struct fo_err;
struct pn_model;

/* Lets go of the page cache of its files: weights that are read where they are mapped come from the disk again when somebody asks. */
void pn_model_drop_cache(struct pn_model *m);

/* Writes a page of KV again as a small one, on all dies, and waits for it: FO_EUNSUPPORTED on one that cannot, FO_ELOST. */
int pn_model_requantise(struct pn_model *m, uint32_t from, uint32_t to, struct fo_err *e);
/* Gives the memory of up to `most` places that hold nothing back to the host, where it is the host's; returns how many. */
uint32_t pn_model_discard(struct pn_model *m, uint32_t most);

/* Places of KV that were written to since they were last given back, and those that sequences hold beside them: what is still to be touched. */
uint64_t pn_model_kv_touched(const struct pn_model *m);
uint64_t pn_model_kv_promised(const struct pn_model *m);
/* Bytes of a place on dies whose memory is the host's. */
uint64_t pn_model_kv_host_bytes(const struct pn_model *m);
