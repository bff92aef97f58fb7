/* `verified`, in the state directory: a line "IDENTITY SUM" a file, both hexadecimal, SUM being the sha256 of the declared sums' text. */
#include "daemon/verified.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/manifest.h"
#include "config/url.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/log.h"
#include "foundry/base/sha256.h"

enum { MAX_ROWS = 1024, SUM_TEXT = 2 * FO_SHA256_BYTES + 1, MAX_FILE = MAX_ROWS * (16 + 1 + SUM_TEXT) + 64 };
#define HEAD "pantheon verified 1\n"

struct pd_verified_row {
    uint64_t identity;
    char sum[SUM_TEXT];
    bool wrong;
    char error[384];
};

static void sum_of(const struct cf_model *m, char out[SUM_TEXT]) {
    struct fo_buf all;
    uint8_t d[FO_SHA256_BYTES];
    fo_buf_init(&all, CF_MAX_SHARDS * SUM_TEXT);
    for (size_t i = 0; i < m->n_source_sha256; i++) fo_buf_puts(&all, m->source_sha256[i]);
    fo_sha256(fo_buf_str(&all), all.len, d);
    fo_buf_done(&all);
    for (int i = 0; i < FO_SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", d[i]);
}

static struct pd_verified_row *push(struct pd_verified *v) {
    if (v->n == MAX_ROWS) memmove(v->rows, v->rows + 1, --v->n * sizeof *v->rows); /* the oldest is checked again, if it is still there */
    struct pd_verified_row *rows = realloc(v->rows, (v->n + 1) * sizeof *rows);
    if (!rows) return NULL;
    v->rows = rows;
    v->rows[v->n] = (struct pd_verified_row){ .identity = 0 };
    return &v->rows[v->n++];
}

static void take_lines(struct pd_verified *v, const char *text) {
    static const char hex[] = "0123456789abcdef";
    if (strncmp(text, HEAD, strlen(HEAD)) != 0) return;
    for (const char *p = text + strlen(HEAD); *p && v->n < MAX_ROWS; p += 16 + 1 + SUM_TEXT) {
        if (strspn(p, hex) != 16 || p[16] != ' ' || strspn(p + 17, hex) != SUM_TEXT - 1 || p[16 + SUM_TEXT] != '\n') return;
        struct pd_verified_row *r = push(v);
        if (!r) return;
        r->identity = strtoull(p, NULL, 16);
        memcpy(r->sum, p + 17, SUM_TEXT - 1);
    }
}

void pd_verified_init(struct pd_verified *v, const char *state_dir) {
    struct fo_err ignored;
    char *text;
    size_t len;
    *v = (struct pd_verified){ .file = NULL };
    if (!state_dir || asprintf(&v->file, "%s/verified", state_dir) < 0) {
        v->file = NULL;
        return;
    }
    if (fo_file_read(v->file, MAX_FILE, &text, &len, &ignored)) return;
    take_lines(v, text);
    free(text);
}

void pd_verified_done(struct pd_verified *v) {
    free(v->file);
    free(v->rows);
    *v = (struct pd_verified){ .file = NULL };
}

static struct pd_verified_row *find(const struct pd_verified *v, const char *sum, uint64_t identity) {
    for (size_t i = 0; i < v->n; i++)
        if (v->rows[i].identity == identity && strcmp(v->rows[i].sum, sum) == 0) return &v->rows[i];
    return NULL;
}

enum pd_verdict_of_file pd_verified_look(const struct pd_verified *v, const struct cf_model *m, uint64_t identity, const char **ret_error) {
    char sum[SUM_TEXT];
    sum_of(m, sum);
    const struct pd_verified_row *r = find(v, sum, identity);
    if (r && ret_error) *ret_error = r->error;
    return !r ? PD_FILE_UNKNOWN : r->wrong ? PD_FILE_WRONG : PD_FILE_RIGHT;
}

/* A disk that is full or read-only costs a check at the next start, and no more. */
static void keep(const struct pd_verified *v) {
    char *temp;
    if (!v->file || asprintf(&temp, "%s.new", v->file) < 0) return;
    FILE *f = fopen(temp, "we");
    bool ok = f && fputs(HEAD, f) >= 0;
    for (size_t i = 0; ok && i < v->n; i++)
        if (!v->rows[i].wrong) ok = fprintf(f, "%016llx %s\n", (unsigned long long)v->rows[i].identity, v->rows[i].sum) > 0;
    if (f && fclose(f)) ok = false;
    if (!ok || rename(temp, v->file)) {
        fo_log(FO_LOG_WARN, "reconcile", "event=verified_not_kept file=%s next=\"files with a sha256 are checked again at the next start\"", v->file);
        if (f) unlink(temp);
    }
    free(temp);
}

void pd_verified_note(struct pd_verified *v, const struct cf_model *m, uint64_t identity, const char *error) {
    char sum[SUM_TEXT];
    sum_of(m, sum);
    struct pd_verified_row *r = find(v, sum, identity);
    if (!r && !(r = push(v))) return;
    r->identity = identity;
    memcpy(r->sum, sum, sizeof sum);
    r->wrong = error != NULL;
    snprintf(r->error, sizeof r->error, "%s", error ? error : "");
    if (!error) keep(v);
}
