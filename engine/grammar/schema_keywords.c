/* THE table of keywords: what each does, for the compiler and for the reference. Data table. */
#include <string.h>

#include "engine/grammar/schema_impl.h"

#define ENFORCED PN_SCHEMA_ENFORCED
#define NOTED    PN_SCHEMA_ANNOTATION
#define REFUSED  PN_SCHEMA_REFUSED

static const struct pn_keyword keywords[] = {
    { { "type", ENFORCED, "One, or a list. An integer is written without a fraction." }, pn_kw_type, false },
    { { "nullable", ENFORCED, "Adds null to `type` (OpenAPI 3.0)." }, NULL, false },
    { { "enum", ENFORCED, "Any values, in their shortest spelling. Within `not`, `oneOf`, `if`: no arrays or objects." },
      pn_kw_enum,
      false },
    { { "const", ENFORCED, "As `enum` of one." }, pn_kw_enum, false },
    { { "minimum", ENFORCED, "Compared digit by digit; the number is then written without an exponent." }, pn_kw_bound, false },
    { { "maximum", ENFORCED, "As `minimum`." }, pn_kw_bound, false },
    { { "exclusiveMinimum", ENFORCED, "As `minimum`; the boolean form of older drafts is refused." }, pn_kw_bound, false },
    { { "exclusiveMaximum", ENFORCED, "As `exclusiveMinimum`." }, pn_kw_bound, false },
    { { "multipleOf", ENFORCED, "Steps of up to 4,096 remainders (for 0.01: 1 times 3), also of decimals; larger ones are refused." },
      pn_kw_multiple,
      false },
    { { "minLength", ENFORCED, "In characters; an escape counts as the one that it means." }, pn_kw_length, false },
    { { "maxLength", ENFORCED, "As `minLength`, however large; together with `pattern` or `format` up to 16,384 states." },
      pn_kw_length,
      false },
    { { "pattern", ENFORCED,
        "ECMA-262 with classes, counts, groups, alternatives and anchors. Refused: back references, look-around, `\\b`, `\\p`." },
      pn_kw_pattern,
      false },
    { { "format", ENFORCED, "The formats listed below, dates from the year 1 on; others are annotations." }, pn_kw_format, false },
    { { "properties", ENFORCED, "In this order; those not required may be left out." }, pn_kw_properties, false },
    { { "patternProperties", ENFORCED, "Behind the declared properties. Not within `not`." }, pn_kw_properties, false },
    { { "additionalProperties", ENFORCED,
        "Behind the declared ones, by other names than theirs. That one comes twice is not seen. Not within `not`." },
      pn_kw_properties,
      false },
    { { "required", ENFORCED, "" }, pn_kw_required, false },
    { { "propertyNames", ENFORCED, "Not within `not`." }, pn_kw_names, false },
    { { "minProperties", ENFORCED, "Counted together with declared properties up to 8,192 (members times counts)." }, pn_kw_length, false },
    { { "maxProperties", ENFORCED, "As `minProperties`." }, pn_kw_length, false },
    { { "dependentRequired", ENFORCED, "" }, pn_kw_dependent, false },
    { { "prefixItems", ENFORCED, "" }, pn_kw_items, false },
    { { "items", ENFORCED, "Also as a list, with `additionalItems` (draft 7)." }, pn_kw_items, false },
    { { "additionalItems", ENFORCED, "Behind a list of `items` (draft 7)." }, pn_kw_items, false },
    { { "minItems", ENFORCED, "" }, pn_kw_length, false },
    { { "maxItems", ENFORCED, "" }, pn_kw_length, false },
    { { "contains", ENFORCED, "One for an array; with counts up to 8,192 (positions times counts)." }, pn_kw_contains, false },
    { { "minContains", ENFORCED, "With `contains`." }, NULL, false },
    { { "maxContains", ENFORCED, "With `contains`, whose opposite must be expressible." }, NULL, false },
    { { "uniqueItems", ENFORCED,
        "Where at most one item may come, or the items are at most 8 values of an `enum`; else refused: a grammar does not remember "
        "items." },
      pn_kw_unique,
      false },
    { { "dependentSchemas", ENFORCED, "" }, pn_kw_dependent, true },
    { { "dependencies", ENFORCED, "As `dependentRequired` and `dependentSchemas` (draft 7)." }, pn_kw_dependent, true },
    { { "$ref", ENFORCED, "Within the document: pointers, anchors and `$id`s, recursion included. Other documents are refused." },
      pn_kw_ref,
      true },
    { { "$dynamicRef", ENFORCED, "Where it can mean one schema alone, or the root's resource has the anchor; else refused." },
      pn_kw_ref,
      true },
    { { "allOf", ENFORCED, "Merged." }, pn_kw_all, true },
    { { "anyOf", ENFORCED, "" }, pn_kw_any, true },
    { { "oneOf", ENFORCED,
        "Branches that share no instance (a discriminator is enough) as they are; of others the opposite must be expressible." },
      pn_kw_one,
      true },
    { { "if", ENFORCED, "With `then` and `else`, where the opposite of `if` is expressible." }, pn_kw_if, true },
    { { "then", ENFORCED, "With `if`." }, NULL, true },
    { { "else", ENFORCED, "With `if`." }, NULL, true },
    { { "not", ENFORCED,
        "Of what has an expressible opposite: types, values, bounds, patterns, `required`, `properties`, counts, and combinations of "
        "them." },
      pn_kw_not,
      true },
    { { "unevaluatedProperties", ENFORCED, "With `anyOf` and `oneOf` of up to 5 branches beside it. Not within `not`." }, NULL, true },
    { { "unevaluatedItems", ENFORCED, "As `unevaluatedProperties`." }, NULL, true },
    { { "$recursiveRef", REFUSED, "Of draft 2019-09." }, NULL, true },
    { { "$schema", NOTED, "Drafts 4 to 2020-12; a dialect of one's own is refused." }, NULL, false },
    { { "$id", NOTED, "The base of `$ref`." }, NULL, false },
    { { "$anchor", NOTED, "A place for `$ref`." }, NULL, false },
    { { "$dynamicAnchor", NOTED, "A place for `$ref` and `$dynamicRef`." }, NULL, false },
    { { "$defs", NOTED, "A place for schemas." }, NULL, false },
    { { "definitions", NOTED, "A place for schemas." }, NULL, false },
    { { "title", NOTED, "" }, NULL, false },
    { { "description", NOTED, "" }, NULL, false },
    { { "default", NOTED, "" }, NULL, false },
    { { "examples", NOTED, "" }, NULL, false },
    { { "deprecated", NOTED, "" }, NULL, false },
    { { "readOnly", NOTED, "" }, NULL, false },
    { { "writeOnly", NOTED, "" }, NULL, false },
    { { "contentEncoding", NOTED, "" }, NULL, false },
    { { "contentMediaType", NOTED, "" }, NULL, false },
    { { "contentSchema", NOTED, "" }, NULL, false },
    { { "discriminator", NOTED, "What `oneOf` says holds (OpenAPI)." }, NULL, false },
};

const struct pn_keyword *pn_keyword_find(const char *name) {
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].row.keyword, name) == 0) return &keywords[i];
    return NULL;
}

const struct pn_schema_row *pn_schema_row(size_t i) {
    return i < sizeof keywords / sizeof *keywords ? &keywords[i].row : NULL;
}
