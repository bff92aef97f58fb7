/* Chat: a conversation as the API has it becomes prompt text through the model's own template. Immutable after open: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;
struct fo_gguf;
struct fo_tok;
struct pn_chat;
struct pn_dialect;
struct pn_render;

/* How a template was found: for the log line at load and for /v1/models. */
enum pn_chat_source { PN_CHAT_NONE, PN_CHAT_FILE, PN_CHAT_OVERRIDE, PN_CHAT_CHATML };

/* Takes the template of the file (tokenizer.chat_template), or `override_text` when not NULL; a model without one gets ChatML when
 * its vocabulary has <|im_start|> and <|im_end|>; else the source is PN_CHAT_NONE and every render is FO_EUNSUPPORTED with a
 * message that names /v1/completions. A template that does not parse is kept as an error: open succeeds, pn_chat_state tells,
 * and every render returns it. `tok` gives the texts of bos_token and eos_token; both outlive the chat. */
int pn_chat_open(const struct fo_gguf *g, const struct fo_tok *tok, const char *override_text, struct pn_chat **ret, struct fo_err *e);
/* The same over a bare template (CLI `template --file`, tests). */
int pn_chat_open_text(const char *text, size_t len, const char *bos, const char *eos, struct pn_chat **ret, struct fo_err *e);
void pn_chat_free(struct pn_chat *c); /* NULL is allowed */

enum pn_chat_source pn_chat_source(const struct pn_chat *c);
/* FO_OK, or the parse error of the template. */
int pn_chat_state(const struct pn_chat *c, struct fo_err *e);

/* How the model marks thoughts and calls, as its template shows; lives as long as the chat. Never NULL. */
const struct pn_dialect *pn_chat_dialect(const struct pn_chat *c);

struct pn_chat_input {
    const char *messages_json; /* the request's `messages`, an array already checked by the API layer */
    const char *tools_json;    /* NULL = none */
    const char *extra_json;    /* an object of further template variables (chat_template_kwargs), or NULL; wins over defaults */
    bool add_generation_prompt;
    int64_t now;               /* seconds since 1970, UTC, for strftime_now */
    struct fo_buf *raised;     /* NULL, or where the whole text of raise_exception goes (pn_jinja_render) */
    bool as_is;                /* the messages go to the template untouched (CLI, comparison with references) */
};

/* Renders. Before that, unless as_is: content that is a list of parts of type text is joined into one string unless the template
 * handles lists; arguments of tool calls given as JSON text become objects, and ids of calls short ones, a message with several calls becomes several, and functions get the parts that they lack, where the
 * template needs them so; and
 * for one that knows no functions, tools_json is described in the system message and calls and results are told as text (all found once, at
 * open, by trying). `tools` is None when absent, or an empty list where the template fails on None.
 * Errors as pn_jinja_render. */
int pn_chat_render(const struct pn_chat *c, const struct pn_chat_input *in, struct pn_render *ret, struct fo_err *e);
