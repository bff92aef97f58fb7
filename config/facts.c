/* Facts as JSON: see facts.h. One table of rows a struct; reading, writing and copying walk the same rows, so a field added here is kept
 * by --save-facts, shown by /admin and replayed by --facts. Models inside are the manifest's own rows (model.h). jansson parses; what
 * it makes is checked here, key by key. */
#include "config/facts.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/model.h"
#include "config/report.h"
#include "config/text.h"
#include "config/yaml.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"

enum { MAX_LIST = 1 << 16, MAX_TEXT = 4096, MAX_NODES = 1 << 16 };

/* --- the rows --------------------------------------------------------------------------------------------------------------- */
enum kind {
    F_U64,   /* uint64_t */
    F_U32,   /* uint32_t */
    F_I64,   /* int64_t */
    F_FLAG,  /* bool */
    F_CHARS, /* char[size] */
    F_TEXT,  /* char *, NULL when absent */
    F_WORD,  /* an enum, as one of `words` */
    F_GROUP, /* a struct in place */
    F_LIST,  /* pointer to structs, size_t at `count` */
    F_U64S,  /* pointer to uint64_t, size_t at `count` */
    F_MODEL  /* struct cf_model *, NULL when absent */
};

struct rows {
    const struct row *row;
    size_t n, size;
};

struct row {
    const char *name;
    enum kind kind;
    size_t at, count, size;
    const char *const *words;
    const struct rows *of;
    bool must;     /* also: a text may not be empty */
    unsigned what; /* of the top rows: CF_FACTS_... */
};

#define ROWS(id, type)       static const struct rows id = { id##_rows, sizeof id##_rows / sizeof *id##_rows, sizeof(type) }
#define R(k, type, field)    .name = #field, .kind = k, .at = offsetof(type, field)
#define CHARS(type, field)   .name = #field, .kind = F_CHARS, .at = offsetof(type, field), .size = sizeof((type *)0)->field
#define LIST(k, type, field) .name = #field, .kind = k, .at = offsetof(type, field), .count = offsetof(type, n_##field)

/* clang-format off */
static const char *const healths[] = { "ok", "lost", NULL };
static const char *const limits[] = { "meminfo", "cgroup2", "cgroup1", NULL };
static const char *const states[] = { "loading", "ready", "draining", "unloading", "failed", NULL };

static const char *const levels[] = { "normal", "watch", "tight", "critical", NULL };

static const struct row host_rows[] = {
    { R(F_U64, struct cf_host_fact, total_bytes) },
    { R(F_U64, struct cf_host_fact, available_bytes) },
    { R(F_WORD, struct cf_host_fact, limited_by), .words = limits },
    { R(F_WORD, struct cf_host_fact, pressure), .words = levels },
};
ROWS(host, struct cf_host_fact);

static const struct row die_rows[] = {
    { CHARS(struct cf_die_fact, name), .must = true },
    { CHARS(struct cf_die_fact, kind) },
    { CHARS(struct cf_die_fact, address) },
    { CHARS(struct cf_die_fact, model) },
    { R(F_U64, struct cf_die_fact, total_bytes) },
    { R(F_U64, struct cf_die_fact, reserve_bytes) },
    { R(F_U64, struct cf_die_fact, ours_bytes) },
    { R(F_U64, struct cf_die_fact, foreign_bytes) },
    { R(F_WORD, struct cf_die_fact, health), .words = healths },
    { CHARS(struct cf_die_fact, reason) },
    { R(F_FLAG, struct cf_die_fact, host) },
    { R(F_FLAG, struct cf_die_fact, accelerator) },
    { R(F_U32, struct cf_die_fact, contexts) },
    { R(F_WORD, struct cf_die_fact, pressure), .words = levels },
};
ROWS(die, struct cf_die_fact);

static const struct row part_rows[] = {
    { CHARS(struct cf_part, die), .must = true },
    { R(F_I64, struct cf_part, first_layer) },
    { R(F_I64, struct cf_part, n_layers) },
    { R(F_U64, struct cf_part, weights_bytes) },
    { R(F_U64, struct cf_part, kv_bytes) },
    { R(F_U64, struct cf_part, scratch_bytes) },
};
ROWS(part, struct cf_part);

static const struct row instance_rows[] = {
    { R(F_TEXT, struct cf_instance, name), .must = true },
    { R(F_I64, struct cf_instance, replica) },
    { R(F_U64, struct cf_instance, generation) },
    { R(F_WORD, struct cf_instance, state), .words = states },
    { R(F_MODEL, struct cf_instance, spec), .must = true },
    { R(F_I64, struct cf_instance, concurrent_room) },
    { R(F_FLAG, struct cf_instance, ad_hoc) },
    { R(F_TEXT, struct cf_instance, reason) },
    { LIST(F_LIST, struct cf_instance, parts), .of = &part },
    { R(F_U64, struct cf_instance, host_bytes) },
    { R(F_U64, struct cf_instance, running) },
    { R(F_U64, struct cf_instance, loaded_at_ms) },
    { R(F_U64, struct cf_instance, used_at_ms) },
};
ROWS(instance, struct cf_instance);

static const struct row history_rows[] = {
    { R(F_TEXT, struct cf_history, name), .must = true },
    { R(F_MODEL, struct cf_history, ad_hoc) },
    { R(F_FLAG, struct cf_history, admin_unloaded) },
    { R(F_U32, struct cf_history, failures) },
    { R(F_U64, struct cf_history, retry_at_ms) },
    { R(F_TEXT, struct cf_history, last_error) },
    { R(F_U64, struct cf_history, wanted_at_ms) },
    { R(F_U64, struct cf_history, load_ms) },
    { R(F_U64, struct cf_history, used_at_ms) },
};
ROWS(history, struct cf_history);

static const struct row kv_rows[] = {
    { R(F_WORD, struct cf_kv, k_type), .words = cf_kv_types },
    { R(F_WORD, struct cf_kv, v_type), .words = cf_kv_types },
    { R(F_WORD, struct cf_kv, k_floor), .words = cf_kv_types },
    { R(F_WORD, struct cf_kv, v_floor), .words = cf_kv_types },
    { R(F_U32, struct cf_kv, overcommit) },
};
ROWS(kv, struct cf_kv);

static const struct row estimate_rows[] = {
    { R(F_TEXT, struct cf_estimate, path), .must = true },
    { R(F_I64, struct cf_estimate, ctx_declared) },
    { R(F_I64, struct cf_estimate, max_sessions) },
    { R(F_I64, struct cf_estimate, max_concurrent) },
    { R(F_GROUP, struct cf_estimate, kv), .of = &kv },
    { R(F_I64, struct cf_estimate, ctx_cap) },
    { R(F_TEXT, struct cf_estimate, error) },
    { .name = "layer_bytes", .kind = F_U64S, .at = offsetof(struct cf_estimate, layer_bytes), .count = offsetof(struct cf_estimate, n_layers) },
    { .name = "layer_kv_bytes", .kind = F_U64S, .at = offsetof(struct cf_estimate, layer_kv_bytes),
      .count = offsetof(struct cf_estimate, n_layer_kv) },
    { R(F_U64, struct cf_estimate, input_bytes) },
    { R(F_U64, struct cf_estimate, output_bytes) },
    { R(F_U64, struct cf_estimate, tied_bytes) },
    { R(F_U64, struct cf_estimate, die_kv_bytes) },
    { R(F_U64, struct cf_estimate, scratch_bytes) },
    { R(F_U64, struct cf_estimate, logits_bytes) },
    { R(F_U64, struct cf_estimate, host_bytes) },
    { R(F_U64, struct cf_estimate, staging_bytes) },
};
ROWS(estimate, struct cf_estimate);

static const char *const file_states[] = { "present", "absent", "unverified", "fetching", "verifying", "wrong", NULL };

static const struct row file_rows[] = {
    { R(F_TEXT, struct cf_file, model), .must = true },
    { R(F_TEXT, struct cf_file, path), .must = true },
    { R(F_WORD, struct cf_file, state), .words = file_states },
    { R(F_U64, struct cf_file, bytes) },
    { R(F_U64, struct cf_file, part_bytes) },
    { R(F_U64, struct cf_file, bytes_per_second) },
    { R(F_U32, struct cf_file, failures) },
    { R(F_U64, struct cf_file, retry_at_ms) },
    { R(F_TEXT, struct cf_file, reason) },
    { R(F_TEXT, struct cf_file, error) },
};
ROWS(file, struct cf_file);

static const struct row facts_rows[] = {
    { R(F_U64, struct cf_facts, now_ms), .what = 4 },
    { R(F_GROUP, struct cf_facts, host), .of = &host, .what = CF_FACTS_DIES },
    { LIST(F_LIST, struct cf_facts, dies), .of = &die, .what = CF_FACTS_DIES },
    { LIST(F_LIST, struct cf_facts, instances), .of = &instance, .what = CF_FACTS_MODELS },
    { LIST(F_LIST, struct cf_facts, histories), .of = &history, .what = CF_FACTS_MODELS },
    { LIST(F_LIST, struct cf_facts, estimates), .of = &estimate, .what = CF_FACTS_MODELS },
    { LIST(F_LIST, struct cf_facts, files), .of = &file, .what = CF_FACTS_MODELS },
};
ROWS(facts, struct cf_facts);
/* clang-format on */

struct owner {
    struct fo_region region;
    struct cf_facts f;
};

static struct owner *owner_new(struct fo_err *e) {
    struct owner *o = calloc(1, sizeof *o);
    if (!o) {
        fo_fail(e, FO_ENOMEM, "no memory for facts");
        return NULL;
    }
    fo_region_init(&o->region, CF_MAX_FACTS_MEMORY);
    return o;
}

void cf_facts_free(struct cf_facts *f) {
    if (!f) return;
    struct owner *o = f->memory;
    fo_region_done(&o->region);
    free(o);
}

struct fo_region *cf_facts_region(struct cf_facts *f) {
    return &((struct owner *)f->memory)->region;
}

const struct cf_file *cf_file_find(const struct cf_facts *f, const struct cf_model *m) {
    for (size_t i = 0; i < f->n_files; i++)
        if (strcmp(f->files[i].model, m->name) == 0 && m->source_path && strcmp(f->files[i].path, m->source_path) == 0) return &f->files[i];
    return NULL;
}

/* --- reading ---------------------------------------------------------------------------------------------------------------- */
struct path {
    const struct path *up;
    const char *key; /* NULL: `index` */
    size_t index;
};

struct reader {
    struct fo_region *region;
    struct fo_err *e;
};

static void put_path(const struct path *p, struct fo_buf *out) {
    if (p->up) put_path(p->up, out);
    if (p->key)
        fo_buf_printf(out, "%s%s", p->up ? "." : "", p->key);
    else
        fo_buf_printf(out, "[%zu]", p->index);
}

static int wrong(const struct reader *r, const struct path *p, const char *what) {
    struct fo_buf b;
    fo_buf_init(&b, 256);
    put_path(p, &b);
    int rc = fo_fail(r->e, FO_EFORMAT, "%s: %s", fo_buf_str(&b), what);
    fo_buf_done(&b);
    return rc;
}

static int no_memory(const struct reader *r) {
    return r->region->used_bytes >= CF_MAX_FACTS_MEMORY / 2
               ? fo_fail(r->e, FO_ELIMIT, "the facts take more than %d MiB", CF_MAX_FACTS_MEMORY >> 20)
               : fo_fail(r->e, FO_ENOMEM, "no memory for facts");
}

/* A JSON value as the nodes that the manifest's rows read: a model in the facts means what it means in a manifest. */
static struct cf_node *node_of(const json_t *v, struct fo_region *tree, size_t *n_left) {
    struct cf_node *n = *n_left ? fo_region_alloc(tree, sizeof *n) : NULL;
    if (!n) return NULL;
    --*n_left;
    *n = (struct cf_node){ .kind = CF_NODE_SCALAR, .plain = true, .line = 1, .col = 1, .width = 1 };
    struct cf_node **tail = &n->first;
    char text[48] = "";
    if (json_is_object(v)) {
        const char *key;
        json_t *item;
        n->kind = CF_NODE_MAP;
        json_object_foreach((json_t *)v, key, item) {
            struct cf_node *child = node_of(item, tree, n_left), *k = fo_region_alloc(tree, sizeof *k);
            if (!child || !k) return NULL;
            *k = (struct cf_node){ .kind = CF_NODE_SCALAR, .line = 1, .col = 1, .width = 1, .text = key, .len = (uint32_t)strlen(key) };
            child->key = k;
            *tail = child;
            tail = &child->next;
            n->n++;
        }
        return n;
    }
    if (json_is_array(v)) {
        size_t i;
        json_t *item;
        n->kind = CF_NODE_LIST;
        json_array_foreach(v, i, item) {
            if (!(*tail = node_of(item, tree, n_left))) return NULL;
            tail = &(*tail)->next;
            n->n++;
        }
        return n;
    }
    if (json_is_string(v)) {
        n->plain = false;
        n->text = json_string_value(v);
        n->len = (uint32_t)json_string_length(v);
        return n;
    }
    if (json_is_integer(v))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) { /* the fewest digits that say the same: the manifest's numbers have at most 15 */
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*f", digits, json_real_value(v));
            if (strtod(text, NULL) >= json_real_value(v) && strtod(text, NULL) <= json_real_value(v)) break;
        }
        char *last = text + strlen(text) - 1;
        while (*last == '0' && last > text && last[-1] != '.') *last-- = '\0';
    } else
        snprintf(text, sizeof text, "%s", json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
    n->len = (uint32_t)strlen(text);
    n->text = fo_region_strndup(tree, text, n->len);
    return n->text ? n : NULL;
}

static int read_model(const struct reader *r, const struct path *p, const json_t *v, struct cf_model **ret) {
    struct cf_report rep;
    struct fo_region tree;
    size_t n_left = MAX_NODES;
    if (!json_is_object(v)) return wrong(r, p, "a model is expected: a mapping of its keys");
    struct cf_model *m = fo_region_alloc(r->region, sizeof *m);
    if (!m) return no_memory(r);
    int rc = cf_report_init(&rep, r->e);
    if (rc) return rc;
    fo_region_init(&tree, CF_MAX_FACTS_MEMORY);
    struct cf_node *map = node_of(v, &tree, &n_left);
    rc = map ? cf_model_read(map, true, NULL, r->region, &rep, m, r->e) : no_memory(r);
    if (rc == FO_OK) {
        cf_report_sort(&rep);
        if (rep.n) rc = wrong(r, p, rep.findings[0].text);
    }
    fo_region_done(&tree);
    cf_report_done(&rep);
    if (rc == FO_OK) *ret = m;
    return rc;
}

static int read_object(const struct reader *r, const struct path *p, const struct rows *rows, const json_t *v, void *object);

static int read_list(const struct reader *r, const struct path *p, const struct row *k, const json_t *v, unsigned char *object) {
    size_t n = json_array_size(v), size = k->kind == F_LIST ? k->of->size : sizeof(uint64_t);
    if (!json_is_array(v)) return wrong(r, p, "a list is expected");
    if (n > MAX_LIST) return wrong(r, p, "the list is too long");
    unsigned char *items = n ? fo_region_array(r->region, n, size) : NULL;
    if (n && !items) return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        const struct path here = { p, NULL, i };
        const json_t *item = json_array_get(v, i);
        if (k->kind == F_LIST) {
            int rc = read_object(r, &here, k->of, item, items + i * size);
            if (rc) return rc;
        } else if (!json_is_integer(item) || json_integer_value(item) < 0)
            return wrong(r, &here, "a whole number from 0 is expected");
        else
            ((uint64_t *)items)[i] = (uint64_t)json_integer_value(item);
    }
    *(void **)(object + k->at) = items;
    *(size_t *)(object + k->count) = n;
    return FO_OK;
}

static int read_text(const struct reader *r, const struct path *p, const struct row *k, const json_t *v, unsigned char *object) {
    if (!json_is_string(v)) return wrong(r, p, "a text is expected");
    const char *s = json_string_value(v);
    size_t len = strlen(s);
    if (k->must && len == 0) return wrong(r, p, "the text is empty");
    if (len > MAX_TEXT) return wrong(r, p, "the text is too long");
    if (k->kind == F_CHARS) {
        if (len >= k->size) return wrong(r, p, "the text is too long");
        memcpy(object + k->at, s, len + 1);
        return FO_OK;
    }
    char *copy = fo_region_strndup(r->region, s, len);
    if (!copy) return no_memory(r);
    *(char **)(object + k->at) = copy;
    return FO_OK;
}

static int read_value(const struct reader *r, const struct path *p, const struct row *k, const json_t *v, unsigned char *object) {
    unsigned char *at = object + k->at;
    switch (k->kind) {
    case F_U64:
    case F_U32:
    case F_I64:
        if (!json_is_integer(v)) return wrong(r, p, "a whole number is expected");
        if (k->kind != F_I64 && json_integer_value(v) < 0) return wrong(r, p, "a number from 0 is expected");
        if (k->kind == F_U32 && json_integer_value(v) > UINT32_MAX) return wrong(r, p, "the number is too large");
        if (k->kind == F_U32)
            *(uint32_t *)at = (uint32_t)json_integer_value(v);
        else
            *(int64_t *)at = json_integer_value(v);
        return FO_OK;
    case F_FLAG:
        if (!json_is_boolean(v)) return wrong(r, p, "true or false is expected");
        *(bool *)at = json_is_true(v);
        return FO_OK;
    case F_WORD: {
        int i = 0;
        while (json_is_string(v) && k->words[i] && strcmp(k->words[i], json_string_value(v)) != 0) i++;
        if (!json_is_string(v) || !k->words[i]) return wrong(r, p, "not one of the words that this can be");
        memcpy(at, &i, sizeof i);
        return FO_OK;
    }
    case F_GROUP:
        return read_object(r, p, k->of, v, at);
    case F_LIST:
    case F_U64S:
        return read_list(r, p, k, v, object);
    case F_MODEL:
        return read_model(r, p, v, (struct cf_model **)at);
    default:
        return read_text(r, p, k, v, object);
    }
}

static int read_object(const struct reader *r, const struct path *p, const struct rows *rows, const json_t *v, void *object) {
    const char *key;
    json_t *item;
    if (!json_is_object(v)) return wrong(r, p, "a mapping is expected");
    json_object_foreach((json_t *)v, key, item) {
        size_t i = 0;
        while (i < rows->n && strcmp(rows->row[i].name, key) != 0) i++;
        if (i == rows->n) return wrong(r, &(struct path){ p, key, 0 }, "no such key here");
    }
    for (size_t i = 0; i < rows->n; i++) {
        const struct row *k = &rows->row[i];
        const struct path here = { p, k->name, 0 };
        const json_t *value = json_object_get(v, k->name);
        if (!value && k->must) return wrong(r, &here, "is missing");
        int rc = value ? read_value(r, &here, k, value, object) : FO_OK;
        if (rc) return rc;
    }
    return FO_OK;
}

/* What rows cannot say. */
static int check(const struct reader *r, const struct cf_facts *f) {
    const struct path top = { NULL, "facts", 0 }, dies = { &top, "dies", 0 }, estimates = { &top, "estimates", 0 },
                      instances = { &top, "instances", 0 };
    for (size_t i = 0; i < f->n_dies; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(f->dies[i].name, f->dies[j].name) == 0)
                return wrong(r, &(struct path){ &dies, NULL, i }, "a second die of this name");
    for (size_t i = 0; i < f->n_estimates; i++)
        if (f->estimates[i].n_layers > CF_MAX_LAYERS)
            return wrong(r, &(struct path){ &estimates, NULL, i }, "more than 1024 layers");
        else if (f->estimates[i].n_layers != f->estimates[i].n_layer_kv)
            return wrong(r, &(struct path){ &estimates, NULL, i }, "layer_bytes and layer_kv_bytes have different lengths");
    for (size_t i = 0; i < f->n_instances; i++)
        for (size_t j = 0; j < i; j++)
            if (f->instances[i].replica == f->instances[j].replica && strcmp(f->instances[i].name, f->instances[j].name) == 0)
                return wrong(r, &(struct path){ &instances, NULL, i }, "a second instance of this name and replica");
    return FO_OK;
}

int cf_facts_parse(const char *json, size_t len, struct cf_facts **ret, struct fo_err *e) {
    json_error_t error;
    if (len > CF_MAX_FACTS_BYTES) return fo_fail(e, FO_ELIMIT, "the facts are longer than %d MiB", CF_MAX_FACTS_BYTES >> 20);
    struct owner *o = owner_new(e);
    if (!o) return e->code;
    json_t *top = json_loadb(json ? json : "", json ? len : 0, JSON_REJECT_DUPLICATES, &error);
    int rc = FO_OK;
    if (!top)
        rc = json_error_code(&error) == json_error_out_of_memory ? fo_fail(e, FO_ENOMEM, "no memory for facts")
                                                                 : fo_fail_at(e, FO_EFORMAT, error.line, error.column, "%s", error.text);
    const struct reader r = { &o->region, e };
    if (rc == FO_OK) rc = read_object(&r, &(struct path){ NULL, "facts", 0 }, &facts, top, &o->f);
    if (rc == FO_OK) rc = check(&r, &o->f);
    json_decref(top);
    o->f.memory = o;
    if (rc)
        cf_facts_free(&o->f);
    else
        *ret = &o->f;
    return rc;
}

/* --- writing ---------------------------------------------------------------------------------------------------------------- */
static void put_text(const char *s, struct fo_buf *out) {
    char clean[MAX_TEXT + 1];
    if (cf_quote(s, out)) return;
    snprintf(clean, sizeof clean, "%s", s); /* a driver's text, or one that was cut inside a character */
    fo_text_defuse(clean);
    cf_quote(clean, out);
}

static void put_number(uint64_t v, struct fo_buf *out) {
    fo_buf_printf(out, "%lld", (long long)(v > INT64_MAX ? INT64_MAX : v)); /* JSON readers have signed numbers */
}

static void put_object(const struct rows *rows, const void *object, unsigned what, int depth, struct fo_buf *out);

static void put_list(const struct row *k, const unsigned char *object, int depth, struct fo_buf *out) {
    const unsigned char *items = *(unsigned char *const *)(object + k->at);
    size_t n = *(const size_t *)(object + k->count);
    fo_buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i) fo_buf_puts(out, k->kind == F_LIST ? "," : ", ");
        if (k->kind == F_LIST) {
            fo_buf_printf(out, "\n%*s", depth * 2 + 2, "");
            put_object(k->of, items + i * k->of->size, CF_FACTS_ALL, depth + 1, out);
        } else
            put_number(((const uint64_t *)items)[i], out);
    }
    fo_buf_putc(out, ']');
}

/* Absent texts and models are left out. */
static bool absent(const struct row *k, const unsigned char *object) {
    return (k->kind == F_TEXT || k->kind == F_MODEL) && *(void *const *)(object + k->at) == NULL;
}

static void put_object(const struct rows *rows, const void *object, unsigned what, int depth, struct fo_buf *out) {
    const char *sep = "{";
    for (size_t i = 0; i < rows->n; i++) {
        const struct row *k = &rows->row[i];
        const unsigned char *at = (const unsigned char *)object + k->at;
        int word;
        if (absent(k, object) || (k->what && !(k->what & what))) continue;
        if (depth == 0)
            fo_buf_printf(out, "%s\n  \"%s\": ", *sep == '{' ? "{" : ",", k->name);
        else
            fo_buf_printf(out, "%s\"%s\": ", sep, k->name);
        sep = ", ";
        switch (k->kind) {
        case F_U64:
            put_number(*(const uint64_t *)at, out);
            break;
        case F_U32:
            put_number(*(const uint32_t *)at, out);
            break;
        case F_I64:
            fo_buf_printf(out, "%lld", (long long)*(const int64_t *)at);
            break;
        case F_FLAG:
            fo_buf_puts(out, *(const bool *)at ? "true" : "false");
            break;
        case F_CHARS:
            put_text((const char *)at, out);
            break;
        case F_TEXT:
            put_text(*(char *const *)at, out);
            break;
        case F_WORD:
            memcpy(&word, at, sizeof word);
            put_text(k->words[word], out);
            break;
        case F_GROUP:
            put_object(k->of, at, CF_FACTS_ALL, depth + 1, out);
            break;
        case F_MODEL:
            cf_model_write(*(struct cf_model *const *)at, out);
            break;
        default:
            put_list(k, object, depth + 1, out);
        }
    }
    fo_buf_puts(out, *sep == '{' ? "{}" : depth == 0 ? "\n}" : "}");
}

void cf_facts_write_some(const struct cf_facts *f, unsigned what, struct fo_buf *out) {
    put_object(&facts, f, what, 0, out);
}

char *cf_facts_write(const struct cf_facts *f) {
    struct fo_buf b;
    fo_buf_init(&b, CF_MAX_FACTS_MEMORY);
    cf_facts_write_some(f, CF_FACTS_ALL, &b);
    fo_buf_putc(&b, '\n');
    char *text = fo_buf_steal(&b);
    fo_buf_done(&b);
    return text;
}

/* --- copying ---------------------------------------------------------------------------------------------------------------- */
static int own_object(const struct reader *r, const struct rows *rows, void *object);

static int own_list(const struct reader *r, const struct row *k, unsigned char *object) {
    size_t n = *(size_t *)(object + k->count), size = k->kind == F_LIST ? k->of->size : sizeof(uint64_t);
    unsigned char **items = (unsigned char **)(object + k->at), *copy = n ? fo_region_array(r->region, n, size) : NULL;
    if (n && !copy) return no_memory(r);
    if (n) memcpy(copy, *items, n * size);
    *items = copy;
    for (size_t i = 0; k->kind == F_LIST && i < n; i++) {
        int rc = own_object(r, k->of, copy + i * size);
        if (rc) return rc;
    }
    return FO_OK;
}

static int own_object(const struct reader *r, const struct rows *rows, void *object) {
    for (size_t i = 0; i < rows->n; i++) {
        const struct row *k = &rows->row[i];
        void *at = (unsigned char *)object + k->at;
        int rc = FO_OK;
        if (absent(k, object)) continue;
        if (k->kind == F_LIST || k->kind == F_U64S)
            rc = own_list(r, k, object);
        else if (k->kind == F_TEXT) {
            char *copy = fo_region_strndup(r->region, *(char **)at, strlen(*(char **)at));
            if (!copy) return no_memory(r);
            *(char **)at = copy;
        } else if (k->kind == F_MODEL) {
            struct cf_model *copy = fo_region_alloc(r->region, sizeof *copy);
            if (!copy) return no_memory(r);
            rc = cf_model_copy_to(*(struct cf_model **)at, r->region, copy, r->e);
            *(struct cf_model **)at = copy;
        }
        if (rc) return rc;
    }
    return FO_OK;
}

int cf_facts_copy(const struct cf_facts *f, struct cf_facts **ret, struct fo_err *e) {
    struct owner *o = owner_new(e);
    if (!o) return e->code;
    o->f = *f;
    o->f.memory = o;
    int rc = own_object(&(struct reader){ &o->region, e }, &facts, &o->f);
    if (rc)
        cf_facts_free(&o->f);
    else
        *ret = &o->f;
    return rc;
}
