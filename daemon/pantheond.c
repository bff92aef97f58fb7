/* pantheond: reads the manifest, serves what it declares. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/manifest.h"
#include "daemon/cert.h"
#include "daemon/gate.h"
#include "daemon/log.h"
#include "daemon/serve.h"
#include "daemon/source.h"
#include "daemon/std.h"
#include "engine/version.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/device.h"

#define DEFAULT_CONFIG "/etc/pantheon/models.yaml"
enum { EXIT_USAGE = 64 };

static void help(FILE *to) {
    fputs("usage: pantheond [--config FILE] [--check-config] [--log debug=AREAS] [--log-format json]\n"
          "\n"
          "Serves the models that the manifest declares over an OpenAI-compatible HTTP API.\n"
          "\n"
          "  --config FILE      the manifest; default " DEFAULT_CONFIG "\n"
          "  --check-config     check the manifest, its certificate and its keys, print every mistake, exit 0 or 1\n"
          "  --log debug=AREAS  debug notes of some areas (http,reconcile,sched) or of all\n"
          "  --log-format json  the log as one JSON object a line; text (the default) is key=value\n"
          "  --version          version and build\n"
          "  --help             this text\n"
          "\n"
          "Exit status: 0 stopped as asked (or the manifest is good), 1 cannot start (or it is not), 64 usage, 78 bad manifest.\n"
          "SIGHUP reads the manifest again. SIGTERM and SIGINT drain and stop; a second SIGINT stops at once.\n"
          "With a bad manifest at start the last accepted one serves (kept in STATE_DIRECTORY or /var/lib/pantheon).\n"
          "PANTHEON_BACKOFF_MS: first wait after a load that failed (10000), doubled each time up to 30 times that.\n",
          to);
}

/* --check-config: also of the files that a start reads. */
static int check_files(const char *config, const char *dir, const struct cf_manifest *m) {
    struct fo_err e;
    int n = 0;
    if (pd_cert_check(m, dir, &e)) n = fprintf(stderr, "%s: %s\n", config, e.msg);
    if (pd_gate_check(m, dir, &e)) n = fprintf(stderr, "%s: %s; nobody would be let in\n", config, e.msg);
    if (n) return 1;
    printf("%s: good, %zu model%s\n", config, m->n_models, m->n_models == 1 ? "" : "s");
    return 0;
}

/* The file, or, when it is bad, the copy of the last good one: *ret_generation is what that was accepted as. False = neither. On
 * success the reading is good; *ret_report says what is wrong with the file (heap), NULL = nothing. */
static bool read_manifest(const char *file, const char *state_dir, struct pd_reading *ret, uint64_t *ret_generation, char **ret_report) {
    struct pd_texts texts;
    struct fo_err e;
    *ret_generation = 0;
    *ret_report = NULL;
    bool good = pd_source_read(file, ret), kept = state_dir && pd_source_last(state_dir, file, &texts, ret_generation, &e) == FO_OK;
    if (!good) fprintf(stderr, "%s", ret->report ? ret->report : "pantheond: no memory to read the manifest\n");
    if (!kept) return good;
    if (good) {
        if (!pd_texts_equal(&texts, &ret->texts)) (*ret_generation)++; /* numbers go on over restarts */
        pd_texts_done(&texts);
        return true;
    }
    *ret_report = ret->report;
    ret->report = NULL;
    pd_reading_done(ret);
    if (pd_source_parse(&texts, ret)) return true;
    free(*ret_report);
    *ret_report = NULL;
    return false;
}

int main(int argc, char **argv) {
    static const struct option options[] = { { "config", required_argument, NULL, 'c' },  { "check-config", no_argument, NULL, 'k' },
                                             { "log", required_argument, NULL, 'l' },     { "log-format", required_argument, NULL, 'f' },
                                             { "help", no_argument, NULL, 'h' },
                                             { "version", no_argument, NULL, 'v' },       { NULL, 0, NULL, 0 } };
    const char *config = DEFAULT_CONFIG, *areas = NULL, *unknown;
    size_t n_unknown;
    bool check = false, json = false;
    pd_std_open();
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'c':
            config = optarg;
            break;
        case 'k':
            check = true;
            break;
        case 'l':
            if (strncmp(optarg, "debug=", 6) != 0 || !optarg[6]) {
                fprintf(stderr, "pantheond: --log takes debug=AREAS, as in --log debug=sched,http\n");
                return EXIT_USAGE;
            }
            areas = optarg + 6;
            if ((unknown = fo_log_unknown_area(areas, &n_unknown))) {
                fprintf(stderr, "pantheond: --log debug=%s: there is no area '%.*s'; there are %s, and all\n", areas, (int)n_unknown, unknown, fo_log_areas());
                return EXIT_USAGE;
            }
            break;
        case 'f':
            if (!pd_log_format(optarg, &json)) {
                fprintf(stderr, "pantheond: --log-format %s: text or json\n", optarg);
                return EXIT_USAGE;
            }
            break;
        case 'h':
            help(stdout);
            return 0;
        case 'v':
            printf("Pantheon v%s\nbackend=%s build=%s\n", pn_version(), fo_device_build_backend(), pn_build());
            return 0;
        default:
            help(stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "pantheond: '%s': no arguments but options are taken\n", argv[optind]);
        return EXIT_USAGE;
    }
    struct pd_reading r;
    uint64_t generation;
    char *report;
    const char *state_dir = check ? NULL : pd_source_state_dir();
    if (!read_manifest(config, state_dir, &r, &generation, &report)) {
        pd_reading_done(&r);
        if (strcmp(config, DEFAULT_CONFIG) == 0 && access(config, F_OK) != 0) fprintf(stderr, "pantheond: another manifest is named with --config FILE\n");
        return check ? 1 : PD_BAD_MANIFEST;
    }
    char *copy = strdup(config), *slash = copy ? strrchr(copy, '/') : NULL;
    if (slash) *slash = '\0';
    const char *dir = slash ? (*copy ? copy : "/") : NULL;
    if (check) {
        int status = check_files(config, dir, r.manifest);
        free(copy);
        pd_reading_done(&r);
        return status;
    }
    pd_log_open(areas, json);
    struct pd_serve_opts opts = { .config = config, .dir = dir, .state_dir = state_dir, .generation = generation, .bad_report = report };
    int status = pd_serve(&r, &opts);
    free(copy);
    free(report);
    pd_reading_done(&r);
    return status;
}
