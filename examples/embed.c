/* A whole program on libpantheon: loads a model, asks it one question, streams the answer.
 *
 *   cc -Iinclude -o embed examples/embed.c libpantheon.a -ljansson -lm -lpthread -ldl
 *   ./embed MODEL.gguf ["question"] */
#include <pantheon.h>

#include <stdio.h>
#include <stdlib.h>

static int show(void *ctx, const char *text, size_t len, int32_t token) {
    (void)ctx;
    (void)token;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    return 0; /* go on */
}

/* The question as a JSON string, so that quotes and line ends in it stay what they are. */
static void messages(char *out, size_t size, const char *question) {
    size_t n = (size_t)snprintf(out, size, "[{\"role\":\"user\",\"content\":\"");
    for (const unsigned char *p = (const unsigned char *)question; *p && n + 16 < size; p++)
        n += (size_t)snprintf(out + n, size - n, *p < 0x20 || *p == '"' || *p == '\\' ? "\\u%04x" : "%c", (unsigned)*p);
    snprintf(out + n, size - n, "\"}]");
}

int main(int argc, char **argv) {
    struct pn_llm *model = NULL;
    struct pn_session *session = NULL;
    struct pn_error e;
    struct pn_result result;
    struct pn_gen_options options;
    char json[4096];
    int rc;

    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [QUESTION]\n", argv[0]);
        return 64;
    }
    pn_gen_options_init(&options);
    messages(json, sizeof json, argc > 2 ? argv[2] : "What is a pantheon? Answer in one sentence.");
    options.messages_json = json;
    options.max_tokens = 64;
    options.temperature = 0;

    rc = pn_llm_load(argv[1], NULL, &model, &e);
    if (rc == PN_OK) rc = pn_session_open(model, &session, &e);
    if (rc == PN_OK) rc = pn_generate(session, &options, show, NULL, &result, &e);
    if (rc == PN_OK) {
        printf("\n");
        fprintf(stderr, "%s: %u tokens in, %u out\n", argv[0], (unsigned)result.prompt_tokens, (unsigned)result.completion_tokens);
    } else {
        fprintf(stderr, "%s: %s\n", argv[0], e.message);
    }
    pn_session_close(session);
    pn_llm_unload(model);
    return rc == PN_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
