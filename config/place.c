/* Placement: see place.h.
 *
 * A split is found exactly. Layers stay in order, every die gets at least one; cut points are chosen so that the largest of
 * (bytes on the die) / (room on the die) is least: moving a layer over any border cannot improve it. best[k][l] is that largest ratio for
 * the first l layers on the first k dies: the least, over all last cuts, of what die k holds then and of best[k-1] before the cut. Bytes of
 * a die count everything that is on it: its layers' weights and KV, the embedding on the first, the output matrix on the last, scratch on
 * each. */
#include "config/place.h"

#include <stdio.h>
#include <string.h>

#include "config/world.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/base/units.h"

enum { CTX_STEP = 256, MAX_INSTEAD = 4 };

struct cf_ratio {
    uint64_t num, den; /* den 0: no room at all */
};

static bool ratio_less(struct cf_ratio a, struct cf_ratio b) {
    return (unsigned __int128)a.num * b.den < (unsigned __int128)b.num * a.den;
}

int cf_placer_init(struct cf_placer *p, const struct cf_facts *f, struct fo_region *r, struct fo_err *e) {
    size_t n_dies = f->n_dies ? f->n_dies : 1, n_layers = 1;
    for (size_t i = 0; i < f->n_estimates; i++)
        if (f->estimates[i].n_layers > n_layers) n_layers = f->estimates[i].n_layers;
    *p = (struct cf_placer){ .facts = f, .max_layers = n_layers, .max_parts = n_dies < CF_MAX_PARTS ? n_dies : CF_MAX_PARTS };
    p->die_room = fo_region_array(r, n_dies, sizeof *p->die_room);
    p->taken = fo_region_array(r, n_dies, sizeof *p->taken);
    p->order = fo_region_array(r, n_dies, sizeof *p->order);
    p->weights = fo_region_array(r, n_layers + 1, sizeof *p->weights);
    p->kv = fo_region_array(r, n_layers + 1, sizeof *p->kv);
    p->scaled = fo_region_array(r, n_layers, sizeof *p->scaled);
    p->cut = fo_region_array(r, p->max_parts * (n_layers + 1), sizeof *p->cut);
    p->best = fo_region_array(r, 2 * (n_layers + 1), sizeof *p->best);
    if (!p->die_room || !p->taken || !p->order || !p->weights || !p->kv || !p->scaled || !p->cut || !p->best)
        return fo_fail(e, FO_ENOMEM, "no memory to plan");
    return FO_OK;
}

/* --- what goes where -------------------------------------------------------------------------------------------------------- */
static void sum_layers(struct cf_placer *p, const struct cf_estimate *est) {
    for (size_t i = 0; i < est->n_layers; i++) {
        p->weights[i + 1] = cf_add(p->weights[i], est->layer_bytes[i]);
        p->kv[i + 1] = cf_add(p->kv[i], est->layer_kv_bytes[i]);
    }
}

/* Layers from..to-1 on one die. */
static struct cf_part part_of(const struct cf_placer *p, const struct cf_estimate *est, size_t from, size_t to) {
    bool first = from == 0, last = to == est->n_layers;
    struct cf_part part = { .first_layer = (int64_t)from, .n_layers = (int64_t)(to - from) };
    part.weights_bytes = p->weights[to] - p->weights[from];
    if (first) part.weights_bytes = cf_add(part.weights_bytes, est->input_bytes);
    if (last) part.weights_bytes = cf_add(part.weights_bytes, est->output_bytes);
    if (last && !first) part.weights_bytes = cf_add(part.weights_bytes, est->tied_bytes);
    part.kv_bytes = cf_add(p->kv[to] - p->kv[from], est->die_kv_bytes);
    part.scratch_bytes = last ? cf_add(est->scratch_bytes, est->logits_bytes) : est->scratch_bytes;
    return part;
}

static struct cf_ratio ratio_of(const struct cf_placer *p, const struct cf_estimate *est, size_t from, size_t to, uint64_t room) {
    struct cf_part part = part_of(p, est, from, to);
    return (struct cf_ratio){ cf_part_bytes(&part), room ? room : 1 };
}

/* Splits over dies[n] with room[n]; n is 1, or at most the layers. */
static void split(struct cf_placer *p, const struct cf_estimate *est, const size_t *dies, const uint64_t *room, size_t n,
                  struct cf_place *ret) {
    size_t layers = est->n_layers, width = p->max_layers + 1;
    struct cf_ratio *before = p->best, *now = p->best + width;
    for (size_t l = 1; l <= layers; l++) now[l] = ratio_of(p, est, 0, l, room[0]);
    for (size_t k = 1; k < n; k++) {
        struct cf_ratio *swap = before;
        before = now;
        now = swap;
        for (size_t l = k + 1; l <= layers; l++) {
            struct cf_ratio at = { 0 };
            size_t best_cut = l;
            for (size_t cut = l; cut-- > k;) {
                struct cf_ratio mine = ratio_of(p, est, cut, l, room[k]);
                if (best_cut < l && !ratio_less(mine, at)) break; /* more layers here only make it worse */
                if (ratio_less(mine, before[cut])) mine = before[cut];
                if (best_cut < l && !ratio_less(mine, at)) continue;
                at = mine;
                best_cut = cut;
            }
            now[l] = at;
            p->cut[k * width + l] = (uint32_t)best_cut;
        }
    }
    ret->n_parts = n;
    for (size_t k = n, to = layers; k-- > 0;) {
        size_t from = k ? p->cut[k * width + to] : 0;
        ret->parts[k] = part_of(p, est, from, to);
        memcpy(ret->parts[k].die, p->facts->dies[dies[k]].name, sizeof ret->parts[k].die);
        to = from;
    }
}

/* --- gates ------------------------------------------------------------------------------------------------------------------ */
static void no_room(struct cf_place *ret, uint64_t need, uint64_t have, const char *where) {
    char n[32], h[32];
    ret->kind = CF_NO_ROOM;
    ret->need = need;
    ret->have = have;
    fo_format_bytes(need, n, sizeof n);
    fo_format_bytes(have, h, sizeof h);
    if (strcmp(n, h) == 0) { /* rounding hides what is missing */
        snprintf(n, sizeof n, "%llu B", (unsigned long long)need);
        snprintf(h, sizeof h, "%llu B", (unsigned long long)have);
    }
    snprintf(ret->why, sizeof ret->why, "needs %s %s, where %s are free", n, where, h);
}

/* Whether each part has room on its die and the host has room for its share; the fullest die speaks. */
static void gate(struct cf_placer *p, const struct cf_estimate *est, const size_t *dies, struct cf_place *ret) {
    uint64_t host = est->host_bytes, worst = 0;
    bool staged = false;
    char where[160];
    ret->kind = CF_PLACED;
    for (size_t i = 0; i < ret->n_parts; i++) {
        const struct cf_die_fact *d = &p->facts->dies[dies[i]];
        uint64_t need = cf_part_bytes(&ret->parts[i]), have = p->die_room[dies[i]];
        if (d->host)
            host = cf_add(host, need);
        else
            staged = true;
        if (need > have && need - have > worst) {
            const struct cf_part *q = &ret->parts[i];
            char w[32], k[32], s[32];
            worst = need - have;
            snprintf(where, sizeof where, "on %s (weights %s, KV %s, scratch %s)", d->name, fo_format_bytes(q->weights_bytes, w, sizeof w),
                     fo_format_bytes(q->kv_bytes, k, sizeof k), fo_format_bytes(q->scratch_bytes, s, sizeof s));
            no_room(ret, need, have, where);
        }
    }
    ret->host_bytes = est->host_bytes;
    ret->staging_bytes = staged ? est->staging_bytes : 0;
    host = cf_add(host, ret->staging_bytes);
    if (ret->kind == CF_PLACED && host > p->host_room) no_room(ret, host, p->host_room, "of the host's memory above ram_reserve");
}

static bool healthy(const struct cf_placer *p, size_t die) {
    return p->facts->dies[die].health != CF_HEALTH_LOST;
}

/* On these dies. What a part on the host's die may take is also bounded by the host's gate, and the split must know it. */
static void on(struct cf_placer *p, const struct cf_estimate *est, const size_t *dies, size_t n, struct cf_place *ret) {
    uint64_t room[CF_MAX_PARTS];
    if (n > 1 && est->n_layers < n) {
        ret->kind = CF_DIE_ABSENT;
        snprintf(ret->why, sizeof ret->why, "has %zu layers, which cannot be split over %zu dies", est->n_layers, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t host = cf_less(p->host_room, cf_add(est->host_bytes, n > 1 ? est->staging_bytes : 0));
        room[i] = p->die_room[dies[i]];
        if (p->facts->dies[dies[i]].host && host < room[i]) room[i] = host;
    }
    split(p, est, dies, room, n, ret);
    gate(p, est, dies, ret);
}

/* --- choosing dies ---------------------------------------------------------------------------------------------------------- */
/* Puts healthy dies into p->order, best first: without a copy of the model (if that counts), accelerators, room, as in the facts. */
static bool better(const struct cf_placer *p, size_t a, size_t b, bool spread) {
    const struct cf_die_fact *x = &p->facts->dies[a], *y = &p->facts->dies[b];
    if (spread && p->taken[a] != p->taken[b]) return p->taken[b];
    if (x->accelerator != y->accelerator) return x->accelerator;
    return p->die_room[a] != p->die_room[b] ? p->die_room[a] > p->die_room[b] : a < b;
}

static void sort_dies(struct cf_placer *p, size_t n, bool spread) {
    for (size_t i = 1; i < n; i++) {
        size_t die = p->order[i], at = i;
        for (; at > 0 && better(p, die, p->order[at - 1], spread); at--) p->order[at] = p->order[at - 1];
        p->order[at] = die;
    }
}

static size_t rank_dies(struct cf_placer *p, bool spread) {
    size_t n = 0;
    for (size_t i = 0; i < p->facts->n_dies; i++)
        if (healthy(p, i)) p->order[n++] = i;
    sort_dies(p, n, spread);
    return n;
}

static void no_die(struct cf_place *ret, enum cf_placed kind, const char *why) {
    ret->kind = kind;
    snprintf(ret->why, sizeof ret->why, "%s", why);
}

/* Whole, on the first die that has room; else what the roomiest one says. */
static void anywhere(struct cf_placer *p, const struct cf_estimate *est, struct cf_place *ret) {
    size_t n = rank_dies(p, true), roomiest = 0;
    if (n == 0) {
        no_die(ret, CF_DIE_LOST, "every die is lost");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        on(p, est, &p->order[i], 1, ret);
        if (ret->kind == CF_PLACED) return;
        if (p->die_room[p->order[i]] > p->die_room[p->order[roomiest]]) roomiest = i;
    }
    on(p, est, &p->order[roomiest], 1, ret);
}

/* Split over n: those without a copy of the model before others, accelerators before the host, the roomiest. Within a set the roomiest
 * comes first, whichever dies they are: so a set with more room is never worse, and what does not fit now does not fit when less is free.
 */
static void over(struct cf_placer *p, const struct cf_estimate *est, size_t n, struct cf_place *ret) {
    size_t n_ranked = rank_dies(p, true), n_accelerators = 0, set[CF_MAX_PARTS];
    if (n > n_ranked || n > p->max_parts) {
        ret->kind = n > p->facts->n_dies || n > p->max_parts ? CF_DIE_ABSENT : CF_DIE_LOST;
        snprintf(ret->why, sizeof ret->why, "wants %zu dies, and %zu %s there%s", n, n_ranked, n_ranked == 1 ? "is" : "are",
                 ret->kind == CF_DIE_LOST ? ": the others are lost" : "");
        return;
    }
    sort_dies(p, n, false);
    on(p, est, p->order, n, ret);
    if (ret->kind != CF_NO_ROOM) return;
    rank_dies(p, false);
    while (n_accelerators < n_ranked && p->facts->dies[p->order[n_accelerators]].accelerator) n_accelerators++;
    struct cf_place first = { .kind = CF_N_PLACED };
    for (size_t n_host = n > n_accelerators ? n - n_accelerators : 0; n_host <= n && n_host <= n_ranked - n_accelerators; n_host++) {
        for (size_t i = 0; i < n; i++) set[i] = p->order[i < n - n_host ? i : n_accelerators + i - (n - n_host)];
        on(p, est, set, n, ret);
        if (ret->kind == CF_PLACED) return;
        if (first.kind == CF_N_PLACED) first = *ret;
    }
    *ret = first;
}

static void no_such_die(const struct cf_placer *p, const char *name, struct cf_place *ret) {
    size_t at = (size_t)snprintf(ret->why, sizeof ret->why, "there is no die '%s'", name);
    ret->kind = CF_DIE_ABSENT;
    for (size_t i = 0; i < p->facts->n_dies && at < sizeof ret->why; i++)
        at += (size_t)snprintf(ret->why + at, sizeof ret->why - at, "%s%s", i ? ", " : "; there are ", p->facts->dies[i].name);
}

static void named(struct cf_placer *p, const struct cf_estimate *est, const struct cf_names *dies, struct cf_place *ret) {
    size_t found[CF_MAX_PARTS];
    if (dies->n > CF_MAX_PARTS || dies->n > p->max_parts) {
        ret->kind = CF_DIE_ABSENT;
        snprintf(ret->why, sizeof ret->why, "wants %zu dies, and %zu %s there", dies->n, p->facts->n_dies,
                 p->facts->n_dies == 1 ? "is" : "are");
        return;
    }
    for (size_t i = 0; i < dies->n; i++) {
        found[i] = cf_die_find(p->facts, dies->names[i]);
        if (found[i] < p->facts->n_dies) continue;
        no_such_die(p, dies->names[i], ret);
        return;
    }
    for (size_t i = 0; i < dies->n; i++) {
        const struct cf_die_fact *d = &p->facts->dies[found[i]];
        if (d->health != CF_HEALTH_LOST) continue;
        ret->kind = CF_DIE_LOST;
        snprintf(ret->why, sizeof ret->why, "die %s is lost%s%s", d->name, d->reason[0] ? ": " : "", d->reason);
        return;
    }
    on(p, est, found, dies->n, ret);
}

void cf_place(struct cf_placer *p, const struct cf_estimate *est, const struct cf_names *dies, bool trust, struct cf_place *ret) {
    int64_t n_auto = cf_dies_auto(dies);
    ret->n_parts = 0;
    ret->need = ret->have = 0;
    ret->why[0] = '\0';
    sum_layers(p, est);
    if (p->facts->n_dies == 0)
        no_die(ret, CF_DIE_LOST, "no die has been seen yet");
    else if (p->weights[est->n_layers] == UINT64_MAX || p->kv[est->n_layers] == UINT64_MAX)
        no_room(ret, UINT64_MAX, 0, "of memory");
    else if (dies->n == 0)
        anywhere(p, est, ret);
    else if (n_auto)
        over(p, est, (size_t)n_auto, ret);
    else
        named(p, est, dies, ret);
    if (ret->kind == CF_NO_ROOM && trust && ret->n_parts) ret->kind = CF_TRUSTED;
}

/* --- what would fit --------------------------------------------------------------------------------------------------------- */
static bool would(struct cf_placer *p, const struct cf_estimate *est, const struct cf_names *dies, struct cf_place *ret) {
    cf_place(p, est, dies, false, ret);
    return ret->kind == CF_PLACED;
}

/* The estimate with KV for a shorter context: KV grows with the context, whose multiples of 256 are whole pages. */
static struct cf_estimate shorter(struct cf_placer *p, const struct cf_estimate *est, int64_t ctx_cap) {
    struct cf_estimate s = *est;
    s.layer_kv_bytes = p->scaled;
    for (size_t i = 0; i < est->n_layers; i++)
        p->scaled[i] = (uint64_t)(((unsigned __int128)est->layer_kv_bytes[i] * (uint64_t)ctx_cap + (uint64_t)est->ctx_cap - 1) /
                                  (uint64_t)est->ctx_cap);
    return s;
}

static void separate(struct fo_buf *out, size_t start) {
    if (out->len > start) fo_buf_puts(out, "; ");
}

void cf_place_instead(struct cf_placer *p, const struct cf_estimate *est, const struct cf_names *dies, struct fo_buf *out) {
    static const struct cf_names free_choice = { NULL, 0 };
    struct cf_place got;
    size_t start = out->len, n_healthy = 0;
    int64_t most = est->ctx_cap > 0 ? (est->ctx_cap - 1) / CTX_STEP : 0, lo = 0, hi = most;
    while (lo < hi) { /* the largest multiple that fits */
        int64_t mid = lo + (hi - lo + 1) / 2;
        struct cf_estimate s = shorter(p, est, mid * CTX_STEP);
        if (would(p, &s, dies, &got))
            lo = mid;
        else
            hi = mid - 1;
    }
    if (lo > 0) {
        struct cf_estimate s = shorter(p, est, lo * CTX_STEP);
        would(p, &s, dies, &got);
        fo_buf_printf(out, "ctx_cap %lld", (long long)lo * CTX_STEP);
        if (dies->n == 0) fo_buf_printf(out, " on %s", got.parts[0].die);
    }
    if (dies->n && would(p, est, &free_choice, &got)) {
        separate(out, start);
        fo_buf_printf(out, "dies: %s", got.parts[0].die);
        return; /* whole on another die: no need to split */
    }
    for (size_t i = 0; i < p->facts->n_dies; i++) n_healthy += healthy(p, i);
    for (size_t n = 2; n <= n_healthy && n <= MAX_INSTEAD; n++) {
        char word[24], *name = word;
        snprintf(word, sizeof word, "auto:%zu", n);
        const struct cf_names split_over = { &name, 1 };
        if (cf_dies_auto(dies) == (int64_t)n || !would(p, est, &split_over, &got)) continue;
        separate(out, start);
        fo_buf_printf(out, "dies: %s", word);
        break;
    }
}
