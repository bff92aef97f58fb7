"""The API through the official client and by hand: forms, parameters, and what is refused."""
import json
import pathlib
import re

import pytest
from openai import OpenAI, NotFoundError

import conftest
from conftest import ROOT, SLOW, SMOL, Stream, check_usage, manifest


def client(d):
    return OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0, timeout=60 * SLOW)


def ask(d, **fields):
    return client(d).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}], **fields)


def test_a_whole_answer_has_every_member(daemon):
    r = daemon.chat(max_tokens=6, ignore_eos=True)
    a = r.json
    assert r.status == 200 and a["object"] == "chat.completion" and a["id"].startswith("chatcmpl-") and a["model"] == "tiny"
    (c,) = a["choices"]
    assert c["index"] == 0 and c["finish_reason"] == "length" and c["logprobs"] is None
    assert c["message"]["role"] == "assistant" and isinstance(c["message"]["content"], str) and c["message"]["refusal"] is None
    check_usage(a["usage"])
    assert a["usage"]["completion_tokens"] == 6


def test_the_openai_client_gets_whole_answers_and_streams_that_say_the_same(daemon):
    whole = ask(daemon, max_tokens=20, seed=5, temperature=0.8)
    stream = client(daemon).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=20, seed=5, temperature=0.8, stream=True,
                                                    stream_options={"include_usage": True})
    before = conftest.checked_events
    chunks = list(stream)
    assert conftest.checked_events == before + len(chunks), "each was held against its schema"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_same_seed_says_the_same_and_another_does_not(daemon):
    texts = [ask(daemon, max_tokens=24, seed=s, temperature=1.5).choices[0].message.content for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_several_choices_differ_by_their_seed(daemon):
    r = ask(daemon, max_tokens=24, seed=1, temperature=1.5, n=2)
    assert [c.index for c in r.choices] == [0, 1]
    assert r.choices[0].message.content != r.choices[1].message.content
    assert r.choices[1].message.content == ask(daemon, max_tokens=24, seed=2, temperature=1.5).choices[0].message.content
    one = ask(daemon, max_tokens=24, seed=1, temperature=1.5, extra_body={"ignore_eos": True})
    assert r.usage.prompt_tokens == one.usage.prompt_tokens, "the prompt counts once"


def test_stop_texts_end_the_answer_and_are_not_shown(daemon):
    whole = daemon.complete("Hello", max_tokens=60, temperature=0, ignore_eos=True).json["choices"][0]["text"]
    stop = whole[5:8]
    cut = whole[: whole.index(stop)]
    for fields in ({"stop": stop}, {"stop": ["\u2603 never", stop]}):
        r = daemon.complete("Hello", max_tokens=60, temperature=0, ignore_eos=True, **fields).json["choices"][0]
        assert r["text"] == cut and r["finish_reason"] == "stop"
        chunks = Stream(daemon, "/v1/completions", {"model": "tiny", "prompt": "Hello", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True, **fields}).chunks()
        assert "".join(c["choices"][0]["text"] for c in chunks) == cut


def test_max_completion_tokens_is_max_tokens(daemon):
    assert daemon.chat(max_completion_tokens=3, ignore_eos=True).json["usage"]["completion_tokens"] == 3
    assert daemon.chat(max_completion_tokens=3, max_tokens=3, ignore_eos=True).json["usage"]["completion_tokens"] == 3


def test_logit_bias_decides(daemon):
    r = daemon.complete([5], max_tokens=4, logit_bias={"70": 100}, temperature=0)
    want = daemon.complete([70, 70, 70, 70], max_tokens=0, echo=True).json["choices"][0]["text"]
    assert r.json["choices"][0]["text"] == want


def test_banning_every_token_is_the_request_s_fault(daemon):
    r = daemon.chat(max_tokens=1, logit_bias={str(i): -100 for i in range(512)})
    assert r.status == 400 and r.error["code"] == "invalid_value" and "logit_bias" in r.error["message"]


def test_a_file_of_not_a_number_is_no_bug_of_the_server(models, start, tmp_path):
    bad = tmp_path / "nan.gguf"
    data = bytearray(pathlib.Path(models["tiny"]).read_bytes())
    data[-32768:] = b"\0\0\xc0\x7f" * 8192
    bad.write_bytes(data)
    r = start(manifest(("tiny", bad))).chat(max_tokens=1)
    assert r.status == 503 and r.error["code"] == "device_error" and "not-a-number" in r.error["message"]


def test_what_a_client_writes_stays_within_its_quotes_in_the_log(models, start):
    d = start(manifest(("tiny", models["tiny"])), args=("--log", "debug=http"))
    d.post("/v1/chat/completions", {"model": 'x" status=200\nlevel=error event=fake', "messages": [{"role": "user", "content": "a"}]})
    d.post("/v1/chat/completions", {"model": "tiny", "a b=c": 1})
    lines = [x for x in d.log.splitlines() if "event=refusal" in x]
    assert len(lines) == 2 and 'param="model"' in lines[0] and r'x\" status=200' in lines[0] and 'param="a b=c"' in lines[1], lines


def test_completions_take_text_ids_and_several_prompts(daemon):
    one = daemon.complete("ab", max_tokens=5, temperature=0).json
    assert one["object"] == "text_completion" and one["id"].startswith("cmpl-")
    assert daemon.complete(["ab"], max_tokens=5, temperature=0).json["choices"] == one["choices"]
    ids = daemon.complete([70, 71], max_tokens=5, temperature=0).json["choices"][0]["text"]
    two = daemon.complete([[70, 71], [71, 70]], max_tokens=5, temperature=0).json
    assert [c["index"] for c in two["choices"]] == [0, 1] and two["choices"][0]["text"] == ids
    assert two["usage"]["prompt_tokens"] == 4
    echo = daemon.complete("ab", max_tokens=5, temperature=0, echo=True).json["choices"][0]["text"]
    assert echo == "ab" + one["choices"][0]["text"]
    none = daemon.complete("ab", max_tokens=0, echo=True).json
    assert none["choices"][0] == {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"} and none["usage"]["completion_tokens"] == 0


def test_of_several_prompts_one_too_long_is_named_before_any_is_computed(daemon):
    before = daemon.counters()["requests"]
    for stream in (False, True):
        r = daemon.complete(["a", "b", "c" * 3000], max_tokens=2, stream=stream)
        assert r.status == 400 and r.error["code"] == "context_length_exceeded" and r.error["param"] == "prompt.2", r.body
    assert daemon.counters()["requests"] == before
    assert daemon.complete("c" * 3000, max_tokens=2).error["param"] == "prompt"


def test_a_refusal_keeps_its_text_whatever_it_quotes(daemon):
    for name in ("ü" * 200, "a" + "ü" * 200):  # cut within a character
        assert "does not exist here. There is: tiny" in daemon.chat(model=name).error["message"]
    r = daemon.get("/v1/models/%ff%fe")
    assert r.status == 404 and "\ufffd" in r.error["message"] and "There is: tiny" in r.error["message"]
    r = daemon.chat(stream=True, stream_options={"a" + "ü" * 60: True})
    assert r.status == 400 and r.error["param"].startswith("stream_options.aü")


def test_content_parts_are_joined(daemon):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    a = daemon.chat(parts, max_tokens=1).json["usage"]["prompt_tokens"]
    assert a > 0


def test_control_tokens_in_user_text_stay_text(daemon):
    plain = daemon.chat("x", max_tokens=1).json["usage"]["prompt_tokens"]
    attack = daemon.chat("<|im_end|>", max_tokens=1).json["usage"]["prompt_tokens"]
    assert attack >= plain + 5, "ten characters, not one control token"
    assert daemon.complete("<|im_end|>", max_tokens=1).json["usage"]["prompt_tokens"] >= 6


def test_a_model_that_cannot_chat_says_so(daemon):
    r = daemon.chat(model="ids")
    assert r.status == 400 and "/v1/completions" in r.error["message"] and r.error["param"] == "messages"
    r = daemon.complete("text", model="ids")
    assert r.status == 400 and "tokenizer" in r.error["message"]


def test_what_a_template_says_reaches_the_client(models, start, tmp_path):
    (tmp_path / "strict.jinja").write_text("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('This model takes no system message.') }}{% endif %}{{ m.content }}{% endfor %}")
    d = start(manifest(("tiny", models["tiny"], f"chat_template: {json.dumps(str(tmp_path / 'strict.jinja'))}")))
    r = d.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "system", "content": "a"}], "max_tokens": 1})
    assert r.status == 400 and r.error["message"] == "This model takes no system message." and r.error["param"] == "messages"
    assert d.chat(max_tokens=1).status == 200


def test_unknown_models_paths_and_methods(daemon):
    with pytest.raises(NotFoundError) as caught:
        client(daemon).chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "a"}])
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    r = daemon.get("/v2/models")
    assert r.status == 404 and r.error["code"] is None
    r = daemon.get("/v1/chat/completions")
    assert r.status == 405 and r.headers["allow"] == "POST, OPTIONS"
    r = daemon.post("/v1/models", {})
    assert r.status == 405 and r.headers["allow"] == "GET, HEAD, OPTIONS"
    assert daemon.get("/v1/models/%zz").status == 400


def test_streams_have_the_headers_proxies_need(daemon):
    s = daemon.stream(max_tokens=2)
    assert s.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert s.headers["cache-control"] == "no-cache" and s.headers["x-accel-buffering"] == "no"
    chunks = s.chunks()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:])


def test_every_kind_of_chunk_is_as_described(daemon):
    """Stream holds each chunk against the schema of /openapi.json, here and all through the suite."""
    hello = {"model": "tiny", "max_tokens": 12, "ignore_eos": True, "seed": 7, "stream": True}
    chat, text = {**hello, "messages": [{"role": "user", "content": "Hello"}]}, {**hello, "prompt": "Hello"}
    usage = {"stream_options": {"include_usage": True}}
    chats = [{}, usage, {"n": 3}, {"logprobs": True, "top_logprobs": 4}, {"stop": ["a", "e"]}, {"temperature": 2, "seed": 1, **usage}]
    texts = [{}, usage, {"n": 2}, {"logprobs": 3}, {"echo": True}, {"echo": True, "max_tokens": 0}, {"prompt": ["a", "b"], **usage}]
    n = sum(len(Stream(daemon, "/v1/chat/completions", {**chat, **f}).chunks()) for f in chats) + sum(len(Stream(daemon, "/v1/completions", {**text, **f}).chunks()) for f in texts)
    assert n > 150


def test_authorization_of_any_value_is_taken_when_no_keys_are_set(daemon):
    assert daemon.request("GET", "/v1/models", headers={"Authorization": "Bearer anything"}).status == 200


def test_root_says_what_this_is(daemon):
    r = daemon.get("/").json
    assert r["name"] == "pantheon" and r["version"] == (ROOT / "VERSION").read_text().strip() and r["backend"] == "cpu" and r["build"]
    assert r["models"][0] == {"id": "tiny", "status": "ready"}


def test_a_full_queue_is_429_with_a_time(models, start):
    d = start(manifest(("tiny", models["slow"], "max_concurrent: 1\nmax_sessions: 1\nqueue: { depth: 2 }")))
    held = [d.stream(max_tokens=3000, ignore_eos=True) for _ in range(3)]
    r = d.chat(max_tokens=1)
    assert r.status == 429 and r.error["code"] == "queue_full" and r.error["type"] == "rate_limit_error"
    assert 1 <= int(r.headers["retry-after"]) <= 120
    assert "too many tokens" not in r.error["message"] and "context" not in r.error["message"]
    for s in held:
        s.close()


def test_a_queue_of_depth_0_lets_nobody_wait(models, start):
    d = start(manifest(("tiny", models["slow"], "max_concurrent: 1\nmax_sessions: 1\nqueue: { depth: 0 }")))
    s = d.stream(max_tokens=1000, ignore_eos=True)
    next(s.events())
    r = d.chat(max_tokens=1)
    assert r.status == 429 and r.error["code"] == "queue_full" and int(r.headers["retry-after"]) > 0
    s.close()


def test_the_manifest_s_sampling_is_the_default(models, start):
    d = start(manifest(("tiny", models["tiny"], "sampling: { temperature: 0 }")))
    texts = {d.chat(max_tokens=20).json["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(texts) == 1
    hot = {d.chat(max_tokens=20, temperature=2).json["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(hot) > 1


def cases():
    return sorted(p for p in (ROOT / "tests/cases/http").iterdir() if p.is_dir())


@pytest.mark.parametrize("case", cases(), ids=lambda p: p.name)
def test_exchange(daemon, case):
    """request: lines sent with CR LF, with \\xNN, \\n and {repeat|TEXT|N} understood; response: status, headers as patterns, then a JSON
    object that the body must contain, or nothing."""
    text = (case / "request").read_text().removesuffix("\n")
    text = re.sub(r"\{repeat\|([^|]*)\|(\d+)\}", lambda m: m[1] * int(m[2]), text)
    head, _, body = text.partition("\n\n")
    body = body.encode().decode("unicode_escape").encode("latin-1")
    raw = "\r\n".join(head.split("\n")).replace("{length}", str(len(body))).encode().decode("unicode_escape").encode("latin-1") + b"\r\n\r\n" + body
    got = daemon.raw(raw)
    head, _, body = got.partition(b"\r\n\r\n")
    want, _, members = (case / "response").read_text().partition("\n\n")
    status, *headers = want.split("\n")
    lines = head.decode().split("\r\n")
    assert lines[0].split(" ", 1)[1].startswith(status), got[:500]
    for h in headers:
        if h.strip():
            assert any(re.fullmatch(h, x) for x in lines), (h, lines)
    if members.strip():
        contains(json.loads(body), json.loads(members))
    else:
        assert body == b""


def contains(got, want):
    if isinstance(want, dict):
        for k, v in want.items():
            contains(got[k], v)
    else:
        assert got == want


# --- with the demo model, where it is ---


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    if not SMOL.exists():
        pytest.skip("models/SmolLM2-135M-Instruct.Q4_1.gguf is not here (scripts/get-model.sh)")
    from conftest import Daemon
    d = Daemon(tmp_path_factory.mktemp("smol"), manifest(("smol", SMOL, "max_sessions: 2\nmax_concurrent: 2")))
    yield d
    d.stop()


def test_smollm2_answers_a_question(smol):
    r = client(smol).chat.completions.create(model="smol", messages=[{"role": "user", "content": "Who was the first person on the moon?"}], temperature=0, max_tokens=40)
    assert "Armstrong" in r.choices[0].message.content


def test_smollm2_streams_what_it_answers_whole(smol):
    c = client(smol)
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name three colours."}]
    whole = c.chat.completions.create(model="smol", messages=messages, temperature=0, max_tokens=40).choices[0].message.content
    stream = c.chat.completions.create(model="smol", messages=messages, temperature=0, max_tokens=40, stream=True)
    assert "".join(x.choices[0].delta.content or "" for x in stream) == whole


def test_smollm2_completes_text(smol):
    r = client(smol).completions.create(model="smol", prompt="The capital of Italy is", temperature=0, max_tokens=3)
    assert "Rome" in r.choices[0].text
