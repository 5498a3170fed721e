// Four steps for a first visit: what a loop is, why not always loop, why memory decides, how far to trust.
import { $, button, make } from "./dom.js";

const STEPS = [
  ["#model", "What a loop is", "A looped model sends each token through the same layers several times. It stores no more weights, but computes longer. Here a token enters on the left, runs through the loop, and leaves on the right."],
  ["#over-passes", "Why not always loop", "Every pass costs compute. At a fixed budget, more passes leave fewer training tokens. At some point one more pass costs more than it gains."],
  ["#map", "Why memory decides", "Where memory is scarce and compute is not, looping pays: the upper left of the map. With much memory, a larger model with more experts is better. Drag the dot."],
  ["#trust-line", "How far to trust it", "The answer comes from a law fitted to measured runs. Hatched areas and this line say how far the answer lies from those runs."],
];

export function startTour() {
  let at = 0;
  const card = make("div", { class: "tour", role: "dialog", "aria-label": "Tour" });
  const end = () => {
    card.remove();
    for (const [selector] of STEPS) $(selector)?.classList.remove("toured");
    $("#tour").focus();
  };
  const show = () => {
    for (const [selector] of STEPS) $(selector)?.classList.remove("toured");
    const [selector, title, text] = STEPS[at];
    const target = $(selector);
    target?.classList.add("toured");
    target?.scrollIntoView({ block: "center" });
    card.classList.toggle("left", target?.getBoundingClientRect().left > innerWidth / 3);
    const next = button(at + 1 < STEPS.length ? "Next" : "Done", () => (at + 1 < STEPS.length ? ((at += 1), show()) : end()), { class: "primary" });
    card.replaceChildren(make("h3", {}, `${at + 1} of ${STEPS.length}: ${title}`), make("p", {}, text), make("div", { class: "actions" }, at ? button("Back", () => { at -= 1; show(); }) : null, next, button("Close", end, { class: "quiet" }))); // prettier-ignore
    next.focus();
  };
  card.addEventListener("keydown", (event) => event.key === "Escape" && end());
  document.body.append(card);
  show();
}
