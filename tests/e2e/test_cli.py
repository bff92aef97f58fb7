"""`pantheon` at a shell's edges: what is closed, full or not a file."""
import os
import subprocess

import pytest

from conftest import BUILD, ROOT, manifest

CLI = str(BUILD / "pantheon-cpu")


def sh(command, **kw):
    return subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, **kw)


def test_a_failing_logits_removes_its_file_and_takes_no_device_away(models, tmp_path):
    """As root, `--out /dev/full` must not end as a folder without /dev/full: shown with a link to it."""
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to("/dev/full")
    logits = f"{CLI} logits --model {models['tiny']} --tokens 1,2 --out"
    r = sh(f"{logits} {link}")
    assert r.returncode == 1 and "No space left" in r.stderr and link.is_symlink(), r
    r = sh(f"trap '' XFSZ; ulimit -f 0; {logits} {file}")
    assert r.returncode == 1 and not file.exists(), "no half file that looks like a result"


@pytest.mark.parametrize("args", ["--version", "--help", "--backend", "inspect MODEL", "template --model MODEL --input -", "logits --model MODEL --tokens 1,2 --out -"])
def test_output_that_cannot_be_written_is_an_error(models, args):
    conversation = '{"messages": [ { "role": "user", "content": "hi" } ]}'
    for out in (">/dev/full", ">&-"):
        r = sh(f"{CLI} {args.replace('MODEL', str(models['tiny']))} {out}", input=conversation)
        assert r.returncode == 1 and r.stderr.count("\n") == 1, (out, r)


def test_a_closed_stdin_is_not_the_next_file(models):
    r = sh(f"{CLI} tokenize --model {models['tiny']} <&-")
    assert r.returncode == 1 and r.stdout == "" and "stdin" in r.stderr, r


def test_a_daemon_without_standard_descriptors_keeps_its_sockets_clean(models, start, tmp_path):
    d = start(manifest(("tiny", models["tiny"])))  # for its manifest and port
    d.stop()
    d.process = subprocess.Popen(["sh", "-c", f"exec {BUILD}/pantheond --log debug=all --config {d.manifest} <&- >&- 2>&-"], cwd=ROOT)
    d.wait_listening()
    for fd in range(3):
        assert os.readlink(f"/proc/{d.process.pid}/fd/{fd}") == "/dev/null"
    assert d.chat(max_tokens=1).status in (200, 503)
