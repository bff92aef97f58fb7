#!/usr/bin/env python3
"""Compares real tokenizers with llama.cpp's own test vocabularies: for each models/ggml-vocab-NAME.gguf of its source the ids of some 46
texts (NAME.gguf.inp and .out, made with the model's original tokenizer).

usage: vocabs.py FOLDER TEST_TOK_GOLDEN

FOLDER is made on first use from the PyPI source package of llama-cpp-python, which holds llama.cpp's source: 77 MB to fetch, of which
80 MB of vocabularies stay. Prints a line for each vocabulary (those left out with the reason) and `N passed, N failed`; exit 2 when the
package could not be fetched. Standard library only.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python==0.3.36 --hash=sha256:%s\n"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SECONDS = 300


def sdist(work):
    """The source package, fetched into `work`. It cannot be had without pip asking it for its metadata, which takes a build backend: seconds,
    but not nothing."""
    wanted = os.path.join(work, "wanted.txt")
    with open(wanted, "w") as f:
        f.write(PACKAGE % SHA256)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:",
                    "--dest", work, "--requirement", wanted], check=True, timeout=SECONDS)
    return next(os.path.join(work, n) for n in os.listdir(work) if n.endswith(".tar.gz"))


def fetch(folder):
    with tempfile.TemporaryDirectory() as work:
        part = folder + ".part"
        os.makedirs(part, exist_ok=True)
        with tarfile.open(sdist(work)) as tar:
            for member in tar:
                name = os.path.basename(member.name)
                if member.isfile() and "/vendor/llama.cpp/models/ggml-vocab-" in member.name:
                    with open(os.path.join(part, name), "wb") as out:
                        out.write(tar.extractfile(member).read())
        os.rename(part, folder)


def main():
    folder, test = sys.argv[1:]
    if not os.path.isdir(folder):
        try:
            fetch(folder)
        except (subprocess.SubprocessError, OSError) as why:
            print(f"vocabs: the vocabularies could not be fetched, left out: {why}")
            sys.exit(2)
    p = subprocess.run([test], env={**os.environ, "VOCABS": folder}, stdout=subprocess.PIPE, text=True, timeout=600)
    passed = failed = 0
    for name, said in re.findall(r"^vocabulary ggml-vocab-(\S+)\.gguf: (.*)$", p.stdout, re.M):
        print(f"{name}: {said}")
        m = re.match(r"(\d+) equal, (\d+) different", said)
        if m:
            passed, failed = passed + int(m[1]), failed + int(m[2])
    if p.returncode and not failed:
        print(p.stdout)
        failed = 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
