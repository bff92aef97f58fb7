"""What the pages of docs/ say is so: links lead somewhere, commands run, manifests are good, every variable and page is listed."""
import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, SLOW, SMOL, description

sys.path.insert(0, str(ROOT / "tests/docs"))
import blocks  # noqa: E402  (of tests/docs)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "contrib").rglob("*.md"))]
NAMES = [str(p.relative_to(ROOT)) for p in PAGES]
# run by others: scripts/check-newcomer.sh has a machine to install on, test_scaling.py ports of its own
RUN_ELSEWHERE = {"docs/install.md", "docs/quickstart.md", "docs/scaling.md"}
RUN_HERE = [n for n in NAMES if n not in RUN_ELSEWHERE and any(b.info == "sh" for b in blocks.fenced(ROOT / n))]


@functools.cache
def anchors(page):
    """The anchors that headings make, as forges make them."""
    found, code = set(), False
    for line in page.read_text().splitlines():
        code ^= line.startswith("```")
        if not code and (m := re.match(r"#+ (.*)", line)):
            found.add(re.sub(r"[^\w\- ]", "", m[1].lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name}: {target}"
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), f"{name}: {target}: there is {sorted(anchors(file))}"


def test_every_page_is_on_the_map():
    said = (ROOT / "docs/README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in said, page.name
    listed = (ROOT / "contrib/README.md").read_text()
    for entry in (ROOT / "contrib").iterdir():
        assert entry.name == "README.md" or entry.name.startswith("__") or f"`{entry.name}/" in listed, entry.name


@pytest.mark.skipif(not SMOL.exists(), reason="the pages ask the demo model")
@pytest.mark.parametrize("name", RUN_HERE)
def test_the_commands_of_a_page_do_what_it_says(name, tmp_path):
    bin_, work = tmp_path / "bin", tmp_path / "work"
    for folder in (bin_, work / "models"):
        folder.mkdir(parents=True)
    for program, file in (("pantheon", "pantheon-cpu"), ("pantheond", "pantheond"), ("pantheon-reconcile", "pantheon-reconcile")):
        (bin_ / program).symlink_to(BUILD / file)
    (work / "models" / SMOL.name).symlink_to(SMOL)
    for shared in ("etc", "examples"):
        (work / shared).symlink_to(ROOT / shared)
    blocks.write(tmp_path / "run", [ROOT / name])
    subprocess.run([tmp_path / "run" / "run"], cwd=work, env={**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}, timeout=120 * SLOW, check=False)
    assert blocks.compare(tmp_path / "run", [ROOT / name])


def test_a_command_that_fails_or_prints_something_else_is_seen(tmp_path):
    """Of the tool itself."""
    for text, good in (("echo one\n```\n```text\no...\n", True), ("echo one\n```\n```text\ntwo\n", False), ("false\n", False), ("echo a; exit 3\n", False), ("true | true\ntest -e /\n", True)):
        page = tmp_path / "page.md"
        page.write_text(f"# x\n\n```sh\n{text}```\n")
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        blocks.write(folder, [page])
        subprocess.run([folder / "run"], check=False, capture_output=True)
        assert blocks.compare(folder, [page]) is good, text
    page.write_text("```sh later\ntrue\n```\n")
    with pytest.raises(SystemExit, match="not run: REASON"):
        blocks.to_run(page)


@functools.cache
def options(*command):
    text = subprocess.run([BUILD / command[0], *command[1:], "--help"], capture_output=True, text=True).stdout
    return set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", text))


def commands_in(text):
    """(program, its words) of every line that calls one of ours."""
    for line in text.replace("\\\n", " ").splitlines():
        for m in re.finditer(r"(?:^|[|;&(]|\bsudo|\$) *(?:\S*/)?(pantheond|pantheon-reconcile|pantheon)((?: +[^|;&>)#\s]+)*)", line):
            yield m[1], m[2].split()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_the_options_that_a_page_gives_it(name):
    commands = set(re.findall(r"^  ([a-z]+) +\S", subprocess.run([BUILD / "pantheon-cpu", "--help"], capture_output=True, text=True).stdout.split("commands:")[1].split("\n\n")[0], re.M))
    for b in blocks.fenced(ROOT / name):
        if b.info.startswith(("yaml", "text", "python", "json")):
            continue
        for program, words in commands_in(b.text):
            known = options(program if program != "pantheon" else "pantheon-cpu", *([words[0]] if program == "pantheon" and words and words[0] in commands - {"run"} else []))
            for word in words:
                if re.match(r"--?[a-zA-Z]", word):
                    assert word.split("=")[0] in known, f"{name}:{b.line}: {program}: {word}"


@pytest.mark.parametrize("name", NAMES)
def test_every_manifest_in_a_page_is_good(name, tmp_path):
    for b in blocks.fenced(ROOT / name):
        if b.info != "yaml" or not re.match(r"(version|server|host|models|dies|include|defaults|pressure|sessions):", b.text):
            continue
        text = b.text if b.text.startswith("version:") else "version: 1\n" + b.text
        file = tmp_path / "models.yaml"
        file.write_text(text if re.search(r"^(models|include):", text, re.M) else text + "models: []\n")
        p = subprocess.run([BUILD / "pantheon-reconcile", "--check", file], capture_output=True, text=True)
        assert p.returncode == 0, f"{name}:{b.line}\n{p.stdout}{p.stderr}"


def test_every_path_of_the_api_in_a_page_exists():
    paths = [re.sub(r"\{\w+\}", "[^/]+", p) for p in description()["paths"]] + ["/v1"]
    for name in NAMES:
        for path in set(re.findall(r"(?<![\w/.-])/(?:v1|admin)(?:/[a-z_{}]+)*", (ROOT / name).read_text())):
            assert path == "/admin" or path.endswith("/{path}") or any(re.fullmatch(p, path) for p in paths), f"{name}: {path}"


def test_plans_in_pages_are_those_of_the_cases():
    seen = 0
    for name in NAMES:
        for b in blocks.fenced(ROOT / name):
            if m := re.fullmatch(r"text of (tests/\S+)", b.info):
                seen += 1
                assert b.text in (ROOT / m[1] / "plan.txt").read_text(), f"{name}:{b.line}"
    assert seen >= 4


def test_every_environment_variable_is_described():
    page = (ROOT / "docs/environment.md").read_text()
    said = {v for row in re.findall(r"^\| (`.*?) \|", page, re.M) for v in re.findall(r"`(\w+)`", row)}
    used = {}
    for folder in ("foundry", "engine", "config", "daemon"):
        for file in (ROOT / folder).rglob("*.c"):
            text = file.read_text()
            for v in re.findall(r'getenv\("(\w+)"\)', text):
                used.setdefault(v, file)
            for table in re.findall(r"variables\[\] = \{([^}]*)\}", text):  # getenv over a list of names
                for v in re.findall(r'"(\w+)"', table):
                    used.setdefault(v, file)
    assert used.keys() <= said, {v: str(used[v]) for v in used.keys() - said}
    by_others = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "http_proxy", "https_proxy", "no_proxy"}  # read by libsystemd and libcurl for us
    scripts = "".join(f.read_text() for f in [ROOT / "install.sh", *(ROOT / "scripts").glob("*.sh"), ROOT / "examples/deploy.sh"])
    assert all(v in used or v in by_others or v in scripts for v in said), said - used.keys() - by_others
    assert len(used) >= 10
