"""Starts the real pantheond on a free port and gives tests ways to talk to it. Paths are relative to the repository's root."""
import functools
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import openai
import pytest

import schema

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("B", "build/release")
SMOL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
# sanitizers make everything slower; deadlines of tests are stretched, figures that are promised are not tested there
SLOW = 10 if BUILD.name in ("asan", "tsan", "debug") else 1


def free_port(host="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def wait_for(what, timeout, why=""):
    end = time.monotonic() + timeout * SLOW
    while time.monotonic() < end:
        got = what()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout * SLOW} s: {why or what}")


def connection(port, tls=None, timeout=60):
    if tls:
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout * SLOW, context=tls)
    return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout * SLOW)


@functools.cache
def description():
    """/openapi.json of this build, from a daemon without models."""
    with tempfile.TemporaryDirectory() as folder:
        d = Daemon(pathlib.Path(folder), 'version: 1\nserver:\n  listen: [ "127.0.0.1:PORT" ]\nmodels: []\n')
        try:
            return d.get("/openapi.json").json
        finally:
            d.stop()


FORMS = {"chat.completion.chunk": "ChatCompletionChunk", "text_completion": "Completion"}
checked_events = 0


def check_event(e):
    """One event of a stream, as JSON, against its schema in /openapi.json."""
    global checked_events
    if not isinstance(e, dict) or "error" in e:
        return
    form = FORMS.get(e.get("object")) or ("ResponseStreamEvent" if str(e.get("type")).startswith("response.") else None)
    assert form, f"an event of no known form: {e}"
    schema.check(e, form, description())
    checked_events += 1


def check_what_openai_reads():
    """The official client's streams too, and those of all that are built on it: every event passes this method on its way to the client's types."""
    read = openai._streaming.ServerSentEvent.json

    def json_of(self):
        e = read(self)
        check_event(e)
        return e

    openai._streaming.ServerSentEvent.json = json_of


check_what_openai_reads()


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object, checked for the form that every error has."""
        assert self.headers["content-type"] == "application/json", self.headers
        e = self.json["error"]
        assert isinstance(e["message"], str) and e["message"] and isinstance(e["type"], str), e
        assert e["param"] is None or isinstance(e["param"], str), e
        assert e["code"] is None or isinstance(e["code"], str), e
        return e


class Stream:
    """One SSE answer, read event by event."""

    def __init__(self, daemon, path, body, timeout=60):
        self.of_chunks = path.endswith("/completions")
        self.conn = connection(daemon.port, daemon.tls, timeout)
        self.conn.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        self.sock = self.conn.sock
        self.response = self.conn.getresponse()
        self.status = self.response.status
        self.headers = self.response.headers

    def events(self):
        """JSON objects of the data lines, each checked; "[DONE]" as itself; comments as (":", text)."""
        while True:
            line = self.response.readline()
            if not line:
                return
            line = line.decode("utf-8").rstrip("\n")
            if line.startswith("data: "):
                assert self.response.readline() == b"\n", "an event is one data line and an empty one"
                event = line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])
                if self.of_chunks and isinstance(event, dict) and "error" not in event:
                    check_chunk(event)
                    check_event(event)
                yield event
            elif line.startswith(":"):
                assert self.response.readline() == b"\n"
                yield (":", line[1:].strip())
            else:
                raise AssertionError(f"not an SSE line: {line!r}")

    def chunks(self):
        """All chunks; asserts the end."""
        events = [e for e in self.events() if not isinstance(e, tuple)]
        assert events and events[-1] == "[DONE]", events[-3:]
        assert len({(e["id"], e["created"], e["model"]) for e in events[:-1]}) == 1
        return events[:-1]

    def close(self):
        self.response.close()
        self.conn.close()


def check_chunk(c):
    """The form of a chunk, of chat or of completions: pain 42 runs over every chunk of the suite."""
    assert isinstance(c["id"], str) and isinstance(c["created"], int) and isinstance(c["model"], str)
    assert isinstance(c["choices"], list), "never null choices"
    chat = c["object"] == "chat.completion.chunk"
    assert chat or c["object"] == "text_completion"
    for choice in c["choices"]:
        assert isinstance(choice["index"], int)
        check_logprobs(choice["logprobs"], chat)
        assert choice["finish_reason"] in (None, "stop", "length", "tool_calls", "content_filter", "function_call")
        if chat:
            assert set(choice["delta"]) <= {"role", "content", "reasoning_content", "tool_calls"}, choice
            assert all(isinstance(v, str) for k, v in choice["delta"].items() if k not in ("tool_calls", "content" if "role" in choice["delta"] else ""))
            assert "role" not in choice["delta"] or choice["delta"]["role"] == "assistant"
            assert choice["finish_reason"] is None or choice["delta"] == {}
        else:
            assert isinstance(choice["text"], str)
    if c.get("usage") is not None:
        check_usage(c["usage"])
        assert c["choices"] == []


def check_logprobs(p, chat):
    if p is None:
        return
    if not chat:
        assert set(p) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"} and len({len(x) for x in p.values()}) == 1
        return
    assert set(p) == {"content", "refusal"} and p["refusal"] is None
    for e in [x for e in p["content"] for x in (e, *e["top_logprobs"])]:
        assert isinstance(e["token"], str) and e["logprob"] <= 0 and (e["bytes"] is None or all(0 <= b < 256 for b in e["bytes"]))


def check_usage(u):
    assert u["prompt_tokens"] > 0 and u["completion_tokens"] >= 0
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
    assert u["prompt_tokens_details"]["cached_tokens"] >= 0
    assert 0 <= u["completion_tokens_details"]["reasoning_tokens"] <= u["completion_tokens"]


class Daemon:
    def __init__(self, folder, manifest, wait=True, env=None, args=(), port=None, launch=(), fds=(), tls=None):
        """launch: a command in front that becomes the daemon, with the descriptors fds. tls: a context to ask with."""
        self.tls = tls
        self.port = port or free_port()
        self.folder = folder
        self.manifest = folder / "models.yaml"
        self.socket_dir = tempfile.mkdtemp(prefix="pd-")  # a socket's path is short
        self.socket = self.socket_dir + "/admin.sock"
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self.write(manifest)
        self.log_path = folder / "log"
        self.log_file = open(self.log_path, "w")
        self.process = subprocess.Popen([*launch, str(BUILD / "pantheond"), "--config", str(self.manifest), *args], stdout=self.log_file, stderr=self.log_file,
                                        env={**os.environ, "STATE_DIRECTORY": str(self.state), **(env or {})}, cwd=ROOT, pass_fds=fds)
        if wait:
            self.wait_listening()
            wait_for(self.settled, 60, "all models loaded or failed")

    def write(self, manifest):
        """Puts a manifest where the daemon reads it."""
        if "admin_socket" not in manifest:
            manifest = manifest.replace("server:\n", f"server:\n  admin_socket: {self.socket}\n", 1)
        new = self.manifest.with_suffix(".new")
        new.write_text(manifest.replace("PORT", str(self.port)))
        new.rename(self.manifest)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_listening(self):
        def up():
            assert self.process.poll() is None, self.log
            try:
                return self.get("/health").status == 200
            except OSError:
                return False
        wait_for(up, 20, "listening")

    def settled(self):
        return all(m["status"] in ("ready", "failed", "refused", "held", "absent", "on_demand") for m in self.get("/").json["models"])

    def request(self, method, path, body=None, headers=None, timeout=60):
        conn = connection(self.port, self.tls, timeout)
        try:
            data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            if isinstance(data, str):
                data = data.encode("utf-8", "surrogatepass")
            conn.request(method, path, data, headers or {})
            r = conn.getresponse()
            answer = Answer(r.status, r.headers, r.read())
        finally:
            conn.close()
        assert re.fullmatch(r"req_[0-9a-f]{16}", answer.headers["x-request-id"]), "every answer has its id"
        if answer.status >= 400 and method != "HEAD":
            answer.error  # checked by looking at it
        return answer

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def chat(self, text="Hello", model="tiny", **fields):
        return self.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}], **fields})

    def stream(self, text="Hello", model="tiny", **fields):
        return Stream(self, "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}], "stream": True, **fields})

    def complete(self, prompt, model="tiny", **fields):
        return self.post("/v1/completions", {"model": model, "prompt": prompt, **fields})

    def raw(self, data, host="127.0.0.1", timeout=10):
        """Bytes out, everything that comes back until the server closes."""
        with socket.create_connection((host, self.port), timeout=timeout * SLOW) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # refused before all was sent; the answer is there
            got = b""
            while True:
                try:
                    piece = s.recv(65536)
                except ConnectionResetError:
                    break
                if not piece:
                    return got
                got += piece
            return got

    def counters(self, model="tiny"):
        return next(m for m in self.get("/health").json["models"] if m["id"] == model)

    def idle(self, model="tiny"):
        c = self.counters(model)
        return c["running"] == 0 and c["queued"] == 0

    def memory(self):
        """RssAnon + RssFile in bytes."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return sum(int(re.search(rf"{k}:\s+(\d+) kB", text)[1]) for k in ("RssAnon", "RssFile")) * 1024

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, sig):
        self.process.send_signal(sig)

    def wait(self, timeout=30):
        return self.process.wait(timeout * SLOW)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("did not stop:\n" + self.log[-3000:])
        self.log_file.close()
        shutil.rmtree(self.socket_dir, ignore_errors=True)
        assert "Sanitizer" not in self.log, self.log[-6000:]
        assert self.process.returncode >= 0, f"died of signal {-self.process.returncode}:\n{self.log[-3000:]}"


def manifest(*models, server="", top=""):
    """A manifest with the given models: (name, path) or (name, path, further lines)."""
    lines = ["version: 1", "server:", '  listen: [ "127.0.0.1:PORT" ]']
    lines += ["  " + x for x in server.splitlines()]
    lines += top.splitlines()
    lines.append("models:")
    for name, path, *more in models:
        lines += [f"  - name: {json.dumps(name)}", f"    source: {{ path: {json.dumps(str(path))} }}"]
        lines += ["    " + x for x in (more[0].splitlines() if more else [])]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Tiny models by name: `tiny` (ChatML, cap 256), `plain` (no template), `slow` (some milliseconds a token, cap 4096)."""
    folder = tmp_path_factory.mktemp("models")

    def make(name, *args):
        path = folder / f"{name}.gguf"
        subprocess.run([str(BUILD / "tests/gen/tiny"), str(path), *args], check=True, cwd=ROOT)
        return path

    return {
        "tiny": make("tiny", "--chatml"),
        "plain": make("plain"),
        "ids": make("ids", "--no-tokenizer"),
        "slow": make("slow", "--chatml", "--ctx", "4096", "--embd", "256", "--ff", "1024", "--layers", "12", "--heads", "4", "--kv-heads", "2"),
    }


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    """Scripted models: `big` (160 MiB), `half` (80 MiB), `small` (1 MiB), `quick` (1 MiB, no pace); all talk without end. Half of the others' pace is
    each token's, so that several in a step, as drafts bring them, are no faster than one by one."""
    folder = tmp_path_factory.mktemp("scripts")

    def make(name, weights, pace="1000", *more):
        path = folder / f"{name}.gguf"
        subprocess.run([str(BUILD / "tests/gen/script"), str(path), "--text", "it goes on and on", "--endless", "--pace-us", pace, "--row-us", pace, "--weights", weights, *more], check=True, cwd=ROOT)
        return path

    return {"big": make("big", "160MiB"), "half": make("half", "80MiB", "1000", "--layers", "8"), "small": make("small", "1MiB"), "quick": make("quick", "1MiB", "0"), "other": make("other", "2MiB")}


@pytest.fixture
def start(tmp_path):
    """start(manifest_text, ...) -> Daemon; stopped at the end of the test, which must then find no sanitizer report."""
    started = []

    def go(text, **kw):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        d = Daemon(folder, text, **kw)
        started.append(d)
        return d

    yield go
    for d in started:
        d.stop()


@pytest.fixture(scope="module")
def daemon(models, tmp_path_factory):
    """One daemon for the tests that only ask: tiny (alias default), plain, ids, and one whose file is not there."""
    folder = tmp_path_factory.mktemp("daemon")
    text = manifest(("tiny", models["tiny"], "aliases: [ default, 'org/tiny:latest' ]\nmax_concurrent: 4\nmax_sessions: 4"), ("plain", models["plain"]), ("ids", models["ids"]),
                    ("broken", folder / "absent.gguf"))
    d = Daemon(folder, text)
    yield d
    d.stop()
