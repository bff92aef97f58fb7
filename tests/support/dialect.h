/* Dialects for tests, without a model. */
#pragma once

struct pn_dialect;

/* The dialect of a template that writes calls as that row of pn_call_format_row has it; fails the test where the engine finds another. */
struct pn_dialect *test_dialect(const char *row);
