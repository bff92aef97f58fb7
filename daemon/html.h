/* Text for HTML. Whatever models, manifests and clients wrote goes through pd_html_text. Pure: any thread. */
#pragma once

struct fo_buf;

/* Appends the text so that it is text in an element and within a quoted attribute; control characters become blanks. */
void pd_html_text(struct fo_buf *out, const char *text);

/* Appends `format`, our own HTML, with each %s replaced by the next argument as pd_html_text writes it; %% is a percent sign. There is no other
 * conversion. */
void pd_html_put(struct fo_buf *out, const char *format, ...);
