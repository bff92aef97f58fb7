"""install.sh and the scripts beside it: what they find, say and refuse; an installation below a home directory that works."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

from conftest import BUILD, ROOT, SLOW

VERSION = (ROOT / "VERSION").read_text().strip()


@pytest.fixture
def machine(tmp_path):
    """run(*args, cards=...) with the cards of a made-up PCI bus: (address, vendor, class)."""

    def run(*args, cards=(), env=None, launch=(), timeout=60):
        bus = tmp_path / "pci"
        shutil.rmtree(bus, ignore_errors=True)
        for address, vendor, kind in cards:
            (bus / address).mkdir(parents=True)
            (bus / address / "vendor").write_text(vendor + "\n")
            (bus / address / "class").write_text(kind + "\n")
        return subprocess.run([*launch, ROOT / "install.sh", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout * SLOW, env={**os.environ, "PANTHEON_PCI": str(bus), **(env or {})})

    return run


K80 = ("0000:04:00.0", "0x10de", "0x030200")
AUDIO = ("0000:04:00.1", "0x10de", "0x040300")
BLACKHOLE = ("0000:61:00.0", "0x1e52", "0x120000")


def test_it_says_what_it_found_and_what_it_will_do_and_a_dry_run_does_nothing(machine, tmp_path):
    p = machine("--dry-run", "--prefix", str(tmp_path / "usr"))
    assert p.returncode == 0 and "build the backend cpu" in p.stdout and f"install below {tmp_path}/usr, with its configuration in /etc/pantheon" in p.stdout, p.stdout + p.stderr
    p = machine("--dry-run", cards=[K80, AUDIO, BLACKHOLE])
    assert p.stdout.count("NVIDIA card at 0000:04:00.0") == 1 and "04:00.1" not in p.stdout and "Tenstorrent card at 0000:61:00.0" in p.stdout, p.stdout
    assert "Not in this version yet: cuda tt." in p.stdout and "build the backend cpu" in p.stdout, "what stays unused is said"
    p = machine("--dry-run", "--no-install")
    assert p.returncode == 0 and "install below" not in p.stdout and not (tmp_path / "usr").exists()


@pytest.mark.parametrize("args, code, text", [
    (["--backend", "cuda"], 1, "not in this version"), (["--backend", "gpu"], 64, "cpu, cuda, tt, metal or auto"), (["--backend"], 64, "needs a value"),
    (["--prefix", "usr"], 64, "from / on"), (["--perfix", "/usr"], 64, "no option"), ([], 1, "--yes"), (["--help"], 0, ""),
])
def test_what_it_cannot_do_it_refuses_before_anything(machine, args, code, text):
    p = machine(*args)
    assert p.returncode == code and text in p.stderr, p.stdout + p.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody, which needs root")
def test_who_may_not_write_there_is_told_of_sudo_or_of_the_way_without(machine, tmp_path):
    nobody = [shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*nobody, "/usr/bin/test", "-x", ROOT / "install.sh"], check=False).returncode != 0:
        pytest.skip("this tree is below a folder that nobody may enter")
    tools = tmp_path / "bin"  # a PATH without sudo, then with one
    tools.mkdir()
    for tool in "sh cat dirname uname getconf awk dpkg-query id python3 sed cc pkg-config".split():
        if shutil.which(tool):
            (tools / tool).symlink_to(shutil.which(tool))
    for folder in [tmp_path, *tmp_path.parents]:  # pytest's own, which are for root alone
        if folder == pathlib.Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    p = machine("--dry-run", env={"PATH": str(tools)}, launch=nobody)
    assert p.returncode == 1 and "no sudo" in p.stderr, p.stdout + p.stderr
    (tools / "sudo").symlink_to("/bin/false")
    p = machine("--dry-run", env={"PATH": str(tools)}, launch=nobody)
    assert p.returncode == 0 and "(with sudo)" in p.stdout, p.stdout + p.stderr
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    p = machine("--dry-run", "--prefix", f"{home}/.local", env={"PATH": str(tools), "HOME": str(home)}, launch=nobody)
    assert p.returncode == 0 and "sudo" not in p.stdout and f"configuration in {home}/.local/etc/pantheon" in p.stdout, p.stdout + p.stderr


def test_an_installation_below_a_home_directory_works(machine, tmp_path):
    home = tmp_path / "home"
    env = {"HOME": str(home), "FLAVOUR": BUILD.name, "CFLAGS": "-Werror" if "-Werror" in (BUILD / ".flags").read_text() else ""}
    p = machine("--yes", "--prefix", f"{home}/.local", env=env, timeout=600)
    assert p.returncode == 0 and "nothing is enabled or started" in p.stdout, p.stdout + p.stderr
    config = home / ".local/etc/pantheon/models.yaml"
    assert VERSION in subprocess.run([home / ".local/bin/pantheon", "--version"], capture_output=True, text=True, check=True).stdout
    check = re.search(r"^  2\. (.*)$", p.stdout, re.M)[1]
    assert check == f"{home}/.local/bin/pantheon-reconcile --check {config}" and subprocess.run(check.split(), capture_output=True).returncode == 0
    config.write_text("version: 1\nmodels: []\n")
    assert machine("--yes", "--prefix", f"{home}/.local", env=env, timeout=600).returncode == 0
    assert config.read_text() == "version: 1\nmodels: []\n", "an edited manifest stays"


def test_assert_backend_is_right_about_a_binary(tmp_path):
    def run(*args):
        return subprocess.run([ROOT / "scripts/assert_backend.sh", *args], capture_output=True, text=True)

    assert run(BUILD / "pantheon-cpu", "cpu").returncode == 0
    p = run(BUILD / "pantheon-cpu", "cuda")
    assert p.returncode == 1 and "has the backend 'cpu', not 'cuda'" in p.stderr
    for other in ("/bin/false", tmp_path / "absent"):
        p = run(other, "cpu")
        assert p.returncode == 1 and str(other) in p.stderr, p.stderr
    assert run().returncode == run("a").returncode == 64


def test_the_shell_scripts_are_clean():
    if not shutil.which("shellcheck"):
        pytest.skip("no shellcheck")
    p = subprocess.run(["shellcheck", "install.sh", "scripts/assert_backend.sh", "scripts/deps.sh", "examples/deploy.sh"], capture_output=True, text=True, cwd=ROOT)
    assert p.returncode == 0, p.stdout
