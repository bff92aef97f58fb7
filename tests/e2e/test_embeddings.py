"""POST /v1/embeddings: what the official client gets (LangChain and LiteLLM: test_clients.py), against what transformers makes of the same texts; each refusal by its place; a
queue, a client and a drain as every request has them."""
import base64
import http.client
import json
import math
import re
import shutil
import struct
import threading
import time

import openai
import pytest

from conftest import ROOT, SLOW, manifest, wait_for

GOLDEN = json.loads((ROOT / "tests/data/embeddings.json").read_text())["models"]


def embed(d, input, model="tiny", **fields):
    return d.post("/v1/embeddings", {"model": model, "input": input, **fields})


def vectors(r):
    """Of a whole answer, checked."""
    assert r.status == 200, r.body
    a = r.json
    assert set(a) == {"object", "data", "model", "usage"} and a["object"] == "list"
    assert set(a["usage"]) == {"prompt_tokens", "total_tokens"} and a["usage"]["prompt_tokens"] == a["usage"]["total_tokens"] > 0
    assert [e["index"] for e in a["data"]] == list(range(len(a["data"])))
    out = []
    for e in a["data"]:
        assert set(e) == {"object", "index", "embedding"} and e["object"] == "embedding"
        v = e["embedding"]
        if isinstance(v, str):
            raw = base64.b64decode(v, validate=True)
            v = list(struct.unpack(f"<{len(raw) // 4}f", raw))
        assert abs(math.fsum(x * x for x in v) - 1) < 1e-5
        out.append(v)
    return out


def off_by(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b))


@pytest.fixture
def client(daemon):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{daemon.port}/v1", api_key="none", max_retries=0)


# --- what comes out ---


@pytest.mark.parametrize("name", ["qwen3", "mixtral-experts"])
def test_vectors_are_those_of_transformers(start, name):
    d = start(manifest((name, ROOT / f"tests/data/goldens/models/{name}/hf")))
    wanted = GOLDEN[name]
    texts = [e for e in wanted if e["text"]]
    got = vectors(embed(d, [e["text"] for e in texts], model=name)) + vectors(embed(d, [e["ids"] for e in wanted], model=name))
    for v, e in zip(got, texts + wanted):
        assert off_by(v, e["last"]) < 2e-3  # 16-bit KV
        assert off_by(v, e["mean"]) > 2e-3 or len(e["ids"]) == 1


def pooled(folder, modules, pooling):
    """A golden directory with the files of sentence-transformers."""
    shutil.copytree(ROOT / "tests/data/goldens/models/qwen3/hf", folder)
    (folder / "modules.json").write_text(json.dumps([{"idx": i, "path": f"{i}_{m}" if i else "", "type": f"sentence_transformers.models.{m}"} for i, m in enumerate(modules)]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 48, f"pooling_mode_{pooling}": True}))
    return folder


def test_a_directory_of_sentence_transformers_is_pooled_as_it_says(start, tmp_path):
    whole = ["Transformer", "Pooling", "Normalize"]
    d = start(manifest(("mean", pooled(tmp_path / "mean", whole, "mean_tokens")), ("cls", pooled(tmp_path / "cls", whole, "cls_token")),
                       ("max", pooled(tmp_path / "max", whole, "max_tokens")), ("dense", pooled(tmp_path / "dense", [*whole, "Dense"], "mean_tokens"))))
    for e in GOLDEN["qwen3"]:
        for kind in ("mean", "cls"):
            assert off_by(vectors(embed(d, e["ids"], model=kind))[0], e[kind]) < 2e-3
    for name in ("max", "dense"):
        r = embed(d, "a", model=name)
        assert r.status == 400 and r.error["param"] == "model" and r.error["code"] == "unsupported_parameter" and "pooling 'none'" in r.error["message"]
        assert d.complete("a", model=name, max_tokens=2).status == 200


def test_the_official_client_gets_the_same_in_its_default_base64_and_in_floats(client, daemon):
    texts = ["Hello", "Hello world", "\u00c4pfel \U0001f600"]
    b64 = client.embeddings.create(model="tiny", input=texts)
    numbers = client.embeddings.create(model="tiny", input=texts, encoding_format="float")
    assert b64.model == numbers.model == "tiny" and b64.usage.prompt_tokens == numbers.usage.total_tokens > 0
    assert len(b64.data) == 3 and [e.index for e in b64.data] == [0, 1, 2]
    for x, y in zip(b64.data, numbers.data):
        as_float = [struct.unpack("<f", struct.pack("<f", n))[0] for n in y.embedding]
        assert [struct.unpack("<f", struct.pack("<f", n))[0] for n in x.embedding] == as_float, "nine digits give the float back"
    assert client.embeddings.create(model="default", input="Hello").model == "tiny"
    raw = embed(daemon, texts, encoding_format="base64")
    assert vectors(raw) == [list(e.embedding) for e in b64.data]


def test_an_input_has_the_same_vector_alone_in_a_list_and_as_ids(daemon):
    texts = ["Hello world", "and you", "He said that the world is on", "x"]
    alone = [vectors(embed(daemon, t))[0] for t in texts]
    assert vectors(embed(daemon, texts)) == alone
    assert len({tuple(v) for v in alone}) == 4
    ids = [daemon.post("/tokenize", {"model": "tiny", "prompt": t}).json["tokens"] for t in texts]
    together = embed(daemon, ids)
    assert vectors(together) == alone
    assert together.json["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert vectors(embed(daemon, ids[2])) == [alone[2]]
    assert vectors(embed(daemon, [ids[0], texts[1]])) == alone[:2]
    assert vectors(embed(daemon, [[5, 6, 7]], model="ids"))[0] == vectors(embed(daemon, [5, 6, 7], model="ids", dimensions=64, user="u", encoding_format=None))[0]


def test_two_thousand_and_forty_eight_inputs_and_not_one_more(daemon):
    r = embed(daemon, [[3 + i % 200] for i in range(2048)])
    assert len(vectors(r)) == 2048 and r.json["usage"]["prompt_tokens"] == 2048
    assert embed(daemon, [[3]] * 2049).error["param"] == "input"


# --- what is refused ---


def test_each_mistake_is_refused_by_its_place(daemon):
    for body, param, code in [
        ({"input": "a"}, "model", None),
        ({"model": "tiny"}, "input", None),
        ({"model": "tiny", "input": ""}, "input", "invalid_value"),
        ({"model": "tiny", "input": []}, "input", "invalid_value"),
        ({"model": "tiny", "input": ["a", "b", ""]}, "input.2", "invalid_value"),
        ({"model": "tiny", "input": [[1], []]}, "input.1", "invalid_value"),
        ({"model": "tiny", "input": [["a"]]}, "input.0.0", None),
        ({"model": "tiny", "input": 5}, "input", None),
        ({"model": "tiny", "input": [1, 512]}, "input.1", "invalid_value"),
        ({"model": "tiny", "input": [[1], [2, 512]]}, "input.1.1", "invalid_value"),
        ({"model": "tiny", "input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"model": "tiny", "input": "a", "dimensions": 32}, "dimensions", "unsupported_parameter"),
        ({"model": "tiny", "input": "a", "dimensions": 65}, "dimensions", "unsupported_parameter"),
        ({"model": "tiny", "input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"model": "tiny", "input": "a", "truncate": True}, "truncate", "unknown_parameter"),
        ({"model": "ids", "input": "a"}, "model", "unsupported_parameter"),
    ]:
        r = daemon.post("/v1/embeddings", body)
        assert (r.status, r.error["param"], r.error["code"]) == (400, param, code), (body, r.error)
    assert embed(daemon, "a", model="absent").status == 404
    assert embed(daemon, "a", model="broken").status == 503
    assert daemon.get("/v1/embeddings").status == 405


def test_an_input_may_fill_the_cap_and_one_over_it_names_itself_before_anything_is_computed(daemon):
    assert len(vectors(embed(daemon, [[7] * 256, [7]]))) == 2
    before = daemon.counters()["tokens_prefilled"]
    for input, param in [([7] * 257, "input"), ("q" * 300, "input"), ([[7] * 250, [8], [7] * 257], "input.2")]:
        r = embed(daemon, input)
        e = r.error
        assert r.status == 400 and e["type"] == "context_over_budget" and e["code"] == "context_length_exceeded" and e["param"] == param
        assert "maximum context length is 256 tokens" in e["message"] and "exceeds the available context size" in e["message"]
        b = e["budget"]
        assert b["model"] == "tiny" and b["prompt_tokens"] >= 257 and b["max_tokens"] == 0 and b["ctx_cap"] == 256
    assert daemon.counters()["tokens_prefilled"] == before


def test_the_official_client_sees_typed_errors(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.embeddings.create(model="tiny", input=["a", ""])
    assert e.value.param == "input.1"
    with pytest.raises(openai.BadRequestError) as e:
        client.embeddings.create(model="tiny", input="q" * 300)
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="absent", input="a")


# --- as every request ---


SLOT = "max_concurrent: 1\nmax_sessions: 1\n"


def send(d, body):
    """A request that nobody waits for: its connection."""
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60 * SLOW)
    c.request("POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json"})
    return c


def test_a_client_that_leaves_stops_the_work(models, start):
    d = start(manifest(("tiny", models["slow"], SLOT + "queue: { depth: 4 }")))
    idle = d.get("/slots").json["models"][0]["kv_bytes_used"]
    c = send(d, {"model": "tiny", "input": [[5] * 4000] * 100})
    w = None
    wait_for(lambda: d.counters()["tokens_prefilled"] > 0, 30)
    w = send(d, {"model": "tiny", "input": [5] * 4000})
    wait_for(lambda: d.counters()["queued"] == 1, 10)
    w.close()
    c.close()
    wait_for(d.idle, 5, "nothing runs when nobody waits")
    done = d.counters()["tokens_prefilled"]
    assert done < 100 * 4000
    assert d.get("/slots").json["models"][0]["kv_bytes_used"] == idle
    lines = wait_for(lambda: (got := re.findall(r"event=client_left .*path=\"/v1/embeddings\".*", d.log)) and len(got) == 2 and got, 5)
    assert all('model="tiny"' in line for line in lines), lines
    time.sleep(0.2)
    assert d.counters()["tokens_prefilled"] == done


def test_a_full_queue_is_an_honest_429_and_a_running_request_keeps_its_place(models, start):
    d = start(manifest(("tiny", models["slow"], SLOT + "queue: { depth: 1 }")))
    got = []
    threads = [threading.Thread(target=lambda: got.append(embed(d, [[5] * 300, [6] * 300, [7] * 300]))) for _ in range(2)]
    for i, t in enumerate(threads):
        t.start()
        wait_for(lambda: d.counters()["running"] == 1 and d.counters()["queued"] == i, 30)
    r = embed(d, "x")
    assert r.status == 429 and r.error["code"] == "queue_full" and r.error["type"] == "rate_limit_error" and 1 <= int(r.headers["retry-after"]) <= 120
    for t in threads:
        t.join()
    assert [len(vectors(r)) for r in got] == [3, 3]
    assert got[0].json["data"] == got[1].json["data"]


def test_slots_metrics_and_the_log_tell_of_it(models, start):
    d = start(manifest(("tiny", models["slow"], SLOT)))

    got = []
    t = threading.Thread(target=lambda: got.append(embed(d, [[5] * 700, [6] * 100])))
    t.start()
    slot = wait_for(lambda: next((s for s in d.get("/slots").json["models"][0]["slots"] if s["is_processing"] and s["computed_tokens"]), None), 30)
    assert slot["state"] == "prefill" and slot["prompt_tokens"] == 700 and slot["max_tokens"] == slot["generated_tokens"] == 0
    t.join()
    assert len(vectors(got[0])) == 2
    c = d.counters()
    assert c["tokens_prefilled"] == 800 and c["running"] == c["queued"] == 0
    text = d.get("/metrics").body.decode()
    values = {m[1]: float(m[2]) for m in re.finditer(r'^(pantheon_\w+)\{[^}]*model="tiny"[^}]*\} (\S+)$', text, re.M)}
    assert values["pantheon_prompt_tokens_total"] == 800 and values["pantheon_generated_tokens_total"] == 0, values
    line = wait_for(lambda: re.search(r'event=answered .*path="/v1/embeddings".*', d.log), 5)[0]
    assert 'model="tiny"' in line and "prompt_tokens=800" in line and "completion_tokens=0" in line, line


def test_a_stopping_server_finishes_all_inputs_of_a_running_request(models, start):
    import signal

    d = start(manifest(("tiny", models["slow"], SLOT)))
    got = []
    t = threading.Thread(target=lambda: got.append(embed(d, [[5] * 200, [6] * 200, [7] * 200])))
    t.start()
    wait_for(lambda: d.counters()["running"] == 1, 30)
    d.signal(signal.SIGTERM)
    t.join()
    assert len(vectors(got[0])) == 3
    assert d.wait() == 0
