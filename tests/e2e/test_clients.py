"""LangChain's ChatOpenAI and LiteLLM as their users call them, `make check-clients`: they need an environment of their own (clients.txt), for
LiteLLM wants another version of `openai` than the newest. Then the bodies and habits of clients that are no Python: what the AI SDK sends for
opencode, read as its parser reads, and Open WebUI's polling, titles in parallel and streams that it drops."""
import concurrent.futures
import json
import os
import subprocess

import pytest

from conftest import BUILD, ROOT, Stream, manifest, wait_for
from dialects import DIALECTS, TOOLS

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices
HELLO = [{"role": "user", "content": "Hello"}]


# --- LangChain ---


@pytest.fixture
def chain(daemon):
    langchain = pytest.importorskip("langchain_openai", reason="`make check-clients` has it")

    def make(**fields):
        return langchain.ChatOpenAI(base_url=f"http://127.0.0.1:{daemon.port}/v1", api_key="none", max_retries=0, **{"model": "tiny", "temperature": 0, "max_tokens": 12, **fields})

    return make


def test_langchain_gets_whole_answers_and_streams_that_say_the_same(chain, daemon):
    whole = chain().invoke("Hello")
    want = daemon.chat(max_completion_tokens=12, temperature=0).json
    assert whole.content == want["choices"][0]["message"]["content"]
    assert whole.usage_metadata["total_tokens"] == want["usage"]["total_tokens"]
    assert whole.response_metadata["finish_reason"] == want["choices"][0]["finish_reason"]
    assert "".join(c.content for c in chain().stream("Hello")) == whole.content


def test_langchain_streams_usage_when_asked(chain):
    chunks = list(chain(stream_usage=True).stream("Hello"))
    usage = [c.usage_metadata for c in chunks if c.usage_metadata]
    assert len(usage) == 1 and usage[0]["output_tokens"] > 0
    assert not [c for c in chain(stream_usage=False).stream("Hello") if c.usage_metadata]


def test_langchain_runs_a_batch_and_a_conversation_with_a_system_message(chain):
    assert len({m.content for m in chain().batch(["Hello", "Hello", "Hello"])}) == 1
    r = chain(stop=["\n\n\n\n"], seed=7, top_p=0.9, frequency_penalty=0.1).invoke([("system", "Be brief."), ("human", "Hello"), ("ai", "Hi"), ("human", "Bye")])
    assert isinstance(r.content, str)


def test_langchain_sees_typed_errors(chain):
    import openai

    with pytest.raises(openai.NotFoundError):
        chain(model="absent").invoke("Hello")
    with pytest.raises(openai.BadRequestError) as e:
        chain(max_tokens=100000).invoke("Hello " * 400)
    assert e.value.code == "context_length_exceeded"


def test_langchain_speaks_responses_too(chain, daemon):
    how = {"temperature": 1.2, "max_tokens": 20, "seed": 5, "ignore_eos": True}
    want = daemon.chat(**how).json
    r = chain(use_responses_api=True, temperature=1.2, max_tokens=20, extra_body={"seed": 5, "ignore_eos": True})
    whole = r.invoke("Hello")
    assert len(whole.text) > 4 and whole.text == want["choices"][0]["message"]["content"] and whole.usage_metadata["total_tokens"] == want["usage"]["total_tokens"]
    assert whole.response_metadata["status"] == "incomplete" and whole.response_metadata["model_name"] == "tiny" and whole.response_metadata["id"].startswith("resp_")
    chunks = list(r.stream("Hello"))
    assert "".join(c.text for c in chunks) == whole.text and [c.usage_metadata["total_tokens"] for c in chunks if c.usage_metadata] == [want["usage"]["total_tokens"]]
    again = r.invoke([("system", "Be brief."), ("human", "Hello"), whole, ("human", "More")])
    assert again.usage_metadata["input_tokens"] > whole.usage_metadata["total_tokens"], "its answer is a part of the next input"
    assert chain(use_responses_api=True, output_version="v1", temperature=1.2, max_tokens=20, extra_body={"seed": 5, "ignore_eos": True}).invoke("Hello").text == whole.text


# --- LiteLLM ---


@pytest.fixture
def lite(daemon):
    litellm = pytest.importorskip("litellm", reason="`make check-clients` has it")
    litellm.telemetry = False

    def ask(**fields):
        how = {"model": "openai/tiny", "messages": HELLO, "api_base": f"http://127.0.0.1:{daemon.port}/v1", "api_key": "none", "num_retries": 0, "temperature": 0, "max_tokens": 12}
        return litellm.completion(**{**how, **fields})

    ask.module = litellm
    return ask


def test_litellm_gets_whole_answers_and_streams_that_say_the_same(lite, daemon):
    want = daemon.chat(max_tokens=12, temperature=0).json
    r = lite()
    assert r.choices[0].message.content == want["choices"][0]["message"]["content"]
    assert r.usage.total_tokens == want["usage"]["total_tokens"]
    chunks = list(lite(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == r.choices[0].message.content
    assert [c.usage.total_tokens for c in chunks if getattr(c, "usage", None)][-1] == r.usage.total_tokens


def test_litellm_speaks_responses_too(lite, daemon):
    """Of a model that it does not know it asks for the whole answer and makes the stream itself."""
    fields = dict(model="openai/tiny", input="Hello", api_base=f"http://127.0.0.1:{daemon.port}/v1", api_key="none", temperature=1.2, max_output_tokens=20, extra_body={"seed": 5, "ignore_eos": True})
    want = daemon.chat(temperature=1.2, max_tokens=20, seed=5, ignore_eos=True).json
    r = lite.module.responses(**fields)
    assert len(r.output[0].content[0].text) > 4 and r.output[0].content[0].text == want["choices"][0]["message"]["content"] and r.usage.total_tokens == want["usage"]["total_tokens"]
    events = list(lite.module.responses(stream=True, **fields))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == r.output[0].content[0].text


def test_litellm_sees_typed_errors(lite):
    with pytest.raises(lite.module.exceptions.ContextWindowExceededError):
        lite(messages=[{"role": "user", "content": "Hello " * 400}])
    with pytest.raises(lite.module.exceptions.NotFoundError):
        lite(model="openai/absent")


# --- opencode, by the AI SDK's openai-compatible provider ---


def test_what_the_ai_sdk_sends_is_answered_as_its_parser_reads(daemon):
    body = {"model": "tiny", "max_tokens": 24, "temperature": 0, "top_p": 1, "stream": True, "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": "You are opencode."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}]}
    s = Stream(daemon, "/v1/chat/completions", body)
    assert s.status == 200 and s.headers["content-type"].startswith("text/event-stream")
    text, finish, usage, role, model = "", None, None, None, set()
    for e in s.events():
        if not isinstance(e, dict):
            continue
        # its schema: id, created and model may be missing or null; choices is a list; delta, usage and finish_reason may be null
        assert isinstance(e["choices"], list)
        model.add(e["model"])
        usage = e.get("usage") or usage
        for c in e["choices"]:
            role = c["delta"].get("role", role)
            text += c["delta"].get("content") or ""
            assert finish is None or c["finish_reason"] is None, "one end"
            finish = c["finish_reason"] or finish
    assert role == "assistant" and finish in ("stop", "length") and model == {"tiny"}
    assert usage["prompt_tokens"] > 0 and usage["prompt_tokens_details"]["cached_tokens"] >= 0
    whole = daemon.post("/v1/chat/completions", {k: v for k, v in body.items() if not k.startswith("stream")})
    assert whole.json["choices"][0]["message"]["content"] == text


# --- what needs tools ---


def recorded(name):
    return json.loads((ROOT / f"tests/cases/clients/{name}.json").read_text())


PERSON = {"name": "Ann", "age": 31, "role": "user", "addresses": [{"street": "High Street", "city": "Bath"}]}


def caller(start, tmp_path, *calls, says=""):
    """A model of the Hermes form that makes these calls and then says so."""
    path, template = tmp_path / "caller.gguf", tmp_path / "caller.jinja"
    template.write_text(DIALECTS[0].template())
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", says + DIALECTS[0].say(*calls), "--weights", "1MiB", "--template", str(template), "--ctx", "16384"], check=True, cwd=ROOT)
    return start(manifest(("tiny", path, "ctx_cap: 16384")))


@pytest.mark.parametrize("name, call", [("instructor_tools", ("Person", PERSON)), ("opencode_first", ("read", {"filePath": "main.c"})), ("opencode_after_a_tool", ("bash", {"command": "make", "description": "Builds it"}))])
def test_a_recorded_body_is_answered_by_a_call(start, tmp_path, name, call):
    body = {**recorded(name), "max_tokens": 400}
    assert call[0] in {t["function"]["name"] for t in body["tools"]}
    d = caller(start, tmp_path, call)
    if body.get("stream"):
        chunks = Stream(d, "/v1/chat/completions", body).chunks()
        deltas = [t for c in chunks for x in c["choices"] for t in x["delta"].get("tool_calls", [])]
        got = deltas[0]["function"]["name"], json.loads("".join(t["function"]["arguments"] for t in deltas))
        finish = [x["finish_reason"] for c in chunks for x in c["choices"]][-1]
    else:
        r = d.post("/v1/chat/completions", body)
        assert r.status == 200, r.body
        (c,) = r.json["choices"]
        got, finish = (c["message"]["tool_calls"][0]["function"]["name"], json.loads(c["message"]["tool_calls"][0]["function"]["arguments"])), c["finish_reason"]
    assert got == call and finish == "tool_calls"


def test_instructor_gets_its_object_from_a_call(start, tmp_path):
    instructor = pytest.importorskip("instructor", reason="`make check-clients` has it")
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str
        age: int = Field(ge=0, le=150)

    d = caller(start, tmp_path, ("Person", {"name": "Ann", "age": 31}))
    client = OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0)
    person = instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Ann is 31."}], response_model=Person, max_retries=0)
    assert (person.name, person.age) == ("Ann", 31)


def test_langchain_and_litellm_read_calls(start, tmp_path):
    langchain = pytest.importorskip("langchain_openai", reason="`make check-clients` has it")
    litellm = pytest.importorskip("litellm", reason="`make check-clients` has it")
    d = caller(start, tmp_path, *[("get_weather", {"city": "Paris"}), ("ping", {})])
    base = f"http://127.0.0.1:{d.port}/v1"
    model = langchain.ChatOpenAI(base_url=base, api_key="none", max_retries=0, model="tiny").bind_tools(TOOLS)
    want = [("get_weather", {"city": "Paris"}), ("ping", {})]
    assert [(c["name"], c["args"]) for c in model.invoke("Hello").tool_calls] == want
    gathered = None
    for chunk in model.stream("Hello"):
        gathered = chunk if gathered is None else gathered + chunk
    assert [(c["name"], c["args"]) for c in gathered.tool_calls] == want
    how = {"model": "openai/tiny", "messages": HELLO, "api_base": base, "api_key": "none", "num_retries": 0, "tools": TOOLS}
    chunks = list(litellm.completion(stream=True, **how))
    built = litellm.stream_chunk_builder(chunks, messages=HELLO).choices[0].message
    for message in (litellm.completion(**how).choices[0].message, built):
        assert [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls] == want


def test_instructor_gets_its_object_from_an_answer_in_markdown(start, tmp_path):
    """The mode of instructor that asks in words alone; the model is a script that says the object."""
    instructor = pytest.importorskip("instructor", reason="`make check-clients` has it")
    from typing import Literal, Optional
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class Address(BaseModel):
        street: str
        city: Optional[str] = None

    class Person(BaseModel):
        name: str
        age: int = Field(ge=0, le=150)
        role: Literal["admin", "user"] = "user"
        addresses: list[Address] = []

    says = 'Here it is:\n```json\n{"name": "Ann", "age": 31, "addresses": [{"street": "High Street", "city": "Bath"}]}\n```'
    path = tmp_path / "says.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", says, "--weights", "1MiB"], check=True, cwd=ROOT)
    d = start(manifest(("tiny", path)))
    client = OpenAI(base_url=f"http://127.0.0.1:{d.port}/v1", api_key="none", max_retries=0)
    person = instructor.from_openai(client, mode=instructor.Mode.MD_JSON).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Ann is 31 and lives in Bath."}], response_model=Person, max_retries=0, max_tokens=400)
    assert person.model_dump() == Person(name="Ann", age=31, addresses=[Address(street="High Street", city="Bath")]).model_dump()


def test_what_the_ai_sdk_sends_to_responses_is_answered_as_its_parser_reads(daemon):
    """Its provider `openai`, which speaks Responses by default; store is false, or it would send ids in the place of what was said."""
    body = {"model": "tiny", "store": False, "max_output_tokens": 24, "temperature": 1.2, "seed": 5, "ignore_eos": True, "stream": True, "include": ["reasoning.encrypted_content"],
            "input": [{"role": "developer", "content": "You are opencode."}, {"role": "user", "content": [{"type": "input_text", "text": "Hello"}, {"type": "input_text", "text": "there"}]},
                      {"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}], "id": "msg_1"}, {"role": "user", "content": [{"type": "input_text", "text": "More"}]}]}
    s = Stream(daemon, "/v1/responses", body)
    assert s.status == 200 and s.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in s.response.read().decode().splitlines() if line.startswith("data: ")]
    text, open_items, usage = "", set(), None
    for e in events:
        if e["type"] == "response.created":
            assert isinstance(e["response"]["id"], str) and isinstance(e["response"]["created_at"], int) and e["response"]["model"] == "tiny"
        elif e["type"] == "response.output_item.added":
            assert e["item"]["type"] == "message" and e["output_index"] == 0
            open_items.add(e["item"]["id"])
        elif e["type"] == "response.output_text.delta":
            assert e["item_id"] in open_items, "a delta belongs to an item that was announced"
            text += e["delta"]
        elif e["type"] == "response.output_item.done":
            open_items.remove(e["item"]["id"])
        elif e["type"] in ("response.completed", "response.incomplete"):
            usage, why = e["response"]["usage"], (e["response"]["incomplete_details"] or {}).get("reason")
    assert not open_items and why == "max_output_tokens"
    assert usage["input_tokens_details"]["cached_tokens"] >= 0 and usage["output_tokens"] == 24 and usage["output_tokens_details"]["reasoning_tokens"] == 0
    whole = daemon.post("/v1/responses", {**body, "stream": False}).json
    assert whole["output"][0]["content"][0]["text"] == text and len(text) > 1 and whole["output"][0]["content"][0]["annotations"] == []


# --- Open WebUI ---


def test_open_webuis_habits(models, start):
    d = start(manifest(("slow", models["slow"], "max_concurrent: 2\nmax_sessions: 2")))
    chat = {"model": "slow", "messages": HELLO, "stream": True, "max_tokens": 2000}
    title = {"model": "slow", "messages": [{"role": "user", "content": "A title, please"}], "stream": False, "max_completion_tokens": 8}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        dropped = [Stream(d, "/v1/chat/completions", chat) for _ in range(3)]
        titles = [pool.submit(d.post, "/v1/chat/completions", title) for _ in range(2)]
        lists = [pool.submit(d.get, "/v1/models") for _ in range(20)]
        assert all(f.result().json["data"][0]["id"] == "slow" for f in lists), "the list answers while all is busy"
        for s in dropped:
            s.close()  # the user pressed stop
        assert all(f.result().json["choices"][0]["finish_reason"] for f in titles)
    wait_for(lambda: d.idle("slow"), 20)
    assert d.counters("slow")["cancelled"] == 3
    assert json.loads(d.get("/v1/models/slow").body)["id"] == "slow"


# --- embeddings ---


def vectors(daemon, input):
    return [e["embedding"] for e in daemon.post("/v1/embeddings", {"model": "tiny", "input": input}).json["data"]]


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-6 for x, y in zip(a, b))


def test_langchain_embeds_texts_and_the_ids_of_a_tokenizer_of_its_own(daemon, monkeypatch):
    langchain = pytest.importorskip("langchain_openai", reason="`make check-clients` has it")
    tiktoken = pytest.importorskip("tiktoken")
    how = {"model": "tiny", "base_url": f"http://127.0.0.1:{daemon.port}/v1", "api_key": "none", "max_retries": 0}
    texts = ["Hello world", "and you"]
    plain = langchain.OpenAIEmbeddings(check_embedding_ctx_length=False, **how)
    want = vectors(daemon, texts)
    assert all(map(close, plain.embed_documents(texts) + [plain.embed_query("Hello world")], want + want[:1]))
    # By default it sends ids of OpenAI's tokenizer, which it would download: here one of bytes stands for it. They are ids of our model all the same.
    of_bytes = tiktoken.Encoding("bytes", pat_str=r"(?s:.)", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={})
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: of_bytes)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: of_bytes)
    got = langchain.OpenAIEmbeddings(**how).embed_documents(texts)
    assert all(map(close, got, vectors(daemon, [list(t.encode()) for t in texts])))


def test_litellm_embeds(lite, daemon):
    how = {"model": "openai/tiny", "input": ["Hello", "world"], "api_base": f"http://127.0.0.1:{daemon.port}/v1", "api_key": "none", "num_retries": 0}
    r = lite.module.embedding(**how)
    assert [e["index"] for e in r.data] == [0, 1] and r.usage.prompt_tokens == r.usage.total_tokens > 0
    assert all(map(close, [e["embedding"] for e in r.data], vectors(daemon, ["Hello", "world"])))
