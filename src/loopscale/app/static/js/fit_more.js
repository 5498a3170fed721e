// What to ask of a fitted sweep next: which mapping predicts held-out rows, and which runs to add.
import { captioned, make, table } from "./dom.js";
import { figure } from "./chart.js";
import { backtest, heldOutErrors } from "./fit_charts.js";
import { term } from "./glossary.js";
import { count, counted, percent, power, rows } from "./quantities.js";
import { jobCard } from "./job.js";
import { requestBody } from "./plan.js";
import { state } from "./state.js";

export const heldOut = (id, slices) =>
  jobCard({
    title: "Which form of the law generalises best?",
    hint: ["A ", term("held-out test"), ". Rows to hold out: passes like R=8, experts per active one like E=16, sizes like N>0.9B, tokens like D>400B. Cross-validation by run comes with them."],
    label: "Rows to hold out",
    field: "slices",
    value: slices.join(", "),
    button: { id: "compare-mappings", text: "Compare forms" },
    path: `fits/${id}/compare`,
    body: (text) => ({
      hold_out: text
        .split(",")
        .map((part) => part.trim())
        .filter(Boolean),
    }),
    show: (result) =>
      make("div", {}, ...scores(result), chartCard("chart-held-out", "Held-out error of each form", "")),
    draw: (result) => figure("chart-held-out", heldOutErrors(result.scores), result.scores),
  });

export const backtested = (id) =>
  jobCard({
    title: "Does the law predict larger runs?",
    hint: ["A ", term("backtest"), ": hides the most expensive runs, fits the rest, and predicts what was hidden with 90% intervals."],
    label: "Decades of compute to hide",
    field: "decades",
    value: "1",
    button: { id: "start-backtest", text: "Backtest" },
    path: `fits/${id}/backtest`,
    body: (text) => ({ decades: Number(text) || text }),
    show: (result) => chartCard("chart-backtest", "Hidden runs: predicted against observed", result.summary.split("\n\n")[0]),
    draw: (result) => figure("chart-backtest", backtest(result), rows(result.hidden), result.summary),
  });

function chartCard(id, title, text) {
  return make(
    "figure",
    { class: "chart", id },
    make("figcaption", {}, make("h3", {}, title)),
    make("p", { class: "said-result" }, text),
    make("div", { class: "plot" }),
    make("p", { class: "hint" }),
  );
}

export const nextRuns = (id, budget) =>
  jobCard({
    title: "Which runs would reduce uncertainty most?",
    hint: "For the budgets of the Plan view: the runs that reduce the uncertainty of its choice most per FLOP.",
    label: "FLOPs for new runs",
    field: "next-budget",
    value: budget,
    button: { id: "choose-runs", text: "Choose runs" },
    path: `fits/${id}/next`,
    body: (text) => ({ budget: text, plan: requestBody(), device: state.device || "h100" }),
    show: runsTable,
  });

function scores(result) {
  const mappings = [...new Set(result.scores.map((score) => score.mapping))];
  const slices = [...new Set(result.scores.map((score) => score.slice))];
  const find = (slice, mapping) => result.scores.find((score) => score.slice === slice && score.mapping === mapping);
  const columns = [
    { name: "held out", left: true, cell: (slice) => slice },
    { name: "rows (runs)", cell: (slice) => `${find(slice, mappings[0]).rows} (${find(slice, mappings[0]).runs})` },
    ...mappings.map((mapping) => ({
      name: mapping,
      cell: (slice) => {
        const score = find(slice, mapping);
        const sign = score.best ? " ★" : score.low == null || score.low <= 0 ? " ~" : "";
        return make(
          score.best ? "b" : "span",
          { title: score.best ? "lowest" : `${score.difference.toFixed(4)} above the lowest` },
          score.rmse.toFixed(4) + sign,
        );
      },
    })),
  ];
  const caption = "Held-out RMSE in nats. ★ lowest, ~ statistically tied with the best.";
  return captioned(caption, { id: "scores" }, table(columns, slices));
}

function runsTable(result) {
  const columns = [
    { name: "size", left: true, cell: (d) => d.model },
    { name: "experts per active one", cell: (d) => String(d.experts) },
    { name: "passes", cell: (d) => String(d.recurrence) },
    { name: "tokens", cell: (d) => count(d.tokens) },
    { name: "FLOPs", cell: (d) => power(d.flops) },
    { name: "FLOPs so far", cell: (d) => power(d.cumulative_flops) },
    { name: `time on one ${result.device}`, cell: (d) => d.time },
    ...(result.runs.some((d) => d.dollars != null) ? [{ name: "dollars", cell: (d) => count(d.dollars, 2) }] : []),
    { name: "standard error after", cell: (d) => d.standard_error.toFixed(5) },
  ];
  const caption = `Standard error of the loss differences to the alternatives: ${result.before.toFixed(5)} now, ${result.after.toFixed(5)} after ${counted(result.runs.length, "run")}. Times at ${percent(result.utilisation)} of the device's peak.`;
  return make("div", {}, ...captioned(caption, { id: "runs" }, table(columns, result.runs)));
}
