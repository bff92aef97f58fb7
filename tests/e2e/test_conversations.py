"""Conversations over the HTTP API: what of a prompt is computed anew and what is found kept, why not more, and that nobody can tell from the text."""
import concurrent.futures
import hashlib
import random
import re
import subprocess
import time

import pytest

from conftest import BUILD, ROOT, SLOW, SMOL, Stream, manifest
from dialects import DIALECTS
from test_reasoning import THOUGHT, script

PAGE = 64  # tokens; fewer in builds that check more
REASONS = ("full", "off", "empty", "diverged", "evicted", "window", "state")
HERMES = DIALECTS[0]
TOOLS = [{"type": "function", "function": {"name": name, "description": what, "strict": True, "parameters": {
    "type": "object", "properties": {"path": {"type": "string", "enum": ["notes.txt", "src", "letters/today.md"]}}, "required": ["path"], "additionalProperties": False}}}
    for name, what in (("read_file", "Reads a file."), ("list_dir", "Lists a folder."))]

needs_smol = pytest.mark.skipif(SLOW > 1 or not SMOL.exists(), reason="SmolLM2 in the release build")


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def tokens_of(d, messages, model="m", **fields):
    """The prompt of these messages, as ids."""
    r = d.post("/tokenize", {"model": model, "messages": messages, **fields})
    assert r.status == 200, r.body
    return r.json["tokens"]


class Talk:
    """One conversation: what it has said so far, and what each turn took."""

    def __init__(self, d, system, model="m", headers=None, **fields):
        self.d, self.model, self.headers, self.fields = d, model, headers or {}, {"temperature": 0, **fields}
        self.messages, self.prompt, self.said, self.turns, self.fresh = [{"role": "system", "content": system}], [], 0, [], []

    def ask(self, *messages, **fields):
        """One turn; the answer is appended as a client would. Keeps (tokens computed, tokens of the prompt that no prompt before had, timings.cache), and
        in `fresh` how many of the prompt are neither of the prompt before nor of its answer."""
        self.messages += messages
        fields = {**self.fields, **fields}
        tools = {"tools": fields["tools"]} if "tools" in fields else {}
        r = self.d.post("/v1/chat/completions", {"model": self.model, "messages": self.messages, **fields}, headers=self.headers)
        assert r.status == 200, r.body
        m, usage, t = r.json["choices"][0]["message"], r.json["usage"], r.json["timings"]
        prompt = tokens_of(self.d, self.messages, self.model, **tools)
        assert usage["prompt_tokens"] == len(prompt) == t["prompt_n"] + t["cache_n"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == t["cache_n"] == t["cache"]["hit"] <= t["cache"]["shared"]
        self.turns.append((t["prompt_n"], len(prompt) - common(prompt, self.prompt), t["cache"]))
        self.fresh.append(len(prompt) - len(self.prompt) - self.said)
        self.prompt, self.said = prompt, usage["completion_tokens"]
        self.messages.append({k: v for k, v in m.items() if k in ("role", "content", "tool_calls") and v is not None})
        return m


# --- what is computed ---


def tool_turns(talks, n_turns, forced=True):
    """Conversations that read files, one turn of each after the other: a question, or the results of the calls that the turn before made. forced: every
    second turn has to call."""
    for turn in range(n_turns):
        for i, talk in enumerate(talks):
            calls = talk.messages[-1].get("tool_calls") or []
            new = [{"role": "tool", "tool_call_id": c["id"], "content": f"file {turn} of {i}: " + "some lines of text, " * 6} for c in calls]
            name = ("read_file", "list_dir")[turn // 2 % 2]
            choice = {"type": "function", "function": {"name": name}} if forced and turn % 2 == 0 else "auto"
            talk.ask(*(new or [{"role": "user", "content": f"Have a look at number {turn * 7 + i}, please."}]), tool_choice=choice)


@needs_smol
@pytest.mark.slow
def test_twenty_turns_with_tools_compute_what_is_new_and_a_page(start):
    d = start(manifest(("m", SMOL, "ctx_cap: 8192\nmax_sessions: 6\nmax_concurrent: 3")))
    talks = [Talk(d, f"You are helper {i}. You look at files for the one who asks, and say what is in them.", tools=TOOLS, max_tokens=48) for i in range(3)]
    tool_turns(talks, 20)
    assert all(len(t.turns) == 20 and sum("tool_calls" in m for m in t.messages) >= 10 and sum(m["role"] == "tool" for m in t.messages) >= 9 for t in talks)
    for talk in talks:
        for i, ((computed, _, cache), fresh) in enumerate(zip(talk.turns, talk.fresh)):
            assert computed <= fresh + PAGE, (i, computed, fresh, cache, talk.messages[2 * i:2 * i + 3])
    computed, fresh = [x[0] for t in talks for x in t.turns[1:]], [x for t in talks for x in t.fresh[1:]]
    print(f"3 conversations of 20 turns, prompts of {sum(len(t.prompt) for t in talks) / 3:.0f} tokens at the end: {sum(computed) / len(computed):.0f} computed in a turn, of which "
          f"{sum(fresh) / len(fresh):.0f} were new; at most {max(c - f for c, f in zip(computed, fresh))} more than those")


@needs_smol
@pytest.mark.slow
def test_the_second_turn_after_4000_tokens_begins_at_once(start):
    d = start(manifest(("m", SMOL, "ctx_cap: 8192\nmax_sessions: 4\nmax_concurrent: 2")))
    ratios = []
    for i in range(3):
        draw = random.Random(i)
        text = f"{i}: " + " ".join(draw.choice("time people way water words light house river stone field".split()) for _ in range(3950))
        messages, took = [{"role": "user", "content": text}], []
        for turn in range(2):
            t = time.monotonic()
            s = Stream(d, "/v1/chat/completions", {"model": "m", "messages": messages, "stream": True, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}})
            said, usage = "", None
            for e in s.events():
                if isinstance(e, dict):
                    usage = e.get("usage") or usage
                    piece = e["choices"][0]["delta"].get("content") if e["choices"] else None
                    if piece and not said:
                        took.append(time.monotonic() - t)
                    said += piece or ""
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
        assert usage["prompt_tokens"] > 3900 and usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 40 + PAGE, usage
        ratios.append(took[1] / took[0])
        print(f"{usage['prompt_tokens']} tokens: first turn {took[0] * 1000:.0f} ms to the first token, second {took[1] * 1000:.0f} ms: {100 * ratios[-1]:.1f} %")
    assert min(ratios) < 0.05, ratios  # the least: others use this machine too


def test_several_conversations_of_one_session_keep_their_own(models, start):
    """An agent and those that it sends out, under one id, by field and by header."""
    d = start(manifest(("m", models["slow"], "max_sessions: 8\nmax_concurrent: 2")))
    for how in ({"session_id": "one"}, {"prompt_cache_key": "one"}, {}):
        talks = [Talk(d, f"{i} {how}: " + "a long beginning that is its own. " * 8, headers={} if how else {"X-Session-Id": "one"}, max_tokens=8, ignore_eos=True, **how) for i in range(4)]
        for turn in range(5):
            for talk in talks:
                talk.ask({"role": "user", "content": f"Turn {turn}"})
        for talk in talks:
            assert all(computed <= new + PAGE and cache["hit"] > 100 for computed, new, cache in talk.turns[1:]), (how, talk.turns)


def test_thoughts_that_history_drops_hit_up_to_where_they_began(start, tmp_path):
    path = script(tmp_path / "m.gguf", HERMES.thought(THOUGHT) + "This is what I say in the end.", HERMES.template())
    d = start(manifest(("m", path, "max_sessions: 4")))
    talk = Talk(d, "Think first. " * 20)
    for turn in range(4):
        before = talk.prompt
        m = talk.ask({"role": "user", "content": f"Question {turn}"})
        assert m["content"] == "This is what I say in the end." and m["reasoning_content"].strip() == THOUGHT
        computed, new, cache = talk.turns[-1]
        if turn:
            assert len(before) <= common(before, talk.prompt) + 1, "the history that the client sends goes on where the thought began"
            assert cache["shared"] >= common(before, talk.prompt) and cache["hit"] > cache["shared"] - PAGE and cache["reason"] == "diverged", (turn, cache)
            assert computed <= new + PAGE


# --- nobody can tell ---


def branching(rng, n, n_users):
    """n prompts as lists of messages: each is a new conversation, or goes on from a place in an earlier one."""
    pool = []
    for i in range(n):
        if not pool or rng.random() < 0.15:
            messages = [{"role": "system", "content": rng.choice(["Be brief.", "Be kind, and say why.", "abc " * rng.randint(1, 12)])}]
        else:
            old = rng.choice(pool[-30:])
            cut = rng.randint(1, len(old))
            messages = old[:cut]
            if messages[-1]["role"] == "user":
                messages = messages + [{"role": "assistant", "content": rng.choice(["Yes.", "No, not at all.", "x" * rng.randint(1, 9)])}]
        messages = messages + [{"role": "user", "content": " ".join(rng.choice(["why", "when", "tea", "12", "stone", "and so on"]) for _ in range(rng.randint(1, 6)))}]
        if sum(len(m["content"]) + 24 for m in messages) > 420:  # what fits the model's cap
            continue
        pool.append(messages)
        yield messages, {"session_id": f"s{rng.randrange(n_users)}"} if rng.random() < 0.5 else {}, rng.choice([0, 0, 0.9]), rng.randint(1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "state"])
def test_a_thousand_branching_conversations_say_what_they_say_uncached(models, start, tmp_path, kind):
    """Of each, the answer with what is kept, beside seven others, is that of the same prompt alone with nothing kept. `state` has recurrent state, which
    must be that of a checkpoint; few sessions are kept, so that much is given up on the way."""
    if kind == "tiny":
        path, n = models["tiny"], 1000 if SLOW == 1 else 150
    else:
        path, n = tmp_path / "state.gguf", 1000 if SLOW == 1 else 150
        subprocess.run([BUILD / "tests/gen/script", path, "--text", "it goes on and on", "--endless", "--state-bytes", "4096"], check=True, cwd=ROOT)
    d = start(manifest(("m", path, "max_sessions: 12\nmax_concurrent: 8\nqueue: { depth: 64 }")))
    rng = random.Random(5)
    asked = list(branching(rng, int(n * 1.4), 6))[:n]
    assert len(asked) == n

    def answer(i, **more):
        messages, session, temperature, n_tokens = asked[i]
        r = d.post("/v1/chat/completions", {"model": "m", "messages": messages, "temperature": temperature, "seed": i, "max_tokens": n_tokens, **session, **more})
        assert r.status == 200, r.body
        t = r.json["timings"]
        return r.json["choices"][0]["message"]["content"], r.json["choices"][0]["finish_reason"], t["cache_n"], t["prompt_n"], t["cache"]["reason"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        cached = list(pool.map(answer, range(n)))
    alone = [answer(i, cache_prompt=False) for i in range(n)]
    differ = [i for i in range(n) if cached[i][:2] != alone[i][:2]]
    assert not differ, [(asked[i], cached[i], alone[i]) for i in differ[:2]]
    assert all(a[2] == 0 and a[4] == "off" for a in alone)
    hits, total, reasons = sum(c[2] for c in cached), sum(c[2] + c[3] for c in cached), {c[4] for c in cached}
    print(f"{n} conversations: {100 * hits / total:.0f} % of {total} tokens found, {sum(c[2] > 0 for c in cached)} hits, {reasons}")
    assert sum(c[2] > 0 for c in cached) > n / 5 and "diverged" in reasons


# --- whose it is, and why not more ---


@pytest.fixture
def keyed(scripts, start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{n}:{hashlib.sha256(f'sk-{n}'.encode()).hexdigest()}\n" for n in ("alice", "bob")))
    keys.chmod(0o600)
    d = start(manifest(("m", scripts["quick"], "max_sessions: 8"), server=f"api_keys_file: {keys}"), wait=False)
    d.wait_listening()

    def ask(who, text, **fields):
        r = d.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}, headers={"Authorization": f"Bearer sk-{who}"})
        return r if r.status == 503 else (r.json["usage"]["prompt_tokens_details"]["cached_tokens"], r.json["timings"]["cache"])

    end = time.monotonic() + 20 * SLOW
    while not isinstance(ask("alice", "ready?"), tuple):
        assert time.monotonic() < end
        time.sleep(0.05)
    return ask


def test_two_keys_never_share(keyed):
    """Not even that something is kept can be seen: the answer is the same as if nobody else were there."""
    secret = "a secret that nobody else may learn of by the time it takes. " * 10
    assert keyed("alice", secret)[0] < PAGE
    hit, cache = keyed("alice", secret)
    assert hit > 500 and cache["reason"] == "full"
    for fields in ({}, {"session_id": "s"}, {"prompt_cache_key": "s"}):
        assert keyed("alice", secret, **fields)[0] > 500
    first = keyed("bob", secret, session_id="s")
    assert first[0] == 0 and first[1] == {"hit": 0, "shared": 0, "reason": "empty"}, first
    assert keyed("bob", secret)[0] > 500, "his own"
    assert keyed("alice", secret)[0] > 500


def test_the_reason_is_told_for_each_case(scripts, start):
    d = start(manifest(("m", scripts["quick"], "max_sessions: 2\nctx_cap: 1024")))

    def ask(text, **fields):
        r = d.chat(text, model="m", max_tokens=2, temperature=0, **fields)
        assert r.status == 200, r.body
        t = r.json["timings"]
        assert t["cache"]["hit"] == t["cache_n"] == r.json["usage"]["prompt_tokens_details"]["cached_tokens"] <= t["cache"]["shared"] <= r.json["usage"]["prompt_tokens"]
        return t["cache"], r.json["usage"]["prompt_tokens"]

    long = "a beginning that is long enough for some pages, and then some more of it. " * 8
    cache, n = ask(long, cache_prompt=False)
    assert cache == {"hit": 0, "shared": 0, "reason": "off"}
    assert ask(long)[0] == {"hit": 0, "shared": 0, "reason": "empty"}, "what is not to be kept was not kept"
    cache, n = ask(long)
    assert cache["reason"] == "full" and cache["hit"] >= n - PAGE
    cache, n = ask(long[:300] + "Otherwise it goes on in some other way than before, for long enough to be some pages. " * 4)
    assert cache["reason"] == "diverged" and 300 - PAGE < cache["hit"] <= cache["shared"] and 300 <= cache["shared"] < 400, cache
    for i in range(8):
        ask(f"{i} something else altogether, which takes the room of what was there. " * 12)
    cache, _ = ask(long)
    assert cache["reason"] == "evicted" and cache["hit"] < PAGE, cache
    text = d.get("/metrics").body.decode()
    counted = {m[1]: int(m[2]) for m in re.finditer(r'^pantheon_\w*cache\w*_total\{[^}]*reason="(\w+)"[^}]*\} (\d+)$', text, re.M)}
    assert counted["off"] == 1 and counted["empty"] == 1 and counted["evicted"] >= 1 and counted["diverged"] >= 1, counted


def test_recurrent_state_goes_back_to_a_checkpoint_and_says_so(start, tmp_path):
    path = tmp_path / "m.gguf"
    subprocess.run([BUILD / "tests/gen/script", path, "--text", "it goes on and on", "--endless", "--state-bytes", "4096"], check=True, cwd=ROOT)
    d = start(manifest(("m", path, "max_sessions: 8")))
    talk = Talk(d, "A long beginning of many pages. " * 40, max_tokens=6)
    for turn in range(6):
        talk.ask({"role": "user", "content": f"Turn {turn}"})
    for computed, new, cache in talk.turns[1:]:
        assert computed <= new + 2 * PAGE, talk.turns
    other = Talk(d, "A long beginning of many pages. " * 20 + "Then it is another one.", max_tokens=6)
    other.ask({"role": "user", "content": "Turn"})
    assert other.turns[0][2]["reason"] == "state" and other.turns[0][2]["shared"] >= 600, other.turns
