/* The inside of the template language, for jinja_*.c and chat.c only.
 *
 *   text --jinja_lex.c--> tokens --jinja_expr.c, jinja_parse.c--> nodes --jinja_exec.c (statements), jinja_eval.c (expressions)--> text
 *                                                                  |
 *        what can be called: jinja_filters.c, jinja_seq.c, jinja_tests.c, jinja_methods.c, jinja_funcs.c, one table each (pn_builtin)
 *
 * Chains that grow with a template's length (a + b + c, x.y.z|f, elif) are arrays in one node, so that recursion follows brackets
 * and blocks only; those are counted (PN_DEPTH_PARSE, PN_DEPTH_EVAL), and the counts are what a 256 KiB stack holds. */
#pragma once
#include "engine/jinja.h"
#include "engine/value_impl.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"

enum {
    PN_DEPTH_PARSE = 100,       /* brackets and blocks within one another in a template */
    PN_DEPTH_EVAL = 400,        /* nodes being evaluated at once: PN_DEPTH_PARSE, times macros and loops that call themselves */
    PN_TEMPLATE_BYTES = 4 << 20, /* longest template */
    PN_STACK_VALUES = 4096,     /* arguments of all calls under way */
    PN_RANGE_MAX = 100000,      /* longest range(), as Jinja's sandbox has it */
    PN_MAX_PARAMS = 8           /* parameters of a built-in */
};

/* --- tokens ------------------------------------------------------------------------------------------ */

enum pn_tok {
    PN_T_END,
    PN_T_DATA,
    PN_T_BLOCK_BEGIN,
    PN_T_BLOCK_END,
    PN_T_VAR_BEGIN,
    PN_T_VAR_END,
    PN_T_NAME,
    PN_T_STRING,
    PN_T_INT,
    PN_T_FLOAT,
    PN_T_OP
};

/* Operators by their text: two characters packed, the second 0 for a single one. */
#define PN_OP(a, b) ((uint16_t)((unsigned char)(a) | (unsigned char)(b) << 8))

struct pn_token {
    uint8_t kind;
    uint16_t op;          /* PN_T_OP: PN_OP */
    uint32_t start, len;  /* in the normalised text; strings with their quotes */
    int line;
};

struct pn_tokens {
    struct pn_token *t; /* heap, [n], the last is PN_T_END */
    size_t n, size;
};

/* Cuts normalised template text into tokens. */
int pn_lex(const char *text, size_t len, struct pn_tokens *ret, struct fo_err *e);

/* --- nodes ---------------------------------------------------------------------------------------------- */

enum pn_node_type {
    /* expressions */
    PN_N_CONST, PN_N_NAME, PN_N_LIST, PN_N_TUPLE, PN_N_DICT, PN_N_COND, PN_N_OR, PN_N_AND, PN_N_NOT, PN_N_NEG, PN_N_POS, PN_N_CHAIN,
    PN_N_CONCAT, PN_N_COMPARE, PN_N_POSTFIX,
    /* statements */
    PN_N_DATA, PN_N_PRINT, PN_N_IF, PN_N_FOR, PN_N_SET, PN_N_SET_BLOCK, PN_N_MACRO, PN_N_CALL_BLOCK, PN_N_FILTER_BLOCK, PN_N_WITH,
    PN_N_SCOPE, PN_N_BREAK, PN_N_CONTINUE
};

enum { PN_CMP_NOT_IN = 1, PN_CMP_IN = 2 }; /* comparison operators without a PN_OP of their own */

struct pn_node;

/* Where something stands, for errors. */
struct pn_place {
    uint32_t start, end;
    int line;
};

/* One more operand of a chain. */
struct pn_operand {
    uint16_t op;
    struct pn_node *x;
};

enum pn_arg_kind { PN_A_POS, PN_A_NAMED, PN_A_STAR, PN_A_STARSTAR };
struct pn_arg {
    uint8_t kind;
    struct pn_value name; /* PN_A_NAMED */
    struct pn_node *x;
};

enum pn_post_kind { PN_P_ATTR, PN_P_ITEM, PN_P_SLICE, PN_P_CALL, PN_P_FILTER, PN_P_TEST, PN_P_TEST_NOT };
struct pn_post {
    uint8_t kind;
    struct pn_place at;
    struct pn_value name;             /* attribute, filter or test */
    const struct pn_builtin *row;     /* filter or test; NULL = unknown, and only an error if it is reached */
    const struct pn_builtin *method[3]; /* PN_P_ATTR: what the name is on a string, a list, a dict */
    struct pn_node *x[3];             /* PN_P_ITEM: x[0]; PN_P_SLICE: start, stop, step or NULL */
    struct pn_arg *args;
    size_t n_args;
};

/* What an assignment fills: a name, a namespace's attribute, or several targets in a tuple. */
struct pn_target {
    struct pn_target *many; /* [n_many] */
    size_t n_many;
    uint32_t sym;
    struct pn_value attr; /* a string: of the namespace `sym` */
    struct pn_place at;
};

struct pn_param {
    uint32_t sym;
    struct pn_value name;
    struct pn_node *def; /* NULL = none */
};

/* A macro, or the body of a call block. */
struct pn_macro_def {
    struct pn_value name;
    struct pn_param *params;
    size_t n_params;
    struct pn_node *body; /* linked by `next` */
    bool uses_varargs, uses_kwargs, uses_caller;
};

struct pn_branch {
    struct pn_node *test; /* NULL = else */
    struct pn_node *body;
};

struct pn_node {
    uint8_t type;
    struct pn_place at;
    struct pn_node *next; /* the statement after this one */
    union {
        struct pn_value value; /* CONST; DATA */
        uint32_t sym;          /* NAME */
        struct {
            struct pn_node **x;
            size_t n;
        } list; /* LIST, TUPLE, DICT (key, value, ...), OR, AND */
        struct {
            struct pn_node *test, *yes, *no; /* no: NULL = undefined */
        } cond;
        struct pn_node *x; /* NOT, NEG, POS, PRINT */
        struct {
            struct pn_node *first;
            struct pn_operand *more; /* [n] */
            size_t n;
        } chain; /* CHAIN (arithmetic of one precedence), CONCAT, COMPARE */
        struct {
            struct pn_node *base; /* NULL: a filter chain over a captured block */
            struct pn_post *ops;  /* [n] */
            size_t n;
        } post;
        struct {
            struct pn_branch *branches; /* [n] */
            size_t n;
        } cases; /* IF */
        struct pn_loop_def {
            struct pn_target target;
            struct pn_node *iter, *filter, *body, *otherwise;
            bool recursive;
        } *loop;
        struct {
            struct pn_target *target;
            struct pn_node *value; /* SET: the value; SET_BLOCK: a filter chain or NULL */
            struct pn_node *body;
        } set;
        struct {
            struct pn_macro_def *def;
            uint32_t sym;
        } macro;
        struct {
            struct pn_macro_def *def;
            struct pn_node *call; /* POSTFIX ending in a call */
        } call;
        struct {
            struct pn_node *filter, *body;
        } filter;
        struct {
            struct pn_target *targets; /* [n] */
            struct pn_node **values;   /* [n] */
            size_t n;
            struct pn_node *body;
        } with;
        struct pn_node *body; /* SCOPE */
    };
};

struct pn_jinja {
    struct fo_region region; /* the text, the nodes, the names */
    char *text;              /* newlines normalised */
    size_t len;
    struct pn_node *body;
    struct pn_value *names; /* [n_names] symbols */
    size_t n_names;
    uint32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
};

/* --- the parser -------------------------------------------------------------------------------------------- */

/* State while parsing; jinja_expr.c has the expressions, jinja_parse.c the statements. */
struct pn_parser {
    struct pn_jinja *j;
    struct fo_err *e;
    struct pn_tokens tokens;
    size_t at;
    unsigned depth, n_loops, n_conditional;
    struct pn_macro_def *macro; /* innermost */
    size_t unknown_at;          /* token after an unknown filter or test that is not under a condition; 0 = none */
    struct pn_post unknown;
    uint32_t *buckets;          /* symbols by hash: index + 1, 0 = free */
    size_t n_buckets, names_size;
};

const struct pn_token *pn_peek(const struct pn_parser *p, size_t ahead);
bool pn_at_op(const struct pn_parser *p, uint16_t op);
bool pn_at_name(const struct pn_parser *p, const char *name);
bool pn_take_op(struct pn_parser *p, uint16_t op);
bool pn_take_name(struct pn_parser *p, const char *name);
int pn_expect_op(struct pn_parser *p, uint16_t op);
int pn_parse_fail(struct pn_parser *p, enum fo_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4), cold));
int pn_parse_enter(struct pn_parser *p); /* counts depth; pair with p->depth-- */
struct pn_node *pn_node_new(struct pn_parser *p, enum pn_node_type type);
void pn_node_end(const struct pn_parser *p, struct pn_place *at); /* at->end = the end of the last token taken */
void *pn_parse_alloc(struct pn_parser *p, size_t n, size_t size);
/* Takes a name: its symbol and its text. */
int pn_parse_name(struct pn_parser *p, uint32_t *ret_sym, struct pn_value *ret_name);
int pn_intern(struct pn_parser *p, const char *s, size_t len, uint32_t *ret);
int pn_parse_expr(struct pn_parser *p, struct pn_node **ret);
/* An expression, or several with commas: a tuple. Without `cond` a trailing `if` is left alone. */
int pn_parse_tuple(struct pn_parser *p, bool cond, struct pn_node **ret);
/* `name(args)|name...` as a chain without a base. */
int pn_parse_filters(struct pn_parser *p, struct pn_node **ret);
/* At the end of a tag: fails when it used an unknown filter or test. */
int pn_parse_check(struct pn_parser *p);
/* A postfix expression only (call blocks). */
int pn_parse_postfix(struct pn_parser *p, struct pn_node **ret);

/* --- running ---------------------------------------------------------------------------------------------------- */

struct pn_var {
    uint32_t sym;
    struct pn_value v;
};

/* Variables of a loop round, a macro call, a block. */
struct pn_scope {
    struct pn_scope *parent; /* NULL: the template's own, in pn_rt.globals */
    struct pn_var *vars;     /* [n] */
    uint32_t n, size;
    bool kept; /* a macro remembers it */
    struct pn_var first[3];
};

enum pn_flow { PN_FLOW_NEXT, PN_FLOW_BREAK, PN_FLOW_CONTINUE };

struct pn_rt {
    const struct pn_jinja *j;
    struct fo_region *region;
    struct fo_err *e;
    struct fo_buf *raised; /* or NULL: where the whole text of raise_exception goes */
    struct pn_out out;
    struct pn_place at; /* what is evaluated, for errors */
    uint64_t steps_left;
    unsigned depth;
    enum pn_flow flow;
    struct pn_scope *scope;
    struct pn_value *globals; /* [n_names]: the given variables, the built-in functions, then what `set` made */
    struct pn_value *stack;   /* [PN_STACK_VALUES] */
    size_t n_stack;
};

/* Arguments of a call: positional, then named ones as name, value pairs. */
struct pn_call {
    const struct pn_value *pos;   /* [n_pos] */
    const struct pn_value *named; /* [2 * n_named] */
    size_t n_pos, n_named;
};

/* Arguments bound to a built-in's parameters; NULL = not given. `rest` is what no parameter took, where the row allows it. */
struct pn_args {
    const struct pn_value *v[PN_MAX_PARAMS];
    struct pn_call rest;
};

/* One filter, test, method or function. `params` names the parameters, separated by spaces; "*" at its end lets further ones pass.
 * `self` is the value filtered or tested, or the object of the method. */
typedef int pn_builtin_fn(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret);
struct pn_builtin {
    const char *name;
    pn_builtin_fn *fn; /* NULL: Jinja has it, this build does not */
    const char *params;
    unsigned n_required;
};

const struct pn_builtin *pn_find_filter(const char *name, size_t len);
const struct pn_builtin *pn_find_test(const char *name, size_t len);
const struct pn_builtin *pn_find_method(enum pn_value_kind kind, const char *name, size_t len);
const struct pn_builtin *pn_find_function(const char *name, size_t len);
extern const struct pn_builtin pn_seq_filters[]; /* jinja_seq.c's share of the filters, ended by a row without a name */
int pn_filter_wordwrap(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret); /* jinja_wrap.c */
bool pn_is_unsafe_method(enum pn_value_kind kind, const char *name, size_t len);

enum pn_object_type { PN_O_BUILTIN, PN_O_METHOD, PN_O_MACRO, PN_O_NAMESPACE, PN_O_LOOP, PN_O_CYCLER, PN_O_JOINER, PN_O_CLOCK };
struct pn_object {
    uint8_t type;
    const struct pn_builtin *row; /* BUILTIN, METHOD */
    struct pn_value self;         /* METHOD: its object; CYCLER: its items; JOINER: its separator; CLOCK: the time */
    const struct pn_macro_def *def; /* MACRO */
    struct pn_scope *scope;         /* MACRO: where it was made; LOOP: around the loop */
    struct pn_value *names, *values; /* NAMESPACE: [n] */
    size_t n, size;
    const struct pn_loop_def *loop; /* LOOP */
    const struct pn_value *items;   /* LOOP: [n] */
    size_t i;                       /* LOOP: the round; CYCLER: the next; JOINER: calls so far */
    unsigned level;                 /* LOOP: of recursion */
    struct pn_value last;           /* LOOP: what changed() saw */
    bool seen;
};
const int64_t *pn_range_new(struct pn_rt *rt, int64_t start, int64_t stop, int64_t step); /* for pn_list.range; NULL: the region is full */
bool pn_object_new(struct pn_rt *rt, enum pn_object_type type, struct pn_value *ret);

/* Errors with the place of rt->at. pn_rt_fail: the template's mistake (FO_EFORMAT). */
int pn_rt_fail(struct pn_rt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));
int pn_rt_limit(struct pn_rt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));
int pn_rt_place(struct pn_rt *rt);  /* puts the place to an error that rt->e already holds */
int pn_rt_full(struct pn_rt *rt);   /* the region is full */
int pn_rt_undefined(struct pn_rt *rt, struct pn_value v); /* an undefined value was used */
static inline int pn_charge(struct pn_rt *rt, uint64_t n) {
    if (n > rt->steps_left) return pn_rt_limit(rt, "the template takes too many steps");
    rt->steps_left -= n;
    return 0;
}
/* Work on n bytes. */
static inline int pn_charge_bytes(struct pn_rt *rt, size_t n) {
    return pn_charge(rt, 1 + n / 64);
}

/* Work that walks a value. */
static inline int pn_charge_walk(struct pn_rt *rt, struct pn_value v) {
    return v.kind == PN_V_STR ? 0 : pn_charge(rt, pn_value_weight(v)); /* text is charged when it was written */
}

int pn_eval(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret);
/* Applies a postfix chain to a value; `caller` (or NULL) is handed to its last call. */
int pn_eval_post(struct pn_rt *rt, const struct pn_node *n, struct pn_value v, const struct pn_value *caller, struct pn_value *ret);
int pn_exec(struct pn_rt *rt, const struct pn_node *body);
/* Calls a value that is a callable. */
int pn_call(struct pn_rt *rt, struct pn_value f, const struct pn_call *call, struct pn_value *ret);
int pn_call_row(struct pn_rt *rt, const struct pn_builtin *row, struct pn_value self, const struct pn_call *call, struct pn_value *ret);
int pn_call_macro(struct pn_rt *rt, const struct pn_object *macro, const struct pn_call *call, struct pn_value *ret);
int pn_call_loop(struct pn_rt *rt, struct pn_object *loop, const struct pn_call *call, struct pn_value *ret);

/* jinja_ops.c */
int pn_op_arith(struct pn_rt *rt, uint16_t op, struct pn_value a, struct pn_value b, struct pn_value *ret);
int pn_op_compare(struct pn_rt *rt, uint16_t op, struct pn_value a, struct pn_value b, bool *ret);
int pn_op_contains(struct pn_rt *rt, struct pn_value box, struct pn_value x, bool *ret);
int pn_op_negate(struct pn_rt *rt, struct pn_value v, bool plus, struct pn_value *ret);
int pn_op_slice(struct pn_rt *rt, struct pn_value v, const struct pn_value bounds[3], struct pn_value *ret);
/* x.name and x[key] as Jinja resolves them: undefined when there is none. */
int pn_op_attr(struct pn_rt *rt, struct pn_value v, struct pn_value name, struct pn_value *ret);
int pn_op_item(struct pn_rt *rt, struct pn_value v, struct pn_value key, struct pn_value *ret);
/* The elements of anything iterable, as a list that the caller only reads. An iterator is used up by it. */
int pn_op_iter(struct pn_rt *rt, struct pn_value v, struct pn_list *ret);
int pn_op_len(struct pn_rt *rt, struct pn_value v, int64_t *ret);
/* "<" as sort uses it: -1, 0, 1, or an error when the two cannot be ordered. */
int pn_op_order(struct pn_rt *rt, struct pn_value a, struct pn_value b, int *ret);

/* jinja_text.c: strings */
/* Ends a text begun at `from` (rt->out.len then) as a string. */
int pn_out_end(struct pn_rt *rt, size_t from, struct pn_value *ret);
int pn_to_str(struct pn_rt *rt, struct pn_value v, struct pn_value *ret); /* str(v) */
/* Appends text written behind rt->out at `from` to a: in a's own spare room where possible. */
int pn_str_extend(struct pn_rt *rt, struct pn_value a, size_t from, struct pn_value *ret);
enum pn_case { PN_CASE_LOWER, PN_CASE_UPPER, PN_CASE_TITLE, PN_CASE_CAPITALIZE, PN_CASE_SWAP, PN_CASE_FOLD };
int pn_str_case(struct pn_rt *rt, struct pn_value v, enum pn_case how, struct pn_value *ret);
enum { PN_STRIP_LEFT = 1, PN_STRIP_RIGHT = 2 };
int pn_str_strip(struct pn_rt *rt, struct pn_value v, unsigned sides, const struct pn_value *chars, struct pn_value *ret);
int pn_str_replace(struct pn_rt *rt, struct pn_value v, struct pn_value from, struct pn_value to, int64_t max, struct pn_value *ret);
/* str.split and str.rsplit; sep NULL = runs of white space; max < 0 = no limit. */
int pn_str_split(struct pn_rt *rt, struct pn_value v, const struct pn_value *sep, int64_t max, bool right, struct pn_value *ret);
int pn_str_lines(struct pn_rt *rt, struct pn_value v, bool keep_ends, struct pn_value *ret);
/* Byte offset of the first (or last) place of `what` in bytes [from, to) of v, or -1. Linear in both. */
ptrdiff_t pn_str_find(struct pn_value v, size_t from, size_t to, struct pn_value what, bool last);
uint32_t pn_char_case(uint32_t c, bool upper); /* simple case mapping; jinja_unicode.c */
bool pn_char_is_alpha(uint32_t c);             /* a letter; jinja_text.c */

/* jinja_format.c */
int pn_format_percent(struct pn_rt *rt, struct pn_value fmt, struct pn_value args, struct pn_value *ret);
int pn_format_braces(struct pn_rt *rt, struct pn_value fmt, const struct pn_call *call, struct pn_value *ret);
int pn_format_time(struct pn_rt *rt, struct pn_value fmt, int64_t now, struct pn_value *ret);

/* jinja_seq.c */
int pn_sort_values(struct pn_rt *rt, struct pn_value *v, struct pn_value *keys, size_t n, bool reverse);
/* What `attribute=` means: "a.b.0", or an integer. */
int pn_attribute(struct pn_rt *rt, struct pn_value v, struct pn_value path, struct pn_value *ret);

/* strftime_now bound to a time, for chat.c. False when the region is full. */
bool pn_clock_value(struct fo_region *r, int64_t now, struct pn_value *ret);
