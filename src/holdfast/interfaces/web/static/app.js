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
  return parse(await response.text());
}

/** @param {string} text @param {boolean} [keep] */
export function banner(text, keep = false) {
  const place = document.querySelector("[data-banner]");
  if (!(place instanceof HTMLElement)) return;
  place.textContent = text;
  place.hidden = !text;
  if (text && !keep) setTimeout(() => { if (place.textContent === text) place.hidden = true; }, 4000);
}

/** @param {EventTarget | null} target */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.matches("input:not([type=checkbox]):not([type=range]), textarea, select") || target.isContentEditable);
}

document.documentElement.classList.add("scripted");
for (const each of document.querySelectorAll("[data-theme-toggle], [data-keys], [data-live]")) each.hidden = false;

// Theme --------------------------------------------------------------------------------------------------------

document.querySelector("[data-theme-toggle]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `holdfast_theme=${root.dataset.theme}; path=/; max-age=31536000; SameSite=Strict`;
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

document.addEventListener("keydown", (event) => {
  if (isTyping(event.target) || event.metaKey || event.ctrlKey || event.altKey) {
    if ((event.metaKey || event.ctrlKey) && event.key === "k") { event.preventDefault(); find(); }
    return;
  }
  if (event.key === "/") { event.preventDefault(); find(); }
  if (event.key === "?") showKeys();
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

/** @param {boolean} lost */
function setLost(lost) {
  banner(lost ? "The server does not answer. This page connects again by itself; nothing in it is lost." : "", true);
}

if (button instanceof HTMLButtonElement) {
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(!paused));
    const text = button.querySelector("span");
    if (text) text.textContent = paused ? "Paused" : "Live";
    if (!paused) announce({ threads: [], agents: [], scopes: [], complete: false });
  });
  navigator.locks?.request("holdfast-events", () => new Promise(() => {
    const source = new EventSource("/api/v1/events");
    let first = true;
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

document.addEventListener("holdfast:changes", async () => {
  const table = document.querySelector("main.page [data-live-table]");
  if (!table || location.pathname !== "/threads") return;
  const fresh = (await fragment(location.href, "table")).querySelector("table");
  if (fresh) table.replaceWith(fresh);
});
