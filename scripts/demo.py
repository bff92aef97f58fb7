#!/usr/bin/env python3
"""Starts pantheond on a manifest, waits until it serves, asks one question over HTTP and streams the answer.

    scripts/demo.py [--once] CONFIG        (run by `make demo`; needs nothing outside the standard library)
"""
import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time

HOST, PORT = "127.0.0.1", 8080
LOG = "build/demo.log"
QUESTION = "What is the capital of France? Answer in one sentence."


def get(path):
    c = http.client.HTTPConnection(HOST, PORT, timeout=5)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, json.loads(r.read())
    finally:
        c.close()


def wait_until_served(daemon, model):
    """Polls the model's own status; the daemon answers while it loads."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            with open(LOG, encoding="utf-8", errors="replace") as f:
                sys.stderr.write(f.read())
            sys.exit(f"demo: pantheond ended with status {daemon.returncode}; its messages are above")
        try:
            status, body = get(f"/v1/models/{model}")
            if status == 200 and body.get("status") == "ready":
                return body
            if body.get("status") == "failed":
                sys.exit(f"demo: {model} failed to load: {body.get('reason')}")
        except (OSError, http.client.HTTPException, ValueError):
            pass
        time.sleep(0.05)
    sys.exit("demo: the model was not served within two minutes")


def ask(model):
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 100, "stream": True}
    print(f'\n$ curl -N http://{HOST}:{PORT}/v1/chat/completions -H "Content-Type: application/json" \\\n    -d \'{json.dumps(body)}\'\n', flush=True)
    c = http.client.HTTPConnection(HOST, PORT, timeout=120)
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        sys.exit(f"demo: {r.status} {r.read().decode(errors='replace')}")
    started, tokens, finished = time.monotonic(), 0, False
    for line in r:
        line = line.decode().strip()
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            finished = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit(f"demo: {event['error']['message']}")
        for choice in event["choices"]:
            text = choice["delta"].get("content")
            if text:
                tokens += 1
                print(text, end="", flush=True)
    seconds = time.monotonic() - started
    print(f"\n\n[{tokens} pieces in {seconds:.2f} s]", flush=True)
    if not finished or tokens == 0:
        sys.exit("demo: the answer broke off")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--once", action="store_true", help="stop after the answer")
    p.add_argument("config")
    a = p.parse_args()
    try:
        get("/health")
        sys.exit(f"demo: something already answers on {HOST}:{PORT}; stop it first")
    except (OSError, http.client.HTTPException, ValueError):
        pass
    subprocess.run(["./pantheond", "--check-config", "--config", a.config], check=True)
    os.makedirs(os.path.dirname(LOG), exist_ok=True)
    with open(LOG, "wb") as log:  # its own process group: Ctrl-C reaches us, and we tell the daemon
        daemon = subprocess.Popen(["./pantheond", "--config", a.config], start_new_session=True, stderr=log)
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        info = wait_until_served(daemon, "smollm2")
        print(f"\nServing {info['id']} on http://{HOST}:{PORT}/v1 (context {info['ctx_cap']} tokens; log in {LOG})", flush=True)
        ask("smollm2")
        if not a.once:
            print(f"\nStill serving on http://{HOST}:{PORT}/v1 (any API key). Ctrl-C stops it.", flush=True)
            daemon.wait()
    except KeyboardInterrupt:
        print(flush=True)
    finally:
        if daemon.poll() is None:
            daemon.terminate()
        try:
            status = daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            status = daemon.wait()
    if status != 0:
        sys.exit(f"demo: pantheond ended with status {status}")


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    main()
