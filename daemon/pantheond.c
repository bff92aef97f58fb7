/* pantheond: reads the manifest, serves what it declares. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/log.h"
#include "daemon/serve.h"
#include "daemon/std.h"
#include "engine/version.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/device.h"

#define DEFAULT_CONFIG "/etc/pantheon/models.yaml"
enum { MAX_MANIFEST_BYTES = 1 << 20, EXIT_USAGE = 64 };

static void help(FILE *to) {
    fputs("usage: pantheond [--config FILE] [--check-config] [--log debug=AREAS]\n"
          "\n"
          "Serves the models that the manifest declares over an OpenAI-compatible HTTP API.\n"
          "\n"
          "  --config FILE      the manifest; default " DEFAULT_CONFIG "\n"
          "  --check-config     check the manifest, print every mistake, exit 0 or 1\n"
          "  --log debug=AREAS  debug notes of some areas (sched,kv,mem,http,...) or of all\n"
          "  --version          version and build\n"
          "  --help             this text\n"
          "\n"
          "Exit status: 0 stopped as asked (or the manifest is good), 1 cannot start (or it is not), 64 usage, 78 bad manifest.\n"
          "SIGTERM and SIGINT drain and stop; a second SIGINT stops at once.\n",
          to);
}

/* Every finding of a bad manifest as people read it. */
static void print_report(const struct cf_report *r, const char *file, const char *text, size_t len) {
    for (size_t i = 0; i < r->n; i++) {
        char *line = cf_finding_format(&r->findings[i], file, text, len);
        if (line) fprintf(stderr, "%s%s", line, *line && line[strlen(line) - 1] == '\n' ? "" : "\n");
        else fprintf(stderr, "%s:%d:%d: error: %s\n", file, r->findings[i].line, r->findings[i].col, r->findings[i].text);
        free(line);
    }
    if (r->cut) fprintf(stderr, "%s: there are more mistakes than these %zu\n", file, r->n);
}

/* Reads and parses; on failure everything is said on stderr already. */
static bool read_manifest(const char *file, struct cf_manifest **ret) {
    struct fo_err e;
    struct cf_report report = { 0 };
    char *text;
    size_t len;
    if (fo_file_read(file, MAX_MANIFEST_BYTES, &text, &len, &e)) {
        fprintf(stderr, "pantheond: %s\n", e.msg);
        return false;
    }
    bool ok = cf_manifest_parse(text, len, ret, &report, &e) == FO_OK;
    if (!ok && report.n == 0) fprintf(stderr, "pantheond: %s: %s\n", file, e.msg);
    if (!ok) print_report(&report, file, text, len);
    cf_report_done(&report);
    free(text);
    return ok;
}

int main(int argc, char **argv) {
    static const struct option options[] = { { "config", required_argument, NULL, 'c' },  { "check-config", no_argument, NULL, 'k' },
                                             { "log", required_argument, NULL, 'l' },     { "help", no_argument, NULL, 'h' },
                                             { "version", no_argument, NULL, 'v' },       { NULL, 0, NULL, 0 } };
    const char *config = DEFAULT_CONFIG, *areas = NULL;
    bool check = false;
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
    struct cf_manifest *m;
    if (!read_manifest(config, &m)) return check ? 1 : PD_BAD_MANIFEST;
    if (check) {
        printf("%s: good, %zu model%s\n", config, m->n_models, m->n_models == 1 ? "" : "s");
        cf_manifest_free(m);
        return 0;
    }
    pd_log_open(areas);
    char *dir = strdup(config), *slash = dir ? strrchr(dir, '/') : NULL;
    if (slash) *slash = '\0';
    struct pd_serve_opts opts = { 0 };
    int status = pd_serve(m, slash ? (*dir ? dir : "/") : NULL, &opts);
    free(dir);
    cf_manifest_free(m);
    return status;
}
