// A plain plot without a library: axes, bands, lines and points in the size of its place.
import { make } from "./dom.js";
import { draw } from "./model.js";

const BOX = { left: 52, right: 16, top: 12, bottom: 40 };

export const logTicks = ([low, high], most = 8) => {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const all = Array.from({ length: Math.max(0, Math.floor(Math.log10(high) + 1e-9) - first + 1) }, (_, k) => first + k);
  return all.filter((_, k) => k % Math.ceil(all.length / most) === 0).map((k) => 10 ** k);
};
export function ticks([low, high], most = 6) {
  const raw = (high - low) / most;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * size >= raw) * size;
  return Array.from({ length: Math.floor((high - low) / step) + 2 }, (_, k) => Math.ceil(low / step) * step + k * step).filter((value) => value <= high + 1e-12);
}

// `x` and `y`: { domain, log, label, format }. Marks are given in data units. Returns the element and its scales.
export function plot({ width, height, label, x, y, shade = [], bands = [], lines = [], dots = [], texts = [] }) {
  const scale = ({ domain: [low, high], log }, from, to) => (value) =>
    from + (to - from) * (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const X = scale(x, BOX.left, width - BOX.right);
  const Y = scale(y, height - BOX.bottom, BOX.top);
  const path = (points) => points.map((p, k) => `${k ? "L" : "M"}${X(p.x).toFixed(1)} ${Y(p.y).toFixed(1)}`).join("");
  const xTicks = x.ticks ?? (x.log ? logTicks(x.domain, width < 480 ? 5 : 9) : ticks(x.domain, width < 480 ? 4 : 7));
  const clip = `plot-${Math.random().toString(36).slice(2)}`;
  const element = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "plain-plot" },
    draw("clipPath", { id: clip }, draw("rect", { x: BOX.left, y: BOX.top, width: width - BOX.left - BOX.right, height: height - BOX.top - BOX.bottom })),
    ...shade.map(([from, to]) => draw("rect", { class: "beyond", x: X(from), y: BOX.top, width: Math.max(0, X(to) - X(from)), height: height - BOX.top - BOX.bottom })),
    ...ticks(y.domain, 5).map((value) => draw("g", { class: "grid" }, draw("path", { d: `M${BOX.left} ${Y(value)}H${width - BOX.right}` }), draw("text", { x: BOX.left - 6, y: Y(value) + 4, "text-anchor": "end" }, y.format(value)))),
    ...xTicks.map((value) => draw("text", { x: X(value), y: height - BOX.bottom + 17, "text-anchor": X(value) > width - 40 ? "end" : "middle" }, x.format(value))),
    draw("text", { class: "axis-name", x: (BOX.left + width - BOX.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label),
    draw("text", { class: "axis-name", x: 13, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${height / 2})` }, y.label),
    draw(
      "g",
      { "clip-path": `url(#${clip})` },
      ...bands.map(({ points, kind = "band" }) => draw("path", { class: kind, d: `${path(points.map((p) => ({ x: p.x, y: p.low })))}${path(points.map((p) => ({ x: p.x, y: p.high })).reverse()).replace("M", "L")}Z` })),
      ...lines.map(({ points, kind = "line" }) => draw("path", { class: kind, d: path(points) })),
      ...dots.map(({ x: a, y: b, r = 2.6, colour, opacity, kind = "point" }) => draw("circle", { cx: X(a).toFixed(1), cy: Y(b).toFixed(1), r, class: kind, style: colour ? `fill:${colour};opacity:${opacity ?? 1}` : null })),
    ),
    ...texts.map(({ x: a, y: b, text, anchor = "start", dx = 0, dy = 0 }) => draw("text", { class: "note", x: X(a) + dx, y: Y(b) + dy, "text-anchor": anchor }, text)),
  );
  return { element, X, Y, box: BOX, inverse: (px) => (x.log ? x.domain[0] * (x.domain[1] / x.domain[0]) ** ((px - BOX.left) / (width - BOX.left - BOX.right)) : x.domain[0] + ((x.domain[1] - x.domain[0]) * (px - BOX.left)) / (width - BOX.left - BOX.right)) };
}

export const keys = (items) => make("p", { class: "legend" }, items.map(([kind, text, style]) => make("span", { class: "key" }, make("i", { class: kind, style }), text)));
