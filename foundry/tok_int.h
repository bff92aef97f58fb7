/* What the tokenizer's files share; nobody else includes this. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "foundry/tok.h"

struct fo_pre;

/* Token types as GGUF numbers them. */
enum { FO_TT_UNDEFINED, FO_TT_NORMAL, FO_TT_UNKNOWN, FO_TT_CONTROL, FO_TT_USER, FO_TT_UNUSED, FO_TT_BYTE };

enum { FO_TOK_FIRSTS = 256 * 256, FO_TOK_CHARS = 1 << 16 }; /* pairs of bytes; characters of three bytes */

enum { FO_TF_END = 1, FO_TF_RSTRIP = 2, FO_TF_LSTRIP = 4 }; /* STRIP: swallows the white space on that side */

/* When SPM puts a space in front of a piece of text. */
enum { FO_PREFIX_NONE, FO_PREFIX_ALL, FO_PREFIX_MISSING, FO_PREFIX_FIRST }; /* MISSING: where it starts with none; FIRST: so, at the start */


struct fo_tok_entry {
    const char *s; /* in the map */
    uint32_t len;
    uint16_t n_sym; /* with merges: bytes of text it stands for, 0 = more than a merge may make */
    uint8_t type;
    uint8_t flags;
};

/* Text to ids by hash: slots hold id + 1, 0 = free. */
struct fo_tok_hash {
    uint32_t *slots;
    size_t mask;
};

/* A merge: the pair of ids, its place in the list (less = earlier), what it makes. */
struct fo_tok_pair {
    uint32_t a, b; /* a = UINT32_MAX: free slot */
    uint32_t rank, id;
};

/* Text that was changed before it was encoded: kept to the end of the call, since words seen earlier are compared with it. */
struct fo_tok_copy {
    struct fo_tok_copy *next;
    char *s;
};

struct fo_tok_first {
    uint32_t rank, id; /* rank = UINT32_MAX: they do not merge */
};

/* Growing output of one call, with everything the algorithms need to work on. */
struct fo_tok_work {
    int32_t *ids;
    size_t n, size, max; /* max 0 = no limit */
    struct fo_err *e;
    const struct fo_tok *t;
    struct fo_tok_seen *seen; /* words of this call and what they became; NULL = text too short to pay */
    size_t seen_mask;
    struct fo_merge_sym *sym; /* [word_size] for words too long for the stack, see tok_merge.h */
    size_t word_size;
    struct fo_merge_queue *queue;
    struct fo_merge_seen *windows; /* of long words, see tok_merge.h */
    struct fo_tok_copy *copies;
    bool first;       /* the piece being encoded is the start of the input */
    char *text;       /* SPM: the text with its spaces normalised */
    size_t text_len;
    size_t text_size; /* the whole input and one byte: what `text` is to hold at most */
};

/* One algorithm. */
struct fo_tok_algo {
    const char *model; /* tokenizer.ggml.model */
    int (*open)(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e);
    /* Appends the ids of a piece of text that holds no special token: a whole input, or what lies around special tokens. n >= 1. */
    int (*encode)(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n);
    /* Calls put for each byte of a normal token as it stands in running text. */
    void (*piece)(const struct fo_tok_entry *en, void (*put)(void *ctx, uint8_t byte), void *ctx);
    int32_t bos, eos; /* where the metadata names none; -1 = none */
    bool add_bos;
};
extern const struct fo_tok_algo fo_tok_bpe, fo_tok_spm;

struct fo_tok {
    const struct fo_tok_algo *algo;
    struct fo_tok_entry *entry; /* [n] */
    uint32_t n;
    uint64_t seed; /* of every hash, so that a file cannot choose its collisions */
    struct fo_tok_hash by_text;
    int32_t bos, eos, unk;
    bool add_bos, add_eos;
    int32_t byte_id[256]; /* the token of a single byte, -1 = none */
    bool lossy;           /* invalid UTF-8 becomes U+FFFD, since some byte has no token */
    size_t max_len;       /* most bytes of text that one token stands for */
    size_t n_ranks;       /* ranks of merges are below this */
    uint32_t *special;    /* [n_special] control and user-defined tokens, sorted by text */
    uint32_t n_special;
    uint32_t special_at[257]; /* by first byte: where its tokens start in `special` */
    struct fo_tok_pair *pair; /* [pair_mask + 1] the merges; NULL = none */
    size_t pair_mask;
    uint64_t *pair_bits; /* [pair_bits_mask + 1] a bit for the hash of each pair: most pairs make nothing, and this says so first */
    size_t pair_bits_mask;
    /* byte-level BPE */
    struct fo_pre *pre;
    uint16_t byte_char[256];    /* fo_tok_byte_char */
    struct fo_tok_first *first; /* [FO_TOK_FIRSTS] the merges of two bytes */
    uint32_t *chars;            /* [FO_TOK_CHARS] by the 16 bits of a character of three bytes: its token, where merging may start from it
                                   (tok_chars.c), else UINT32_MAX */
    bool whole_words;
    bool nfc;    /* text is brought to Unicode form C first */
    bool spaced; /* every piece starts with a space */
    /* SPM */
    char *plain;            /* the tokens' texts with U+2581 as a space, one after the other */
    size_t plain_bytes;     /* of heap */
    uint32_t *plain_at;     /* [n + 1] */
    uint32_t *rank;         /* [n] order of the scores: less = merged earlier */
    struct fo_tok_hash by_plain;
    uint8_t space_prefix; /* FO_PREFIX_* */
    bool split_spaces;    /* nothing merges across the front of a space */
    bool words; /* no token has a space behind another character: words can be merged one by one */
};

/* A well-mixed hash of bytes: 64 x 64 -> 128 bit multiplications, folded. */
static inline uint64_t fo_tok_mix(uint64_t a, uint64_t b) {
    unsigned __int128 m = (unsigned __int128)(a ^ UINT64_C(0x9E3779B97F4A7C15)) * (b ^ UINT64_C(0xD6E8FEB86659FD93));
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t fo_tok_hash_bytes(uint64_t seed, const char *s, size_t n) {
    uint64_t h = seed ^ n, v;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&v, s, 8);
        h = fo_tok_mix(h, v);
    }
    v = 0;
    if (n & 4) {
        uint32_t x;
        memcpy(&x, s, 4);
        v = x;
        s += 4;
    }
    if (n & 2) {
        uint16_t x;
        memcpy(&x, s, 2);
        v = v << 16 | x;
        s += 2;
    }
    if (n & 1) v = v << 8 | (uint8_t)*s;
    return fo_tok_mix(h, v ^ seed);
}

static inline bool fo_tok_is_special_type(uint8_t type) {
    return type == FO_TT_CONTROL || type == FO_TT_UNKNOWN;
}

/* Whether text may become this token by merging. */
static inline bool fo_tok_is_mergeable(const struct fo_tok_entry *en) {
    return en->type == FO_TT_NORMAL || en->type == FO_TT_UNDEFINED || en->type == FO_TT_USER;
}

/* An empty hash for n entries. FO_ENOMEM. */
int fo_tok_hash_new(struct fo_tok_hash *h, size_t n, struct fo_err *e);

/* Appends an id: FO_ELIMIT past w->max, FO_ENOMEM. */
int fo_tok_push_slow(struct fo_tok_work *w, int32_t id);
static inline int fo_tok_push(struct fo_tok_work *w, int32_t id) {
    if (w->n >= w->size) return fo_tok_push_slow(w, id);
    w->ids[w->n++] = id;
    return 0;
}

/* A word that was encoded earlier in this call: its text is still there, and so are its ids. */
struct fo_tok_seen {
    const char *s;
    uint32_t len, n;
    size_t at; /* in w->ids */
};

/* The ids of a word seen before are appended: true in *ret_done. Else *ret_slot is where to note it (NULL = nowhere). */
int fo_tok_seen_find(struct fo_tok_work *w, const char *s, size_t n, struct fo_tok_seen **ret_slot, bool *ret_done);

static inline struct fo_tok_pair *fo_tok_pair_slot(const struct fo_tok *t, uint64_t hash, uint32_t a, uint32_t b) {
    for (size_t i = hash & t->pair_mask;; i = (i + 1) & t->pair_mask) {
        struct fo_tok_pair *p = &t->pair[i];
        if ((p->a == a && p->b == b) || p->a == UINT32_MAX) return p;
    }
}

/* The merge of two neighbours: its rank, UINT32_MAX when there is none, and what it makes. */
static inline uint32_t fo_tok_pair_find(const struct fo_tok *t, uint32_t a, uint32_t b, uint32_t *ret_made) {
    uint64_t hash = fo_tok_mix((uint64_t)a << 32 | b, t->seed), bit = hash >> 32;
    if (!(t->pair_bits[(bit >> 6) & t->pair_bits_mask] >> (bit & 63) & 1)) return UINT32_MAX;
    const struct fo_tok_pair *p = fo_tok_pair_slot(t, hash, a, b);
    *ret_made = p->id;
    return p->rank;
}

/* Makes room for n merges; FO_ENOMEM. Adding: the first of equal pairs stays. */
int fo_tok_pairs_new(struct fo_tok *t, size_t n, struct fo_err *e);
void fo_tok_pair_add(struct fo_tok *t, uint32_t a, uint32_t b, uint32_t rank, uint32_t id);

/* Reads tokenizer.ggml.merges into t->pair, once n_sym of all entries stands. Merges that name no token, or make one that text must
 * not become, are left out: nothing could come of them. */
int fo_tok_open_merges(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e);

/* The character that stands for a byte in a byte-level vocabulary; all are below U+0144. */
uint32_t fo_tok_byte_char(unsigned byte);

/* The byte that such a character stands for, -1 = none. */
int fo_tok_char_byte(uint32_t cp);

/* Fills t->chars, once the merges stand. FO_ENOMEM. */
int fo_tok_open_chars(struct fo_tok *t, struct fo_err *e);

/* A flag that may be absent; *ret stays then. */
int fo_tok_read_flag(const struct fo_gguf *g, const char *key, bool *ret, struct fo_err *e);

/* At least this many ids must come out of n more bytes: FO_ELIMIT early, before a hostile word costs memory. */
int fo_tok_check_room(struct fo_tok_work *w, const char *s, size_t n);

/* "<0x41>" -> 0x41; -1 for any other text. */
int fo_tok_byte_name(const char *s, size_t n);
