/* What is read. Of the host: what is available (hostmem.h), less the pages of weights that our own maps use, which are page cache and only look
 * free. Of a die with memory of its own: what its driver says is free, against all that is not ours. What we hold there was taken as a whole when
 * a model was loaded; it can neither grow nor shrink, so what can become short is the rest, by others' use of it.
 *
 * The room of the host is what is available above ram_reserve. Of that each copy may take what is not promised to the others: their KV that
 * running requests hold and have not touched yet. */
#include "daemon/pressure.h"

#include <stdio.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/hostmem.h"
#include "daemon/http.h"
#include "daemon/world.h"
#include "engine/engine.h"
#include "engine/mem/ladder.h"
#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/units.h"

enum { IDLE_LOOK_MS = 2000 };

static uint64_t sub(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static struct pn_thresholds thresholds_of(const struct cf_pressure *p) {
    return (struct pn_thresholds){ .at = { 0, p->watch, p->tight, p->critical }, .leave = p->leave, .hold_ms = p->hold_ms };
}

static struct pn_reading read_host(void) {
    struct pd_hostmem h;
    pd_hostmem_read(pd_hostmem_root(), &h);
    return (struct pn_reading){ .total = h.total_bytes, .available = sub(h.available_bytes, pd_hostmem_mapped(pd_hostmem_root())), .psi_some = h.psi_some, .psi_full = h.psi_full };
}

static struct pn_reading read_die(const struct pd_world *w, const struct pd_die *d) {
    uint64_t ours = 0;
    for (size_t i = 0; i < w->n_instances; i++)
        for (size_t k = 0; k < w->instances[i]->n_parts; k++) {
            const struct cf_part *p = &w->instances[i]->parts[k];
            if (strcmp(p->die, d->name) == 0) ours += p->weights_bytes + p->kv_bytes + p->scratch_bytes;
        }
    return (struct pn_reading){ .total = sub(d->total_bytes, ours), .available = d->free_bytes };
}

/* Judges a reading, and says so when the level is another one. */
static bool judge(struct pd_app *app, const char *where, struct pn_pressure *p, const struct pn_thresholds *t, const struct pn_reading *r, uint64_t now_ms) {
    enum pn_level before = p->level;
    char total[16], available[16], stalls[96] = "";
    if (!pn_pressure_take(p, t, r, now_ms)) return false;
    if (r->psi_some > 0) snprintf(stalls, sizeof stalls, "; some tasks waited for memory %.1f%% of the time, all %.1f%%", r->psi_some, r->psi_full);
    pd_app_event(app, p->level > before ? PD_EV_MEMORY_PRESSURE : PD_EV_MEMORY_RELIEVED, NULL, "%s: %s, was %s: %.1f%% in use, %s of %s available%s", where, pn_level_name(p->level), pn_level_name(before), pn_reading_use(r),
                 fo_format_bytes(r->available, available, sizeof available), fo_format_bytes(r->total, total, sizeof total), stalls);
    return true;
}

/* The level of a copy, the highest of its dies', and whether its memory is the host's anywhere. */
static enum pn_level level_of(struct pd_world *w, const struct pd_instance *inst, bool *ret_host) {
    enum pn_level level = PN_NORMAL;
    *ret_host = false;
    for (size_t k = 0; k < inst->n_parts; k++) {
        const struct pd_die *d = pd_world_die(w, inst->parts[k].die);
        enum pn_level is = !d ? PN_NORMAL : d->host ? w->pressure.level : d->pressure.level;
        if (is > level) level = is;
        *ret_host |= d && d->host;
    }
    return level;
}

/* The rungs between two levels, in the order in which they are applied or undone. */
static void say_rungs(struct pd_app *app, const char *model, enum pn_level from, enum pn_level to) {
    size_t is = pn_rungs_at_level(to);
    for (size_t n = pn_rungs_at_level(from); n < is; n++) pd_app_event(app, PD_EV_RUNG_APPLIED, model, "%s: %s", pn_rung_at(n)->name, pn_rung_at(n)->what);
    for (size_t n = pn_rungs_at_level(from); n > is; n--) pd_app_event(app, PD_EV_RUNG_UNDONE, model, "%s", pn_rung_at(n - 1)->name);
}

/* Tells each copy that serves; `room` is all copies'. */
static bool tell(struct pd_app *app, struct pd_world *w, uint64_t room) {
    uint64_t promised = 0;
    bool changed = false;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < w->n_instances; i++) {
            struct pd_instance *inst = w->instances[i];
            bool host;
            enum pn_level level = level_of(w, inst, &host);
            struct pn_served *s = inst->state == CF_I_READY ? pn_engine_get_replica(app->engine, inst->name, (uint32_t)inst->replica) : NULL;
            struct pn_served_status st;
            if (!s) continue;
            pn_served_status(s, &st);
            if (pass == 0) {
                promised += host ? st.promised_bytes : 0;
            } else {
                pn_served_set_memory(s, level, host && room != UINT64_MAX ? sub(room, promised - (st.promised_bytes < promised ? st.promised_bytes : promised)) : UINT64_MAX);
                if (level != inst->level) say_rungs(app, inst->name, inst->level, level);
                changed |= level != inst->level;
                inst->level = level;
            }
            pn_served_put(s);
        }
    return changed;
}

/* Whether a look may change what somebody feels now. */
static bool matters(struct pd_app *app, const struct pd_world *w) {
    bool is_short = w->pressure.level > PN_NORMAL;
    for (size_t i = 0; i < w->n_dies; i++) is_short |= w->dies[i].pressure.level > PN_NORMAL;
    return is_short || pn_engine_active(app->engine) > 0;
}

bool pd_pressure_look(struct pd_app *app, struct pd_world *w, const struct cf_manifest *m, uint64_t now_ms) {
    if (now_ms - w->pressure_look_ms < IDLE_LOOK_MS && !matters(app, w)) return false;
    w->pressure_look_ms = now_ms;
    const struct pn_thresholds t = thresholds_of(&m->pressure);
    struct pn_reading host = read_host();
    char where[80];
    bool changed = judge(app, "host", &w->pressure, &t, &host, now_ms);
    for (size_t i = 0; i < w->n_dies; i++) {
        struct pd_die *d = &w->dies[i];
        if (d->host || d->lost) continue;
        struct pn_reading r = read_die(w, d);
        snprintf(where, sizeof where, "die %s", d->name);
        changed |= judge(app, where, &d->pressure, &t, &r, now_ms);
    }
    return tell(app, w, host.total ? sub(host.available, m->host.ram_reserve_bytes) : UINT64_MAX) || changed;
}

/* --- what of it a client is told --- */

void pd_pressure_effects(const struct pn_model_info *info, const struct pn_served_status *st, char *ret, size_t size) {
    const struct pn_effective *d = &st->declared, *f = &st->effective;
    const char *k = pn_kv_type_name(info->k_floor), *v = pn_kv_type_name(info->v_floor);
    struct fo_buf b;
    fo_buf_init(&b, size - 1);
    if (f->kv_floor && !d->kv_floor && (info->k_floor != info->k_type || info->v_floor != info->v_type)) fo_buf_printf(&b, strcmp(k, v) == 0 ? "kv=%s" : "kv=%s/%s", k, v);
    if (f->max_concurrent < d->max_concurrent) fo_buf_printf(&b, "%smax_concurrent=%u", b.len ? ", " : "", f->max_concurrent);
    if (f->prefill_chunk < d->prefill_chunk) fo_buf_printf(&b, "%sprefill_chunk=%u", b.len ? ", " : "", f->prefill_chunk);
    snprintf(ret, size, "%s", b.len ? fo_buf_str(&b) : "");
    fo_buf_done(&b);
}

void pd_pressure_note(struct pd_call *c, const struct pn_served *s, const struct pn_budget *budget) {
    struct pn_served_status st;
    char effects[96];
    size_t n = strlen(c->headers);
    c->note.kv_need += budget->kv_bytes_needed;
    c->note.kv_have = budget->kv_bytes_available;
    pn_served_status(s, &st);
    if (st.level == PN_NORMAL || strstr(c->headers, "x-pantheon-pressure")) return;
    pd_pressure_effects(pn_model_info(pn_served_model(s)), &st, effects, sizeof effects);
    if (*effects && n + sizeof effects + 48 < sizeof c->headers) snprintf(c->headers + n, sizeof c->headers - n, "x-pantheon-pressure: %s; %s\r\n", pn_level_name(st.level), effects);
}

void pd_pressure_text(const struct pd_world *w, char *ret, size_t size) {
    struct fo_buf b;
    fo_buf_init(&b, size - 1);
    for (int level = PN_CRITICAL; level > PN_NORMAL; level--) {
        const char *before = b.len ? ", " : "memory "; /* of this level's first */
        for (size_t i = 0; i <= w->n_dies; i++) {
            const struct pd_die *d = i > 0 ? &w->dies[i - 1] : NULL; /* the host comes first */
            if ((int)(d ? d->pressure.level : w->pressure.level) != level) continue;
            if (before) fo_buf_printf(&b, "%s%s on ", before, pn_level_name((enum pn_level)level));
            fo_buf_printf(&b, "%s%s", before ? "" : " and ", d ? d->name : "host");
            before = NULL;
        }
    }
    snprintf(ret, size, "%s", b.len ? fo_buf_str(&b) : "");
    fo_buf_done(&b);
}
