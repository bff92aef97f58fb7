"""`pantheon-reconcile --schema` as an editor uses it: what the parser accepts is valid, and what a person mistypes is not."""
import json
import subprocess

import jsonschema
import pytest
import yaml

from conftest import BUILD, ROOT

CASES = ROOT / "tests/cases/manifest"


@pytest.fixture(scope="module")
def schema():
    p = subprocess.run([str(BUILD / "pantheon-reconcile"), "--schema"], capture_output=True, text=True, check=True)
    s = json.loads(p.stdout)
    jsonschema.Draft202012Validator.check_schema(s)
    return jsonschema.Draft202012Validator(s)


def wrong(schema, text):
    """Where the schema finds fault: [("models/0/ctx_cap", message)]."""
    return [("/".join(map(str, e.absolute_path)), e.message) for e in schema.iter_errors(yaml.safe_load(text))]


def test_what_is_installed_and_every_good_case_is_valid(schema):
    files = [ROOT / "etc/models.yaml", ROOT / "etc/demo.yaml", *(f for f in sorted(CASES.glob("*.yaml")) if f.with_suffix(".err").stat().st_size == 0)]
    assert len(files) > 20
    for f in files:
        assert wrong(schema, f.read_text()) == [], f


@pytest.mark.parametrize("example", sorted((ROOT / "etc/examples").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_examples_are_valid_but_for_kinds_of_dies_that_are_not_there_yet(schema, example):
    text = example.read_text()
    kinds = [f"dies/{i}/kind" for i, die in enumerate(yaml.safe_load(text).get("dies", [])) if die["kind"] not in ("cpu", "sim")]
    assert sorted(at for at, _ in wrong(schema, text)) == sorted(kinds)


MODEL = "version: 1\nmodels:\n- { name: a, source: { path: p }, %s }\n"


@pytest.mark.parametrize("text, at", [
    ("models: [ { name: a, source: { path: p } } ]\nserver: {}\n", ""),  # no version
    ("version: 2\n", "version"), ("version: '1'\n", "version"), ("version: 1\nmodles: []\n", ""), ("version: 1\nserver: { lisen: [] }\n", "server"),
    ("version: 1\nserver: { listen: [ localhost ] }\n", "server/listen/0"), ("version: 1\nserver: { listen: 8080 }\n", "server/listen"), ("version: 1\nserver: { drain: 30 }\n", "server/drain"),
    ("version: 1\nserver: { insecure: 'yes' }\n", "server/insecure"), ("version: 1\nserver: { limits: { body: 32 MiB } }\n", "server/limits/body"),
    ("version: 1\nhost: { threads: many }\n", "host/threads"), ("version: 1\nhost: { threads: 0 }\n", "host/threads"), ("version: 1\npressure: { watch: 80 }\n", "pressure/watch"),
    ("version: 1\ndies: [ { name: a, kind: gpu } ]\n", "dies/0/kind"), ("version: 1\ndies: [ { kind: cpu } ]\n", "dies/0"), ("version: 1\ninclude: models.d/*.yaml\n", "include"),
    ("version: 1\nmodels: [ { name: a } ]\n", "models/0"), ("version: 1\nmodels: { a: b }\n", "models"), (MODEL % "ctx_kap: 1", "models/0"), (MODEL % "ctx_cap: 8k", "models/0/ctx_cap"),
    (MODEL % "ctx_cap: 255", "models/0/ctx_cap"), (MODEL % "max_concurrent: 65", "models/0/max_concurrent"), (MODEL % "state: lazy", "models/0/state"), (MODEL % "dies: []", "models/0/dies"),
    (MODEL % "replicas: [ a ]", "models/0/replicas/0"), (MODEL % "kv: { type: q5 }", "models/0/kv/type"), (MODEL % "sampling: { top_p: 0 }", "models/0/sampling/top_p"),
    (MODEL % "ttl: 15", "models/0/ttl"), (MODEL.replace("name: a", "name: 'a b'") % "priority: 1", "models/0/name"), (MODEL.replace("path: p", "path: ~/p") % "priority: 1", "models/0/source/path"),
    (MODEL.replace("path: p", "path: p, url: 'ftp://h/p'") % "priority: 1", "models/0/source/url"), (MODEL.replace("path: p", "path: p, url: 'https://me:x@h/p'") % "priority: 1", "models/0/source/url"),
    (MODEL.replace("path: p", "path: p, sha256: abc") % "priority: 1", "models/0/source/sha256"), ("models: [ { name: a, source: { path: p }, sauce: 1 } ]\n", "models/0"),
])
def test_a_mistake_is_found_where_it_is(schema, text, at):
    found = wrong(schema, text)
    assert [w[0] for w in found] == [at], found


def test_an_included_file_is_valid(schema):
    assert wrong(schema, "models: [ { name: a, source: { path: p } } ]\n") == []
