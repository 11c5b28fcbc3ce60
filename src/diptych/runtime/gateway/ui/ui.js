// The live page: one request a second with the token of this tab, everything written as text, never as markup.
"use strict";

const NONE = "–";
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function token() {
  const said = new URLSearchParams(location.hash.slice(1)).get("token");
  if (said) {
    sessionStorage.setItem("token", said);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

const seconds = (s) => s == null ? NONE : s < 1 ? `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(2)} s`;
const count = (n) => n == null ? NONE : n < 1000 ? `${+n.toFixed(1)}` : n < 1e6 ? `${(n / 1e3).toFixed(1)} k` : `${(n / 1e6).toFixed(1)} M`;
const share = (part, whole) => whole ? `${(100 * part / whole).toFixed(0)} %` : NONE;
const usd = (value) => value == null ? NONE : `$${value.toFixed(value < 1 ? 3 : 2)}`;

function bytes(n) {
  if (n == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (n >= 1024 && place < units.length - 1) { n /= 1024; place += 1; }
  return `${n.toFixed(place ? 1 : 0)} ${units[place]}`;
}

function age(s) {
  if (s == null) return NONE;
  if (s < 60) return `${s.toFixed(0)} s`;
  if (s < 3600) return `${(s / 60).toFixed(0)} min`;
  return s < 86400 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text != null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Rows are lists of texts, or of [text, class].
function table(id, heads, rows, empty) {
  const body = rows.length ? rows.map((row) => line("td", row)) : [line("td", [[empty, "dim"]])];
  $(id).replaceChildren(...(rows.length ? [line("th", heads)] : []), ...body);
}

function line(kind, cells) {
  const row = element("tr");
  row.append(...cells.map((cell) => Array.isArray(cell) ? element(kind, ...cell) : element(kind, cell)));
  return row;
}

function tile(id, big, small) {
  const box = $(id);
  box.replaceChildren(box.querySelector("h2"), element("b", big), element("small", small));
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text != null) made.textContent = text;
  return made;
}

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [560, 150, 76, 20];

// series: [{name, kind, values}], one value a second, null where nothing is known.
function chart(id, series, write) {
  const svg = $(id);
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  const known = series.flatMap((each) => each.values.filter((value) => value != null));
  const top = (Math.max(...known, 0) || 1) * 1.1;
  const length = Math.max(2, ...series.map((each) => each.values.length));
  const x = (place) => LEFT + (WIDTH - LEFT - 8) * place / (length - 1);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * value / top;
  const parts = [];
  for (const part of [0, 0.5, 1]) {
    parts.push(shape("line", {class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(top * part), y2: y(top * part)}));
    parts.push(shape("text", {class: "label", x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end"}, known.length ? write(top * part) : ""));
  }
  parts.push(shape("text", {class: "label", x: LEFT, y: HEIGHT - 5}, `${length - 1} s ago`));
  parts.push(shape("text", {class: "label", x: WIDTH - 8, y: HEIGHT - 5, "text-anchor": "end"}, "now"));
  series.forEach((each, row) => {
    let drawn = "", broken = true;
    each.values.forEach((value, place) => {
      if (value == null) { broken = true; return; }
      drawn += `${broken ? "M" : "L"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
      broken = false;
    });
    parts.push(shape("path", {class: `line ${each.kind}`, d: drawn || "M0 0"}));
    parts.push(shape("text", {class: `label ${each.kind}`, x: LEFT + 10 + 90 * row, y: 12}, each.name));
  });
  svg.replaceChildren(...parts);
}

function draw(data) {
  $("model").textContent = data.model;
  $("status").textContent = data.status;
  $("status").className = data.status === "ready" ? "good" : "bad";
  const r = data.requests;
  $("totals").textContent = `${r.answers} open, ${r.held} waiting for a worker, ${count(r.finished)} finished, ` +
    `${count(r.cancelled)} cancelled, ${count(r.refused)} refused; up ${age(data.uptime)}`;
  for (const name of ["ttft", "tpot", "e2e"]) {
    const found = data.latency[name];
    tile(name, seconds(found.p50), `p90 ${seconds(found.p90)} · p99 ${seconds(found.p99)}`);
  }
  drawCost(data.cost);
  drawCharts(data.history);
  drawTables(data);
}

function drawCost(cost) {
  const now = cost.usd_per_million_tokens, other = cost.alternative_usd;
  const beside = other == null ? "no plan to compare with" :
    `${cost.alternative || "the plan's homogeneous alternative"}: ${usd(other)}` + (now == null ? "" : `, ${share(Math.abs(other - now), other)} ${now <= other ? "saved" : "more here"}`);
  tile("cost", usd(now), now == null ? `no price, or nothing served; ${beside}` : beside);
}

function drawCharts(points) {
  const of = (name) => points.map((point) => point[name]);
  const roles = points.length ? Object.keys(points[points.length - 1].queued) : [];
  chart("chart-queue", roles.map((role) => ({name: role, kind: role, values: points.map((p) => p.queued[role] ?? null)})), count);
  chart("chart-tokens", [{name: "output", kind: "decode", values: of("tokens_per_second")}], count);
  chart("chart-ttft", [{name: "p50", kind: "prefill", values: of("ttft_p50")}, {name: "p99", kind: "decode", values: of("ttft_p99")}], seconds);
  chart("chart-transfer", [{name: "bytes/s", kind: "prefill", values: of("transfer_bytes_per_second")}], bytes);
}

function drawTables(data) {
  table("workers", ["worker", "role", "state", "for", "heard", "queued", "running", "handing", "KV used", "prefix hits", "tok/s", "$/h", "runs on"],
    data.workers.map((w) => [w.name, w.role, [w.why ? `${w.condition}: ${w.why}` : w.condition, w.condition === "up" ? "good" : "bad"], age(w.age),
      w.heard == null ? NONE : seconds(w.heard), count(w.queued), count(w.running), count(w.handing),
      w.blocks ? share(w.blocks - w.blocks_free, w.blocks) : NONE, share(w.prefix_found, w.prefix_asked), count(w.output_rate),
      usd(w.usd_per_hour), `${w.hardware} ${w.precision}`.trim() || NONE]), "no workers");
  const tiers = data.workers.flatMap((w) => w.tiers.map((t) => [w.name, t.name, `${bytes(t.used)} of ${bytes(t.capacity)}`, share(t.found, t.asked), count(t.damaged)]));
  table("tiers", ["worker", "tier", "in use", "hit rate", "damaged"], tiers, "only device memory");
  table("transfers", ["from", "to", "handoffs", "bytes", "rate"], data.transfers.map((t) => [t.source || NONE, t.target, count(t.count), bytes(t.bytes),
    t.seconds ? `${bytes(t.bytes / t.seconds)}/s` : NONE]), "nothing handed over yet");
  table("conversions", ["conversion", "handoffs"], data.conversions.map((c) => [c.what, count(c.count)]), "nothing converted");
  table("routes", ["way", "because", "requests"], data.routes.map((r) => [r.path, r.reason, count(r.count)]), "nothing routed yet");
  table("fallbacks", ["what", "because", "times"], [
    ...data.fallbacks.map((f) => ["fallback", f.reason, count(f.count)]),
    ...data.refusals.map((f) => ["refused", f.reason, count(f.count)]),
    ...data.pairs_refused.map((p) => ["pair refused", `${p.source} → ${p.target}: ${p.reason}`, count(p.count)]),
  ], "none");
  $("events").replaceChildren(...data.events.slice().reverse().map((each) =>
    element("li", `${new Date(each.at * 1000).toLocaleTimeString()} ${each.kind}: ${each.text}`)));
}

async function once() {
  const secret = token();
  $("ask").hidden = !!secret;
  if (!secret) return;
  try {
    const answer = await fetch("/ui/data", {headers: {authorization: `Bearer ${secret}`}, cache: "no-store"});
    if (answer.status === 401) {
      sessionStorage.removeItem("token");
      $("status").textContent = "that token is wrong";
      return;
    }
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    draw(await answer.json());
    document.querySelector("main").hidden = false;
    document.body.dataset.ready = "yes";
  } catch (error) {
    $("status").textContent = `no answer: ${error.message}`;
    $("status").className = "bad";
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  once();
});

async function forever() {
  await once();
  setTimeout(forever, 1000);
}

forever();
