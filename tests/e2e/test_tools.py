"""Calls and thoughts in every form that the engine reads: a scripted model speaks each, token by token; a whole answer, what openai's client puts
together of a stream, and both kinds of Response say the same."""
import json
import subprocess

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

import schema
from conftest import BUILD, ROOT, SLOW, Daemon, Stream, description, manifest
from dialects import DIALECTS, FLAT, PARIS, PING, TIMES, TOOLS, cases, write
from test_responses import Events

NAMES = [d.name for d in DIALECTS]


@pytest.fixture(scope="module")
def speakers(tmp_path_factory):
    """A model for each dialect: NAME with a token a byte, NAME-tokens with its marks as tokens."""
    folder = tmp_path_factory.mktemp("speakers")
    models = [(f"{d.name}{'-tokens' if tokens else ''}", write(d, folder / f"{d.name}{tokens}.gguf", tokens), "max_sessions: 1\nmax_concurrent: 1\nctx_cap: 4096") for d in DIALECTS for tokens in (False, True)]
    d = Daemon(folder, manifest(*models))
    yield d
    d.stop()


def client(d):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0, timeout=60 * SLOW)


def parts(message):
    """(content, reasoning, calls) of a chat's message, as JSON."""
    calls = message.get("tool_calls") or []
    assert all(c["type"] == "function" and c["id"].startswith("call_") and len(c["id"]) == 29 for c in calls) and len({c["id"] for c in calls}) == len(calls)
    if calls and message["content"] is not None:
        assert message["content"]
    return message["content"] or "", message.get("reasoning_content") or "", [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def items(output):
    """The same of a Response's output, whose order must be that of its parts."""
    content, reasoning, calls = "", "", []
    for i in output:
        if i["type"] == "message":
            content += "".join(p["text"] for p in i["content"])
        elif i["type"] == "reasoning":
            assert not content and not calls
            reasoning += "".join(p["text"] for p in i["content"])
        else:
            assert i["type"] == "function_call" and i["id"].startswith("fc_")
            calls.append((i["name"], json.loads(i["arguments"])))
    return content, reasoning, calls


def ask(d, model, digit, **fields):
    body = {"model": model, "messages": [{"role": "user", "content": f"case {digit}"}], "tools": TOOLS, "temperature": 0, **fields}
    whole = d.post("/v1/chat/completions", body)
    assert whole.status == 200, whole.body
    schema.check(whole.json, "ChatCompletion", description())
    ChatCompletion.model_validate(whole.json)
    return whole.json["choices"][0]


@pytest.mark.parametrize("tokens", ["", "-tokens"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=NAMES)
def test_every_dialect_is_read_whole_and_streamed_alike(speakers, dialect, tokens):
    model = dialect.name + tokens
    said = client(speakers).models.retrieve(model).model_dump()
    assert (said["tools"], said["reasoning"]) == (dialect.name, dialect.think[0])
    for digit, (text, content, reasoning, calls) in cases(dialect).items():
        where = (model, digit, text)
        choice = ask(speakers, model, digit)
        got = parts(choice["message"])
        assert got[1:] == (reasoning, calls), (where, got)
        written = text if content is None else content
        plain = got[0]
        for mark in dialect.marks if dialect.control and tokens else ():  # control tokens are no text; of a call that was none, its begin is shown
            written, plain = written.replace(mark, ""), plain.replace(mark, "")
        assert plain.strip() == written.strip(), (where, got)
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop"), where
        # the official client's accumulator over the stream
        with client(speakers).chat.completions.stream(model=model, messages=[{"role": "user", "content": f"case {digit}"}], tools=TOOLS, temperature=0) as s:
            for _ in s:
                pass
            final = s.get_final_completion().choices[0]
        streamed = final.message.to_dict()
        assert parts(streamed) == got, where
        assert streamed["content"] == choice["message"]["content"] and final.finish_reason == choice["finish_reason"], where
        # and Responses
        body = {"model": model, "input": f"case {digit}", "tools": FLAT, "temperature": 0}
        r = speakers.post("/v1/responses", body)
        assert r.status == 200, r.body
        schema.check(r.json, "Response", description())
        Response.model_validate(r.json)
        assert items(r.json["output"]) == got, (where, r.json["output"])
        last = None
        for last in Events(speakers, **body).events():
            pass
        assert last["type"] == "response.completed" and items(last["response"]["output"]) == got, where


def test_a_response_s_stream_says_each_item_as_it_comes(speakers):
    """Of a thought and two calls: each item announced, said piece by piece and closed before the next, and the same again at the end."""
    events = list(Events(speakers, model="hermes", input="case 5", tools=FLAT, temperature=0).events())
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [i["type"] for i in done] == ["reasoning", "function_call", "function_call"] and done == events[-1]["response"]["output"]
    open_item, texts = None, {}
    for e in events[2:-1]:
        if e["type"] == "response.output_item.added":
            assert open_item is None and e["output_index"] == len(texts)
            open_item = e["item"]["id"]
            texts[open_item] = ""
        elif e["type"] == "response.output_item.done":
            i = e["item"]
            assert i["id"] == open_item and texts[open_item] == (i["arguments"] if i["type"] == "function_call" else i["content"][0]["text"])
            open_item = None
        else:
            assert e["item_id"] == open_item and e["output_index"] == len(texts) - 1
            texts[open_item] += e.get("delta", "")
    assert open_item is None and len(texts) == 3
    with client(speakers).responses.stream(model="hermes", input="case 5", tools=FLAT, temperature=0) as s:
        for _ in s:
            pass
        final = s.get_final_response()
    assert [i.type for i in final.output] == ["reasoning", "function_call", "function_call"] and json.loads(final.output[1].arguments) == PARIS[1]


@pytest.mark.parametrize("model", ["hermes", "qwen3-xml-tokens", "mistral-tokens", "llama3"])
def test_a_conversation_goes_on_with_what_was_called(speakers, model):
    """What an answer had, sent back with what the function returned, is a part of the next prompt."""
    asked = [{"role": "user", "content": "case 1"}]
    message = ask(speakers, model, 1)["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "17 degrees"} for c in message["tool_calls"]]
    prompt = speakers.post("/apply-template", {"model": model, "messages": [*asked, message, *results], "tools": TOOLS}).json["prompt"]
    assert prompt.count("17 degrees") == 2 and "Paulo" in prompt and "get_time" in prompt.split("case 1")[1]
    bodies = [{"messages": [*asked, message, *results, {"role": "user", "content": "case 4"}]}]
    first = client(speakers).responses.create(model=model, input="case 1", tools=FLAT, temperature=0)
    back = [i.model_dump(exclude_none=True) for i in first.output]
    outputs = [{"type": "function_call_output", "call_id": i["call_id"], "output": "17 degrees"} for i in back if i["type"] == "function_call"]
    assert len(outputs) == 2
    again = client(speakers).responses.create(model=model, input=[{"role": "user", "content": "case 1"}, *back, *outputs, {"role": "user", "content": "case 4"}], tools=FLAT, temperature=0,
                                              include=["reasoning.encrypted_content"], store=False)
    for body in bodies:
        r = speakers.post("/v1/chat/completions", {"model": model, "tools": TOOLS, "temperature": 0, **body})
        assert r.json["choices"][0]["message"]["content"] == again.output_text and again.output_text.startswith("Just text")
        assert r.json["usage"]["prompt_tokens"] == again.usage.input_tokens


def test_without_functions_nothing_is_looked_for(speakers):
    text = cases(DIALECTS[0])["0"][0]
    for fields in ({"tools": []}, {"tool_choice": "none"}, {"tools": None}):
        choice = ask(speakers, "hermes", 0, **fields)
        assert choice["message"]["content"] == text and "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
    prompts = [speakers.post("/apply-template", {"model": "hermes", "messages": [{"role": "user", "content": "a"}], **f}).json["prompt"] for f in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"})]
    assert "get_time" in prompts[1] and prompts[0] == prompts[2] and "get_time" not in prompts[0]
    counts = [speakers.post("/tokenize", {"model": "hermes", "messages": [{"role": "user", "content": "a"}], **f}).json["count"] for f in ({}, {"tools": TOOLS})]
    assert counts[1] > counts[0] + 500
    raw = speakers.complete("<|im_start|>assistant\n", model="hermes", max_tokens=5)
    assert raw.status == 200 and set(raw.json["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}


def test_parallel_tool_calls_false_ends_the_answer_with_the_first_call(speakers):
    for model in ("hermes", "mistral-tokens", "qwen3-xml"):
        choice = ask(speakers, model, 1, parallel_tool_calls=False)
        assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == "tool_calls"
        assert parts(choice["message"])[2] == cases(next(d for d in DIALECTS if model.startswith(d.name)))["1"][3][:1]


@pytest.mark.parametrize("dialect", DIALECTS, ids=NAMES)
def test_a_call_that_is_demanded_comes_whatever_the_model_says(speakers, dialect):
    """The script wants to say plain text; the grammar lets it say a call alone, and of a named function only that."""
    for choice, names in (("required", {t["function"]["name"] for t in TOOLS}), ({"type": "function", "function": {"name": "get_time"}}, {"get_time"})):
        c = ask(speakers, dialect.name, 4, tool_choice=choice, max_tokens=600)
        calls = c["message"].get("tool_calls")
        assert calls and c["message"]["content"] is None and {x["function"]["name"] for x in calls} <= names and (len(calls) == 1 or choice == "required"), c
        if c["finish_reason"] == "tool_calls":
            for x in calls:
                tool = next(t["function"] for t in TOOLS if t["function"]["name"] == x["function"]["name"])
                assert schema.why_not(json.loads(x["function"]["arguments"]), tool["parameters"], {}) is None, x


def test_what_cannot_be_offered_is_refused_by_its_place(speakers):
    def refused(path, fields):
        r = speakers.post(path, {"model": "hermes", **({"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"input": "a"}), **fields})
        assert r.status == 400, r.body
        return r.error["param"], r.error["code"]

    bad = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}, "required": ["a"]}
    chat = [{"type": "function", "function": {"name": "ok"}}, {"type": "function", "function": {"name": "f", "strict": True, "parameters": bad}}]
    param, code = refused("/v1/chat/completions", {"tools": chat})
    assert code == "unsupported_schema" and param.startswith("tools.1.function.parameters"), (param, code)
    param, code = refused("/v1/responses", {"tools": [{"type": "function", **chat[1]["function"]}]})
    assert code == "unsupported_schema" and param.startswith("tools.0.parameters"), (param, code)
    chat[1]["function"]["strict"] = False
    assert ask(speakers, "hermes", 4, tools=chat)["finish_reason"] == "stop", "what need not be held to is any object"
    assert refused("/v1/chat/completions", {"tools": [{"type": "web_search"}]}) == ("tools.0.type", "unsupported_parameter")
    assert refused("/v1/chat/completions", {"tools": TOOLS, "grammar": "root ::= \"a\""}) == ("grammar", "unsupported_parameter")
    assert refused("/v1/responses", {"tools": FLAT, "tool_choice": {"type": "function", "name": "nobody"}}) == ("tool_choice.name", "invalid_value")


def test_content_beside_functions_is_held_to_its_schema(speakers):
    """With response_format an answer is calls, or JSON of that schema; what is neither cannot come."""
    held = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}}}
    assert parts(ask(speakers, "hermes", 0, response_format=held)["message"])[2] == [PARIS]
    c = ask(speakers, "hermes", 4, response_format=held, max_tokens=200)
    assert c["finish_reason"] == "length" or c["message"].get("tool_calls") or set(json.loads(c["message"]["content"])) == {"a"}, c
    assert "Just text" not in c["message"]["content"]
    c = ask(speakers, "hermes", 4, response_format=held, tool_choice="required", max_tokens=600)
    assert c["message"]["tool_calls"] and c["message"]["content"] is None


def test_max_tokens_cuts_a_call_and_repairs_nothing(speakers):
    text = cases(DIALECTS[0])["1"][0]
    whole = ask(speakers, "hermes", 1)["message"]["tool_calls"][0]["function"]["arguments"]
    n = len(text.split("Paulo")[0].encode())
    c = ask(speakers, "hermes", 1, max_tokens=n)
    (call,) = c["message"]["tool_calls"]
    assert c["finish_reason"] == "length" and whole.startswith(call["function"]["arguments"]) and 0 < len(call["function"]["arguments"]) < len(whole)
    r = speakers.post("/v1/responses", {"model": "hermes", "input": "case 1", "tools": FLAT, "temperature": 0, "max_output_tokens": n}).json
    assert r["status"] == r["output"][-1]["status"] == "incomplete" and r["output"][-1]["arguments"] == call["function"]["arguments"]


def test_every_choice_has_its_own_calls(speakers):
    body = {"model": "hermes", "messages": [{"role": "user", "content": "case 3"}], "tools": TOOLS, "temperature": 0, "n": 2}
    choices = speakers.post("/v1/chat/completions", body).json["choices"]
    assert [parts(c["message"])[2] for c in choices] == [[PING, PARIS]] * 2 and len({c["id"] for x in choices for c in x["message"]["tool_calls"]}) == 4
    seen = {}
    for chunk in Stream(speakers, "/v1/chat/completions", {**body, "stream": True}).chunks():
        for c in chunk["choices"]:
            for t in c["delta"].get("tool_calls", []):
                if "id" in t:
                    assert t["index"] == len(seen.setdefault(c["index"], [])), "from 0 in each choice"
                    seen[c["index"]].append("")
                seen[c["index"]][t["index"]] += t["function"]["arguments"]
    assert {k: [json.loads(a) for a in v] for k, v in seen.items()} == {0: [{}, PARIS[1]], 1: [{}, PARIS[1]]}


def test_log_probabilities_are_of_content_alone(speakers):
    c = ask(speakers, "hermes", 8, logprobs=True)
    told = "".join(t["token"] for t in c["logprobs"]["content"])
    assert told.strip() == "I shall look." == c["message"]["content"].strip() and parts(c["message"])[2] == [TIMES]
    body = {"model": "hermes", "input": "case 8", "tools": FLAT, "temperature": 0, "include": ["message.output_text.logprobs"]}
    whole, last = speakers.post("/v1/responses", body).json, list(Events(speakers, **body).events())[-1]["response"]
    for r in (whole, last):
        said = r["output"][0]["content"][0]
        assert r["output"][0]["type"] == "message" and [t["token"] for t in said["logprobs"]] == [t["token"] for t in c["logprobs"]["content"]]
    c = ask(speakers, "hermes", 6, logprobs=True)
    assert "".join(t["token"] for t in c["logprobs"]["content"]).strip() == "It is late."


def test_the_dialect_is_told_where_people_look(speakers):
    assert 'event=dialect model="hermes" tools=hermes reasoning="<think>"' in speakers.log or "event=dialect model=hermes tools=hermes reasoning=" in speakers.log, speakers.log[-3000:]


def test_arguments_without_a_bottom_are_cut_and_never_an_error_in_the_stream(start, tmp_path):
    text, template, path = tmp_path / "t.txt", tmp_path / "t.jinja", tmp_path / "m.gguf"
    text.write_text('<tool_call>\n{"name": "deep", "arguments": {"a": ' + "[" * 6000)
    template.write_text(DIALECTS[0].template())
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--weights", "1MiB", "--ctx", "8192", "--template", str(template), "--text-file", str(text)], check=True, cwd=ROOT)
    d = start(manifest(("m", path, "ctx_cap: 8192")))
    fields = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "deep"}}], "temperature": 0, "max_tokens": 7000}
    (c,) = d.post("/v1/chat/completions", fields).json["choices"]
    (call,) = c["message"]["tool_calls"]
    assert c["finish_reason"] == "length" and 4000 < call["function"]["arguments"].count("[") < 4200
    chunks = Stream(d, "/v1/chat/completions", {**fields, "stream": True}).chunks()
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert "".join(t["function"].get("arguments", "") for x in chunks for t in x["choices"][0]["delta"].get("tool_calls", [])) == call["function"]["arguments"]
