/* SHA-256 against the examples of the standard, and at every length around the ends of its blocks. */
#include "foundry/base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *hex(const void *bytes, size_t n) {
    static char out[2 * FO_SHA256_BYTES + 1];
    uint8_t d[FO_SHA256_BYTES];
    fo_sha256(bytes, n, d);
    for (int i = 0; i < FO_SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", d[i]);
    return out;
}

static void gives_the_digests_of_the_standard(void **state) {
    (void)state;
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    assert_string_equal(hex("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(hex(NULL, 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(hex("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_string_equal(hex(two, strlen(two)), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_string_equal(hex(million, 1000000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

/* The digest of the digests of all lengths from 0 to 300, as Python's hashlib makes it. */
static void is_right_at_every_length(void **state) {
    (void)state;
    uint8_t text[300], all[301 * FO_SHA256_BYTES];
    for (int i = 0; i < 300; i++) text[i] = (uint8_t)(i * 7 + 3);
    for (size_t n = 0; n <= 300; n++) fo_sha256(text, n, all + n * FO_SHA256_BYTES);
    assert_string_equal(hex(all, sizeof all), "7d917fbd2cf49ddff9ad0a8706bba32d204e92e71d2e369c5a03d6af29278c9f");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_digests_of_the_standard),
        cmocka_unit_test(is_right_at_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
