/* What tests ask of a folder of their own. */
#pragma once

/* Entries but "." and ".."; -1 when it cannot be read. */
int test_n_files(const char *folder);
