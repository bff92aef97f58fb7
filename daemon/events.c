/* Events: see events.h. The newest PD_MAX_EVENTS stand in app->events, event n at n % PD_MAX_EVENTS, under app->lock. */
#include "daemon/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/app.h"
#include "daemon/log.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

static const struct pd_event_kind kinds[PD_N_EVENT_KINDS] = {
    [PD_EV_MANIFEST_ACCEPTED] = { "manifest_accepted", "56b1b63578bb473e9040a06d63e6314c", false, "A manifest came into force: its generation, and how many models it declares." },
    [PD_EV_MANIFEST_UNCHANGED] = { "manifest_unchanged", "948ddeddcf624e8c947b876a88fca4e7", false, "The manifest was read again, and is byte for byte the one in force." },
    [PD_EV_MANIFEST_REFUSED] = { "manifest_refused", "2cb03af2beb04e7bbad6cb022770b36a", true, "The manifest has errors, or asks for what this machine has not: the one before stays in force." },
    [PD_EV_MANIFEST_KEPT_SERVES] = { "manifest_kept_serves", "2e25f9ccec7e48b1b822c4c27273529e", true, "The manifest was bad at the start: the last accepted one serves." },
    [PD_EV_MANIFEST_NOT_KEPT] = { "manifest_not_kept", "dcbb07b37691435086d355c39ffd3bc9", true, "No copy of an accepted manifest could be kept for a restart with a bad one." },
    [PD_EV_RELOAD_IGNORED] = { "reload_ignored", "38fcd2be76ac4b8c9790437523196f6b", true, "Somebody asked for the manifest to be read again, and there is no file of it." },
    [PD_EV_ADMIN_RELOAD] = { "admin_reload", "e3883db0685046a0a00c484f29301661", false, "Somebody asked for the manifest to be read again." },
    [PD_EV_ADMIN_LOAD] = { "admin_load", "c1993c969bbe46e0b7950eaddc4427a0", false, "Somebody asked for a model to be loaded." },
    [PD_EV_ADMIN_UNLOAD] = { "admin_unload", "8b2fc51698f74c22a190071f69ddd75b", false, "Somebody asked for a model to be unloaded." },
    [PD_EV_ADMIN_PRUNE] = { "admin_prune", "0d952d3335d04dfdbe85ae2893b22030", false, "Somebody asked for the models that the manifest does not declare to be unloaded." },
    [PD_EV_LOAD_STARTED] = { "load_started", "b3b2889514ee4527be4b4752c4f3a13f", false, "A model is being loaded: on which dies, and why." },
    [PD_EV_LOAD_DONE] = { "load_done", "33ae0603de5d47ae85ef0e4525df7114", false, "A model was loaded and serves." },
    [PD_EV_RELOAD_STARTED] = { "reload_started", "8e2d75778771492a835fec290ce50314", false, "A model is being loaded in a new form." },
    [PD_EV_RELOAD_DONE] = { "reload_done", "707c0e20aa3f418d82c3c91bd94cc5e7", false, "A model serves in its new form." },
    [PD_EV_UNLOAD_STARTED] = { "unload_started", "4087a21144ce4579acaccef128197159", false, "A model ends what runs there, and is unloaded then." },
    [PD_EV_UNLOAD_DONE] = { "unload_done", "34abca841d204798ba130548ea873c4f", false, "A model was unloaded." },
    [PD_EV_CHANGED] = { "changed", "b33517c7c7b24b6f9c1100b3c67108f9", false, "Keys of a model that take effect at once were changed." },
    [PD_EV_SETTLED] = { "settled", "4f0ccc14839849199ac6d82099ead87c", false, "Memory that an unload freed came back a little later." },
    [PD_EV_ROLLED_BACK] = { "rolled_back", "3e5150de67af49dcaf521590b09d8feb", true, "The new form of a model could not be loaded: the old one serves." },
    [PD_EV_ROLLBACK_FAILED] = { "rollback_failed", "2ad3f4474a56403d86f6935329d1eae7", true, "Nor could the old form be loaded again." },
    [PD_EV_FETCH_STARTED] = { "fetch_started", "686dd4752ad2495abe929ad837bee285", false, "A model's file is being fetched, or held against its sha256: from where." },
    [PD_EV_FETCH_RESUMED] = { "fetch_resumed", "5d530506a6264a08804907efc46b2945", false, "The download went on where one before it had ended." },
    [PD_EV_FETCH_DONE] = { "fetch_done", "4b658fa28507431bb306e4d8ccb8a605", false, "A model's file is in place, and right." },
    [PD_EV_FETCH_FAILED] = { "fetch_failed", "3ad67866cf1d4322929247da1b12e4aa", true, "It is not: the reason in a word and in a sentence, and when the next try is." },
    [PD_EV_MODEL_FAILED] = { "model_failed", "0e9bbdcdc0eb4141931b0dab3ac42d48", true, "A load failed, or a model failed while it served: the reason, and when the next try is." },
    [PD_EV_MODEL_REFUSED] = { "model_refused", "1d84982d677948c6bbc2397aaa6fc34b", true, "A model does not fit, or its file cannot be served: what it needs and what there is." },
    [PD_EV_GATE_OVERRIDDEN] = { "gate_overridden", "f3937ce7fe32479eb56e836a7565e9c1", true, "A model is loaded although the estimate says that it does not fit (`memory: trust`)." },
    [PD_EV_DIE_LOST] = { "die_lost", "61eb94672d7f4d9ebd4a6541490ba941", true, "A die does not answer any more." },
    [PD_EV_DIE_BACK] = { "die_back", "7a49bf15e30141b4aebca390523a0fd2", false, "A die answers again." },
    [PD_EV_MEMORY_PRESSURE] = { "memory_pressure", "448e14f44c284774b76b3a0ccde4728e", true, "Memory of the host or of a die got shorter: its level and the readings." },
    [PD_EV_MEMORY_RELIEVED] = { "memory_relieved", "3490b6899e16492195e75fa880da2d80", false, "Memory of the host or of a die got less short." },
    [PD_EV_RUNG_APPLIED] = { "rung_applied", "41e1f5ada82c41a4b6c861e59fad1703", true, "A model gives way by one rung more (memory.md)." },
    [PD_EV_RUNG_UNDONE] = { "rung_undone", "1ce1f8d66e9849aa8f44d513d42c9de1", false, "A model has that rung back." },
    [PD_EV_SESSIONS_SAVED] = { "sessions_saved", "8c95006d63644569a59d5208011fbb9f", false, "Conversations of a model that is unloaded were kept on disk." },
    [PD_EV_SESSIONS_NOT_SAVED] = { "sessions_not_saved", "e14db320acdc4afca617a6d0ab574f0f", true, "Some of them could not be." },
    [PD_EV_SESSIONS_RESTORED] = { "sessions_restored", "f882dc32591d4f7ea96aaffa28fe9b3a", false, "Conversations were read back from disk." },
    [PD_EV_SESSIONS_NOT_RESTORED] = { "sessions_not_restored", "5bcaf1c10c76404c9c076ed9f4bec2d7", true, "They could not be." },
    [PD_EV_SESSION_DROPPED] = { "session_dropped", "698e348f7a0040c0b3ead4c9eebe6dd0", true, "A kept conversation is damaged, and its file was removed." },
    [PD_EV_SESSION_OUTDATED] = { "session_outdated", "2e44c46a1d5a461194eb5acf4485aa79", false, "A kept conversation is of another form of the model, and its file was removed." },
    [PD_EV_KEYS_ACCEPTED] = { "keys_accepted", "457f37b1fcae486baf30144805dbf6a6", false, "The file of API keys was read and is in force." },
    [PD_EV_KEYS_EXPOSED] = { "keys_exposed", "365dfe4e8ed54c8caf825062e5f6116e", true, "The same, and others than its owner may read or write that file." },
    [PD_EV_KEYS_REFUSED] = { "keys_refused", "e7ecb33045f341d18f42d4d6013dd414", true, "The file of API keys cannot be used: the keys before stay in force." },
    [PD_EV_TLS_ACCEPTED] = { "tls_accepted", "c8891a372a1444819f40d85b3b24adc0", false, "A certificate was read and is in force." },
    [PD_EV_TLS_EXPIRED] = { "tls_expired", "c6ff866523d44841bc03831a079338fa", true, "The certificate in force has expired." },
    [PD_EV_TLS_REFUSED] = { "tls_refused", "b551cb141c6040198ebaeffee53d1ba2", true, "The certificate cannot be used: the one before stays in force." },
};

const struct pd_event_kind *pd_event_kind(enum pd_event_id id) {
    return &kinds[id];
}

__attribute__((format(printf, 5, 0))) static void note(struct pd_app *app, enum pd_event_id id, const char *model, const char *who, const char *fmt, va_list ap) {
    const struct pd_event_kind *k = &kinds[id];
    struct pd_event ev = { .time = time(NULL), .id = id };
    char name[160], text[448], asker[128], of_model[176] = "", by[136] = "";
    vsnprintf(ev.text, sizeof ev.text, fmt, ap);
    snprintf(ev.model, sizeof ev.model, "%s", model ? model : "");
    snprintf(ev.who, sizeof ev.who, "%s", who ? who : "");
    fo_text_defuse(ev.text);
    if (*ev.model) snprintf(of_model, sizeof of_model, " model=%s", pd_log_quote(ev.model, name, sizeof name));
    if (*ev.who) snprintf(by, sizeof by, " who=%s", pd_log_quote(ev.who, asker, sizeof asker));
    const struct pd_log_fields fields = { .message_id = k->message_id, .event = k->name, .model = ev.model, .who = ev.who };
    pd_log_with(&fields, k->bad ? FO_LOG_WARN : FO_LOG_INFO, "reconcile", "event=%s%s%s text=%s", k->name, of_model, by, pd_log_quote(ev.text, text, sizeof text));
    pthread_mutex_lock(&app->lock);
    ev.seq = app->next_event++;
    app->events[ev.seq % PD_MAX_EVENTS] = ev;
    pthread_cond_broadcast(&app->changed);
    pthread_mutex_unlock(&app->lock);
}

void pd_app_event(struct pd_app *app, enum pd_event_id id, const char *model, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(app, id, model, NULL, fmt, ap);
    va_end(ap);
}

void pd_app_event_by(struct pd_app *app, enum pd_event_id id, const char *model, const char *who, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(app, id, model, who, fmt, ap);
    va_end(ap);
}

uint64_t pd_app_last_event(struct pd_app *app) {
    pthread_mutex_lock(&app->lock);
    uint64_t last = app->next_event - 1;
    pthread_mutex_unlock(&app->lock);
    return last;
}

bool pd_app_next_event(struct pd_app *app, uint64_t after, const char *model, struct pd_event *ret) {
    bool found = false;
    pthread_mutex_lock(&app->lock);
    uint64_t first = app->next_event > PD_MAX_EVENTS ? app->next_event - PD_MAX_EVENTS : 1;
    if (after >= first) first = after < app->next_event ? after + 1 : app->next_event;
    for (uint64_t n = first; n < app->next_event && !found; n++) {
        const struct pd_event *ev = &app->events[n % PD_MAX_EVENTS];
        if (model && strcmp(ev->model, model) != 0) continue;
        *ret = *ev;
        found = true;
    }
    pthread_mutex_unlock(&app->lock);
    return found;
}

void pd_events_doc(struct fo_buf *out) {
    fo_buf_printf(out, "<!-- Generated by the table in daemon/events.c (UPDATE=1 tests/daemon/test_events): do not edit. -->\n"
                       "# Events\n\nWhat happens to the server and its models, once each: a line of the log, a row of `GET /admin/events` (the newest %d since the start), and, under "
                       "systemd, an entry of the journal with fields. `MESSAGE_ID` never changes: `journalctl MESSAGE_ID=...` finds all of a kind, "
                       "`journalctl -u pantheond PANTHEON_MODEL=chat` all of a model. `PANTHEON_EVENT` has the name, `PANTHEON_WHO` who asked for it (a user id and process of the Unix "
                       "socket, the name of an API key, `loopback`, or who sent the signal). Those in bold are warnings.\n\n"
                       "| event | MESSAGE_ID | |\n|---|---|---|\n",
                  PD_MAX_EVENTS);
    for (size_t i = 0; i < PD_N_EVENT_KINDS; i++)
        fo_buf_printf(out, "| %s`%s`%s | `%s` | %s |\n", kinds[i].bad ? "**" : "", kinds[i].name, kinds[i].bad ? "**" : "", kinds[i].message_id, kinds[i].doc);
}
