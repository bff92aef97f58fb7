/* A model file in another type: reads every tensor, writes it in the type that a mix gives it (mix.h). Memory is bounded by a few megabytes
 * a thread and the file's metadata, whatever the model's size. Blocking; any thread; starts the compute threads it needs and joins them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_mix;

struct pn_quantize_opts {
    const struct pn_mix *mix;
    bool replace;  /* an existing file at the output's path */
    int n_threads; /* 0 = all that affinity and cgroup quota allow */
    /* Asked every few megabytes, on the calling thread: a code other than 0, with *e set, ends the work with it. NULL = never. */
    int (*go_on)(void *ctx, uint64_t done_bytes, uint64_t total_bytes, struct fo_err *e);
    void *ctx;
};

struct pn_quantize_result {
    size_t n_tensors;
    size_t n_fallback;      /* whose rows did not suit the type chosen: see pn_mix_types */
    size_t n_requantised;   /* that were quantised before, coarser than F16: what was lost then stays lost */
    uint64_t in_bytes, out_bytes; /* of all tensors */
};

/* `out` appears whole or not at all, beside what stood there until then. FO_EINVAL when it names the input, or a file and `replace` is
 * false; FO_EFORMAT names a tensor with a value that is not finite; FO_EUNSUPPORTED one of a type that cannot be read; FO_ELIMIT when the
 * file system has no room; FO_ELOST when the input changed meanwhile; what go_on said; and what fo_model_open and fo_outfile_* say. */
int pn_quantize(const char *in, const char *out, const struct pn_quantize_opts *o, struct pn_quantize_result *ret, struct fo_err *e);
