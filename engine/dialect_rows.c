/* Data table: how the families mark thoughts and calls (dialect.h). Where two rows can be read into the same text, the one that says more stands
 * first. The forms are those of the models' own chat templates. */
#include "engine/dialect.h"

#define TEXT(...) .text = { __VA_ARGS__ }
#define BEGIN [PN_CALL_BEGIN]
#define MIDDLE [PN_CALL_MIDDLE]
#define END [PN_CALL_END]
#define BETWEEN [PN_CALL_BETWEEN]

static const struct pn_call_format calls[] = {
    /* The first is our own form, too, for models whose template knows no functions. */
    { "hermes", PN_CALL_OBJECT, "arguments", TEXT(BEGIN = "<tool_call>\n", END = "\n</tool_call>", BETWEEN = "\n"),
      .models = "Hermes 2 and 3, Qwen 2.5 and 3, MiMo, Granite 4" },
    { "qwen3-xml", PN_CALL_TAGS, NULL,
      TEXT(BEGIN = "<tool_call>\n<function=", MIDDLE = ">\n", [PN_CALL_ARG_BEGIN] = "<parameter=", [PN_CALL_ARG_MIDDLE] = ">\n",
           [PN_CALL_ARG_END] = "\n</parameter>\n", END = "</function>\n</tool_call>", BETWEEN = "\n",
           [PN_CALL_ALSO] = "<function=" /* Qwen3-Coder forgets the tag around it */),
      .models = "Qwen 3.5, Qwen3-Coder, Nemotron 3" },
    { "seed", PN_CALL_TAGS, NULL,
      TEXT(BEGIN = "<seed:tool_call>\n<function=", MIDDLE = ">\n", [PN_CALL_ARG_BEGIN] = "<parameter=", [PN_CALL_ARG_MIDDLE] = ">",
           [PN_CALL_ARG_END] = "</parameter>\n", END = "</function>\n</seed:tool_call>", BETWEEN = "\n"),
      .models = "Seed-OSS" },
    { "glm", PN_CALL_TAGS, NULL,
      TEXT(BEGIN = "<tool_call>", MIDDLE = "\n", [PN_CALL_ARG_BEGIN] = "<arg_key>", [PN_CALL_ARG_MIDDLE] = "</arg_key>\n<arg_value>",
           [PN_CALL_ARG_END] = "</arg_value>\n", END = "</tool_call>", BETWEEN = "\n"),
      .models = "GLM 4.5, Laguna XS, Ling 3" },
    { "glm-tight", PN_CALL_TAGS, NULL,
      TEXT(BEGIN = "<tool_call>", [PN_CALL_ARG_BEGIN] = "<arg_key>", [PN_CALL_ARG_MIDDLE] = "</arg_key><arg_value>",
           [PN_CALL_ARG_END] = "</arg_value>", END = "</tool_call>"),
      .models = "GLM 4.7, Laguna S, Spark 2.5" },
    { "minimax", PN_CALL_TAGS, NULL,
      TEXT([PN_CALL_OPEN] = "<minimax:tool_call>\n", BEGIN = "<invoke name=\"", MIDDLE = "\">\n", [PN_CALL_ARG_BEGIN] = "<parameter name=\"",
           [PN_CALL_ARG_MIDDLE] = "\">", [PN_CALL_ARG_END] = "</parameter>\n", END = "</invoke>\n", [PN_CALL_CLOSE] = "</minimax:tool_call>"),
      .models = "MiniMax M2" },
    { "mistral-args", PN_CALL_NAMED, NULL, TEXT(BEGIN = "[TOOL_CALLS]", MIDDLE = "[ARGS]", [PN_CALL_ID] = "[CALL_ID]"),
      .models = "Mistral Small 3.2, Magistral, Devstral" },
    { "mistral", PN_CALL_LIST, "arguments", TEXT(BEGIN = "[TOOL_CALLS]", BETWEEN = ", "), .models = "Mistral 7B v0.3, Nemo, Small 3.1" },
    { "functionary", PN_CALL_NAMED, NULL, TEXT(BEGIN = "<function=", MIDDLE = ">", END = "</function>"), .models = "Functionary 3.1" },
    { "phi", PN_CALL_LIST, "arguments", TEXT(BEGIN = "<|tool_call|>", END = "<|/tool_call|>", BETWEEN = ", "), .models = "Phi-4-mini" },
    { "granite", PN_CALL_LIST, "arguments", TEXT(BEGIN = "<|tool_call|>", BETWEEN = ", "), .models = "Granite 3" },
    { "functools", PN_CALL_LIST, "arguments", TEXT(BEGIN = "functools", BETWEEN = ", "), .models = "Templates that teach Firefunction's form, some of Phi-4-mini" },
    { "apriel", PN_CALL_LIST, "arguments", TEXT(BEGIN = "<tool_calls>", END = "</tool_calls>", BETWEEN = ", "), .models = "Apriel 1.5 and 1.6" },
    { "gigachat", PN_CALL_OBJECT, "arguments", TEXT(BEGIN = "<|function_call|>"), .models = "GigaChat 3.1" },
    { "llama3", PN_CALL_OBJECT, "parameters", TEXT([PN_CALL_ALSO] = "<|python_tag|>", BETWEEN = "; "), .bare = true, .models = "Llama 3.1 to 3.3" },
};

static const struct pn_reasoning reasonings[] = {
    { "<think>", "</think>", "\n\n", .models = "DeepSeek R1, GLM, Granite 3.3, Kimi K2, Laguna, LFM 2.5, MiniMax M2, Nemotron 3, Qwen 3 and 3.5, SmolLM3" },
    { "[THINK]", "[/THINK]", "", .models = "Magistral" },
    { "<seed:think>", "</seed:think>", "\n", .models = "Seed-OSS" },
    { "<mm:think>", "</mm:think>", "", .models = "MiniMax M3" },
    { "<|START_THINKING|>", "<|END_THINKING|>", "", .models = "Command R7B, Command A Reasoning" },
    { "<|channel>thought\n", "<channel|>", "", .models = "Gemma 4" },
    { "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]", "\n", .models = "Apriel 1.6" },
};

const struct pn_call_format *pn_call_format_row(size_t i) {
    return i < sizeof calls / sizeof *calls ? &calls[i] : NULL;
}

const struct pn_reasoning *pn_reasoning_row(size_t i) {
    return i < sizeof reasonings / sizeof *reasonings ? &reasonings[i] : NULL;
}
