"""contrib/nomad/pantheon.nomad.hcl without Nomad: its syntax, that its parts fit together, the manifest and the HAProxy configuration it makes."""
import re
import subprocess
import textwrap

import pytest

from conftest import BUILD, ROOT
from test_proxies import unpacked

hcl2 = pytest.importorskip("hcl2")
JOB = ROOT / "contrib/nomad/pantheon.nomad.hcl"


def plain(x):
    """What the parser gives, without its notes: labels and texts without quotes, a block that comes once as itself, a heredoc as its text."""
    if isinstance(x, dict):
        return {k.strip('"'): plain(v) for k, v in x.items() if k not in ("__is_block__", "__comments__", "__inline_comments__")}
    if isinstance(x, list):
        x = [plain(v) for v in x]
        return x[0] if len(x) == 1 and isinstance(x[0], dict) else x
    if isinstance(x, str):
        x = x[1:-1] if len(x) > 1 and x[0] == x[-1] == '"' else x
        here = re.fullmatch(r"<<-(\w+)\n(.*)\n\s*\1\s*", x, re.S)
        return textwrap.dedent(here[2]) + "\n" if here else x
    return x


@pytest.fixture(scope="module")
def job():
    with JOB.open() as f:
        return plain(hcl2.load(f))["job"]["pantheon"]


def seconds(text):
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def template(task, destination):
    got = task["template"] if isinstance(task["template"], list) else [task["template"]]
    return next(t for t in got if t["destination"] == destination)


def test_a_text_that_is_no_hcl_is_refused():
    with pytest.raises(Exception, match="Unexpected|Expected"):
        hcl2.loads(JOB.read_text() + "}\n")


def test_the_job_drains_before_it_kills_and_waits_for_ready(job):
    group = job["group"][0]["daemon"]
    task = group["task"]["pantheond"]
    drain = seconds(re.search(r"^ *drain: (\w+)$", template(task, "local/models.yaml")["data"], re.M)[1])
    assert seconds(task["kill_timeout"]) >= drain + 10 and task["kill_signal"] == "SIGTERM"
    assert seconds(group["shutdown_delay"]) > seconds(group["service"]["check"]["interval"])
    check, update = group["service"]["check"], group["update"]
    assert (check["type"], check["path"]) == ("http", "/ready")
    assert update["max_parallel"] == 1 and update["canary"] == 1 and update["auto_promote"] is True and update["health_check"] == "checks"
    assert seconds(update["progress_deadline"]) > seconds(update["healthy_deadline"]) > seconds(update["min_healthy_time"])
    assert group["volume"]["models"]["read_only"] is True and task["volume_mount"]["volume"] == "models"
    limit = re.search(r'max_kill_timeout = "(\w+)"', JOB.read_text())[1]
    assert seconds(limit) >= seconds(task["kill_timeout"]), "what the comment asks of the client node is enough"


def test_its_manifest_is_one_that_pantheond_takes(job, tmp_path):
    group = job["group"][0]["daemon"]
    task = group["task"]["pantheond"]
    text = template(task, "local/models.yaml")["data"].replace('{{ env "NOMAD_PORT_api" }}', "23456").replace('{{ env "NOMAD_SECRETS_DIR" }}', str(tmp_path))
    assert "{{" not in text
    assert template(task, "secrets/keys")["perms"] == "600"
    (tmp_path / "keys").write_text("alice:" + "ab" * 32 + "\n")
    (tmp_path / "keys").chmod(0o600)
    manifest = tmp_path / "models.yaml"
    manifest.write_text(text)
    r = subprocess.run([BUILD / "pantheond", "--check-config", "--config", manifest], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


def test_its_haproxy_configuration_is_sound(job, tmp_path):
    got = unpacked("haproxy")
    if not got:
        pytest.skip("haproxy is not installed and cannot be had")
    group = job["group"][1]["haproxy"]
    config = (ROOT / "contrib/haproxy/haproxy.cfg").read_text()
    assert "{{" not in config and "${" not in config, "nothing that Nomad would take for its own"
    assert f"bind :{group['network']['port']['http']['static']} " in config
    text = template(group["task"]["haproxy"], "local/haproxy.cfg")["data"]
    call = re.search(r'\$\{regex_replace\(file\("(.*?)"\), "(.*?)", ""\)\}', text)
    assert (JOB.parent / call[1]).resolve() == ROOT / "contrib/haproxy/haproxy.cfg"
    without = re.sub(call[2].replace("\\\\", "\\"), "", config)
    assert "    server " not in without and "default-server" in without
    servers = re.search(r'\{\{ range nomadService "(\w+)" \}\}\{\{ if \.Tags \| contains "(\w+)" \}\}(.*)\{\{ end \}\}\{\{ end \}\}', text, re.S)
    service = job["group"][0]["daemon"]["service"]
    assert service["name"] == servers[1] and servers[2] in service["tags"]
    lines = ""
    for i in range(3):
        lines += servers[3].replace("{{ .ID }}", f"_nomad-task-0a-{i}-group-daemon-pantheon-api").replace("{{ .Address }}", f"192.0.2.{i + 1}").replace("{{ .Port }}", "23456")
    assert "{{" not in lines
    for name, more in (("full", lines), ("empty", "")):
        (tmp_path / name).write_text(text.replace(call[0], without).replace(servers[0], more))
        r = subprocess.run([got[0], "-c", "-f", tmp_path / name], env=got[1], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
