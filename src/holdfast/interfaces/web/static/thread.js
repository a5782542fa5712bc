// The page of a thread: steps without reloading, the state as a lazy tree, the inspector, the history in parts.

import { banner, enableCopying, fragment, isTyping } from "./app.js";

const workspace = document.querySelector(".workspace");
const panel = document.querySelector("[data-step-panel]");
const history_ = document.querySelector("[data-history]");
const inspector = document.querySelector("[data-inspector]");
const base = workspace instanceof HTMLElement ? workspace.dataset.base ?? "" : "";

/** @returns {HTMLElement | null} */
const bar = () => document.querySelector("[data-step-panel] .bar");

// Steps ----------------------------------------------------------------------------------------------------------

/** Steps that were shown, and those that are likely next, by address. What a step contains does not change.
 * @type {Map<string, {part: Promise<DocumentFragment>, time: number}>} */
const steps = new Map();
const KEPT = 24;
const KEPT_MS = 60_000;

/** @param {string} address */
const absolute = (address) => new URL(address, location.href).href;

/** @param {string} key @returns {Promise<DocumentFragment> | null} */
function loaded(key) {
  const found = steps.get(key);
  return found && performance.now() - found.time < KEPT_MS ? found.part : null;
}

/** @param {string} key @param {Promise<DocumentFragment>} part */
function keep(key, part) {
  steps.delete(key);
  steps.set(key, { part, time: performance.now() });
  // What could not be read is asked for again.
  part.then((found) => { if (!found.querySelector(".bar")) steps.delete(key); }, () => steps.delete(key));
  for (const oldest of steps.keys()) { if (steps.size > KEPT) steps.delete(oldest); }
}

/** @param {string} address @returns {Promise<DocumentFragment>} */
function load(address) {
  const key = absolute(address);
  const found = loaded(key);
  if (found) return found;
  const part = fragment(key, "step");
  if (isStep(new URL(key))) keep(key, part);
  return part;
}

/** On which side of a step the next one is likely asked for; empty before a key was pressed. @type {"" | "prev" | "next"} */
let side = "";
let isLoadingAhead = false;
const ENOUGH = 3;

/** Load steps before they are asked for: some at once on the side to which one moves. Not for an identity, whose reads
 * are recorded: it has not looked at them. */
async function loadAhead() {
  if (isLoadingAhead || !panel || !workspace?.hasAttribute("data-ahead")) return;
  isLoadingAhead = true;
  try {
    /** @type {ParentNode} */
    let from = panel;
    for (let count = 0; count < ENOUGH; count += 1) {
      const link = from.querySelector(`a[rel=${side || "prev"}]`)?.getAttribute("href");
      if (!link) return;
      const key = absolute(link);
      const found = loaded(key);
      if (!found && !side) { await load(key); return; }
      if (!found) { await loadSeveral(key); return; }
      from = await found;
    }
  } catch {
    // It is loaded again when it is asked for.
  } finally {
    isLoadingAhead = false;
  }
}

/** @param {Element} element @returns {DocumentFragment} */
function contentOf(element) {
  const part = document.createDocumentFragment();
  part.append(...element.childNodes);
  return part;
}

/** Load a step, and those further on that side. @param {string} key */
async function loadSeveral(key) {
  const all = fragment(key, side === "next" ? "steps-after" : "steps-before");
  const parts = all.then((found) => new Map([...found.children].map((each) => [absolute(each.getAttribute("data-address") ?? ""), contentOf(each)])));
  keep(key, parts.then((found) => found.get(key) ?? Promise.reject(new Error("not there"))));
  for (const [address, part] of await parts) { if (address !== key) keep(address, Promise.resolve(part)); }
}

/** How often a step was asked for: only the last one is shown. */
let asked = 0;

/** How many of them lead elsewhere: what changes in the store meanwhile does not lead back. */
let leaving = 0;

/**
 * Show another step, or another view of this one.
 * @param {string} address
 * @param {boolean} [push]
 */
async function show(address, push = true) {
  if (!(panel instanceof HTMLElement)) return;
  const mine = (asked += 1);
  if (push) leaving += 1;
  const slow = window.setTimeout(() => panel.classList.add("busy"), 300);
  try {
    const part = await load(address);
    if (mine !== asked) return;
    const top = panel.querySelector(".content")?.scrollTop ?? 0;
    const before = bar()?.dataset.id;
    panel.replaceChildren(document.importNode(part, true));
    enableCopying(panel);
    const now = bar();
    if (now) document.title = now.dataset.title ?? document.title;
    showCounts(now);
    if (push) window.history.pushState(null, "", address);
    select(now?.dataset.id ?? "");
    if (before === now?.dataset.id) panel.querySelector(".content")?.scrollTo(0, top);
    else settle();
    setTimeout(loadAhead);
  } catch {
    if (mine === asked) banner("The step could not be read. Try again.");
  } finally {
    clearTimeout(slow);
    if (push) leaving -= 1;
    if (mine === asked) panel.classList.remove("busy");
  }
}

/** Show above the history how many steps and branches there are. @param {HTMLElement | null} now */
function showCounts(now) {
  const counts = document.querySelector("[data-counts]:not(.bar)");
  if (counts && now?.dataset.counts) counts.textContent = now.dataset.counts;
}

/** Show what later steps change of an earlier one: how many follow, and how large the thread is. Not for an identity,
 * whose reads are recorded. */
async function refreshFacts() {
  const shown = bar();
  if (!panel || !shown || !workspace?.hasAttribute("data-ahead")) return;
  const part = await fragment(location.href, "step");
  const now = part.querySelector(".bar");
  if (!(now instanceof HTMLElement) || now.dataset.id !== shown.dataset.id || bar() !== shown) return;
  showCounts(now);
  for (const place of [".facts", ".slider"]) {
    const before = panel.querySelector(place);
    const after = part.querySelector(place);
    if (before && after && !before.contains(document.activeElement)) before.replaceWith(document.importNode(after, true));
  }
}

/** Scroll a conversation to its end, as a chat does. */
function settle() {
  const content = panel?.querySelector(".content");
  if (content instanceof HTMLElement && content.querySelector(".message")) content.scrollTop = content.scrollHeight;
}

/** The row of the step that is shown. @type {Element | null} */
let current = document.querySelector(".row[aria-current]");

/** @param {Element} row */
function mark(row) {
  if (current !== row) current?.removeAttribute("aria-current");
  current = row;
  row.closest(".quiet details")?.setAttribute("open", "");
  row.setAttribute("aria-current", "step");
}

/** @param {string} id */
function select(id) {
  const row = rowOf(id);
  if (row) {
    mark(row);
    row.scrollIntoView({ block: "nearest" });
  } else if (id) {
    reload();
  }
}

/** @param {string} id @returns {Element | null} */
const rowOf = (id) => document.querySelector(`.row[data-id="${CSS.escape(id)}"]`);

// History: in parts, of which only those near the screen are in the page. -----------------------------------------

/** Read the history again, around the step that is shown. */
async function reload() {
  if (!(history_ instanceof HTMLElement)) return;
  const part = await fragment(location.href, "history");
  history_.replaceChildren(part);
  watch();
  const row = rowOf(bar()?.dataset.id ?? "");
  if (row) { mark(row); row.scrollIntoView({ block: "center" }); }
}

/** @param {HTMLAnchorElement} link */
async function more(link) {
  const place = link.closest(".further");
  link.removeAttribute("data-more");
  const part = await fragment(link.href, "rows");
  place?.replaceWith(part);
  watch();
}

const seen = new IntersectionObserver((entries) => {
  for (const each of entries) {
    if (each.isIntersecting && each.target instanceof HTMLAnchorElement) { seen.unobserve(each.target); more(each.target); }
  }
}, { root: history_, rootMargin: "600px" });

/** Rows that are far from the screen. Their list keeps its height. @type {WeakMap<Element, DocumentFragment>} */
const away = new WeakMap();
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting, boundingClientRect } of entries) {
    const rows = away.get(target);
    if (!(target instanceof HTMLElement)) continue;
    if (isIntersecting && rows) {
      away.delete(target);
      target.replaceChildren(rows);
      target.style.height = "";
    } else if (!isIntersecting && !rows && boundingClientRect.height) {
      const taken = document.createDocumentFragment();
      target.style.height = `${boundingClientRect.height}px`;
      taken.append(...target.childNodes);
      away.set(target, taken);
    }
  }
}, { root: history_, rootMargin: "1800px" });

function watch() {
  for (const link of document.querySelectorAll("[data-more]")) seen.observe(link);
  for (const list of document.querySelectorAll(".lanes")) near.observe(list);
}

// Values ---------------------------------------------------------------------------------------------------------

/** What the inspector was opened from. @type {Element | null} */
let opener = null;

/** @param {boolean} open */
function setInspecting(open) {
  if (!open && inspector?.contains(document.activeElement) && opener instanceof HTMLElement) opener.focus({ preventScroll: true });
  if (inspector instanceof HTMLElement) inspector.hidden = !open;
  workspace?.toggleAttribute("data-inspecting", open);
}

/** @param {string} address */
async function inspect(address) {
  if (!(inspector instanceof HTMLElement)) { location.href = address; return; }
  if (!inspector.contains(document.activeElement)) opener = document.activeElement;
  inspector.replaceChildren(await fragment(address, "inspect"));
  setInspecting(true);
  enableCopying(inspector);
  inspector.querySelector("a")?.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const link = target?.closest("a");
  if (!(link instanceof HTMLAnchorElement) || link.matches("[data-act], [data-edit], [data-dismiss]") || event.ctrlKey || event.metaKey || event.shiftKey || link.hasAttribute("download")) return;
  if (link.matches("[data-inspect]")) { event.preventDefault(); inspect(link.href); }
  else if (link.matches("[data-close]") && inspector instanceof HTMLElement) { event.preventDefault(); setInspecting(false); }
  else if (link.matches("[data-more]")) { event.preventDefault(); more(link); }
  else if (link.matches("[data-more-values]")) { event.preventDefault(); moreValues(link); }
  else if (panel && (link.matches(".entry, [data-tab], [data-part], [rel=prev], [rel=next]") || isStep(link))) {
    event.preventDefault();
    show(keepTab(link));
  }
});

/** @param {HTMLAnchorElement | URL} link */
const isStep = (link) => Boolean(base) && link.pathname.startsWith(`${base}/`) && link.pathname.split("/").length === 4;

/** Stay in the same view when another step is chosen. @param {HTMLAnchorElement} link */
function keepTab(link) {
  if (link.search) return link.href;
  const tab = document.querySelector(".tabs a[aria-current]");
  return tab instanceof HTMLElement ? `${link.href}?tab=${tab.dataset.tab}` : link.href;
}

/** @param {HTMLAnchorElement} link */
async function moreValues(link) {
  const part = await fragment(link.href, "value");
  link.closest("p")?.replaceWith(part);
}

// The tree loads as it opens.
document.addEventListener("toggle", async (event) => {
  const details = event.target;
  if (!(details instanceof HTMLDetailsElement) || !details.open || !details.dataset.node) return;
  const place = details.querySelector("[data-children]");
  const address = details.dataset.node;
  delete details.dataset.node;
  details.closest("[role=treeitem]")?.setAttribute("aria-expanded", "true");
  place?.replaceChildren();
  place?.replaceChildren(await fragment(address, "value"));
}, true);

// The slider.
document.addEventListener("input", (event) => {
  const slider = event.target;
  if (!(slider instanceof HTMLInputElement) || !slider.matches("[data-slider]")) return;
  const output = slider.form?.querySelector("output");
  if (output) output.textContent = `#${slider.value}`;
});
document.addEventListener("change", (event) => {
  const target = event.target;
  if (target instanceof HTMLInputElement && target.matches("[data-slider]")) go(target.value);
  if (target instanceof HTMLInputElement && target.name === "compare") compare(target);
});

/** @param {string} to */
async function go(to) {
  const branch = bar()?.dataset.branch ?? "";
  const tab = document.querySelector(".tabs a[aria-current]");
  const query = new URLSearchParams({ to, branch, tab: tab instanceof HTMLElement ? tab.dataset.tab ?? "" : "", zone: String(-new Date().getTimezoneOffset()) });
  const response = await fetch(`/go/${base.split("/")[2]}?${query}`, { headers: { "X-Fragment": "step" } });
  if (response.ok) show(response.url);
  else banner(`There is no step ${to} here.`);
}

document.querySelector("#goto form")?.addEventListener("submit", (event) => {
  if (!(event.target instanceof HTMLFormElement)) return;
  const to = String(new FormData(event.target).get("to") ?? "").trim();
  if (to) go(to);
});

/** The steps that are ticked, the last one at the end: their rows may be out of the page. @type {HTMLInputElement[]} */
let ticked = [];

/** Compare the two steps that are ticked. @param {HTMLInputElement} box */
function compare(box) {
  ticked = ticked.filter((each) => each !== box && each.checked);
  if (box.checked) ticked.push(box);
  if (ticked.length > 2) { const [first] = ticked.splice(0, 1); first.checked = false; }
  if (ticked.length !== 2) return;
  const [older, newer] = ticked.map((each) => ({ id: each.value, step: Number(each.dataset.step) })).sort((a, b) => a.step - b.step);
  show(`${base}/${encodeURIComponent(newer.id)}?tab=diff&a=${encodeURIComponent(older.id)}`);
}

/** The link of the row below or above the one that is shown. @param {boolean} down @returns {HTMLAnchorElement | null} */
function besideRow(down) {
  const rows = [...document.querySelectorAll(".row[data-id]:not([data-id=''])")].filter((row) => !row.closest("details.history details:not([open])"));
  const at = rows.findIndex((row) => row === current);
  return rows[at + (down ? 1 : -1)]?.querySelector("a") ?? null;
}

document.addEventListener("keydown", (event) => {
  if (!panel || isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const slider = event.target instanceof HTMLInputElement && event.target.type === "range";
  /** @param {string} selector */
  const press = (selector) => { const link = document.querySelector(selector); if (link instanceof HTMLElement) { event.preventDefault(); link.click(); } };
  if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && !slider) {
    side = event.key === "ArrowLeft" ? "prev" : "next";
    press(`a[rel=${side}]`);
  } else if (event.key === "j" || event.key === "k") {
    side = event.key === "j" ? "prev" : "next";
    besideRow(event.key === "j")?.click();
  } else if (event.key === "g") {
    const dialog = document.getElementById("goto");
    if (dialog instanceof HTMLDialogElement) { event.preventDefault(); dialog.showModal(); dialog.querySelector("input")?.select(); }
  } else if (event.key === "f") press("[data-act=fork]");
  else if (event.key === "e") press("[data-act=edit]");
  else if (event.key === "a") {
    const menu = document.querySelector(".menu > summary");
    if (menu instanceof HTMLElement) menu.focus({ preventScroll: true });  // what opens takes it from there
    press(".menu > summary");
  }
  else if (event.key === "x") { const box = current?.querySelector(".tick input"); if (box instanceof HTMLElement) box.click(); }
  else if (/^[1-6]$/.test(event.key)) press(`.tabs a:nth-child(${event.key})`);
  else if (event.key === "Escape") setInspecting(false);
});

window.addEventListener("popstate", () => show(location.href, false));

// An action was made.
document.addEventListener("holdfast:changed", async (event) => {
  const { address, done } = /** @type {CustomEvent} */ (event).detail;
  steps.clear();
  await show(address);
  await reload();
  banner(done);
});

document.addEventListener("holdfast:changes", async (event) => {
  const changes = /** @type {CustomEvent} */ (event).detail;
  const name = workspace instanceof HTMLElement ? workspace.dataset.thread : "";
  if (!name || (changes.complete && !changes.threads.includes(name))) return;
  steps.clear();
  const following = location.pathname === base && !leaving && !document.querySelector(".editing");
  if (following) await show(location.href, false);
  else await refreshFacts().catch(() => {});  // the next change shows them
  reload();
});

if (window.matchMedia("(max-width: 760px)").matches) document.querySelector("details.history")?.removeAttribute("open");
watch();
settle();
current?.scrollIntoView({ block: "center" });
setTimeout(loadAhead, 300);
