// A drawing of the model: a token passes the prelude, runs R times through the loop, and leaves by the coda.
import { DATA } from "./data.js";
import { $, button, draw, make, write } from "./dom.js";
import { term } from "./glossary.js";
import { current, shown } from "./plan.js";
import { bytes, cardSize, grouped, signed, sizeName } from "./quantities.js";
import { designByHand } from "./search.js";
import { set, state } from "./state.js";

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Where the parts of the drawing lie. Its letters are not scaled down: narrow places get a flatter drawing, as wide as
// they are (the style sheet keeps its height free).
const WIDE = {
  W: 540, H: 286, mid: 84, half: 25, label: 42, turns: 14, rise: 21, fan: 4.5, x: 128, edge: 44, gap: 28, ends: "2 layers",
  panel: { x: 40, y: 150, height: 130, name: 19, part: 19, rows: 84, boxes: [22, 82, 18, 62] },
}; // prettier-ignore
const FLAT = {
  H: 156, mid: 57, half: 18, label: 30, turns: 12, rise: 12, fan: 2.6, x: 84, edge: 26, gap: 12, ends: "2",
  panel: { x: 1, y: 92, height: 63, name: 15, part: 14, rows: 46, boxes: [8, 64, 10, 50] },
}; // prettier-ignore
const NARROW = 430;
const PHONE = "(max-width: 700px)"; // as in the style sheet
let layout = WIDE;
function measure(width) {
  layout = (width || WIDE.W) < NARROW ? { ...FLAT, W: Math.max(width, 270) } : WIDE;
}

export function buildModel(width) {
  const place = $("#drawing");
  measure(width);
  new ResizeObserver(() => {
    measure(place.clientWidth);
    if (shown.answer) drawPicture(current().design);
  }).observe(place);
  buildSteppers($("#steppers"));
  if (matchMedia(PHONE).matches) $("#model-more").open = false;
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
  const { W, H, mid, x, edge, gap, ends } = layout;
  const key = [design.layers, design.recurrence, design.experts_active, design.experts_total, W].join();
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const known = design.layers !== null; // a law of sizes alone says nothing about layers
  const inner = known ? Math.max(Math.round(design.layers) - 4, 0) : 8;
  const R = design.recurrence;
  place.replaceChildren(
    draw(
      "svg",
      { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": described(design, known ? `${inner} layers` : "all layers") },
      draw("path", { d: `M6 ${mid} H${W - 6}`, class: "wire" }),
      draw("path", { d: `M${W - 13} ${mid - 5} l8 5 l-8 5`, class: "wire" }),
      known && block(x - edge - gap, edge, 2, ends, "edge"),
      block(x, W - 2 * x, inner, known ? `${inner} layers${R > 1 ? `, run ${R} times` : ", run once"}` : "layers", "looped"),
      known && block(W - x + gap, edge, 2, ends, "edge"),
      draw("text", { x: 24, y: mid - 10 }, "token"),
      draw("text", { x: W - 24, y: mid - 10 }, "next"),
      arcs(R),
      draw("text", { x: W / 2, y: layout.turns, class: "turns" }, R === 1 ? "one pass: no loop" : `${R} passes through the same weights`),
      layer(design),
      still() ? null : token(R),
    ),
  );
  light();
}

const described = (design, middle) =>
  `A token passes ${design.layers === null ? "" : "2 first layers, then "}${middle} ${design.recurrence === 1 ? "once" : `${design.recurrence} times`}${design.layers === null ? "" : ", then 2 last layers"}. ` +
  (design.experts_total === 1 ? "Every layer is dense." : `Each layer uses ${design.experts_active} of ${design.experts_total} experts for a token.`);

function block(x, width, layers, label, kind) {
  const { mid, half } = layout;
  const number = Math.min(layers, 40);
  const place = (k) => x + 5 + ((width - 10) * (k + 0.5)) / number;
  return draw(
    "g",
    { class: `block ${kind}` },
    draw("rect", { x, y: mid - half, width, height: 2 * half, rx: 8 }),
    ...Array.from({ length: number }, (_, k) => draw("line", { x1: place(k), x2: place(k), y1: mid - half + 7, y2: mid + half - 7 })),
    draw("text", { x: x + width / 2, y: mid + layout.label }, label),
  );
}

function arcs(R) {
  const [left, right, top] = [layout.x, layout.W - layout.x, layout.mid - layout.half];
  const end = Math.atan2(layout.rise, 18); // the direction in which an arc comes back to the block
  const barb = (turn) => `${(left + 10 - 10 * Math.cos(end + turn)).toFixed(1)} ${(top - 10 * Math.sin(end + turn)).toFixed(1)}`;
  return draw(
    "g",
    { class: "arcs" },
    ...Array.from({ length: Math.min(R - 1, 5) }, (_, k) => {
      const high = top - layout.rise - layout.fan * k;
      return draw("path", { d: `M${right - 10} ${top} C ${right + 8} ${high}, ${right - 30} ${high}, ${right - 60} ${high} H ${left + 60} C ${left + 30} ${high}, ${left - 8} ${high}, ${left + 10} ${top}`, style: `opacity:${1 - 0.15 * k}` });
    }),
    R > 1 ? draw("path", { d: `M${barb(0.45)} L${left + 10} ${top} L${barb(-0.45)}`, class: "head" }) : null,
  );
}

// One layer, enlarged: attention, and the experts that a router chooses for each token.
function layer({ experts_active: used, experts_total: there }) {
  const { W, mid, half, panel } = layout;
  const { x, y, height, part } = panel;
  const width = W - 2 * x;
  const centre = y + (panel.name + height) / 2;
  const box = (left, wide, text, kind) => draw("g", { class: `part ${kind}` }, draw("rect", { x: left, y: centre - part, width: wide, height: 2 * part, rx: 7 }), draw("text", { x: left + wide / 2, y: centre + 4 }, text));
  const [before, attention, between, router] = panel.boxes;
  const second = x + before + attention + between;
  const inside =
    there === 1
      ? [draw("path", { d: `M${x + 14} ${centre} H${x + width - 14}`, class: "wire" }), box(x + 0.13 * width, 0.24 * width, "attention", "attention"), box(x + 0.54 * width, 0.31 * width, "feed-forward", "dense")]
      : [draw("path", { d: `M${x + before / 2} ${centre} H${second}`, class: "wire" }), box(x + before, attention, "attention", "attention"), box(second, router, "router", "router"), expertDots(used, there, centre, second + router, x + width - 14)];
  return draw(
    "g",
    { class: "layer" },
    draw("path", { d: `M${W / 2 - 4} ${mid + half - 6} L${x + 8} ${y} H${x + width - 8} L${W / 2 + 4} ${mid + half - 6} Z`, class: "zoom" }),
    draw("rect", { x, y, width, height, rx: 10, class: "panel" }),
    draw("text", { x: W / 2, y: y + panel.name, class: "name" }, there === 1 ? "each layer: all weights work on every token" : `each layer: ${used} of ${there} experts work on a token`),
    ...inside,
  );
}

function expertDots(used, there, centre, from, right) {
  const number = Math.min(there, 64);
  const rows = number <= 4 ? 1 : number <= 16 ? 2 : 4;
  const across = Math.ceil(number / rows);
  const gap = Math.min(27, (right - from - 56) / (across - 1 || 1), layout.panel.rows / rows);
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
  // The path starts at the token's place, where it also stands before it moves.
  const [left, right] = [layout.x + 4, layout.W - layout.x - 16];
  const high = -layout.half - layout.rise;
  const turn = `H${right} C ${right + 18} ${high}, ${right - 20} ${high}, ${right - 50} ${high} H${left + 50} C ${left + 20} ${high}, ${left - 18} ${high}, ${left} 0`;
  const path = `M0 0 H${left} ${Array.from({ length: Math.min(R, 10) - 1 }, () => turn).join(" ")} H${layout.W - 16}`;
  const circle = draw("circle", { r: 6, class: "token", transform: `translate(6 ${layout.mid})` });
  circle.append(draw("animateMotion", { dur: `${3 + 2.4 * (Math.min(R, 10) - 1)}s`, repeatCount: "indefinite", path }));
  return circle;
}

// Lights the experts of another token.
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
  ["size", "Size", sizeName, () => Object.keys(DATA.extended)],
  ["experts", "Experts", ({ experts_total: n }) => (n === 1 ? "dense" : `${n}`), () => DATA.experts],
  ["passes", "Passes", ({ recurrence }) => `${recurrence}`, () => Array.from({ length: 16 }, (_, k) => k + 1)],
];

export const designText = ({ rung, experts, recurrence }, changes = {}) => {
  const { size, experts: E, passes } = { size: rung, experts, passes: recurrence, ...changes };
  return `${size}:${E}:${passes}`;
};

function drawSteppers(design) {
  const { answer } = shown;
  const fixed = answer.grid.space.kind !== "ladder" && !shown.own;
  for (const [axis, , write1, values] of AXES) {
    const group = $(`#step-${axis}`);
    const list = values();
    const now = { size: design.rung, experts: design.experts, passes: design.recurrence }[axis];
    const at = list.indexOf(now);
    const frozen = fixed || (axis === "experts" && answer.law.onlyExperts !== null) || (axis === "passes" && answer.law.onlyRecurrence !== null);
    write($("output", group), write1(design));
    for (const [sign, part] of [[-1, $(".down", group)], [1, $(".up", group)]]) {
      const next = frozen || at < 0 ? undefined : list[at + sign];
      part.hidden = frozen;
      part.disabled = next === undefined;
      const other = next === undefined ? null : designByHand(answer, designText(design, { [axis]: next }));
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
const normal = (text) => (text === designText(shown.answer.choice) ? "" : text);

function drawPrice() {
  const place = $("#model-price");
  const { own, answer } = shown;
  const key = own ? `${own.design.label} ${own.difference} ${own.misses}` : `best ${answer.grid.length}`;
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!own) return void place.replaceChildren(`the best of ${grouped(answer.grid.length)} designs`);
  const price = Number.isFinite(own.difference) ? [`${signed(own.difference)} `, term("nats"), " against the best"] : "it cannot be trained within the compute";
  place.replaceChildren(
    make("span", { class: own.misses ? "missing" : null }, own.misses ? `does not fit: ${own.misses}` : price),
    button("Back to the best", () => set({ design: "" }, { control: "best" }), { id: "back-to-best" }),
  );
  return undefined;
}

function drawMemory(design) {
  const { b } = shown.answer;
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
