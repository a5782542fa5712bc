// Actions on a thread: a form with a preview that the server makes, in a dialog or on a page of its own.

import { banner, enableCopying, fragment, parse } from "./app.js";

/** What the form shows was made for: one key for each preview, so that a change that is sent again is made once. */
let key = crypto.randomUUID();

/** A form whose preview is due: the next one that is to be made, the one that is being made, and how often something was
 * filled in, since an answer to what the form was before is not shown.
 * @typedef {{ timer: number, loading: AbortController | null, edits: number, due: boolean }} Filling */

/** @type {WeakMap<HTMLFormElement, Filling>} */
const fillings = new WeakMap();

/** @param {HTMLFormElement} form */
function filling(form) {
  const found = fillings.get(form) ?? { timer: 0, loading: null, edits: 0, due: false };
  fillings.set(form, found);
  return found;
}

/** @param {string} address */
export async function openAction(address) {
  let dialog = document.querySelector("dialog.action");
  if (!(dialog instanceof HTMLDialogElement)) {
    dialog = document.createElement("dialog");
    dialog.className = "action";
    dialog.setAttribute("aria-label", "Action");
    document.body.append(dialog);
  }
  dialog.replaceChildren(await fragment(address, "action"));
  enableCopying(dialog);
  key = crypto.randomUUID();
  /** @type {HTMLDialogElement} */ (dialog).showModal();
}

/** Open the form of an action where the value is: in a message, in the tree or in the inspector.
 * @param {HTMLAnchorElement} link */
async function openInline(link) {
  const place = link.closest(".message, .node, .inspector, main");
  if (!place) return;
  closeInline();
  const form = document.createElement("div");
  form.className = "editing";
  form.replaceChildren(await fragment(link.href, "inline"));
  key = crypto.randomUUID();
  const header = place.matches(".message") ? place.querySelector("header") : null;
  if (header) header.after(form);
  else place.append(form);
  place.classList.add("edited");
  enableCopying(form);
  const text = form.querySelector("textarea");
  text?.focus({ preventScroll: true });
  form.scrollIntoView({ block: "nearest" });
}

function closeInline() {
  for (const each of document.querySelectorAll(".editing")) { each.parentElement?.classList.remove("edited"); each.remove(); }
}

/**
 * Ask the server what the action would do, as the form is filled in now.
 * @param {HTMLFormElement} form
 * @param {boolean} whole
 * @param {HTMLElement | null} [submitter]
 */
async function preview(form, whole, submitter = null) {
  if (!form.isConnected) return;
  const state = filling(form);
  state.loading?.abort();
  state.loading = new AbortController();
  const before = state.edits;
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form, submitter)) fields.append(name, String(value));
  const focused = document.activeElement;
  const at = focused instanceof HTMLInputElement && form.contains(focused) ? [focused.name, focused.type === "radio" ? focused.value : ""] : null;
  try {
    const response = await fetch(form.action, { method: "POST", body: fields, headers: { "X-Fragment": whole ? form.dataset.action || "action" : "plan" }, signal: state.loading.signal });
    const part = parse(await response.text());
    if (before !== state.edits) return;
    state.due = false;
    if (whole) { const again = part.querySelector("form"); form.replaceWith(part); if (again) form = again; }
    else form.querySelector("[data-preview]")?.replaceChildren(part);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    banner("The server does not answer. What you typed is still here.");
    state.timer = window.setTimeout(() => preview(form, whole, submitter), 2000);
    return;
  }
  key = crypto.randomUUID();
  const now = form;
  enableCopying(now);
  if (at && !now.contains(document.activeElement)) {
    const again = now.querySelector(`input[name="${CSS.escape(at[0])}"]` + (at[1] ? `[value="${CSS.escape(at[1])}"]` : ""));
    if (again instanceof HTMLElement) again.focus();
  }
}

/** @param {HTMLButtonElement} button */
async function apply(button) {
  const form = button.closest("form");
  if (!form) return;
  button.disabled = true;
  /** @type {Record<string, string>} */
  const headers = { "X-CSRF-Token": document.body.dataset.csrf ?? "", "Idempotency-Key": key };
  // A header has only such characters; an id with others is not compared.
  if (/^[\x20-\x7e]+$/.test(button.dataset.ifMatch ?? "")) headers["If-Match"] = `"${button.dataset.ifMatch}"`;
  if (button.dataset.body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(button.dataset.address ?? "", { method: button.dataset.method, headers, body: button.dataset.body || undefined });
  } catch {
    banner("The server does not answer. What you typed is still here; send it again.");
    button.disabled = false;  // with the same key: if it was made, it is not made again
    return;
  }
  if (response.status === 412 || response.status === 409) {
    const refused = await response.json();
    await preview(form, false);
    banner(`It was not made: ${refused.detail}. ${refused.hint ?? ""}`);
    return;
  }
  const answer = await response.json();
  if (!response.ok) { banner(`${answer.detail ?? "It was not made."} ${answer.hint ?? ""}`, true); button.disabled = false; return; }
  const id = answer[button.dataset.then ?? ""] ?? "";
  const target = id ? `${form.dataset.base}/${encodeURIComponent(id)}` : form.dataset.step ?? "/";
  key = crypto.randomUUID();
  const dialog = form.closest("dialog");
  if (!dialog && form.hasAttribute("data-inline") && document.querySelector(".workspace")) {
    closeInline();
    const address = form.dataset.done ? form.dataset.base : target;
    document.dispatchEvent(new CustomEvent("holdfast:changed", { detail: { address, done: form.dataset.done ?? `${button.textContent?.trim()}: done.` } }));
    return;
  }
  if (!dialog) { location.assign(target); return; }
  dialog.close();
  document.dispatchEvent(new CustomEvent("holdfast:changed", { detail: { address: target, done: `${button.textContent?.trim()}: done.` } }));
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !(event.target instanceof Element) || !event.target.closest(".editing")) return;
  const place = event.target.closest(".editing")?.parentElement;
  closeInline();
  const link = place?.querySelector("a[data-edit]");
  if (link instanceof HTMLElement) link.focus();
});

document.addEventListener("input", (event) => {
  const input = event.target;
  if (!(input instanceof HTMLElement)) return;
  const form = input.closest("form[data-action]");
  if (!(form instanceof HTMLFormElement)) return;
  if (input instanceof HTMLInputElement && input.dataset.typed) {
    const button = form.querySelector("[data-apply]");
    if (button instanceof HTMLButtonElement) button.disabled = input.value !== input.dataset.typed || filling(form).due;
    return;
  }
  const state = filling(form);
  state.edits += 1;
  state.due = true;
  clearTimeout(state.timer);
  // What the button sends is what was filled in before: the next preview brings another one.
  for (const each of form.querySelectorAll("button[data-apply]")) /** @type {HTMLButtonElement} */ (each).disabled = true;
  const whole = input.hasAttribute("data-whole");
  state.timer = window.setTimeout(() => preview(form, whole), whole ? 0 : 250);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || !form.matches("[data-action]")) return;
  event.preventDefault();
  clearTimeout(filling(form).timer);
  preview(form, true, event.submitter);
});

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const button = target?.closest("[data-apply]");
  if (button instanceof HTMLButtonElement) apply(button);
  const dismiss = target?.closest("[data-dismiss]");
  const dialog = dismiss?.closest("dialog");
  if (dialog) { event.preventDefault(); dialog.close(); }
  else if (dismiss?.closest(".editing")) { event.preventDefault(); closeInline(); }
  const edit = target?.closest("a[data-edit]");
  if (edit instanceof HTMLAnchorElement && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); openInline(edit); }
  const link = target?.closest("a[data-act]");
  if (link instanceof HTMLAnchorElement && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    link.closest("details")?.removeAttribute("open");
    openAction(link.href);
  }
});
