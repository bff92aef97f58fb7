/* The tables of routes.c, params.c and oai.c say most of it. What they do not say stands here in JSON Schema: the fields whose shape is
 * their own, and the answers. J() makes a text of its arguments as they are written. */
#include "daemon/openapi.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/routes.h"
#include "engine/request.h"
#include "engine/version.h"

#define J(...) #__VA_ARGS__

static const struct shape {
    const char *field;
    unsigned api;    /* whose field; PD_API_... */
    unsigned needed; /* by which of them */
    const char *schema;
} shapes[] = {
    { "model", PD_API_ANSWERS | PD_API_EMBED | PD_API_NO_ANSWER, PD_API_ANSWERS | PD_API_EMBED, J({"type":"string","minLength":1}) },
    { "messages", PD_API_CHAT | PD_API_TOKENIZE, PD_API_CHAT | PD_API_TEMPLATE,
      J({"type":"array","minItems":1,"items":{"$ref":"#/components/schemas/Message"}}) },
    { "prompt", PD_API_TEXT, PD_API_TEXT,
      J({"anyOf":[{"type":"string"},{"$ref":"#/components/schemas/TokenIds"},
        {"type":"array","minItems":1,"maxItems":128,"items":{"anyOf":[{"type":"string"},{"$ref":"#/components/schemas/TokenIds"}]}}]}) },
    { "input", PD_API_EMBED, PD_API_EMBED,
      J({"anyOf":[{"type":"string","minLength":1},{"$ref":"#/components/schemas/TokenIds"},
        {"type":"array","minItems":1,"maxItems":2048,"items":{"anyOf":[{"type":"string","minLength":1},{"$ref":"#/components/schemas/TokenIds"}]}}]}) },
    { "encoding_format", PD_API_EMBED, 0, J({"enum":["float","base64",null]}) },
    { "input", PD_API_RESPONSES, PD_API_RESPONSES,
      J({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"$ref":"#/components/schemas/Item"}}]}) },
    { "instructions", PD_API_RESPONSES, 0, J({"type":["string","null"]}) },
    { "include", PD_API_RESPONSES, 0,
      J({"type":["array","null"],"items":{"enum":["message.output_text.logprobs","reasoning.encrypted_content","message.input_image.image_url","file_search_call.results","web_search_call.results",
        "web_search_call.action.sources","computer_call_output.output.image_url","code_interpreter_call.outputs"]}}) },
    { "text", PD_API_RESPONSES, 0,
      J({"type":["object","null"],"properties":{"format":{"anyOf":[{"type":"null"},{"type":"object","properties":{"type":{"enum":["text","json_object"]}},"required":["type"]},
        {"type":"object","properties":{"type":{"const":"json_schema"},"name":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"schema":{"type":"object"},"strict":{"type":["boolean","null"]},
        "description":{"type":["string","null"]}},"required":["type","name","schema"]}]},"verbosity":{"enum":["low","medium","high",null]}},
        "additionalProperties":false}) },
    { "metadata", PD_API_RESPONSES, 0, J({"type":["object","null"],"maxProperties":16,"additionalProperties":{"type":"string"}}) },
    { "content", PD_API_TOKENIZE, 0, J({"type":"string"}) },
    { "prompt", PD_API_TOKENIZE, 0, J({"type":"string"}) },
    { "tokens", PD_API_DETOKENIZE, PD_API_DETOKENIZE, J({"type":"array","maxItems":1048576,"items":{"type":"integer","minimum":0,"maximum":2147483647}}) },
    { "stream_options", PD_API_ANSWERS, 0,
      J({"type":["object","null"],"properties":{"include_usage":{"type":["boolean","null"]},"include_obfuscation":{"type":["boolean","null"]}},"additionalProperties":false}) },
    { "logit_bias", PD_API_ANSWERS, 0, J({"type":["object","null"],"propertyNames":{"pattern":"^[0-9]+$"},"additionalProperties":{"type":"number","minimum":-100,"maximum":100}}) },
    { "seed", PD_API_ANSWERS, 0, J({"type":["integer","null"]}) },
    { "stop", PD_API_ANSWERS, 0,
      J({"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/Stop"},{"type":"array","maxItems":16,"items":{"$ref":"#/components/schemas/Stop"}}]}) },
    { "chat_template_kwargs", PD_API_TALK | PD_API_TOKENIZE, 0, J({"type":["object","null"]}) },
    { "modalities", PD_API_CHAT, 0, J({"type":["array","null"],"items":{"const":"text"}}) },
    { "response_format", PD_API_CHAT, 0,
      J({"anyOf":[{"type":"null"},{"type":"object","properties":{"type":{"enum":["text","json_object"]}},"required":["type"]},{"type":"object","properties":{"type":{"const":"json_schema"},
        "json_schema":{"type":"object","properties":{"name":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"schema":{"type":"object"},"strict":{"type":["boolean","null"]},
        "description":{"type":["string","null"]}},"required":["name","schema"]}},"required":["type","json_schema"]}]}) },
    { "guided_json", PD_API_ANSWERS, 0, J({"type":["object","string","boolean","null"]}) },
    { "json_schema", PD_API_ANSWERS, 0, J({"type":["object","string","boolean","null"]}) },
    { "grammar", PD_API_ANSWERS, 0, J({"type":["string","null"],"maxLength":1048576}) },
    { "regex", PD_API_ANSWERS, 0, J({"type":["string","null"],"maxLength":1048576}) },
    { "guided_grammar", PD_API_ANSWERS, 0, J({"type":["string","null"],"maxLength":1048576}) },
    { "guided_regex", PD_API_ANSWERS, 0, J({"type":["string","null"],"maxLength":1048576}) },
    { "guided_choice", PD_API_ANSWERS, 0, J({"type":["array","null"],"maxItems":4096,"items":{"type":"string"}}) },
    { "tools", PD_API_CHAT | PD_API_TOKENIZE, 0, J({"type":["array","null"],"maxItems":128,"items":{"$ref":"#/components/schemas/Tool"}}) },
    { "tools", PD_API_RESPONSES, 0, J({"type":["array","null"],"maxItems":128,"items":{"$ref":"#/components/schemas/FlatTool"}}) },
    { "tool_choice", PD_API_CHAT | PD_API_TOKENIZE, 0,
      J({"anyOf":[{"type":"null"},{"enum":["none","auto","required"]},{"type":"object","required":["type","function"],"properties":{"type":{"const":"function"},
        "function":{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}}}]}) },
    { "tool_choice", PD_API_RESPONSES, 0,
      J({"anyOf":[{"type":"null"},{"enum":["none","auto","required"]},{"type":"object","required":["type","name"],"properties":{"type":{"const":"function"},"name":{"type":"string"}}}]}) },
    { "service_tier", PD_API_ANSWERS, 0, J({"anyOf":[{"type":"null"},{"enum":["auto","default","flex","priority","scale"]}]}) },
    { "session_id", PD_API_ANSWERS, 0, J({"type":["string","null"],"maxLength":256}) },
    { "prompt_cache_key", PD_API_ANSWERS, 0, J({"type":["string","null"],"maxLength":256}) },
    { "reasoning_effort", PD_API_CHAT | PD_API_TOKENIZE, 0, J({"anyOf":[{"type":"null"},{"enum":["none","minimal","low","medium","high","xhigh"]}]}) },
    { "reasoning", PD_API_RESPONSES, 0,
      J({"type":["object","null"],"properties":{"effort":{"enum":["none","minimal","low","medium","high","xhigh",null]},"summary":{},"generate_summary":{},"context":{}},"additionalProperties":false}) },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* What holds for a body as a whole. */
static const struct {
    unsigned fields;
    const char *schema;
} bodies[] = { { PD_API_TOKENIZE, J({"oneOf":[{"required":["content"]},{"required":["prompt"]},{"required":["messages"]}]}) } };

static const struct answer {
    const char *path, *schema;
} answers[] = {
    { "/v1/chat/completions", J({"$ref":"#/components/schemas/ChatCompletion"}) },
    { "/v1/completions", J({"$ref":"#/components/schemas/Completion"}) },
    { "/v1/embeddings",
      J({"type":"object","required":["object","data","model","usage"],"properties":{"object":{"const":"list"},"model":{"type":"string"},
        "data":{"type":"array","minItems":1,"maxItems":2048,"items":{"type":"object","required":["object","index","embedding"],"properties":{"object":{"const":"embedding"},
        "index":{"type":"integer","minimum":0},"embedding":{"anyOf":[{"type":"array","minItems":1,"items":{"type":"number","minimum":-1,"maximum":1}},{"type":"string"}]}}}},
        "usage":{"type":"object","required":["prompt_tokens","total_tokens"],"properties":{"prompt_tokens":{"type":"integer","minimum":1},"total_tokens":{"type":"integer","minimum":1}}}}}) },
    { "/v1/responses", J({"$ref":"#/components/schemas/Response"}) },
    { "/v1/models", J({"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},"data":{"type":"array","items":{"$ref":"#/components/schemas/Model"}}}}) },
    { "/v1/sessions/{id}",
      J({"type":"object","required":["id","object","model"],"properties":{"id":{"type":"string"},"object":{"const":"session"},"model":{"type":"string"},
        "tokens":{"type":"integer","minimum":1},"deleted":{"type":"boolean"}}}) },
    { "/v1/models/{id}", J({"$ref":"#/components/schemas/Model"}) },
    { "/tokenize",
      J({"type":"object","required":["tokens","count","max_model_len"],"properties":{"tokens":{"type":"array","items":{"anyOf":[{"type":"integer"},
        {"type":"object","required":["id","piece"],"properties":{"id":{"type":"integer"},"piece":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"integer","minimum":0,"maximum":255}}]}}}]}},
        "count":{"type":"integer","minimum":0},"max_model_len":{"type":"integer"}}}) },
    { "/detokenize", J({"type":"object","required":["content","prompt"],"properties":{"content":{"type":"string"},"prompt":{"type":"string"}}}) },
    { "/apply-template",
      J({"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"},"tokens":{"$ref":"#/components/schemas/TokenIds"},"count":{"type":"integer","minimum":0}}}) },
    { "/slots",
      J({"type":"object","required":["models"],"properties":{"models":{"type":"array","items":{"type":"object",
        "required":["id","replica","status","running","queued","max_concurrent","max_sessions","queue_depth","n_ctx","kv_bytes","kv_bytes_used","slots"],
        "properties":{"id":{"type":"string"},"replica":{"type":"integer"},"status":{"enum":["ready","draining","failed"]},"running":{"type":"integer"},"queued":{"type":"integer"},
        "max_concurrent":{"type":"integer"},"max_sessions":{"type":"integer"},"queue_depth":{"type":"integer"},"n_ctx":{"type":"integer"},"kv_bytes":{"type":"integer"},"kv_bytes_used":{"type":"integer"},
        "slots":{"type":"array","items":{"type":"object","required":["id","state","is_processing"],"properties":{"id":{"type":"integer"},"state":{"enum":["idle","prefill","decode"]},
        "is_processing":{"type":"boolean"},"request":{"type":"string"},"prompt_tokens":{"type":"integer"},"cached_tokens":{"type":"integer"},"computed_tokens":{"type":"integer"},
        "generated_tokens":{"type":"integer"},"max_tokens":{"type":"integer"},"running_ms":{"type":"integer"}}}}}}}}}) },
    { "/health",
      J({"type":"object","required":["status","uptime_seconds","connections","models"],"properties":{"status":{"enum":["ok","draining"]},"uptime_seconds":{"type":"integer"},
        "connections":{"type":"integer"},"models":{"type":"array","items":{"type":"object","required":["id","status"]}}}}) },
    { "/ready",
      J({"type":"object","required":["status","serving","on_demand","declared"],"properties":{"status":{"const":"ready"},"serving":{"type":"integer"},"on_demand":{"type":"integer"},"declared":{"type":"integer"}}}) },
    { "/",
      J({"type":"object","required":["name","version","build","backend","models"],"properties":{"name":{"const":"pantheon"},"version":{"type":"string"},"build":{"type":"string"},
        "backend":{"type":"string"},"models":{"type":"array","items":{"type":"object","required":["id","status"]}}}}) },
    { "/openapi.json", J({"type":"object","required":["openapi","info","paths","components"]}) },
    { "/admin/dies",
      J({"type":"object","required":["host","dies"],"properties":{"host":{"$ref":"#/components/schemas/Host"},"dies":{"type":"array","items":{"$ref":"#/components/schemas/Die"}}}}) },
    { "/admin/facts",
      J({"type":"object","required":["now_ms","host","dies","instances","histories","estimates"],"properties":{"now_ms":{"type":"integer"},"host":{"$ref":"#/components/schemas/Host"},
        "dies":{"type":"array","items":{"$ref":"#/components/schemas/Die"}},"instances":{"type":"array"},"histories":{"type":"array"},"estimates":{"type":"array"}}}) },
    { "/admin/models",
      J({"type":"object","required":["config","generation","settled","conditions","models"],"properties":{"config":{"type":"string"},"generation":{"type":"integer"},"settled":{"type":"boolean"},
        "conditions":{"type":"array","items":{"$ref":"#/components/schemas/Condition"}},"refused":{"type":"integer"},"failing":{"type":"integer"},"report":{"type":"string"},
        "models":{"type":"array","items":{"$ref":"#/components/schemas/ModelStatus"}}}}) },
    { "/admin/models/load",
      J({"anyOf":[{"$ref":"#/components/schemas/ModelStatus"},{"type":"object","required":["name","dry_run","status","reason","changes"],"properties":{"name":{"type":"string"},"dry_run":{"const":true},
        "status":{"type":"string"},"reason":{"type":"string"},"changes":{"type":"array","items":{"type":"object","required":["key","change","was","is"],"properties":{"key":{"type":"string"},
        "change":{"enum":["live","drain","reload"]},"was":{"type":"string"},"is":{"type":"string"}}}}}}]}) },
    { "/metrics", J({"type":"string"}) },
};
enum { N_ANSWERS = sizeof answers / sizeof *answers };

/* Named parts of the above. */
static const struct {
    const char *name, *schema;
} parts[] = {
    { "TokenIds", J({"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":2147483647}}) },
    { "Function",
      J({"type":"object","required":["name"],"properties":{"name":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"description":{"type":["string","null"]},
        "parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}}}) },
    { "Tool", J({"type":"object","required":["type","function"],"properties":{"type":{"const":"function"},"function":{"$ref":"#/components/schemas/Function"}}}) },
    { "FlatTool",
      J({"type":"object","required":["type","name"],"properties":{"type":{"const":"function"},"name":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"description":{"type":["string","null"]},
        "parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}}}) },
    { "ToolCall",
      J({"type":"object","required":["id","type","function"],"properties":{"id":{"type":"string","pattern":"^call_[0-9a-f]{24}$"},"type":{"const":"function"},
        "function":{"type":"object","required":["name","arguments"],"properties":{"name":{"type":"string"},"arguments":{"type":"string"}},"additionalProperties":false}},"additionalProperties":false}) },
    { "ToolCallDelta",
      J({"oneOf":[{"type":"object","required":["index","id","type","function"],"properties":{"index":{"type":"integer","minimum":0},"id":{"type":"string","pattern":"^call_[0-9a-f]{24}$"},
        "type":{"const":"function"},"function":{"type":"object","required":["name","arguments"],"properties":{"name":{"type":"string"},"arguments":{"const":""}},"additionalProperties":false}},
        "additionalProperties":false},{"type":"object","required":["index","function"],"properties":{"index":{"type":"integer","minimum":0},"function":{"type":"object","required":["arguments"],
        "properties":{"arguments":{"type":"string"}},"additionalProperties":false}},"additionalProperties":false}]}) },
    { "Stop", J({"type":"string","minLength":1,"maxLength":256}) },
    { "Message",
      J({"type":"object","required":["role"],"properties":{"role":{"enum":["system","developer","user","assistant","tool"]},
        "content":{"anyOf":[{"type":"null"},{"type":"string"},{"type":"array","minItems":1,"items":{"$ref":"#/components/schemas/Part"}}]},
        "name":{"type":["string","null"]},"refusal":{"type":["string","null"]},"reasoning_content":{"type":["string","null"]},"reasoning":{"type":["string","null"]},"tool_call_id":{"type":["string","null"]},
        "tool_calls":{"type":["array","null"],"items":{"type":"object","required":["id","function"],"properties":{"id":{"type":"string"},
        "function":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"arguments":{"type":["string","object","null"]}}}}}}}}) },
    { "Part",
      J({"oneOf":[{"type":"object","required":["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}},
        {"type":"object","required":["type","refusal"],"properties":{"type":{"const":"refusal"},"refusal":{"type":"string"}}}]}) },
    { "Item",
      J({"anyOf":[
        {"type":"object","required":["role","content"],"properties":{"type":{"enum":["message",null]},"role":{"enum":["user","assistant","system","developer"]},"content":{"$ref":"#/components/schemas/ItemContent"}}},
        {"type":"object","required":["type"],"properties":{"type":{"const":"reasoning"},"content":{"type":["array","null"],"items":{"type":"object","required":["type","text"],
        "properties":{"type":{"const":"reasoning_text"},"text":{"type":"string"}}}},"encrypted_content":{"type":"null"}}},
        {"type":"object","required":["type","call_id","name","arguments"],"properties":{"type":{"const":"function_call"},"call_id":{"type":"string"},"name":{"type":"string"},"arguments":{"type":"string"}}},
        {"type":"object","required":["type","call_id","output"],"properties":{"type":{"const":"function_call_output"},"call_id":{"type":"string"},"output":{"$ref":"#/components/schemas/ItemContent"}}}]}) },
    { "ItemContent",
      J({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"oneOf":[
        {"type":"object","required":["type","text"],"properties":{"type":{"enum":["input_text","output_text"]},"text":{"type":"string"}}},
        {"type":"object","required":["type","refusal"],"properties":{"type":{"const":"refusal"},"refusal":{"type":"string"}}}]}}]}) },
    { "OutputText",
      J({"type":"object","required":["type","text","annotations","logprobs"],"properties":{"type":{"const":"output_text"},"text":{"type":"string"},"annotations":{"type":"array"},
        "logprobs":{"$ref":"#/components/schemas/TokenLogprobs"}}}) },
    { "TokenLogprobs",
      J({"type":"array","items":{"type":"object","required":["token","logprob","bytes","top_logprobs"],"properties":{"token":{"type":"string"},"logprob":{"type":"number"},
        "bytes":{"type":"array","items":{"type":"integer"}},"top_logprobs":{"type":"array","items":{"type":"object","required":["token","logprob","bytes"],
        "properties":{"token":{"type":"string"},"logprob":{"type":"number"},"bytes":{"type":"array","items":{"type":"integer"}}}}}}}}) },
    { "OutputMessage",
      J({"type":"object","required":["id","type","status","role","content"],"properties":{"id":{"type":"string","pattern":"^msg_"},"type":{"const":"message"},
        "status":{"enum":["in_progress","completed","incomplete"]},"role":{"const":"assistant"},"content":{"type":"array","items":{"$ref":"#/components/schemas/OutputText"}}}}) },
    { "ReasoningText", J({"type":"object","required":["type","text"],"properties":{"type":{"const":"reasoning_text"},"text":{"type":"string"}},"additionalProperties":false}) },
    { "OutputReasoning",
      J({"type":"object","required":["id","type","status","summary","content"],"properties":{"id":{"type":"string","pattern":"^rs_"},"type":{"const":"reasoning"},
        "status":{"enum":["in_progress","completed","incomplete"]},"summary":{"type":"array","maxItems":0},"content":{"type":"array","maxItems":1,"items":{"$ref":"#/components/schemas/ReasoningText"}}},
        "additionalProperties":false}) },
    { "OutputCall",
      J({"type":"object","required":["id","type","status","call_id","name","arguments"],"properties":{"id":{"type":"string","pattern":"^fc_"},"type":{"const":"function_call"},
        "status":{"enum":["in_progress","completed","incomplete"]},"call_id":{"type":"string","pattern":"^call_[0-9a-f]{24}$"},"name":{"type":"string"},"arguments":{"type":"string"}},
        "additionalProperties":false}) },
    { "OutputItem",
      J({"oneOf":[{"$ref":"#/components/schemas/OutputMessage"},{"$ref":"#/components/schemas/OutputReasoning"},{"$ref":"#/components/schemas/OutputCall"}]}) },
    { "Response",
      J({"type":"object","required":["id","object","created_at","status","error","incomplete_details","instructions","max_output_tokens","metadata","model","output","parallel_tool_calls",
        "previous_response_id","store","temperature","text","tool_choice","tools","top_p","truncation","usage"],
        "properties":{"id":{"type":"string","pattern":"^resp_"},"object":{"const":"response"},"created_at":{"type":"integer"},"status":{"enum":["in_progress","completed","incomplete","failed"]},
        "error":{"type":["object","null"],"required":["code","message"],"properties":{"code":{"enum":["server_error","rate_limit_exceeded","invalid_prompt"]},"message":{"type":"string"}}},
        "incomplete_details":{"type":["object","null"],"properties":{"reason":{"const":"max_output_tokens"}}},"instructions":{"type":["string","null"]},"max_output_tokens":{"type":["integer","null"]},
        "metadata":{"type":"object","additionalProperties":{"type":"string"}},"model":{"type":"string"},"output":{"type":"array","items":{"$ref":"#/components/schemas/OutputItem"}},
        "parallel_tool_calls":{"type":"boolean"},"previous_response_id":{"type":"null"},"store":{"const":false},"temperature":{"type":"number"},"text":{"type":"object"},"tool_choice":{"anyOf":[{"enum":["auto","none","required"]},{"type":"object"}]},
        "tools":{"type":"array"},"top_p":{"type":"number"},"truncation":{"const":"disabled"},"usage":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/ResponseUsage"}]}}}) },
    { "ResponseUsage",
      J({"type":"object","required":["input_tokens","input_tokens_details","output_tokens","output_tokens_details","total_tokens"],"properties":{"input_tokens":{"type":"integer"},
        "input_tokens_details":{"type":"object","required":["cached_tokens"],"properties":{"cached_tokens":{"type":"integer"}}},"output_tokens":{"type":"integer"},
        "output_tokens_details":{"type":"object","required":["reasoning_tokens"],"properties":{"reasoning_tokens":{"type":"integer"}}},"total_tokens":{"type":"integer"}}}) },
    { "ResponseStreamEvent",
      J({"oneOf":[
        {"type":"object","required":["type","sequence_number","response"],"properties":{"type":{"enum":["response.created","response.in_progress","response.completed","response.incomplete","response.failed"]},
        "sequence_number":{"type":"integer","minimum":0},"response":{"$ref":"#/components/schemas/Response"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","output_index","item"],"properties":{"type":{"enum":["response.output_item.added","response.output_item.done"]},
        "sequence_number":{"type":"integer","minimum":0},"output_index":{"type":"integer","minimum":0},"item":{"$ref":"#/components/schemas/OutputItem"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","content_index","part"],"properties":{"type":{"enum":["response.content_part.added","response.content_part.done"]},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"content_index":{"const":0},"part":{"oneOf":[{"$ref":"#/components/schemas/OutputText"},
        {"$ref":"#/components/schemas/ReasoningText"}]}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","content_index","delta"],"properties":{"type":{"const":"response.reasoning_text.delta"},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"content_index":{"const":0},"delta":{"type":"string"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","content_index","text"],"properties":{"type":{"const":"response.reasoning_text.done"},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"content_index":{"const":0},"text":{"type":"string"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","delta"],"properties":{"type":{"const":"response.function_call_arguments.delta"},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"delta":{"type":"string"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","name","arguments"],"properties":{"type":{"const":"response.function_call_arguments.done"},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"name":{"type":"string"},"arguments":{"type":"string"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","content_index","delta","logprobs"],"properties":{"type":{"const":"response.output_text.delta"},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"content_index":{"const":0},"delta":{"type":"string"},
        "logprobs":{"$ref":"#/components/schemas/TokenLogprobs"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","item_id","output_index","content_index","text","logprobs"],"properties":{"type":{"const":"response.output_text.done"},
        "sequence_number":{"type":"integer","minimum":0},"item_id":{"type":"string"},"output_index":{"type":"integer","minimum":0},"content_index":{"const":0},"text":{"type":"string"},
        "logprobs":{"$ref":"#/components/schemas/TokenLogprobs"}},"additionalProperties":false},
        {"type":"object","required":["type","sequence_number","code","message","param","error"],"properties":{"type":{"const":"error"},"sequence_number":{"type":"integer","minimum":0},
        "code":{"type":["string","null"]},"message":{"type":"string"},"param":{"type":["string","null"]},"error":{"type":"object"}},"additionalProperties":false}]}) },
    { "Usage",
      J({"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"],"properties":{"prompt_tokens":{"type":"integer"},"completion_tokens":{"type":"integer"},"total_tokens":{"type":"integer"},
        "prompt_tokens_details":{"type":"object","properties":{"cached_tokens":{"type":"integer"}}},"completion_tokens_details":{"type":"object","properties":{"reasoning_tokens":{"type":"integer"}}}}}) },
    { "Logprob",
      J({"type":"object","required":["token","logprob","bytes"],"properties":{"token":{"type":"string"},"logprob":{"type":"number","maximum":0},
        "bytes":{"type":["array","null"],"items":{"type":"integer","minimum":0,"maximum":255}},"top_logprobs":{"type":"array","items":{"$ref":"#/components/schemas/Logprob"}}}}) },
    { "ChatLogprobs",
      J({"type":["object","null"],"required":["content","refusal"],"properties":{"content":{"type":"array","items":{"$ref":"#/components/schemas/Logprob"}},"refusal":{"type":"null"}}}) },
    { "TextLogprobs",
      J({"type":["object","null"],"required":["tokens","token_logprobs","top_logprobs","text_offset"],"properties":{"tokens":{"type":"array","items":{"type":"string"}},
        "token_logprobs":{"type":"array","items":{"type":["number","null"],"maximum":0}},
        "top_logprobs":{"type":"array","items":{"type":["object","null"],"additionalProperties":{"type":"number","maximum":0}}},"text_offset":{"type":"array","items":{"type":"integer","minimum":0}}}}) },
    { "Timings",
      J({"type":"object","required":["cache_n","prompt_n","prompt_ms","predicted_n","predicted_ms","queue_ms","cache"],"properties":{"cache_n":{"type":"integer","minimum":0},"prompt_n":{"type":"integer","minimum":0},
        "prompt_ms":{"type":"number","minimum":0},"predicted_n":{"type":"integer","minimum":0},"predicted_ms":{"type":"number","minimum":0},"queue_ms":{"type":"number","minimum":0},
        "cache":{"type":"object","required":["hit","shared","reason"],
        "properties":{"hit":{"type":"integer","minimum":0},"shared":{"type":"integer","minimum":0},"reason":{"enum":["full","off","empty","diverged","evicted","window","state"]}},"additionalProperties":false}},
        "additionalProperties":{"type":"number","minimum":0}}) },
    { "Condition",
      J({"type":"object","required":["type","status","reason","message","since"],"properties":{"type":{"type":"string"},"status":{"enum":["True","False"]},"reason":{"type":"string"},
        "message":{"type":"string"},"since":{"type":"integer"}}}) },
    { "ModelStatus",
      J({"type":"object","required":["name","aliases","declared","ad_hoc","status","reason","since","generation","observed_generation","placement","conditions","limits","counters","events"],
        "properties":{"name":{"type":"string"},"aliases":{"type":"array","items":{"type":"string"}},"declared":{"type":"boolean"},"ad_hoc":{"type":"boolean"},
        "status":{"enum":["waiting","loading","ready","failed","refused","held","absent","on_demand","leaving"]},"reason":{"type":"string"},"since":{"type":"integer"},"generation":{"type":"integer"},
        "observed_generation":{"type":"integer"},"placement":{"type":"array","items":{"type":"object","required":["replica","state","generation","running","kv_type","host_bytes","estimated"]}},
        "conditions":{"type":"array","items":{"$ref":"#/components/schemas/Condition"}},"limits":{"type":"object"},
        "counters":{"type":"object","additionalProperties":{"type":"integer","minimum":0}},"events":{"type":"array","items":{"type":"object","required":["seq","time","event","text"]}}}}) },
    { "Host",
      J({"type":"object","required":["total_bytes","available_bytes","limited_by"],"properties":{"total_bytes":{"type":"integer"},"available_bytes":{"type":"integer"},"limited_by":{"type":"string"}}}) },
    { "Die",
      J({"type":"object","required":["name","kind","total_bytes","reserve_bytes","ours_bytes","foreign_bytes","health"],"properties":{"name":{"type":"string"},"kind":{"type":"string"},
        "total_bytes":{"type":"integer"},"reserve_bytes":{"type":"integer"},"ours_bytes":{"type":"integer"},"foreign_bytes":{"type":"integer"},"health":{"enum":["ok","lost"]}}}) },
    { "FinishReason", J({"enum":["stop","length","tool_calls","content_filter","function_call"]}) },
    { "ChatCompletion",
      J({"type":"object","required":["id","object","created","model","choices","usage"],"properties":{"id":{"type":"string"},"object":{"const":"chat.completion"},"created":{"type":"integer"},
        "model":{"type":"string"},"system_fingerprint":{"type":"string"},"service_tier":{"enum":["default","flex","priority"]},"usage":{"$ref":"#/components/schemas/Usage"},"choices":{"type":"array","items":{"type":"object",
        "required":["index","message","finish_reason"],"properties":{"index":{"type":"integer"},"finish_reason":{"$ref":"#/components/schemas/FinishReason"},"logprobs":{"$ref":"#/components/schemas/ChatLogprobs"},
        "message":{"type":"object","required":["role","content"],"properties":{"role":{"const":"assistant"},"content":{"type":["string","null"]},"refusal":{"type":["string","null"]},
        "reasoning_content":{"type":"string"},"tool_calls":{"type":"array","minItems":1,"items":{"$ref":"#/components/schemas/ToolCall"}}},"additionalProperties":false}}}},
        "timings":{"$ref":"#/components/schemas/Timings"}}}) },
    { "ChatCompletionChunk",
      J({"type":"object","required":["id","object","created","model","choices"],"properties":{"id":{"type":"string"},"object":{"const":"chat.completion.chunk"},"created":{"type":"integer"},
        "model":{"type":"string"},"service_tier":{"enum":["default","flex","priority"]},"usage":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/Usage"}]},"choices":{"type":"array","items":{"type":"object","required":["index","delta","finish_reason"],
        "properties":{"index":{"type":"integer"},"delta":{"type":"object","properties":{"role":{"const":"assistant"},"content":{"type":["string","null"]},"reasoning_content":{"type":"string"},
        "tool_calls":{"type":"array","minItems":1,"maxItems":1,"items":{"$ref":"#/components/schemas/ToolCallDelta"}}},"additionalProperties":false},
        "finish_reason":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/FinishReason"}]},"logprobs":{"$ref":"#/components/schemas/ChatLogprobs"}}}},
        "timings":{"$ref":"#/components/schemas/Timings"}}}) },
    { "Completion",
      J({"type":"object","required":["id","object","created","model","choices"],"properties":{"id":{"type":"string"},"object":{"const":"text_completion"},"created":{"type":"integer"},"model":{"type":"string"},
        "service_tier":{"enum":["default","flex","priority"]},"usage":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/Usage"}]},"choices":{"type":"array","items":{"type":"object","required":["index","text","finish_reason"],
        "properties":{"index":{"type":"integer"},"text":{"type":"string"},"logprobs":{"$ref":"#/components/schemas/TextLogprobs"},
        "finish_reason":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/FinishReason"}]}}}},"timings":{"$ref":"#/components/schemas/Timings"}}}) },
    { "Model",
      J({"type":"object","required":["id","object","created","owned_by","status"],"properties":{"id":{"type":"string"},"object":{"const":"model"},"created":{"type":"integer"},"owned_by":{"type":"string"},
        "aliases":{"type":"array","items":{"type":"string"}},"status":{"type":"string"},"reason":{"type":["string","null"]},"context_window":{"type":"integer"},"max_output_tokens":{"type":"integer"},
        "tools":{"type":["string","null"]},"reasoning":{"type":["string","null"]}}}) },
};

const char *pd_openapi_said(size_t i, unsigned *ret_api) {
    *ret_api = i < N_SHAPES ? shapes[i].api : 0;
    return i < N_SHAPES ? shapes[i].field : i < N_SHAPES + N_ANSWERS ? answers[i - N_SHAPES].path : NULL;
}

/* Memory may run out anywhere: `set` and `add` note it, and the document is then not given out. */
struct build {
    bool failed;
};

static void set(struct build *b, json_t *o, const char *key, json_t *v) {
    if (json_object_set_new(o, key, v)) b->failed = true;
}

static void add(struct build *b, json_t *list, json_t *v) {
    if (json_array_append_new(list, v)) b->failed = true;
}

static json_t *fragment(const char *text) {
    json_error_t unused;
    return json_loads(text, JSON_REJECT_DUPLICATES, &unused);
}

static json_t *number(double v) {
    return v == (double)(int64_t)v ? json_integer((json_int_t)v) : json_real(v);
}

/* The shape of a row's field in bodies that have these fields. */
static const struct shape *shape_of(const struct pd_param_doc *d, unsigned fields) {
    for (int i = 0; i < N_SHAPES; i++)
        if ((shapes[i].api & d->api & fields) && strcmp(shapes[i].field, d->name) == 0) return &shapes[i];
    return NULL;
}

/* Null is "unset" everywhere but in what must be there. */
static json_t *field_schema(struct build *b, const struct pd_param_doc *d, unsigned fields) {
    static const char *const names[] = { [PD_NUMBER] = "number", [PD_INTEGER] = "integer", [PD_BOOLEAN] = "boolean" };
    json_t *s = NULL;
    if (d->verdict == PD_REFUSED) { /* what asks for nothing is taken */
        json_t *off = fragment(J([null,false,0,"",[],{}]));
        if (d->off) add(b, off, json_string(d->off));
        s = json_pack("{s:o}", "enum", off);
    } else if (d->type == PD_OWN_SHAPE) {
        const struct shape *own = shape_of(d, fields);
        s = own ? fragment(own->schema) : json_object();
    } else if (d->type == PD_ANY) {
        s = json_object();
    } else {
        s = json_pack("{s:[s, s]}", "type", names[d->type], "null");
        if (d->type != PD_BOOLEAN) {
            set(b, s, d->open_min ? "exclusiveMinimum" : "minimum", number(d->min));
            set(b, s, d->open_max ? "exclusiveMaximum" : "maximum", number(d->max));
        }
    }
    set(b, s, "description", json_string(d->doc));
    return s;
}

static json_t *body_schema(struct build *b, unsigned fields) {
    struct pd_param_doc d;
    json_t *properties = json_object(), *required = json_array();
    unsigned own = fields & PD_API_NO_ANSWER ? fields & PD_API_NO_ANSWER : fields; /* /apply-template needs less than a chat */
    for (size_t i = 0; pd_param_doc(i, &d); i++)
        if (d.api & fields) set(b, properties, d.name, field_schema(b, &d, fields));
    for (int i = 0; i < N_SHAPES; i++)
        if (shapes[i].needed & own) add(b, required, json_string(shapes[i].field));
    json_t *s = json_pack("{s:s, s:o, s:b}", "type", "object", "properties", properties, "additionalProperties", 0);
    if (json_array_size(required)) set(b, s, "required", required);
    else json_decref(required);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        if (bodies[i].fields != fields) continue;
        json_t *more = fragment(bodies[i].schema);
        if (!more || json_object_update(s, more)) b->failed = true;
        json_decref(more);
    }
    return s;
}

static json_t *parameters(struct build *b, const struct pd_route *r) {
    json_t *list = json_array();
    if (strstr(r->path, "{id}")) add(b, list, fragment(J({"name":"id","in":"path","required":true,"schema":{"type":"string","minLength":1}})));
    for (const char *q = r->query; q && *q; q += strcspn(q, " "), q += *q == ' ')
        add(b, list, json_pack("{s:s%, s:s, s:b, s:{s:s}}", "name", q, strcspn(q, " "), "in", "query", "allowEmptyValue", 1, "schema", "type", "string"));
    if (r->fields & (PD_API_ANSWERS | PD_API_EMBED) && !(r->fields & PD_API_NO_ANSWER))
        add(b, list, fragment(J({"name":"X-Session-Id","in":"header","required":false,"description":"The conversation that the request is part of: goes before session_id.","schema":{"type":"string","maxLength":256,"pattern":"^[!-~]*$"}})));
    return list;
}

static json_t *responses(struct build *b, const struct pd_route *r) {
    const char *schema = J({"type":"object"});
    json_t *content = json_object(), *all = json_object();
    for (int i = 0; i < N_ANSWERS; i++)
        if (strcmp(answers[i].path, r->path) == 0) schema = answers[i].schema;
    if (r->type && strcmp(r->type, "application/octet-stream") == 0) schema = J({"type":"string"});
    set(b, content, r->type ? r->type : "application/json", json_pack("{s:o}", "schema", fragment(schema)));
    static const struct {
        unsigned fields;
        const char *what;
    } streams[] = { { PD_API_CHAT, "With stream: each `data:` line is a ChatCompletionChunk, the last one is [DONE]." },
                    { PD_API_TEXT, "With stream: each `data:` line is a Completion, the last one is [DONE]." },
                    { PD_API_RESPONSES, "With stream: each `data:` line is a ResponseStreamEvent, whose type is in the `event:` line before it." } };
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (r->fields == streams[i].fields) set(b, content, "text/event-stream", json_pack("{s:{s:s, s:s}}", "schema", "type", "string", "description", streams[i].what));
    set(b, all, "200", json_pack("{s:s, s:O}", "description", "The answer.", "content", content));
    if (r->query && !r->answers_at_once) set(b, all, "202", json_pack("{s:s, s:O}", "description", "Asked for, and not waited for.", "content", content));
    json_decref(content);
    set(b, all, "default", fragment(J({"$ref":"#/components/responses/Error"})));
    return all;
}

static json_t *operation(struct build *b, const struct pd_route *r) {
    char id[96];
    size_t n = (size_t)snprintf(id, sizeof id, "%s%s", r->method, r->path);
    for (size_t i = 0; i < n && i < sizeof id; i++) {
        if (id[i] >= 'A' && id[i] <= 'Z') id[i] = (char)(id[i] - 'A' + 'a');
        else if (id[i] < 'a' || id[i] > 'z') id[i] = '_';
    }
    const char *tag = strncmp(r->path, "/v1/", 4) == 0 ? "openai" : strncmp(r->path, "/admin/", 7) == 0 ? "admin" : "server";
    json_t *o = json_pack("{s:s, s:[s], s:s, s:o}", "operationId", id, "tags", tag, "description", r->doc, "responses", responses(b, r)), *list = parameters(b, r);
    if (json_array_size(list)) set(b, o, "parameters", list);
    else json_decref(list);
    if (r->fields) set(b, o, "requestBody", json_pack("{s:b, s:{s:{s:o}}}", "required", 1, "content", "application/json", "schema", body_schema(b, r->fields)));
    else if (r->takes) set(b, o, "requestBody", json_pack("{s:b, s:{s:{s:{s:s, s:s}}}}", "required", 1, "content", r->takes, "schema", "type", "string", "format", "binary"));
    else if (strcmp(r->method, "POST") == 0)
        set(b, o, "requestBody", fragment(J({"required":false,"content":{"application/json":{"schema":{"type":"object"}}}})));
    return o;
}

static json_t *paths(struct build *b) {
    json_t *all = json_object();
    const struct pd_route *r;
    for (size_t i = 0; (r = pd_route_at(i)); i++) {
        char method[16];
        size_t n = (size_t)snprintf(method, sizeof method, "%s", r->method);
        for (size_t k = 0; k < n; k++) method[k] = (char)(method[k] - 'A' + 'a');
        if (!json_object_get(all, r->path)) set(b, all, r->path, json_object());
        set(b, json_object_get(all, r->path), method, operation(b, r));
    }
    return all;
}

/* Appends a text that is not in the list yet. */
static void add_new(struct build *b, json_t *list, const char *text) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0) return;
    add(b, list, json_string(text));
}

static json_t *error_schema(struct build *b) {
    json_t *types = json_array(), *codes = json_array();
    for (int i = 0; i < PD_N_ERRORS; i++) {
        const struct pd_error_row *row = pd_error_row((enum pd_error_id)i);
        add_new(b, types, row->type);
        if (row->code) add_new(b, codes, row->code);
    }
    add(b, codes, json_null());
    return json_pack("{s:s, s:[s], s:{s:{s:s, s:[s, s, s, s], s:{s:{s:s}, s:{s:o}, s:{s:[s, s]}, s:{s:o}, s:{s:s}, s:{s:s}}}}}", "type", "object", "required", "error", "properties", "error",
                     "type", "object", "required", "message", "type", "param", "code", "properties", "message", "type", "string", "type", "enum", types, "param", "type", "string", "null",
                     "code", "enum", codes, "budget", "type", "object", "request_id", "type", "string");
}

/* One response for all errors; which there are stands in x-errors, a row of the table each. */
static json_t *error_response(struct build *b) {
    json_t *list = json_array();
    for (int i = 0; i < PD_N_ERRORS; i++) {
        const struct pd_error_row *row = pd_error_row((enum pd_error_id)i);
        add(b, list, json_pack("{s:i, s:s, s:s?, s:s}", "status", row->status, "type", row->type, "code", row->code, "description", row->doc));
    }
    return json_pack("{s:s, s:o, s:{s:{s:{s:s}}}}", "description", "An error. `x-errors` lists all that there are.", "x-errors", list, "content", "application/json", "schema", "$ref",
                     "#/components/schemas/Error");
}

json_t *pd_openapi(void) {
    struct build b = { false };
    json_t *schemas = json_object();
    set(&b, schemas, "Error", error_schema(&b));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) set(&b, schemas, parts[i].name, fragment(parts[i].schema));
    json_t *all = json_pack("{s:s, s:{s:s, s:s, s:s}, s:[{}, {s:[]}], s:o, s:{s:o, s:{s:o}, s:{s:{s:s, s:s}}}}", "openapi", "3.1.0", "info", "title", "Pantheon", "version", pn_version(),
                            "description", "OpenAI's conventions over the models that a manifest declares. Every answer has an x-request-id header.", "security", "bearer", "paths", paths(&b),
                            "components", "schemas", schemas, "responses", "Error", error_response(&b), "securitySchemes", "bearer", "type", "http", "scheme", "bearer");
    if (b.failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}

void pd_get_openapi(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)app;
    (void)param;
    pd_reply_object(c, 200, pd_openapi());
}
