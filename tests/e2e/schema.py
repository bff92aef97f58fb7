"""Holds a JSON value against a schema of /openapi.json: the keywords that daemon/openapi.c uses. One that is not among them is an error."""
import re

TYPES = {"null": lambda v: v is None, "boolean": lambda v: isinstance(v, bool), "object": lambda v: isinstance(v, dict), "array": lambda v: isinstance(v, list),
         "string": lambda v: isinstance(v, str), "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
         "integer": lambda v: isinstance(v, int) and not isinstance(v, bool)}
OF_TYPE = {"properties": dict, "required": dict, "additionalProperties": dict, "maxProperties": dict, "propertyNames": dict, "items": list, "minItems": list, "maxItems": list, "pattern": str,
           "minLength": str, "maxLength": str, "minimum": (int, float), "maximum": (int, float), "exclusiveMinimum": (int, float), "exclusiveMaximum": (int, float)}


def why_not(v, schema, doc, at="it"):
    """What is wrong with the value, or None."""
    for word, want in schema.items():
        if word in OF_TYPE and not isinstance(v, OF_TYPE[word]):
            continue
        wrong = None
        if word == "$ref":
            part = doc
            for key in want[2:].split("/"):
                part = part[key]
            wrong = why_not(v, part, doc, at)
        elif word == "type":
            names = [want] if isinstance(want, str) else want
            wrong = None if any(TYPES[n](v) for n in names) else f"{at} is no {names}: {v!r}"
        elif word in ("enum", "const"):
            allowed = want if word == "enum" else [want]
            wrong = None if any(type(v) is type(a) and v == a for a in allowed) else f"{at} is none of {allowed}: {v!r}"
        elif word in ("anyOf", "oneOf"):
            each = [why_not(v, s, doc, at) for s in want]
            fit = each.count(None)
            wrong = None if fit == 1 or (fit and word == "anyOf") else f"{at} fits {fit} of {word}: {each}"
        elif word == "properties":
            wrong = next((w for k, s in want.items() if k in v for w in [why_not(v[k], s, doc, f"{at}.{k}")] if w), None)
        elif word == "required":
            wrong = next((f"{at} lacks {k}" for k in want if k not in v), None)
        elif word == "additionalProperties":
            more = [k for k in v if k not in schema.get("properties", {})]
            if want is False and more:
                wrong = f"{at} has {more}"
            elif isinstance(want, dict):
                wrong = next((w for k in more for w in [why_not(v[k], want, doc, f"{at}.{k}")] if w), None)
        elif word == "items":
            wrong = next((w for i, e in enumerate(v) for w in [why_not(e, want, doc, f"{at}.{i}")] if w), None)
        elif word == "pattern":
            wrong = None if re.search(want, v) else f"{at} does not match {want}: {v!r}"
        elif word in ("minimum", "minItems", "minLength", "maximum", "maxItems", "maxLength", "maxProperties"):
            n = v if isinstance(v, (int, float)) else len(v)
            wrong = f"{at} is out of {word} {want}: {v!r}" if (n < want if word.startswith("min") else n > want) else None
        elif word != "description":
            raise AssertionError(f"a keyword that is not known here: {word}")
        if wrong:
            return wrong
    return None


def check(v, name, doc):
    """The value is a `name` of the document's schemas."""
    wrong = why_not(v, {"$ref": f"#/components/schemas/{name}"}, doc, name)
    assert wrong is None, wrong
