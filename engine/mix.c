/* Mixes of types: see mix.h. What is decided here, in this order, for a tensor that may be quantised at all:
 *
 *     1. the output matrix (the token table too, where it serves as the output) gets Q6_K, or Q8_0;
 *     2. else the first rule of the mix that fits the tensor's role and place in the model gives the type, or the base type stands;
 *     3. mixtures of eight experts keep the small matrices of attention better;
 *     4. a type whose block does not divide the row gives way to one with a smaller block. */
#include "engine/mix.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"

/* What a tensor is for, as far as mixes care. */
enum role { OTHER, OUTPUT, TOKENS, ATTN_V, ATTN_K, ATTN_OUT, FFN_DOWN };

/* The name's part that tells the role; the first that occurs decides. A fused qkv counts as v. */
static const struct {
    const char *part;
    bool whole; /* the name is no more than this */
    enum role role;
} roles[] = {
    { "output.weight", true, OUTPUT },
    { "token_embd.weight", true, TOKENS },
    { "per_layer_token_embd.weight", true, TOKENS },
    { "attn_qkv.weight", false, ATTN_V },
    { "attn_kv_b.weight", false, ATTN_V },
    { "attn_v.weight", false, ATTN_V },
    { "attn_k.weight", false, ATTN_K },
    { "attn_output.weight", false, ATTN_OUT },
    { "ffn_down", false, FFN_DOWN },
};

/* Parts of names of matrices that are never quantised: small, and looked up or added instead of multiplied with, or deciding what is
 * computed at all. */
static const char *const kept[] = {
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight",
    "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight", "position_embd", "token_types.weight", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd",
};

/* Where in the model a rule holds: i counts the tensors of the role from the front, of n. */
enum where {
    END, /* of a mix's rules */
    ALWAYS,
    FIRST_2,
    FIRST_4,
    FIRST_8TH,
    FIRST_16TH,
    MORE_BITS,    /* the first and the last eighth, and every third layer between */
    SHARED_BY_4,  /* four heads or more share a head of K and V */
    EXPERTS,      /* whatever the role: the matrices of all experts in one tensor */
};

struct rule {
    enum role role;
    enum where where;
    enum fo_dtype type;
};

struct pn_mix {
    const char *name;
    uint32_t file_type;
    enum fo_dtype base;
    struct rule rules[6];
    enum fo_dtype output;    /* of the output matrix, or 0 = the base type */
    enum fo_dtype attn_out8; /* of attention's output in a mixture of eight experts, or 0 = the base type; no rule counts there */
};

/* clang-format off */
static const struct pn_mix mixes[] = {
    { "F32",        0, FO_F32,    { { 0 } }, 0, 0 },
    { "F16",        1, FO_F16,    { { 0 } }, 0, 0 },
    { "BF16",      32, FO_BF16,   { { 0 } }, 0, 0 },
    { "Q4_0",       2, FO_Q4_0,   { { 0 } }, FO_Q6_K, 0 },
    { "Q4_1",       3, FO_Q4_1,   { { 0 } }, FO_Q6_K, 0 },
    { "Q5_0",       8, FO_Q5_0,   { { 0 } }, FO_Q6_K, 0 },
    { "Q5_1",       9, FO_Q5_1,   { { 0 } }, FO_Q6_K, 0 },
    { "Q8_0",       7, FO_Q8_0,   { { 0 } }, FO_Q8_0, 0 },
    { "Q2_K",      10, FO_Q2_K,   { { ATTN_V, SHARED_BY_4, FO_Q4_K }, { ATTN_V, ALWAYS, FO_Q3_K }, { FFN_DOWN, ALWAYS, FO_Q3_K },
                                    { ATTN_OUT, ALWAYS, FO_Q3_K } }, FO_Q6_K, FO_Q5_K },
    { "Q2_K_S",    21, FO_Q2_K,   { { ATTN_V, SHARED_BY_4, FO_Q4_K }, { FFN_DOWN, FIRST_8TH, FO_Q4_K } }, FO_Q6_K, 0 },
    { "Q3_K_S",    11, FO_Q3_K,   { { 0 } }, FO_Q6_K, FO_Q5_K },
    { "Q3_K_M",    12, FO_Q3_K,   { { ATTN_V, FIRST_2, FO_Q5_K }, { ATTN_V, ALWAYS, FO_Q4_K }, { FFN_DOWN, FIRST_16TH, FO_Q5_K },
                                    { FFN_DOWN, ALWAYS, FO_Q4_K }, { ATTN_OUT, ALWAYS, FO_Q4_K } }, FO_Q6_K, FO_Q5_K },
    { "Q3_K_L",    13, FO_Q3_K,   { { ATTN_V, ALWAYS, FO_Q5_K }, { FFN_DOWN, ALWAYS, FO_Q5_K }, { ATTN_OUT, ALWAYS, FO_Q5_K } }, FO_Q6_K, 0 },
    { "Q4_K_S",    14, FO_Q4_K,   { { ATTN_V, FIRST_4, FO_Q5_K }, { FFN_DOWN, FIRST_8TH, FO_Q5_K } }, FO_Q6_K, FO_Q5_K },
    { "Q4_K_M",    15, FO_Q4_K,   { { ATTN_V, MORE_BITS, FO_Q6_K }, { FFN_DOWN, MORE_BITS, FO_Q6_K } }, FO_Q6_K, FO_Q5_K },
    { "Q5_K_S",    16, FO_Q5_K,   { { 0 } }, FO_Q6_K, 0 },
    { "Q5_K_M",    17, FO_Q5_K,   { { ATTN_V, MORE_BITS, FO_Q6_K }, { FFN_DOWN, MORE_BITS, FO_Q6_K } }, FO_Q6_K, 0 },
    { "Q6_K",      18, FO_Q6_K,   { { 0 } }, FO_Q6_K, 0 },
    { "IQ4_NL",    25, FO_IQ4_NL, { { ATTN_V, SHARED_BY_4, FO_Q5_K }, { FFN_DOWN, FIRST_8TH, FO_Q5_K } }, FO_Q6_K, FO_Q5_K },
    { "IQ4_XS",    30, FO_IQ4_XS, { { ATTN_V, SHARED_BY_4, FO_Q5_K }, { FFN_DOWN, FIRST_8TH, FO_Q5_K } }, FO_Q6_K, FO_Q5_K },
    { "TQ1_0",     36, FO_TQ1_0,  { { TOKENS, ALWAYS, FO_Q4_K } }, FO_Q6_K, 0 },
    { "TQ2_0",     37, FO_TQ2_0,  { { TOKENS, ALWAYS, FO_Q4_K } }, FO_Q6_K, 0 },
    { "MXFP4",     38, FO_MXFP4,  { { 0 } }, FO_Q6_K, 0 },
    { "MXFP4_MOE", 38, FO_Q8_0,   { { OTHER, EXPERTS, FO_MXFP4 } }, FO_Q8_0, 0 },
    { "NVFP4",     39, FO_NVFP4,  { { 0 } }, FO_Q6_K, 0 },
};
/* clang-format on */

/* What people write for the middle one. */
static const struct {
    const char *name, *mix;
} aliases[] = { { "Q3_K", "Q3_K_M" }, { "Q4_K", "Q4_K_M" }, { "Q5_K", "Q5_K_M" } };

/* For rows that are no multiple of a type's block. */
static const struct {
    enum fo_dtype type, instead;
} fallbacks[] = {
    { FO_Q2_K, FO_Q4_0 }, { FO_Q3_K, FO_Q4_0 }, { FO_TQ1_0, FO_Q4_0 },    { FO_TQ2_0, FO_Q4_0 },
    { FO_Q4_K, FO_Q5_0 }, { FO_Q5_K, FO_Q5_1 }, { FO_IQ4_XS, FO_IQ4_NL }, { FO_Q6_K, FO_Q8_0 },
    { FO_NVFP4, FO_MXFP4 },
};

/* Models so large that eight heads share one of V: it is worth more bits. */
static const struct {
    const char *arch;
    uint32_t n_layer;
    bool shared; /* only with fewer heads of K and V than of Q */
} largest[] = { { "llama", 80, true }, { "qwen2", 80, false } };

enum { MAX_LAYERS = 1 << 20 }; /* that rules count with */

#define COUNT(a) (sizeof(a) / sizeof *(a))

const struct pn_mix *pn_mix_at(size_t i) {
    return i < COUNT(mixes) ? &mixes[i] : NULL;
}

const struct pn_mix *pn_mix_find(const char *name) {
    for (size_t i = 0; i < COUNT(aliases); i++)
        if (strcasecmp(name, aliases[i].name) == 0) name = aliases[i].mix;
    for (size_t i = 0; i < COUNT(mixes); i++)
        if (strcasecmp(name, mixes[i].name) == 0) return &mixes[i];
    return NULL;
}

const char *pn_mix_name(const struct pn_mix *m) {
    return m->name;
}

uint32_t pn_mix_file_type(const struct pn_mix *m) {
    return m->file_type;
}

/* --- names ---------------------------------------------------------------------------------------------------------------- */

static bool contains(struct fo_str name, const char *part) {
    return memmem(name.s, name.len, part, strlen(part)) != NULL;
}

static bool ends(struct fo_str name, const char *part) {
    size_t n = strlen(part);
    return name.len >= n && memcmp(name.s + name.len - n, part, n) == 0;
}

static enum role role_of(struct fo_str name) {
    for (size_t i = 0; i < COUNT(roles); i++)
        if (contains(name, roles[i].part) && (!roles[i].whole || name.len == strlen(roles[i].part))) return roles[i].role;
    return OTHER;
}

/* N of "blk.N.", -1 for names that are not so. */
static int layer_of(struct fo_str name) {
    int layer = 0;
    size_t i = 4;
    if (name.len < 6 || memcmp(name.s, "blk.", 4) != 0) return -1;
    for (; i < name.len && name.s[i] >= '0' && name.s[i] <= '9' && layer < 1000000; i++) layer = 10 * layer + (name.s[i] - '0');
    return i > 4 && i < name.len && name.s[i] == '.' ? layer : -1;
}

static bool may_quantise(const struct fo_gguf_tensor *t) {
    if (t->t.ne[1] == 1 && t->t.ne[2] == 1 && t->t.ne[3] == 1) return false;
    if (!ends(t->name, "weight")) return false;
    for (size_t i = 0; i < COUNT(kept); i++)
        if (contains(t->name, kept[i])) return false;
    return true;
}

/* --- a model ---------------------------------------------------------------------------------------------------------------- */

struct model {
    uint32_t n_layer, n_expert, n_gqa;
    int n_attn_v; /* tensors of that role */
    bool tied, largest;
};

/* "<arch>.<suffix>" as a number, the first where it is an array; 0 when it is not there or makes no sense: mixes are no judge of files. */
static uint32_t number(const struct fo_gguf *g, struct fo_str arch, const char *suffix) {
    char key[128];
    snprintf(key, sizeof key, "%.*s.%s", (int)(arch.len < 64 ? arch.len : 64), arch.s, suffix);
    const struct fo_gguf_kv *kv = fo_gguf_find(g, key);
    int64_t v = kv ? fo_gguf_array_i64(kv, 0) : 0;
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static int look(const struct fo_gguf *g, struct model *m, struct fo_err *e) {
    struct fo_str arch;
    if (fo_gguf_get_str(g, "general.architecture", &arch, e)) return (int)e->code;
    uint32_t n_head = number(g, arch, "attention.head_count"), n_head_kv = number(g, arch, "attention.head_count_kv");
    *m = (struct model){ .n_layer = number(g, arch, "block_count"), .n_expert = number(g, arch, "expert_count"), .tied = true };
    if (!n_head_kv) n_head_kv = n_head;
    m->n_gqa = n_head_kv ? n_head / n_head_kv : 0;
    if (m->n_layer > MAX_LAYERS) m->n_layer = MAX_LAYERS;
    for (size_t i = 0; i < COUNT(largest); i++)
        if (arch.len == strlen(largest[i].arch) && memcmp(arch.s, largest[i].arch, arch.len) == 0 && m->n_layer == largest[i].n_layer)
            m->largest = !largest[i].shared || n_head != n_head_kv;
    for (size_t i = 0; i < fo_gguf_n_tensors(g); i++) {
        enum role role = role_of(fo_gguf_tensor_at(g, i)->name);
        m->n_attn_v += role == ATTN_V;
        m->tied &= role != OUTPUT;
    }
    return FO_OK;
}

/* Whether a rule holds for the i-th of n tensors of its role. */
static bool holds(enum where where, const struct model *m, int i, int n, const struct fo_gguf_tensor *t) {
    switch (where) {
    case ALWAYS: return true;
    case FIRST_2: return i < 2;
    case FIRST_4: return i < 4;
    case FIRST_8TH: return i < n / 8;
    case FIRST_16TH: return i < n / 16;
    case MORE_BITS: return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case SHARED_BY_4: return m->n_gqa >= 4;
    case EXPERTS: return t->t.ne[2] > 1;
    case END: break;
    }
    return false;
}

static enum fo_dtype choose(const struct pn_mix *mix, const struct model *m, const struct fo_gguf_tensor *t, enum role role, int i) {
    if (role == OUTPUT || (role == TOKENS && m->tied)) {
        if (t->t.ne[0] % fo_dtype_info(mix->base)->block != 0) return FO_Q8_0;
        return mix->output;
    }
    enum fo_dtype type = mix->base;
    if (role == ATTN_OUT && m->n_expert == 8) return mix->attn_out8 ? mix->attn_out8 : type;
    for (const struct rule *r = mix->rules; r->where != END; r++)
        if ((r->where == EXPERTS || r->role == role) && holds(r->where, m, i, role == ATTN_V ? m->n_attn_v : (int)m->n_layer, t)) {
            type = r->type;
            break;
        }
    if (role == ATTN_V && m->largest && (type == FO_Q3_K || type == FO_Q4_K)) type = FO_Q5_K;
    if ((role == ATTN_V || role == ATTN_K) && m->n_expert == 8) type = FO_Q8_0;
    return type;
}

static enum fo_dtype fit_rows(enum fo_dtype type, int64_t row, size_t *n_fallback) {
    if (row % fo_dtype_info(type)->block == 0) return type;
    ++*n_fallback;
    for (size_t i = 0; i < COUNT(fallbacks); i++)
        if (fallbacks[i].type == type) type = fallbacks[i].instead;
    return row % fo_dtype_info(type)->block == 0 ? type : FO_F16;
}

/* Tensors are counted layer by layer, whatever their order in the file. */
struct entry {
    struct fo_str name;
    int layer;
    size_t index;
};

static int by_layer(const void *pa, const void *pb) {
    const struct entry *a = pa, *b = pb;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    int order = memcmp(a->name.s, b->name.s, a->name.len < b->name.len ? a->name.len : b->name.len);
    return order ? order : (a->name.len > b->name.len) - (a->name.len < b->name.len);
}

int pn_mix_types(const struct pn_mix *mix, const struct fo_gguf *g, enum fo_dtype *ret_types, size_t *ret_n_fallback, struct fo_err *e) {
    struct model m = { 0 };
    size_t n = fo_gguf_n_tensors(g), n_fallback = 0;
    if (look(g, &m, e)) return (int)e->code;
    struct entry *order = calloc(n + 1, sizeof *order);
    if (!order) return (int)fo_fail(e, FO_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        struct fo_str name = fo_gguf_tensor_at(g, i)->name;
        order[i] = (struct entry){ name, layer_of(name), i };
    }
    qsort(order, n, sizeof *order, by_layer);
    int rc = FO_OK, n_attn_v = 0, n_down = 0;
    bool quantised = fo_dtype_info(mix->base)->block > 1, widen = strcmp(fo_gguf_format(g), "GGUF") != 0;
    for (size_t i = 0; i < n && !rc; i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(g, order[i].index);
        enum fo_dtype *type = &ret_types[order[i].index];
        enum role role = role_of(t->name);
        if (!may_quantise(t)) {
            *type = widen && (t->t.type == FO_F16 || t->t.type == FO_BF16) ? FO_F32 : t->t.type;
        } else if (!quantised) {
            *type = mix->base;
        } else {
            int at = role == ATTN_V ? n_attn_v++ : role == FFN_DOWN ? n_down++ : 0;
            if (role == FFN_DOWN && m.n_expert > 1) at = order[i].layer; /* one tensor an expert: a layer has many, or none */
            if (at < 0 || (role == FFN_DOWN && m.n_expert > 1 && (uint32_t)at >= m.n_layer))
                rc = (int)fo_fail(e, FO_EFORMAT, "tensor %.*s: its name has no layer below %u", (int)t->name.len, t->name.s, m.n_layer);
            else
                *type = fit_rows(choose(mix, &m, t, role, at), t->t.ne[0], &n_fallback);
        }
    }
    free(order);
    if (!rc) *ret_n_fallback = n_fallback;
    return rc;
}
