// Logits of llama.cpp, for tests/gen/goldens.py --llamacpp: llamacpp_logits MODEL.gguf 1,2,3 OUT [BETA_FAST BETA_SLOW]
// (OUT: float32, [tokens][vocabulary]; the betas are YaRN's).
// One thread, KV in f32, no flash attention, so that its graph is the only difference. Build (LLAMA = a built llama.cpp):
//   c++ -O2 -I$LLAMA/include -I$LLAMA/ggml/include tests/gen/llamacpp_logits.cpp -o llamacpp_logits $LLAMA/build/src/libllama.a
//       $LLAMA/build/ggml/src/libggml.a $LLAMA/build/ggml/src/libggml-cpu.a $LLAMA/build/ggml/src/libggml-base.a -lpthread -ldl -fopenmp
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char **argv) {
    if (argc != 4 && argc != 6) return 64;
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    std::vector<llama_token> ids;
    for (char *p = argv[2]; *p; p += *p == ',') ids.push_back((llama_token)strtol(p, &p, 10));

    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (argc == 6) {
        params.yarn_beta_fast = strtof(argv[4], nullptr);
        params.yarn_beta_slow = strtof(argv[5], nullptr);
    }
    llama_context *context = llama_init_from_model(model, params);
    if (!context) return 1;

    llama_batch batch = llama_batch_init((int)ids.size(), 0, 1);
    for (size_t i = 0; i < ids.size(); i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = (llama_pos)i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = (int)ids.size();
    if (llama_decode(context, batch)) return 1;

    FILE *out = fopen(argv[3], "wb");
    size_t n_vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (!out) return 1;
    for (size_t i = 0; i < ids.size(); i++)
        if (fwrite(llama_get_logits_ith(context, (int)i), sizeof(float), n_vocab, out) != n_vocab) return 1;
    return fclose(out) != 0;
}
