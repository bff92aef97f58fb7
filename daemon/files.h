/* The loop's side of fetching: what there is of each model's files, which download is at work, and what becomes of what it brings. Main
 * thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct cf_file;
struct cf_model;
struct cf_step;
struct fo_err;
struct pd_loop;
struct pd_verified;

/* What is on the disk of a model that declares where its file comes from, or what it must be. False = it declares neither, or only a sum of
 * what is not there. Some stats; the fact's texts are the model's, or valid until `v` is noted to. */
bool pd_file_look(const char *dir, const struct cf_model *m, const struct pd_verified *v, struct cf_file *ret);

/* Looks at the files of all models, into world.files. */
void pd_files_look(struct pd_loop *l);
/* Takes back a download that is done, and cancels one that nobody wants any more. Whether the loop should look again. */
bool pd_files_tick(struct pd_loop *l);
/* "; fetching chat: 34%", for people; "" when nothing is. */
void pd_files_text(const struct pd_loop *l, char *out, size_t size);
/* Hands a step to the fetcher, which is started for the first one. */
int pd_start_fetch(struct pd_loop *l, const struct cf_step *p, struct fo_err *e);
