/* The words of /v1/responses: a Response object, whole or as the events of a stream. What its items mean to a model: items.h. */
#pragma once
#include "daemon/sse.h"

struct fo_buf;

/* Of one choice. Events are numbered from 0, and each of the last ones has the whole text again. */
extern const struct pd_writer pd_writer_responses;

/* The part of the reference page about them. */
void pd_responses_doc(struct fo_buf *out);
