"""schemathesis over /openapi.json (`make check-clients`): whatever it makes of the schema, no answer is a 5xx, of another form than the schema
says, of a status or a content type that it does not name, or none. More examples: SCHEMA_EXAMPLES=200."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import SLOW, manifest


def test_no_request_made_from_the_schema_is_answered_otherwise_than_it_says(models, start, tmp_path):
    pytest.importorskip("schemathesis", reason="`make check-clients` has it")
    d = start(manifest(("tiny", models["tiny"], "max_concurrent: 4\nmax_sessions: 4")))
    command = [str(pathlib.Path(sys.executable).with_name("st")), "run", f"http://127.0.0.1:{d.port}/openapi.json", "--exclude-path-regex", "^/admin/(models/|reconcile|live)", "--seed", "1",
               "--max-examples", os.environ.get("SCHEMA_EXAMPLES", "10"), "--checks", "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"]
    r = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600 * SLOW)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr[-2000:]
    assert re.search(r"\b[1-9]\d* generated", r.stdout) and " passed" in r.stdout, r.stdout[-2000:]
    assert d.get("/health").status == 200
