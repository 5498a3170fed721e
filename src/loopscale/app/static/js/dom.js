export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// make("p", {class: "hint"}, "text", child): an element; text is never read as HTML.
export const make = (name, attributes, ...children) => complete(document.createElement(name), attributes, children);

// The same for drawings.
const SVG = "http://www.w3.org/2000/svg";
export const draw = (name, attributes, ...children) => complete(document.createElementNS(SVG, name), attributes, children);

function complete(element, attributes = {}, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

// Texts that stay the same are left alone: writing them again would lay out the page again.
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// When what was drawn is on the screen.
export const afterFrame = (work) => requestAnimationFrame(() => setTimeout(work));

// Whether the page's address leads to another view than the first, which the page's file holds.
export const linked = () => "link" in document.documentElement.dataset;

export const button = (text, onclick, attributes = {}) =>
  make("button", { type: "button", onclick, ...attributes }, text);

// A text in which `words in backquotes` are commands; the nodes of an element.
export const coded = (text) =>
  text.split("`").map((part, k) => (k % 2 ? make("code", {}, part) : part)).filter((part) => part !== "");

// As `write`, for texts with elements between them, which keep the focus that they have.
export function writeParts(element, parts) {
  const text = parts.map((part) => part.textContent ?? part).join("");
  if (element.textContent !== text) element.replaceChildren(...parts);
}

export function problem(element, error) {
  element.hidden = !error;
  element.replaceChildren(...coded(error ? sentence(error.message || String(error)) : ""));
}

export function toast(text) {
  const element = $("#toast");
  element.replaceChildren(...coded(text));
  element.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => element.classList.remove("shown"), 4000);
}

// For screen readers: what changed, once it has come to rest.
export function announce(text) {
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => {
    $("#announcement").textContent = text;
  }, 700);
}

export async function copy(text, what, note = "") {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied. ${note}`.trim());
  } catch {
    prompt(`Copy the ${what.toLowerCase()}:`, text);
  }
}

// A group of buttons of which one is pressed.
export function segmented(group, value, choose) {
  for (const part of $$("button", group)) {
    part.setAttribute("aria-pressed", String(part.dataset.value === value));
    part.onclick = () => choose(part.dataset.value);
  }
}

export function table(columns, records, extra = () => ({})) {
  const look = (c) => [c.left && "left", c.wide && "wide", c.class].filter(Boolean).join(" ") || null;
  const head = make(
    "tr",
    {},
    columns.map((c) => make("th", { scope: "col", class: look(c), title: c.title }, c.head || c.name)),
  );
  const body = records.map((record) =>
    make(
      "tr",
      extra(record),
      columns.map((c) => make("td", { class: look(c), "data-name": c.name }, c.cell(record))),
    ),
  );
  return [make("thead", {}, head), make("tbody", {}, body)];
}

// A table that scrolls sideways where it is too wide, with a caption that does not.
export const captioned = (caption, attributes, parts) => [
  make("p", { class: "hint caption" }, caption),
  make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, make("table", attributes, parts)),
];

// A text as a sentence; the name of a file keeps its case.
export const sentence = (text) =>
  (/^\S+\.\w+:/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1)) + (/[.!?]$/.test(text) ? "" : ".");
