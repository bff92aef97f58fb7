"""/v1/responses through the official client and by hand. Every event is held against the schema of /openapi.json and against the client's own
types, read strictly; every text against that of a chat with the same messages."""
import asyncio
import http.client
import json

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

import schema
from conftest import SLOW, Stream, description, manifest, wait_for

EVENTS = pydantic.TypeAdapter(ResponseStreamEvent)
BEFORE = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
BEHIND = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


def client(d, kind=openai.OpenAI):
    return kind(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0, timeout=60 * SLOW)


def ask(d, **fields):
    """A whole answer, checked."""
    r = d.post("/v1/responses", {"model": "tiny", "input": "Hello", **fields})
    assert r.status == 200, r.body
    schema.check(r.json, "Response", description())
    Response.model_validate(r.json, strict=False)
    return r.json


def text_of(response):
    (item,) = response["output"]
    (part,) = item["content"]
    return part["text"]


class Events(Stream):
    """One streamed answer, read event by event; each is checked."""

    def __init__(self, daemon, **fields):
        super().__init__(daemon, "/v1/responses", {"model": "tiny", "input": "Hello", "stream": True, **fields})

    def events(self):
        n = 0
        while line := self.response.readline().decode():
            if line.startswith(":"):
                assert self.response.readline() == b"\n"
                continue
            assert line.startswith("event: "), line
            data = self.response.readline().decode()
            assert data.startswith("data: ") and self.response.readline() == b"\n"
            e = json.loads(data[6:])
            assert e["type"] == line[7:-1] and e["sequence_number"] == n
            n += 1
            schema.check(e, "ResponseStreamEvent", description())
            EVENTS.validate_python(e)
            yield e

    def whole(self):
        """(text, the last event's response), after the sequence was checked."""
        assert self.status == 200 and self.headers["content-type"].startswith("text/event-stream")
        events = list(self.events())
        types = [e["type"] for e in events]
        deltas = [e for e in events if e["type"] == "response.output_text.delta"]
        last = events[-1]["response"]
        assert types == BEFORE + ["response.output_text.delta"] * len(deltas) + BEHIND + ["response." + last["status"]]
        text = "".join(e["delta"] for e in deltas)
        done = {e["type"]: e for e in events}
        assert done["response.output_text.done"]["text"] == done["response.content_part.done"]["part"]["text"] == text_of(last) == text
        assert done["response.output_item.done"]["item"] == last["output"][0]
        logprobs = [p for e in deltas for p in e["logprobs"]]
        assert logprobs == last["output"][0]["content"][0]["logprobs"] == done["response.output_text.done"]["logprobs"]
        assert {e["response"]["id"] for e in events if "response" in e} == {last["id"]}
        assert {e["item_id"] for e in events if "item_id" in e} == {last["output"][0]["id"]}
        assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
        return text, last


def test_the_openai_client_reads_a_whole_answer(daemon):
    r = client(daemon).responses.create(model="tiny", input="Hello", instructions="Be brief.", max_output_tokens=20, temperature=1.2, metadata={"a": "b"}, user="me", store=True,
                                         extra_body={"seed": 5, "ignore_eos": True})
    assert r.id.startswith("resp_") and r.output[0].id.startswith("msg_") and r.model == "tiny" and r.object == "response"
    assert r.instructions == "Be brief." and r.metadata == {"a": "b"} and r.max_output_tokens == 20 and r.temperature == 1.2 and r.user == "me"
    assert r.error is None and r.store is False, "nothing is stored, and the answer says so"
    want = daemon.post("/v1/chat/completions", {"model": "tiny", "max_tokens": 20, "temperature": 1.2, "seed": 5, "ignore_eos": True,
                                                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]}).json
    assert r.output_text == want["choices"][0]["message"]["content"] and len(r.output_text) > 2
    assert (r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens) == tuple(want["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens"))
    assert r.usage.input_tokens_details.cached_tokens >= 0 and r.usage.output_tokens_details.reasoning_tokens == 0


def test_status_says_whether_the_answer_was_cut(daemon):
    cut = ask(daemon, max_output_tokens=3, ignore_eos=True)
    assert cut["status"] == cut["output"][0]["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"} and cut["usage"]["output_tokens"] == 3
    whole = ask(daemon, logit_bias={"2": 100}, temperature=0)
    assert whole["status"] == whole["output"][0]["status"] == "completed" and whole["incomplete_details"] is None


@pytest.mark.parametrize("fields", [{"temperature": 0, "max_output_tokens": 20}, {"temperature": 1.2, "seed": 5, "max_output_tokens": 30, "ignore_eos": True},
                                    {"temperature": 1.5, "seed": 1, "max_output_tokens": 9, "top_logprobs": 3, "include": ["message.output_text.logprobs"]},
                                    {"temperature": 0, "logit_bias": {"2": 100}}])
def test_a_stream_says_what_the_whole_answer_says(daemon, fields):
    whole = ask(daemon, **fields)
    text, last = Events(daemon, **fields).whole()
    strip = lambda r: {k: v for k, v in r.items() if k not in ("id", "created_at", "timings", "output", "usage")}
    assert strip(last) == strip(whole) and text == text_of(whole)
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"] and set(last["timings"]) == set(whole["timings"])


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
CONVERSATIONS = [
    ([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Bye"}]}],
     [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}]),
    ([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]}, {"role": "user", "content": "d"}],
     [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": "c"},
      {"role": "user", "content": "d"}]),
]


@pytest.mark.parametrize("items, messages", CONVERSATIONS)
def test_items_say_to_the_model_what_messages_say(daemon, items, messages):
    fields = {"temperature": 1, "seed": 3, "ignore_eos": True}
    r = ask(daemon, input=items, max_output_tokens=16, **fields)
    want = daemon.post("/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 16, **fields}).json
    assert text_of(r) == want["choices"][0]["message"]["content"] and r["usage"]["input_tokens"] == want["usage"]["prompt_tokens"]


def test_an_answer_is_a_part_of_the_next_input(daemon):
    c = client(daemon)
    first = c.responses.create(model="tiny", input="Hello", max_output_tokens=8, temperature=0)
    second = c.responses.create(model="tiny", max_output_tokens=8, temperature=0,
                                input=[{"role": "user", "content": "Hello"}, *[i.model_dump() for i in first.output], {"role": "user", "content": "More"}])
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_the_stream_helpers_of_the_client_come_to_the_end(daemon):
    fields = {"model": "tiny", "input": "Hello", "max_output_tokens": 20, "temperature": 1.2, "extra_body": {"seed": 5, "ignore_eos": True}}
    want = client(daemon).responses.create(**fields).output_text
    assert len(want) > 4
    raw = list(client(daemon).responses.create(stream=True, **fields))
    assert "".join(e.delta for e in raw if e.type == "response.output_text.delta") == want and [e.sequence_number for e in raw] == list(range(len(raw)))
    with client(daemon).responses.stream(**fields) as s:
        events = list(s)
    assert [e.snapshot for e in events if e.type == "response.output_text.delta"][-1] == want and text_of(events[-1].response.model_dump()) == want

    async def go():
        async with client(daemon, openai.AsyncOpenAI) as c:
            stream = await c.responses.create(stream=True, **fields)
            text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
            async with c.responses.stream(**{**fields, "extra_body": {"logit_bias": {"2": 100}}, "temperature": 0}) as s:
                done = await s.get_final_response()
            return text, (await c.responses.create(**fields)).output_text, done.status

    assert asyncio.run(go()) == (want, want, "completed")


def test_log_probabilities_are_those_of_a_chat(daemon):
    fields = {"temperature": 1.5, "seed": 2, "ignore_eos": True, "top_logprobs": 4}
    (part,) = ask(daemon, include=["message.output_text.logprobs"], max_output_tokens=10, **fields)["output"][0]["content"]
    chat = daemon.chat(max_tokens=10, logprobs=True, **fields).json["choices"][0]["logprobs"]["content"]
    bare = lambda e: (e["token"], e["logprob"], e["bytes"] or [])
    assert len(part["logprobs"]) == 10 and [bare(e) for e in part["logprobs"]] == [bare(e) for e in chat]
    assert [[bare(t) for t in e["top_logprobs"]] for e in part["logprobs"]] == [[bare(t) for t in e["top_logprobs"]] for e in chat]


def test_what_does_not_fit_is_told_with_the_numbers_under_input(daemon):
    for fields in ({"input": "Hello " * 400}, {"max_output_tokens": 100000}):
        with pytest.raises(openai.BadRequestError) as e:
            client(daemon).responses.create(**{"model": "tiny", "input": "Hello", "stream": True, **fields})
        assert e.value.code == "context_length_exceeded" and e.value.param == "input" and e.value.body["budget"]["ctx_cap"] == 256
    with pytest.raises(openai.NotFoundError):
        client(daemon).responses.create(model="absent", input="Hello")
    with pytest.raises(openai.BadRequestError) as e:
        client(daemon).responses.create(model="ids", input="Hello")
    assert (e.value.code, e.value.param) == ("unsupported_parameter", "input")


def test_what_needs_a_store_is_refused_by_name(daemon):
    c = client(daemon)
    for fields, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
                          ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0.type")):
        with pytest.raises(openai.BadRequestError) as e:
            c.responses.create(**{"model": "tiny", "input": "Hello", **fields})
        assert (e.value.code, e.value.param) == ("unsupported_parameter", param)
    for call in (c.responses.retrieve, c.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call("resp_1")


def test_a_client_that_leaves_cancels_in_every_phase(models, start):
    d = start(manifest(("tiny", models["slow"], "max_concurrent: 1\nmax_sessions: 1")))
    for read in (0, 2, 8):
        s = Events(d, max_output_tokens=3000, ignore_eos=True)
        waiting = Events(d, max_output_tokens=3000) if read == 0 else None
        events = s.events()
        for _ in range(read):
            next(events)
        if waiting:
            waiting.close()
        s.close()
        wait_for(lambda: d.idle("tiny"), 20)
    conn = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
    conn.request("POST", "/v1/responses", json.dumps({"model": "tiny", "input": "Hello", "max_output_tokens": 3000, "ignore_eos": True}))
    wait_for(lambda: not d.idle("tiny"), 20)
    conn.close()
    wait_for(lambda: d.idle("tiny"), 20)
    assert d.counters("tiny")["cancelled"] == 5


def test_an_error_in_a_stream_is_told_as_an_event_that_the_client_raises(models, start):
    d = start(manifest(("tiny", models["slow"], "max_concurrent: 1\nmax_sessions: 1"), server="drain: 1s"))
    s = Events(d, max_output_tokens=3000, ignore_eos=True)
    events = s.events()
    for _ in range(6):
        next(events)
    raw = client(d).responses.create(model="tiny", input="Hello", max_output_tokens=3000, stream=True)
    d.signal(15)
    rest = list(events)
    assert [e["type"] for e in rest[-2:]] == ["response.failed", "error"]
    assert rest[-2]["response"]["status"] == "failed" and rest[-2]["response"]["error"]["code"] == "server_error"
    assert rest[-1]["code"] == rest[-1]["error"]["code"] == "draining" and rest[-1]["message"] and rest[-1]["error"]["request_id"]
    with pytest.raises(openai.APIError) as e:
        list(raw)
    assert e.value.code == "draining"
