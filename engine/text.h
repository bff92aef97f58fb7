/* Text to tokens and back for the layers above, which do not see foundry/tok.h. Over a model's immutable parts: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;
struct pn_chat_input;
struct pn_model;

struct pn_ids {
    int32_t *ids; /* [n], heap; free with free */
    uint32_t n;
    bool in_reasoning; /* of a conversation: its prompt ends within a thought, which the template has opened */
};

/* Plain text: `special` lets control tokens match in it, `add` adds BOS and EOS as the model's metadata says. FO_ELIMIT as soon as
 * there are more than max_ids (0 = no limit); FO_EUNSUPPORTED with the reason when the model has no tokenizer. */
int pn_text_encode(const struct pn_model *m, const char *text, size_t len, bool special, bool add, uint32_t max_ids, struct pn_ids *ret,
                   struct fo_err *e);

/* Renders a conversation through the model's template and encodes it: control tokens match only where the template wrote them, and
 * BOS is added as the metadata says unless the template already wrote it. Errors as pn_chat_render and pn_text_encode. */
int pn_text_encode_chat(const struct pn_model *m, const struct pn_chat_input *in, uint32_t max_ids, struct pn_ids *ret, struct fo_err *e);

/* Ids to bytes, appended to out (which may hold invalid UTF-8 where the ids do); FO_EINVAL names the first id out of range. */
int pn_text_decode(const struct pn_model *m, const int32_t *ids, size_t n, bool special, struct fo_buf *out, struct fo_err *e);

/* One token: its bytes as they stand in running text, appended to `bytes` (a control token has none there), and a name for it that is
 * UTF-8, appended to `name`: the same with \xNN for each byte that is not part of a whole character, or a control token's own text. True
 * when the name is the text as it is. Nothing without a tokenizer. */
bool pn_text_token(const struct pn_model *m, int32_t id, struct fo_buf *bytes, struct fo_buf *name);
