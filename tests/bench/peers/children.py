"""Processes that never outlive this one: each is the head of its own group, which dies with a timeout, an exception or Ctrl-C, and the kernel
ends the head itself when this process is killed."""
import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_live = {}


class Failed(Exception):
    pass


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command, env=None, cwd=None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
    """A process, in a group of its own. From the main thread only: the kernel's promise is bound to the thread that started it."""
    try:
        p = subprocess.Popen(list(map(str, command)), env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                             start_new_session=True, preexec_fn=_die_with_parent)
    except OSError as e:
        raise Failed(f"{command[0]}: {e.strerror}") from e
    _live[p.pid] = p
    return p


def end(p, gently=0):
    """Ends a process and all it started; `gently` gives it that many seconds after a SIGTERM first. Once it is reaped its number may be
    another's, so its group is only ended before."""
    if p.poll() is None and gently:
        p.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(gently)
    if p.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(10)
    _live.pop(p.pid, None)


def end_all():
    for p in list(_live.values()):
        end(p)


def last_words(text):
    """The last lines that say something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-2:])[-300:] or "it said nothing"


def run(command, timeout, env=None, cwd=None, watch=None):
    """Runs to its end: (stdout, stderr). Failed on another status than 0 and after `timeout` seconds. watch(pid) is called every 5 ms or so."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        p = start(command, env, cwd, out, err)
        try:
            until = time.monotonic() + timeout
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    p.wait(0.005 if watch else max(0.001, until - time.monotonic()))
                if p.returncode is not None:
                    break
                if time.monotonic() >= until:
                    raise Failed(f"{os.path.basename(str(command[0]))} took more than {timeout:.0f} s")
                if watch:
                    watch(p.pid)
        finally:
            end(p)
        out.seek(0)
        err.seek(0)
        said, complained = out.read(), err.read()
    if p.returncode:
        how = f"died of signal {-p.returncode}" if p.returncode < 0 else f"ended with status {p.returncode}"
        raise Failed(f"{os.path.basename(str(command[0]))} {how}: {last_words(complained or said)}")
    return said, complained
