// A drawing of the model: a token passes the prelude, runs R times through the loop, and leaves by the coda.
import { DATA } from "./data.js";
import { $, button, make, write } from "./dom.js";
import { term } from "./glossary.js";
import { current, shown } from "./plan.js";
import { given } from "./planner.js";
import { bytes, cardSize, grouped, signed } from "./quantities.js";
import { set, state } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value != null && value !== false) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const H = 286;
const MID = 84;
// Narrow places get a narrower drawing, so that its letters stay readable.
let W = 540;
const LOOP = {};
const PANEL = { y: 150, height: 130 };
function measure(width) {
  W = (width || 540) < 430 ? 370 : 540;
  Object.assign(LOOP, W === 540 ? { x: 128, width: 284, edge: 44, gap: 28 } : { x: 92, width: 186, edge: 26, gap: 14 });
  Object.assign(PANEL, { x: W === 540 ? 40 : 4, width: W === 540 ? 460 : 362 });
}

export function buildModel(width) {
  const place = $("#drawing");
  measure(width);
  new ResizeObserver(() => {
    measure(place.clientWidth);
    if (shown.found) drawPicture(current().design);
  }).observe(place);
  buildSteppers($("#steppers"));
  $("#memory").replaceChildren(make("div", { class: "bar", role: "img" }, ["weights", "embeddings", "cache"].map((name) => make("span", { class: name }))), make("p", { class: "bar-text" }));
}

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
  const place = $("#drawing");
  const key = [design.layers, design.recurrence, design.experts_active, design.experts_total, W].join();
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const layers = design.layers === null ? 12 : Math.round(design.layers);
  const inner = Math.max(layers - 4, 0);
  const R = design.recurrence;
  place.replaceChildren(
    draw(
      "svg",
      { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": described(design, inner) },
      draw("path", { d: `M6 ${MID} H${W - 6}`, class: "wire" }),
      draw("path", { d: `M${W - 13} ${MID - 5} l8 5 l-8 5`, class: "wire" }),
      block(LOOP.x - LOOP.edge - LOOP.gap, LOOP.edge, 2, W === 540 ? "2 layers" : "2", "edge"),
      block(LOOP.x, LOOP.width, inner, design.layers === null ? "layers" : `${inner} layers${R > 1 ? `, run ${R} times` : ", run once"}`, "looped"),
      block(LOOP.x + LOOP.width + LOOP.gap, LOOP.edge, 2, W === 540 ? "2 layers" : "2", "edge"),
      draw("text", { x: 24, y: MID - 10 }, "token"),
      draw("text", { x: W - 24, y: MID - 10 }, "next"),
      arcs(R),
      draw("text", { x: W / 2, y: 14, class: "turns" }, R === 1 ? "one pass: no loop" : `${R} passes through the same weights`),
      layer(design, inner),
      still() ? null : token(R),
    ),
  );
  light();
}

const described = (design, inner) =>
  `A token passes 2 first layers, then ${inner} layers ${design.recurrence === 1 ? "once" : `${design.recurrence} times`}, then 2 last layers. ` +
  (design.experts_total === 1 ? "Every layer is dense." : `Each layer uses ${design.experts_active} of ${design.experts_total} experts for a token.`);

function block(x, width, layers, label, kind) {
  const number = Math.min(layers, 40);
  const at = (k) => x + 5 + ((width - 10) * (k + 0.5)) / number;
  return draw(
    "g",
    { class: `block ${kind}` },
    draw("rect", { x, y: MID - 25, width, height: 50, rx: 8 }),
    ...Array.from({ length: number }, (_, k) => draw("line", { x1: at(k), x2: at(k), y1: MID - 18, y2: MID + 18 })),
    draw("text", { x: x + width / 2, y: MID + 42 }, label),
  );
}

function arcs(R) {
  const [left, right, top] = [LOOP.x, LOOP.x + LOOP.width, MID - 25];
  return draw(
    "g",
    { class: "arcs" },
    ...Array.from({ length: Math.min(R - 1, 5) }, (_, k) => {
      const high = top - 21 - 4.5 * k;
      return draw("path", { d: `M${right - 10} ${top} C ${right + 8} ${high}, ${right - 30} ${high}, ${right - 60} ${high} H ${left + 60} C ${left + 30} ${high}, ${left - 8} ${high}, ${left + 10} ${top}`, style: `opacity:${1 - 0.15 * k}` });
    }),
    R > 1 ? draw("path", { d: `M${left + 3} ${top - 10} l7 10 l6 -10`, class: "head" }) : null,
  );
}

// One layer, enlarged: attention, and the experts that a router chooses for each token.
function layer({ experts_active: used, experts_total: there }, inner) {
  const { x, y, width, height } = PANEL;
  const middle = LOOP.x + LOOP.width / 2;
  const centre = y + height / 2 + 8;
  const box = (left, wide, text, kind) => draw("g", { class: `part ${kind}` }, draw("rect", { x: left, y: centre - 19, width: wide, height: 38, rx: 7 }), draw("text", { x: left + wide / 2, y: centre + 4 }, text));
  const k = width / 460;
  const inside =
    there === 1
      ? [draw("path", { d: `M${x + 14} ${centre} H${x + width - 14}`, class: "wire" }), box(x + 60 * k, 110 * k, "attention", "attention"), box(x + 250 * k, 140 * k, "feed-forward", "dense")]
      : [draw("path", { d: `M${x + 10} ${centre} H${x + 24 + 142 * k}`, class: "wire" }), box(x + 22, 82 * k, "attention", "attention"), box(x + 22 + 100 * k, 62 * k, "router", "router"), expertDots(used, there, centre, x + 22 + 162 * k, x + width - 14)];
  return draw(
    "g",
    { class: "layer" },
    draw("path", { d: `M${middle - 4} ${MID + 19} L${x + 8} ${y} H${x + width - 8} L${middle + 4} ${MID + 19} Z`, class: "zoom" }),
    draw("rect", { x, y, width, height, rx: 10, class: "panel" }),
    draw("text", { x: x + width / 2, y: y + 19, class: "name" }, there === 1 ? "each layer is dense: all weights work on every token" : `each layer: ${used} of ${there} experts work on a token`),
    ...inside,
  );
}

function expertDots(used, there, centre, from, right) {
  const number = Math.min(there, 64);
  const rows = number <= 4 ? 1 : number <= 16 ? 2 : 4;
  const across = Math.ceil(number / rows);
  const gap = Math.min(27, (right - from - 56) / (across - 1 || 1), 84 / rows);
  const middle = (from + 44 + right) / 2;
  const [left, top] = [middle - ((across - 1) * gap) / 2, centre - ((rows - 1) * gap) / 2];
  const spots = Array.from({ length: number }, (_, k) => [left + gap * (k % across), top + gap * Math.floor(k / across)]);
  return draw(
    "g",
    { class: "experts", "data-used": used },
    ...Array.from({ length: Math.min(used, 8) }, (_, k) => draw("path", { class: "route", d: route(from, centre, ...spots[(k * 5 + 2) % number]) })),
    ...spots.map(([cx, cy]) => draw("circle", { cx, cy, r: Math.min(9, gap * 0.36), "data-from": `${from} ${centre}` })),
  );
}
const route = (x, y, cx, cy) => `M${x} ${y} C ${x + 40} ${y}, ${cx - 40} ${cy}, ${cx} ${cy}`;

function token(R) {
  const [left, right] = [LOOP.x + 10, LOOP.x + LOOP.width - 10];
  const high = MID - 46;
  const turn = `H${right} C ${right + 18} ${high}, ${right - 20} ${high}, ${right - 50} ${high} H${left + 50} C ${left + 20} ${high}, ${left - 18} ${high}, ${left} ${MID}`;
  const path = `M6 ${MID} H${left} ${Array.from({ length: Math.min(R, 10) - 1 }, () => turn).join(" ")} H${W - 10}`;
  const circle = draw("circle", { r: 6, class: "token" });
  circle.append(draw("animateMotion", { dur: `${3 + 2.4 * (Math.min(R, 10) - 1)}s`, repeatCount: "indefinite", path }));
  return circle;
}

// Other tokens go to other experts.
function light() {
  const group = $(".experts");
  if (!group) return;
  const dots = [...group.querySelectorAll("circle")];
  const used = Math.min(Number(group.dataset.used), dots.length);
  const lit = [];
  while (lit.length < used) {
    const k = Math.floor(Math.random() * dots.length);
    if (!lit.includes(k)) lit.push(k);
  }
  dots.forEach((dot, k) => dot.setAttribute("class", lit.includes(k) ? "lit" : ""));
  group.querySelectorAll(".route").forEach((path, k) => {
    const dot = dots[lit[k]];
    path.setAttribute("d", route(...dot.dataset.from.split(" ").map(Number), Number(dot.getAttribute("cx")), Number(dot.getAttribute("cy"))));
  });
}
setInterval(() => {
  if (!still() && !document.hidden && state.view === "plan") light();
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
  place.replaceChildren(
    ...AXES.map(([axis, label]) => {
      const step = (name, sign) =>
        make("button", { type: "button", class: name, "aria-label": `${label}: ${name === "up" ? "more" : "fewer"}`, onclick: (event) => set({ design: normal(event.currentTarget.dataset.design) }, { control: `step ${axis}` }) }, sign, make("small"));
      return make("div", { class: "stepper", id: `step-${axis}`, role: "group", "aria-label": label }, make("span", {}, term(axis, label)), step("down", "−"), make("output"), step("up", "+"));
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
  if (!own) return void place.replaceChildren(`the best of ${grouped(found.grid.length)} designs`);
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
  const [bar, text] = $("#memory").children;
  ["weights", "embeddings", "KV cache"].forEach((name, k) => {
    const value = pieces.find(([each]) => each === name)?.[1] ?? 0;
    bar.children[k].style.width = `${(100 * value) / whole}%`;
  });
  bar.classList.toggle("over", limit !== undefined && design.memory > limit * DATA.slack);
  const used = `${bytes(design.memory)}${limit === undefined ? "" : ` of ${bytes(limit)}`}`;
  write(text, `${used}: ${pieces.map(([name, value]) => `${name} ${bytes(value)}`).join(", ")}`);
  bar.setAttribute("aria-label", text.textContent);
}
