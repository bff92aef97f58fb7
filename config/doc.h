/* Pages made from the key table, so that they cannot drift from what is parsed. Pure; any thread. */
#pragma once

struct cf_keys;
struct fo_buf;

/* docs/manifest.md: how a manifest is written, and every key. */
void cf_doc_markdown(const struct cf_keys *root, struct fo_buf *out);

/* A JSON Schema (draft 2020-12) of what this version accepts, for editors: of a manifest, and of a file that one includes. It says less than the
 * parser: keys that must agree, names that must differ, and bounds of sizes and times are beyond it. Keys that this version does not honour are left out. */
void cf_doc_schema(const struct cf_keys *root, struct fo_buf *out);
