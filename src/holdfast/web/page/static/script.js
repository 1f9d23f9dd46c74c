// Holdfast, the page. Every read and every action works without this file; it adds what is live, keys, dialogs and the proof.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const page = document.documentElement.dataset;

// --- time: the server sends points in time, the page counts on ------------------------------------------------

function span(milliseconds) {
  const s = Math.max(0, Math.round(milliseconds / 1000));
  if (s < 60) return `${s} s`;
  const two = (n) => String(n).padStart(2, "0");
  if (s < 3600) return s < 600 && s % 60 ? `${Math.floor(s / 60)} min ${two(s % 60)} s` : `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

const write = (element, text) => { if (element && element.textContent !== text) element.textContent = text; };
let ahead = Number(page.now) - Date.now(); // the store's clock, not this machine's
const now = () => Date.now() + ahead;
const clock = (at) => new Date(at).toISOString().slice(11, 19);

function tick() {
  const at = now();
  for (const e of $$("[data-since]")) write(e, span(at - Number(e.dataset.since)));
  for (const e of $$("[data-due]")) write(e, Number(e.dataset.due) > at ? `in ${span(Number(e.dataset.due) - at)}` : "now");
}
setInterval(() => { if (!document.hidden) tick(); }, 1000);

// --- fragments: a part of the view is read again and put in the place of the old one, element by element --------

const LEAST = 250; // a fragment is read at most four times a second
const read = new Map(); // name → when it was read last
const stale = new Set();
let reading = false;
let timer = 0;

function keyOf(node) {
  return node.nodeType === 1 ? node.dataset?.id ?? (node.id || "") : "";
}

// What is the same stays the same element: the focus, a selection, an open detail, the place where one has scrolled to.
function merge(old, fresh) {
  if (old.nodeType === 3) { if (old.data !== fresh.data) { old.data = fresh.data; changed(old.parentElement); } return; }
  if (old.nodeType !== 1) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept(old, name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && !kept(old, name)) old.setAttribute(name, value);
  }
  if (old.dataset?.since && old.dataset.since === fresh.dataset.since) return; // it ticks by itself
  const left = new Map();
  for (const child of old.childNodes) { const key = keyOf(child); if (key) left.set(key, child); }
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    const known = key ? left.get(key) : undefined;
    if (known) {
      if (known !== at) old.insertBefore(known, at); else at = at.nextSibling;
      merge(known, child);
    } else if (!key && at && !keyOf(at) && at.nodeType === child.nodeType && at.nodeName === child.nodeName) {
      const next = at.nextSibling;
      merge(at, child);
      at = next;
    } else {
      old.insertBefore(document.importNode(child, true), at);
    }
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

// What the reader has done to an element is not undone.
function kept(element, name) {
  return (name === "open" && element.nodeName === "DETAILS") || (name === "class" && element.nodeName === "TR") ||
    ["checked", "hidden", "disabled", "aria-selected", "aria-pressed"].includes(name);
}

function changed(element) {
  const cell = element?.closest("td, .big, .n-run");
  if (!cell || cell.closest("[data-since]")) return;
  cell.classList.remove("changed");
  requestAnimationFrame(() => cell.classList.add("changed"));
}

function staleNow(name) {
  stale.add(name);
  if (!timer && !reading) timer = setTimeout(refresh, 40);
}

async function refresh() {
  timer = 0;
  const at = performance.now();
  const due = [];
  let wait = Infinity;
  for (const name of stale) {
    const element = fragment(name);
    if (!element) { stale.delete(name); continue; }
    const left = (read.get(name) ?? -Infinity) + Math.max(LEAST, Number(element.dataset.rate || 0)) - at;
    if (left <= 0) due.push(name); else wait = Math.min(wait, left);
  }
  if (due.length && !document.hidden) {
    reading = true;
    for (const name of due) { stale.delete(name); read.set(name, at); }
    try { await fetchFragments(due); } catch { for (const name of due) stale.add(name); wait = Math.min(wait, 2000); }
    reading = false;
  }
  if (stale.size && !timer) timer = setTimeout(refresh, Number.isFinite(wait) ? Math.max(20, wait) : 50);
}

const fragment = (name) => $(`[data-fragment="${name}"]`);

async function fetchFragments(names) {
  const address = new URL(location.href);
  address.hash = "";
  address.searchParams.delete("done");
  address.searchParams.set("fragment", names.join(","));
  if (names.some((name) => fragment(name)?.dataset.with === "ids")) {
    const ids = $$("#rows > tr").map((row) => row.dataset.id);
    if (ids.length) address.searchParams.set("ids", ids.join(","));
  }
  const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (answer.status === 401) { location.reload(); return; }
  if (!answer.ok) throw new Error(`${answer.status}`);
  const box = document.createElement("template");
  box.innerHTML = await answer.text();
  for (const name of names) {
    const fresh = $(`[data-fragment="${name}"]`, box.content);
    const old = fragment(name);
    if (fresh && old) merge(old, fresh);
  }
  tick();
  document.dispatchEvent(new Event("fragments"));
}

const live = () => $$("[data-fragment]");
const all = () => { for (const e of live()) if (e.dataset.live || e.dataset.every) staleNow(e.dataset.fragment); };

// What changed decides which fragments are old: "*", "flow:<name>" or "job:<id> <id> …".
function concerns(on, change) {
  if (on === "*") return true;
  if (on.startsWith("flow:")) return on.slice(5) === change.flow;
  return on.startsWith("job:") && on.slice(4).split(" ").includes(change.job);
}

setInterval(() => {
  const at = performance.now();
  for (const e of live()) {
    const every = Number(e.dataset.every || 0) * 1000;
    if (every && at - (read.get(e.dataset.fragment) ?? opened) >= every) staleNow(e.dataset.fragment);
  }
}, 1000);
const opened = performance.now();

// --- the connection: one line, no shift, says how old the page is ---------------------------------------------

const FIRST = 500, LONGEST = 10000;
let source = null;
let last = page.change; // the number of the last change that was seen
let changedAt = now();
let pause = FIRST;
let again = 0;

function connect() {
  clearTimeout(again);
  source?.close();
  const address = new URL(`${page.root}/v1/events`, location.href);
  if (last) address.searchParams.set("after", last);
  source = new EventSource(address);
  source.onopen = () => {
    if (isOff()) all(); // what was drawn while there was nobody to ask
    pause = FIRST;
    show(false);
  };
  source.addEventListener("change", (event) => {
    last = event.lastEventId || last;
    changedAt = now();
    let change;
    try { change = JSON.parse(event.data); } catch { return; }
    for (const e of live()) if (e.dataset.live && concerns(e.dataset.live, change)) staleNow(e.dataset.fragment);
  });
  source.addEventListener("resync", (event) => {
    last = event.lastEventId || "";
    const line = $("#resynced");
    write($(".at", line), clock(now()));
    line.hidden = false;
    all();
  });
  source.addEventListener("end", () => location.reload()); // whoever may not look any more is asked who they are
  source.onerror = () => {
    // A browser gives up on some answers, and goes on with a long pause on others: this asks by itself.
    source.close();
    show(true);
    again = setTimeout(connect, pause * (0.7 + 0.6 * Math.random()));
    pause = Math.min(LONGEST, pause * 1.7);
  };
}

const isOff = () => $(".live")?.classList.contains("off");

function show(off) {
  const dot = $(".live");
  dot.hidden = false;
  if (off && !isOff()) {
    const line = $("#offline");
    const ago = $(".ago", line);
    ago.dataset.since = changedAt;
    write(ago, span(now() - changedAt));
    write($(".at", line), clock(now()));
  }
  dot.classList.toggle("off", off);
  write($(".say", dot), off ? "reconnecting" : "live");
  $("#offline").hidden = !off;
}

if (page.change && window.EventSource) {
  connect();
  $("#try-now").addEventListener("click", connect);
  addEventListener("pagehide", () => { clearTimeout(again); source?.close(); });
  addEventListener("pageshow", (event) => { if (event.persisted) { connect(); all(); } });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { tick(); if (stale.size && !timer && !reading) refresh(); } });
}

// --- dialogs: the form of an action is a page of its own, shown here as a dialog -------------------------------

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener) { openDialog(document.getElementById(opener.dataset.open)); return; }
  const closer = event.target.closest("[data-close]");
  if (closer?.closest("dialog")) { event.preventDefault(); closer.closest("dialog").close(); return; }
  const link = event.target.closest("a[data-dialog]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    ask(link.href);
  }
});

function openDialog(dialog) {
  if (!dialog || dialog.open) return;
  dialog.showModal();
  ($("input:not([type=hidden]):not([type=radio])", dialog) || $("[data-close]", dialog))?.focus();
}

async function ask(href) {
  const address = new URL(href, location.href);
  address.searchParams.set("fragment", "form");
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const dialog = $("#action");
    dialog.innerHTML = await answer.text();
    dialog.removeAttribute("aria-label");
    dialog.setAttribute("aria-labelledby", "action-title");
    const form = $("form", dialog);
    needReason(form);
    openDialog(dialog);
  } catch {
    location.href = href; // the page says what is wrong
  }
}

function needReason(form) {
  const reason = $("[name=reason]", form);
  const go = $("[data-go]", form);
  if (!reason || !go || "never" in go.dataset) return;
  const check = () => { go.disabled = !reason.value.trim(); };
  reason.addEventListener("input", check);
  check();
}
for (const form of $$("form[data-needs-reason]")) needReason(form);

// A form is sent once, however often it is clicked.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("form[data-dialog]")) {
    event.preventDefault();
    const data = new FormData(form);
    if (event.submitter?.name) data.append(event.submitter.name, event.submitter.value);
    ask(`${form.getAttribute("action")}?${new URLSearchParams(data)}`); // a button may be named "action"
  } else if (form.getAttribute("method") === "post") {
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => { delete form.dataset.sent; }, 3000);
  }
});

// --- the list: a filter is an address; select rows, or all that match -----------------------------------------

const filters = $("#filters");
if (filters) {
  // Empty fields make no address.
  filters.addEventListener("submit", () => {
    for (const field of $$("input, select", filters)) if (!field.value) field.disabled = true;
    setTimeout(() => { for (const field of $$("input, select", filters)) field.disabled = false; });
  });
  filters.addEventListener("change", (event) => { if (event.target.matches("input[type=checkbox], select")) filters.requestSubmit(); });
}

const list = $("#list");
const bar = $("#selbar");
if (list && bar) {
  const matching = $("#select-matching");
  const every = $("#all");
  const boxes = () => $$("#rows input[name=job]");
  const select = () => {
    const wanted = matching.getAttribute("aria-pressed") === "true";
    let number = 0;
    for (const box of boxes()) {
      box.disabled = wanted;
      if (wanted) box.checked = false;
      number += box.checked;
      box.closest("tr").setAttribute("aria-selected", String(box.checked || wanted));
    }
    bar.hidden = !number && !wanted;
    write($("#selcount"), wanted ? "All that match are selected" : `${number} selected`);
    every.checked = wanted || (number > 0 && number === boxes().length);
    every.indeterminate = !wanted && number > 0 && !every.checked;
  };
  const none = () => { matching.setAttribute("aria-pressed", "false"); for (const box of boxes()) box.checked = false; select(); };
  for (const element of [matching, every, $("#clear")]) element.hidden = false;
  list.addEventListener("change", (event) => {
    if (event.target === every) {
      matching.setAttribute("aria-pressed", "false");
      for (const box of boxes()) box.checked = every.checked;
    }
    select();
  });
  matching.addEventListener("click", () => {
    matching.setAttribute("aria-pressed", String(matching.getAttribute("aria-pressed") !== "true"));
    select();
  });
  $("#clear").addEventListener("click", none);
  document.addEventListener("fragments", select);
  select();
}

// --- keys -----------------------------------------------------------------------------------------------------

let pressedG = -Infinity;
let cursor = null;

function move(by) {
  const rows = $$("[data-rows] tbody tr").filter((row) => !row.hidden);
  if (!rows.length) return;
  const at = rows.indexOf(cursor);
  cursor?.classList.remove("cursor");
  cursor = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
  cursor.classList.add("cursor");
  ($("a", cursor) || $("button, input, summary", cursor))?.focus({ preventScroll: true });
  cursor.scrollIntoView({ block: "nearest" });
}

// `r` acts on the row of the cursor where nothing is selected.
function shortcut(key) {
  const row = cursor?.isConnected ? cursor : null;
  const box = row && $("input[name=job]", row);
  if (bar && bar.hidden) {
    if (!box) return;
    box.click();
  }
  const states = bar ? $$("#rows tr[aria-selected=true]").map((each) => each.dataset.state) : [];
  const wanted = bar && states.length && states.every((state) => state === "quarantined") && $("button[value=release]", bar);
  (wanted || $(`[data-shortcut="${key}"]`))?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  if (event.target.matches("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") { event.preventDefault(); event.target.blur(); }
    return;
  }
  const afterG = event.timeStamp - pressedG < 1200;
  pressedG = -Infinity;
  const place = afterG && /^[a-z]$/.test(event.key) && $(`.nav a[data-key="${event.key}"]`);
  if (place) { event.preventDefault(); place.click(); return; }
  if (event.key === "/") ($("[data-search]") || $(".find input"))?.focus();
  else if (event.key === "?") openDialog($("#keys"));
  else if (event.key === "g") { pressedG = event.timeStamp; return; }
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "x" && cursor) $("input[type=checkbox]", cursor)?.click();
  else if (event.key === "r") shortcut("r");
  else if (event.key === "v") $("#verify")?.click();
  else return;
  event.preventDefault();
});
for (const element of $$(".help, [data-copy], #verify")) element.hidden = false;

// --- copy -----------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = $(button.dataset.copy).textContent.trim();
  const before = button.textContent;
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no secure context: the old way
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    if (!document.execCommand("copy")) said = "Not allowed";
    field.remove();
    button.focus();
  }
  write(button, said);
  setTimeout(() => write(button, before), 1400);
});

// --- the proof: SHA-256 over the journal, entry by entry --------------------------------------------------------

const FIELDS = ["prev_hash", "job_id", "seq", "at", "actor", "exec_id", "job_from", "job_to", "exec_from", "exec_to", "step", "reason", "metadata"];

// Where the page is not served securely (plain HTTP from another host) there is no crypto.subtle: the same, by hand.
function sha256(bytes) {
  if (globalThis.crypto?.subtle) return crypto.subtle.digest("SHA-256", bytes).then((b) => new Uint8Array(b));
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  const part = (x) => ((x - Math.floor(x)) * 2 ** 32) | 0;
  const K = primes.map((p) => part(Math.cbrt(p)));
  const H = primes.slice(0, 8).map((p) => part(Math.sqrt(p)));
  const size = ((bytes.length + 72) >> 6) << 6;
  const data = new DataView(new ArrayBuffer(size));
  bytes.forEach((b, i) => data.setUint8(i, b));
  data.setUint8(bytes.length, 0x80);
  data.setUint32(size - 8, Math.floor(bytes.length / 2 ** 29));
  data.setUint32(size - 4, bytes.length << 3);
  const turn = (x, n) => (x >>> n) | (x << (32 - n));
  for (let at = 0; at < size; at += 64) {
    const w = Array.from({ length: 16 }, (_, i) => data.getInt32(at + 4 * i));
    let [a, b, c, d, e, f, g, h] = H;
    for (let i = 0; i < 64; i++) {
      if (i >= 16) {
        const p = w[i - 15], q = w[i - 2];
        w[i] = (w[i - 16] + (turn(p, 7) ^ turn(p, 18) ^ (p >>> 3)) + w[i - 7] + (turn(q, 17) ^ turn(q, 19) ^ (q >>> 10))) | 0;
      }
      const x = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const y = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + x) | 0, c, b, a, (x + y) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((v, i) => { H[i] = (H[i] + v) | 0; });
  }
  const out = new DataView(new ArrayBuffer(32));
  H.forEach((v, i) => out.setInt32(4 * i, v));
  return Promise.resolve(new Uint8Array(out.buffer));
}

async function hashOf(entry) {
  const content = JSON.stringify(FIELDS.map((field) => entry[field]));
  return [...(await sha256(new TextEncoder().encode(content)))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

async function fault(entry, before) {
  if (entry.seq !== (before ? before.seq + 1 : 1)) return "entries are missing before it";
  if (entry.prev_hash !== (before ? before.hash : "")) return "it does not follow the entry before it";
  if (entry.job_from !== (before ? before.job_to : null)) return `it starts from ${entry.job_from}, but the job was ${before?.job_to}`;
  if ((await hashOf(entry)) !== entry.hash) return "its content was changed after it was written";
  return "";
}

$("#verify")?.addEventListener("click", async () => {
  const say = (icon, state, text) => {
    const line = $("#verdict");
    line.className = `say ${state}`;
    $("use", line).setAttribute("href", `#s-${icon}`);
    write($("span", line), text);
  };
  try {
    const answer = await fetch($("[data-journal]").dataset.journal, { headers: { Accept: "application/json" }, credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const entries = await answer.json();
    const began = performance.now();
    const mark = (seq, how) => { const row = $(`#entries tr[data-seq="${seq}"]`); row?.classList.remove("holds", "broken"); row?.classList.add(how); };
    let before = null;
    for (const entry of entries) {
      const wrong = await fault(entry, before);
      mark(entry.seq, wrong ? "broken" : "holds");
      if (wrong) {
        say("failed", "failed", `Entry ${entry.seq}: ${wrong}. The ${entry.seq - 1} entries before it hold.`);
        return;
      }
      before = entry;
    }
    const head = $("#proof-text").textContent;
    const moved = head.includes(before.hash) ? "" : " (it has moved on since this page was read)";
    say("succeeded", "succeeded", `${entries.length} entries, chain holds up to head ${before.hash.slice(0, 8)}…${moved}`);
    write($("#took"), `recomputed in this browser in ${(performance.now() - began).toFixed(1)} ms`);
  } catch (error) {
    say("warn", "warn", `The journal could not be read: ${error.message}`);
  }
});
