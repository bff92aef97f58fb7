/* What the loop is made of, without its thread: what host memory there is, dies that stay and go, how a state
 * and its conditions follow from facts and a plan, and the queue and ring between handlers and the loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/facts.h"
#include "config/judge.h"
#include "config/manifest.h"
#include "config/plan.h"
#include "daemon/actuate.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/facts.h"
#include "daemon/hostmem.h"
#include "daemon/oai.h"
#include "daemon/status.h"
#include "daemon/watch.h"
#include "daemon/world.h"
#include "engine/engine.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"
#include "tests/support/script.h"
#include "tests/support/folder.h"

static const struct pd_file_state no_file = { .ok = true, .reason = "NotConfigured" };

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    return test_folder_make(folder);
}

static int remove_folder(void **state) {
    (void)state;
    return test_folder_remove(folder);
}

static void put(const char *path, const char *text) {
    test_folder_put(folder, path, text);
}

static struct cf_manifest *parse(const char *text) {
    struct cf_manifest *m;
    struct cf_report rep;
    struct fo_err e;
    if (cf_manifest_parse(text, strlen(text), &m, &rep, &e)) fail_msg("%s", rep.n ? rep.findings[0].text : e.msg);
    cf_report_done(&rep);
    return m;
}

/* --- host memory --- */

#define MEMINFO "MemTotal:       8000000 kB\nMemFree:  100000 kB\nMemAvailable:    4000000 kB\n"
static const uint64_t KiB = 1024, MiB = 1024 * 1024;

static void the_smallest_limit_on_the_way_up_counts(void **state) {
    (void)state;
    struct pd_hostmem h;
    pd_hostmem_read(folder, &h); /* nothing there at all */
    assert_int_equal(h.total_bytes, 0);
    put("proc/meminfo", MEMINFO);
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.total_bytes, 8000000 * KiB);
    assert_int_equal(h.available_bytes, 4000000 * KiB);
    assert_int_equal(h.limited_by, PD_MEM_MEMINFO);
    /* v2: the group has no limit, its parent has; page cache is not used memory */
    put("proc/self/cgroup", "0::/system.slice/pantheond.service\n");
    put("sys/fs/cgroup/system.slice/pantheond.service/memory.max", "max\n");
    put("sys/fs/cgroup/system.slice/pantheond.service/memory.current", "1000\n");
    put("sys/fs/cgroup/system.slice/memory.max", "209715200\n");
    put("sys/fs/cgroup/system.slice/memory.current", "104857600\n");
    put("sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 10485760\nactive_file 20971520\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.total_bytes, 200 * MiB);
    assert_int_equal(h.available_bytes, 130 * MiB);
    assert_int_equal(h.limited_by, PD_MEM_CGROUP2);
    /* a hybrid host: v1 has the memory controller, and the tighter limit */
    put("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/system.slice/pantheond.service\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "104857600\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "52428800\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.stat", "total_inactive_file 0\ntotal_active_file 1048576\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.available_bytes, 51 * MiB);
    assert_int_equal(h.limited_by, PD_MEM_CGROUP1);
    /* no limit says v1 with a number near 2^63 */
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.limited_by, PD_MEM_CGROUP2);
    /* inside a container the path is not there: the mount's own root is the group */
    put("proc/self/cgroup", "5:memory:/not/visible/here\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "73400320\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "73400321\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.available_bytes, 0);
    assert_int_equal(h.total_bytes, 70 * MiB);
    put("proc/self/status", "Name:\tx\nRssAnon:\t   42 kB\nRssFile:\t  7 kB\n");
    assert_int_equal(pd_hostmem_touched(folder), 42 * KiB);
    assert_int_equal(pd_hostmem_mapped(folder), 7 * KiB);
    assert_int_equal(h.psi_some, 0); /* there was no such file */
}

static void a_soft_limit_and_stalls_are_read_too(void **state) {
    (void)state;
    struct pd_hostmem h;
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/soft.slice/x\n");
    put("sys/fs/cgroup/soft.slice/x/memory.max", "209715200\n");
    put("sys/fs/cgroup/soft.slice/x/memory.high", "104857600\n");
    put("sys/fs/cgroup/soft.slice/x/memory.current", "31457280\n");
    put("proc/pressure/memory", "some avg10=1.50 avg60=9.00 avg300=9.00 total=9\nfull avg10=0.25 avg60=9.00 avg300=9.00 total=9\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.total_bytes, 100 * MiB); /* above it, who asks waits */
    assert_int_equal(h.available_bytes, 70 * MiB);
    assert_int_equal(h.limited_by, PD_MEM_CGROUP2);
    assert_true(h.psi_some == 1.5 && h.psi_full == 0.25);
    /* without a hard limit the soft one stands, and none is none */
    put("sys/fs/cgroup/soft.slice/x/memory.max", "max\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.available_bytes, 70 * MiB);
    put("sys/fs/cgroup/soft.slice/x/memory.high", "max\n");
    put("sys/fs/cgroup/soft.slice/x/memory.pressure", "some avg10=42.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=0\n");
    pd_hostmem_read(folder, &h);
    assert_int_equal(h.limited_by, PD_MEM_MEMINFO);
    assert_true(h.psi_some == 42 && h.psi_full == 0.25); /* whichever binds */
}

/* --- dies --- */

static void dies_stay_come_and_go_with_the_manifest(void **state) {
    (void)state;
    struct pd_world w = { .threads = 1 };
    struct fo_err e;
    char restart[128];
    struct cf_manifest *one = parse("version: 1\ndies: [ { name: s0, kind: sim, memory: 4MiB }, { name: s1, kind: sim, memory: 4MiB } ]\nmodels: []\n");
    struct cf_manifest *two = parse("version: 1\ndies: [ { name: s1, kind: sim, memory: 8MiB, reserve: 1MiB }, { name: s2, kind: sim, memory: 4MiB } ]\nmodels: []\n");
    struct cf_manifest *bad = parse("version: 1\ndies: [ { name: s3, kind: sim, memory: 4MiB }, { name: s4, kind: sim, memory: 4MiB, script: nonsense } ]\nmodels: []\n");
    assert_int_equal(pd_world_set_dies(&w, one, restart, sizeof restart, &e), FO_OK);
    assert_int_equal(w.n_dies, 2);
    assert_string_equal(restart, "");
    struct fo_device *s1 = pd_world_die(&w, "s1")->dev;
    struct pd_instance *i = pd_world_add(&w, "m", 0);
    i->parts = calloc(1, sizeof *i->parts);
    i->n_parts = 1;
    snprintf(i->parts[0].die, sizeof i->parts[0].die, "s0");
    assert_int_equal(pd_world_set_dies(&w, two, restart, sizeof restart, &e), FO_OK);
    assert_ptr_equal(pd_world_die(&w, "s1")->dev, s1);
    assert_int_equal(pd_world_die(&w, "s1")->reserve_bytes, MiB);
    assert_string_equal(restart, "die 's1' changed");
    assert_non_null(pd_world_die(&w, "s2"));
    pd_world_close_dies(&w);
    assert_false(pd_world_die(&w, "s0")->wanted); /* a model is on it still */
    pd_world_remove(&w, i);
    assert_non_null(pd_world_die(&w, "s0"));
    pd_world_close_dies(&w);
    assert_null(pd_world_die(&w, "s0"));
    assert_int_equal(w.n_dies, 2);
    assert_int_not_equal(pd_world_set_dies(&w, bad, restart, sizeof restart, &e), FO_OK);
    assert_non_null(strstr(e.msg, "die 's4'"));
    assert_null(pd_world_die(&w, "s3")); /* nothing of a bad one stays */
    assert_non_null(pd_world_die(&w, "s2"));
    for (long n = 1;; n++) { /* without memory nothing is lost either */
        test_fail_alloc(n);
        int code = pd_world_set_dies(&w, one, restart, sizeof restart, &e);
        bool failed = test_alloc_failed();
        assert_true(code == FO_OK || (failed && pd_world_die(&w, "s1")));
        if (!failed) break;
    }
    pd_world_done(&w);
    cf_manifest_free(one);
    cf_manifest_free(two);
    cf_manifest_free(bad);
}

/* --- facts and status --- */

static struct pd_counted_manifest *counted(const char *yaml, uint64_t generation) {
    struct pd_counted_manifest *c = calloc(1, sizeof *c);
    atomic_init(&c->refs, 1);
    c->m = parse(yaml);
    c->generation = generation;
    return c;
}

/* A world of two sim dies and, of each model in `yaml`, an estimate. */
static void make_world(struct pd_world *w, const struct cf_manifest *m) {
    struct fo_err e;
    char restart[64];
    *w = (struct pd_world){ .threads = 1 };
    assert_int_equal(pd_world_set_dies(w, m, restart, sizeof restart, &e), FO_OK);
    w->estimates = calloc(m->n_models + 1, sizeof(struct pd_estimate *));
    for (size_t i = 0; i < m->n_models; i++) {
        assert_int_equal(pd_estimate_make(folder, &m->models[i], w->dies[0].dev, &w->estimates[i], &e), FO_OK);
        w->n_estimates++;
    }
}

static struct pd_view *look(struct pd_world *w, struct pd_counted_manifest *c, struct pn_engine *en, const struct pd_step *step, const struct pd_view *before) {
    struct cf_facts *f, *shown;
    struct cf_plan *p;
    struct fo_err e;
    assert_int_equal(pd_facts_gather(w, en, false, 1000, &f, &e), FO_OK);
    assert_int_equal(pd_facts_gather(w, en, false, 1000, &shown, &e), FO_OK);
    assert_int_equal(cf_plan_make(c->m, f, 0, &p, &e), FO_OK);
    struct pd_status_input in = { .world = w, .manifest = c, .facts = shown, .plan = p, .step = step, .before = before, .settled = !step, .first_pass_over = true, .manifest_ok = true, .now_ms = 1000, .report = "", .restart = "", .keys = &no_file, .tls = &no_file };
    struct pd_view *v = pd_status_view(&in);
    cf_plan_free(p);
    cf_facts_free(f);
    if (v) atomic_init(&v->refs, 1);
    return v;
}

static void instance(struct pd_world *w, const struct cf_model *spec, enum cf_instance_state state) {
    struct fo_err e;
    struct pd_instance *i = pd_world_add(w, spec->name, 0);
    assert_int_equal(cf_model_copy(spec, &i->spec, &e), FO_OK);
    i->state = state;
    i->generation = 3;
    i->parts = calloc(1, sizeof *i->parts);
    i->n_parts = 1;
    snprintf(i->parts[0].die, sizeof i->parts[0].die, "s0");
    i->parts[0].n_layers = 4;
}

static void states_and_conditions_follow_from_facts_and_plan(void **state) {
    (void)state;
    struct fo_err e;
    char path[128];
    struct test_script t = test_script_default();
    t.weights_bytes = MiB;
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    assert_int_equal(test_script_write(&t, path, &e), FO_OK);
    t.weights_bytes = 64 * MiB;
    snprintf(path, sizeof path, "%s/huge.gguf", folder);
    assert_int_equal(test_script_write(&t, path, &e), FO_OK);
    struct pd_counted_manifest *c = counted("version: 1\nhost: { ram_reserve: 1MiB }\ndies: [ { name: s0, kind: sim, memory: 20MiB } ]\nmodels:\n"
                                            "  - { name: serves, source: { path: m.gguf }, aliases: [ also ] }\n"
                                            "  - { name: huge, source: { path: huge.gguf } }\n"
                                            "  - { name: gone, source: { path: gone.gguf } }\n"
                                            "  - { name: held, source: { path: m.gguf } }\n"
                                            "  - { name: waits, source: { path: m.gguf } }\n"
                                            "  - { name: not, source: { path: m.gguf }, state: absent }\n"
                                            "  - { name: loads, source: { path: m.gguf } }\n",
                                            3);
    struct pd_world w;
    struct pn_engine *en;
    make_world(&w, c->m);
    assert_int_equal(pn_engine_new(&en, &e), FO_OK);
    instance(&w, &c->m->models[0], CF_I_READY);
    instance(&w, &c->m->models[6], CF_I_LOADING);
    pd_world_history(&w, "held")->admin_unloaded = true;
    struct pd_history *h = pd_world_history(&w, "waits");
    h->failures = 2;
    h->retry_at_ms = 4000;
    snprintf(h->last_error, sizeof h->last_error, "the die said no");
    struct cf_model *wish;
    struct cf_report rep;
    const char *keys = "{\"name\": \"wish\", \"source\": {\"path\": \"m.gguf\"}}";
    assert_int_equal(cf_model_parse(keys, strlen(keys), NULL, &wish, &rep, &e), FO_OK);
    cf_report_done(&rep);
    pd_world_history(&w, "wish")->ad_hoc = wish;
    struct pd_view *v = look(&w, c, en, NULL, NULL);
    static const struct {
        const char *name;
        enum pd_model_state state;
        const char *ready, *text;
    } want[] = {
        { "serves", PD_MODEL_READY, "Serving", "" },          { "huge", PD_MODEL_REFUSED, "DoesNotFit", "needs" }, { "gone", PD_MODEL_FAILED, "FileNotUsable", "gone.gguf" },
        { "held", PD_MODEL_HELD, "AdminUnloaded", "" },       { "waits", PD_MODEL_FAILED, "Backoff", "the die said no (next try in 4 s)" },
        { "not", PD_MODEL_ABSENT, "Absent", "" },             { "loads", PD_MODEL_LOADING, "Loading", "" },
        { "wish", PD_MODEL_WAITING, "Pending", "" },
    };
    assert_int_equal(v->n, sizeof want / sizeof *want);
    for (size_t i = 0; i < v->n; i++) {
        const struct pd_entry *x = pd_view_find(v, want[i].name);
        assert_non_null(x);
        if (x->state != want[i].state) fail_msg("%s is %s", want[i].name, pd_model_state_name(x->state));
        assert_string_equal(x->conditions[PD_C_READY].reason, want[i].ready);
        assert_non_null(strstr(x->reason, want[i].text));
        assert_int_equal(x->conditions[PD_C_READY].is, x->state == PD_MODEL_READY);
        assert_int_equal(x->ad_hoc, strcmp(want[i].name, "wish") == 0);
    }
    assert_ptr_equal(pd_view_find(v, "also"), pd_view_find(v, "serves"));
    assert_null(pd_view_find(v, "als"));
    assert_int_equal(v->n_refused, 2);
    assert_int_equal(v->n_failing, 1);
    assert_false(v->conditions[PD_S_RECONCILED].is);
    assert_string_equal(v->conditions[PD_S_RECONCILED].reason, "Refused");
    assert_int_equal(pd_view_find(v, "serves")->observed_generation, 3);
    /* times go on as long as nothing changes */
    ((struct pd_entry *)pd_view_find(v, "serves"))->since = 5;
    ((struct pd_entry *)pd_view_find(v, "serves"))->conditions[PD_C_READY].since = 6;
    struct pd_view *next = look(&w, c, en, NULL, v);
    assert_int_equal(pd_view_find(next, "serves")->since, 5);
    assert_int_equal(pd_view_find(next, "serves")->conditions[PD_C_READY].since, 6);
    pd_view_put(next);
    /* a copy that fails is not ready any more, whoever asks */
    w.instances[0]->state = CF_I_FAILED;
    snprintf(w.instances[0]->reason, sizeof w.instances[0]->reason, "op 7 failed");
    next = look(&w, c, en, NULL, v);
    const struct pd_entry *x = pd_view_find(next, "serves");
    assert_int_equal(x->state, PD_MODEL_FAILED);
    assert_string_equal(x->reason, "op 7 failed");
    assert_false(x->conditions[PD_C_HEALTHY].is);
    assert_int_not_equal(x->conditions[PD_C_READY].since, 6);
    pd_view_put(next);
    for (long n = 1;; n++) { /* no memory: no view, no leak */
        struct cf_facts *f;
        assert_int_equal(pd_facts_gather(&w, en, false, 1000, &f, &e), FO_OK);
        struct pd_status_input in = { .world = &w, .manifest = c, .facts = f, .before = v, .report = "", .restart = "", .keys = &no_file, .tls = &no_file };
        test_fail_alloc(n);
        next = pd_status_view(&in);
        if (!test_alloc_failed()) break;
        assert_null(next);
    }
    atomic_init(&next->refs, 1);
    pd_view_put(next);
    pd_view_put(v);
    pd_counted_manifest_put(c);
    pn_engine_free(en);
    pd_world_done(&w);
}

/* Loaded on demand: what is told of one that nobody asked for, that is asked for, that has no place, and whose file is none. */
static void a_model_on_demand_is_there_before_it_is_loaded(void **state) {
    (void)state;
    struct fo_err e;
    char path[128];
    struct test_script t = test_script_default();
    t.weights_bytes = 8 * MiB;
    snprintf(path, sizeof path, "%s/eight.gguf", folder);
    assert_int_equal(test_script_write(&t, path, &e), FO_OK);
    struct pd_counted_manifest *c = counted("version: 1\nhost: { ram_reserve: 1MiB }\ndies: [ { name: s0, kind: sim, memory: 24MiB } ]\nmodels:\n"
                                            "  - { name: pinned, source: { path: eight.gguf } }\n"
                                            "  - { name: comes, source: { path: eight.gguf }, state: on_demand, aliases: [ also ] }\n"
                                            "  - { name: none, source: { path: gone.gguf }, state: on_demand }\n"
                                            "  - { name: calm, source: { path: eight.gguf }, state: on_demand }\n",
                                            3);
    struct pd_world w;
    struct pn_engine *en;
    struct pd_error x;
    make_world(&w, c->m);
    assert_int_equal(pn_engine_new(&en, &e), FO_OK);
    struct pd_view *v = look(&w, c, en, NULL, NULL);
    assert_int_equal(pd_view_find(v, "also")->state, PD_MODEL_ON_DEMAND);
    assert_string_equal(pd_view_find(v, "calm")->conditions[PD_C_READY].reason, "OnDemand");
    assert_int_equal(pd_view_find(v, "none")->state, PD_MODEL_FAILED);
    assert_true(pd_entry_comes(pd_view_find(v, "calm")) && !pd_entry_comes(pd_view_find(v, "none")) && !pd_entry_comes(pd_view_find(v, "pinned")));
    pd_entry_refusal(pd_view_find(v, "calm"), &x);
    assert_int_equal(x.id, PD_ERR_LOADING);
    assert_in_range(x.retry_after_s, 1, 2);
    pd_view_put(v);
    /* its place is another's that does not give way */
    instance(&w, &c->m->models[0], CF_I_READY);
    w.instances[0]->parts[0].weights_bytes = 20 * MiB;
    struct pd_history *h = pd_world_history(&w, "comes");
    h->wanted_at_ms = 900;
    v = look(&w, c, en, NULL, NULL);
    const struct pd_entry *comes = pd_view_find(v, "comes");
    assert_int_equal(comes->state, PD_MODEL_REFUSED);
    assert_true(comes->wanted && comes->pinned && comes->need_bytes > comes->have_bytes);
    assert_string_equal(comes->conditions[PD_C_PLACED].reason, "WouldEvictPinned");
    pd_entry_refusal(comes, &x);
    assert_int_equal(x.id, PD_ERR_PINNED);
    assert_true(x.need_bytes == comes->need_bytes && x.have_bytes == comes->have_bytes && strstr(x.message, "'pinned'"));
    pd_view_put(v);
    /* there is room, and what its last load took is what a client is told, with what is left of the step at work */
    w.instances[0]->parts[0].weights_bytes = MiB;
    h->load_ms = 7500;
    pd_world_history(&w, "pinned")->load_ms = 4000;
    v = look(&w, c, en, NULL, NULL);
    assert_int_equal(pd_view_find(v, "comes")->state, PD_MODEL_WAITING);
    assert_int_equal(pd_view_find(v, "comes")->retry_after_s, 8);
    pd_view_put(v);
    struct pd_step *s = pd_step_new(PD_STEP_RELOAD);
    s->model = strdup("pinned");
    v = look(&w, c, en, s, NULL); /* it began at 0, and now is 1000 */
    assert_int_equal(pd_view_find(v, "comes")->retry_after_s, 11);
    pd_view_put(v);
    pd_step_free(s);
    pd_counted_manifest_put(c);
    pn_engine_free(en);
    pd_world_done(&w);
}

/* The gate at the moment of the load: what others were promised is not free, and what a load passes through the host counts while it does. */
static void the_host_is_read_again_before_a_load(void **state) {
    (void)state;
    struct fo_err e;
    char path[128], meminfo[96];
    struct test_script t = test_script_default();
    t.weights_bytes = 8 * MiB;
    snprintf(path, sizeof path, "%s/eight.gguf", folder);
    assert_int_equal(test_script_write(&t, path, &e), FO_OK);
    struct pd_counted_manifest *c = counted("version: 1\ndies: [ { name: s0, kind: sim, memory: 64MiB } ]\nmodels: [ { name: m, source: { path: eight.gguf } } ]\n", 1);
    struct pd_world w;
    struct pd_app app;
    struct pd_loader *l;
    make_world(&w, c->m);
    assert_int_equal(pd_app_init(&app, &e), FO_OK);
    assert_int_equal(pn_engine_new(&app.engine, &e), FO_OK);
    int bell = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(pd_loader_new(&app, bell, &l, &e), FO_OK);
    const struct cf_part part = { .die = "s0", .n_layers = (int64_t)w.estimates[0]->v.n_layers, .weights_bytes = 9 * MiB };
    put("proc/self/status", "Name:\tx\nRssAnon:\t   0 kB\n");
    put("proc/self/cgroup", "");
    setenv("PANTHEON_HOST_ROOT", folder, 1);
    /* 1 MiB for itself, 5 MiB through which it is loaded, 2 MiB that others were promised, a reserve of 3 MiB */
    for (uint64_t have = 10 * MiB; have <= 11 * MiB; have += MiB) {
        snprintf(meminfo, sizeof meminfo, "MemTotal: 8000000 kB\nMemAvailable: %llu kB\n", (unsigned long long)(have / KiB));
        put("proc/meminfo", meminfo);
        struct pd_step *s = pd_step_new(PD_STEP_LOAD), *done;
        s->model = strdup("m");
        s->dir = strdup(folder);
        s->load_timeout_ms = 60000;
        s->ram_reserve_bytes = 3 * MiB;
        s->others = (struct pd_held){ .anonymous_bytes = MiB, .mapped_bytes = MiB };
        assert_int_equal(pd_form_set(&s->want, &c->m->models[0], &part, 1, MiB, 5 * MiB, &e), FO_OK);
        s->want.devices[0] = w.dies[0].dev;
        uint64_t n;
        pd_loader_start(l, s);
        assert_int_equal(read(bell, &n, sizeof n), sizeof n);
        done = pd_loader_take(l);
        assert_ptr_equal(done, s);
        if (have == 10 * MiB) {
            assert_int_equal(done->code, FO_ENOMEM);
            assert_int_equal(done->err.need, 6 * MiB);
            assert_int_equal(done->err.have, 5 * MiB);
            assert_non_null(strstr(done->err.msg, "host memory: asked 6 MiB"));
        } else if (done->code)
            fail_msg("%s", done->err.msg);
        pd_step_free(done);
    }
    unsetenv("PANTHEON_HOST_ROOT");
    pd_loader_free(l);
    close(bell);
    pn_engine_free(app.engine);
    pd_app_done(&app);
    pd_counted_manifest_put(c);
    pd_world_done(&w);
}

/* Many requests for the same model are one wish, and only the first wakes the loop. */
static void a_wish_is_queued_once(void **state) {
    (void)state;
    struct pd_app app;
    struct fo_err e;
    uint64_t n;
    struct cf_manifest *m = parse("version: 1\nmodels: [ { name: a, source: { path: a }, state: on_demand }, { name: b, source: { path: b } } ]\n");
    struct pd_entry a = { .decl = &m->models[0], .declared = true, .state = PD_MODEL_ON_DEMAND }, b = { .decl = &m->models[1], .declared = true, .state = PD_MODEL_WAITING };
    assert_int_equal(pd_app_init(&app, &e), FO_OK);
    for (int i = 0; i < 5000; i++) pd_app_want(&app, &a);
    pd_app_want(&app, &b); /* is loaded anyhow */
    assert_int_equal(read(app.bell, &n, sizeof n), sizeof n);
    assert_int_equal(n, 1);
    struct pd_ask *list = pd_app_take_asks(&app);
    assert_true(list && !list->next && list->kind == PD_ASK_WANT);
    assert_string_equal(list->name, "a");
    pd_ask_free(list);
    a.wanted = true; /* the loop knows: it is told that somebody still waits, in its own time */
    pd_app_want(&app, &a);
    assert_int_equal(read(app.bell, &n, sizeof n), -1);
    pd_ask_free(pd_app_take_asks(&app));
    a.state = PD_MODEL_HELD;
    pd_app_want(&app, &a);
    assert_null(app.asks);
    pd_app_done(&app);
    cf_manifest_free(m);
}

static void facts_count_what_copies_hold_and_what_others_use(void **state) {
    (void)state;
    struct pd_counted_manifest *c = counted("version: 1\ndies: [ { name: s0, kind: sim, memory: 20MiB, reserve: 1MiB, script: 'foreign 3MiB' } ]\nmodels: [ { name: m, source: { path: gone.gguf } } ]\n", 1);
    struct pd_world w;
    struct pn_engine *en;
    struct cf_facts *f;
    struct fo_err e;
    bool changed;
    make_world(&w, c->m);
    assert_int_equal(pn_engine_new(&en, &e), FO_OK);
    instance(&w, &c->m->models[0], CF_I_LOADING);
    w.instances[0]->parts[0].weights_bytes = 2 * MiB;
    w.instances[0]->parts[0].kv_bytes = MiB;
    assert_int_equal(pd_facts_gather(&w, en, false, 42, &f, &e), FO_OK);
    assert_int_equal(f->now_ms, 42);
    assert_int_equal(f->dies[0].total_bytes, 20 * MiB);
    assert_int_equal(f->dies[0].reserve_bytes, MiB);
    assert_int_equal(f->dies[0].ours_bytes, 3 * MiB); /* in full, though nothing is allocated yet */
    assert_true(f->dies[0].foreign_bytes <= 3 * MiB);
    assert_true(f->dies[0].accelerator && !f->dies[0].host);
    assert_int_equal(f->n_estimates, 1);
    assert_non_null(strstr(f->estimates[0].error, "gone.gguf"));
    cf_facts_free(f);
    /* a copy that says it serves and is not in the engine is drift */
    w.instances[0]->state = CF_I_READY;
    pd_facts_look(&w, en, &changed);
    assert_true(changed);
    assert_int_equal(w.instances[0]->state, CF_I_FAILED);
    pd_facts_look(&w, en, &changed);
    assert_false(changed);
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int code = pd_facts_gather(&w, en, false, 42, &f, &e);
        if (!test_alloc_failed()) break;
        if (code == FO_OK) cf_facts_free(f); /* what of the host could not be read is left out */
        else assert_int_equal(code, FO_ENOMEM);
    }
    cf_facts_free(f);
    pn_engine_free(en);
    pd_world_done(&w);
    pd_counted_manifest_put(c);
}

static void an_estimate_is_stale_when_its_file_is_another(void **state) {
    (void)state;
    struct fo_err e;
    char path[128];
    struct test_script t = test_script_default();
    snprintf(path, sizeof path, "%s/late.gguf", folder);
    unlink(path);
    struct pd_counted_manifest *c = counted("version: 1\ndies: [ { name: s0, kind: sim, memory: 20MiB } ]\nmodels: [ { name: m, source: { path: late.gguf } } ]\n", 1);
    struct pd_world w;
    make_world(&w, c->m);
    struct pd_estimate *p = w.estimates[0];
    assert_non_null(p->v.error);
    assert_false(pd_estimate_stale(p, folder));
    assert_int_equal(test_script_write(&t, path, &e), FO_OK);
    assert_true(pd_estimate_stale(p, folder));
    pd_estimate_free(p);
    assert_int_equal(pd_estimate_make(folder, &c->m->models[0], w.dies[0].dev, &w.estimates[0], &e), FO_OK);
    assert_null(w.estimates[0]->v.error);
    assert_int_equal(w.estimates[0]->v.n_layers, 4);
    assert_true(cf_estimate_is_of(&w.estimates[0]->v, &c->m->models[0]));
    struct cf_model other = c->m->models[0];
    other.max_sessions++;
    assert_false(cf_estimate_is_of(&w.estimates[0]->v, &other));
    pd_world_done(&w);
    pd_counted_manifest_put(c);
}

/* --- between handlers and the loop --- */

static struct pd_view *bare_view(uint64_t asked, bool settled) {
    struct pd_view *v = calloc(1, sizeof *v);
    v->asked = asked;
    v->settled = settled;
    v->report = strdup("");
    v->entries = calloc(1, sizeof *v->entries);
    return v;
}

static void *publish_later(void *arg) {
    usleep(20 * 1000);
    pd_app_publish(arg, bare_view(1, false));
    usleep(20 * 1000);
    pd_app_publish(arg, bare_view(1, true));
    return NULL;
}

static void one_who_waits_is_woken_by_the_view_it_waits_for(void **state) {
    (void)state;
    struct pd_app app;
    struct fo_err e;
    pthread_t t;
    assert_int_equal(pd_app_init(&app, &e), FO_OK);
    pd_app_publish(&app, bare_view(0, true));
    pthread_create(&t, NULL, publish_later, &app);
    struct pd_view *v = pd_app_wait(&app, 1, true, 0, 5000);
    assert_true(v->asked == 1 && v->settled);
    pd_view_put(v);
    pthread_join(t, NULL);
    v = pd_app_wait(&app, 2, false, 0, 10); /* nobody publishes that: the newest */
    assert_int_equal(v->asked, 1);
    pd_view_put(v);
    pd_app_done(&app);
}

static void asks_come_in_order_and_are_bounded(void **state) {
    (void)state;
    struct pd_app app;
    struct fo_err e;
    uint64_t seq, last = 0;
    assert_int_equal(pd_app_init(&app, &e), FO_OK);
    for (int i = 0; i < PD_MAX_ASKS; i++) {
        assert_int_equal(pd_app_ask(&app, i % 2 ? PD_ASK_UNLOAD : PD_ASK_LOOK, i % 2 ? "m" : NULL, NULL, "", &seq, &e), FO_OK);
        assert_true(seq > last);
        last = seq;
    }
    assert_int_equal(pd_app_ask(&app, PD_ASK_LOOK, NULL, NULL, "", &seq, &e), FO_EBUSY);
    int n = 0;
    for (struct pd_ask *a = pd_app_take_asks(&app), *next; a; a = next, n++) {
        next = a->next;
        pd_ask_free(a);
    }
    assert_int_equal(n, PD_MAX_ASKS);
    assert_null(pd_app_take_asks(&app));
    for (long k = 1;; k++) {
        test_fail_alloc(k);
        int code = pd_app_ask(&app, PD_ASK_UNLOAD, "m", NULL, "", &seq, &e);
        if (!test_alloc_failed()) break;
        assert_int_equal(code, FO_ENOMEM);
    }
    pd_app_done(&app); /* frees the one that waits */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_smallest_limit_on_the_way_up_counts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_soft_limit_and_stalls_are_read_too, make_folder, remove_folder),
        cmocka_unit_test(dies_stay_come_and_go_with_the_manifest),
        cmocka_unit_test_setup_teardown(states_and_conditions_follow_from_facts_and_plan, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_model_on_demand_is_there_before_it_is_loaded, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_host_is_read_again_before_a_load, make_folder, remove_folder),
        cmocka_unit_test(a_wish_is_queued_once),
        cmocka_unit_test_setup_teardown(facts_count_what_copies_hold_and_what_others_use, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_estimate_is_stale_when_its_file_is_another, make_folder, remove_folder),
        cmocka_unit_test(one_who_waits_is_woken_by_the_view_it_waits_for),
        cmocka_unit_test(asks_come_in_order_and_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
