// A button that opens a list of actions.
import { button, make } from "./dom.js";
import { close, popoverButton } from "./popover.js";

export function menu(label, items, attributes = {}) {
  const opener = make("button", { type: "button", ...attributes }, label);
  popoverButton(opener, label, () =>
    make("div", { class: "items" }, items().filter(Boolean).map(([text, action, id]) => button(text, () => { close(); action(); }, { id: id ?? null }))),
  ); // prettier-ignore
  return make("span", { class: "chip-holder" }, opener);
}
