// The command palette (Ctrl+K or /): every action of the page, found by a part of its name.
import { $, button, make } from "./dom.js";
import { DATA } from "./data.js";
import { chooseLaw } from "./sentence.js";
import { set } from "./state.js";

function actions() {
  const views = [...document.querySelectorAll("#views button:not([hidden])")].map((part) => [`Go to ${part.textContent}`, () => part.click()]);
  const limits = DATA.fields.map(({ name, label }) => [`Set ${label.charAt(0).toLowerCase()}${label.slice(1)}`, () => openField(name), name.replaceAll("_", " ")]);
  const laws = Object.keys(DATA.laws).map((name) => [`Plan with the law ${name}`, () => chooseLaw(name)]);
  const stories = [...document.querySelectorAll(".story")].map((part) => [`Example: ${part.textContent}`, () => part.click()]);
  const press = (name, id) => [name, () => $(id).click()];
  return [...views, ...stories, ...limits, press("Undo", "#undo"), press("Redo", "#redo"), press("Switch between light and dark", "#theme"), press("Share: links, image, embed code", "#share-button"), press("Take the tour", "#tour"), ...laws];
}

function openField(name) {
  set({ view: "plan" });
  $({ flops: "#chip-compute", memory: "#chip-place", context: "#chip-place", bits: "#chip-bits" }[name] ?? "#more-limits").click();
  for (const fold of document.querySelectorAll(".popover details")) if (fold.querySelector(`#in-${name}`)) fold.open = true;
  $(`#in-${name}`)?.focus();
}

let open = null;
export function openPalette() {
  if (open) return;
  const before = document.activeElement;
  const list = make("div", { class: "items", role: "listbox", id: "palette-list" });
  const input = make("input", { type: "text", id: "palette-input", placeholder: "What do you want to do?", autocomplete: "off", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-label": "Find an action" });
  const panel = make("div", { id: "palette", role: "dialog", "aria-modal": "true", "aria-label": "Actions" }, input, list);
  const all = actions();
  let shown = [];
  let at = 0;
  const end = (run) => {
    panel.remove();
    open = null;
    before?.focus?.({ preventScroll: true });
    run?.();
  };
  const mark = () => {
    [...list.children].forEach((each, k) => each.setAttribute("aria-selected", String(k === at)));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    if (list.children[at]) input.setAttribute("aria-activedescendant", list.children[at].id);
  };
  const find = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = all.filter(([name, , also = ""]) => words.every((word) => `${name} ${also}`.toLowerCase().includes(word))).slice(0, 12);
    at = 0;
    list.replaceChildren(...(shown.length ? shown.map(([name, run], k) => button(name, () => end(run), { role: "option", id: `palette-${k}`, tabindex: -1 })) : [make("p", { class: "hint" }, "No action has that name.")]));
    mark();
  };
  input.addEventListener("input", find);
  panel.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") end();
    else if (event.key === "Enter") end(shown[at]?.[1]);
    else if (step && shown.length) (at = (at + step + shown.length) % shown.length), mark();
    else if (event.key !== "Tab") return;
    event.preventDefault();
    event.stopPropagation();
  });
  panel.addEventListener("focusout", (event) => event.relatedTarget && !panel.contains(event.relatedTarget) && open && end());
  open = panel;
  document.body.append(panel);
  find();
  input.focus();
}

document.addEventListener("pointerdown", (event) => {
  if (open && !open.contains(event.target)) (open.remove(), (open = null));
});
addEventListener("keydown", (event) => {
  const typing = /^(input|textarea|select)$/i.test(event.target.tagName);
  const asked = ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") || (event.key === "/" && !typing);
  if (!asked) return;
  event.preventDefault();
  openPalette();
});
