#!/usr/bin/env python3
"""Compares the template language with Jinja2 on every filter, test, operator and method over many values, and on random templates.
   tests/gen/jinja_diff.py [--random N] [--seed N] [--tool PATH] [--show N]     (needs the jinja2 package and the tool: make test builds it)
Prints each template on which the two differ; the status is 1 when there is one. What cannot be equal is not counted: addresses in Python's
text of an object, integers beyond 64 bits and complex numbers (errors here), which error it is. Left out: what Python has and templates do
not need (bytes, str.translate, float.hex and the like), and the filters random, pprint and urlize, which are refused by name."""
import argparse
import copy
import itertools
import json
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
import chat_cases  # noqa: E402

VALUES = ["none", "true", "0", "7", "-3", "2.5", "-0.5", "1e20", "''", "'abc'", "'  Hello World '", "'3'", "' 4.5 '", "'a,b,,c'", "u", "s",
          "'<a href=\"x\">&y</a>'", "'line1\\nline2\\n\\n  line4\\n'", "[]", "l", "ss", "[1, 'b', none]", "(1, 2, 3)", "('b', 'A', 'c')", "{}",
          "d", "{'b': 2, 'A': 1, 'c': none}", "messages", "users", "range(5)", "range(0)", "nosuch", "[[1, 2], [3]]", "{1: 'x', 2: 'y'}",
          "'ÀÉß ñ'", "['x', 'X', 'y', 'x']", "[1.5, 1, true]", "ns", "'%s-%s'", "'the quick brown fox jumps'",
          "'http://example.com/a?b=c&d=e and www.test.org, x@y.com.'", "123456789", "-1234.5678", "'x' * 50", "d.keys()|list"]

ARGS = {
    "batch": ["2", "3, 'z'", "1", "linecount=2"], "center": ["", "5", "20", "width=9", "0", "-1"],
    "attr": ["'name'", "'items'", "'x'", "0"], "default": ["'x'", "'x', true", "none", "default_value=1", "", "boolean=true"],
    "d": ["'x'"], "dictsort": ["", "true", "false, 'value'", "by='value'", "reverse=true", "by='x'"],
    "filesizeformat": ["", "true"], "float": ["", "1.5", "default=3"], "format": ["1, 2", "", "'a', 'b'", "a=1"],
    "groupby": ["'age'", "'city.z'", "'nope'", "'nope', default=3", "0", "'name', case_sensitive=true"],
    "indent": ["", "2", "2, true", "2, true, true", "'> '", "width=3, blank=true", "0", "first=true"],
    "int": ["", "5", "0, 16", "0, 0", "base=2", "-1"], "join": ["", "', '", "d='-'", "',', 'name'", "attribute='age'", "1", "none"],
    "map": ["'upper'", "attribute='name'", "attribute='city.z'", "'default', 'q'", "attribute='nope', default='z'", "'nope'", "", "'int'",
            "attribute=0", "'length'", "'tojson'", "'replace', 'a', 'b'"],
    "max": ["", "true", "attribute='age'"], "min": ["", "true", "attribute='age'"],
    "reject": ["", "'odd'", "'string'", "'equalto', 1", "'nope'", "'none'"], "select": ["", "'odd'", "'string'", "'gt', 1", "'in', [1, 3]"],
    "rejectattr": ["'age'", "'age', 'equalto', 3", "'name', 'in', ['x']", ""],
    "selectattr": ["'age'", "'age', 'gt', 1", "'city.z', 'eq', 'P'", "'nope', 'defined'", "'role', 'equalto', 'user'", "0"],
    "replace": ["'l', 'L'", "'l', 'L', 1", "'', '-'", "'', '-', 2", "old='a', new='b'", "'a'", "1, 2", "'b', none"],
    "round": ["", "1", "2", "0, 'floor'", "1, 'ceil'", "-1", "method='floor'", "0, 'x'", "precision=1"],
    "slice": ["2", "3, 'z'", "5", "0", "slices=2"], "sort": ["", "true", "false, true", "attribute='age'", "attribute='age,name'",
             "reverse=true", "attribute='city.z'"],
    "sum": ["", "'age'", "start=10", "attribute='age', start=1", "start='x'", "start=[]"],
    "tojson": ["", "indent=2", "indent=0", "indent='--'", "ensure_ascii=true", "separators=(',', ':')", "sort_keys=true",
               "sort_keys=true, indent=4", "indent=2, separators=(',', ': ')", "true", "false, 2", "indent=-1", "indent=none"],
    "trim": ["", "'a'", "' H'", "chars='<>'", "none", "1"], "truncate": ["5", "5, true", "10, false, '…'", "5, true, '', 0", "length=8",
             "3", "2", "12, leeway=0", ""],
    "unique": ["", "true", "attribute='age'", "case_sensitive=true"], "urlencode": [""], "wordwrap": ["", "5", "10, false", "8, true, '|'",
             "4, break_on_hyphens=false", "width=12", "10, wrapstring='\\n> '"],
    "xmlattr": ["", "false", "autospace=true"], "first": ["", "1"], "length": ["", "1"],
}
PLAIN = ["abs", "capitalize", "count", "e", "escape", "first", "forceescape", "items", "last", "length", "list", "lower", "reverse", "safe",
         "string", "striptags", "title", "upper", "wordcount"]
TESTS = ["boolean", "callable", "defined", "undefined", "divisibleby(3)", "divisibleby 2", "eq 7", "equalto('abc')", "escaped", "even", "false",
         "filter", "float", "ge 1", "gt 1", "greaterthan(2)", "in [7, 'abc', none]", "in 'abc'", "in d", "integer", "iterable", "le 2.5",
         "lessthan(3)", "lower", "lt 'b'", "mapping", "ne 7", "none", "number", "odd", "sameas none", "sameas true", "sequence", "string",
         "test", "true", "upper", "nosuch"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
SLICES = ["[0]", "[-1]", "[9]", "['x']", "['b']", "[1:]", "[:2]", "[::-1]", "[1:3]", "[-2:]", "[:-1]", "[::2]", "[5:1:-2]", "[none:2]", "[:99]",
          "[-99:1]", "[::0]", "[true:]", "['a':]", "[1.5]", "[none]", "[0][0]", ".x", ".b", ".0", ".name", "[:]", "[2:1]", "[-1:-3:-1]"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "strip('a ')", "lstrip()", "rstrip('c')",
           "center(9)", "center(9, '*')", "ljust(8) ~ '|'", "rjust(8, '-')", "zfill(6)", "expandtabs(4)", "find('l')", "find('l', 4)", "rfind('l')",
           "index('zz')", "rindex('l')", "count('l')", "count('')", "startswith('a')", "startswith(('x', 'a'))", "endswith('c')",
           "endswith(('c', 'd'), 1)", "removeprefix('a')", "removesuffix('c')", "replace('l', 'L')", "replace('l', 'L', 1)", "split()", "split(',')",
           "split(',', 1)", "split(none, 1)", "split(maxsplit=1)", "split(sep=',')", "rsplit(',', 1)", "rsplit()", "rsplit(none, 2)", "splitlines()",
           "splitlines(true)", "splitlines(keepends=true)", "partition(',')", "rpartition('l')", "join(['1', '2'])", "join([1])", "join('ab')",
           "format(1, 2)", "isalpha()", "isdigit()", "isalnum()", "isspace()", "isupper()", "islower()", "isascii()", "isdecimal()",
           "isnumeric()", "istitle()", "isprintable()", "items()", "keys()", "values()", "get('b')", "get('zz', 4)",
           "get()", "count(1)", "index(2)", "index('b')", "append(1)", "pop()", "update({})", "sort()", "reverse()",
           "keys()|list", "items()|list|length", "values()|sort", "items()|tojson", "nosuch()", 
           ]
FORMATS = ["%s", "%d", "%5d|", "%-5d|", "%05d", "%+d", "% d", "%x", "%X", "%#x", "%o", "%#o", "%e", "%.2f", "%8.3f|", "%g", "%c", "%r", "%a", "%5s|",
           "%-5s|", "%.2s", "%%", "%i", "%u", "%(a)s", "%q", "%", "%s %s", "%.0f", "%G", "%08.2f", "%+.1e", "%#.3g"]
BRACES = ["{}", "{0}", "{:d}", "{:5}|", "{:<5}|", "{:>5}|", "{:^5}|", "{:*^9}|", "{:05}", "{:+}", "{:x}", "{:#x}", "{:b}", "{:#b}", "{:o}", "{:,}", "{:_}",
          "{:.2f}", "{:10.3f}|", "{:e}", "{:g}", "{:%}", "{:.1%}", "{!r}", "{!s}", "{!a}", "{:s}", "{:.2}", "{0}{0}", "{}{0}", "{a}", "{0[0]}", "{0.x}", "{{}}",
          "{", "}", "{:,.2f}", "{:c}", "{:n}", "{:08.3f}", "{: }", "{:=+6}", "{0:>{1}}", "{:X}"]
TIMES = list("aAbBcdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%") + ["-d", "-m", "-I", "-H", "-j"]
TIMES.remove("s")  # the time zone of the machine


def systematic():
    for v in VALUES:
        w = "(" + v + ")"
        for f in PLAIN:
            yield "{{ %s|%s }}" % (w, f)
        for f, args in ARGS.items():
            for a in args:
                yield "{{ %s|%s%s }}" % (w, f, "(%s)" % a if a else "")
                if f in ("batch", "groupby", "map", "reject", "select", "rejectattr", "selectattr", "slice", "unique"):
                    yield "{{ %s|%s%s|list }}" % (w, f, "(%s)" % a if a else "")
        for t in TESTS:
            yield "{{ %s is %s }} {{ %s is not %s }}" % (w, t, w, t)
        for s in SLICES:
            yield "{%% set v = %s %%}{{ v%s }}" % (w, s)  # of a constant, Jinja2 works some out before, with another result
        for m in METHODS:
            yield "{{ %s.%s }}" % (w, m)
        for f in FORMATS:
            yield "{{ '%s' %% %s }}" % (f, w)
            yield "{{ '%s'|format(%s) }}" % (f, w)
        for f in BRACES:
            yield "{{ '%s'.format(%s) }}" % (f, w)
        for form in ["{{ %s }}", "{{ -%s }}", "{{ +%s }}", "{{ not %s }}", "{{ [%s] }}", "{{ {'k': %s} }}", "{{ (%s,) }}", "{%% for x in %s %%}{{ loop.index }}:{{ x }};{%% else %%}none{%% endfor %%}",
                     "{%% for a, b in %s %%}{{ a }}={{ b }};{%% endfor %%}", "{{ 'y' if %s else 'n' }}", "{%% set x, y = %s %%}{{ x }}{{ y }}", "{{ dict(%s) }}", "{{ range(%s)|list }}",
                     "{%% for x in %s|reverse %%}{{ x }},{%% endfor %%}", "{{ namespace(a=%s).a }}", "{{ raise_exception(%s) }}", "{{ [%s, 1]|string }}",
                     "{%% for x in %s if x %%}{{ x }}{{ loop.last }}{%% endfor %%}", "{{ strftime_now(%s) }}", "{{ cycler(%s).next() }}", "{{ joiner(%s)() }}",
                     "{{ {%s: 1} }}", "{{ %s() }}", "{{ %s|tojson|safe|length }}", "{%% macro m(a, b=2) %%}{{ a }}{{ b }}{%% endmacro %%}{{ m(*%s) }}", "{{ 'a' ~ %s ~ 'b' }}"]:
            yield form % w
        yield "{%% if %s %%}yes{%% else %%}no{%% endif %%}" % w
    for a, b in itertools.product(VALUES[:22] + ["u", "d", "(3, 1)", "nosuch", "range(3)", "'%s-%s'"], repeat=2):
        for o in OPERATORS:
            yield "{{ (%s) %s (%s) }}" % (a, o, b)
    for t in TIMES:
        yield "{{ strftime_now('%%%s') }}" % t


class Random:
    """Random templates whose expressions mostly have a type that fits."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.names = []

    def pick(self, *xs):
        return self.r.choice(xs)

    def expr(self, d):
        return getattr(self, self.pick("string", "number", "list", "any", "boolean", "string", "dict"))(d)

    def any(self, d):
        return self.r.choice(VALUES) if d <= 0 or self.r.random() < 0.3 else "(" + self.expr(d - 1) + ")"

    def string(self, d):
        if d <= 0:
            return self.pick("'abc'", "s", "u", "'Xy z'", "'a,b'", "''", "messages[1].content", "'\\n'", "users[0].name")
        e = self.string
        return self.pick(
            lambda: "%s ~ %s" % (e(d - 1), self.any(d - 1)), lambda: "(%s + %s)" % (e(d - 1), e(d - 1)),
            lambda: "(%s)|%s" % (e(d - 1), self.pick("upper", "lower", "trim", "title", "capitalize", "escape", "reverse", "indent(2)", "replace('a', 'Z')", "default('q', true)", "tojson", "string", "truncate(4, true, '.', 0)", "center(9)", "urlencode", "striptags")),
            lambda: "(%s).%s" % (e(d - 1), self.pick("upper()", "strip()", "replace('b', '')", "split(',')|first", "title()", "lstrip('a')", "zfill(5)", "join(ss)", "rstrip()")),
            lambda: "(%s)[%s:%s]" % (e(d - 1), self.pick("", "1", "-2"), self.pick("", "3", "-1")),
            lambda: "(%s)|join('%s')" % (self.list(d - 1), self.pick("", "-", ", ")),
            lambda: "(%s if %s else %s)" % (e(d - 1), self.boolean(d - 1), e(d - 1)),
            lambda: "'%s' %% %s" % (self.pick("%s", "<%5s>", "%r"), "(%s,)" % self.any(d - 1)))()

    def number(self, d):
        if d <= 0:
            return self.pick("0", "1", "2", "7", "i", "-3", "2.5", "f", "100", "users[0].age")
        e = self.number
        return self.pick(
            lambda: "(%s %s %s)" % (e(d - 1), self.pick("+", "-", "*"), e(d - 1)), lambda: "(%s)|length" % self.string(d - 1), lambda: "(%s)|length" % self.list(d - 1),
            lambda: "(%s %s %s)" % (e(d - 1), self.pick("//", "%", "/"), self.pick("2", "3", "-4", "0.5")), lambda: "(%s)|%s" % (e(d - 1), self.pick("abs", "round(1)", "int", "float", "round")),
            lambda: "-%s" % e(d - 1), lambda: "(%s)|sum" % self.pick("l", "[1, 2.5]", "range(4)"), lambda: "%s ** 2" % self.pick("2", "3", "i"), lambda: "(%s)|int" % self.string(d - 1))()

    def boolean(self, d):
        if d <= 0:
            return self.pick("true", "false", "t", "n is none", "i > 3", "nosuch is defined", "s is string")
        e = self.boolean
        return self.pick(
            lambda: "(%s %s %s)" % (e(d - 1), self.pick("and", "or"), e(d - 1)), lambda: "not %s" % e(d - 1), lambda: "(%s %s %s)" % (self.number(d - 1), self.pick("<", ">", "==", "!=", "<="), self.number(d - 1)),
            lambda: "(%s) is %s" % (self.any(d - 1), self.r.choice(TESTS)), lambda: "(%s %s %s)" % (self.string(d - 1), self.pick("in", "not in", "==", "<"), self.string(d - 1)), lambda: "(%s in %s)" % (self.any(d - 1), self.list(d - 1)))()

    def list(self, d):
        if d <= 0:
            return self.pick("l", "ss", "[]", "messages", "users", "[1, 'b', none]", "range(3)", "(3, 1)")
        e = self.list
        return self.pick(
            lambda: "[%s]" % ", ".join(self.expr(d - 1) for _ in range(self.r.randrange(4))), lambda: "(%s)[%s:%s:%s]" % (e(d - 1), self.pick("", "1", "-2"), self.pick("", "3", "-1"), self.pick("", "2", "-1")),
            lambda: "(%s)|%s" % (e(d - 1), self.pick("list", "reverse|list", "select|list", "unique|list", "batch(2)|list", "slice(2)|list", "map('string')|list", "reject('none')|list", "sort", "map('tojson')|list")),
            lambda: "(%s).split(%s)" % (self.string(d - 1), self.pick("", "','", "' '")), lambda: "(%s).%s|list" % (self.dict(d - 1), self.pick("items()", "keys()", "values()")), lambda: "(%s)|list" % self.string(d - 1),
            lambda: "users|%s" % self.pick("selectattr('age', 'gt', 1)|list", "map(attribute='name')|list", "sort(attribute='age')", "groupby('age')", "rejectattr('name', 'eq', 'x')|list"), lambda: "%s|items|list" % self.dict(d - 1), lambda: "%s|dictsort" % self.dict(0))()

    def dict(self, d):
        if d <= 0:
            return self.pick("d", "{}", "{'a': 1}", "messages[0]", "users[1]", "{'z': [1], 'y': none}")
        return self.pick(lambda: "{%s}" % ", ".join("%s: %s" % (self.pick("'a'", "'b'", "1", "(1, 2)"), self.expr(d - 1)) for _ in range(self.r.randrange(3))), lambda: "dict(%s, q=%s)" % (self.dict(0), self.expr(d - 1)), lambda: self.dict(d - 1))()

    def space(self):
        return self.r.choice(["", "", " ", "\n", "\n  ", "  ", "x", "\t", "y\n", " \n\n "])

    def tag(self, text):
        return "{%%%s %s %s%%}" % (self.r.choice(["", "", "", "-", "+"]), text, self.r.choice(["", "", "", "-", "+"]))

    def out(self, text):
        return "{{%s %s %s}}" % (self.r.choice(["", "", "-"]), text, self.r.choice(["", "", "-"]))

    def body(self, d, loop=False):
        return "".join(self.statement(d, loop) for _ in range(self.r.randrange(1, 4)))

    def statement(self, d, loop=False):
        kinds = ["out", "text", "set", "comment"] + (["if", "for", "for", "macro", "with", "setblock", "filter", "call", "ns", "recursive", "raw", "gen"] if d > 0 else []) + (["jump", "loopvar"] if loop else [])
        k, sp, tag, e = self.r.choice(kinds), self.space, self.tag, self.expr
        if k == "out":
            return sp() + self.out(e(self.r.randrange(3))) + sp()
        if k == "text":
            return sp() + self.pick("a", "b <", "{", "}", "#", "% ") + sp()
        if k == "comment":
            return sp() + self.pick("{# c #}", "{#- c -#}", "{#+ c #}", "{# c +#}") + sp()
        if k == "set":
            return sp() + tag("set %s = %s" % (self.pick("v", "w", "x, y" if False else "v"), e(2))) + sp() + self.out("v") + sp()
        if k == "if":
            t = sp() + tag("if " + self.boolean(2)) + self.body(d - 1, loop)
            if self.r.random() < 0.4:
                t += tag("elif " + self.boolean(1)) + self.body(d - 1, loop)
            if self.r.random() < 0.5:
                t += tag("else") + self.body(d - 1, loop)
            return t + tag("endif") + sp()
        if k == "for":
            t = sp() + tag("for x in %s%s" % (self.list(2), self.pick("", "", " if x", " if loop is not defined", " if x is not none"))) + self.body(d - 1, True)
            if self.r.random() < 0.3:
                t += tag("else") + self.body(d - 1)
            return t + tag("endfor") + sp()
        if k == "loopvar":
            return self.out(self.pick("loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.previtem", "loop.nextitem", "loop.cycle('a', 'b')", "loop.changed(x)", "loop.depth", "loop.revindex0", "x"))
        if k == "jump":
            return tag("if " + self.boolean(1)) + tag(self.pick("break", "continue")) + tag("endif")
        if k == "macro":
            n = self.pick("m1", "m2")
            return tag("macro %s(a, b=%s)" % (n, e(1))) + self.body(d - 1) + self.pick("{{ a }}", "{{ b }}", "{{ varargs }}", "{{ kwargs }}") + tag("endmacro") + "{{ %s(%s) }}" % (n, self.pick(e(1), "1, b=" + e(1), "1, 2", "a=3", "1, 2, 3", "1, c=4", "")) + sp()
        if k == "call":
            return tag("macro cm(a=1)") + "<{{ caller(a) if caller else '-' }}>" + tag("endmacro") + tag("call(q) cm(%s)" % self.pick("", e(1))) + self.body(d - 1) + "{{ q }}" + tag("endcall")
        if k == "with":
            return tag("with v = %s, w = %s" % (e(1), e(1))) + self.body(d - 1, loop) + tag("endwith")
        if k == "setblock":
            return tag("set v%s" % self.pick("", " | upper", " | trim")) + self.body(d - 1) + tag("endset") + "[{{ v }}]"
        if k == "filter":
            return tag("filter " + self.pick("upper", "trim", "replace('a', 'b')", "indent(2)|upper", "escape")) + self.body(d - 1) + tag("endfilter")
        if k == "ns":
            return tag("set ns = namespace(a=%s)" % e(1)) + tag("for x in %s" % self.list(1)) + tag("set ns.a = %s" % self.pick("x", "ns.a ~ x", "loop.index")) + tag("endfor") + "{{ ns.a }}"
        if k == "recursive":
            return tag("for x in [1, [2, [3]], 4] recursive") + "{{ loop(x) if x is iterable else x }}{{ loop.depth }}" + self.space() + tag("endfor")
        if k == "raw":
            return tag("raw") + self.space() + "{{ x }}{% y %}" + self.space() + tag("endraw") + self.space()
        return tag("generation") + self.body(d - 1, loop) + tag("endgeneration")


UNEQUAL = re.compile(r"0x[0-9a-f]{6,}|<generator|<function|<bound method|<built-in|<class '|<Macro|<Namespace|<LoopContext|<jinja2|<Cycler|<Joiner|<method|<GENERATOR")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--random", type=int, default=5000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tool", default="build/release/tests/gen/jinja")
    p.add_argument("--show", type=int, default=40)
    p.add_argument("--only", default="")
    a = p.parse_args()
    path = os.path.join(chat_cases.HERE, "vars.json")
    with open(path, encoding="utf-8") as f:
        variables = json.load(f)
    env = chat_cases.environment()
    templates = list(systematic())
    source = Random(a.seed)
    templates += [source.body(3) for _ in range(a.random)]
    templates = [t for t in dict.fromkeys(templates) if re.search(a.only, t)]
    tool = subprocess.run([a.tool, path], input="\n".join(json.dumps(t) for t in templates), capture_output=True, text=True, encoding="utf-8", check=True)
    answers = [json.loads(line) for line in tool.stdout.splitlines()]
    assert len(answers) == len(templates), (len(answers), len(templates))
    bad = failed = 0
    for t, ours in zip(templates, answers):
        theirs = chat_cases.render(env, t, copy.deepcopy(variables), why=True)  # filters may change a list
        want, got = theirs.get("output"), ours.get("output")
        failed += want is None
        if want == got and ("raised" not in theirs or theirs["raised"] == ours["error"]):
            continue
        if theirs.get("why", "").startswith("SyntaxError"):
            continue  # a jump out of a block that became a function there
        if want is not None and UNEQUAL.search(want) or re.search("64.bit|complex", ours.get("error", "")):
            continue
        bad += 1
        if bad <= a.show:
            print(f"{t!r}\n   jinja2: {theirs.get('why') if want is None else repr(want)}\n   here:   {ours.get('error') if got is None else repr(got)}")
    print(f"{len(templates)} templates ({failed} of them errors), {bad} differ")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
