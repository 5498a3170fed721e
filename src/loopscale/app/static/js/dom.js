export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// make("p", {class: "hint"}, "text", child): an element; text is never read as HTML.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export function problem(element, error) {
  element.hidden = !error;
  element.textContent = error ? sentence(error.message || String(error)) : "";
}

export function toast(text) {
  const element = $("#toast");
  element.textContent = text;
  element.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => element.classList.remove("shown"), 4000);
}

// A group of buttons of which one is pressed.
export function segmented(group, value, choose) {
  for (const button of $$("button", group)) {
    button.setAttribute("aria-pressed", String(button.dataset.value === value));
    button.onclick = () => choose(button.dataset.value);
  }
}

export function table(columns, records, extra = () => ({})) {
  const look = (c) => [c.left && "left", c.wide && "wide"].filter(Boolean).join(" ") || null;
  const head = make(
    "tr",
    {},
    columns.map((c) => make("th", { scope: "col", class: look(c), title: c.title }, c.name)),
  );
  const body = records.map((record) =>
    make(
      "tr",
      extra(record),
      columns.map((c) => make("td", { class: look(c) }, c.cell(record))),
    ),
  );
  return [make("thead", {}, head), make("tbody", {}, body)];
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
