/* A plan as people read it, and as JSON. Every number comes from the plan itself. */
#include "config/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/text.h"
#include "config/world.h"
#include "foundry/base/buf.h"
#include "foundry/base/units.h"

enum { MAX_TEXT_BYTES = 16 << 20, MAX_NAME_COLUMN = 24 };

static const struct {
    const char *mark, *word, *to; /* "1 to load" */
} kinds[] = {
    [CF_STEP_UNLOAD] = { "-", "unload", "to unload" },
    [CF_STEP_LOAD] = { "+", "load", "to load" },
    [CF_STEP_SET] = { "~", "set", "to change in place" },
    [CF_STEP_RELOAD] = { "-/+", "reload", "to reload" },
    [CF_STEP_FETCH] = { "<", "fetch", "to fetch" },
};
static const char *const verdicts[] = {
    [CF_V_IN_SYNC] = "in_sync", [CF_V_CHANGES] = "changes", [CF_V_REFUSED] = "refused", [CF_V_HELD] = "held", [CF_V_WAITING] = "waiting"
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

int cf_plan_exit(const struct cf_plan *p) {
    int exit_status = p->n_steps ? 2 : 0;
    for (size_t i = 0; i < p->n_verdicts; i++) {
        if (p->verdicts[i].kind == CF_V_REFUSED) return 3;
        if (p->verdicts[i].kind == CF_V_WAITING) exit_status = 2;
    }
    return exit_status;
}

/* "chat", or of replicas "chat[1]". */
static const char *copy_name(const struct cf_step *s, const struct cf_facts *f, char out[160]) {
    bool many = s->replica > 0 || (s->spec && s->spec->n_replicas > 1);
    for (size_t i = 0; i < f->n_instances && !many; i++) many = f->instances[i].replica > 0 && strcmp(f->instances[i].name, s->model) == 0;
    snprintf(out, 160, many ? "%s[%lld]" : "%s", s->model, (long long)s->replica);
    return out;
}

/* --- text ------------------------------------------------------------------------------------------------------------------- */
static void put_parts(const struct cf_step *s, struct fo_buf *out) {
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct cf_part *p = &s->parts[i];
        char all[32], w[32], k[32], c[32];
        fo_buf_puts(out, i ? "; on " : "on ");
        fo_buf_puts(out, p->die);
        if (s->n_parts > 1)
            fo_buf_printf(out, " layers %lld-%lld", (long long)p->first_layer, (long long)(p->first_layer + p->n_layers - 1));
        fo_buf_printf(out, ": %s (weights %s, KV %s, scratch %s)", fo_format_bytes(cf_part_bytes(p), all, sizeof all),
                      fo_format_bytes(p->weights_bytes, w, sizeof w), fo_format_bytes(p->kv_bytes, k, sizeof k),
                      fo_format_bytes(p->scratch_bytes, c, sizeof c));
    }
}

static void put_line(const char *mark, const char *name, int width, struct fo_buf *out) {
    fo_buf_printf(out, "%-3s %-*s  ", mark, width, name);
}

static int name_width(const struct cf_plan *p, const struct cf_facts *f) {
    size_t width = 4;
    char name[160];
    for (size_t i = 0; i < p->n_steps; i++)
        if (strlen(copy_name(&p->steps[i], f, name)) > width) width = strlen(name);
    for (size_t i = 0; i < p->n_verdicts; i++)
        if (p->verdicts[i].kind >= CF_V_REFUSED && strlen(p->verdicts[i].model) > width) width = strlen(p->verdicts[i].model);
    return (int)(width < MAX_NAME_COLUMN ? width : MAX_NAME_COLUMN);
}

static void put_changes(const struct cf_plan *p, const struct cf_facts *f, struct fo_buf *out) {
    int width = name_width(p, f);
    char name[160], bytes[32];
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct cf_step *s = &p->steps[i];
        put_line(kinds[s->kind].mark, copy_name(s, f, name), width, out);
        if (s->kind == CF_STEP_LOAD) {
            put_parts(s, out);
            if (s->trusted || strcmp(s->why, "declared") != 0) fo_buf_printf(out, "; %s", s->why);
        } else if (s->kind == CF_STEP_RELOAD) {
            fo_buf_printf(out, "%s; ", s->why);
            put_parts(s, out);
        } else {
            fo_buf_puts(out, s->why);
            if (s->bytes) fo_buf_printf(out, ": %s to come", fo_format_bytes(s->bytes, bytes, sizeof bytes));
        }
        fo_buf_putc(out, '\n');
    }
    for (size_t i = 0; i < p->n_verdicts; i++) {
        const struct cf_verdict *v = &p->verdicts[i];
        if (v->kind < CF_V_REFUSED) continue;
        put_line(v->kind == CF_V_REFUSED ? "!" : "", v->model, width, out);
        fo_buf_printf(out, "%s%s%s%s: %s", verdicts[v->kind], v->code ? " (" : "", v->code ? v->code : "", v->code ? ")" : "", v->why);
        if (v->would_fit) fo_buf_printf(out, "; would fit: %s", v->would_fit);
        fo_buf_putc(out, '\n');
    }
}

static void put_die(const struct cf_die_plan *d, int width, struct fo_buf *out) {
    char b[32], n[32], a[32], k[32];
    fo_buf_printf(out, "%-*s  %9s  %9s  %9s  %9s%s\n", width, d->die, fo_format_bytes(d->budget_bytes, b, sizeof b),
                  fo_format_bytes(d->now_bytes, n, sizeof n), fo_format_bytes(d->after_bytes, a, sizeof a),
                  fo_format_bytes(d->peak_bytes, k, sizeof k), d->peak_bytes > d->budget_bytes ? "  over" : "");
}

static void put_table(const struct cf_plan *p, const struct cf_facts *f, struct fo_buf *out) {
    int width = 4;
    for (size_t i = 0; i < p->n_dies; i++)
        if ((int)strlen(p->dies[i].die) > width) width = (int)strlen(p->dies[i].die);
    fo_buf_printf(out, "%-*s  %9s  %9s  %9s  %9s\n", width, "die", "budget", "now", "after", "peak");
    for (size_t i = 0; i < p->n_dies; i++) {
        put_die(&p->dies[i], width, out);
        if (f->dies[i].health == CF_HEALTH_LOST)
            fo_buf_printf(out, "%-*s  lost%s%s\n", width, "", f->dies[i].reason[0] ? ": " : "", f->dies[i].reason);
    }
    put_die(&p->host, width, out);
}

static void put_steps(const struct cf_plan *p, const struct cf_facts *f, struct fo_buf *out) {
    char name[160];
    if (p->n_steps == 0) return;
    fo_buf_puts(out, "\nin this order:\n");
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct cf_step *s = &p->steps[i];
        fo_buf_printf(out, "%3zu. %s %s", i + 1, kinds[s->kind].word, copy_name(s, f, name));
        for (size_t j = 0; j < s->n_parts; j++) fo_buf_printf(out, "%s%s", j ? ", " : " on ", s->parts[j].die);
        fo_buf_putc(out, '\n');
    }
}

static void put_summary(const struct cf_plan *p, struct fo_buf *out) {
    size_t n_kind[N_KINDS] = { 0 }, n_verdict[CF_V_WAITING + 1] = { 0 };
    const char *sep = "";
    for (size_t i = 0; i < p->n_steps; i++) n_kind[p->steps[i].kind]++;
    for (size_t i = 0; i < p->n_verdicts; i++) n_verdict[p->verdicts[i].kind]++;
    static const int order[] = { CF_STEP_FETCH, CF_STEP_LOAD, CF_STEP_SET, CF_STEP_RELOAD, CF_STEP_UNLOAD };
    for (size_t i = 0; i < N_KINDS; i++)
        if (n_kind[order[i]]) {
            fo_buf_printf(out, "%s%zu %s", sep, n_kind[order[i]], kinds[order[i]].to);
            sep = ", ";
        }
    for (int v = CF_V_REFUSED; v <= CF_V_WAITING; v++)
        if (n_verdict[v]) {
            fo_buf_printf(out, "%s%zu %s", sep, n_verdict[v], verdicts[v]);
            sep = ", ";
        }
    if (n_verdict[CF_V_IN_SYNC] || !*sep) fo_buf_printf(out, "%s%zu in sync", sep, n_verdict[CF_V_IN_SYNC]);
    fo_buf_puts(out, ".\n");
}

char *cf_plan_text(const struct cf_plan *p, const struct cf_facts *f) {
    struct fo_buf b;
    fo_buf_init(&b, MAX_TEXT_BYTES);
    put_changes(p, f, &b);
    if (b.len) fo_buf_putc(&b, '\n');
    put_table(p, f, &b);
    put_steps(p, f, &b);
    fo_buf_putc(&b, '\n');
    put_summary(p, &b);
    char *text = fo_buf_steal(&b);
    fo_buf_done(&b);
    return text;
}

/* --- JSON ------------------------------------------------------------------------------------------------------------------- */
static void put_key(const char *key, const char *text, struct fo_buf *out) {
    fo_buf_printf(out, ", \"%s\": ", key);
    if (!text || !cf_quote(text, out)) fo_buf_puts(out, "null");
}

static void put_bytes(const char *key, uint64_t v, struct fo_buf *out) {
    fo_buf_printf(out, ", \"%s\": %lld", key, (long long)(v > INT64_MAX ? INT64_MAX : v));
}

static void put_json_die(const struct cf_die_plan *d, struct fo_buf *out) {
    fo_buf_puts(out, "{\"die\": ");
    cf_quote(d->die, out);
    put_bytes("budget_bytes", d->budget_bytes, out);
    put_bytes("now_bytes", d->now_bytes, out);
    put_bytes("after_bytes", d->after_bytes, out);
    put_bytes("peak_bytes", d->peak_bytes, out);
    fo_buf_putc(out, '}');
}

static void put_json_step(const struct cf_step *s, struct fo_buf *out) {
    fo_buf_printf(out, "{\"step\": \"%s\"", kinds[s->kind].word);
    put_key("model", s->model, out);
    fo_buf_printf(out, ", \"replica\": %lld", (long long)s->replica);
    put_key("why", s->why, out);
    fo_buf_printf(out, ", \"ad_hoc\": %s, \"trusted\": %s", s->ad_hoc ? "true" : "false", s->trusted ? "true" : "false");
    put_bytes("host_bytes", s->host_bytes, out);
    put_bytes("staging_bytes", s->staging_bytes, out);
    if (s->kind == CF_STEP_FETCH) put_bytes("bytes", s->bytes, out);
    fo_buf_puts(out, ", \"parts\": [");
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct cf_part *p = &s->parts[i];
        fo_buf_printf(out, "%s{\"first_layer\": %lld, \"n_layers\": %lld", i ? ", " : "", (long long)p->first_layer,
                      (long long)p->n_layers);
        put_key("die", p->die, out);
        put_bytes("weights_bytes", p->weights_bytes, out);
        put_bytes("kv_bytes", p->kv_bytes, out);
        put_bytes("scratch_bytes", p->scratch_bytes, out);
        fo_buf_putc(out, '}');
    }
    fo_buf_puts(out, "]}");
}

static void put_json_verdict(const struct cf_verdict *v, struct fo_buf *out) {
    fo_buf_printf(out, "{\"verdict\": \"%s\"", verdicts[v->kind]);
    put_key("model", v->model, out);
    fo_buf_printf(out, ", \"declared\": %s", v->declared ? "true" : "false");
    put_key("why", v->why, out);
    if (v->need_bytes || v->have_bytes) {
        put_bytes("need_bytes", v->need_bytes, out);
        put_bytes("have_bytes", v->have_bytes, out);
    }
    if (v->code) put_key("code", v->code, out);
    if (v->would_fit) put_key("would_fit", v->would_fit, out);
    if (v->retry_at_ms) put_bytes("retry_at_ms", v->retry_at_ms, out);
    fo_buf_putc(out, '}');
}

char *cf_plan_json(const struct cf_plan *p) {
    struct fo_buf b;
    fo_buf_init(&b, MAX_TEXT_BYTES);
    fo_buf_printf(&b, "{\n  \"exit\": %d,\n  \"steps\": [", cf_plan_exit(p));
    for (size_t i = 0; i < p->n_steps; i++) {
        fo_buf_puts(&b, i ? ",\n    " : "\n    ");
        put_json_step(&p->steps[i], &b);
    }
    fo_buf_puts(&b, "],\n  \"verdicts\": [");
    for (size_t i = 0; i < p->n_verdicts; i++) {
        fo_buf_puts(&b, i ? ",\n    " : "\n    ");
        put_json_verdict(&p->verdicts[i], &b);
    }
    fo_buf_puts(&b, "],\n  \"dies\": [");
    for (size_t i = 0; i < p->n_dies; i++) {
        fo_buf_puts(&b, i ? ",\n    " : "\n    ");
        put_json_die(&p->dies[i], &b);
    }
    fo_buf_puts(&b, "],\n  \"host\": ");
    put_json_die(&p->host, &b);
    fo_buf_puts(&b, "\n}\n");
    char *text = fo_buf_steal(&b);
    fo_buf_done(&b);
    return text;
}
