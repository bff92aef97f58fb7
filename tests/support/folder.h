/* What tests ask of a folder of their own. */
#pragma once

/* A new one below /tmp: its name in folder. 0 = good, as cmocka's setups say it. */
int test_folder_make(char folder[64]);
/* It and all in it; 0 = good. */
int test_folder_remove(const char *folder);
/* A file of it, folder/path, with the text; the folders on the way to it are made. */
void test_folder_put(const char *folder, const char *path, const char *text);

/* Entries but "." and ".."; -1 when it cannot be read. */
int test_n_files(const char *folder);
