"""Each field of the API's own description is sent, so that none is dropped in silence (pain 45): what is honoured has its effect, what is refused
is refused by its name, and what is ignored changes nothing. A new field has no row here, and that fails too."""
import json

import pytest

from conftest import Stream, manifest

HOT = {"temperature": 1.5, "seed": 3, "max_tokens": 24, "ignore_eos": True}
COLD = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions", "responses": "/v1/responses"}
ASKS = {"chat": {"messages": [{"role": "user", "content": "Hello"}]}, "text": {"prompt": "Hello"}, "responses": {"input": "Hello"}}


def text(a):
    if "output" in a:
        return a["output"][0]["content"][0]["text"]
    c = a["choices"][0]
    return c["message"]["content"] if "message" in c else c["text"]


def tokens(a, what):
    """prompt or completion: how many."""
    u = a["usage"]
    return u[{"prompt": "input", "completion": "output"}[what] + "_tokens" if "output" in a else what + "_tokens"]


def logprobs(a):
    return a["output"][0]["content"][0]["logprobs"] if "output" in a else a["choices"][0]["logprobs"]["content"]


def other_text(a, b):
    return text(a) != text(b)


def one_text(a, b):
    return text(a) == text(b)


# field: (the request without it, its value, what must hold of the answers without and with it); a field that only takes what is so anyway: None
EFFECTS = {
    "temperature": ({**HOT, "temperature": 0}, 2, other_text),
    "top_p": (HOT, 0.01, other_text),
    "top_k": (HOT, 1, other_text),
    "min_p": (HOT, 0.99, other_text),
    "repeat_penalty": (COLD, 9, other_text),
    "repetition_penalty": (COLD, 9, other_text),
    "repeat_last_n": ({**COLD, "repeat_penalty": 9}, 0, other_text),
    "presence_penalty": (COLD, 2, other_text),
    "frequency_penalty": (COLD, 2, other_text),
    "logit_bias": (COLD, {"70": 100}, other_text),
    "seed": ({k: v for k, v in HOT.items() if k != "seed"}, 77, other_text),
    "stop": (COLD, None, lambda a, b: text(a).startswith(text(b)) and len(text(b)) < len(text(a))),  # its value: a part of the text
    "n": (COLD, 2, lambda a, b: len(b["choices"]) == 2 * len(a["choices"])),
    "max_tokens": ({**COLD, "max_tokens": 24}, 3, lambda a, b: tokens(b, "completion") == 3),
    "max_completion_tokens": ({k: v for k, v in COLD.items() if k != "max_tokens"}, 3, lambda a, b: tokens(b, "completion") == 3),
    "ignore_eos": ({"temperature": 0, "max_tokens": 24, "logit_bias": {"2": 100}}, True, lambda a, b: tokens(a, "completion") < tokens(b, "completion") == 24),
    "echo": (COLD, True, lambda a, b: text(b) == "Hello" + text(a)),
    "chat_template_kwargs": (COLD, {"flavour": "vanilla"}, lambda a, b: tokens(b, "prompt") > tokens(a, "prompt")),
    "best_of": (COLD, 1, one_text),
    "modalities": (COLD, ["text"], one_text),
    "response_format": (COLD, {"type": "json_object"}, lambda a, b: other_text(a, b) and text(b).startswith("{")),
    "grammar": (COLD, "root ::= [0-9]{3}", lambda a, b: len(text(b)) == 3 and text(b).isdigit()),
    "regex": (COLD, r"\d{3}", lambda a, b: len(text(b)) == 3 and text(b).isdigit()),
    "guided_grammar": (COLD, "root ::= [0-9]{3}", lambda a, b: len(text(b)) == 3 and text(b).isdigit()),
    "guided_regex": (COLD, r"\d{3}", lambda a, b: len(text(b)) == 3 and text(b).isdigit()),
    "guided_choice": (COLD, ["yes", "no"], lambda a, b: text(b) in ("yes", "no")),
    "guided_json": (COLD, {"enum": ["yes", [1]]}, lambda a, b: text(b) in ('"yes"', "[1]")),
    "json_schema": (COLD, '{"type": "boolean"}', lambda a, b: text(b) in ("true", "false")),
    "instructions": (COLD, "Be brief.", lambda a, b: tokens(b, "prompt") > tokens(a, "prompt")),
    "include": (COLD, ["message.output_text.logprobs"], lambda a, b: len(logprobs(b)) == 24 and not logprobs(a)),
    "text": (COLD, {"format": {"type": "json_object"}}, lambda a, b: other_text(a, b) and text(b).startswith("{")),
    "service_tier": (COLD, "flex", lambda a, b: one_text(a, b) and b["service_tier"] == "flex"),
    "session_id": (COLD, "tea", one_text),  # and its turn: test_fair.py
    "prompt_cache_key": (COLD, "tea", one_text),
    "cache_prompt": (COLD, False, lambda a, b: one_text(a, b) and b["timings"]["cache"]["reason"] == "off"),
    "metadata": (COLD, {"a": "b"}, lambda a, b: one_text(a, b) and b["metadata"] == {"a": "b"}),
}
F = {"name": "f", "parameters": {"type": "object"}}
TOOLS = {"chat": [{"type": "function", "function": F}], "responses": [{"type": "function", **F}]}


def longer_prompt(a, b):
    return tokens(b, "prompt") > tokens(a, "prompt")


OF_TOOLS = {api: {"tools": (COLD, t, longer_prompt), "tool_choice": ({**COLD, "tools": t}, "none", lambda a, b: longer_prompt(b, a))} for api, t in TOOLS.items()}
OF_ONE = {
    "chat": {**OF_TOOLS["chat"], "reasoning_effort": (COLD, "low", longer_prompt), "logprobs": (COLD, True, lambda a, b: len(logprobs(b)) == 24),
             "top_logprobs": ({**COLD, "logprobs": True}, 3, lambda a, b: all(len(t["top_logprobs"]) == 3 for t in logprobs(b)))},
    "text": {"logprobs": (COLD, 2, lambda a, b: len(b["choices"][0]["logprobs"]["tokens"]) == 24)},
    "responses": {**OF_TOOLS["responses"], "reasoning": (COLD, {"effort": "low"}, longer_prompt), "top_logprobs": ({**COLD, "include": ["message.output_text.logprobs"]}, 3, lambda a, b: all(len(t["top_logprobs"]) == 3 for t in logprobs(b)))},
}
ELSEWHERE = {"model", "messages", "prompt", "input", "stream", "stream_options",  # in every request here, or asked for below
             "parallel_tool_calls", "reasoning_budget"}  # of models that call and think: test_tools.py, test_reasoning.py
NEUTRAL = {"best_of": 2, "modalities": ["audio"], "response_format": {"type": "json_schema"}, "guided_json": {"type": "x"}, "json_schema": {"type": "x"}, "grammar": "root ::=[", "regex": "(", "guided_grammar": "x", "guided_regex": "*", "guided_choice": [1], "tools": [{"type": "web_search"}], "tool_choice": "any", "reasoning_effort": "huge", "reasoning": {"effort": "huge"},
           "text": {"format": {"type": "json_schema"}}, "include": ["nothing.like.it"], "service_tier": "fast", "session_id": 7, "prompt_cache_key": "x" * 257, "cache_prompt": "no"}


@pytest.fixture(scope="module")
def served(models, tmp_path_factory):
    from conftest import Daemon
    folder = tmp_path_factory.mktemp("fields")
    (folder / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
                                   "{{ '{' }}\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}{{ '}' }}\n</tool_call>{% endfor %}{% endfor %}"
                                   "{{ flavour }}{{ reasoning_effort }}{{ tools | tojson if tools }}")
    d = Daemon(folder, manifest(("tiny", models["tiny"], f"chat_template: {json.dumps(str(folder / 't.jinja'))}")))
    yield d
    d.stop()


def body(api, fields):
    """A request of this API; its name for the most tokens of an answer."""
    own = {"max_output_tokens" if api == "responses" and k == "max_tokens" else k: v for k, v in fields.items()}
    return {"model": "tiny", **ASKS[api], **own}


def ask(d, api, **fields):
    return d.post(PATHS[api], body(api, fields))


def described(d, api):
    return d.get("/openapi.json").json["paths"][PATHS[api]]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]


@pytest.mark.parametrize("api", PATHS)
def test_pain_45_every_field_has_its_effect_is_refused_by_name_or_changes_nothing(served, api):
    plain = ask(served, api, **COLD)
    assert plain.status == 200
    kinds = {"honoured": 0, "refused": 0, "ignored": 0}
    for name, schema in described(served, api).items():
        if name in ELSEWHERE:
            continue
        if "enum" in schema:
            r = ask(served, api, **COLD, **{name: {"type": "x"} if "auto" in schema["enum"] else "something"})
            assert r.status == 400 and r.error["param"] == name and r.error["code"] == "unsupported_parameter", (name, r.body)
            kinds["refused"] += 1
        elif set(schema) == {"description"}:
            r = ask(served, api, **COLD, **{name: {"a": "b"} if name == "metadata" else "low"})
            assert r.status == 200 and text(r.json) == text(plain.json), (name, r.body)
            kinds["ignored"] += 1
        else:
            base, value, holds = {**EFFECTS, **OF_ONE[api]}[{"max_output_tokens": "max_tokens"}.get(name, name)]
            a = ask(served, api, **base)
            b = ask(served, api, **{**base, name: text(a.json)[4:7] if name == "stop" else value})
            assert a.status == b.status == 200, (name, a.body, b.body)
            assert holds(a.json, b.json), (name, a.body, b.body)
            kinds["honoured"] += 1
            if name in NEUTRAL:
                r = ask(served, api, **COLD, **{name: NEUTRAL[name]})
                assert r.status == 400 and r.error["param"].split(".")[0] == name, (name, r.body)
    assert kinds["honoured"] >= 15 and kinds["refused"] >= 5 and kinds["ignored"] >= 5, kinds


@pytest.mark.parametrize("api", ["chat", "text"])
def test_pain_45_streams_and_their_options_have_their_effect(served, api):
    stream = body(api, {**COLD, "stream": True})
    assert not any(c.get("usage") for c in Stream(served, PATHS[api], stream).chunks())
    assert sum(bool(c.get("usage")) for c in Stream(served, PATHS[api], {**stream, "stream_options": {"include_usage": True}}).chunks()) == 1


def test_pain_45_what_nobody_knows_is_an_error_and_names_what_was_meant(served):
    for api in PATHS:
        r = ask(served, api, temprature=0.5)
        assert r.status == 400 and r.error["code"] == "unknown_parameter" and r.error["param"] == "temprature"
