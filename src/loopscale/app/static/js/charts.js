// What each chart shows, from the tables that the server returns.
import { palette } from "./chart.js";
import { bytes, count, interval, label, loss, percent, power, size } from "./format.js";

const LOSS = "predicted loss (nats/token)";
const band = (d) => (d.loss_low == null ? "" : `\n${interval({ low: d.loss_low, high: d.loss_high, kind: d.interval })}`);
const beyond = (d) =>
  `\ntrust: ${d.trust}${d.extrapolated ? `, † outside the range the law was fitted on: ${d.extrapolated}` : ""}`;
const agreed = (d) => (d.agreement == null ? "" : `\n${percent(d.agreement)} of resampled laws agree`);
const describe = (d) => `${label(d)}\nloss ${loss(d.loss)}${band(d)}\n${count(d.tokens)} tokens`;

function grouped(data, series) {
  const groups = new Map();
  for (const row of data) {
    const name = series(row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return groups;
}

// The parts of the x axis where every line is outside the fitted range, halfway to the nearest point that is not.
export function shaded(data, x) {
  const known = new Map();
  for (const d of data) known.set(d[x], (known.get(d[x]) ?? true) && Boolean(d.extrapolated));
  const values = [...known.keys()].sort((a, b) => a - b);
  const spans = [];
  for (let k = 0; k < values.length; k++) {
    if (!known.get(values[k])) continue;
    const first = k;
    while (k + 1 < values.length && known.get(values[k + 1])) k++;
    const middle = (a, b) => (a > 0 && b / a > 1.5 ? Math.sqrt(a * b) : (a + b) / 2);
    spans.push([
      first ? middle(values[first - 1], values[first]) : null,
      k + 1 < values.length ? middle(values[k], values[k + 1]) : null,
    ]);
  }
  return spans;
}

// Designs with hardly a token to train on would squeeze all others into a line at the bottom.
function inSight(data) {
  const known = data.filter((d) => d.loss != null);
  const losses = known.map((d) => d.loss).sort((a, b) => a - b);
  const most = losses[0] + 6 * (losses[Math.floor(losses.length / 2)] - losses[0]) + 0.05;
  return known.filter((d) => d.loss <= most);
}

export function extent(values, margin = 0.05, log = false) {
  const all = values.filter((v) => v != null && Number.isFinite(v));
  const [low, high] = [Math.min(...all), Math.max(...all)];
  if (log) return [low / (high / low || 1) ** margin / 1.0001, high * (high / low || 1) ** margin * 1.0001];
  const room = (high - low || Math.abs(high) * 0.02 || 1) * margin;
  return [low - room, high + room];
}

export const unique = (data, name) =>
  [...new Set(data.map((d) => d[name]))].filter((v) => v != null).sort((a, b) => a - b);

// Powers of ten, or where fewer than three of them are in sight also their two- and fivefold.
export function decades([low, high]) {
  const powers = Array.from({ length: 60 }, (_, k) => 10 ** (k - 10));
  const inside = (ticks) => ticks.filter((v) => v >= low * 0.99 && v <= high * 1.01);
  return inside(powers).length >= 3 ? inside(powers) : inside(powers.flatMap((v) => [v, 2 * v, 5 * v]));
}

export function logAxis(values, axisLabel, format) {
  const domain = extent(values, 0.02, true);
  return { scale: "log", domain, ticks: decades(domain), label: axisLabel, format };
}

function passesAxis(data, name) {
  const values = unique(data, name);
  const ticks = values.length <= 12 ? values : values.filter((_, k) => k % 2 === 0);
  return { scale: "linear", domain: extent(values, 0.03), ticks, label: "passes R", format: String };
}

function expertsAxis(data) {
  const values = unique(data, "experts");
  return { scale: "log2", domain: extent(values, 0.04, true), ticks: values, label: "experts E", format: String };
}

const STARS = {
  recurrence: "★ last pass that gains at least ε",
  experts: "★ last step in experts that gains at least ε",
  size: "★ lowest loss of its line",
};

export function isoflop(data, axis, choice, title, bandText) {
  const { series: colours, text } = palette();
  const kept = inSight(data);
  const x = axis === "size" ? "active" : axis;
  const name = (d) => (axis === "size" ? `R=${d.recurrence}` : d.rung);
  const chosen = name(choice);
  const groups = [...grouped(kept, name)];
  const colour = (k) => colours[k % colours.length];
  const at = (d) => ({ x: d[x], y: d.loss });
  const dots = groups.flatMap(([, rows], k) => [
    ...(kept.length < 120 ? rows.map((d) => ({ ...at(d), colour: colour(k), hollow: Boolean(d.extrapolated) })) : []),
    ...rows.filter((d) => d.best).map((d) => ({ ...at(d), colour: colour(k), star: true, r: 6 })),
  ]);
  const bands = groups
    .map(([key, rows], k) => ({ key, colour: colour(k), points: rows }))
    .filter((d) => d.key === chosen && d.points[0].loss_low != null)
    .map((d) => ({ ...d, points: d.points.map((p) => ({ x: p[x], low: p.loss_low, high: p.loss_high })) }));
  const losses = kept.flatMap((d) =>
    name(d) === chosen && d.loss_low != null ? [d.loss, d.loss_low, d.loss_high] : [d.loss],
  );
  return {
    title,
    hint: `${STARS[axis]}; hollow points and shaded ranges lie outside the range the law was fitted on; the ring is the choice. ${bandText}`,
    x:
      axis === "size"
        ? logAxis(
            kept.map((d) => d.active),
            "active parameters N",
            (v) => count(v, 2),
          )
        : axis === "experts"
          ? expertsAxis(kept)
          : passesAxis(kept, x),
    y: { scale: "linear", domain: extent(losses), label: LOSS },
    shade: shaded(kept, x),
    bands,
    lines: groups.map(([key, rows], k) => ({
      label: key,
      colour: colour(k),
      width: key === chosen ? 2.6 : 1.5,
      points: rows.map(at),
    })),
    dots: [...dots, { x: choice[x], y: choice.loss, ring: true, r: 10, colour: text }],
    points: kept.map((d) => ({
      ...at(d),
      series: name(d),
      start: name(d) === chosen && d[x] === choice[x],
      text: () =>
        `${axis === "size" ? `${size(d.active)} active, E=${d.experts} R=${d.recurrence}\nloss ${loss(d.loss)}${band(d)}\n${count(d.tokens)} tokens` : describe(d)}${d.best ? `\n${STARS[axis]}` : ""}${beyond(d)}`,
    })),
  };
}

// Whole numbers are drawn where they are. Lines on one another differ in width, the first the widest.
function steps(data, { x, y, name, at, xAxis, yAxis, text, title, hint }) {
  const { series: colours } = palette();
  const kept = data.filter((d) => d[y] != null);
  const groups = [...grouped(kept, name)];
  const uncertain = kept.filter((d) => d.agreement != null && d.agreement < 0.8);
  const index = new Map(groups.map(([key], k) => [key, k]));
  const colour = (d) => colours[index.get(name(d)) % colours.length];
  return {
    title,
    hint: `${hint} Lines that coincide lie on one another, the widest below. Shaded: outside the range the law was fitted on${uncertain.length ? "; ○ under 80% of resampled laws agree" : ""}.`,
    margin: { right: 78 },
    x: xAxis,
    y: yAxis,
    shade: shaded(kept, x),
    lines: groups.map(([key, rows], k) => ({
      label: key,
      colour: colours[k % colours.length],
      width: 2 + 1.7 * (groups.length - 1 - k),
      step: true,
      points: rows.map((d) => ({ x: d[x], y: d[y] })),
    })),
    dots: uncertain.map((d) => ({ x: d[x], y: d[y], colour: colour(d), hollow: true })),
    rules: at ? [{ x: at, label: "yours" }] : [],
    points: kept.map((d) => ({ x: d[x], y: d[y], series: name(d), text: () => text(d) + agreed(d) + beyond(d) })),
  };
}

export function bestRecurrence(data, flops, title, hint) {
  const highest = Math.max(...data.map((d) => d.best_recurrence));
  return steps(data, {
    x: "flops",
    y: "best_recurrence",
    name: (d) => d.rung,
    at: flops,
    title,
    hint,
    xAxis: logAxis(
      data.map((d) => d.flops),
      "training compute (FLOPs)",
      power,
    ),
    yAxis: {
      scale: "linear",
      domain: [0.5, highest + 0.5],
      ticks: Array.from({ length: highest }, (_, k) => k + 1),
      label: "best passes R*",
      format: String,
    },
    text: (d) => `${d.rung} E=${d.experts} at ${power(d.flops)} FLOPs\nR* = ${d.best_recurrence}, loss ${loss(d.loss)}`,
  });
}

export function bestExperts(data, memory, title, hint) {
  const levels = unique(data, "best_experts");
  return steps(data, {
    x: "memory",
    y: "best_experts",
    name: (d) => `R=${d.recurrence}`,
    at: memory,
    title,
    hint,
    xAxis: logAxis(
      data.map((d) => d.memory),
      "memory",
      bytes,
    ),
    yAxis: {
      scale: "log2",
      domain: [Math.min(...levels) / 1.4, Math.max(...levels) * 1.4],
      ticks: levels,
      label: "best experts E*",
      format: String,
    },
    text: (d) => `${bytes(d.memory)}, R=${d.recurrence}\nE* = ${d.best_experts} with ${d.rung}\nloss ${loss(d.loss)}`,
  });
}

export function pareto(data, cost, limit, title, own, bandText) {
  const { series, muted, text: dark } = palette();
  const front = data.filter((d) => d[`on_${cost}_front`]).sort((a, b) => a[cost] - b[cost]);
  const [top, low] = [Math.max(...front.map((d) => d.loss)), Math.min(...front.map((d) => d.loss))];
  const near = data.filter((d) => d.loss <= top + 0.25 * (top - low || 0.1));
  const banded = front.filter((d) => d.loss_low != null);
  const chosen = near.filter((d) => d.chosen);
  const at = (d) => ({ x: d[cost], y: d.loss });
  const yours = (own ? [own] : []).map((d) => ({
    x: cost === "memory" ? d.weight_bytes + d.kv_bytes : d.inference_flops,
    y: d.loss,
  }));
  const text = (d) =>
    `${label(d)}${d.chosen ? " ★ chosen" : ""}\nloss ${loss(d.loss)}${band(d)}\n${bytes(d.memory)}, ${count(d.inference)} FLOPs/token${d[`on_${cost}_front`] ? "\non the line" : d.usable ? "" : "\nmisses a limit or the rule"}${beyond(d)}`;
  return {
    title,
    hint: `Line: the lowest loss for each ${cost === "memory" ? "amount of memory" : "cost per token"} among designs that meet all other limits and the rule. Pale dots miss another limit or the rule, so they can lie below the line. ★ the choice${own ? "; the ring: your model" : ""}. Hollow points of the line lie outside the range the law was fitted on. ${bandText}`,
    margin: { right: 24 },
    x:
      cost === "memory"
        ? logAxis(
            [...near.map((d) => d.memory), ...yours.map((d) => d.x)],
            "memory of weights and KV cache",
            bytes,
          )
        : logAxis(
            [...near.map((d) => d.inference), ...yours.map((d) => d.x)],
            "inference FLOPs per token",
            (v) => count(v, 2),
          ),
    y: {
      scale: "linear",
      domain: extent(
        [...near.map((d) => d.loss), ...yours.map((d) => d.y), ...banded.flatMap((d) => [d.loss_low, d.loss_high])],
        0.07,
      ),
      label: LOSS,
    },
    bands: banded.length
      ? [{ colour: series[0], step: true, points: banded.map((d) => ({ x: d[cost], low: d.loss_low, high: d.loss_high })) }]
      : [],
    lines: [{ colour: series[0], width: 2, step: true, points: front.map(at) }],
    dots: [
      ...near.map((d) => ({ ...at(d), colour: muted, r: 2.2, opacity: d.usable ? 0.75 : 0.28 })),
      ...front.map((d) => ({ ...at(d), colour: series[0], r: 3.6, hollow: Boolean(d.extrapolated) })),
      ...chosen.map((d) => ({ ...at(d), colour: series[1], star: true, r: 8 })),
      ...yours.map((d) => ({ ...d, ring: true, r: 8, colour: dark })),
    ],
    rules: limit ? [{ x: limit, label: "limit" }] : [],
    notes: [...chosen.map((d) => ({ ...at(d), text: label(d) })), ...yours.map((d) => ({ ...d, text: "yours" }))],
    points: [...front, ...near.filter((d) => !d[`on_${cost}_front`])].map((d) => ({
      ...at(d),
      series: d[`on_${cost}_front`] ? "on the line" : d.usable ? "meets all limits" : "ruled out",
      start: d.chosen,
      text: () => text(d),
    })),
  };
}

// Scenarios side by side: rows carry `scenario`, the position of their scenario.
export function scenarios(data, x, at, names, title, hint) {
  const { series } = palette();
  const kept = inSight(data);
  const groups = [...grouped(kept, (d) => d.scenario)];
  const colour = (k) => series[k % series.length];
  return {
    title,
    hint: `${hint} Hollow points and shaded ranges lie outside the range a law was fitted on.`,
    x:
      x === "flops"
        ? logAxis(
            kept.map((d) => d.flops),
            "training compute (FLOPs)",
            power,
          )
        : passesAxis(kept, x),
    y: {
      scale: "linear",
      domain: extent(kept.flatMap((d) => (d.loss_low == null ? [d.loss] : [d.loss, d.loss_low, d.loss_high]))),
      label: LOSS,
    },
    shade: shaded(kept, x),
    bands: groups
      .filter(([, rows]) => rows[0].loss_low != null)
      .map(([k, rows]) => ({
        colour: colour(k),
        points: rows.map((d) => ({ x: d[x], low: d.loss_low, high: d.loss_high })),
      })),
    lines: groups.map(([k, rows]) => ({
      label: names[k],
      colour: colour(k),
      width: 2,
      points: rows.map((d) => ({ x: d[x], y: d.loss })),
    })),
    dots: kept.map((d) => ({
      x: d[x],
      y: d.loss,
      colour: colour(d.scenario),
      hollow: Boolean(d.extrapolated),
      r: 2.8,
    })),
    rules: at ? [{ x: at, label: "yours" }] : [],
    points: kept.map((d) => ({
      x: d[x],
      y: d.loss,
      series: d.scenario,
      text: () => `${names[d.scenario]}: ${describe(d)}\n${power(d.flops)} FLOPs${beyond(d)}`,
    })),
  };
}
