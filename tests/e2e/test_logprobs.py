"""Log-probabilities and timings through the official client: streamed and whole they are the same, they add up to the text, and what a stop
text cut away is not among them."""
import json
import math
import subprocess

import pytest
from openai import BadRequestError, OpenAI

from conftest import BUILD, ROOT, SLOW, Daemon, Stream, manifest

SAYS = "naïve → 😀 STO STOP and more"


def client(d):
    return OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0, timeout=60 * SLOW)


@pytest.fixture(scope="module")
def says(tmp_path_factory):
    """A model that says SAYS, a byte a token."""
    folder = tmp_path_factory.mktemp("says")
    subprocess.run([str(BUILD / "tests/gen/script"), str(folder / "m.gguf"), "--text", SAYS], check=True, cwd=ROOT)
    d = Daemon(folder, manifest(("tiny", folder / "m.gguf")))
    yield d
    d.stop()


def chat(d, **fields):
    """(text, its tokens' entries, finish_reason) of a whole answer, after the streamed one said the same."""
    ask = dict(model="tiny", messages=[{"role": "user", "content": "Hello"}], logprobs=True, **fields)
    whole = client(d).chat.completions.create(**ask).choices[0]
    assert whole.logprobs.refusal is None
    text, entries, finish = "", [], None
    for c in client(d).chat.completions.create(stream=True, **ask):
        (choice,) = c.choices
        text += choice.delta.content or ""
        if choice.logprobs:
            assert choice.delta.content is not None and choice.finish_reason is None
            entries += choice.logprobs.content
        finish = choice.finish_reason or finish
    assert (text, finish) == (whole.message.content, whole.finish_reason)
    assert [e.model_dump() for e in entries] == [e.model_dump() for e in whole.logprobs.content]
    return text, whole.logprobs.content, finish


def text_of(entries):
    return b"".join(bytes(e.bytes or []) for e in entries).decode("utf-8", "replace")


def test_chat_tokens_add_up_to_the_text_and_have_their_likeliest(daemon):
    text, entries, _ = chat(daemon, top_logprobs=5, max_tokens=40, temperature=1.5, seed=3, extra_body={"ignore_eos": True})
    assert len(entries) == 40 and text_of(entries) == text
    for e in entries:
        assert e.logprob <= 0 and len(e.top_logprobs) == 5
        top = [t.logprob for t in e.top_logprobs]
        assert top == sorted(top, reverse=True) and sum(map(math.exp, top)) <= 1.000001
        assert e.logprob in top or e.logprob <= top[-1]
    assert any(e.token != e.top_logprobs[0].token for e in entries), "drawn, not the likeliest each time"


def test_chat_greedy_tokens_are_the_likeliest_at_any_number_of_them(daemon):
    seen = []
    for k in (0, 1, 20):
        _, entries, _ = chat(daemon, top_logprobs=k, max_tokens=24, temperature=0)
        assert all(len(e.top_logprobs) == k and (not k or (e.top_logprobs[0].token, e.top_logprobs[0].logprob) == (e.token, e.logprob)) for e in entries)
        seen.append([(e.token, e.logprob, e.bytes) for e in entries])
    assert seen[0] == seen[1] == seen[2]


def test_they_are_the_model_s_whatever_shapes_the_draw(daemon):
    plain = chat(daemon, top_logprobs=8, max_tokens=1, temperature=0)[1][0]
    shaped = chat(daemon, top_logprobs=8, max_tokens=1, temperature=2, top_p=0.5, presence_penalty=1, logit_bias={"70": 100}, seed=1)[1][0]
    assert [t.model_dump() for t in shaped.top_logprobs] == [t.model_dump() for t in plain.top_logprobs]
    assert shaped.token != plain.token and shaped.logprob < plain.logprob


def test_each_choice_has_its_own_and_who_does_not_ask_gets_null(daemon):
    r = client(daemon).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}], logprobs=True, n=2, max_tokens=12, temperature=1.5, seed=1, extra_body={"ignore_eos": True})
    for c in r.choices:
        assert len(c.logprobs.content) == 12 and text_of(c.logprobs.content) == c.message.content
    r = daemon.chat(max_tokens=2, logprobs=False).json
    assert r["choices"][0]["logprobs"] is None
    assert all(c["logprobs"] is None for x in daemon.stream(max_tokens=2).chunks() for c in x["choices"])


@pytest.mark.parametrize("stop,shown", [(None, SAYS), ("STOP", "naïve → 😀 STO "), ("→!", SAYS), ("😀", "naïve → "), ("n", "")])
def test_text_that_is_held_back_keeps_its_tokens(says, stop, shown):
    fields = {"stop": stop} if stop else {}
    text, entries, finish = chat(says, top_logprobs=2, max_tokens=100, temperature=0, **fields)
    assert (text, finish) == (shown, "stop")
    assert [b for e in entries for b in e.bytes] == list(shown.encode()), "each byte a token, none that was cut away"
    assert [e.token for e in entries] == [chr(b) if b < 128 else f"\\x{b:02x}" for b in shown.encode()]
    assert all(e.logprob == 0 for e in entries)


@pytest.mark.parametrize("n,stop,text", [(3, None, "na\ufffd"), (13, None, "naïve → \ufffd"), (19, "STOP", "naïve → 😀 STO"), (2, "nab", "na")])
def test_an_answer_that_max_tokens_ends_within_a_character_or_a_stop_text_tells_all(says, n, stop, text):
    got, entries, finish = chat(says, max_tokens=n, temperature=0, **({"stop": stop} if stop else {}))
    assert (got, finish) == (text, "length")
    assert bytes(b for e in entries for b in e.bytes) == SAYS.encode()[:n]


def complete(d, prompt="ab", **fields):
    ask = dict(model="tiny", prompt=prompt, **fields)
    whole = client(d).completions.create(**ask).choices[0]
    text, lists = "", {k: [] for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for c in client(d).completions.create(stream=True, **ask):
        (choice,) = c.choices
        text += choice.text
        for k in lists if choice.logprobs else ():
            lists[k] += getattr(choice.logprobs, k)
    assert text == whole.text and lists == {k: getattr(whole.logprobs, k) for k in lists}
    return whole


@pytest.mark.parametrize("k", [0, 1, 5, 20])
def test_completions_have_the_four_lists(daemon, k):
    c = complete(daemon, logprobs=k, max_tokens=40, temperature=1.5, seed=4, extra_body={"ignore_eos": True})
    p = c.logprobs
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset) == 40
    for token, logprob, top, offset in zip(p.tokens, p.token_logprobs, p.top_logprobs, p.text_offset):
        assert logprob <= 0 and 1 <= len(top) <= k + 1
        assert top[token] == logprob or not token, "tokens that the model never learnt read the same: nothing"
        if not token.startswith("bytes:") and not token.startswith("<|"):
            assert c.text[offset:].startswith(token) or c.text[offset] == "\ufffd"
    assert p.text_offset == sorted(p.text_offset)


def test_completions_count_characters_and_cut_where_the_text_is_cut(says):
    c = complete(says, "Go.", logprobs=1, max_tokens=100, temperature=0, stop=["STOP"])
    shown = "naïve → 😀 STO "
    assert c.text == shown
    assert c.logprobs.text_offset == [i for i, x in enumerate(shown) for _ in x.encode()]
    assert c.logprobs.tokens == [chr(b) if b < 128 else f"bytes:\\x{b:02x}" for b in shown.encode()]


def test_a_place_is_the_same_whether_its_past_was_prompt_or_answer(daemon):
    ids, force = [70, 71, 72, 80], {"logit_bias": {"70": 100}, "temperature": 0, "logprobs": 3}
    a = complete(daemon, ids, max_tokens=4, **force).logprobs
    b = complete(daemon, ids + [70], max_tokens=3, **force).logprobs
    assert a.token_logprobs[1:] == b.token_logprobs and a.top_logprobs[1:] == b.top_logprobs


def test_what_cannot_be_asked_is_refused_by_its_name(daemon):
    with pytest.raises(BadRequestError) as caught:
        client(daemon).completions.create(model="tiny", prompt="a", echo=True, logprobs=1)
    assert caught.value.param == "logprobs" and caught.value.code == "unsupported_parameter" and "echo" in caught.value.message
    with pytest.raises(BadRequestError) as caught:
        client(daemon).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}], top_logprobs=3)
    assert caught.value.param == "top_logprobs"


TIMINGS = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second", "draft_n", "draft_n_accepted", "queue_ms", "cache"}


def check_timings(t, prompt, predicted):
    assert set(t) == TIMINGS and (t["cache_n"] + t["prompt_n"], t["predicted_n"]) == (prompt, predicted)
    assert t["prompt_ms"] > 0 and t["queue_ms"] >= 0 and t["predicted_ms"] > 0
    assert math.isclose(t["prompt_per_second"] * t["prompt_ms"], 1e3 * t["prompt_n"], rel_tol=0.01)
    assert math.isclose(t["predicted_per_token_ms"] * predicted, t["predicted_ms"], rel_tol=0.01, abs_tol=0.05)


def test_timings_are_in_the_last_that_is_said(daemon):
    whole = daemon.chat(max_tokens=30, ignore_eos=True).json
    prompt = whole["usage"]["prompt_tokens"]
    check_timings(whole["timings"], prompt, 30)
    for usage in (False, True):
        more = {"stream_options": {"include_usage": True}} if usage else {}
        chunks = daemon.stream(max_tokens=30, ignore_eos=True, **more).chunks()
        assert all("timings" not in c for c in chunks[:-1])
        check_timings(chunks[-1]["timings"], prompt, 30)
        assert ("usage" in chunks[-1]) == usage
    two = daemon.chat(max_tokens=30, ignore_eos=True, n=2).json
    check_timings(two["timings"], 2 * prompt, 60)
    assert two["usage"]["prompt_tokens"] == prompt
    chunks = Stream(daemon, "/v1/completions", {"model": "tiny", "prompt": ["ab", "cd"], "max_tokens": 5, "ignore_eos": True, "stream": True}).chunks()
    assert ["timings" in c for c in chunks].count(True) == 1 and chunks[-1]["timings"]["predicted_n"] == 10
    echo = daemon.complete("ab", max_tokens=0, echo=True).json["timings"]
    assert (echo["prompt_n"], echo["predicted_n"], echo["prompt_per_second"]) == (0, 0, 0)
    json.dumps(whole, allow_nan=False)
