"""A memory limit of the kernel around a process: a control group of its own, of whichever version can be made here."""
import concurrent.futures
import os
import pathlib
import random
import re
import time

from conftest import manifest

V2, V1 = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/memory")


class Group:
    """Made when entered, removed when left. Nobody else's group is touched."""

    FILES = {2: ("memory.max", "memory.current", "memory.events", "memory.peak"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes")}

    def __init__(self, limit, name="pantheon-test"):
        self.limit, self.name = limit, f"{name}-{os.getpid()}-{time.monotonic_ns() % 1000000}"
        control = V2 / "cgroup.subtree_control"
        self.version = 2 if control.exists() and "memory" in control.read_text().split() else 1
        self.path = (V2 if self.version == 2 else V1) / self.name
        self.max, self.current, self.events, self.peak_file = (self.path / f for f in self.FILES[self.version])

    def __enter__(self):
        self.path.mkdir()
        self.set(self.limit)
        return self

    def __exit__(self, *_):
        end = time.monotonic() + 20
        while True:
            try:
                return self.path.rmdir()
            except OSError:  # who was in it is on its way out
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def set(self, limit):
        """May fail where the kernel cannot take back so much: OSError."""
        self.max.write_text(str(limit))
        self.limit = limit

    @property
    def launch(self):
        """A command in front of another, which is then in the group."""
        return ("sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh")

    def used(self):
        return int(self.current.read_text())

    def peak(self):
        return int(self.peak_file.read_text())

    def oom_kills(self):
        return int(re.search(r"^oom_kill (\d+)", self.events.read_text(), re.M)[1])


def available():
    """Whether one can be made: root, and a memory controller that is ours to use."""
    try:
        with Group(1 << 30):
            return True
    except (OSError, FileNotFoundError):
        return False


def forget_cache(path):
    """The file's pages leave the page cache, so that whoever reads them next is charged for them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def crowd(d, model, n, prompt_tokens, max_tokens, timeout=600):
    """n different requests at once: their answers, and the seconds that all took."""
    def one(i):
        rng = random.Random(i)
        body = {"model": model, "prompt": [rng.randrange(1000, 40000) for _ in range(prompt_tokens)], "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        return d.post("/v1/completions", body, timeout=timeout)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        answers = list(pool.map(one, range(n)))
    return answers, time.monotonic() - start


def ask_at(start, limit, path, sessions, prompt, answer, lines=""):
    """`sessions` requests at once to a daemon under a limit: how they ended, how fast, and what the kernel says of it. start(manifest, launch=...) is a
    Daemon, which is stopped here."""
    forget_cache(path)
    with Group(limit) as g:
        text = manifest(("m", path, f"ctx_cap: {prompt + answer + 24}\nmax_sessions: {sessions}\nmax_concurrent: {sessions}\nqueue: {{ depth: {sessions}, timeout: 600s }}\n{lines}"),
                        top="host: { ram_reserve: 16MiB }")
        d = start(text, launch=g.launch)
        try:
            answers, seconds = crowd(d, "m", sessions, prompt, answer)
            status = next(m for m in d.get("/admin/models").json["models"] if m["name"] == "m")
            tokens = sum(a.json["usage"]["total_tokens"] for a in answers if a.status == 200)
            return {"limit": limit, "good": sum(a.status == 200 for a in answers), "said": [a.error for a in answers if a.status != 200], "tps": tokens / seconds,
                    "seconds": seconds, "peak": g.peak(), "status": status, "log": d.log}
        finally:
            d.stop()
            assert g.oom_kills() == 0, d.log[-3000:]
