/* THE family table. */
#include "engine/family.h"

#include <stdio.h>
#include <string.h>

static const struct pn_family *const families[] = {
    &pn_family_llama, /* Llama 1 to 3, Mistral, SmolLM, TinyLlama and whoever else kept the shape */
    &pn_family_qwen2, /* Qwen2 and 2.5 */
    &pn_family_qwen3, /* Qwen3, dense */
    &pn_family_phi3,  /* Phi-3, Phi-4 mini */
    &pn_family_script, /* says what its file tells it: for tests */
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const struct pn_family *pn_family_find(const char *arch, size_t len) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (strlen(families[i]->arch) == len && memcmp(families[i]->arch, arch, len) == 0) return families[i];
    return NULL;
}

const char *pn_family_list(char *out, size_t size) {
    size_t at = 0;
    for (int i = 0; i < N_FAMILIES && at < size; i++) at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", families[i]->arch);
    return out;
}
