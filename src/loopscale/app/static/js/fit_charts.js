// Charts of a fit: what it predicts, and its residuals.
import { palette } from "./chart.js";
import { extent, logAxis, unique } from "./axes.js";
import { count, loss, percent, power, rows } from "./quantities.js";

const experts = (E) => (E === 1 ? "dense" : `${E}x experts`);
const passes = (R) => (R === 1 ? "1 pass" : `${R} passes`);
const about = (d) => `${count(d.size)}, ${experts(d.experts)}, ${passes(d.recurrence)}, ${count(d.tokens)} tokens`;
// Many points lie on one another: the more there are, the fainter each is.
const faint = (points) => Math.max(0.12, Math.min(0.55, 14 / Math.sqrt(points.length)));

export function observed(points, title) {
  const { series, muted } = palette();
  const domain = extent(points.flatMap((d) => [d.observed, d.predicted]));
  return {
    title,
    hint: "A law that fits leaves all points on the line; outliers are marked.",
    margin: { right: 20 },
    x: { scale: "linear", domain, label: "observed loss (nats/token)" },
    y: { scale: "linear", domain, label: "predicted loss (nats/token)" },
    lines: [{ colour: muted, points: domain.map((v) => ({ x: v, y: v })) }],
    dots: points.map((d) => ({
      x: d.observed,
      y: d.predicted,
      colour: series[d.outlier ? 1 : 0],
      opacity: d.outlier ? 1 : faint(points),
      r: d.outlier ? 3.6 : 2.6,
    })),
    points: points.map((d) => ({
      x: d.observed,
      y: d.predicted,
      series: "rows",
      text: () => `${about(d)}\nobserved ${loss(d.observed)}, predicted ${loss(d.predicted)}${d.outlier ? "\noutlier" : ""}`,
    })),
  };
}

const AXES = { size: "active parameters", tokens: "training tokens", experts: "experts per active one", recurrence: "passes" };

export function residuals(points, axis, title) {
  const { series, muted } = palette();
  const values = unique(points, axis);
  const few = values.length <= 10 ? values : undefined;
  const x =
    axis === "recurrence"
      ? { scale: "linear", domain: extent(values), ticks: few, label: AXES[axis], format: String }
      : { ...logAxis(values, AXES[axis], (v) => count(v, 2)), ...(axis === "experts" && few ? { ticks: few } : {}) };
  const y = extent([...points.map((d) => d.residual), 0]);
  return {
    title,
    hint: "A good fit leaves a level band around zero; a trend means that the form does not fit.",
    margin: { right: 20, left: 64 },
    x,
    y: { scale: "linear", domain: y, label: "predicted − observed ln loss" },
    lines: [{ colour: muted, points: x.domain.map((v) => ({ x: v, y: 0 })) }],
    dots: points.map((d) => ({
      x: d[axis],
      y: d.residual,
      colour: series[d.outlier ? 1 : 0],
      opacity: d.outlier ? 1 : faint(points),
      r: d.outlier ? 3.6 : 2.6,
    })),
    points: points.map((d) => ({
      x: d[axis],
      y: d.residual,
      series: "rows",
      text: () => `${about(d)}\nresidual ${d.residual.toExponential(2)}${d.outlier ? "\noutlier" : ""}`,
    })),
  };
}

// Errors of hidden rows with their predictive intervals, beside the residuals of the rows that were fitted.
export function backtest({ hidden, fitted, level }, title) {
  const { series, muted } = palette();
  const [tested, known] = [rows(hidden), rows(fitted)];
  const x = logAxis([...tested, ...known].map((d) => d.C), "training compute (FLOPs)", power);
  const values = [...known.map((d) => d.error), ...tested.flatMap((d) => [d.error_low, d.error_high]), 0];
  return {
    title,
    hint: `Grey: rows that were fitted. Coloured: hidden rows with ${percent(level)} predictive intervals, the second colour where the observed loss lies outside.`,
    margin: { right: 20 },
    x,
    y: { scale: "linear", domain: extent(values), label: "ln predicted − ln observed loss, %" },
    lines: [
      { colour: muted, points: x.domain.map((v) => ({ x: v, y: 0 })) },
      ...tested.map((d) => ({
        colour: series[d.inside ? 0 : 1],
        width: 1,
        points: [
          { x: d.C, y: d.error_low },
          { x: d.C, y: d.error_high },
        ],
      })),
    ],
    dots: [
      ...known.map((d) => ({ x: d.C, y: d.error, colour: muted, opacity: 0.5, r: 2.4 })),
      ...tested.map((d) => ({ x: d.C, y: d.error, colour: series[d.inside ? 0 : 1], r: 3 })),
    ],
    points: tested.map((d) => ({
      x: d.C,
      y: d.error,
      series: "hidden",
      text: () =>
        `${d.run}\n${count(d.N)} parameters, ${experts(d.E)}, ${passes(d.R)}, ${count(d.D)} tokens\nobserved ${loss(d.observed)}, predicted ${loss(d.predicted)}\n${d.inside ? "inside" : "outside"} the interval`,
    })),
  };
}

// Held-out RMSE of each recurrence form: a row for each part that was held out.
export function heldOutErrors(scores, title) {
  const { series } = palette();
  const [parts, forms] = ["slice", "mapping"].map((name) => [...new Set(scores.map((d) => d[name]))]);
  const row = (k) => parts.length - 1 - k; // the first part on top
  const at = (d) => row(parts.indexOf(d.slice)) + 0.3 - (0.6 * (forms.indexOf(d.mapping) + 0.5)) / forms.length;
  const colour = (d) => series[forms.indexOf(d.mapping) % series.length];
  const lowest = (d) => scores.find((other) => other.slice === d.slice && other.best)?.rmse ?? d.rmse;
  const spans = scores.filter((d) => d.low != null && !d.best);
  const ends = (d) => [lowest(d) + Math.max(0, d.low), lowest(d) + d.high];
  const wide = innerWidth > 600; // a phone has no room beside the plot; its readers tap the points
  const domain = extent([...scores.map((d) => d.rmse), ...spans.flatMap(ends), 0]);
  return {
    title,
    hint: "★ lowest; lines: the interval of the difference to the lowest, over resampled held-out runs. A form whose line starts at the lowest is statistically tied with it.",
    margin: { right: wide ? 152 : 16, left: 118 },
    x: { scale: "linear", domain, label: "held-out RMSE (nats)" },
    y: {
      scale: "linear",
      domain: [-0.6, parts.length - 0.4],
      ticks: parts.map((_, k) => k),
      label: "held out",
      format: (k) => parts[row(k)],
    },
    lines: [
      ...spans.map((d) => ({ colour: colour(d), width: 1.4, points: ends(d).map((v) => ({ x: v, y: at(d) })) })),
      // Names of the forms beside the first row, in their colours.
      ...scores
        .filter((d) => wide && d.slice === parts[0])
        .map((d) => ({ label: d.mapping, colour: colour(d), points: [{ x: domain[1], y: at(d) }] })),
    ],
    dots: scores.map((d) => ({ x: d.rmse, y: at(d), colour: colour(d), star: d.best, r: d.best ? 5 : 3.6 })),
    points: scores.map((d) => ({
      x: d.rmse,
      y: at(d),
      series: d.slice,
      text: () =>
        `${d.mapping}, held out: ${d.slice}\nRMSE ${loss(d.rmse)} on ${d.rows} rows of ${d.runs} runs${d.best ? "\nlowest" : `\n${d.difference.toFixed(4)} above the lowest`}`,
    })),
  };
}

// How the uncertainty of a live sweep's law falls as losses arrive.
export function uncertainty(history, title) {
  const { series } = palette();
  const points = history.map((d) => ({ x: d.count, y: 100 * d.width }));
  return {
    title,
    hint: "Each point is a refit: the median width of the law's 90% interval at all points so far, relative to the loss. With few runs an interval can be too narrow, and another form may be chosen.",
    margin: { right: 20 },
    x: {
      scale: "linear",
      domain: extent(points.flatMap((d) => [d.x - 1, d.x + 1])),
      ticks: unique(points, "x"),
      label: "losses fitted",
      format: String,
    },
    y: { scale: "linear", domain: extent([...points.map((d) => d.y), 0]), label: "width of the 90% interval, %" },
    lines: [{ colour: series[0], points }],
    dots: points.map((d) => ({ ...d, colour: series[0], r: 3.6 })),
    points: points.map((d) => ({ ...d, series: "refits", text: () => `${d.x} losses\n90% interval ${d.y.toFixed(2)}% wide` })),
  };
}

// Loss over training compute, as the points of a sweep arrive.
export function losses(points, title) {
  const { series } = palette();
  const experts = unique(points, "experts");
  const colour = (d) => series[experts.indexOf(d.experts) % series.length];
  return {
    title,
    hint: "A point for each loss. Colours: experts per active one.",
    margin: { right: 56 },
    // Names of the colours beside the largest run of each.
    lines: experts.map((E) => {
      const last = points.filter((d) => d.experts === E).reduce((a, b) => (b.flops >= a.flops ? b : a));
      return { label: E === 1 ? "dense" : `${E}x`, colour: colour(last), points: [{ x: last.flops, y: last.loss }] };
    }),
    x: logAxis(
      points.map((d) => d.flops),
      "training compute (FLOPs)",
      power,
    ),
    y: { scale: "linear", domain: extent(points.map((d) => d.loss)), label: "validation loss (nats/token)" },
    dots: points.map((d) => ({ x: d.flops, y: d.loss, colour: colour(d), r: 3.2 })),
    points: points.map((d) => ({
      x: d.flops,
      y: d.loss,
      series: d.experts,
      text: () => `${d.run}\n${about(d)}\nloss ${loss(d.loss)}`,
    })),
  };
}
