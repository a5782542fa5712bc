// What all pages share: theme, keys, copying, and one stream of live changes for all tabs of the browser.

/** @type {TrustedTypePolicy | {createHTML: (html: string) => string}} */
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("holdfast", { createHTML: (html) => html })
  : { createHTML: (html) => html };

/**
 * Parse a part of a page that our own server rendered, and escaped. The only place where text becomes HTML.
 * @param {string} html
 * @returns {DocumentFragment}
 */
export function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}

/**
 * Fetch a part of a page.
 * @param {string} address
 * @param {string} part
 * @param {AbortSignal} [signal]
 * @returns {Promise<DocumentFragment>}
 */
export async function fragment(address, part, signal) {
  const response = await fetch(address, { headers: { "X-Fragment": part }, signal });
  if (response.status === 401) { location.reload(); }
  const found = parse(await response.text());
  showClocks(found);
  return found;
}

/** @param {string} text @param {boolean} [keep] */
export function banner(text, keep = false) {
  const place = document.querySelector("[data-banner]");
  if (!(place instanceof HTMLElement)) return;
  place.textContent = text;
  place.hidden = !text;
  if (text && !keep) setTimeout(() => { if (place.textContent === text) place.hidden = true; }, 5000);
}

/** @param {EventTarget | null} target */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.matches("input:not([type=checkbox]):not([type=range]), textarea, select") || target.isContentEditable);
}

/** Show times of the day by the reader's clock. @param {ParentNode} [within] */
export function showClocks(within = document) {
  for (const each of within.querySelectorAll("time[data-clock]")) {
    const at = new Date(each.getAttribute("datetime") ?? "");
    if (Number.isNaN(at.valueOf())) continue;
    each.removeAttribute("data-clock");
    each.textContent = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    each.setAttribute("title", at.toLocaleString());
  }
}
showClocks();

document.documentElement.classList.add("scripted");
for (const each of document.querySelectorAll("[data-theme-toggle], [data-keys], [data-live], [data-rail-toggle], [data-save]")) each.hidden = false;

for (const each of document.querySelectorAll(".rail [aria-current], .tabs [aria-current]")) each.scrollIntoView({ block: "nearest", inline: "center" });

// Theme --------------------------------------------------------------------------------------------------------

document.querySelector("[data-theme-toggle]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `holdfast_theme=${root.dataset.theme}; path=/; max-age=31536000; SameSite=Strict`;
});

document.querySelector("[data-rail-toggle]")?.addEventListener("click", () => {
  const root = document.documentElement;
  if (root.dataset.rail) delete root.dataset.rail;
  else root.dataset.rail = "off";
  document.cookie = `holdfast_rail=${root.dataset.rail ?? "on"}; path=/; max-age=31536000; SameSite=Strict`;
});

// Copying, keys ------------------------------------------------------------------------------------------------

/** @param {ParentNode} [within] */
export function enableCopying(within = document) {
  for (const each of within.querySelectorAll("[data-copy]")) each.hidden = false;
}
enableCopying();

document.addEventListener("click", async (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const button = target?.closest("[data-copy]");
  if (button) {
    await navigator.clipboard.writeText(button.parentElement?.querySelector("code")?.textContent ?? "");
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }
  if (target?.closest("[data-keys]")) showKeys();
  for (const each of document.querySelectorAll("details.copy[open]")) {
    if (!each.contains(target)) each.removeAttribute("open");
  }
});

function showKeys() {
  const dialog = document.querySelector("#keys");
  if (dialog instanceof HTMLDialogElement) dialog.showModal();
}

// What opens takes the focus, and Escape closes it and gives the focus back.
document.addEventListener("toggle", (event) => {
  const menu = event.target;
  if (!(menu instanceof HTMLDetailsElement) || !menu.open || !menu.matches("details.copy, details.menu") || !menu.contains(document.activeElement)) return;
  const first = menu.querySelector(":scope > :not(summary) :is(a, button:not([hidden]))");
  if (first instanceof HTMLElement) first.focus();
}, true);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  const menu = document.activeElement?.closest("details.copy[open], details.menu[open]") ?? document.querySelector("details.copy[open], details.menu[open]");
  if (!(menu instanceof HTMLDetailsElement)) return;
  event.stopImmediatePropagation();
  menu.open = false;
  menu.querySelector("summary")?.focus();
});

document.addEventListener("keydown", (event) => {
  if (isTyping(event.target) || event.metaKey || event.ctrlKey || event.altKey) {
    if ((event.metaKey || event.ctrlKey) && event.key === "k") { event.preventDefault(); openPalette(); }
    return;
  }
  if (event.key === "/") { event.preventDefault(); find(); }
  if (event.key === "?") showKeys();
  if (event.key === "x") {
    const tick = document.activeElement?.closest("main.page tr")?.querySelector("[data-ticks] input[type=checkbox]");
    if (tick instanceof HTMLInputElement) tick.click();
  }
  if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("main.page .rows tbody th a, main.page .hit h2 a")];
    const at = links.indexOf(/** @type {Element} */ (document.activeElement));
    const next = links[at < 0 ? 0 : at + (event.key === "j" ? 1 : -1)];
    if (next instanceof HTMLElement) next.focus();
  }
});

function find() {
  const input = document.querySelector(".find input");
  if (input instanceof HTMLInputElement) { input.focus(); input.select(); }
}

// Live changes: one tab has the stream, and passes on what comes -------------------------------------------------

/** @typedef {{threads: string[], agents: string[], scopes: string[], complete: boolean}} Changes */

const channel = new BroadcastChannel("holdfast");
const button = document.querySelector("[data-live]");
let paused = false;

/** @param {Changes} changes */
function announce(changes) {
  if (!paused) document.dispatchEvent(new CustomEvent("holdfast:changes", { detail: changes }));
}

channel.addEventListener("message", (event) => {
  if (event.data.changes) announce(event.data.changes);
  if ("lost" in event.data) setLost(event.data.lost);
});

let offline = false;

/** @param {boolean} lost */
function setLost(lost) {
  if (lost === offline) return;  // what another part of the page says stays
  offline = lost;
  showLive();
  banner(lost ? "The server does not answer. This page connects again by itself; nothing in it is lost." : "", true);
}

function showLive() {
  const text = button?.querySelector("span");
  if (text) text.textContent = offline ? "Offline" : paused ? "Paused" : "Live";
  button?.classList.toggle("offline", offline);
}

if (button instanceof HTMLButtonElement) {
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(!paused));
    showLive();
    if (!paused) announce({ threads: [], agents: [], scopes: [], complete: false });
  });
  navigator.locks?.request("holdfast-events", () => new Promise(() => {
    const since = document.body.dataset.since ?? "";
    const source = new EventSource(`/api/v1/events?since=${encodeURIComponent(since)}`);
    let first = Boolean(since);  // without a token, something may have changed since the page was made
    source.addEventListener("changes", (event) => {
      setLost(false);
      channel.postMessage({ lost: false });
      /** @type {Changes} */
      const changes = JSON.parse(event.data);
      if (first && !changes.threads.length && changes.complete) { first = false; return; }
      first = false;
      announce(changes);
      channel.postMessage({ changes });
    });
    source.addEventListener("error", () => { setLost(true); channel.postMessage({ lost: true }); });
  }));
}

// Any page but that of a thread is read again, unless somebody types in it.
async function refresh() {
  const main = document.querySelector("main.page");
  const active = document.activeElement;
  if (!main || main.querySelector("form[data-action], [data-keep]") || document.querySelector("dialog[open]") || (main.contains(active) && isTyping(active))) return;
  const part = await fragment(location.href, "main");
  if (part.querySelector(":scope > .problem")) return;
  const open = [...main.querySelectorAll("details")].map((each) => each.open);
  const ticked = new Set([...main.querySelectorAll("[data-ticks] input:checked")].map((each) => each.value));
  const link = active instanceof HTMLAnchorElement && main.contains(active) ? active.getAttribute("href") ?? "" : "";
  main.replaceChildren(part);
  for (const each of main.querySelectorAll("[data-ticks] input")) each.checked = ticked.has(each.value);
  if (link) main.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
  main.querySelectorAll("details").forEach((each, at) => { if (open[at]) each.open = true; });
  enableCopying(main);
  for (const each of main.querySelectorAll("[data-save]")) each.hidden = false;
}
document.addEventListener("holdfast:changes", refresh);
const polled = document.querySelector("[data-poll]");
if (polled instanceof HTMLElement) setInterval(() => { if (!paused && !document.hidden) refresh(); }, Number(polled.dataset.poll));

// Go to anything by its name --------------------------------------------------------------------------------------

const palette = document.querySelector("#palette");
/** @type {AbortController | null} */
let finding = null;

function openPalette() {
  if (!(palette instanceof HTMLDialogElement) || palette.open) return;
  palette.showModal();
  const input = palette.querySelector("input");
  if (input) { input.select(); findAll(input.value); }
}

/** @param {string} query */
async function findAll(query) {
  finding?.abort();
  finding = new AbortController();
  try {
    const part = await fragment(`/search?${new URLSearchParams({ q: query })}`, "find", finding.signal);
    const found = document.querySelector("#found");
    found?.replaceChildren(part);
    if (found instanceof HTMLElement) found.dataset.query = query;
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) throw error;
  }
}

let typing = 0;
palette?.addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = window.setTimeout(() => { if (event.target instanceof HTMLInputElement) findAll(event.target.value); }, 120);
});
palette?.addEventListener("keydown", async (event) => {
  if (!(event instanceof KeyboardEvent)) return;
  const links = [...palette.querySelectorAll("a")];
  const at = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  const input = palette.querySelector("input");
  if (event.key === "ArrowDown") { event.preventDefault(); links[Math.min(at + 1, links.length - 1)]?.focus(); }
  else if (event.key === "ArrowUp") { event.preventDefault(); if (at > 0) links[at - 1].focus(); else input?.focus(); }
  else if (event.key === "Enter" && at < 0) {
    event.preventDefault();
    const found = document.querySelector("#found");
    if (input && found instanceof HTMLElement && found.dataset.query !== input.value) { clearTimeout(typing); await findAll(input.value); }
    palette.querySelector("a")?.click();
  }
});
palette?.addEventListener("click", (event) => { if (event.target === palette && palette instanceof HTMLDialogElement) palette.close(); });

document.addEventListener("change", (event) => {
  if (event.target instanceof HTMLInputElement && event.target.matches(".filters[action] .check input")) event.target.form?.requestSubmit();
});

// Saved views: addresses with a name, in this browser -------------------------------------------------------------

/** @returns {{name: string, address: string}[]} */
function savedViews() {
  try {
    const found = JSON.parse(localStorage.getItem("holdfast_views") ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each?.name === "string" && /^\/(?!\/)/.test(each?.address)) : [];
  } catch { return []; }
}

/** @param {{name: string, address: string}[]} views */
function storeViews(views) { localStorage.setItem("holdfast_views", JSON.stringify(views.slice(0, 30))); showViews(); }

function showViews() {
  const place = document.querySelector("[data-saved]");
  if (!(place instanceof HTMLElement)) return;
  const views = savedViews();
  const label = document.createElement("span");
  label.className = "label";
  label.textContent = "Saved";
  place.replaceChildren(label, ...views.map((view) => {
    const row = document.createElement("div");
    const link = document.createElement("a");
    link.href = view.address;
    link.textContent = view.name;
    const remove = document.createElement("button");
    remove.className = "ghost";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", `Remove ${view.name}`);
    remove.addEventListener("click", () => storeViews(savedViews().filter((each) => each.address !== view.address)));
    row.append(link, remove);
    return row;
  }));
  place.hidden = !views.length;
}
showViews();
document.addEventListener("click", (event) => {
  if (!(event.target instanceof Element) || !event.target.closest("[data-save]")) return;
  const address = location.pathname + location.search;
  const name = window.prompt("Name of the view", `${document.querySelector("h1")?.textContent?.trim() ?? ""} ${decodeURIComponent(location.search.slice(1)).replaceAll("+", " ")}`.trim());
  if (name) storeViews([...savedViews().filter((each) => each.address !== address), { name, address }]);
});
