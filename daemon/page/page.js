"use strict";
// The page is whole without this: here it is kept up to date, and a model can be tried. All text from elsewhere becomes text nodes; the parts
// of the state come as HTML that the daemon made and escaped.
(() => {
  const $ = (id) => document.getElementById(id);
  const KEY = "pantheon.key", SAMPLES = 120;
  let key = sessionStorage.getItem(KEY) || "";

  const headers = (more) => Object.assign(key ? { Authorization: "Bearer " + key } : {}, more);
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const say = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const event = { name: "message", data: "" };
        for (const line of text.slice(0, end).split("\n")) {
          if (line.startsWith("event: ")) event.name = line.slice(7);
          if (line.startsWith("data: ")) event.data += line.slice(6);
        }
        if (event.data) yield event;
      }
    }
  }

  async function why(response) {
    try {
      return (await response.json()).error.message;
    } catch {
      return "The server answered " + response.status + ".";
    }
  }

  // --- the state, live ---

  const charts = { tokens: [], latency: [] };
  let before = null;

  function draw(id, points) {
    const svg = $(id), highest = Math.max(...points.flat()), most = highest || 1, rows = [];
    say(id + "-top", (highest * 118 / 108).toPrecision(3));
    for (const [i, name] of ["answers", "prompts"].entries()) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      line.setAttribute("class", name);
      line.setAttribute("points", points.map((p, x) => (600 - (points.length - 1 - x) * 600 / (SAMPLES - 1)).toFixed(1) + "," + (118 - 108 * p[i] / most).toFixed(1)).join(" "));
      rows.push(line);
    }
    svg.replaceChildren(...rows);
  }

  function sample(now) {
    const sum = (name) => now.models.reduce((n, m) => n + m[name], 0);
    const is = { ms: now.ms };
    for (const name of ["generated", "prompt", "ended", "queue_s", "prefill_s"]) is[name] = sum(name);
    if (before && is.ms > before.ms) {
      const since = (name) => Math.max(0, is[name] - before[name]); // a model that was loaded again counts from 0
      const seconds = (is.ms - before.ms) / 1000, ended = since("ended");
      const rates = [since("generated") / seconds, since("prompt") / seconds];
      const last = charts.latency.at(-1) || [0, 0];
      const late = ended ? [(since("queue_s") + since("prefill_s")) / ended, since("queue_s") / ended] : last;
      charts.tokens.push(rates);
      charts.latency.push(late);
      for (const c of Object.values(charts)) if (c.length > SAMPLES) c.shift();
      say("rate-answers", rates[0].toFixed(1));
      say("rate-prompts", rates[1].toFixed(1));
      if (ended) {
        say("rate-first", late[0].toFixed(2));
        say("rate-queue", late[1].toFixed(2));
      }
      draw("chart-tokens", charts.tokens);
      draw("chart-latency", charts.latency);
    }
    before = is;
  }

  function take(event) {
    const data = JSON.parse(event.data);
    if (event.name === "sample") sample(data);
    if (event.name !== "part") return;
    const part = document.querySelector('[data-part="' + data.id + '"]');
    if (!part) return;
    const at = [...part.querySelectorAll(".wide, pre")].map((x) => x.scrollLeft); // what somebody looks at stays where it is
    const focused = part.contains(document.activeElement) ? [...part.querySelectorAll("[tabindex]")].indexOf(document.activeElement) : -1;
    part.innerHTML = data.html;
    part.querySelectorAll(".wide, pre").forEach((x, i) => { x.scrollLeft = at[i] || 0; });
    if (focused >= 0) part.querySelectorAll("[tabindex]")[focused]?.focus({ preventScroll: true });
  }

  let turn = 0; // of the key in use: a loop of an older one ends
  async function live() {
    const mine = ++turn;
    for (let wait = 1000; mine === turn; wait = Math.min(wait * 2, 30000)) {
      try {
        const response = await fetch("/admin/live", { headers: headers({ Accept: "text/event-stream" }), cache: "no-store" });
        if (mine !== turn) return;
        if (response.status === 401 || response.status === 403) {
          $("access").hidden = false;
          $("state").hidden = true;
          say("link", "the state is not shown");
          if (key) say("key-said", await why(response));
          return;
        }
        if (!response.ok) throw new Error(await why(response));
        $("state").hidden = false;
        if (key) say("key-said", "This key sees everything.");
        say("link", "live");
        for await (const event of events(response)) {
          if (mine !== turn) return;
          take(event);
          wait = 1000;
        }
        say("link", "the server ended the connection; again soon");
      } catch (error) {
        say("link", "not connected: " + error.message);
      }
      await sleep(wait);
    }
  }

  // --- the chat ---

  let talk = [], stop = null; // "New conversation" begins another list: an answer still on its way ends in the old one

  async function models() {
    const response = await fetch("/v1/models", { headers: headers(), cache: "no-store" });
    const select = $("chat-model"), was = select.value;
    if (!response.ok) {
      say("chat-said", await why(response));
      $("chat").hidden = true;
      return;
    }
    select.replaceChildren(...(await response.json()).data.map((m) => new Option(m.id + (m.status && m.status !== "ready" ? " (" + m.status + ")" : ""), m.id)));
    if (was) select.value = was;
    $("chat").hidden = select.options.length === 0;
  }

  function message(role) {
    const li = document.createElement("li"), who = document.createElement("b"), text = document.createElement("div");
    li.className = role;
    who.textContent = role === "user" ? "You" : $("chat-model").value;
    text.className = "text";
    li.append(who, text);
    $("chat-log").append(li);
    return { li, text };
  }

  function thought(at) {
    const details = document.createElement("details"), summary = document.createElement("summary"), text = document.createElement("div");
    summary.textContent = "Reasoning";
    text.className = "text";
    details.append(summary, text);
    at.li.insertBefore(details, at.text);
    return text;
  }

  async function ask(text) {
    const rate = document.createElement("small");
    const mine = talk;
    mine.push({ role: "user", content: text });
    message("user").text.textContent = text;
    const at = message("assistant");
    at.li.append(rate);
    stop = new AbortController();
    $("chat-send").disabled = true;
    $("chat-stop").disabled = false;
    say("chat-said", "");
    let answer = "", reasoning = null, tokens = 0, first = 0, end = "";
    try {
      const response = await fetch("/v1/chat/completions", {
        method: "POST", signal: stop.signal, headers: headers({ "Content-Type": "application/json" }),
        body: JSON.stringify({ model: $("chat-model").value, messages: mine, stream: true, stream_options: { include_usage: true } }),
      });
      if (!response.ok) throw new Error(await why(response));
      for await (const event of events(response)) {
        if (event.data === "[DONE]") break;
        const chunk = JSON.parse(event.data), delta = chunk.choices?.[0]?.delta;
        if (chunk.error) throw new Error(chunk.error.message);
        if (delta?.reasoning_content) {
          reasoning ||= thought(at);
          reasoning.append(delta.reasoning_content);
        }
        if (delta?.content) {
          answer += delta.content;
          at.text.append(delta.content);
        }
        if (delta?.content || delta?.reasoning_content) {
          first ||= performance.now();
          tokens++;
        }
        end = chunk.choices?.[0]?.finish_reason || end;
        if (chunk.usage) tokens = chunk.usage.completion_tokens;
        const seconds = (performance.now() - first) / 1000;
        if (first && seconds > 0.05) rate.textContent = tokens + " tokens, " + (tokens / seconds).toFixed(1) + " a second";
        if (chunk.timings?.predicted_per_second) rate.textContent = tokens + " tokens, " + chunk.timings.predicted_per_second.toFixed(1) + " a second";
      }
      if (end === "length") rate.textContent += ", cut at the limit";
    } catch (error) {
      say("chat-said", error.name === "AbortError" ? "Stopped." : error.message);
    }
    if (answer) mine.push({ role: "assistant", content: answer });
    else mine.pop();
    stop = null;
    $("chat-send").disabled = false;
    $("chat-stop").disabled = true;
    $("chat-text").focus();
  }

  $("chat-form").addEventListener("submit", (e) => {
    e.preventDefault();
    const text = $("chat-text").value.trim();
    if (!text || stop) return;
    $("chat-text").value = "";
    ask(text);
  });
  $("chat-text").addEventListener("keydown", (e) => {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    $("chat-form").requestSubmit();
  });
  $("chat-stop").addEventListener("click", () => stop?.abort());
  $("chat-clear").addEventListener("click", () => {
    stop?.abort();
    talk = [];
    $("chat-log").replaceChildren();
    say("chat-said", "");
    $("chat-text").focus();
  });

  // --- the key ---

  function use(text) {
    key = text;
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
    $("state").hidden = true; // until the server says that this key may see it
    say("key-said", "");
    live();
    models().catch((error) => say("chat-said", error.message));
  }
  $("key-form").addEventListener("submit", (e) => {
    e.preventDefault();
    use($("key").value.trim());
    $("key").value = "";
  });
  $("key-forget").addEventListener("click", () => use(""));

  live();
  models().catch((error) => say("chat-said", error.message));
  $("chat-model").addEventListener("focus", () => models().catch(() => {}));
})();
