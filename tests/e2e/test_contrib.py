"""contrib/: dashboards and rules name metrics that exist, settings of clients fit the server, the role and the container files fit together.
The proxies' and Nomad's files have tests of their own (test_proxies, test_haproxy, test_nomad)."""
import configparser
import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

from conftest import BUILD, ROOT, manifest
from world import declared

CONTRIB = ROOT / "contrib"
RULES = CONTRIB / "prometheus/pantheon.rules.yml"
BOARD = CONTRIB / "grafana/pantheon.json"
ROLE = CONTRIB / "ansible/roles/pantheon"


@pytest.fixture(scope="module")
def metrics(tmp_path_factory, scripts):
    """{name: labels} of /metrics with a model that serves, one that is refused, and one whose file is not there."""
    from conftest import Daemon
    d = Daemon(tmp_path_factory.mktemp("metrics"), declared(("a", scripts["small"]), ("big", scripts["big"]), ("gone", "/nowhere.gguf"), s0=("100MB", "")))
    d.chat(model="a", max_tokens=2)
    text = d.get("/metrics").body.decode()
    d.stop()
    found = {"up": {"job", "instance"}}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def of_prometheus(expression):
    """(metric, labels of its selector) in an expression, without functions, words and recorded names."""
    plain = re.sub(r"\b(?:by|on) \([^)]*\)", "", expression)
    for name, selector in re.findall(r"(?<![\w:\"$])((?:pantheon|process)_\w+|up)\b(?!:)(\{[^}]*\})?", plain):
        yield name, set(re.findall(r"(\w+) *(?:=~|!=|=)", selector))


def expressions():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for v in board["templating"]["list"]:
        if v["type"] == "query":
            yield v["name"], v["definition"].removeprefix("label_values(")


def test_every_metric_and_label_that_is_asked_for_exists(metrics):
    seen = set()
    for where, expression in expressions():
        asked = list(of_prometheus(expression))
        assert asked or "pantheon:" in expression, where
        for name, labels in asked:
            seen.add(name)
            assert name in metrics, f"{where}: there is no {name}"
            assert labels <= metrics[name] | {"instance", "job"}, f"{where}: {name} has {metrics[name]}, not {labels}"
    assert len(seen) > 25
    for where, expression in expressions():
        for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            known = {"instance"}.union(*(metrics[n] for n, _ in of_prometheus(expression)))
            assert set(re.split(r", *", by)) <= known, f"{where}: by ({by})"


def test_recorded_names_are_those_that_alerts_use():
    rules = [r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"]]
    recorded = {r["record"] for r in rules if "record" in r}
    for r in rules:
        assert set(re.findall(r"pantheon:[\w:]+", r["expr"])) <= recorded, r
        if "alert" in r:
            assert r["labels"]["severity"] in ("warning", "critical") and set(r["annotations"]) == {"summary", "description"}, r
    tested = {a["alertname"] for t in yaml.safe_load((CONTRIB / "prometheus/pantheon.rules.test.yml").read_text())["tests"] for a in t["alert_rule_test"]}
    assert tested >= {r["alert"] for r in rules if "alert" in r} - {"PantheonNotReconciled"}, "promtool tests each alert"


def test_promtool_finds_nothing():
    tool = shutil.which("promtool")
    if not tool:
        pytest.skip("no promtool (apt-get install prometheus)")
    for command in (["check", "rules", RULES.name], ["test", "rules", "pantheon.rules.test.yml"], ["check", "config", "--syntax-only", "scrape.yml"]):
        p = subprocess.run([tool, *command], cwd=RULES.parent, capture_output=True, text=True)
        assert p.returncode == 0, p.stdout + p.stderr


def test_the_dashboard_is_laid_out_without_overlaps():
    taken, ids = set(), set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        g = panel["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken and g["x"] + g["w"] <= 24 and panel["id"] not in ids, panel["title"]
        taken |= cells
        ids.add(panel["id"])


def test_the_settings_of_opencode_fit_the_server(models, start):
    c = json.loads((CONTRIB / "opencode/opencode.json").read_text())
    provider = c["provider"]["pantheon"]
    assert provider["npm"] == "@ai-sdk/openai-compatible" and set(provider) == {"npm", "name", "options", "models"} and provider["options"]["apiKey"] == "{env:PANTHEON_API_KEY}"
    for key in ("model", "small_model"):
        owner, _, model = c[key].partition("/")
        assert owner in c["provider"] and model in c["provider"][owner]["models"]
    for model in provider["models"].values():
        assert model["limit"]["output"] < model["limit"]["context"]
    d = start(manifest(("tiny", models["tiny"], "aliases: [ default ]")))
    base = provider["options"]["baseURL"].replace(":8080", f":{d.port}")
    p = subprocess.run(["curl", "-s", f"{base}/models/{c['model'].partition('/')[2]}"], capture_output=True, text=True, check=True)
    assert json.loads(p.stdout)["id"] == "tiny", "the model of the settings is an alias that manifests usually have"


def test_the_settings_of_open_webui_are_an_environment():
    lines = [x for x in (CONTRIB / "open-webui/open-webui.env").read_text().splitlines() if x and not x.startswith("#")]
    settings = dict(x.split("=", 1) for x in lines)
    assert settings["OPENAI_API_BASE_URL"].endswith(":8080/v1") and all(re.fullmatch(r"[A-Z_]+", k) and '"' not in v for k, v in settings.items())


def test_the_role_writes_a_manifest_that_is_good(tmp_path):
    play = yaml.safe_load((CONTRIB / "ansible/site.yml").read_text())[0]
    tasks, handlers, defaults = (yaml.safe_load((ROLE / p / "main.yml").read_text()) for p in ("tasks", "handlers", "defaults"))
    assert play["roles"][0]["role"] == ROLE.name and set(play["roles"][0]["vars"]) <= set(defaults)
    text = "".join((ROLE / p).read_text() for p in ("tasks/main.yml", "handlers/main.yml", "templates/models.yaml.j2"))
    assert set(re.findall(r"\bpantheon_\w+", text)) == set(defaults), "every variable has a default, and none is left over"
    write = next(t for t in tasks if t["name"] == "Write the manifest")
    assert write["notify"] == handlers[0]["name"]
    for vars_ in (defaults["pantheon_manifest"], play["roles"][0]["vars"]["pantheon_manifest"]):
        file = tmp_path / "models.yaml"
        file.write_text("# Written by Ansible\n" + yaml.safe_dump(vars_, sort_keys=False))
        command = write["ansible.builtin.template"]["validate"].replace("%s", str(file)).split()
        p = subprocess.run([BUILD / command[0], *command[1:]], capture_output=True, text=True)
        assert p.returncode == 0, p.stdout + p.stderr
    if shutil.which("ansible-playbook"):
        p = subprocess.run(["ansible-playbook", "--syntax-check", "-i", "localhost,", "site.yml"], cwd=CONTRIB / "ansible", capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert p.returncode == 0, p.stdout + p.stderr


def test_the_container_and_its_quadlet_fit_together():
    made = (CONTRIB / "container/Containerfile").read_text()
    unit = configparser.RawConfigParser(strict=False, delimiters="=", comment_prefixes="#")
    unit.optionxform = str
    unit.read(CONTRIB / "container/pantheon.container")
    assert set(unit.sections()) == {"Unit", "Container", "Service", "Install"}
    assert f"-t {unit['Container']['Image']} " in made and "EXPOSE 8080" in made and unit["Container"]["PublishPort"].endswith(":8080")
    assert unit["Container"]["Notify"] == "true" and unit["Service"]["RestartPreventExitStatus"] == "78"
    # what the programs link with is what the image installs
    linked = subprocess.run(["ldd", BUILD / "pantheond", BUILD / "pantheon-reconcile", BUILD / "pantheon-cpu"], capture_output=True, text=True, check=True).stdout
    installed = re.search(r"FROM \S+slim\nRUN .*?install -y --no-install-recommends ([^&]*)", made)[1]
    for library, package in (("libyaml", "libyaml-0-2"), ("libjansson", "libjansson4"), ("libsystemd", "libsystemd0"), ("libcurl", "libcurl4"), ("libssl", "libssl3")):
        assert (library in linked) == (package in installed.split()), package
    for copied in re.findall(r"COPY --from=build /out(/\S+)", made):
        assert copied in ("/usr/bin/", "/usr/sbin/")
    assert (ROOT / "scripts/deps.sh").exists() and (ROOT / "scripts/assert_backend.sh").exists()
