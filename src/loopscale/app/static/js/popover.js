// A small panel below what opens it. One is open at a time; Escape and a click elsewhere close it.
import { $, make } from "./dom.js";

let open = null;

export function popoverButton(button, label, fill) {
  button.setAttribute("aria-haspopup", "dialog");
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => (open?.button === button ? close() : show(button, label, fill)));
  return button;
}

function show(button, label, fill) {
  close(false);
  const panel = make("div", { class: "popover", role: "dialog", "aria-label": label });
  panel.append(...[fill(panel)].flat(), make("button", { type: "button", class: "quiet close", onclick: () => close() }, "Done"));
  button.after(panel);
  button.setAttribute("aria-expanded", "true");
  open = { button, panel };
  keepInside(panel);
  $("input, button, select", panel)?.focus({ preventScroll: true });
}

function keepInside(panel) {
  const { left, right } = panel.getBoundingClientRect();
  if (right > innerWidth - 8) panel.style.marginLeft = `${Math.max(innerWidth - 8 - right, 8 - left)}px`;
}

export function close(focus = true) {
  if (!open) return;
  const { button, panel } = open;
  open = null;
  panel.remove();
  button.setAttribute("aria-expanded", "false");
  if (focus) button.focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && open) {
    event.stopPropagation();
    close();
  }
});
document.addEventListener("pointerdown", (event) => {
  if (open && !open.panel.contains(event.target) && !open.button.contains(event.target)) close(false);
});
