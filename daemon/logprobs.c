/* Log-probabilities as JSON: see logprobs.h.
 *
 * A token may be part of a character, which is no text. Chat then has its bytes in the token as \xNN, and the true ones in `bytes`, which
 * clients join; completions know no `bytes`, and mark such a token "bytes:\xNN". A control token has its name and no bytes. */
#include "daemon/logprobs.h"

#include <stdint.h>
#include <string.h>

#include "daemon/oai.h"
#include "daemon/params.h"
#include "engine/logprobs.h"
#include "engine/text.h"

enum { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, TEXT_OFFSET, CONTENT = 0, MAX_NAME_BYTES = 1 << 20 };

void pd_logprobs_init(struct pd_logprobs *l, unsigned api, const struct pn_model *m, size_t cap_bytes) {
    *l = (struct pd_logprobs){ .api = api, .m = m };
    for (int i = 0; i < PD_LOGPROB_LISTS; i++) fo_buf_init(&l->list[i], cap_bytes);
    fo_buf_init(&l->bytes, MAX_NAME_BYTES);
    fo_buf_init(&l->name, MAX_NAME_BYTES);
}

void pd_logprobs_done(struct pd_logprobs *l) {
    for (int i = 0; i < PD_LOGPROB_LISTS; i++) fo_buf_done(&l->list[i]);
    fo_buf_done(&l->bytes);
    fo_buf_done(&l->name);
}

static void put_number(struct fo_buf *out, float logprob) {
    fo_buf_printf(out, "%.9g", logprob > -9999.0F ? (double)logprob : -9999.0);
}

/* The token's name and bytes into l->name and l->bytes. */
static void read_token(struct pd_logprobs *l, int32_t id) {
    fo_buf_clear(&l->bytes);
    fo_buf_clear(&l->name);
    bool text = pn_text_token(l->m, id, &l->bytes, &l->name);
    if (text || l->api != PD_API_TEXT) return;
    fo_buf_clear(&l->name); /* once more behind the mark: few tokens are no text */
    fo_buf_puts(&l->name, "bytes:");
    pn_text_token(l->m, id, &l->bytes, &l->name);
}

/* --- chat --- */
/* "token":...,"logprob":...,"bytes":[...] */
static void put_members(struct pd_logprobs *l, const struct pn_logprob *p, struct fo_buf *out) {
    read_token(l, p->id);
    fo_buf_puts(out, "\"token\":");
    pd_json_text(out, fo_buf_str(&l->name), l->name.len);
    fo_buf_puts(out, ",\"logprob\":");
    put_number(out, p->logprob);
    fo_buf_puts(out, ",\"bytes\":");
    for (size_t i = 0; i < l->bytes.len; i++) fo_buf_printf(out, "%c%u", i ? ',' : '[', (unsigned char)l->bytes.data[i]);
    fo_buf_puts(out, l->bytes.len ? "]" : l->api == PD_API_CHAT ? "null" : "[]"); /* each as its clients' types want it */
    if (l->name.failed || l->bytes.failed) out->failed = true;
}

static void add_chat(struct pd_logprobs *l, const struct pn_logprobs *p) {
    struct fo_buf *out = &l->list[CONTENT];
    fo_buf_puts(out, l->n ? ",{" : "{");
    put_members(l, &p->token, out);
    fo_buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < p->n_top; i++) {
        fo_buf_puts(out, i ? ",{" : "{");
        put_members(l, &p->top[i], out);
        fo_buf_putc(out, '}');
    }
    fo_buf_puts(out, "]}");
}

/* --- completions --- */
/* The token's name as a JSON string into l->bytes. */
static void read_key(struct pd_logprobs *l, int32_t id) {
    read_token(l, id);
    bool failed = l->name.failed || l->bytes.failed;
    fo_buf_clear(&l->bytes);
    pd_json_text(&l->bytes, fo_buf_str(&l->name), l->name.len);
    if (failed) l->bytes.failed = true;
}

static void put_key(struct pd_logprobs *l, struct fo_buf *out) {
    if (l->bytes.failed) out->failed = true;
    fo_buf_append(out, fo_buf_str(&l->bytes), l->bytes.len);
}

/* The keys of one object so far, as they stand in the list. */
struct keys {
    size_t at[PN_MAX_TOP_LOGPROBS + 1], len[PN_MAX_TOP_LOGPROBS + 1];
    uint32_t n;
};

static void put_pair(struct pd_logprobs *l, const struct pn_logprob *p, struct keys *k, struct fo_buf *out) {
    read_key(l, p->id);
    if (l->bytes.failed) out->failed = true;
    if (out->failed) return;
    for (uint32_t i = 0; i < k->n; i++)
        if (k->len[i] == l->bytes.len && memcmp(out->data + k->at[i], fo_buf_str(&l->bytes), l->bytes.len) == 0) return;
    if (k->n) fo_buf_putc(out, ',');
    k->at[k->n] = out->len;
    k->len[k->n++] = l->bytes.len;
    put_key(l, out);
    fo_buf_putc(out, ':');
    put_number(out, p->logprob);
}

static void add_text(struct pd_logprobs *l, const struct pn_logprobs *p) {
    for (int i = 0; l->n && i < PD_LOGPROB_LISTS; i++) fo_buf_putc(&l->list[i], ',');
    read_key(l, p->token.id);
    put_key(l, &l->list[TOKENS]);
    put_number(&l->list[TOKEN_LOGPROBS], p->token.logprob);
    fo_buf_printf(&l->list[TEXT_OFFSET], "%llu", (unsigned long long)p->text_at);
    struct fo_buf *out = &l->list[TOP_LOGPROBS];
    struct keys keys = { .n = 0 };
    bool chosen = false;
    fo_buf_putc(out, '{');
    for (uint32_t i = 0; i < p->n_top; i++) {
        put_pair(l, &p->top[i], &keys, out);
        chosen |= p->top[i].id == p->token.id;
    }
    if (!chosen) put_pair(l, &p->token, &keys, out);
    fo_buf_putc(out, '}');
}

/* --- both --- */
void pd_logprobs_add(struct pd_logprobs *l, const struct pn_logprobs *p) {
    if (!l->m) return;
    if (l->api == PD_API_TEXT) add_text(l, p);
    else add_chat(l, p);
    l->n++;
}

static void move(struct pd_logprobs *l, int list, const char *before, const char *behind, struct fo_buf *out) {
    if (l->list[list].failed) out->failed = true;
    fo_buf_puts(out, before);
    fo_buf_append(out, fo_buf_str(&l->list[list]), l->list[list].len);
    fo_buf_puts(out, behind);
    fo_buf_clear(&l->list[list]);
}

void pd_logprobs_join(struct pd_logprobs *l, struct fo_buf *members) {
    if (l->n) move(l, CONTENT, members->len ? "," : "", "", members);
    l->n = 0;
}

void pd_logprobs_take(struct pd_logprobs *l, struct fo_buf *out) {
    l->n = 0;
    if (!l->m) {
        fo_buf_puts(out, l->api == PD_API_RESPONSES ? "[]" : "null");
    } else if (l->api == PD_API_RESPONSES) {
        move(l, CONTENT, "[", "]", out);
    } else if (l->api == PD_API_CHAT) {
        move(l, CONTENT, "{\"content\":[", "],\"refusal\":null}", out);
    } else {
        move(l, TOKENS, "{\"tokens\":[", "]", out);
        move(l, TOKEN_LOGPROBS, ",\"token_logprobs\":[", "]", out);
        move(l, TOP_LOGPROBS, ",\"top_logprobs\":[", "]", out);
        move(l, TEXT_OFFSET, ",\"text_offset\":[", "]}", out);
    }
}
