"""Completions as shells use them: what a person gets behind TAB."""
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT

FOLDER = ROOT / "packaging/completions"


def tab(program, *words):
    """What bash offers for the last of the words."""
    words = [program, *words]
    script = f"source {FOLDER}/bash/{program}; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _{program.replace('-', '_')} || true; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    p = subprocess.run(["bash", "--norc", "-euc", script, "bash", *words], capture_output=True, text=True, check=True, cwd=ROOT)
    return sorted(p.stdout.split())


@pytest.mark.parametrize("words, offered", [
    (("pantheon", "ser"), ["serve"]), (("pantheon", "t"), ["template", "tokenize"]), (("pantheon", "serve", "--ctx"), ["--ctx-cap"]), (("pantheon", "bench", "--ctx-c"), ["--ctx-cap"]),
    (("pantheon", "bench", "--chat-t"), []), (("pantheon", "--chat-t"), ["--chat-template"]), (("pantheon", "serve", "--log-format", ""), ["json", "text"]),
    (("pantheon", "serve", "--speculation", "o"), ["off"]), (("pantheon", "serve", "--port", ""), []), (("pantheon", "inspect", "etc/de"), ["etc/demo.yaml"]),
    (("pantheon", "serve", "--model", "etc/de"), ["etc/demo.yaml"]), (("pantheon-reconcile", "--pl"), ["--plan"]), (("pantheon-reconcile", "--plan", "--facts", "etc/de"), ["etc/demo.yaml"]),
    (("pantheon-reconcile", "etc/de"), ["etc/demo.yaml"]), (("pantheond", "--conf"), ["--config"]), (("pantheond", "--config", "etc/de"), ["etc/demo.yaml"]),
    (("pantheond", "--log-format", ""), ["json"]),
])
def test_bash_offers_what_fits(words, offered):
    assert tab(*words) == offered


@pytest.mark.parametrize("program", ["pantheon-reconcile", "pantheond"])
def test_every_option_of_the_program_is_offered(program):
    text = subprocess.run([str(BUILD / program), "--help"], capture_output=True, text=True, check=True).stdout
    options = {line.split()[0] for line in text.splitlines() if line.startswith("  --")}
    assert len(options) > 4 and set(tab(program, "--")) == options


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_its_files(shell):
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    for f in sorted((FOLDER / shell).iterdir()):
        subprocess.run([shell, "-n", str(f)], check=True)


def test_fish_offers_commands_and_options():
    if not shutil.which("fish"):
        pytest.skip("there is no fish here")

    def offers(line):
        p = subprocess.run(["fish", "--no-config", "-c", f"source {FOLDER}/fish/pantheon.fish; complete -C '{line}'"], capture_output=True, text=True, check=True)
        return {x.split("\t")[0] for x in p.stdout.splitlines()}

    assert offers("pantheon ser") == {"serve"} and "--ctx-cap" in offers("pantheon serve --c") and offers("pantheon serve --log-format ") == {"json", "text"}
