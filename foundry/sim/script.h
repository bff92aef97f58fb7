/* A sim die's script as values. Grammar and meaning: foundry/sim/README.md. Pure: text in, values out. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_err;

enum {
    FO_SIM_MAX_CLAUSES = 64,
    FO_SIM_MAX_PATH = 256,
    FO_SIM_MAX_DIES = 32,
    FO_SIM_MAX_NAME = 32 /* as fo_die.name, the NUL included */
};

/* What a script counts, each from 1 since the die was opened. */
enum fo_sim_subject {
    FO_SIM_ALLOC, /* blocks, and the scratch of streams */
    FO_SIM_FREE,
    FO_SIM_UPLOAD,
    FO_SIM_DOWNLOAD,
    FO_SIM_OP, /* every op, whichever */
    FO_SIM_GET_ROWS,
    FO_SIM_MATMUL,
    FO_SIM_RMS_NORM,
    FO_SIM_ADD,
    FO_SIM_ADD_ROWS,
    FO_SIM_SILU_MUL,
    FO_SIM_ROPE,
    FO_SIM_KV_STORE,
    FO_SIM_ATTEND,
    FO_SIM_KV_REQUANTISE,
    FO_SIM_N_SUBJECTS
};
const char *fo_sim_subject_name(enum fo_sim_subject s);

enum fo_sim_verb { FO_SIM_FAILS, FO_SIM_TAKES, FO_SIM_LATE, FO_SIM_FOREIGN, FO_SIM_FOREIGN_FILE, FO_SIM_LOST_AT, FO_SIM_LOST_AFTER, FO_SIM_LOST_FILE, FO_SIM_READS };

enum fo_sim_reading { FO_SIM_TEMPERATURE, FO_SIM_POWER, FO_SIM_CORRECTED, FO_SIM_UNCORRECTED, FO_SIM_N_READINGS };

struct fo_sim_clause {
    enum fo_sim_verb verb;
    enum fo_sim_subject subject; /* FAILS, TAKES, LATE, LOST_AT */
    uint64_t first, last;        /* of the subject, inclusive */
    uint64_t ms;                 /* TAKES, LATE */
    uint64_t bytes;              /* FOREIGN */
    enum fo_sim_reading reading; /* READS */
    uint64_t value;              /* READS: degrees Celsius, watts, errors */
    uint64_t after_ms, for_ms;   /* FOREIGN, LOST_*, READS: UINT64_MAX = for good */
    char path[FO_SIM_MAX_PATH];  /* FOREIGN_FILE, LOST_FILE */
};

struct fo_sim_script {
    int n;
    struct fo_sim_clause clause[FO_SIM_MAX_CLAUSES];
};

/* "" and blanks are the empty script. FO_EINVAL names the word that is not understood and what could stand there; FO_ELIMIT past the
 * caps above. */
int fo_sim_script_parse(const char *text, size_t len, struct fo_sim_script *ret, struct fo_err *e);

/* One die of PANTHEON_SIM: "NAME:SIZE[,SCRIPT]". The script points into the text. */
struct fo_sim_die {
    char name[FO_SIM_MAX_NAME];
    uint64_t bytes;
    const char *script;
    size_t script_len;
};
/* All of "DIE;DIE;...". Scripts are checked. Returns how many were written through *ret_n. */
int fo_sim_dies_parse(const char *text, struct fo_sim_die ret[FO_SIM_MAX_DIES], int *ret_n, struct fo_err *e);
