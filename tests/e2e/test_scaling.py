"""The commands of docs/scaling.md, as they stand there but for ports and the model."""
import os
import re
import shutil
import signal
import subprocess

import pytest

from conftest import BUILD, ROOT, SLOW, free_port
from test_proxies import haproxy_config, unpacked

PAGE = (ROOT / "docs/scaling.md").read_text()
BLOCKS = [b for b in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)]
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def has_router():
    return subprocess.run([BUILD / "pantheon-cpu", "router", "--help"], capture_output=True).returncode == 0


@pytest.mark.parametrize("block", BLOCKS, ids=[next(w for w in ("haproxy", "router", "serve") if f"{w} -" in b) for b in BLOCKS])
def test_the_page_says_what_works(block, scripts, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    if "pantheon router" in block and not has_router():
        pytest.skip("this build has no router")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "pantheon").symlink_to((BUILD / "pantheon-cpu").resolve())
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "STATE_DIRECTORY": str(tmp_path)}
    ports = {p: free_port() for p in re.findall(r"\b808\d\b", block)}
    assert MODEL in block and "8080" in ports
    if "haproxy" in block:
        got = unpacked("haproxy")
        if not got:
            pytest.skip("haproxy is not installed and cannot be had")
        (tools / "haproxy").write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={got[1].get("LD_LIBRARY_PATH", "")} exec {got[0]} "$@"\n')
        (tools / "haproxy").chmod(0o755)
        (tmp_path / "haproxy.cfg").write_text(haproxy_config(ports["8080"], [ports["8081"], ports["8082"]]))
        block = block.replace("contrib/haproxy/haproxy.cfg", str(tmp_path / "haproxy.cfg"))
    block = re.sub(r"\b808\d\b", lambda m: str(ports[m[0]]), block).replace(MODEL, str(scripts["quick"]))
    with (tmp_path / "out").open("w+") as out:
        p = subprocess.Popen(["sh", "-e", "-c", block], env=env, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            rc = p.wait(60 * SLOW)
        finally:
            os.killpg(p.pid, signal.SIGKILL)
        out.seek(0)
        said = out.read()
    assert rc == 0, said
    assert ('"finish_reason"' in said) == ("/v1/chat/completions" in block), said


def test_the_page_names_files_that_are_there():
    for path in set(re.findall(r"`((?:contrib|tests|docs)/[\w./-]+)`", PAGE)):
        assert (ROOT / path).exists(), path
