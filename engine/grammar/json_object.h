/* The grammar of any JSON object, in GBNF: rules "root", "object", "value", "member", "array", "string", "number" and "ws". Blanks are bounded,
 * so that no answer is all blanks: what stands between two tokens of JSON is at most a line break and some indent. */
#pragma once

extern const char pn_json_object[];
