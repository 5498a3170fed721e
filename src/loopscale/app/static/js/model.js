// A drawing of the model: a token passes the prelude, runs R times through the loop, and leaves by the coda.
import { DATA } from "./data.js";
import { $, button, make, write } from "./dom.js";
import { current, shown } from "./plan.js";
import { given } from "./planner.js";
import { bytes, cardSize, signed } from "./quantities.js";
import { set, state } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value != null && value !== false) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const W = 520;
const H = 210;
const MID = 132;

export function drawModel() {
  const { design } = current();
  drawPicture(design);
  drawSteppers(design);
  drawMemory(design);
  drawPrice();
  const worth = design.recurrence > 1 ? `As good as a ${cardSize(design.effective_parameters)} model without looping. ` : "";
  const stored = design.experts_total > 1 ? `It stores ${cardSize(design.total_parameters)} parameters and uses ${cardSize(design.active_parameters)} for a token.` : "";
  write($("#model-note"), `${worth}${stored}`);
}

function drawPicture(design) {
  const key = [design.layers, design.recurrence, design.experts_active, design.experts_total].join();
  const place = $("#drawing");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const layers = design.layers === null ? 12 : Math.round(design.layers);
  const inner = Math.max(layers - 4, 0);
  const R = design.recurrence;
  place.replaceChildren(
    draw(
      "svg",
      { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": described(design, inner) },
      draw("path", { d: `M8 ${MID} H${W - 8}`, class: "wire" }),
      block(30, 54, 2, "prelude", "edge"),
      block(118, 284, inner, design.layers === null ? "layers" : `${inner} layers${R > 1 ? ", looped" : ""}`, "looped"),
      block(436, 54, 2, "coda", "edge"),
      arcs(R),
      expertDots(design),
      draw("text", { x: 260, y: 16, class: "turns" }, R === 1 ? "one pass: no loop" : `${R} passes through the same weights`),
      still() ? null : token(R),
    ),
  );
}

const described = (design, inner) =>
  `A token passes 2 prelude layers, then ${inner} layers ${design.recurrence === 1 ? "once" : `${design.recurrence} times`}, then 2 coda layers. ` +
  (design.experts_total === 1 ? "Every layer is dense." : `Each layer uses ${design.experts_active} of ${design.experts_total} experts for a token.`);

function block(x, width, layers, label, kind) {
  const lines = Array.from({ length: Math.min(layers, 40) }, (_, k) => {
    const at = x + 6 + ((width - 12) * (k + 0.5)) / Math.min(layers, 40);
    return draw("line", { x1: at, x2: at, y1: MID - 30, y2: MID + 30 });
  });
  return draw(
    "g",
    { class: `block ${kind}` },
    draw("rect", { x, y: MID - 38, width, height: 76, rx: 8 }),
    ...lines,
    draw("text", { x: x + width / 2, y: MID + 56 }, label),
  );
}

function arcs(R) {
  const shownTurns = Math.min(R - 1, 5);
  return draw(
    "g",
    { class: "arcs" },
    ...Array.from({ length: shownTurns }, (_, k) => {
      const top = MID - 58 - 8 * k;
      return draw("path", { d: `M402 ${MID - 38} C 424 ${top - 16}, 340 ${top - 20}, 260 ${top - 20} S 96 ${top - 16}, 118 ${MID - 38}`, style: `opacity:${1 - 0.13 * k}` });
    }),
    R > 1 ? draw("path", { d: `M113 ${MID - 50} l5 12 l8 -10`, class: "head" }) : null,
  );
}

function expertDots({ experts_active: used, experts_total: there }) {
  if (there === 1) return null;
  const number = Math.min(there, 64);
  const across = Math.min(number, 16);
  const rows = Math.ceil(number / across);
  const gap = 15;
  return draw(
    "g",
    { class: "experts", "data-used": used },
    draw("rect", { x: 260 - (across * gap) / 2 - 8, y: MID - (rows * gap) / 2 - 5, width: across * gap + 16, height: rows * gap + 10, rx: 9, class: "pool" }),
    ...Array.from({ length: number }, (_, k) =>
      draw("circle", { cx: 260 + gap * ((k % across) - (across - 1) / 2), cy: MID + gap * (Math.floor(k / across) - (rows - 1) / 2), r: 4.6, class: k < used ? "lit" : "" }),
    ),
  );
}

function token(R) {
  const turn = `H402 C 424 ${MID - 74}, 340 ${MID - 78}, 260 ${MID - 78} S 96 ${MID - 74}, 118 ${MID}`;
  const path = `M8 ${MID} H118 ${Array.from({ length: Math.min(R, 10) - 1 }, () => turn).join(" ")} H${W - 8}`;
  const circle = draw("circle", { r: 6, class: "token" });
  circle.append(draw("animateMotion", { dur: `${2.4 + 1.8 * (Math.min(R, 10) - 1)}s`, repeatCount: "indefinite", path }));
  return circle;
}

// Other experts light up for other tokens.
setInterval(() => {
  const group = $(".experts");
  if (!group || still() || document.hidden || state.view !== "plan") return;
  const dots = [...group.querySelectorAll("circle")];
  const lit = new Set();
  while (lit.size < Math.min(Number(group.dataset.used), dots.length)) lit.add(Math.floor(Math.random() * dots.length));
  dots.forEach((dot, k) => dot.setAttribute("class", lit.has(k) ? "lit" : ""));
}, 1400);

// ---- changing the design by hand ----

const AXES = [
  ["size", "Size", ({ rung, active_parameters: n }) => (/^d\d/.test(rung) ? cardSize(n) : rung), () => Object.keys(DATA.extended)],
  ["experts", "Experts", ({ experts_total: n }) => (n === 1 ? "dense" : `${n}`), () => DATA.experts],
  ["passes", "Passes", ({ recurrence }) => `${recurrence}`, () => Array.from({ length: 16 }, (_, k) => k + 1)],
];

export const designText = ({ rung, experts, recurrence }, changes = {}) => {
  const { size, experts: E, passes } = { size: rung, experts, passes: recurrence, ...changes };
  return `${size}:${E}:${passes}`;
};

function drawSteppers(design) {
  const { found } = shown;
  const place = $("#steppers");
  if (!place.children.length) buildSteppers(place);
  const fixed = found.grid.space.kind !== "ladder" && !shown.own;
  for (const [axis, , write1, values] of AXES) {
    const group = $(`#step-${axis}`);
    const list = values();
    const now = { size: design.rung, experts: design.experts, passes: design.recurrence }[axis];
    const at = list.indexOf(now);
    const frozen = fixed || (axis === "experts" && found.law.onlyExperts !== null) || (axis === "passes" && found.law.onlyRecurrence !== null);
    write($("output", group), write1(design));
    for (const [sign, part] of [[-1, $(".down", group)], [1, $(".up", group)]]) {
      const next = frozen || at < 0 ? undefined : list[at + sign];
      part.disabled = next === undefined;
      const other = next === undefined ? null : given(found, designText(design, { [axis]: next }));
      part.dataset.design = next === undefined ? "" : designText(design, { [axis]: next });
      write($("small", part), !other ? "" : other.misses ? "too big" : Number.isFinite(other.design.loss) ? signed(other.design.loss - design.loss) : "–");
      part.title = !other ? "" : (other.misses ?? `loss ${signed(other.design.loss - design.loss, 4)} against this one`);
    }
  }
}

function buildSteppers(place) {
  place.append(
    ...AXES.map(([axis, label]) => {
      const step = (name, sign) =>
        make("button", { type: "button", class: name, "aria-label": `${label}: ${name === "up" ? "more" : "fewer"}`, onclick: (event) => set({ design: normal(event.currentTarget.dataset.design) }, { control: `step ${axis}` }) }, sign, make("small"));
      return make("div", { class: "stepper", id: `step-${axis}`, role: "group", "aria-label": label }, make("span", {}, label), step("down", "−"), make("output"), step("up", "+"));
    }),
  ); // prettier-ignore
}

// The best design is no choice by hand.
const normal = (text) => (text === designText(shown.found.choice) ? "" : text);

function drawPrice() {
  const place = $("#model-price");
  const { own, found } = shown;
  const key = own ? `${own.design.label} ${own.difference} ${own.misses}` : `best ${found.grid.length}`;
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!own) return void place.replaceChildren(`the best of ${found.grid.length.toLocaleString("en-US")} designs`);
  const price = Number.isFinite(own.difference) ? `${signed(own.difference)} nats against the best` : "it cannot be trained within the compute";
  place.replaceChildren(
    make("span", { class: own.misses ? "missing" : "" }, own.misses ? `does not fit: ${own.misses}` : price),
    button("Back to the best", () => set({ design: "" }, { control: "best" }), { id: "back-to-best" }),
  );
  return undefined;
}

function drawMemory(design) {
  const { b } = shown.found;
  const stored = design.total + design.embedding;
  const embeddings = stored ? (design.weight_bytes * design.embedding) / stored : 0;
  const pieces = [
    ["weights", design.weight_bytes - embeddings],
    ["embeddings", embeddings],
    ["KV cache", design.kv_bytes],
  ].filter(([, value]) => value > 0);
  const limit = b.set.memory;
  const whole = Math.max(limit ?? 0, design.memory);
  const place = $("#memory");
  if (!place.children.length) place.append(make("div", { class: "bar", role: "img" }), make("p", { class: "bar-text" }));
  const [bar, text] = place.children;
  while (bar.children.length < 4) bar.append(make("span"));
  ["weights", "embeddings", "KV cache"].forEach((name, k) => {
    const value = pieces.find(([each]) => each === name)?.[1] ?? 0;
    bar.children[k].style.width = `${(100 * value) / whole}%`;
    bar.children[k].className = ["weights", "embeddings", "cache"][k];
  });
  bar.classList.toggle("over", limit !== undefined && design.memory > limit * DATA.slack);
  const used = `${bytes(design.memory)}${limit === undefined ? "" : ` of ${bytes(limit)}`}`;
  write(text, `${used}: ${pieces.map(([name, value]) => `${name} ${bytes(value)}`).join(", ")}`);
  bar.setAttribute("aria-label", text.textContent);
}
