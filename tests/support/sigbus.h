/* cmocka takes SIGBUS for itself around every test, and so from the guard of mapped files (foundry/base/file.h). A test that
 * truncates a mapped file calls test_sigbus_init in main, before cmocka runs, and test_sigbus_guard in the test, before the fault. */
#pragma once

void test_sigbus_init(void);  /* has the library install its handler, and remembers it */
void test_sigbus_guard(void); /* puts it back */
