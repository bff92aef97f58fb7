/* What is remembered of a file that is on its way: beside `chat.gguf` lie `chat.gguf.part`, its beginning, and `chat.gguf.part.from`, a few
 * lines that say of what it is the beginning. With them a download goes on where it ended. Any thread; the part's owner is who has it locked. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;

enum { PD_MAX_URL = 4096, PD_MAX_VALIDATOR = 512 };

struct pd_part_note {
    char url[PD_MAX_URL];             /* as declared */
    char validator[PD_MAX_VALIDATOR]; /* what the server called this very content: a strong ETag, or its Last-Modified; "" = nothing */
    uint64_t size_bytes;              /* of the whole file; 0 = not known */
    uint64_t synced_bytes;            /* of the part, are on the disk whatever happens to the machine */
};

/* FO_EFORMAT names the line at fault. */
int pd_part_note_parse(const char *text, size_t len, struct pd_part_note *ret, struct fo_err *e);
/* Of `part` (the path of the part itself). A note that is absent or broken is none: false. */
bool pd_part_note_read(const char *part, struct pd_part_note *ret);
/* By a temporary file and a rename. */
int pd_part_note_write(const char *part, const struct pd_part_note *note, struct fo_err *e);
void pd_part_note_remove(const char *part);

/* The value of Content-Range, "bytes 100-199/200": *ret_first and *ret_size (0 where it is '*'). False when it is not one of bytes. */
bool pd_content_range(const char *value, uint64_t *ret_first, uint64_t *ret_size);

/* A header's value when `line` ("Name: value\r\n", n bytes) is of that name, without the spaces around it; false = of another, or it does not fit. */
bool pd_header_value(const char *line, size_t n, const char *name, char *ret, size_t size);
