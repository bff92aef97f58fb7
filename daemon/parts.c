/* Parts of an answer: see parts.h. */
#include "daemon/parts.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "foundry/base/rng.h"

void pd_answer_id(char *id, size_t size, const char *prefix) {
    snprintf(id, size, "%s%016llx%08x", prefix, (unsigned long long)fo_rng_entropy(), (unsigned)fo_rng_entropy());
}

void pd_parts_init(struct pd_parts *p, size_t cap_bytes) {
    *p = (struct pd_parts){ .cap_bytes = cap_bytes };
}

void pd_parts_done(struct pd_parts *p) {
    for (size_t i = 0; i < p->n; i++) {
        fo_buf_done(&p->list[i].name);
        fo_buf_done(&p->list[i].text);
        fo_buf_done(&p->list[i].logprobs);
    }
    free(p->list);
    *p = (struct pd_parts){ .cap_bytes = p->cap_bytes };
}

bool pd_parts_begins(const struct pd_parts *p, enum pn_part kind) {
    enum pn_part of = kind == PN_PART_ARGUMENTS ? PN_PART_CALL : kind;
    return kind == PN_PART_CALL || p->n == 0 || p->list[p->n - 1].kind != of;
}

static struct pd_part *append(struct pd_parts *p, enum pn_part kind) {
    static const char *const items[] = { [PN_PART_CONTENT] = "msg_", [PN_PART_REASONING] = "rs_", [PN_PART_CALL] = "fc_" };
    if (p->n == p->size) {
        size_t size = p->size ? 2 * p->size : 4;
        struct pd_part *list = realloc(p->list, size * sizeof *list);
        if (!list) return NULL;
        p->list = list;
        p->size = size;
    }
    struct pd_part *part = &p->list[p->n++];
    *part = (struct pd_part){ .kind = kind };
    pd_answer_id(part->item, sizeof part->item, items[kind]);
    if (kind == PN_PART_CALL) pd_answer_id(part->call, sizeof part->call, "call_");
    fo_buf_init(&part->name, p->cap_bytes);
    fo_buf_init(&part->text, p->cap_bytes);
    fo_buf_init(&part->logprobs, p->cap_bytes);
    return part;
}

struct pd_part *pd_parts_add(struct pd_parts *p, enum pn_part kind, const char *text, size_t len) {
    enum pn_part of = kind == PN_PART_ARGUMENTS ? PN_PART_CALL : kind;
    struct pd_part *part = p->failed || len > p->cap_bytes - p->bytes ? NULL : pd_parts_begins(p, kind) ? append(p, of) : &p->list[p->n - 1];
    if (part) fo_buf_append(kind == PN_PART_CALL ? &part->name : &part->text, text, len);
    if (!part || part->name.failed || part->text.failed) {
        p->failed = true;
        return NULL;
    }
    p->bytes += len;
    return part;
}

size_t pd_parts_count(const struct pd_parts *p, enum pn_part kind) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) n += p->list[i].kind == kind;
    return n;
}
