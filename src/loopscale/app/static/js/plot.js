// Every chart of measured data: axes, bands, lines and points in the size of its place, in the colours of the theme.
import { draw, make } from "./dom.js";

const BOX = { left: 52, right: 16, top: 12, bottom: 40 };
const LETTER = 6.6; // pixels, in the labels of ticks

export function extent(values, margin = 0.05, log = false) {
  const all = values.filter((v) => v != null && Number.isFinite(v));
  const [low, high] = [Math.min(...all), Math.max(...all)];
  if (log) return [low / (high / low || 1) ** margin / 1.0001, high * (high / low || 1) ** margin * 1.0001];
  const room = (high - low || Math.abs(high) * 0.02 || 1) * margin;
  return [low - room, high + room];
}

function ticks([low, high], most = 6) {
  const raw = (high - low) / most;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * size >= raw) * size;
  return Array.from({ length: Math.floor((high - low) / step) + 2 }, (_, k) => Math.ceil(low / step) * step + k * step).filter((value) => value <= high + 1e-12);
}

// Powers of ten, or where fewer than three of them are in sight also their two- and fivefold.
export function logTicks([low, high], most = 8) {
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, k) => 10 ** (first + k));
  const inside = (values) => values.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  const list = inside(powers).length >= 3 ? inside(powers) : inside(powers.flatMap((v) => [v, 2 * v, 5 * v]));
  return list.filter((_, k) => k % Math.ceil(list.length / most) === 0);
}

// As many digits as tell neighbouring ticks apart.
function plain(values) {
  const step = Math.min(...values.slice(1).map((v, k) => Math.abs(v - values[k])));
  const digits = Number.isFinite(step) && step > 0 ? Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) : 2;
  return (v) => (Math.abs(v) < step / 1e6 ? 0 : v).toFixed(Math.min(digits, 8));
}

// Points that look the same are a few paths, as thousands of elements would take long to draw. Pale ones are spread
// over several, so that places where many lie become darker.
const LAYERS = 16;
function alike(dots, X, Y) {
  const groups = new Map();
  for (const [k, { x, y, r = 2.6, colour = "var(--r6)", opacity = 1 }] of dots.entries()) {
    const key = `${r} ${colour} ${opacity} ${opacity < 1 ? k % LAYERS : 0}`;
    const circle = `M${(X(x) - r).toFixed(1)} ${Y(y).toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
    if (groups.has(key)) groups.get(key).push(circle);
    else groups.set(key, [circle]);
  }
  return [...groups].map(([key, circles]) => {
    const [, colour, opacity] = key.split(" ");
    return draw("path", { class: "dots", d: circles.join(""), style: `fill:${colour};opacity:${opacity}` });
  });
}

// `x` and `y`: { domain, log, label, format, ticks }. Marks are given in data units; points with a `kind` are elements
// of that class. Returns the element and its scales.
export function plot({ width, height, label, x, y, shade = [], bands = [], lines = [], dots = [] }) {
  const yTicks = y.ticks ?? ticks(y.domain, 5);
  const yText = y.format ?? plain(yTicks);
  const longest = Math.max(...yTicks.map((value) => yText(value).length));
  const box = { ...BOX, left: Math.max(BOX.left, (y.label ? 28 : 12) + LETTER * longest) };
  const scale = ({ domain: [low, high], log }, from, to) => (value) =>
    from + (to - from) * (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const X = scale(x, box.left, width - box.right);
  const Y = scale(y, height - box.bottom, box.top);
  const path = (points) => points.map((p, k) => `${k ? "L" : "M"}${X(p.x).toFixed(1)} ${Y(p.y).toFixed(1)}`).join("");
  const xTicks = x.ticks ?? (x.log ? logTicks(x.domain, width < 480 ? 5 : 9) : ticks(x.domain, width < 480 ? 4 : 7));
  const xText = x.format ?? plain(xTicks);
  const outside = (value) => X(value) + (LETTER * xText(value).length) / 2 > width;
  const clip = `plot-${Math.random().toString(36).slice(2)}`;
  const inside = { x: box.left, y: box.top, width: width - box.left - box.right, height: height - box.top - box.bottom };
  const element = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "plain-plot" },
    draw("clipPath", { id: clip }, draw("rect", inside)),
    ...shade.map(([from, to]) => draw("rect", { ...inside, class: "beyond", x: X(from), width: Math.max(0, X(to) - X(from)) })),
    ...yTicks.map((value) => draw("g", { class: "grid" }, draw("path", { d: `M${box.left} ${Y(value)}H${width - box.right}` }), draw("text", { x: box.left - 6, y: Y(value) + 4, "text-anchor": "end" }, yText(value)))),
    ...xTicks.map((value) => draw("text", { x: X(value), y: height - box.bottom + 17, "text-anchor": outside(value) ? "end" : "middle" }, xText(value))),
    draw("text", { class: "axis-name", x: (box.left + width - box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label),
    y.label && draw("text", { class: "axis-name", x: 13, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${height / 2})` }, y.label),
    draw(
      "g",
      { "clip-path": `url(#${clip})` },
      ...bands.map(({ points }) => draw("path", { class: "band", d: `${path(points.map((p) => ({ x: p.x, y: p.low })))}${path(points.map((p) => ({ x: p.x, y: p.high })).reverse()).replace("M", "L")}Z` })),
      ...lines.map(({ points, kind = "line", colour }) => draw("path", { class: kind, d: path(points), style: colour ? `stroke:${colour}` : null })),
      ...alike(dots.filter(({ kind }) => !kind), X, Y),
    ),
    ...dots.filter(({ kind }) => kind).map(({ x: a, y: b, r, kind }) => draw("circle", { cx: X(a).toFixed(1), cy: Y(b).toFixed(1), r, class: kind })),
  ); // prettier-ignore
  const part = (px) => (px - box.left) / inside.width;
  const inverse = (px) => (x.log ? x.domain[0] * (x.domain[1] / x.domain[0]) ** part(px) : x.domain[0] + (x.domain[1] - x.domain[0]) * part(px));
  return { element, X, Y, inverse };
}

export const keys = (items) => make("p", { class: "legend" }, items.map(([kind, text, style]) => make("span", { class: "key" }, make("i", { class: kind, style }), text)));
