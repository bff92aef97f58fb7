"""Random JSON Schemas: what a model is made to say parses and validates (the library `jsonschema`, formats included). GENERATIONS=10000 for
many more; GENERATIONS_MODEL=FILE for another model than the random one of the tests."""
import concurrent.futures
import json
import os
import random
import re

import pytest

from conftest import Daemon, manifest

jsonschema = pytest.importorskip("jsonschema", reason="`make check-clients` has it")
N = int(os.environ.get("GENERATIONS", "300"))
FORMATS = ["date", "date-time", "time", "uuid", "ipv4", "ipv6"]


def leaf(r):
    return r.choice([
        lambda: {"type": "integer", "minimum": r.randint(-50, 0), "maximum": r.randint(1, 5000)},
        lambda: {"type": "integer", "exclusiveMinimum": 0, "maximum": 999, "multipleOf": r.choice([2, 5, 7])},
        lambda: {"type": "number", "multipleOf": r.choice([0.5, 0.25]), "minimum": -10, "maximum": 10},
        lambda: {"type": "string", "minLength": r.randint(0, 3), "maxLength": r.randint(3, 12)},
        lambda: {"type": "string", "pattern": r.choice(["^[a-z]{1,8}$", "^(ab|cd){1,3}$", r"^\d{2}-[A-F]+$", "^[^a-z]{2}$"]), "maxLength": 9},
        lambda: {"type": "string", "format": r.choice(FORMATS), "maxLength": 50},
        lambda: {"enum": r.sample(["a", "b\n\"", 1, 2.5, None, True, [1, "x"], {"k": []}], 3)},
        lambda: {"const": r.choice(["é", 0, -1.5, {"a": [None]}])},
        lambda: {"type": ["boolean", "null"]},
    ])()


def schema(r, depth=0):
    if depth >= 3 or r.random() < 0.25:
        return leaf(r)
    kind = r.random()
    if kind < 0.5:
        names = r.sample(["id", "name", "kind", "value", "x y", "ä"], r.randint(1, 4))
        s = {"type": "object", "properties": {n: schema(r, depth + 1) for n in names}, "required": r.sample(names, r.randint(0, len(names))), "additionalProperties": False}
        if r.random() < 0.3:
            s["minProperties"] = r.randint(0, len(names))
        if r.random() < 0.2 and len(names) > 1:
            s["dependentRequired"] = {names[0]: [names[1]]}
        return s
    if kind < 0.75:
        s = {"type": "array", "items": schema(r, depth + 1), "minItems": r.randint(0, 2), "maxItems": r.randint(2, 4)}
        if r.random() < 0.3:
            s["prefixItems"] = [leaf(r)]
        return s
    if kind < 0.9:
        return {"anyOf": [schema(r, depth + 1), leaf(r)]}
    return {"$defs": {"t": {"type": "object", "properties": {"v": leaf(r), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}}, "required": ["v"], "additionalProperties": False}},
            "$ref": "#/$defs/t"} if depth == 0 else {"allOf": [leaf(r), {"description": "the same"}]}


def test_random_schemas_are_held_to(models, tmp_path):
    d = Daemon(tmp_path, manifest(("tiny", os.environ.get("GENERATIONS_MODEL") or models["tiny"], "max_concurrent: 8\nmax_sessions: 8")))

    def one(i):
        s = schema(random.Random(i))
        r = d.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 1, "seed": i, "max_tokens": 230,
                                            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": s, "strict": True}}})
        assert r.status == 200, (i, r.body)
        text, finish = r.json["choices"][0]["message"]["content"], r.json["choices"][0]["finish_reason"]
        if finish == "length":
            return 0
        value = json.loads(re.sub(r"(\d\d:\d\d):60", r"\1:59", text))  # the library knows no leap seconds
        jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(value)
        assert finish == "stop"
        return 1

    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            whole = sum(pool.map(one, range(N)))
    finally:
        d.stop()
    assert whole >= N * 0.8, f"only {whole} of {N} answers came to their end"
    print(f"{whole} of {N} whole and valid, {N - whole} cut")
