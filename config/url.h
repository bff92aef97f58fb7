/* Where a model's file is fetched from, as the manifest writes it. Pure: texts in, values out. Any thread.
 *
 *     https://HOST[:PORT]/PATH                  a file on a server
 *     http://HOST[:PORT]/PATH                   the same in the open: on this machine, or where a sha256 says what must come
 *     hf:OWNER/REPO[@REVISION]/FILE             a file of a Hugging Face repository; the revision is a branch, a tag or a commit */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;

enum { CF_MAX_SHARDS = 256 }; /* files of one model that are fetched */

enum cf_url_scheme { CF_URL_HTTPS, CF_URL_HTTP, CF_URL_HF };

struct cf_span {
    const char *at; /* in the text that was parsed; not NUL-terminated */
    size_t len;
};

struct cf_url {
    enum cf_url_scheme scheme;
    bool loopback;                            /* of CF_URL_HTTP and CF_URL_HTTPS: the host is this machine */
    struct cf_span host;                      /* without port and brackets; empty of CF_URL_HF */
    struct cf_span owner, repo, revision;     /* of CF_URL_HF; an empty revision is "main" */
    struct cf_span path;                      /* of the others behind the host, from its '/', without the query; of CF_URL_HF the file in the repository */
    uint32_t shard, n_shards;                 /* of a name that ends in -00002-of-00003.gguf: 1 and 3; else 0 and 0 */
};

/* NULL when it is one, else what is wrong with it, as the end of a sentence: "names no file" (static). */
const char *cf_url_parse(const char *text, struct cf_url *ret);

/* Appends `text`, a good one whose name is a shard's, with shard `no` (from 0) in its place. */
void cf_url_shard(const char *text, uint32_t no, struct fo_buf *out);
