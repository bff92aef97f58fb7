/* pantheon.h: language models in your own program. The same engine that pantheond serves, without the server.
 *
 * Link with libpantheon.a -ljansson -lm -lpthread -ldl. A whole program is examples/embed.c.
 *
 * Three things, each opaque, each freed by the function named beside it:
 *   struct pn_llm      a loaded model with one worker thread that computes      pn_llm_load      -> pn_llm_unload
 *   struct pn_session  a conversation: its computed prefix is kept for reuse    pn_session_open  -> pn_session_close
 *   struct pn_gen      one answer being generated, to be pulled piece by piece  pn_gen_start     -> pn_gen_free
 *
 * Threads. Every function may be called from any thread, and one llm may be used by many at once: requests wait in a bounded queue,
 * and up to max_concurrent of them are computed together. One session or one gen is used by one thread at a time, except that
 * pn_gen_cancel may come from any. Callbacks run on the thread that called pn_generate. The library starts its worker and compute
 * threads at load and joins them at unload; they take no signals. It installs a handler for SIGBUS with the first mapped file (so that
 * a model file truncated by somebody fails the model and not your process) and passes on every fault that is not its own. It never
 * prints, never exits, and keeps no other process-wide state.
 *
 * Ownership. What you pass in is copied before a function returns and stays yours. What comes back through `ret` is yours to free as
 * its comment says. Texts in a chunk belong to the gen and live until the next call on it. All free functions take NULL.
 *
 * Errors. A function that can fail returns PN_OK (0) or a code, sets *e (which must not be NULL and lives on your stack: nothing in it
 * has to be freed), and leaves its outputs as they were. Messages are single lines of UTF-8 meant for people; programs look at the
 * code and at need and have.
 *
 * Options. Call pn_llm_options_init and pn_gen_options_init before setting fields: later versions add fields with safe defaults. */
#ifndef PANTHEON_H
#define PANTHEON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- errors ---------------------------------------------------------------------------------- */
enum pn_error_code {
    PN_OK = 0,
    PN_ERR_INVALID,     /* an argument makes no sense; the message names it */
    PN_ERR_FORMAT,      /* a file or text breaks its format */
    PN_ERR_UNSUPPORTED, /* well-formed, but this build cannot serve it */
    PN_ERR_NOT_FOUND,   /* no such file */
    PN_ERR_ACCESS,      /* permission denied */
    PN_ERR_IO,          /* the operating system failed a read */
    PN_ERR_NO_MEMORY,   /* memory ran out; need and have are bytes or pages where known */
    PN_ERR_LIMIT,       /* a stated limit was passed */
    PN_ERR_BUDGET,      /* prompt and answer do not fit ctx_cap: need = tokens asked, have = the cap */
    PN_ERR_BUSY,        /* the queue is full: try again later */
    PN_ERR_UNAVAILABLE, /* the model was unloaded, or it failed before */
    PN_ERR_CANCELLED,   /* pn_gen_cancel was called */
    PN_ERR_TIMEOUT,     /* waited longer than queue_timeout_ms for its turn */
    PN_ERR_LOST,        /* the model's file changed under it, or the device failed */
    PN_ERR_INTERNAL     /* a bug of the library */
};

struct pn_error {
    enum pn_error_code code;
    uint64_t need, have; /* 0 and 0 = none */
    char message[384];
};

/* --- the library ----------------------------------------------------------------------------- */
const char *pn_version(void); /* "0.1.0"; static */
const char *pn_build(void);   /* the commit it was built from, or "unknown"; static */

/* --- models ---------------------------------------------------------------------------------- */
struct pn_llm;

struct pn_llm_options {
    uint32_t ctx_cap;            /* most tokens of prompt and answer together; 0 = the trained length, at most 8192 */
    uint32_t max_sessions;       /* conversations whose prefix is held at once; memory grows with it; 0 = 1 */
    uint32_t max_concurrent;     /* answers computed together, at most max_sessions; 0 = 1 */
    uint32_t max_batch;          /* most tokens in one step: prompts come in such chunks; 0 = 256 */
    uint32_t queue_depth;        /* requests that may wait for their turn; 0 = 8 */
    uint32_t queue_timeout_ms;   /* longest wait for a turn; 0 = 120,000 */
    int threads;                 /* compute threads; 0 = all that affinity and cgroup quota allow */
    bool exact;                  /* reference arithmetic: slow, and the same bits on every machine */
    bool no_mmap;                /* read the file into memory instead of mapping it */
    const char *chat_template;   /* Jinja text to use instead of the file's own; NULL = the file's */
};
/* Fills in the defaults (all zero but for what a later version may add). */
void pn_llm_options_init(struct pn_llm_options *o);

/* Loads a model: a GGUF file (of several any one), or a directory with safetensors; blocks for as long as that takes. `options` NULL =
 * defaults. PN_ERR_NOT_FOUND, PN_ERR_FORMAT (names the field or tensor and its offset), PN_ERR_UNSUPPORTED (names the architecture or type),
 * PN_ERR_NO_MEMORY (need, have, and the part: weights, kv or compute). Free with pn_llm_unload. */
int pn_llm_load(const char *path, const struct pn_llm_options *options, struct pn_llm **ret, struct pn_error *e);

/* Ends every running and waiting answer with PN_ERR_UNAVAILABLE, joins the worker, and gives the llm back. Sessions and gens that still
 * exist stay valid handles (their calls fail with PN_ERR_UNAVAILABLE) and must still be closed and freed; the model's memory goes with
 * the last of them. Blocks until the step being computed is over. No other call on the llm itself may run at the same time. */
void pn_llm_unload(struct pn_llm *m);

struct pn_llm_info {
    const char *architecture, *name; /* as the file says, "" when it does not; live as long as the llm */
    const char *weight_type;         /* the commonest: "Q4_1" */
    uint64_t parameters, file_bytes, weight_bytes, kv_bytes, scratch_bytes;
    uint32_t vocabulary, ctx_trained, ctx_cap, max_sessions, max_concurrent;
    bool has_tokenizer;              /* false: only token ids go in and come out */
    uint32_t embedding_length;       /* numbers of an embedding */
    const char *pooling;             /* how one is made of a text's tokens: "mean", "cls", "last"; "none", "rank": this model has none */
};
void pn_llm_info(const struct pn_llm *m, struct pn_llm_info *ret);

/* Text to token ids. `special`: control tokens such as <|im_end|> are recognised in the text (leave it false for text from users).
 * `add`: BOS and EOS are added where the model's file asks for it. *ret_ids is freed with free(). PN_ERR_UNSUPPORTED without a
 * tokenizer. */
int pn_llm_tokenize(const struct pn_llm *m, const char *text, size_t len, bool special, bool add, int32_t **ret_ids, size_t *ret_n,
                    struct pn_error *e);

/* Token ids to text, NUL-terminated, freed with free(); bytes as the tokens have them, which may end inside a character. `special`:
 * control tokens give their text, otherwise nothing. PN_ERR_INVALID names the first id out of range. */
int pn_llm_detokenize(const struct pn_llm *m, const int32_t *ids, size_t n, bool special, char **ret_text, size_t *ret_len,
                      struct pn_error *e);

/* --- sessions -------------------------------------------------------------------------------- */
struct pn_session;

/* A conversation. It remembers no text: each call hands over the whole prompt or all messages, and whatever prefix of it has been
 * computed by this session before is not computed again. Prefixes are kept for the max_sessions conversations used last. */
int pn_session_open(struct pn_llm *m, struct pn_session **ret, struct pn_error *e);
/* Gives up the kept prefix. Gens started from it live on until they are freed. */
void pn_session_close(struct pn_session *s);

/* Takes the next `n` bytes of a session. Non-zero ends the call with PN_ERR_CANCELLED. */
typedef int pn_write_fn(void *ctx, const void *bytes, size_t n);
/* Gives up to `n` bytes of a session: how many, 0 = there are no more, negative ends the call with PN_ERR_CANCELLED. */
typedef ptrdiff_t pn_read_fn(void *ctx, void *bytes, size_t n);

/* Writes out what the session has computed, so that it can go on elsewhere or later: with the same model file and the same settings, on any number of
 * threads. Memory stays bounded and other answers go on meanwhile; while one of this session runs, what is written is what could be gone on
 * from at that moment. ret_tokens (may be NULL) is how many tokens that is. PN_ERR_NOT_FOUND: nothing is kept; PN_ERR_BUSY: it runs and there
 * is nothing yet; PN_ERR_NO_MEMORY: it gave way to other answers; PN_ERR_UNAVAILABLE, PN_ERR_LOST, PN_ERR_CANCELLED. */
int pn_session_save(struct pn_session *s, pn_write_fn *write, void *ctx, uint32_t *ret_tokens, struct pn_error *e);
/* Reads it back into a session, of which the next prompt that begins with the same tokens computes only what is new: ret_tokens (may be NULL) of them are there,
 * never 0. Bytes from anywhere may be given: PN_ERR_FORMAT when they were cut or altered, PN_ERR_UNSUPPORTED when they go with something else (the message
 * names what differs: weights, chat_template, kv.k, ctx_cap and the like). PN_ERR_NO_MEMORY (need and have), PN_ERR_UNAVAILABLE, PN_ERR_LOST,
 * PN_ERR_CANCELLED. On failure the session is what it was. */
int pn_session_restore(struct pn_session *s, pn_read_fn *read, void *ctx, uint32_t *ret_tokens, struct pn_error *e);
/* The same to and from a file, which appears under its name when it is whole. Besides: PN_ERR_NOT_FOUND, PN_ERR_ACCESS, PN_ERR_IO. */
int pn_session_save_file(struct pn_session *s, const char *path, uint32_t *ret_tokens, struct pn_error *e);
int pn_session_restore_file(struct pn_session *s, const char *path, uint32_t *ret_tokens, struct pn_error *e);

/* --- answers --------------------------------------------------------------------------------- */
struct pn_gen_options {
    /* What to answer: exactly one of these three. */
    const char *prompt;        /* plain text, continued as it stands (BOS as the file asks, no template, no control tokens in it) */
    const char *messages_json; /* a JSON array [{"role":"user","content":"..."}, ...] put through the model's chat template */
    const int32_t *tokens;     /* [n_tokens] ids */
    size_t n_tokens;

    const char *tools_json;    /* with messages_json: a JSON array of tools for the template, or NULL */
    uint32_t max_tokens;       /* 0 = as many as fit ctx_cap */
    const char *const *stop;   /* [n_stop] at most 16 texts of at most 256 bytes that end the answer and are not part of it */
    int n_stop;
    bool ignore_end;           /* go on after the model's end token, up to max_tokens */

    float temperature;         /* 0 = always the likeliest token; default 1 */
    int32_t top_k;             /* 0 = off (default) */
    float top_p;               /* 1 = off (default) */
    float min_p;               /* 0 = off (default) */
    float repeat_penalty;      /* 1 = off (default) */
    int32_t repeat_last_n;     /* tokens it looks back on; -1 = all; default 64 */
    float presence_penalty, frequency_penalty; /* 0 = off (default), -2 .. 2 */
    uint64_t seed;             /* the same seed, prompt and model give the same answer; default 0 */
};
void pn_gen_options_init(struct pn_gen_options *o);

/* Why an answer ended. */
enum pn_end {
    PN_END_STOP,     /* the model's end token, or a stop text */
    PN_END_LENGTH,   /* max_tokens, or the cap */
    PN_END_CANCELLED /* the callback said so */
};

struct pn_result {
    enum pn_end end;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;     /* the part of the prompt that was not computed again */
    uint32_t completion_tokens; /* generated, the end token included; a cancelled answer may have a few more than were heard */
    double queue_ms, prefill_ms, decode_ms;
};

/* Called with each piece of text as it comes: whole UTF-8 characters, NUL-terminated, perhaps empty. `token` is its id, or -1 for text
 * that was held back before (an incomplete character, or what might have become a stop text). Non-zero ends the answer there. It may
 * call other functions of this library, pn_llm_unload excepted. */
typedef int pn_text_fn(void *ctx, const char *text, size_t len, int32_t token);

/* Generates one answer and returns when it is over. `fn` may be NULL (the numbers alone), `ret` too. PN_ERR_BUDGET, PN_ERR_BUSY and
 * PN_ERR_INVALID come before any text; PN_ERR_INVALID also carries the text of a template's raise_exception; what does
 * not fit in `message` is cut there, and ends in "...". */
int pn_generate(struct pn_session *s, const struct pn_gen_options *o, pn_text_fn *fn, void *ctx, struct pn_result *ret, struct pn_error *e);

/* The same, pulled. Starts (queues) an answer and returns at once; errors as pn_generate's. Free with pn_gen_free. A gen that nobody
 * pulls pauses when its buffer is full and keeps its place among max_concurrent; the others go on. */
struct pn_gen;
int pn_gen_start(struct pn_session *s, const struct pn_gen_options *o, struct pn_gen **ret, struct pn_error *e);

enum pn_chunk_kind {
    PN_CHUNK_NONE, /* nothing came within the time given: ask again */
    PN_CHUNK_TEXT, /* text, len and token are set, as for pn_text_fn */
    PN_CHUNK_END   /* the answer is over: result is set. Every further call gives this again */
};
struct pn_chunk {
    enum pn_chunk_kind kind;
    const char *text; /* "" unless PN_CHUNK_TEXT; lives until the next call on the gen */
    size_t len;
    int32_t token;
    struct pn_result result;
};
/* Waits at most timeout_ms (0 = not at all) for the next piece. An error (PN_ERR_CANCELLED, PN_ERR_TIMEOUT, PN_ERR_LOST,
 * PN_ERR_UNAVAILABLE, PN_ERR_NO_MEMORY) is the end too and comes again on every further call. */
int pn_gen_next(struct pn_gen *g, int timeout_ms, struct pn_chunk *ret, struct pn_error *e);

/* Asks for an early end: waiting it never starts, running it stops before its next step. Any thread, any number of times. The end comes
 * through pn_gen_next as PN_ERR_CANCELLED. */
void pn_gen_cancel(struct pn_gen *g);

/* Cancels if need be and gives the gen back, without waiting. */
void pn_gen_free(struct pn_gen *g);

/* --- embeddings ------------------------------------------------------------------------------ */
/* The vector of a text, for comparing texts: ret[0 .. n) gets n = info.embedding_length numbers whose squares sum up to 1, so that the dot
 * product of two vectors is the cosine between them. Texts get BOS and EOS where the model's file asks for them, and no control tokens
 * otherwise; tokens are taken as they are. The same text gives the same vector, whatever else is computed beside it. Waits in the queue like
 * an answer, blocks until it is done, and generates nothing; pn_llm_unload ends it. ret_tokens (may be NULL) is how many tokens there were.
 * PN_ERR_INVALID (n, no token at all, an id that is out of range), PN_ERR_UNSUPPORTED (no tokenizer, or a pooling that makes no
 * vector), PN_ERR_BUDGET (over ctx_cap), PN_ERR_BUSY, PN_ERR_TIMEOUT, PN_ERR_UNAVAILABLE, PN_ERR_IO (the model computes no
 * numbers), PN_ERR_LOST, PN_ERR_NO_MEMORY. */
int pn_llm_embed(struct pn_llm *m, const char *text, size_t len, float *ret, size_t n, uint32_t *ret_tokens, struct pn_error *e);
int pn_llm_embed_tokens(struct pn_llm *m, const int32_t *tokens, size_t n_tokens, float *ret, size_t n, struct pn_error *e);

#ifdef __cplusplus
}
#endif
#endif
