"""The peers: got and built once, in PEERS/<peer>-<class>. llama.cpp's whole source is in the PyPI source package of llama-cpp-python (the
version and its hash stand in tests/goldens/vocabs.py); ik_llama.cpp is built from the checkout that PEER_IK names."""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import children
import figures
from rows import IK, LLAMA

ROOT = pathlib.Path(__file__).resolve().parents[3]
COMMON = ("-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_USE_PREBUILT_UI=OFF "
          "-DGGML_OPENMP=OFF -DGGML_BLAS=OFF -DGGML_CUDA=OFF").split()
# What a build may use of the CPU: on the peers' side by cmake, on ours by PANTHEON_ISA.
CLASSES = {
    "native": ("-DGGML_NATIVE=ON".split(), None),
    "avx2": ("-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF".split(), "avx2"),
    "v2": ("-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=OFF -DGGML_AVX2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF -DGGML_BMI2=OFF".split(), "sse"),
}
PEERS = {  # folder, its own flags: ik's kernels for KV types that no row uses take most of an hour to compile
    LLAMA: ("llama", ["-DLLAMA_BUILD_EXAMPLES=OFF"]),
    IK: ("ik", ["-DLLAMA_BUILD_EXAMPLES=ON", "-DGGML_IQK_FA_ALL_QUANTS=OFF"]),
}
SHOWN = ("CMAKE_BUILD_TYPE", "GGML_NATIVE", "GGML_SSE42", "GGML_AVX", "GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2", "GGML_AVX_VNNI", "GGML_AVX512",
         "GGML_AVX512_VNNI", "GGML_OPENMP", "GGML_BLAS", "GGML_LLAMAFILE", "GGML_CPU_REPACK", "GGML_IQK_FLASH_ATTENTION", "GGML_IQK_FA_ALL_QUANTS")
SECONDS = 3 * 3600  # of one build


def cache_folder():
    return pathlib.Path(os.environ.get("PEERS") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pantheon" / "peers").resolve()


def class_of_machine(build, flags):
    """The class that is built for `build` on a CPU of these flags: without anything beyond AVX2 the native build is the AVX2 build."""
    beyond = any(f.startswith(("avx512", "avx_vnni", "amx", "avx10")) for f in flags)
    return "native" if build == "avx2" and "avx2" in flags and not beyond else build


class Peer:
    def __init__(self, name, build, cache):
        self.name, self.build, self.cache = name, build, cache
        self.short = PEERS[name][0]
        self.folder = cache / f"{self.short}-{build}"

    def program(self, name):
        return self.folder / "bin" / name

    def has(self, programs):
        return all(os.access(self.program(p), os.X_OK) for p in programs)

    def describe(self):
        """Of a build that is there: what it was configured with, and by which compiler."""
        try:
            cache = figures.cmake_cache((self.folder / "CMakeCache.txt").read_text(errors="replace"))
        except OSError:
            return {"flags": "unknown", "compiler": "unknown", "version": "unknown"}
        compiler = cache.get("CMAKE_CXX_COMPILER", "")
        return {"flags": " ".join(f"{k}={cache[k]}" for k in SHOWN if k in cache), "compiler": first_line([compiler, "--version"]) if compiler else "unknown",
                "version": self.version(pathlib.Path(cache.get("CMAKE_HOME_DIRECTORY", "")))}

    def version(self, source):
        if self.name == IK:
            return "commit " + first_line(["git", "-C", source, "log", "-1", "--format=%h of %cs"])
        try:
            part = figures.cmake_sets((source / "CMakeLists.txt").read_text(errors="replace"))
        except OSError:
            part = {}
        number = ".".join(part.get(f"LLAMA_VERSION_{p}", "?") for p in ("MAJOR", "MINOR", "PATCH"))
        return f"{number} (in {package()})"

    def source(self):
        if self.name == IK:
            where = os.environ.get("PEER_IK")
            if not where:
                raise children.Failed("PEER_IK names no checkout of ik_llama.cpp: left out")
            return pathlib.Path(where).resolve()
        where = self.cache / "llama-src"
        if not where.exists():
            fetch_llama(where)
        return where

    def make(self, programs, say):
        """Builds what is not there of `programs`. Failed when it cannot be had."""
        if self.has(programs):
            return
        source = self.source()
        for tool in ("cmake", "ninja"):
            if not shutil.which(tool):
                raise children.Failed(f"{tool} is needed to build {self.name}")
        self.cache.mkdir(parents=True, exist_ok=True)
        say(f"building {self.name} ({self.build}) in {self.folder}: this takes a while, once")
        children.run(["cmake", "-S", source, "-B", self.folder, "-G", "Ninja", *COMMON, *PEERS[self.name][1], *CLASSES[self.build][0]], SECONDS)
        children.run(["ninja", "-C", self.folder, *programs], SECONDS)
        if not self.has(programs):
            raise children.Failed(f"the build of {self.name} ({self.build}) made no {' '.join(programs)}")


def first_line(command):
    try:
        p = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30)
        return (p.stdout.splitlines() or ["unknown"])[0].strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def vocabs():
    sys.path.insert(0, str(ROOT / "tests" / "goldens"))
    import vocabs as module
    return module


def package():
    return vocabs().PACKAGE.split(" ")[0].replace("==", " ")


def fetch_llama(target):
    """Only vendor/llama.cpp of the package, as plain files below `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    inside = "/vendor/llama.cpp/"
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        try:
            with tarfile.open(vocabs().sdist(work)) as tar:
                members = []
                for m in tar:
                    _, found, rest = m.name.partition(inside)
                    if found and m.isfile() and rest and ".." not in rest.split("/") and not rest.startswith("/"):
                        m.name = rest
                        members.append(m)
                part = os.path.join(work, "source")
                tar.extractall(part, members=members)
            os.rename(part, target)
        except (OSError, subprocess.SubprocessError, tarfile.TarError) as e:
            raise children.Failed(f"llama.cpp's source could not be fetched from PyPI: {e}") from e


def output(command):
    """What a command prints, on one line."""
    p = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    return " ".join(p.stdout.split())


def compiled_by(folder):
    """The compiler of our own build and its flags, as the makefile keeps them."""
    try:
        command = (folder / ".flags").read_text().split()
    except OSError:
        return "unknown"
    return f"{first_line([command[0], '--version'])}, {' '.join(f for f in command if f.startswith(('-O', '-march', '-ffp')))}"
