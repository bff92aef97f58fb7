/* The Prometheus text format (0.0.4), a line at a time, and the page of such lines. Any thread. */
#pragma once

struct fo_buf;
struct pd_call;

/* The lines above a metric's samples. */
void pd_metric_head(struct fo_buf *out, const char *name, const char *type, const char *help);
/* One more label of a sample: `{` or `,` (*before, which begins as '{' and becomes ','), then name="value" with its escapes. */
void pd_metric_label(struct fo_buf *out, char *before, const char *name, const char *value);
/* Answers with the page, or with the error when the buffer failed. */
void pd_metric_reply(struct pd_call *c, struct fo_buf *page);
