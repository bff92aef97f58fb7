"""JSON-Schema-Test-Suite against the grammars of schemas: schemas.py FOLDER PROGRAM PAGE [-v]

FOLDER keeps the suite, which comes in the source package of `jsonschema` (pip download, once). PROGRAM is tests/gen/check_schemas. Of each schema
that is accepted every valid instance must be a text of its grammar and every invalid one must not, in whatever order its properties are written; a valid one in
one of these orders (the schema's). PAGE is docs/structured-output.md, whose counts must be these (UPDATE=1 writes them)."""
import collections
import decimal
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tarfile

ENFORCED_FORMATS = ("date-time", "date", "time", "duration", "uuid", "email", "ipv4", "ipv6", "uri")
MAX_SPELLINGS = 400
# Valid, and yet never written: a leap second in local time (the table says so).
NARROWER = ("a valid date-time with a leap second, with minus offset", "valid leap second, positive time-offset", "valid leap second, large positive time-offset",
            "valid leap second, negative time-offset", "valid leap second, large negative time-offset")


def suite(folder: pathlib.Path) -> pathlib.Path:
    found = sorted(folder.glob("jsonschema-*/json/tests/draft2020-12"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema", "-d", folder, "jsonschema==4.26.0"], check=False)
        for archive in folder.glob("jsonschema-*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, [m for m in tar.getmembers() if "/json/tests/" in m.name and m.isfile() and not m.name.startswith("/") and ".." not in m.name])
        found = sorted(folder.glob("jsonschema-*/json/tests/draft2020-12"))
    if not found:
        sys.exit("schemas: the sdist of `jsonschema` could not be fetched (SCHEMAS=DIR: a folder that has it unpacked)")
    return found[0]


def number(v) -> str:
    if isinstance(v, float):
        if v == int(v):
            return str(int(v))
        text = format(decimal.Decimal(repr(v)), "f")
        return text.rstrip("0") if "." in text else text
    return str(v)


def spellings(v, top=True):
    """Every order of the properties, in all depths, compact."""
    if isinstance(v, dict):
        for keys in itertools.permutations(v):
            for values in itertools.product(*(list(itertools.islice(spellings(v[k], False), 24)) for k in keys)):
                yield "{" + ",".join(json.dumps(k, ensure_ascii=False) + ":" + t for k, t in zip(keys, values)) + "}"
    elif isinstance(v, list):
        for values in itertools.product(*(list(itertools.islice(spellings(e, False), 24)) for e in v)):
            yield "[" + ",".join(values) + "]"
    elif isinstance(v, bool) or v is None or isinstance(v, str):
        yield json.dumps(v, ensure_ascii=False)
    else:
        yield number(v)


class Program:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="surrogatepass")

    def ask(self, kind, text):
        self.p.stdin.write(f"{kind}\t{text}\n")
        self.p.stdin.flush()
        return self.p.stdout.readline().rstrip("\n").split("\t")


def keyword_of(answer) -> str:
    message = answer[3]
    return message.split("'")[1] if message.startswith("JSON Schema: '") else answer[1]


def main() -> int:
    folder, program = pathlib.Path(sys.argv[1]), Program(sys.argv[2])
    root = suite(folder)
    files = sorted(root.glob("*.json")) + [root / "optional/format" / f"{f}.json" for f in ENFORCED_FORMATS]
    n_schemas = n_refused = n_tests = n_unsatisfiable = 0
    refused, wrong = collections.Counter(), []
    for file in files:
        for case in json.loads(file.read_text()):
            schema = case["schema"]
            if file.parent == root and file.name == "format.json" and isinstance(schema, dict) and schema.get("format") in ENFORCED_FORMATS:
                continue  # they want formats not to be enforced; the folder optional/format wants it
            n_schemas += 1
            answer = program.ask("S", json.dumps(schema, ensure_ascii=False))
            nothing = answer[0] == "refused" and "no text is of this grammar" in answer[-1]
            if nothing:
                n_unsatisfiable += 1
            elif answer[0] != "ok":
                n_refused += 1
                refused[keyword_of(answer)] += 1
                if "-v" in sys.argv:
                    print("refused", file.name, case["description"], answer[1:])
                continue
            for test in case["tests"]:
                n_tests += 1
                texts = itertools.islice(spellings(test["data"]), MAX_SPELLINGS)
                answers = set() if nothing else {program.ask("T", t)[0] for t in texts}
                if ("yes" in answers) != (test["valid"] and test["description"] not in NARROWER) or "error" in answers:
                    wrong.append(f"{file.name}: {case['description']}: {test['description']}: should be {'valid' if test['valid'] else 'invalid'}\n    {json.dumps(schema)[:600]}\n    {json.dumps(test['data'])[:200]} {answers}")
    for line in wrong:
        print(line)
    percent = 100 * n_refused / n_schemas
    rows = [f"| {keyword} | {count} |\n" for keyword, count in sorted(refused.items(), key=lambda x: (-x[1], x[0]))]
    counts = (f"Of {n_schemas} schemas {n_refused} are refused ({percent:.1f}%), and {n_unsatisfiable} accept nothing and are refused for that; "
              f"{n_tests} instances of the others are as they should be.\n\n| Refused for | Schemas |\n|---|---|\n" + "".join(f"| `{r[2:]}" .replace(" | ", "` | ", 1) for r in rows))
    page = pathlib.Path(sys.argv[3])
    before, rest = page.read_text().split("<!-- suite -->\n")
    after = rest[rest.index("<!-- end -->"):]
    if os.environ.get("UPDATE"):
        page.write_text(before + "<!-- suite -->\n" + counts + after)
    elif page.read_text() != before + "<!-- suite -->\n" + counts + after:
        wrong.append("page")
        print(f"{page} has other counts: UPDATE=1 make check-schemas writes them")
    print(f"{n_schemas} schemas, {n_refused} refused ({percent:.1f}%), {n_unsatisfiable} without any instance, {n_tests} instances, {len(wrong)} wrong")
    for keyword, count in sorted(refused.items(), key=lambda x: (-x[1], x[0])):
        print(f"  {count:3} {keyword}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
