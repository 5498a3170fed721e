// Charts, each an SVG drawn from the tables that the server returns.
import { bytes, count, label, loss, percent, power, size } from "./format.js";

const Plot = window.Plot;
const RIGHT = 58;

export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    series: [0, 1, 2, 3, 4, 5, 6].map((k) => read(`--c${k}`)),
    text: read("--text"),
    muted: read("--muted"),
    card: read("--card"),
    line: read("--line"),
  };
}

export function chart(width, options, marks) {
  const { text, card } = palette();
  return Plot.plot({
    width,
    height: Math.max(230, Math.min(300, width * 0.62)),
    marginLeft: 50,
    marginRight: RIGHT,
    marginBottom: 40,
    marginTop: 26,
    ...options,
    style: { fontSize: "12px", color: text, background: "none", overflow: "visible", "--plot-background": card },
    y: { grid: true, ticks: 5, ...options.y },
    marks,
  });
}

export const tip = (data, x, y, title) => Plot.tip(data, Plot.pointer({ x, y, title, fontSize: 12, lineHeight: 1.25 }));

// Names at the ends of lines, moved apart where they would cover one another.
function ends(lines, x, y, colour, log = false) {
  const [to, from] = log ? [Math.log, Math.exp] : [(v) => v, (v) => v];
  const all = lines.flat().map((d) => to(d[y]));
  const gap = (Math.max(...all) - Math.min(...all) || 1) * 0.068;
  const placed = lines.map((line) => ({ ...line.at(-1), at: to(line.at(-1)[y]) })).sort((a, b) => a.at - b.at);
  for (let k = 1; k < placed.length; k++) placed[k].at = Math.max(placed[k].at, placed[k - 1].at + gap);
  for (const each of placed) each.at = from(each.at);
  return Plot.text(placed, { x, y: "at", text: "series", dx: 7, textAnchor: "start", fill: colour, fontWeight: 600 });
}

function grouped(data, series) {
  const found = new Map();
  for (const row of data) {
    row.series = series(row);
    if (!found.has(row.series)) found.set(row.series, []);
    found.get(row.series).push(row);
  }
  return found;
}

function lossAlong(width, data, { x, series, xScale, describe, choice, ring }) {
  const { series: colours, text, card } = palette();
  const kept = inSight(data);
  const lines = grouped(kept, series);
  const names = [...lines.keys()];
  const colour = (d) => colours[names.indexOf(d.series) % colours.length];
  const banded = ring && kept.some((d) => d.loss_low != null) ? kept.filter((d) => d.series === choice) : [];
  return chart(
    width,
    { x: { ...xScale }, y: { label: "predicted loss (nats/token)", tickFormat: (v) => v.toFixed(2), nice: true } },
    [
      banded.length
        ? Plot.areaY(banded, { x, y1: "loss_low", y2: "loss_high", fill: colour, fillOpacity: 0.16 })
        : null,
      Plot.line(kept, {
        x,
        y: "loss",
        z: "series",
        stroke: colour,
        strokeWidth: (d) => (d.series === choice ? 2.6 : 1.5),
      }),
      kept.length < 120
        ? Plot.dot(kept, { x, y: "loss", r: 3, fill: (d) => (d.extrapolated ? card : colour(d)), stroke: colour })
        : null,
      Plot.dot(
        kept.filter((d) => d.best),
        { x, y: "loss", symbol: "star", r: 6, fill: colour, stroke: card },
      ),
      ring ? Plot.dot([ring], { x, y: "loss", r: 11, stroke: text, strokeWidth: 1.5 }) : null,
      ends([...lines.values()], x, "loss", colour),
      tip(kept, x, "loss", describe),
    ],
  );
}

const band = (d) => (d.loss_low == null ? "" : ` (90%: ${loss(d.loss_low)}–${loss(d.loss_high)})`);
const beyond = (d) => (d.extrapolated ? `\n† outside the fitted range: ${d.extrapolated}` : "");
const design = (d) =>
  `${label(d)}\nloss ${loss(d.loss)}${band(d)}\n${count(d.tokens)} tokens${d.best ? "\n★ best of its curve" : ""}${beyond(d)}`;

export function isoflop(width, data, axis, choice) {
  if (axis === "size") {
    return lossAlong(width, data, {
      x: "active",
      series: (d) => `R=${d.recurrence}`,
      choice: `R=${choice.recurrence}`,
      ring: { active: choice.active, loss: choice.loss },
      xScale: {
        type: "log",
        label: "active parameters N",
        tickFormat: (v) => count(v, 2),
        ticks: decades(data, "active"),
      },
      describe: (d) =>
        `${size(d.active)} active, E=${d.experts} R=${d.recurrence}\nloss ${loss(d.loss)}${band(d)}\n${count(d.tokens)} tokens${beyond(d)}`,
    });
  }
  const scale =
    axis === "experts"
      ? { type: "log", base: 2, label: "experts E", tickFormat: String, ticks: unique(data, "experts") }
      : { label: "passes R", ticks: whole(data, "recurrence"), tickFormat: "d" };
  return lossAlong(width, data, {
    x: axis,
    series: (d) => d.rung,
    choice: choice.rung,
    ring: choice,
    xScale: scale,
    describe: design,
  });
}

function steps(width, data, { x, y, series, xScale, yScale, at, describe, spread }) {
  const { series: colours, muted, card } = palette();
  const kept = data.filter((d) => d[y] != null);
  const lines = grouped(kept, series);
  const names = [...lines.keys()];
  const colour = (d) => colours[names.indexOf(d.series) % colours.length];
  for (const d of kept) d.shown = spread(d[y], names.indexOf(d.series) - (names.length - 1) / 2);
  return chart(width, { x: xScale, y: yScale }, [
    at ? Plot.ruleX([at], { stroke: muted, strokeDasharray: "3,3" }) : null,
    at ? Plot.text([at], { x: (d) => d, frameAnchor: "top", dy: -13, text: () => "yours", fill: muted }) : null,
    Plot.line(kept, { x, y: "shown", z: "series", stroke: colour, strokeWidth: 2, curve: "step" }),
    Plot.dot(
      kept.filter((d) => d.agreement != null && d.agreement < 0.8),
      { x, y: "shown", r: 3, fill: card, stroke: colour },
    ),
    ends([...lines.values()], x, "shown", colour, yScale.type === "log"),
    tip(kept, x, "shown", describe),
  ]);
}

const agreed = (d) => (d.agreement == null ? "" : `\n${percent(d.agreement)} of resampled laws agree`);

export function bestRecurrence(width, data, flops) {
  return steps(width, data, {
    x: "flops",
    y: "best_recurrence",
    series: (d) => d.rung,
    at: flops,
    xScale: { type: "log", label: "training compute (FLOPs)", tickFormat: power, ticks: decades(data, "flops") },
    yScale: { label: "best passes R*", ticks: whole(data, "best_recurrence"), tickFormat: "d" },
    spread: (value, k) => value + 0.05 * k,
    describe: (d) =>
      `${d.rung} E=${d.experts} at ${power(d.flops)} FLOPs\nR* = ${d.best_recurrence}, loss ${loss(d.loss)}${agreed(d)}${beyond(d)}`,
  });
}

export function bestExperts(width, data, memory) {
  const ticks = unique(data, "best_experts").filter((v) => v != null);
  return steps(width, data, {
    x: "memory",
    y: "best_experts",
    series: (d) => `R=${d.recurrence}`,
    at: memory,
    xScale: { type: "log", label: "memory", tickFormat: bytes, ticks: decades(data, "memory") },
    yScale: { type: "log", base: 2, label: "best experts E*", ticks, tickFormat: String },
    spread: (value, k) => value * 1.035 ** k,
    describe: (d) =>
      `${bytes(d.memory)}, R=${d.recurrence}\nE* = ${d.best_experts} with ${d.rung}\nloss ${loss(d.loss)}${agreed(d)}${beyond(d)}`,
  });
}

export function pareto(width, data, cost, limit) {
  const { series, text, muted, card } = palette();
  const front = data.filter((d) => d[`on_${cost}_front`]).sort((a, b) => a[cost] - b[cost]);
  const [top, low] = [Math.max(...front.map((d) => d.loss)), Math.min(...front.map((d) => d.loss))];
  const near = data.filter((d) => d.loss <= top + 0.25 * (top - low || 0.1));
  const scale =
    cost === "memory"
      ? { label: "memory of weights and KV cache", tickFormat: bytes }
      : { label: "FLOPs a generated token", tickFormat: (v) => count(v, 2) };
  return chart(
    width,
    {
      marginRight: 24,
      x: { type: "log", ticks: decades(near, cost), ...scale },
      y: { label: "predicted loss (nats/token)", tickFormat: (v) => v.toFixed(2), nice: true },
    },
    [
      limit ? Plot.ruleX([limit], { stroke: muted, strokeDasharray: "3,3" }) : null,
      limit ? Plot.text([limit], { x: (d) => d, frameAnchor: "top", dy: -13, text: () => "limit", fill: muted }) : null,
      Plot.dot(near, { x: cost, y: "loss", r: 2.2, fill: muted, fillOpacity: (d) => (d.usable ? 0.75 : 0.25) }),
      Plot.line(front, { x: cost, y: "loss", stroke: series[0], strokeWidth: 2, curve: "step-after" }),
      Plot.dot(front, { x: cost, y: "loss", r: 3.6, fill: series[0], stroke: card }),
      Plot.dot(
        near.filter((d) => d.chosen),
        { x: cost, y: "loss", symbol: "star", r: 8, fill: series[1], stroke: card },
      ),
      Plot.text(
        near.filter((d) => d.chosen),
        {
          x: cost,
          y: "loss",
          text: label,
          dy: -14,
          dx: 6,
          textAnchor: "start",
          fontWeight: 600,
          fill: text,
          stroke: card,
          strokeWidth: 4,
        },
      ),
      tip(
        near,
        cost,
        "loss",
        (d) =>
          `${label(d)}${d.chosen ? " ★ chosen" : ""}\nloss ${loss(d.loss)}\n${bytes(d.memory)}, ${count(d.inference)} FLOPs/token${d[`on_${cost}_front`] ? "\non the front" : d.usable ? "" : "\nruled out"}`,
      ),
    ],
  );
}

export function sideBySide(width, data, x, at) {
  const { series, muted } = palette();
  const lines = grouped(inSight(data), (d) => d.side);
  const colour = (d) => series[d.side === "A" ? 0 : 1];
  const scale =
    x === "flops"
      ? { type: "log", label: "training compute (FLOPs)", tickFormat: power, ticks: decades(data, x) }
      : { label: "passes R", ticks: whole(data, x), tickFormat: "d" };
  const kept = [...lines.values()].flat();
  return chart(
    width,
    {
      marginRight: 30,
      x: scale,
      y: { label: "predicted loss (nats/token)", tickFormat: (v) => v.toFixed(2), nice: true },
    },
    [
      at ? Plot.ruleX([at], { stroke: muted, strokeDasharray: "3,3" }) : null,
      ...[...lines.values()]
        .filter((line) => line[0].loss_low != null)
        .map((line) => Plot.areaY(line, { x, y1: "loss_low", y2: "loss_high", fill: colour, fillOpacity: 0.15 })),
      Plot.line(kept, { x, y: "loss", z: "series", stroke: colour, strokeWidth: 2 }),
      Plot.dot(kept, { x, y: "loss", r: 2.6, fill: colour }),
      ends([...lines.values()], x, "loss", colour),
      tip(kept, x, "loss", (d) => `${d.side}: ${design(d)}\n${power(d.flops)} FLOPs`),
    ],
  );
}

// Designs with hardly a token to train on would squeeze all others into a line at the bottom.
function inSight(data) {
  const known = data.filter((d) => d.loss != null);
  const losses = known.map((d) => d.loss).sort((a, b) => a - b);
  const most = losses[0] + 6 * (losses[Math.floor(losses.length / 2)] - losses[0]) + 0.05;
  return known.filter((d) => d.loss <= most);
}

export const unique = (data, name) => [...new Set(data.map((d) => d[name]))].sort((a, b) => a - b);
// Powers of ten, or where fewer than three of them are in sight also their two- and fivefold.
export function decades(data, name) {
  const values = data.map((d) => d[name]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const powers = Array.from({ length: 60 }, (_, k) => 10 ** (k - 10));
  const inside = (ticks) => ticks.filter((v) => v >= low * 0.99 && v <= high * 1.01);
  return inside(powers).length >= 3 ? inside(powers) : inside(powers.flatMap((v) => [v, 2 * v, 5 * v]));
}

function whole(data, name) {
  const values = unique(data, name).filter((v) => v != null);
  return values.length <= 12 ? values : values.filter((_, k) => k % 2 === 0);
}
