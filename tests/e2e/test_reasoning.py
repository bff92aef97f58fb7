"""Thoughts apart from content: whoever opens them, in every form, and how much of them there may be."""
import json
import signal
import subprocess

import openai
import pytest

import schema
from conftest import BUILD, ROOT, SLOW, Stream, description, manifest, wait_for
from dialects import DIALECTS, write

HERMES = DIALECTS[0]
THOUGHT = ("I wonder what to say to that, and go on wondering for a good while before there is anything to be said at all. Nobody is in a hurry here: the sun has not "
           "set, tea is on the table, and whoever asked will ask once more if it matters.")


def client(d):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0, timeout=60 * SLOW)


def script(path, text, template, *more):
    file = path.with_suffix(".jinja")
    file.write_text(template)
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--weights", "1MiB", "--text", text, "--template", str(file), *more], check=True, cwd=ROOT)
    return path


def streamed(d, **fields):
    """(content, reasoning, usage) put together of a stream."""
    content, reasoning, usage = "", "", None
    for c in d.stream(stream_options={"include_usage": True}, **fields).chunks():
        usage = c.get("usage") or usage
        for x in c["choices"]:
            content += x["delta"].get("content") or ""
            reasoning += x["delta"].get("reasoning_content") or ""
    return content, reasoning, usage


def whole(d, **fields):
    r = d.chat(**fields)
    assert r.status == 200, r.body
    schema.check(r.json, "ChatCompletion", description())
    m = r.json["choices"][0]["message"]
    assert m["content"] is not None and m.get("reasoning_content") != ""
    return m["content"], m.get("reasoning_content", ""), r.json["usage"]


def both(d, **fields):
    """The same, checked to be that of a whole answer too."""
    w, s = whole(d, temperature=0, **fields), streamed(d, temperature=0, **fields)
    assert w[:2] == s[:2] and w[2]["completion_tokens_details"] == s[2]["completion_tokens_details"]
    return w


@pytest.mark.parametrize("opens", [False, True], ids=["of-itself", "opened"])
def test_thoughts_are_told_apart_whoever_opens_them(start, tmp_path, opens):
    """By each of the forms whose marks a dialect of the tests has, with a token a byte and with marks as tokens."""
    kinds = [d for d in DIALECTS if d.name in ("hermes", "seed", "mistral-args")]
    d = start(manifest(*((f"{k.name}{t}", write(k, tmp_path / f"{k.name}{t}.gguf", bool(t), opens)) for k in kinds for t in ("", "-tokens"))))
    for name in (f"{k.name}{t}" for k in kinds for t in ("", "-tokens")):
        content, reasoning, usage = both(d, text="case 6", model=name)
        assert (content, reasoning) == ("It is late.", "Nothing to call."), name
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        r = client(d).responses.create(model=name, input="case 6", temperature=0)
        assert [i.type for i in r.output] == ["reasoning", "message"] and r.output[0].content[0].text == reasoning and r.output_text == content
        assert r.usage.output_tokens_details.reasoning_tokens == usage["completion_tokens_details"]["reasoning_tokens"]
        raw = d.complete("<|im_start|>user\ncase 6<|im_end|>\n<|im_start|>assistant\n", model=name, max_tokens=400).json["choices"][0]["text"]
        assert "Nothing to call." in raw and "It is late." in raw, "completions have everything in their text"


def test_a_thought_that_is_cut_is_a_thought(start, tmp_path):
    d = start(manifest(("tiny", write(HERMES, tmp_path / "t.gguf"))))
    content, reasoning, usage = both(d, text="case 6", max_tokens=15)
    assert content == "" and "Nothing to call.".startswith(reasoning) and reasoning
    assert d.chat("case 6", max_tokens=15).json["choices"][0]["finish_reason"] == "length"
    r = d.post("/v1/responses", {"model": "tiny", "input": "case 6", "max_output_tokens": 15, "temperature": 0}).json
    assert [(i["type"], i["status"]) for i in r["output"]] == [("reasoning", "incomplete")]


def test_the_budget_ends_a_thought(start, tmp_path):
    """Request over manifest, and the manifest's may change while the model serves."""
    path = script(tmp_path / "m.gguf", "<think>\n" + THOUGHT, HERMES.template())
    text = lambda budget: manifest(("tiny", path, f"reasoning_budget: {budget}" if budget is not None else ""))
    d = start(text(None))
    content, reasoning, usage = both(d)
    assert content == "" and reasoning == THOUGHT
    for budget in (0, 1, 16, 40):
        content, reasoning, usage = both(d, reasoning_budget=budget)
        assert len(reasoning) <= budget and THOUGHT.startswith(reasoning) and content and "think>" not in content
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= budget
    wait_for(lambda: " reasoning_tokens=16 thought_ended_by=budget " in d.log, 5)
    r = d.post("/v1/responses", {"model": "tiny", "input": "a", "reasoning_budget": 16, "temperature": 0}).json
    assert [i["type"] for i in r["output"]] == ["reasoning", "message"] and len(r["output"][0]["content"][0]["text"]) <= 16
    assert both(d, reasoning_budget=-1)[1] == both(d)[1] == THOUGHT
    d.write(text(12))
    d.signal(signal.SIGHUP)
    wait_for(lambda: len(whole(d)[1]) <= 12, 10, "the manifest's budget in force")
    assert both(d)[0] and both(d)[1] and d.log.count("event=model_ready") == 1, "changed while it serves"
    assert len(both(d, reasoning_budget=30)[1]) > 12 and both(d, reasoning_budget=-1)[1] == THOUGHT
    assert both(d, reasoning_effort="none")[1] == ""


def test_a_thought_that_goes_round_in_circles_is_ended_and_the_log_says_so(start, tmp_path):
    run = "But wait, perhaps it is the other way round. "
    d = start(manifest(("tiny", script(tmp_path / "m.gguf", "<think>\nLet me see. " + run * 20, HERMES.template()))))
    content, reasoning, usage = both(d, max_tokens=600)
    assert reasoning == ("Let me see. " + run * 2)[:len(reasoning)] and len(reasoning) <= len("Let me see. " + run * 2) and "think>" not in content
    assert d.chat(stop=["round"], temperature=0, max_tokens=200).json["choices"][0]["message"]["reasoning_content"] == reasoning, "stop texts are looked for in content"
    lines = wait_for(lambda: [line for line in d.log.splitlines() if "thought_ended_by=loop" in line], 5, "the log")
    assert f" reasoning_tokens={usage['completion_tokens_details']['reasoning_tokens']} " in lines[0]
    assert float(next(line for line in d.get("/metrics").body.decode().splitlines() if line.startswith("pantheon_reasoning_tokens_total{")).rsplit(" ", 1)[1]) > 0
    d.chat(reasoning_budget=3, temperature=0, max_tokens=50)
    wait_for(lambda: "reasoning_tokens=3 thought_ended_by=budget" in d.log, 5, "the log")


def test_effort_and_thoughts_of_the_past_go_to_the_template(start, tmp_path):
    template = ("{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{% if m.reasoning_content %}(<think>{{ m.reasoning_content }}</think>){% endif %};{% endfor %}"
                "effort={{ reasoning_effort | default('-') }} thinking={{ enable_thinking | default('-') }}")
    d = start(manifest(("tiny", script(tmp_path / "m.gguf", "Hello.", template))))

    def prompt(messages=None, **fields):
        r = d.post("/apply-template", {"model": "tiny", "messages": messages or [{"role": "user", "content": "a"}], **fields})
        assert r.status == 200, r.body
        return r.json["prompt"]

    assert prompt() == "user:a;effort=- thinking=-"
    assert prompt(reasoning_effort="low") == "user:a;effort=low thinking=-"
    assert prompt(reasoning_effort="none") == "user:a;effort=none thinking=False"
    assert prompt(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}) == "user:a;effort=none thinking=True"
    assert prompt(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "much"}) == "user:a;effort=much thinking=-"
    for name in ("reasoning_content", "reasoning"):
        assert prompt([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "t"}, {"role": "user", "content": "c"}]) == "user:a;assistant:b(<think>t</think>);user:c;effort=- thinking=-"
    used = lambda **f: d.post("/v1/responses", {"model": "tiny", "input": "a", **f}).json["usage"]["input_tokens"]
    assert used(reasoning={"effort": "low"}) == used() + 2
    items = [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "t"}, {"role": "user", "content": "c"}]
    assert used(input=items) == d.post("/v1/chat/completions", {"model": "tiny", "messages": messages}).json["usage"]["prompt_tokens"]


def test_a_grammar_begins_behind_the_thought(start, tmp_path):
    d = start(manifest(("tiny", write(HERMES, tmp_path / "t.gguf", tokens=True))))
    content, reasoning, _ = both(d, text="case 6", regex="[0-9]{3}")
    assert reasoning == "Nothing to call." and len(content) == 3 and content.isdigit()
    held = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "boolean"}}}
    content, reasoning, _ = both(d, text="case 6", response_format=held)
    assert reasoning == "Nothing to call." and json.loads(content) in (True, False)
