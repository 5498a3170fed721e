// Charts of fits and sweeps, as chart.js draws and reads them.
import { extent } from "./plot.js";
import { count, counted, loss, percent, power, rows } from "./quantities.js";

const experts = (E) => (E === 1 ? "dense" : `${E}x experts`);
const passes = (R) => (R === 1 ? "1 pass" : `${R} passes`);
const about = (d) => `${count(d.size)}, ${experts(d.experts)}, ${passes(d.recurrence)}, ${count(d.tokens)} tokens`;
const unique = (data, name) => [...new Set(data.map((d) => d[name]))].filter((v) => v != null).sort((a, b) => a - b);
const colourOf = (k) => `var(--c${k % 7})`;
const [BLUE, ORANGE, GREY] = ["var(--c0)", "var(--c1)", "var(--soft)"];
const level = (domain, y = 0) => ({ colour: GREY, points: domain.map((v) => ({ x: v, y })) });

// Rows of the data; many lie on one another, so the more there are, the fainter each is. Outliers are drawn last.
function marked(points, place) {
  const faint = Math.max(0.12, Math.min(0.55, 14 / Math.sqrt(points.length)));
  const look = (d) => (d.outlier ? { colour: ORANGE, r: 3.6 } : { colour: BLUE, opacity: Number(faint.toFixed(2)) });
  return [...points].sort((a, b) => a.outlier - b.outlier).map((d) => ({ ...place(d), ...look(d) }));
}

export function observed(points) {
  const domain = extent(points.flatMap((d) => [d.observed, d.predicted]));
  const place = (d) => ({ x: d.observed, y: d.predicted });
  return {
    hint: "A law that fits leaves all points on the line; outliers are marked.",
    x: { domain, label: "observed loss, nats per token" },
    y: { domain, label: "predicted loss" },
    lines: [{ colour: GREY, points: domain.map((v) => ({ x: v, y: v })) }],
    dots: marked(points, place),
    points: points.map((d) => ({ ...place(d), series: "rows", text: () => `${about(d)}: observed ${loss(d.observed)}, predicted ${loss(d.predicted)}${d.outlier ? ", an outlier" : ""}` })),
  };
}

const AXES = { size: "active parameters", tokens: "training tokens", experts: "experts per active one", recurrence: "passes" };

export function residuals(points, axis) {
  const values = unique(points, axis);
  const log = axis !== "recurrence";
  const few = values.length <= 10 && (axis === "recurrence" || axis === "experts") ? values : undefined;
  const domain = values.length > 1 ? extent(values, log ? 0.04 : 0.05, log) : extent(values.flatMap((v) => [v / 2, 2 * v]), 0, log);
  const place = (d) => ({ x: d[axis], y: d.residual });
  return {
    hint: "A good fit leaves a level band around zero; a trend means that the form does not fit.",
    x: { domain, log, ticks: few, label: AXES[axis], format: (v) => count(v, 2) },
    y: { domain: extent([...points.map((d) => d.residual), 0]), label: "predicted − observed ln loss" },
    lines: [level(domain)],
    dots: marked(points, place),
    points: points.map((d) => ({ ...place(d), series: "rows", text: () => `${about(d)}: residual ${(100 * d.residual).toFixed(2)}%${d.outlier ? ", an outlier" : ""}` })),
  };
}

// Errors of hidden rows with their predictive intervals, beside the residuals of the rows that were fitted.
export function backtest({ hidden, fitted, level: share }) {
  const [tested, known] = [rows(hidden), rows(fitted)];
  const domain = extent([...tested, ...known].map((d) => d.C), 0.03, true); // prettier-ignore
  const colour = (d) => (d.inside ? BLUE : ORANGE);
  return {
    hint: `Hidden rows are drawn with their ${percent(share)} predictive intervals.`,
    legend: [["run-key", "rows that were fitted"], ["run-key", "hidden rows, inside their interval", `background:${BLUE}`], ["run-key", "outside", `background:${ORANGE}`]],
    x: { domain, log: true, label: "training compute, FLOPs", format: power },
    y: { domain: extent([...known.map((d) => d.error), ...tested.flatMap((d) => [d.error_low, d.error_high]), 0]), label: "predicted − observed ln loss, %" },
    lines: [level(domain), ...tested.map((d) => ({ colour: colour(d), kind: "line thin", points: [{ x: d.C, y: d.error_low }, { x: d.C, y: d.error_high }] }))],
    dots: [...known.map((d) => ({ x: d.C, y: d.error, colour: GREY, opacity: 0.5 })), ...tested.map((d) => ({ x: d.C, y: d.error, colour: colour(d), r: 3 }))],
    points: tested.map((d) => ({ x: d.C, y: d.error, series: "hidden", text: () => `${d.run}: ${count(d.N)}, ${experts(d.E)}, ${passes(d.R)}, ${count(d.D)} tokens: observed ${loss(d.observed)}, predicted ${loss(d.predicted)}, ${d.inside ? "inside" : "outside"} the interval` })),
  }; // prettier-ignore
}

// Held-out RMSE of each recurrence form: a row for each part that was held out.
export function heldOutErrors(scores) {
  const [parts, forms] = ["slice", "mapping"].map((name) => [...new Set(scores.map((d) => d[name]))]);
  const row = (k) => parts.length - 1 - k; // the first part on top
  const at = (d) => row(parts.indexOf(d.slice)) + 0.3 - (0.6 * (forms.indexOf(d.mapping) + 0.5)) / forms.length;
  const colour = (d) => colourOf(forms.indexOf(d.mapping));
  const lowest = (d) => scores.find((other) => other.slice === d.slice && other.best)?.rmse ?? d.rmse;
  const spans = scores.filter((d) => d.low != null && !d.best);
  const ends = (d) => [lowest(d) + Math.max(0, d.low), lowest(d) + d.high];
  return {
    hint: "Large dot: the lowest. Lines: the interval of the difference to the lowest, over resampled held-out runs. A form whose line starts at the lowest is statistically tied with it.",
    legend: forms.map((form, k) => ["run-key", form, `background:${colourOf(k)}`]),
    height: 60 + 40 * parts.length + 7 * parts.length * forms.length,
    x: { domain: extent([...scores.map((d) => d.rmse), ...spans.flatMap(ends), 0]), label: "held-out RMSE, nats" },
    y: { domain: [-0.6, parts.length - 0.4], ticks: parts.map((_, k) => k), format: (k) => parts[row(k)] },
    lines: spans.map((d) => ({ colour: colour(d), kind: "line thin", points: ends(d).map((v) => ({ x: v, y: at(d) })) })),
    dots: scores.map((d) => ({ x: d.rmse, y: at(d), colour: colour(d), r: d.best ? 5.5 : 3.2 })),
    points: scores.map((d) => ({ x: d.rmse, y: at(d), series: d.slice, text: () => `${d.mapping}, held out ${d.slice}: RMSE ${loss(d.rmse)} on ${counted(d.rows, "row")} of ${counted(d.runs, "run")}, ${d.best ? "the lowest" : `${d.difference.toFixed(4)} above the lowest`}` })),
  };
}

// How the uncertainty of a live sweep's law falls as losses arrive.
export function uncertainty(history) {
  const points = history.map((d) => ({ x: d.count, y: 100 * d.width }));
  return {
    hint: "Each point is a refit: the median width of the law's 90% interval at all points so far, relative to the loss. With few runs an interval can be too narrow, and another form may be chosen.",
    x: { domain: extent(points.flatMap((d) => [d.x - 1, d.x + 1])), ticks: unique(points, "x"), label: "losses fitted", format: String },
    y: { domain: extent([...points.map((d) => d.y), 0]), label: "width of the 90% interval, %" },
    height: 240,
    lines: [{ points }],
    dots: points.map((d) => ({ ...d, r: 3.6 })),
    points: points.map((d) => ({ ...d, series: "refits", text: () => `${counted(d.x, "loss")}: the 90% interval is ${d.y.toFixed(2)}% wide` })),
  };
}

// Loss over training compute, as the points of a sweep arrive; colours by what varies: experts, else passes.
export function losses(points) {
  const axis = unique(points, "experts").length > 1 ? "experts" : "recurrence";
  const kinds = unique(points, axis);
  return {
    hint: "Each point is the loss of one run after one number of tokens.",
    legend: kinds.map((kind, k) => ["run-key", axis === "experts" ? experts(kind) : passes(kind), `background:${colourOf(k)}`]),
    x: { domain: extent(points.map((d) => d.flops), 0.03, true), log: true, label: "training compute, FLOPs", format: power },
    y: { domain: extent(points.map((d) => d.loss)), label: "validation loss, nats per token" },
    dots: points.map((d) => ({ x: d.flops, y: d.loss, colour: colourOf(kinds.indexOf(d[axis])), r: 3.4 })),
    points: points.map((d) => ({ x: d.flops, y: d.loss, series: d[axis], text: () => `${d.run}: ${about(d)}: loss ${loss(d.loss)}` })),
  }; // prettier-ignore
}
