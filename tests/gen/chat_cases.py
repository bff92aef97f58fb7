#!/usr/bin/env python3
"""Fills tests/cases/chat with what Jinja2 renders, set up as chat templates expect it (trim_blocks, lstrip_blocks, loop controls,
the immutable sandbox, tojson without escaping, raise_exception, strftime_now).   tests/gen/chat_cases.py   (needs the jinja2 package)"""
import datetime
import glob
import json
import os

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.join(os.path.dirname(__file__), "..", "cases", "chat")
NOW = datetime.datetime(2025, 3, 7, 9, 5, 2)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(env, template, variables, why=False):
    try:
        return {"output": env.from_string(template).render(**variables)}
    except Exception as e:
        raised = {"raised": str(e)} if type(e) is jinja2.exceptions.TemplateError else {}
        return {"error": True, **raised, **({"why": f"{type(e).__name__}: {e}"} if why else {})}


def rows(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def write(name, items):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        for item in items:
            f.write(json.dumps(item, ensure_ascii=False) + "\n")


def main():
    env = environment()
    with open(os.path.join(HERE, "vars.json"), encoding="utf-8") as f:
        variables = json.load(f)
    variables.pop("jinja2", None)
    write("language.jsonl", [{"template": r["template"], **render(env, r["template"], variables)} for r in rows("language.jsonl")])
    with open(os.path.join(HERE, "vars.json"), "w", encoding="utf-8") as f:
        json.dump({"jinja2": jinja2.__version__, **variables}, f, ensure_ascii=False, indent=1)
        f.write("\n")
    out = []
    for path in sorted(glob.glob(os.path.join(HERE, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            template = f.read()
        for c in rows("conversations.jsonl"):
            given = {"messages": c["messages"], "tools": c.get("tools"), "documents": None, "bos_token": "<s>", "eos_token": "</s>",
                     "add_generation_prompt": c.get("add_generation_prompt", True), **c.get("extra", {})}
            out.append({"template": os.path.basename(path), "conversation": c["id"], **render(env, template, given)})
    write("renders.jsonl", out)


if __name__ == "__main__":
    main()
