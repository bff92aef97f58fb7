"""The page at /, in a browser and without one: what it shows, to whom, and that nothing a model or a manifest says can do more than stand there.
Its pictures are kept in build/screenshots."""
import json
import re
import subprocess

import pytest

from browser import Browser
from conftest import BUILD, ROOT, Daemon, connection, manifest, wait_for
from dialects import DIALECTS, write
from origin import Origin
from test_access import ROOT_KEY, SECRET, bearer, line, put
from world import dies

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
EVIL = "/nowhere/<img src=x onerror=document.title='owned'>&\"'.gguf"
PARTS = ["server", "dies", "models", "pressure", "plan", "events"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A daemon with a model that thinks, one that talks without end, and one whose file has a bad name and is not there."""
    folder = tmp_path_factory.mktemp("page")
    thinks = write(DIALECTS[0], folder / "thinks.gguf")
    endless = folder / "endless.gguf"
    subprocess.run([str(BUILD / "tests/gen/script"), str(endless), "--text", "it goes on and on", "--endless", "--pace-us", "1000", "--row-us", "5000", "--ctx", "200000", "--weights", "1MiB"], check=True, cwd=ROOT)
    top = dies(s0=("300MB", "reads temperature 71, reads power 55, reads uncorrected 2"), s1=("300MB", "")).rstrip()
    text = manifest(("thinks", thinks, "dies: [ s0 ]"), ("endless", endless, "dies: [ s0 ]\nctx_cap: 200000"), ("gone", EVIL), top=top)
    d = Daemon(folder, text)
    yield d
    d.stop()


@pytest.fixture(scope="module")
def keyed(told, tmp_path_factory):
    """One with keys: alice's, and one with `admin`."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys"
    put(keys, line("alice", SECRET) + line("root", ROOT_KEY, "admin"))
    d = Daemon(folder, manifest(("thinks", told.folder / "thinks.gguf"), server=f"api_keys_file: {keys}"), wait=False)
    d.wait_listening()
    wait_for(lambda: d.request("GET", "/v1/models", headers=bearer(SECRET)).json["data"][0]["status"] == "ready", 20)
    yield d
    d.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    b = Browser(tmp_path_factory.mktemp("browser"))
    yield b
    b.close()


@pytest.fixture
def page(browser, told):
    browser.size(1280, 900)
    browser.open(f"http://127.0.0.1:{told.port}/")
    browser.wait(lambda: browser.text("#link") == "live", 20, "live")
    browser.complaints()
    return browser


# --- without a browser ---


def test_who_asks_for_json_gets_it(told):
    for accept in (None, "*/*", "application/json"):
        r = told.get("/", headers={"Accept": accept} if accept else {})
        assert r.headers["content-type"] == "application/json" and r.json["name"] == "pantheon"


def test_the_page_is_one_answer_that_lets_nothing_else_in(told):
    r = told.get("/", headers=HTML)
    assert r.status == 200 and r.headers["content-type"] == "text/html; charset=utf-8" and r.headers["cache-control"] == "no-store"
    policy = dict(x.strip().split(" ", 1) for x in r.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'" and policy["base-uri"] == "'none'"
    nonce = re.fullmatch(r"'nonce-([0-9a-f]{32})'", policy["script-src"])[1]
    text = r.body.decode()
    assert policy["style-src"] == f"'nonce-{nonce}'" and re.findall(r"<(?:script|style)[^>]*>", text) == [f'<style nonce="{nonce}">', f'<script nonce="{nonce}">']
    assert nonce not in told.get("/", headers=HTML).body.decode(), "another one each time"
    assert "{{" not in text and "<img" not in text and "onerror=document" in text and not re.search(r'\son\w+="', text)
    assert told.request("HEAD", "/", headers=HTML).body == b""


def test_the_numbers_are_there_without_javascript(told):
    text = re.sub(r"<script.*?</script>", "", told.get("/", headers=HTML).body.decode(), flags=re.S)
    assert "<b>2 of 3</b> declared models serve" in text and 'id="state">' in text and 'id="access" aria-labelledby="access-title" hidden' in text
    assert "71 \u00b0C" in text and "55 W" in text and "ECC errors: 0 corrected, 2 not" in text and text.count('<svg class="bar"') == 3
    for word in ("weights", "KV", "scratch", "reserve", "others", "free"):
        assert text.count(f"{word} ") >= 3, word
    for word in ("load_done", "model_refused", "Ready: yes (Serving)", "evict", "Steps performed", "1 refused, 2 in sync"):
        assert word in text, word


@pytest.mark.parametrize("headers", [{"X-Forwarded-For": "1.2.3.4"}, {"Origin": "http://evil.example"}], ids=["proxied", "origin"])
def test_it_shows_no_state_to_whom_admin_would_refuse(told, headers):
    text = told.get("/", headers={**HTML, **headers}).body.decode()
    assert "gone" not in text and "71 \u00b0C" not in text and "load_done" not in text and 'id="state" hidden' in text
    assert told.get("/admin/live", headers=headers).status == 403


def test_a_foreign_host_is_refused_as_ever(told):
    assert told.get("/", headers={**HTML, "Host": "evil.example"}).error["code"] == "host_not_allowed"


def test_with_keys_it_shows_what_the_key_may_see(keyed):
    bare = keyed.get("/", headers=HTML)
    assert bare.status == 200 and b"thinks" not in bare.body and b"load_done" not in bare.body and b"0.1" not in bare.body.split(b"<style")[0] + bare.body.split(b"</style>")[1].split(b"<script")[0]
    assert keyed.get("/").status == 401, "JSON asks for a key"
    assert keyed.get("/", headers={**HTML, **bearer("wrong")}).status == 401
    assert b"load_done" not in keyed.get("/", headers={**HTML, **bearer(SECRET)}).body
    assert b"load_done" in keyed.get("/", headers={**HTML, **bearer(ROOT_KEY)}).body
    assert keyed.get("/admin/live", headers=bearer(SECRET)).status == 403


def test_it_says_how_far_a_download_is(start, scripts, tmp_path):
    data, origin = scripts["small"].read_bytes(), Origin()
    try:
        d = start(manifest(("m", f'{tmp_path}/m.gguf", url: "{origin.put("m.gguf", data, ways=["held", "good"])}')).replace('\\"', '"'), wait=False)
        d.wait_listening()
        wait_for(lambda: re.search(r"<p>fetching: [0-9.]+ \w+ of [0-9.]+ \w+, 50%", d.get("/", headers=HTML).body.decode()), 20, "half of it is there")
        origin.go.set()
        wait_for(lambda: "fetching:" not in d.get("/", headers=HTML).body.decode() and "Fetched: yes (Present)" in d.get("/", headers=HTML).body.decode(), 20, "all of it")
        steps = d.get("/admin/plan").json["performed"]
        assert [(x["step"], x["result"]) for x in steps][:1] == [("fetch", "done")]
    finally:
        origin.go.set()
        origin.close()


def live(d, seconds_of_samples=2):
    """(parts, samples) that /admin/live sends first."""
    c = connection(d.port, timeout=20)
    c.request("GET", "/admin/live", headers={"Accept": "text/event-stream"})
    r = c.getresponse()
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream")
    parts, samples, name = [], [], None
    while len(samples) < seconds_of_samples:
        text = r.readline().decode()
        if text.startswith("event: "):
            name = text[7:].strip()
        elif text.startswith("data: "):
            (parts if name == "part" else samples).append(json.loads(text[6:]))
    c.close()
    return parts, samples


def test_the_stream_sends_every_part_and_again_when_it_changed(told):
    parts, samples = live(told)
    assert [p["id"] for p in parts[:6]] == PARTS and all(p["html"] for p in parts[:6])
    assert "models" not in [p["id"] for p in parts[6:]] and "pressure" not in [p["id"] for p in parts[6:]], "what stays as it is is not sent again"
    assert {m["name"] for m in samples[0]["models"]} == {"thinks", "endless"} and samples[1]["ms"] > samples[0]["ms"]
    told.chat("case 6", "thinks", max_tokens=5)
    _, after = live(told, 1)
    assert sum(m["generated"] for m in after[0]["models"]) > sum(m["generated"] for m in samples[0]["models"])


# --- in a browser ---


def test_it_runs_under_its_own_policy_and_text_stays_text(page):
    page.open(page.js("return location.href"))
    page.wait(lambda: page.text("#link") == "live", 20, "live")
    assert page.complaints() == [] and page.js("return document.title") == "Pantheon" and page.js("return document.images.length") == 0
    assert EVIL in page.text("[data-part=models]") and EVIL in page.text("[data-part=events]")
    assert page.js("const s = document.createElement('script'); s.textContent = 'document.title = \"owned\"'; document.body.append(s); return document.title") == "Pantheon"
    assert any("Content Security Policy" in c for c in page.complaints()), "a script without the nonce is blocked"
    page.shot("wide-light")


def test_numbers_and_charts_follow_what_happens(page, told):
    s = told.stream(model="endless", max_tokens=150000)
    chunks = s.events()
    next(chunks), next(chunks)
    page.wait(lambda: re.search(r"endless\s+ready\s+s0\s+1 of", page.text("[data-part=models]")), 20, "one runs")
    page.wait(lambda: float(page.text("#rate-answers")) > 1, 20, "tokens a second")
    page.wait(lambda: page.js("const p = document.querySelectorAll('#chart-tokens polyline'); return p.length === 2 && new Set([...p[0].getAttribute('points').split(' ')].map((x) => x.split(',')[1])).size > 1"), 20, "a line that rises")
    page.shot("busy")
    s.close()
    page.wait(lambda: re.search(r"endless\s+ready\s+s0\s+0 of", page.text("[data-part=models]")), 20, "it was cancelled")
    page.wait(lambda: page.text("#rate-first") != "none yet", 20, "the time to its first token")
    assert told.post("/admin/models/unload?wait=1", {"name": "endless"}).status == 200
    page.wait(lambda: re.search(r"endless\s+held", page.text("[data-part=models]")) and re.search(r"admin_unload\s+endless.*by loopback", page.text("[data-part=events]")), 20, "the unload")
    assert told.post("/admin/models/load?wait=1", {"name": "endless"}).status == 200
    page.wait(lambda: re.search(r"endless\s+ready", page.text("[data-part=models]")), 20, "it is back")


def ask(page, text, model):
    page.wait(lambda: page.shown("#chat") and page.js("return document.getElementById('chat-model').options.length > 0"), 20, "models to try")
    page.js("const m = document.getElementById('chat-model'); m.value = arguments[0]; document.getElementById('chat-text').focus()", model)
    page.keys(text + "\ue007")


def test_a_model_can_be_tried_by_the_keyboard(page):
    ask(page, "case 6", "thinks")
    page.wait(lambda: page.text("#chat-log li.assistant > .text") == "It is late.", 20, "the answer")
    page.wait(lambda: page.js("return !document.getElementById('chat-send').disabled"), 20, "its end")
    assert page.js("return document.querySelector('#chat-log details').open") is False, "a thought is folded"
    page.js("document.querySelector('#chat-log summary').focus()")
    page.keys("\ue00d")  # a blank
    page.wait(lambda: "Nothing to call." in page.text("#chat-log details"), 5, "it unfolds")
    assert re.fullmatch(r"\d+ tokens, [0-9.]+ a second", page.text("#chat-log li.assistant small"))
    page.shot("chat")
    ask(page, "go on", "endless")
    page.wait(lambda: "on and on" in page.text("#chat-log li:last-child > .text"), 20, "it runs")
    page.js("document.getElementById('chat-stop').focus()")
    page.keys("\ue007")
    page.wait(lambda: page.text("#chat-said") == "Stopped." and page.js("return document.activeElement.id") == "chat-text", 10, "it stops")
    page.js("document.getElementById('chat-clear').click()")
    assert page.text("#chat-log") == ""


def test_a_new_conversation_forgets_an_answer_on_its_way(page):
    ask(page, "go on", "endless")
    page.wait(lambda: "on and on" in page.text("#chat-log li:last-child > .text"), 20, "it runs")
    page.js("window.asked = []; window.inner = window.fetch; window.fetch = (to, how) => { if (how.body) window.asked.push(how.body); return window.inner(to, how); }")
    page.js("document.getElementById('chat-clear').click()")
    page.wait(lambda: page.text("#chat-said") == "Stopped.", 10, "it stops")
    ask(page, "case 6", "thinks")
    page.wait(lambda: page.text("#chat-log li.assistant > .text") == "It is late.", 20, "the answer")
    assert json.loads(page.js("window.fetch = window.inner; return window.asked[0]"))["messages"] == [{"role": "user", "content": "case 6"}]
    page.wait(lambda: page.js("return !document.getElementById('chat-send').disabled"), 20, "its end")
    page.js("document.getElementById('chat-clear').click()")


def test_tab_reaches_everything_in_order_and_shows_where_it_is(page):
    page.js("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.wait(lambda: page.shown("#chat"), 20)
    seen = []
    for _ in range(40):
        page.keys("\ue004")
        at = page.js("const a = document.activeElement, r = a.getBoundingClientRect(); return [a.id || a.getAttribute('aria-label') || a.className || a.tagName, getComputedStyle(a).outlineStyle, r.width > 0 && r.height > 0]")
        if at[0] == "BODY":
            break
        seen.append(at)
    names = [s[0] for s in seen]
    assert names[0] == "skip" and "Models" in names and "Events" in names and names.index("Events") < names.index("chat-model") < names.index("chat-text") < names.index("chat-clear")
    assert all(s[1] != "none" and s[2] for s in seen), seen


# What is too faint: for each text that is shown, its colour against the nearest background behind it (WCAG 2.1, 1.4.3).
CONTRAST = """
const of = (c) => c.match(/[0-9.]+/g).map(Number);
const light = ([r, g, b]) => { const f = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = of(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const bad = [];
let n = 0;
for (const w = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); w.nextNode();) {
  const e = w.currentNode.parentElement;
  if (!w.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, style, button:disabled")) continue;
  n++;
  const r = ratio(of(getComputedStyle(e).color), behind(e));
  if (r < 4.5) bad.push([e.tagName, e.className, w.currentNode.data.trim().slice(0, 30), r]);
}
for (const e of document.querySelectorAll(".bar rect, .chart polyline")) {
  const c = getComputedStyle(e), r = ratio(of(c.fill === "none" ? c.stroke : c.fill), behind(e.parentElement));
  n++;
  if (r < 3) bad.push([e.tagName, e.getAttribute("class"), "", r]);
}
return [n, bad];
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_can_be_told_apart_from_what_is_behind_it(page, dark):
    page.size(1280, 900, dark)
    page.wait(lambda: page.js("return matchMedia('(prefers-color-scheme: dark)').matches") is dark, 10)
    page.js("document.getElementById('access').hidden = false")
    n, bad = page.js(CONTRAST)
    assert n > 150 and bad == []
    page.js("document.getElementById('access').hidden = true")
    page.shot("dark" if dark else "light")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_it_fits_narrow_screens(page, width):
    page.size(width, 800)
    assert page.js("return document.documentElement.scrollWidth") <= width
    assert page.js("return [...document.querySelectorAll('select, input, textarea, button')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth).length") == 0
    tall = "return [...document.querySelectorAll('td:not(.t):not([colspan]), thead th')].filter((e) => e.getBoundingClientRect().height > 200 || e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)"
    assert page.js(tall) == [], "words stay whole: what is wide scrolls in its own frame"
    page.shot(f"narrow-{width}")


def test_nothing_moves_for_who_wants_it_still(page):
    moves = "return [getComputedStyle(document.documentElement).scrollBehavior, [...document.querySelectorAll('*')].filter((e) => !/^(all|none)$/.test(getComputedStyle(e).transitionProperty) || getComputedStyle(e).animationName !== 'none').length]"
    assert page.js(moves) == ["smooth", 0]
    page.size(1280, 900, still=True)
    assert page.js(moves) == ["auto", 0]


def test_a_key_is_asked_for_kept_in_the_tab_and_forgotten(browser, keyed):
    url = f"http://127.0.0.1:{keyed.port}/"
    browser.size(1280, 900)
    browser.open(url)
    browser.wait(lambda: browser.text("#link") == "the state is not shown" and browser.shown("#key"), 20, "a field for the key")
    assert not browser.shown("#state") and not browser.shown("#chat")

    def use(key):
        browser.js("document.getElementById('key').focus()")
        browser.keys(key + "\ue007")

    use("wrong")
    browser.wait(lambda: "not one of this server's" in browser.text("#key-said"), 10, "the refusal")
    use(SECRET)
    browser.wait(lambda: "`admin`" in browser.text("#key-said") and browser.shown("#chat"), 10, "a chat and no state")
    assert not browser.shown("#state")
    ask(browser, "case 6", "thinks")
    browser.wait(lambda: "It is late." in browser.text("#chat-log"), 20, "the answer")
    browser.shot("key-of-a-user")
    use(ROOT_KEY)
    browser.wait(lambda: browser.text("#link") == "live" and "load_done" in browser.text("#state"), 20, "the state")
    browser.open(url)
    browser.wait(lambda: browser.text("#link") == "live" and browser.shown("#state"), 20, "the tab kept it")
    assert browser.js("return localStorage.length") == 0 and browser.js("return document.cookie") == ""
    browser.js("document.getElementById('key-forget').click()")
    browser.wait(lambda: not browser.shown("#state") and browser.js("return sessionStorage.length") == 0, 10, "forgotten")


def test_a_server_that_stops_is_said_and_one_that_is_back_is_found(browser, start, scripts):
    d = start(manifest(("m", scripts["quick"])))
    browser.open(f"http://127.0.0.1:{d.port}/")
    browser.wait(lambda: browser.text("#link") == "live", 20, "live")
    d.signal(15)
    assert d.wait(10) == 0, "a page that looks does not hold the stop back"
    browser.wait(lambda: "not connected" in browser.text("#link"), 20, "the end is said")
    start(manifest(("m", scripts["quick"])), port=d.port)
    browser.wait(lambda: browser.text("#link") == "live", 30, "it is found again")
