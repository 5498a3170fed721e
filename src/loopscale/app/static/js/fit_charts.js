// Charts of a fit: what it predicts, and its residuals.
import { palette } from "./chart.js";
import { extent, logAxis, unique } from "./charts.js";
import { count, loss } from "./format.js";

const about = (d) => `${count(d.size)} E=${d.experts} R=${d.recurrence}, ${count(d.tokens)} tokens`;

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
      opacity: d.outlier ? 1 : 0.55,
      r: d.outlier ? 3.6 : 2.6,
    })),
    points: points.map((d) => ({
      x: d.observed,
      y: d.predicted,
      series: "rows",
      text: `${about(d)}\nobserved ${loss(d.observed)}, predicted ${loss(d.predicted)}${d.outlier ? "\noutlier" : ""}`,
    })),
  };
}

const AXES = { size: "active parameters N", tokens: "training tokens D", experts: "experts E", recurrence: "passes R" };

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
      opacity: d.outlier ? 1 : 0.5,
      r: d.outlier ? 3.6 : 2.6,
    })),
    points: points.map((d) => ({
      x: d[axis],
      y: d.residual,
      series: "rows",
      text: `${about(d)}\nresidual ${d.residual.toExponential(2)}${d.outlier ? "\noutlier" : ""}`,
    })),
  };
}

// Loss over training compute, as the points of a sweep arrive.
export function losses(points, title) {
  const { series } = palette();
  const experts = unique(points, "experts");
  const colour = (d) => series[experts.indexOf(d.experts) % series.length];
  return {
    title,
    hint: `A point for each loss; colours show E = ${experts.join(", ")}.`,
    margin: { right: 20 },
    x: logAxis(
      points.map((d) => d.flops),
      "training compute (FLOPs)",
      (v) => count(v, 2),
    ),
    y: { scale: "linear", domain: extent(points.map((d) => d.loss)), label: "validation loss (nats/token)" },
    dots: points.map((d) => ({ x: d.flops, y: d.loss, colour: colour(d), r: 3.2 })),
    points: points.map((d) => ({
      x: d.flops,
      y: d.loss,
      series: d.experts,
      text: `${d.run}\n${about(d)}\nloss ${loss(d.loss)}`,
    })),
  };
}
