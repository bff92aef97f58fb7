"""schemathesis over /openapi.json (`make check-clients`): whatever it makes of the schema, no answer is a 5xx, of another form than the schema
says, of a status or a content type that it does not name, or none. More examples: SCHEMA_EXAMPLES=200."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import SLOW, Stream, manifest


def test_no_request_made_from_the_schema_is_answered_otherwise_than_it_says(models, start, tmp_path):
    pytest.importorskip("schemathesis", reason="`make check-clients` has it")
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4\nmax_sessions: 4")))
    command = [str(pathlib.Path(sys.executable).with_name("st")), "run", f"http://127.0.0.1:{d.port}/openapi.json", "--exclude-path-regex", "^/admin/(models/|reconcile)", "--seed", "1",
               "--max-examples", os.environ.get("SCHEMA_EXAMPLES", "10"), "--checks", "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"]
    r = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600 * SLOW)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr[-2000:]
    assert "0 generated" not in r.stdout and " passed" in r.stdout
    assert d.get("/health").status == 200


def test_every_chunk_fits_its_schema(daemon):
    jsonschema = pytest.importorskip("jsonschema", reason="`make check-clients` has it")
    whole = daemon.get("/openapi.json").json
    forms = {name: jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": whole["components"]}) for name in ("ChatCompletionChunk", "Completion")}
    hello = {"model": "tiny", "max_tokens": 12, "stream": True}
    chat, text = {**hello, "messages": [{"role": "user", "content": "Hello"}]}, {**hello, "prompt": "Hello"}
    usage = {"stream_options": {"include_usage": True}}
    n = 0
    for form, path, base, more in (("ChatCompletionChunk", "/v1/chat/completions", chat, ({}, usage, {"n": 3}, {"logprobs": True, "top_logprobs": 4}, {"stop": ["a", "e"]}, {"temperature": 2, "seed": 1, **usage})),
                                   ("Completion", "/v1/completions", text, ({}, usage, {"n": 2}, {"logprobs": 3}, {"echo": True}, {"prompt": ["a", "b"], **usage}))):
        for fields in more:
            for chunk in Stream(daemon, path, {**base, **fields}).chunks():
                errors = [f"{e.json_path}: {e.message}" for e in forms[form].iter_errors(chunk)]
                assert not errors, (fields, errors, json.dumps(chunk))
                n += 1
    assert n > 100
