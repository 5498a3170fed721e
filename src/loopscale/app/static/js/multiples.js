// One thing changed at a time, at the same compute: passes, experts, size; and the same model on other tokens. All share
// one scale of loss and one mark for the model at hand.
import { DATA } from "./data.js";
import { $, draw, make, write } from "./dom.js";
import { intervalAt, lossOver } from "./answer.js";
import { judged } from "./design.js";
import { term } from "./glossary.js";
import { designText } from "./model.js";
import { current, shown } from "./plan.js";
import { logTicks } from "./plot.js";
import { cardSize, count, fixed, signed } from "./quantities.js";
import { designByHand } from "./search.js";
import { activeSize } from "./space.js";
import { set } from "./state.js";
import { intervalOf } from "./trust.js";

const W = 300;
const H = 190;
const BOX = { left: 40, right: 8, top: 24, bottom: 26 };
const INSET = 8; // the ring at an end covers no number
const charts = [
  { id: "passes", title: "More or fewer passes" },
  { id: "experts", title: "More or fewer experts" },
  { id: "size", title: "A larger or smaller model" },
  { id: "tokens", title: "More or fewer tokens" },
];

// The points of each chart: where they lie, their loss, and what rules them out.
function pointsOf(id) {
  const { answer } = shown;
  const { design, answer: mine } = current();
  const at = (changes) => designByHand(answer, designText(design, changes));
  const row = (x, label, one, text) => ({ x, label, loss: one.design.loss, misses: one.misses, span: () => one.answer.interval, text });
  if (id === "tokens") {
    const tokens = Array.from({ length: 25 }, (_, k) => design.tokens * 10 ** (-1 + k / 12));
    const losses = lossOver(mine, tokens);
    return tokens.map((x, k) => ({ x, label: count(x), loss: losses[k], misses: null, span: () => intervalAt(mine, x), mark: k === 12 }));
  }
  if (answer.grid.space.kind !== "ladder" && !shown.own) return sizesOf(id, answer, design);
  if (id === "passes") {
    if (answer.law.onlyRecurrence !== null) return [];
    const most = Math.max(8, design.recurrence + 2);
    return Array.from({ length: most }, (_, k) => {
      const text = designText(design, { passes: k + 1 });
      return { ...row(k + 1, String(k + 1), at({ passes: k + 1 }), text), mark: k + 1 === design.recurrence };
    });
  }
  if (id === "experts") {
    if (answer.law.onlyExperts !== null) return [];
    return DATA.experts.map((E) => ({ ...row(E, E === 1 ? "dense" : String(2 * E), at({ experts: E }), designText(design, { experts: E })), mark: E === design.experts }));
  }
  const names = Object.keys(DATA.extended);
  const middle = names.indexOf(design.rung);
  const first = Math.max(0, Math.min(middle - 4, names.length - 9));
  return names.slice(first, first + 9).map((name) => {
    const one = at({ size: name });
    return { ...row(one.design.active_parameters, name, one, designText(design, { size: name })), mark: name === design.rung };
  });
}

// Between the ladder's sizes, and for laws of size and tokens alone: along the sizes that were searched.
function sizesOf(id, answer, design) {
  if (id !== "size") return [];
  const { K, P, S } = answer.grid.space;
  const rest = answer.chosen % (K * P);
  const own = Math.floor(answer.chosen / (K * P));
  const step = Math.max(1, Math.round(S / 300));
  const list = [];
  for (let s = own % step; s < S; s += step) {
    const flat = s * K * P + rest;
    const x = answer.grid.designs[flat];
    const ratio = x.active / design.active;
    if (ratio < 1 / 30 || ratio > 30) continue;
    const size = activeSize(x);
    const misses = answer.grid.met[flat] ? null : judged(answer.grid, flat, -1)[1];
    list.push({ x: size, label: cardSize(size), loss: answer.grid.loss[flat], misses, span: () => intervalOf(answer.law, x), mark: s === own });
  }
  return list;
}

export function drawMultiples({ sure = false } = {}) {
  const place = $("#multiples");
  if (!place.children.length) build(place);
  const { design } = current();
  const all = charts.map(({ id }) => [id, pointsOf(id)]);
  const losses = all.flatMap(([, points]) => points.map(({ loss }) => loss)).filter(Number.isFinite);
  const near = losses.filter((loss) => loss - design.loss < 0.35);
  const low = Math.min(...near) - 0.01;
  const high = Math.max(...near) + 0.02;
  for (const [id, points] of all) drawOne(id, points, [low, high], sure);
}

function build(place) {
  place.append(
    make("div", { class: "about" }, make("h2", {}, "One change at a time"), make("p", { class: "hint" }, "Loss at the same compute. Ring: this model. Shaded: where nine of ten ", term("interval", "runs"), " should end. Dashed: beyond a limit. Click a point to take it.")),
    ...charts.map(({ id, title }) =>
      make("figure", { class: "card small", id: `over-${id}` }, make("figcaption", {}, make("h3", {}, title), make("p", { class: "readout" })), make("div", { class: "plot" })),
    ),
  );
}

function drawOne(id, points, [low, high], sure) {
  const figure = $(`#over-${id}`);
  figure.hidden = points.length < 2;
  if (figure.hidden) return;
  const { design } = current();
  const log = id !== "passes";
  const xs = points.map(({ x }) => (log ? Math.log(x) : x));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const X = (x) => BOX.left + INSET + ((W - BOX.left - BOX.right - 2 * INSET) * ((log ? Math.log(x) : x) - left)) / (right - left || 1);
  const Y = (loss) => BOX.top + (H - BOX.top - BOX.bottom) * (1 - (Math.min(Math.max(loss, low - 9), high + 9) - low) / (high - low));
  const line = (list) => list.map(({ x, loss }, k) => `${k ? "L" : "M"}${X(x).toFixed(1)} ${Y(loss).toFixed(1)}`).join("");
  const finite = points.filter(({ loss }) => Number.isFinite(loss));
  const fits = finite.filter(({ misses }) => !misses);
  const faded = finite.filter(({ misses }, k) => misses || finite[k + 1]?.misses || finite[k - 1]?.misses);
  const ticks = id === "tokens" || points.length > 20 ? logTicks([points[0].x, points.at(-1).x], 4).map((x) => ({ x, label: count(x) })) : points.filter((_, k) => id === "passes" || id === "experts" ? k % Math.ceil(points.length / 8) === 0 : k % Math.ceil(points.length / 4) === 0);
  const steps = [0.02, 0.05, 0.1, 0.2].find((each) => (high - low) / each <= 5) ?? 0.5;
  const lines = [];
  for (let level = Math.ceil(low / steps) * steps; level < high; level += steps) lines.push(level);
  const firstMiss = finite.find(({ misses }) => misses);
  const mark = points.find((point) => point.mark);
  const band = sure ? bandPath(fits, X, Y) : figure.querySelector(".band")?.getAttribute("d");
  $(".plot", figure).replaceChildren(
    draw(
      "svg",
      { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Loss over ${id}: ${fits.map(({ label, loss }) => `${label} ${loss.toFixed(3)}`).join(", ")}` },
      ...lines.map((level) => draw("g", { class: "grid" }, draw("path", { d: `M${BOX.left} ${Y(level)}H${W - BOX.right}` }), draw("text", { x: BOX.left - 5, y: Y(level) + 4, "text-anchor": "end" }, level.toFixed(2)))),
      ...ticks.map(({ x, label }) => draw("text", { class: "tick", x: X(x), y: H - 8, "text-anchor": X(x) > W - 24 ? "end" : "middle" }, label)),
      draw("clipPath", { id: `clip-${id}` }, draw("rect", { x: BOX.left - 4, y: BOX.top - 4, width: W - BOX.left - BOX.right + 8, height: H - BOX.top - BOX.bottom + 8 })),
      draw("g", { "clip-path": `url(#clip-${id})` },
        band && draw("path", { class: "band", d: band }),
        draw("path", { class: "line faded", d: line(faded) }),
        draw("path", { class: "line", d: line(fits) }),
        ...(finite.length < 20 ? finite.map(({ x, loss, misses }) => draw("circle", { cx: X(x), cy: Y(loss), r: 2.6, class: misses ? "point faded" : "point" })) : []),
      ),
      firstMiss && draw("text", { class: "miss", x: W - 8, y: 12, "text-anchor": "end" }, `dashed: ${firstMiss.misses.replace(" of memory", "")}`),
      draw("path", { class: "guide", d: "" }),
      mark && draw("circle", { cx: X(mark.x), cy: Y(mark.loss), r: 6, class: "mine" }),
    ),
  );
  const says = (point) => `${point.label}: loss ${fixed(point.loss, 3)} (${signed(point.loss - design.loss)})${point.misses ? `, ${point.misses}` : ""}`;
  write($(".readout", figure), mark ? `${mark.label} now` : "");
  const svg = $("svg", figure);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * W;
    return finite.reduce((best, point) => (Math.abs(X(point.x) - x) < Math.abs(X(best.x) - x) ? point : best), finite[0]);
  };
  svg.onpointermove = (event) => {
    const point = nearest(event);
    write($(".readout", figure), says(point));
    $(".guide", svg).setAttribute("d", `M${X(point.x)} ${BOX.top}V${H - BOX.bottom}`);
  };
  svg.onpointerleave = () => {
    write($(".readout", figure), mark ? `${mark.label} now` : "");
    $(".guide", svg).setAttribute("d", "");
  };
  svg.onclick = (event) => {
    const { text } = nearest(event);
    if (text) set({ design: text === designText(shown.answer.choice) ? "" : text }, { control: `chart ${id}` });
  };
  svg.classList.toggle("clickable", points.some(({ text }) => text));
}

function bandPath(points, X, Y) {
  if (current().answer.trust.level === "beyond") return null;
  const known = points.map(({ x, span }) => ({ x, span: span() })).filter(({ span }) => span);
  if (known.length < 2) return null;
  const upper = known.map(({ x, span }, k) => `${k ? "L" : "M"}${X(x).toFixed(1)} ${Y(span.high).toFixed(1)}`).join("");
  const lower = known.map(({ x, span }) => `L${X(x).toFixed(1)} ${Y(span.low).toFixed(1)}`).reverse().join("");
  return `${upper}${lower}Z`;
}
