// Charts of a fit: what it predicts, and what it leaves over.
import { chart, decades, palette, tip, unique } from "./charts.js";
import { count, loss } from "./format.js";

const Plot = window.Plot;

export function observed(width, points) {
  const { series, muted } = palette();
  const span = [
    Math.min(...points.map((d) => Math.min(d.observed, d.predicted))),
    Math.max(...points.map((d) => Math.max(d.observed, d.predicted))),
  ];
  return chart(
    width,
    {
      marginRight: 20,
      x: { label: "observed loss (nats/token)", nice: true },
      y: { label: "predicted loss (nats/token)", nice: true },
    },
    [
      Plot.line(
        [
          [span[0], span[0]],
          [span[1], span[1]],
        ],
        { stroke: muted },
      ),
      Plot.dot(points, { x: "observed", y: "predicted", r: 2.4, fill: series[0], fillOpacity: 0.55 }),
      tip(
        points,
        "observed",
        "predicted",
        (d) =>
          `${count(d.size)} E=${d.experts} R=${d.recurrence}, ${count(d.tokens)} tokens\nobserved ${loss(d.observed)}, predicted ${loss(d.predicted)}`,
      ),
    ],
  );
}

export function residuals(width, points, axis) {
  const { series, muted } = palette();
  const scale =
    axis === "recurrence"
      ? { label: "passes R" }
      : {
          type: "log",
          label: { size: "active parameters N", tokens: "training tokens D", experts: "experts E" }[axis],
          tickFormat: (v) => count(v, 2),
          ticks: axis === "experts" ? unique(points, axis) : decades(points, axis),
        };
  return chart(width, { marginRight: 20, marginLeft: 60, x: scale, y: { label: "predicted − observed ln loss" } }, [
    Plot.ruleY([0], { stroke: muted }),
    Plot.dot(points, { x: axis, y: "residual", r: 2.4, fill: series[0], fillOpacity: 0.5 }),
    tip(
      points,
      axis,
      "residual",
      (d) =>
        `${count(d.size)} E=${d.experts} R=${d.recurrence}, ${count(d.tokens)} tokens\nresidual ${d.residual.toExponential(2)}`,
    ),
  ]);
}
