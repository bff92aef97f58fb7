"""What is beside the answers: tokenizing, templates, slots, metrics, and the API's description of itself."""
import hashlib
import json
import math
import re
import shutil
import socket
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, manifest, wait_for

ODD = [
    "",
    "Hello",
    " Hello  World\n\n\tx ",
    "\u0000a\u0000",
    "\r\n\x7f\x01",
    "Gr\u00fc\u00dfe \u2603 \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301 \u00e9 \ufeff\u2028\u202e",
    "\ufffd \uffff \U0010ffff",
    "<|im_start|>user\nx<|im_end|>",
    "<|im_en d|><|<|im_end|>|>",
    '"\\ {{ x }} {% raw %} \\u0000',
    "a" * 5000,
]


def tokenize(d, text, **fields):
    r = d.post("/tokenize", {"model": "tiny", "content": text, **fields})
    assert r.status == 200, r.body
    return r.json


def detokenize(d, ids, **fields):
    r = d.post("/detokenize", {"model": "tiny", "tokens": ids, **fields})
    assert r.status == 200, r.body
    return r.json


# --- /tokenize, /detokenize --------------------------------------------------------------------

@pytest.mark.parametrize("text", ODD)
def test_what_is_tokenized_comes_back(daemon, text):
    for fields in ({}, {"parse_special": False}):
        a = tokenize(daemon, text, **fields)
        assert a["count"] == len(a["tokens"]) and a["max_model_len"] == 256
        assert detokenize(daemon, a["tokens"]) == {"content": text, "prompt": text}


def test_tokens_are_those_of_a_completion(daemon):
    for text in ("Hello there", "<|im_end|>", "\u2603"):
        a = daemon.post("/tokenize", {"model": "tiny", "prompt": text}).json
        assert a["count"] == daemon.complete(text, max_tokens=1).json["usage"]["prompt_tokens"]
        assert daemon.complete(a["tokens"], max_tokens=0, echo=True).json["choices"][0]["text"] == text


def test_tokens_of_a_conversation_are_those_of_its_chat(daemon):
    messages = [{"role": "system", "content": "a<|im_end|>"}, {"role": "user", "content": "Hello"}]
    chat = daemon.post("/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 1}).json
    a = daemon.post("/tokenize", {"model": "tiny", "messages": messages}).json
    assert a["count"] == chat["usage"]["prompt_tokens"]
    assert a["tokens"].count(2) == 2, "a control token is only what the template wrote"
    less = daemon.post("/tokenize", {"model": "tiny", "messages": messages, "add_generation_prompt": False}).json
    assert less["tokens"] == a["tokens"][: less["count"]] and less["count"] < a["count"]
    assert daemon.post("/detokenize", {"model": "tiny", "tokens": a["tokens"]}).json["content"].endswith("<|im_start|>assistant\n")


def test_control_words_are_tokens_or_text_as_asked(daemon):
    assert tokenize(daemon, "<|im_end|>")["tokens"] == [2]
    assert 2 not in tokenize(daemon, "<|im_end|>", parse_special=False)["tokens"]


def test_pieces_are_texts_or_bytes(daemon):
    text = "Hi \u2603<|im_end|>"
    plain, a = tokenize(daemon, text)["tokens"], tokenize(daemon, text, with_pieces=True)
    assert [t["id"] for t in a["tokens"]] == plain and a["count"] == len(plain)
    assert any(isinstance(t["piece"], list) for t in a["tokens"]) and any(isinstance(t["piece"], str) for t in a["tokens"])
    assert b"".join(bytes(t["piece"]) if isinstance(t["piece"], list) else t["piece"].encode() for t in a["tokens"]) == text.encode()
    assert a["tokens"][-1] == {"id": 2, "piece": "<|im_end|>"}


def test_ids_that_cut_a_character_become_replacement_characters(daemon):
    ids = tokenize(daemon, "\u2603")["tokens"]
    assert len(ids) == 3
    assert detokenize(daemon, ids[:2])["content"] == "\ufffd\ufffd"
    assert detokenize(daemon, ids[1:] + tokenize(daemon, "a")["tokens"])["content"] == "\ufffd\ufffda"
    assert detokenize(daemon, [])["content"] == ""


def test_the_bodies_of_two_servers_callers_are_taken(daemon):
    llama = daemon.post("/tokenize", {"model": "tiny", "content": "ab", "add_special": True, "parse_special": True, "with_pieces": False})
    vllm = daemon.post("/tokenize", {"model": "tiny", "prompt": "ab", "add_special_tokens": True, "return_token_strs": False})
    assert llama.status == vllm.status == 200 and llama.json == vllm.json
    assert daemon.post("/tokenize", {"model": "default", "content": "ab"}).json == llama.json, "by an alias"


def test_what_begins_a_text_is_added_as_asked(start, tmp_path):
    path = tmp_path / "bos.gguf"
    subprocess.run([str(BUILD / "tests/gen/tiny"), str(path), "--add-bos"], check=True, cwd=ROOT)
    d = start(manifest(("tiny", path)))
    bare = tokenize(d, "ab")["tokens"]
    for body, want in (({"prompt": "ab"}, [1, *bare]), ({"prompt": "ab", "add_special_tokens": False}, bare), ({"content": "ab", "add_special": True}, [1, *bare]), ({"content": ""}, []), ({"prompt": ""}, [1])):
        assert d.post("/tokenize", body).json["tokens"] == want, body
    assert d.complete("ab", max_tokens=1).json["usage"]["prompt_tokens"] == len(bare) + 1


def test_the_model_may_be_left_out_when_one_serves(models, start, daemon):
    d = start(manifest(("tiny", models["tiny"])))
    assert d.post("/tokenize", {"content": "ab"}).json == tokenize(daemon, "ab")
    assert d.post("/detokenize", {"tokens": [70]}).status == 200
    assert d.post("/apply-template", {"messages": [{"role": "user", "content": "a"}]}).status == 200
    for path, body in (("/tokenize", {"content": "ab"}), ("/detokenize", {"tokens": [70]}), ("/apply-template", {"messages": [{"role": "user", "content": "a"}]})):
        r = daemon.post(path, body)
        assert r.status == 400 and r.error["param"] == "model", "several serve"
    none = start(manifest().replace("models:", "models: []"))
    r = none.post("/tokenize", {"content": "ab"})
    assert r.status == 400 and r.error["param"] == "model"
    absent = start(manifest(("gone", "/nowhere.gguf")))
    r = absent.post("/tokenize", {"content": "ab"})
    assert r.status == 503 and r.error["code"] == "model_unavailable" and r.error["param"] == "model"


REFUSED = [
    # path, param, body
    ("/tokenize", None, ""),
    ("/tokenize", None, "{"),
    ("/tokenize", None, "[]"),
    ("/tokenize", None, "\x00"),
    ("/tokenize", None, '{"content":"\\ud800"}'),
    ("/tokenize", None, '{"content":"\\udc00\\ud800"}'),
    ("/tokenize", None, b'{"content":"\xff"}'),
    ("/tokenize", None, b'{"content":"\xed\xa0\x80"}'),
    ("/tokenize", None, '{"content":' + "[" * 100000),
    ("/tokenize", "content", {"model": "tiny"}),
    ("/tokenize", "content", {"model": "tiny", "content": None}),
    ("/tokenize", "content", {"model": "tiny", "content": 1}),
    ("/tokenize", "content", {"model": "tiny", "content": ["a"]}),
    ("/tokenize", "prompt", {"model": "tiny", "prompt": {"a": 1}}),
    ("/tokenize", "prompt", {"model": "tiny", "content": "a", "prompt": "a"}),
    ("/tokenize", "add_special", {"model": "tiny", "content": "a", "add_special": "yes"}),
    ("/tokenize", "with_pieces", {"model": "tiny", "content": "a", "with_pieces": 1}),
    ("/tokenize", "return_token_strs", {"model": "tiny", "content": "a", "return_token_strs": True}),
    ("/tokenize", "nonsense", {"model": "tiny", "content": "a", "nonsense": 1}),
    ("/tokenize", "model", {"model": 5, "content": "a"}),
    ("/tokenize", "model", {"model": "", "content": "a"}),
    ("/tokenize", "model", {"model": "ids", "content": "a"}),
    ("/tokenize", "messages", {"model": "ids", "messages": [{"role": "user", "content": "a"}]}),
    ("/detokenize", "tokens", {"model": "tiny"}),
    ("/detokenize", "tokens", {"model": "tiny", "tokens": None}),
    ("/detokenize", "tokens", {"model": "tiny", "tokens": 5}),
    ("/detokenize", "tokens", {"model": "tiny", "tokens": "5"}),
    ("/detokenize", "tokens.1", {"model": "tiny", "tokens": [5, "6"]}),
    ("/detokenize", "tokens.0", {"model": "tiny", "tokens": [5.5]}),
    ("/detokenize", "tokens.0", {"model": "tiny", "tokens": [[5]]}),
    ("/detokenize", "tokens.0", {"model": "tiny", "tokens": [None]}),
    ("/detokenize", "tokens.1", {"model": "tiny", "tokens": [5, -1]}),
    ("/detokenize", "tokens.2", {"model": "tiny", "tokens": [5, 6, 512]}),
    ("/detokenize", "tokens.0", {"model": "tiny", "tokens": [10**9]}),
    ("/detokenize", "tokens.0", {"model": "tiny", "tokens": [2**31]}),
    ("/detokenize", "tokens", '{"model":"tiny","tokens":[' + "7," * 1048576 + "7]}"),
    ("/detokenize", "model", {"model": "ids", "tokens": [5]}),
    ("/detokenize", "content", {"model": "tiny", "tokens": [5], "content": "a"}),
    ("/apply-template", "messages", {"model": "tiny"}),
    ("/apply-template", "messages", {"model": "tiny", "messages": []}),
    ("/apply-template", "messages.0.role", {"model": "tiny", "messages": [{"role": "robot", "content": "a"}]}),
    ("/apply-template", "messages.0.content", {"model": "tiny", "messages": [{"role": "user", "content": 5}]}),
    ("/apply-template", "messages", {"model": "ids", "messages": [{"role": "user", "content": "a"}]}),
    ("/apply-template", "temperature", {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": 9}),
    ("/apply-template", "with_tokens", {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "with_tokens": "a"}),
    ("/apply-template", "chat_template_kwargs", {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 5}),
]


def test_hostile_bodies_are_refused_by_their_place(daemon):
    for path, param, body in REFUSED:
        r = daemon.post(path, body)
        assert r.status == 400 and r.error["param"] == param, (path, str(body)[:80], r.body)
        assert not re.search("context size|context length|context window|too many|rate limit", r.error["message"]), r.body
    assert daemon.chat(max_tokens=1).status == 200


def test_unknown_and_unloaded_models_are_told_apart(daemon):
    for path, body in (("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [5]}), ("/apply-template", {"messages": [{"role": "user", "content": "a"}]})):
        r = daemon.post(path, {"model": "nobody", **body})
        assert r.status == 404 and r.error["code"] == "model_not_found" and r.error["param"] == "model"
        r = daemon.post(path, {"model": "broken", **body})
        assert r.status == 503 and r.error["code"] == "model_unavailable"


def test_a_text_of_a_megabyte_is_tokenized_and_a_larger_one_refused(daemon):
    text = "Hello World " * 80000
    a = tokenize(daemon, text, with_pieces=False)
    assert a["count"] > 100000 and detokenize(daemon, a["tokens"])["content"] == text
    r = daemon.post("/tokenize", {"model": "tiny", "content": "z" * (1 << 21)})
    assert r.status == 400 and r.error["param"] == "content" and "tokens" in r.error["message"]


def test_methods_of_the_new_paths(daemon):
    for path in ("/tokenize", "/detokenize", "/apply-template"):
        r = daemon.get(path)
        assert r.status == 405 and r.headers["allow"] == "POST, OPTIONS"
        assert daemon.request("HEAD", path).status == 405
        r = daemon.request("OPTIONS", path)
        assert r.status == 204 and r.headers["allow"] == "POST, OPTIONS" and r.body == b""
    for path in ("/slots", "/metrics", "/openapi.json"):
        r = daemon.post(path, {})
        assert r.status == 405 and r.headers["allow"] == "GET, HEAD, OPTIONS"
        r = daemon.request("OPTIONS", path)
        assert r.status == 204 and r.headers["allow"] == "GET, HEAD, OPTIONS"
        whole, head = daemon.get(path), daemon.request("HEAD", path)
        assert head.status == 200 and head.body == b"" and head.headers["content-type"] == whole.headers["content-type"]
        assert int(head.headers["content-length"]) > 0


# --- /apply-template ---------------------------------------------------------------------------

def test_a_template_is_applied_as_a_chat_applies_it(daemon):
    body = {"model": "tiny", "messages": [{"role": "developer", "content": "Be\u0000kind."}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\u2603"}]}]}
    r = daemon.post("/apply-template", {**body, "temperature": 0.5, "stream": True, "max_tokens": 5, "user": "me"})
    assert r.status == 200 and r.json == {"prompt": "<|im_start|>system\nBe\u0000kind.<|im_end|>\n<|im_start|>user\nab\u2603<|im_end|>\n<|im_start|>assistant\n"}
    r = daemon.post("/apply-template", {**body, "add_generation_prompt": False})
    assert r.json["prompt"].endswith("\u2603<|im_end|>\n")
    with_tokens = daemon.post("/apply-template", {**body, "with_tokens": True}).json
    assert with_tokens["count"] == len(with_tokens["tokens"]) == daemon.post("/v1/chat/completions", {**body, "max_tokens": 1}).json["usage"]["prompt_tokens"]
    assert detokenize(daemon, with_tokens["tokens"])["content"] == with_tokens["prompt"]


def test_template_variables_and_what_a_template_says_reach_the_client(models, start, tmp_path):
    (tmp_path / "t.jinja").write_text("{% if not mood %}{{ raise_exception('Say your mood.') }}{% endif %}{{ mood }}: {{ messages[-1].content }}")
    d = start(manifest(("tiny", models["tiny"], f"chat_template: {json.dumps(str(tmp_path / 't.jinja'))}")))
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert d.post("/apply-template", {**body, "chat_template_kwargs": {"mood": "glad"}}).json == {"prompt": "glad: a"}
    assert d.post("/tokenize", {**body, "chat_template_kwargs": {"mood": "glad"}}).json["count"] > 0
    r = d.post("/apply-template", body)
    assert r.status == 400 and r.error["message"] == "Say your mood." and r.error["param"] == "messages"


# --- /slots --------------------------------------------------------------------------------------

def slots(d, model="tiny"):
    return next(m for m in d.get("/slots").json["models"] if m["id"] == model)


def test_slots_show_what_runs_and_never_what_it_says(models, start):
    d = start(manifest(("tiny", models["slow"], "max_concurrent: 2\nmax_sessions: 3\nqueue: { depth: 5 }")))
    m = slots(d)
    assert [s["state"] for s in m["slots"]] == ["idle", "idle"] and [s["id"] for s in m["slots"]] == [0, 1]
    assert (m["replica"], m["status"], m["running"], m["queued"], m["max_concurrent"], m["max_sessions"], m["queue_depth"]) == (0, "ready", 0, 0, 2, 3, 5)
    assert 0 <= m["kv_bytes_used"] < m["kv_bytes"]
    s = d.stream("SECRET words", max_tokens=600, ignore_eos=True)
    busy = wait_for(lambda: next((x for x in slots(d)["slots"] if x["state"] == "decode"), None), 10, "a slot that decodes")
    assert busy["request"] == s.headers["x-request-id"] and busy["is_processing"] is True and busy["max_tokens"] == 600
    assert busy["prompt_tokens"] > 0 and busy["generated_tokens"] > 0 and busy["computed_tokens"] == busy["prompt_tokens"] + busy["generated_tokens"] - 1
    assert slots(d)["running"] == 1
    assert "SECRET" not in d.get("/slots").body.decode() and "SECRET" not in d.get("/metrics").body.decode()
    s.close()
    wait_for(lambda: all(x["state"] == "idle" for x in slots(d)["slots"]), 10, "idle again")


def test_slots_and_metrics_answer_while_models_load_and_while_the_server_stops(models, start):
    d = start(manifest(*[(f"m{i}", models["slow"]) for i in range(4)]), wait=False)
    d.wait_listening()
    for path in ("/slots", "/metrics", "/openapi.json"):
        assert d.get(path).status == 200
    wait_for(d.settled, 60)
    s = d.stream(model="m0", max_tokens=300, ignore_eos=True)
    d.signal(15)
    wait_for(lambda: d.get("/health").json["status"] == "draining", 10)
    assert d.get("/slots").status == 200
    assert samples(d)["pantheon_draining", ()] == 1
    s.close()


# --- /metrics ------------------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\}})? ([0-9.eE+-]+|NaN|[+-]Inf)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """The text exposition format 0.0.4, strictly: each metric has HELP, then TYPE, then its samples, all in one place, each once."""
    assert text.endswith("\n") and "\r" not in text
    current, helped, typed, got = None, set(), {}, {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, help_text = re.fullmatch(rf"# HELP ({NAME}) (.+)", line).groups()
            assert name not in helped and help_text.strip() == help_text
            helped.add(name)
            current = name
        elif line.startswith("# TYPE "):
            name, kind = re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram|summary|untyped)", line).groups()
            assert name == current and name not in typed
            typed[name] = kind
        else:
            m = SAMPLE.fullmatch(line)
            assert m, line
            name, labels, value = m[1], tuple(sorted(LABEL.findall(m[2] or ""))), float(m[3])
            assert name == current and name in typed, line
            assert len({k for k, _ in labels}) == len(labels), line
            assert (name, labels) not in got, line
            assert math.isfinite(value) and (value >= 0 or typed[name] != "counter"), line
            got[name, labels] = value
    assert helped == set(typed)
    for name, kind in typed.items():
        assert (kind == "counter") == name.endswith("_total"), name
    return got


def samples(d):
    r = d.get("/metrics")
    assert r.status == 200 and r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(r.body.decode())


def of(got, name, **labels):
    return got[name, tuple(sorted(labels.items()))]


def test_metrics_count_what_happens(models, start):
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 1\nqueue: { depth: 1 }"), ("org/odd:name-1.5", models["plain"]), ("broken", "/nowhere.gguf")))
    one = {"model": "tiny", "replica": "0"}
    before = samples(d)
    assert of(before, "pantheon_requests_total", **one, outcome="completed") == 0
    a = d.chat(max_tokens=7, ignore_eos=True).json["usage"]
    d.get("/nowhere")
    got = samples(d)
    assert of(got, "pantheon_requests_total", **one, outcome="completed") == 1
    assert of(got, "pantheon_prompt_tokens_total", **one) == a["prompt_tokens"]
    assert of(got, "pantheon_generated_tokens_total", **one) == a["completion_tokens"] == 7
    assert of(got, "pantheon_prefill_seconds_total", **one) > 0 and of(got, "pantheon_decode_seconds_total", **one) > 0
    assert of(got, "pantheon_requests_running", **one) == of(got, "pantheon_requests_queued", **one) == 0
    assert of(got, "pantheon_slots", **one) == 1 and of(got, "pantheon_queue_places", **one) == 1
    assert of(got, "pantheon_http_requests_total", code="4xx") == of(before, "pantheon_http_requests_total", code="4xx") + 1
    assert of(got, "pantheon_http_requests_total", code="2xx") > of(before, "pantheon_http_requests_total", code="2xx")
    assert of(got, "pantheon_http_connections") >= 1 and of(got, "pantheon_http_requests_in_progress") >= 1
    assert of(got, "pantheon_model_ready", model="tiny") == 1 and of(got, "pantheon_model_ready", model="broken") == 0
    assert of(got, "pantheon_model_ready", model="org/odd:name-1.5") == 1
    states = {k: v for (n, k), v in got.items() if n == "pantheon_model_state" and ("model", "broken") in k}
    assert len(states) == 9 and sum(states.values()) == 1 and of(got, "pantheon_model_state", model="broken", state="failed") == 1
    assert of(got, "pantheon_model_loads_total", model="tiny") == 1
    weights = of(got, "pantheon_model_memory_bytes", **one, die="cpu", kind="weights")
    assert weights > 0 and of(got, "pantheon_die_memory_held_bytes", die="cpu") > weights and of(got, "pantheon_die_up", die="cpu") == 1
    assert abs(of(got, "process_start_time_seconds") - time.time()) < 600 and of(got, "pantheon_manifest_valid") == 1
    for key, value in before.items():  # nothing that counts ever falls
        assert not key[0].endswith("_total") or got[key] >= value, key


def test_the_log_has_a_line_for_each_request_that_is_counted(models, start, tmp_path):
    """Also for those that were broken, or refused before their body was read. Good answers of pages that are polled have none."""
    keys = tmp_path / "keys"
    keys.write_text("a:" + hashlib.sha256(b"sk-a").hexdigest() + "\n")
    d = start(manifest(("tiny", models["tiny"]), server=f"api_keys_file: {json.dumps(str(keys))}"), wait=False)
    d.wait_listening()
    mine = {"Authorization": "Bearer sk-a"}
    d.post("/v1/completions", {})  # no key
    d.get("/v1/models", headers={**mine, "Host": "elsewhere.example"})
    d.get("/nowhere", headers=mine)
    d.get("/v1/models", headers=mine)
    for broken in (b"GET /\r\n\r\n", b"\x16\x03\x01", b"GET / HTTP/3.0\r\n\r\n"):
        d.raw(broken)
    with socket.create_connection(("127.0.0.1", d.port)) as s:  # leaves in its body
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-a\r\nContent-Length: 5\r\n\r\nab")

    def count():
        got = parse(d.get("/metrics", headers=mine).body.decode())
        return {k: of(got, "pantheon_http_requests_total", code=k) for k in ("2xx", "4xx", "5xx", "none")}

    def written():
        lines = [x for x in d.log.splitlines() if "area=http event=" in x and " request=req_" in x]
        statuses = [re.search(r" status=(\d+)", x)[1] for x in lines]
        return {k: sum(x[0] == {"none": "0"}.get(k, k[0]) for x in statuses) for k in ("2xx", "4xx", "5xx", "none")}

    wait_for(lambda: count()["none"] == 1, 10, "the one that left is counted")
    settled = wait_for(lambda: (a := written()) == written() and a, 10)
    now = count()
    assert now == {**settled, "2xx": now["2xx"]} and now["4xx"] == 5 and now["5xx"] == 1, (now, settled)
    assert settled["2xx"] == 1 and now["2xx"] > 1 and "/metrics" not in d.log


def test_metrics_tell_outcomes_apart(models, start):
    d = start(manifest(("tiny", models["slow"], "max_concurrent: 1\nmax_sessions: 1\nqueue: { depth: 1 }")))
    one = {"model": "tiny", "replica": "0"}
    first, second = d.stream(max_tokens=2000, ignore_eos=True), d.stream(max_tokens=2000, ignore_eos=True)
    wait_for(lambda: of(samples(d), "pantheon_requests_running", **one) == 1 and of(samples(d), "pantheon_requests_queued", **one) == 1, 10)
    assert d.chat(max_tokens=1).status == 429
    assert of(samples(d), "pantheon_kv_cache_used_bytes", **one) > 0
    first.close()
    second.close()
    wait_for(lambda: of(samples(d), "pantheon_requests_total", **one, outcome="cancelled") == 2, 10)
    got = samples(d)
    assert of(got, "pantheon_requests_total", **one, outcome="refused") == 1 and of(got, "pantheon_requests_total", **one, outcome="completed") == 0
    assert of(got, "pantheon_requests_running", **one) == 0 and of(got, "pantheon_kv_cache_used_bytes", **one) > 0  # the first is kept as far as it came
    assert of(got, "pantheon_cache_misses_total", **one, reason="empty") == 1  # the second never started


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_has_nothing_to_say(daemon):
    r = subprocess.run(["promtool", "check", "metrics"], input=daemon.get("/metrics").body, capture_output=True, timeout=60)
    assert (r.returncode, r.stdout, r.stderr) == (0, b"", b"")


# --- /openapi.json -------------------------------------------------------------------------------

def fits(v, schema, doc, at="$"):
    """Why v does not fit a schema of /openapi.json; None when it does. Knows the keywords that are used there."""
    if "$ref" in schema:
        target = doc
        for key in schema["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        return fits(v, target, doc, at)
    types = schema.get("type")
    kinds = {"null": v is None, "boolean": isinstance(v, bool), "string": isinstance(v, str), "object": isinstance(v, dict), "array": isinstance(v, list),
             "integer": isinstance(v, int) and not isinstance(v, bool), "number": isinstance(v, (int, float)) and not isinstance(v, bool)}
    if types and not any(kinds[t] for t in ([types] if isinstance(types, str) else types)):
        return f"{at}: not {types}"
    if "enum" in schema and not any(v == e and type(v) is type(e) for e in schema["enum"]):
        return f"{at}: not one of {schema['enum']}"
    if "const" in schema and v != schema["const"]:
        return f"{at}: not {schema['const']}"
    for word, want in (("anyOf", lambda n: n >= 1), ("oneOf", lambda n: n == 1)):
        if word in schema:
            whys = [fits(v, s, doc, at) for s in schema[word]]
            if not want(whys.count(None)):
                return f"{at}: {word}: {whys}"
    if isinstance(v, dict):
        for key in schema.get("required", ()):
            if key not in v:
                return f"{at}: no {key}"
        for key, value in v.items():
            sub = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if sub is False:
                return f"{at}: {key} is not known"
            why = fits(value, sub, doc, f"{at}.{key}") if sub is not True else None
            if why:
                return why
    if isinstance(v, list):
        if not schema.get("minItems", 0) <= len(v) <= schema.get("maxItems", 1 << 60):
            return f"{at}: {len(v)} items"
        for i, item in enumerate(v):
            why = fits(item, schema.get("items", {}), doc, f"{at}.{i}")
            if why:
                return why
    if isinstance(v, str) and not schema.get("minLength", 0) <= len(v) <= schema.get("maxLength", 1 << 60):
        return f"{at}: length {len(v)}"
    if kinds["number"]:
        if v < schema.get("minimum", -math.inf) or v > schema.get("maximum", math.inf) or v <= schema.get("exclusiveMinimum", -math.inf) or v >= schema.get("exclusiveMaximum", math.inf):
            return f"{at}: out of range"
    return None


def test_the_description_has_every_path_and_fits_what_is_answered(daemon):
    r = daemon.get("/openapi.json")
    assert r.status == 200 and r.headers["content-type"] == "application/json"
    doc = r.json
    assert doc["openapi"] == "3.1.0"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    asked = [
        ("get", "/v1/models", None), ("get", "/health", None), ("get", "/ready", None), ("get", "/slots", None), ("get", "/", None), ("get", "/admin/dies", None),
        ("post", "/v1/chat/completions", chat), ("post", "/v1/completions", {"model": "tiny", "prompt": [70, 71], "max_tokens": 3}),
        ("post", "/tokenize", {"model": "tiny", "content": "\u2603", "with_pieces": True}), ("post", "/detokenize", {"model": "tiny", "tokens": [70]}),
        ("post", "/apply-template", {**chat, "with_tokens": True}),
    ]
    for method, path, body in asked:
        operation = doc["paths"][path][method]
        if body is not None:
            assert fits(body, operation["requestBody"]["content"]["application/json"]["schema"], doc) is None
        r = daemon.request(method.upper(), path, body)
        assert r.status == 200 and fits(r.json, operation["responses"]["200"]["content"]["application/json"]["schema"], doc) is None, path
    model = doc["paths"]["/v1/models/{id}"]["get"]
    assert fits(daemon.get("/v1/models/tiny").json, model["responses"]["200"]["content"]["application/json"]["schema"], doc) is None
    for chunk in daemon.stream(max_tokens=4, stream_options={"include_usage": True}).chunks():
        assert fits(chunk, {"$ref": "#/components/schemas/ChatCompletionChunk"}, doc) is None
    error = doc["components"]["responses"]["Error"]["content"]["application/json"]["schema"]
    for r in (daemon.get("/nowhere"), daemon.chat(model="nobody"), daemon.chat(model="broken"), daemon.chat("a" * 5000), daemon.get("/tokenize"), daemon.chat(temperature=9)):
        assert r.status >= 400 and fits(r.json, error, doc) is None, r.body


def test_a_body_that_the_description_refuses_is_refused(daemon):
    doc = daemon.get("/openapi.json").json
    for path, _, body in REFUSED:
        schema = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        if isinstance(body, dict) and body.get("model") != "ids" and not (path == "/detokenize" and fits(body, schema, doc) is None):
            assert fits(body, schema, doc), (path, body)
