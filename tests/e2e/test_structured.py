"""Answers that are held to a grammar: whatever the model would rather say, what comes out is of the grammar."""
import json
import re
import subprocess
import threading

import pytest

from conftest import BUILD, ROOT, SMOL, Daemon, Stream, manifest, wait_for

COLD = {"temperature": 0, "max_tokens": 150}
HOT = {"temperature": 1.3, "seed": 5, "max_tokens": 150}
JSON_LIST = 'root ::= "[" item ("," item){0,3} "]"\nitem ::= "\\"" [a-z]{1,6} "\\"" | [0-9]{1,3}\n'
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions", "responses": "/v1/responses"}
ASKS = {"chat": {"messages": [{"role": "user", "content": "Hello"}]}, "text": {"prompt": "Hello"}, "responses": {"input": "Hello"}}


@pytest.fixture(scope="module")
def served(models, tmp_path_factory):
    d = Daemon(tmp_path_factory.mktemp("structured"), manifest(("tiny", models["tiny"], "max_concurrent: 8\nmax_sessions: 8")))
    yield d
    d.stop()


def body(api, fields):
    own = {"max_output_tokens" if api == "responses" and k == "max_tokens" else k: v for k, v in fields.items()}
    return {"model": "tiny", **ASKS[api], **own}


def ask(d, api="chat", **fields):
    r = d.post(PATHS[api], body(api, fields))
    assert r.status == 200, r.body
    a = r.json
    if "output" in a:
        return a["output"][0]["content"][0]["text"], {"completed": "stop", "incomplete": "length"}[a["status"]]
    c = a["choices"][0]
    return (c["message"]["content"] if "message" in c else c["text"]), c["finish_reason"]


def refused(d, api="chat", **fields):
    r = d.post(PATHS[api], body(api, fields))
    assert r.status == 400, r.body
    return r.error


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("sampling", [COLD, HOT], ids=["greedy", "seeded"])
def test_a_random_model_says_nothing_but_the_grammar(served, api, sampling):
    for seed in range(6):
        fields = {**sampling, **({"seed": seed} if "seed" in sampling else {})}
        text, finish = ask(served, api, **fields, grammar=JSON_LIST)
        assert finish == "stop" and all(isinstance(i, (str, int)) for i in json.loads(re.sub(r"\b0+(?=\d)", "", text))), text
        text, finish = ask(served, api, **fields, regex=r"(\d{4})-(\d\d)-(\d\d)( [a-f]+\.)?")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d( [a-f]+\.)?", text) if finish == "stop" else len(text) > 10, text
        text, finish = ask(served, api, **fields, guided_choice=["yes", "no", "café \"au lait\" €"])
        assert finish == "stop" and text in ("yes", "no", "café \"au lait\" €"), text


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_json_object_is_json_or_cut_at_max_tokens_and_never_repaired(served, api):
    form = {"response_format": {"type": "json_object"}} if api == "chat" else {"text": {"format": {"type": "json_object"}}}
    ends = set()
    for seed in range(12):
        text, finish = ask(served, api, **{**HOT, "seed": seed, "max_tokens": 60}, **form)
        ends.add(finish)
        assert text.startswith("{")
        if finish == "stop":
            assert isinstance(json.loads(text), dict), text
        else:
            with pytest.raises(json.JSONDecodeError):
                json.loads(text)
    assert ends, ends


def test_a_response_says_what_it_was_held_to(served):
    for form in ({"type": "text"}, {"type": "json_object"}):
        assert served.post(PATHS["responses"], body("responses", {**COLD, "max_tokens": 2, "text": {"format": form}})).json["text"] == {"format": form}
    assert served.post(PATHS["responses"], body("responses", {**COLD, "max_tokens": 2})).json["text"] == {"format": {"type": "text"}}


def test_streamed_and_unstreamed_answers_are_equal(served):
    fields = {**HOT, "grammar": JSON_LIST, "n": 3}
    whole = served.post(PATHS["chat"], body("chat", fields)).json["choices"]
    parts = ["", "", ""]
    finish = [None] * 3
    for c in Stream(served, PATHS["chat"], body("chat", {**fields, "stream": True})).chunks():
        for choice in c["choices"]:
            parts[choice["index"]] += choice["delta"].get("content", "")
            finish[choice["index"]] = choice["finish_reason"] or finish[choice["index"]]
    assert parts == [c["message"]["content"] for c in whole] and finish == [c["finish_reason"] for c in whole] == ["stop"] * 3
    assert len(set(parts)) > 1, "choices have seeds of their own"
    again = served.post(PATHS["chat"], body("chat", fields)).json["choices"]
    assert [c["message"]["content"] for c in again] == parts, "the same seed gives the same text"


def test_the_answer_ends_where_the_grammar_ends_it(served):
    assert ask(served, **COLD, grammar='root ::= "abc"') == ("abc", "stop")
    assert ask(served, **COLD, grammar='root ::= ""') == ("", "stop")
    assert ask(served, **{**COLD, "max_tokens": 2}, grammar='root ::= "a"{100}')[1] == "length"
    assert ask(served, **COLD, grammar='root ::= "abc"', ignore_eos=True) == ("abc", "stop")
    text, finish = ask(served, **{**COLD, "max_tokens": 30}, grammar='root ::= "ab"*', ignore_eos=True)
    assert finish == "length" and text.startswith("ababab")


def test_stop_strings_still_end_it(served):
    assert ask(served, **COLD, grammar='root ::= "one two three"', stop=" t") == ("one", "stop")
    assert ask(served, **COLD, grammar='root ::= "one two three"', stop=["x"]) == ("one two three", "stop")


def test_log_probabilities_are_the_models_own(served):
    free = served.post(PATHS["chat"], body("chat", {**COLD, "max_tokens": 1, "logprobs": True, "top_logprobs": 3})).json["choices"][0]
    held = served.post(PATHS["chat"], body("chat", {**COLD, "max_tokens": 1, "logprobs": True, "top_logprobs": 3, "grammar": 'root ::= "~"+'})).json["choices"][0]
    assert held["message"]["content"].startswith("~") or held["message"]["content"] == "~"
    assert held["logprobs"]["content"][0]["top_logprobs"] == free["logprobs"]["content"][0]["top_logprobs"]


def test_a_bias_works_within_the_grammar_and_one_that_bans_all_of_it_is_told(served):
    a = served.post("/tokenize", {"model": "tiny", "content": "a"}).json["tokens"][0]
    b = served.post("/tokenize", {"model": "tiny", "content": "b"}).json["tokens"][0]
    assert ask(served, **COLD, grammar='root ::= "a" | "b"', logit_bias={str(a): 100}) == ("a", "stop")
    assert ask(served, **COLD, grammar='root ::= "a" | "b"', logit_bias={str(b): 100}) == ("b", "stop")
    e = refused(served, **COLD, grammar='root ::= "a" | "b"', logit_bias={str(a): -100, str(b): -100})
    assert "'logit_bias' bans every token that the grammar allows" in e["message"]


@pytest.mark.parametrize("field, value, param, says", [
    ("grammar", 'root ::= "a', "grammar", "line 1, column 10: a literal without its closing quote"),
    ("grammar", 'root ::= "a"\nx ::= [', "grammar", "line 2, column 7: "),
    ("grammar", 'root ::= root "a" | "b"', "grammar", "'root' begins with itself"),
    ("grammar", 'root ::= nowhere', "grammar", "rule 'nowhere' is not defined"),
    ("grammar", 'top ::= "a"', "grammar", "no rule 'root'"),
    ("grammar", 7, "grammar", "must be a text"),
    ("guided_grammar", 'root', "guided_grammar", "::="),
    ("regex", "a(?=b)", "regex", "line 1, column 2: (?= is a look-ahead"),
    ("regex", r"(a)\1", "regex", "a back-reference"),
    ("guided_regex", "[a", "guided_regex", "closing bracket"),
    ("guided_choice", "yes", "guided_choice", "must be a list of texts"),
    ("guided_choice", ["yes", 1], "guided_choice.1", "must be a text"),
    ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format.json_schema.name", "must be a text"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"a": {"items": {"uniqueItems": True, "type": "array"}}}}}},
     "response_format.json_schema.schema.properties.a.items.uniqueItems", "'uniqueItems' at '/properties/a/items/uniqueItems' is not supported"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"allOf": [{"type": "null"}, {"type": "string"}]}}},
     "response_format.json_schema.schema", "nothing is accepted"),
    ("guided_json", {"$ref": "https://example.com/x"}, "guided_json.$ref", "nothing is fetched"),
    ("json_schema", '{"type": "txt"}', "json_schema.type", "it must be null"),
    ("response_format", {"type": "yaml"}, "response_format.type", "must be"),
    ("response_format", {}, "response_format.type", "must be a text"),
])
def test_what_does_not_parse_is_refused_before_any_work(served, field, value, param, says):
    before = served.get("/metrics").body
    e = refused(served, **COLD, **{field: value})
    assert e["param"] == param and says in e["message"], e
    tokens = re.compile(rb"^pantheon_prompt_tokens[^\n]*", re.M)
    assert tokens.findall(before) == tokens.findall(served.get("/metrics").body)


def test_two_constraints_are_one_too_many(served):
    e = refused(served, grammar='root ::= "a"', regex="a")
    assert "both given" in e["message"] and e["param"] in ("grammar", "regex")
    e = refused(served, response_format={"type": "json_object"}, guided_choice=["a"])
    assert "both given" in e["message"]
    assert ask(served, **COLD, response_format={"type": "text"}, grammar='root ::= "a"', regex="", guided_choice=[]) == ("a", "stop")


def test_a_grammar_is_compiled_once_and_what_it_takes_is_told(served):
    def told():
        lines = [line for line in served.get("/metrics").body.decode().splitlines() if line.startswith("pantheon_grammar")]
        return {line.split("{")[0] + (" found" if 'outcome="found"' in line else ""): float(line.rsplit(" ", 1)[1]) for line in lines}

    before = told()
    for _ in range(3):
        assert ask(served, regex="once and for all [0-9]", max_tokens=40)[1] == "stop"
    after = told()
    assert after["pantheon_grammars_total"] == before["pantheon_grammars_total"] + 1 and after["pantheon_grammars_total found"] == before["pantheon_grammars_total found"] + 2
    assert after["pantheon_grammar_compile_seconds_total"] > before["pantheon_grammar_compile_seconds_total"] and 0 < after["pantheon_grammar_bytes"] <= 70 << 20


def test_eight_requests_with_eight_grammars_at_once_and_a_client_that_leaves(served):
    stream = Stream(served, PATHS["chat"], body("chat", {**HOT, "max_tokens": 150, "grammar": 'root ::= [a-z ]{1,100000}', "ignore_eos": True, "stream": True}))
    next(e for e in stream.events())
    got = {}

    def one(i):
        got[i] = ask(served, **{**HOT, "seed": i}, grammar=f'root ::= "{i}" [a-f]{{{i + 1},{2 * i + 1}}} "{i}"')

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    stream.close()
    for t in threads:
        t.join()
    for i in range(8):
        assert re.fullmatch(f"{i}[a-f]{{{i + 1},{2 * i + 1}}}{i}", got[i][0]) and got[i][1] == "stop", (i, got[i])
    wait_for(served.idle, 10)
    assert ask(served, **COLD, grammar='root ::= "ok"') == ("ok", "stop")


def test_a_scripted_model_says_its_text_where_the_grammar_allows_it(tmp_path):
    path = tmp_path / "script.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "Hello from a script."], check=True, cwd=ROOT)
    d = Daemon(tmp_path, manifest(("s", path)))
    try:
        r = d.chat("x", model="s", regex=r"Hello( \w+)+\.", max_tokens=100)
        assert r.json["choices"][0]["message"]["content"] == "Hello from a script." and r.json["choices"][0]["finish_reason"] == "stop"
    finally:
        d.stop()


@pytest.mark.skipif(not SMOL.exists(), reason="the demo model is not there")
def test_the_demo_model_writes_json_when_held_to_it(tmp_path):
    d = Daemon(tmp_path, manifest(("smol", SMOL)))
    try:
        for seed in range(3):
            r = d.chat("Describe a cat as a JSON object with name, age and colour.", model="smol", response_format={"type": "json_object"}, max_tokens=300, seed=seed)
            c = r.json["choices"][0]
            assert c["finish_reason"] == "length" or isinstance(json.loads(c["message"]["content"]), dict), c
        r = d.chat("Is water wet?", model="smol", guided_choice=["yes", "no"], max_tokens=10)
        assert r.json["choices"][0]["message"]["content"] in ("yes", "no")
    finally:
        d.stop()


def test_the_body_that_instructor_recorded_gets_its_object(served):
    """Its schema has $defs, an anyOf with null and no additionalProperties; names and places of the object are the schema's."""
    sent = json.loads((ROOT / "tests/cases/clients/instructor_json_schema.json").read_text())
    schema = sent["response_format"]["json_schema"]["schema"]
    for seed in range(4):
        r = served.post(PATHS["chat"], {**sent, "temperature": 1, "seed": seed, "max_tokens": 200})
        assert r.status == 200, r.body
        c = r.json["choices"][0]
        names = [f'"{n}":' for n in schema["required"]]
        at = [c["message"]["content"].find(n) for n in names]
        if c["finish_reason"] == "stop":
            assert set(schema["required"]) <= set(json.loads(c["message"]["content"])), c
        else:
            assert c["finish_reason"] == "length" and c["message"]["content"].startswith("{") and at[0] <= 1, c


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_schema_holds_streamed_and_whole_on_both_apis(served, api):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 12}, "b": {"enum": ["x", None]}}, "required": ["a", "b"], "additionalProperties": False}
    named = {"name": "n", "schema": schema, "strict": True, "description": "A pair."}
    fields = {"response_format": {"type": "json_schema", "json_schema": named}} if api == "chat" else {"text": {"format": {"type": "json_schema", **named}}}
    for seed in range(6):
        text, finish = ask(served, api, **{**HOT, "seed": seed}, **fields)
        value = json.loads(text)
        assert finish == "stop" and list(value) == ["a", "b"] and 3 <= value["a"] <= 12 and value["b"] in ("x", None), text
    e = refused(served, api, **(fields | ({"response_format": {"type": "json_schema", "json_schema": {**named, "schema": {"contains": {}, "$recursiveRef": "#"}}}} if api == "chat" else
                                          {"text": {"format": {"type": "json_schema", **named, "schema": {"$recursiveRef": "#"}}}})))
    assert e["code"] == "unsupported_schema" and e["param"] == ("response_format.json_schema.schema" if api == "chat" else "text.format.schema") + ".$recursiveRef"
