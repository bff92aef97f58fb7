/* Any bytes as a request: the first byte chooses between a head, a chunked body and the JSON of an endpoint. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head.h"
#include "daemon/oai.h"
#include "daemon/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void head(char *text, size_t n) {
    struct pd_head h;
    const char *why = NULL;
    size_t end = pd_head_end(text, n);
    pd_head_too_long(text, n);
    if (!end) return;
    int status = pd_head_parse(text, end, &h, &why);
    if (status ? !why || status < 400 || status > 505 : !h.path || (h.chunked && h.has_length)) __builtin_trap();
    if (!status) pd_percent_decode(h.path);
}

static void chunks(char *text, size_t n) {
    struct pd_chunks c = { 0 };
    size_t used;
    if (pd_chunks_feed(&c, text, n, &used) > n || used > n) __builtin_trap();
}

static void body(unsigned api, const char *text, size_t n) {
    struct pd_params p;
    struct pd_error x;
    if (pd_params_parse(api, text, n, &p, &x)) {
        if ((!p.model && !(api & PD_API_NO_ANSWER)) || p.n < 1 || p.n_top < -1 || p.n_top > PN_MAX_TOP_LOGPROBS) __builtin_trap();
        if (api & PD_API_TALK ? !p.messages_json : api == PD_API_TOKENIZE ? !p.messages_json == (p.n_prompts == 0) : p.n_prompts == 0) __builtin_trap();
        pd_params_check_ids(&p, 1000, &x);
        pd_params_done(&p);
    } else if (pd_error_row(x.id)->status != 400 && x.id != PD_ERR_MEMORY) {
        __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    size_t n = size - 1;
    char *text = malloc(n ? n : 1); /* its own block: a step past the end is seen */
    if (!text) return 0;
    memcpy(text, data + 1, n);
    switch (data[0] % 4) {
    case 0:
        head(text, n);
        break;
    case 1:
        chunks(text, n);
        break;
    case 2:
        body(PD_API_CHAT, text, n);
        break;
    default: {
        static const unsigned apis[] = { PD_API_TEXT, PD_API_TOKENIZE, PD_API_DETOKENIZE, PD_API_CHAT | PD_API_TEMPLATE, PD_API_EMBED, PD_API_RESPONSES };
        body(apis[data[0] / 4 % 6], text, n);
        break;
    }
    }
    free(text);
    return 0;
}
