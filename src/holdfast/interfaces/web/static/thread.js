// The page of a thread: steps without reloading, the state as a lazy tree, the inspector, the history in parts.

import { banner, enableCopying, fragment, isTyping } from "./app.js";

const workspace = document.querySelector(".workspace");
const panel = document.querySelector("[data-step-panel]");
const history_ = document.querySelector("[data-history]");
const inspector = document.querySelector("[data-inspector]");
const base = workspace instanceof HTMLElement ? workspace.dataset.base ?? "" : "";

/** @type {AbortController | null} */
let loading = null;

/** @returns {HTMLElement | null} */
const bar = () => document.querySelector("[data-step-panel] .bar");

/**
 * Show another step, or another view of this one.
 * @param {string} address
 * @param {boolean} [push]
 */
async function show(address, push = true) {
  if (!(panel instanceof HTMLElement)) return;
  loading?.abort();
  loading = new AbortController();
  panel.classList.add("busy");
  try {
    const part = await fragment(address, "step", loading.signal);
    const top = panel.querySelector(".content")?.scrollTop ?? 0;
    const before = bar()?.dataset.id;
    panel.replaceChildren(part);
    enableCopying(panel);
    const now = bar();
    if (now) document.title = now.dataset.title ?? document.title;
    if (before === now?.dataset.id) panel.querySelector(".content")?.scrollTo(0, top);
    if (push) window.history.pushState(null, "", address);
    select(now?.dataset.id ?? "");
    settle();
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) banner("The step could not be read. Try again.");
    return;
  } finally {
    panel.classList.remove("busy");
  }
}

/** Scroll a conversation to its end, as a chat does. */
function settle() {
  const content = panel?.querySelector(".content");
  if (content instanceof HTMLElement && content.querySelector(".message")) content.scrollTop = content.scrollHeight;
}

/** @param {string} id */
function select(id) {
  for (const row of document.querySelectorAll(".row[aria-current]")) row.removeAttribute("aria-current");
  const row = rowOf(id);
  if (row) {
    row.setAttribute("aria-current", "step");
    row.scrollIntoView({ block: "nearest" });
  } else if (id) {
    reload();
  }
}

/** @param {string} id @returns {Element | null} */
const rowOf = (id) => document.querySelector(`.row[data-id="${CSS.escape(id)}"]`);

/** Read the history again, around the step that is shown. */
async function reload() {
  if (!(history_ instanceof HTMLElement)) return;
  history_.replaceChildren(await fragment(location.href, "history"));
  rowOf(bar()?.dataset.id ?? "")?.scrollIntoView({ block: "center" });
  watch();
}

/** @param {HTMLAnchorElement} link */
async function more(link) {
  const item = link.closest("li");
  link.removeAttribute("data-more");
  const part = await fragment(link.href, "rows");
  item?.replaceWith(part);
  watch();
}

const seen = new IntersectionObserver((entries) => {
  for (const each of entries) {
    if (each.isIntersecting && each.target instanceof HTMLAnchorElement) { seen.unobserve(each.target); more(each.target); }
  }
}, { root: history_, rootMargin: "600px" });

function watch() {
  for (const link of document.querySelectorAll("[data-more]")) seen.observe(link);
}

/** @param {string} address */
async function inspect(address) {
  if (!(inspector instanceof HTMLElement)) { location.href = address; return; }
  inspector.replaceChildren(await fragment(address, "inspect"));
  inspector.hidden = false;
  enableCopying(inspector);
  inspector.querySelector("a")?.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const link = target?.closest("a");
  if (!(link instanceof HTMLAnchorElement) || link.matches("[data-act]") || event.ctrlKey || event.metaKey || event.shiftKey || link.hasAttribute("download")) return;
  if (link.matches("[data-inspect]")) { event.preventDefault(); inspect(link.href); }
  else if (link.matches("[data-close]") && inspector instanceof HTMLElement) { event.preventDefault(); inspector.hidden = true; }
  else if (link.matches("[data-more]")) { event.preventDefault(); more(link); }
  else if (link.matches("[data-more-values]")) { event.preventDefault(); moreValues(link); }
  else if (panel && (link.matches(".entry, [data-tab], [data-part], [rel=prev], [rel=next]") || isStep(link))) {
    event.preventDefault();
    show(keepTab(link));
  }
});

/** @param {HTMLAnchorElement} link */
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
  if (target instanceof HTMLInputElement && target.name === "compare") compare();
});

/** @param {string} to */
async function go(to) {
  const branch = bar()?.dataset.branch ?? "";
  const tab = document.querySelector(".tabs a[aria-current]");
  const query = new URLSearchParams({ to, branch, tab: tab instanceof HTMLElement ? tab.dataset.tab ?? "" : "" });
  const response = await fetch(`/go/${base.split("/")[2]}?${query}`, { headers: { "X-Fragment": "step" } });
  if (response.ok) show(response.url);
  else banner(`There is no step ${to} here.`);
}

/** Compare the two steps that are ticked. */
function compare() {
  const ticked = [...document.querySelectorAll("input[name=compare]:checked")];
  if (ticked.length > 2) { ticked[0].checked = false; ticked.shift(); }
  if (ticked.length !== 2) return;
  const [newer, older] = ticked.map((each) => each.value);
  show(`${base}/${encodeURIComponent(newer)}?tab=diff&a=${encodeURIComponent(older)}`);
}

document.addEventListener("keydown", (event) => {
  if (!panel || isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const slider = event.target instanceof HTMLInputElement && event.target.type === "range";
  /** @param {string} selector */
  const press = (selector) => { const link = document.querySelector(selector); if (link instanceof HTMLElement) { event.preventDefault(); link.click(); } };
  if (event.key === "ArrowLeft" && !slider) press("[rel=prev]");
  else if (event.key === "ArrowRight" && !slider) press("[rel=next]");
  else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll(".row[data-id]:not([data-id=''])")];
    const at = rows.findIndex((row) => row.hasAttribute("aria-current"));
    rows[at + (event.key === "j" ? 1 : -1)]?.querySelector("a")?.click();
  } else if (event.key === "g") {
    const to = window.prompt("Go to step");
    if (to) go(to);
  } else if (event.key === "f") press("[data-act=fork]");
  else if (event.key === "e") press("[data-act=edit]");
  else if (event.key === "a") press(".menu > summary");
  else if (/^[1-5]$/.test(event.key)) press(`.tabs a:nth-child(${event.key})`);
  else if (event.key === "Escape" && inspector instanceof HTMLElement) inspector.hidden = true;
});

window.addEventListener("popstate", () => show(location.href, false));

// An action was made.
document.addEventListener("holdfast:changed", async (event) => {
  const { address, done } = /** @type {CustomEvent} */ (event).detail;
  await show(address);
  await reload();
  banner(done);
});

document.addEventListener("holdfast:changes", async (event) => {
  const changes = /** @type {CustomEvent} */ (event).detail;
  const name = workspace instanceof HTMLElement ? workspace.dataset.thread : "";
  if (!name || (changes.complete && !changes.threads.includes(name))) return;
  const following = location.pathname === base && window.scrollY >= 0;
  if (following) await show(location.href, false);
  reload();
});

if (window.matchMedia("(max-width: 760px)").matches) document.querySelector("details.history")?.removeAttribute("open");
watch();
settle();
document.querySelector(".row[aria-current]")?.scrollIntoView({ block: "center" });
