// What a fit found: its numbers, its charts, and what to do with it.
import { $, coded, make, segmented, sentence, table } from "./dom.js";
import { download } from "./download.js";
import { figure } from "./chart.js";
import { observed, residuals } from "./fit_charts.js";
import { backtested, heldOut, nextRuns } from "./fit_more.js";
import { term } from "./glossary.js";
import { intervalPlot, lawCard } from "./law_chart.js";
import { chooseLaw } from "./sentence.js";
import { count, counted, loss, rows, significant } from "./quantities.js";
import { addLaw } from "./laws.js";

export function showFit({ id, result }) {
  const place = $("#fit-result");
  const points = rows(result.points);
  place.hidden = false;
  place.dataset.law = result.law_id;
  place.replaceChildren(
    ...[overview(result), lawCard(result), pictures(points), coefficients(result), outliers(result)].filter(Boolean),
    heldOut(id, result.slices),
    backtested(id),
    nextRuns(id, result.next_budget),
  );
  const about = `Law ${result.law.name}: ${result.form}, ${counted(result.rows, "loss")} of ${counted(result.runs, "run")}.`;
  figure("chart-observed", observed(points), points, about);
  drawResiduals(points, varying(points)[0], about);
  $("h2", place).focus();
}

function overview(result) {
  const law = result.law;
  const facts = [
    [term("rmse", "RMSE"), law.rmse.toFixed(4), "nats"],
    [term("r²", "R²"), result.r_squared.toFixed(5), "of the variance"],
    ["Data", counted(result.rows, "loss"), `of ${counted(result.runs, "run")}`],
    [term("starts", "Search"), `${result.agreeing} of ${result.starts}`, "starts agree"],
  ];
  return make(
    "section",
    { class: law.degenerate.length ? "card degenerate" : "card" },
    make("h2", { tabindex: -1 }, `${law.name}: ${result.form}`),
    make("dl", { class: "stats" }, facts.map(([name, value, under]) => make("div", { class: "stat" }, make("dt", {}, name), make("dd", { class: "value" }, value), make("dd", { class: "under" }, under)))),
    law.degenerate.length
      ? make("p", { class: "problem" }, coded(`The data do not determine this law: ${law.degenerate.join("; ")}. It must not be used for predictions.`))
      : null,
    result.warnings.length
      ? make(
          "ul",
          { class: "warnings" },
          result.warnings.map((warning) => make("li", {}, coded(sentence(warning)))),
        )
      : null,
    result.notes.length ? make("p", { class: "hint" }, coded(`Read as: ${result.notes.join("; ")}.`)) : null,
    make(
      "div",
      { class: "actions" },
      make(
        "button",
        {
          type: "button",
          class: law.degenerate.length ? "" : "primary",
          id: "plan-with",
          onclick: () => {
            chooseLaw(addLaw(result.law).id, { move: true });
            scrollTo(0, 0);
          },
        },
        "Plan with this law",
      ),
      make(
        "button",
        {
          type: "button",
          onclick: () => download(`${law.name}.json`, JSON.stringify(law, null, 1) + "\n", "application/json"),
        },
        "Law (JSON)",
      ),
      make(
        "button",
        { type: "button", onclick: () => download(`${law.name}.txt`, result.summary + "\n", "text/plain") },
        "Summary (text)",
      ),
    ),
  );
}

// The axes along which the data vary: residuals over any other are one column of points.
function varying(points) {
  const axes = ["recurrence", "size", "tokens", "experts"].filter((axis) => new Set(points.map((d) => d[axis])).size > 1);
  return axes.length ? axes : ["tokens"];
}

function pictures(points) {
  const card = (id, title, ...extra) =>
    make(
      "figure",
      { class: "card chart", id },
      make("figcaption", {}, make("h3", {}, title), ...extra),
      make("div", { class: "plot" }),
      make("p", { class: "hint" }),
    );
  const axes = varying(points).map((axis) =>
    make("button", { type: "button", "data-value": axis }, { recurrence: "passes" }[axis] || axis),
  );
  return make(
    "div",
    { class: "charts" },
    card("chart-observed", "Predicted against observed"),
    card(
      "chart-residuals",
      term("residuals", "Residuals"),
      make("div", { class: "segmented", role: "group", "aria-label": "Along which axis", id: "residual-axis" }, axes),
    ),
  );
}

function drawResiduals(points, axis, about) {
  segmented($("#residual-axis"), axis, (next) => drawResiduals(points, next, about));
  figure("chart-residuals", residuals(points, axis), points, about);
}

// Rows that the law misses by far more than the others.
function outliers(result) {
  const odd = rows(result.points).filter((d) => d.outlier);
  if (!odd.length) return null;
  const columns = [
    { name: "run", left: true, cell: (d) => d.run },
    { name: "parameters", cell: (d) => count(d.size) },
    { name: "experts per active one", cell: (d) => String(d.experts) },
    { name: "passes", cell: (d) => String(d.recurrence) },
    { name: "tokens", wide: true, cell: (d) => count(d.tokens) },
    { name: "observed", cell: (d) => loss(d.observed) },
    { name: "predicted", cell: (d) => loss(d.predicted) },
  ];
  return make(
    "section",
    { class: "card" },
    make("h3", {}, `Outliers: ${odd.length}`),
    make(
      "p",
      { class: "hint" },
      "Rows that the law misses by far more than the others. Check them before you trust the law.",
    ),
    make("div", { class: "scroll", tabindex: 0 }, make("table", { id: "outliers" }, table(columns, odd.slice(0, 12)))),
  );
}

function coefficients(result) {
  const known = new Map(rows(result.identification).map((row) => [row.coefficient, row]));
  const list = Object.entries(result.coefficients).map(([name, value]) => {
    const sign = result.signs?.[name] ?? 1; // exponents are shown as papers print them: positive
    const span = result.intervals?.[name]?.map((end) => sign * end).sort((a, b) => a - b);
    return { name, value: sign * value, span, known: known.get(name) };
  });
  const columns = [
    { name: "coefficient", left: true, cell: (d) => d.name },
    { name: "what it is (sizes and tokens in billions)", left: true, class: "about-term", cell: (d) => result.meanings[d.name] },
    { name: "estimate", cell: (d) => significant(d.value, 5) },
    { name: "−100% to +100%", cell: (d) => intervalPlot(d.value, d.span, d.known?.identified) },
    {
      name: "90% interval",
      wide: true,
      cell: (d) => (d.span ? `${significant(d.span[0], 4)} to ${significant(d.span[1], 4)}` : "–"),
    },
    {
      name: "identified",
      head: term("identified"),
      cell: (d) => (d.known ? (d.known.on_bound ? "on a bound" : d.known.identified ? "yes" : "no") : "held"),
    },
  ];
  return make(
    "section",
    { class: "card" },
    make("h3", {}, "Coefficients"),
    make("p", { class: "hint" }, "Dot: the estimate. Line: its 90% interval, relative to the estimate; an arrow leaves the scale. Grey: the data do not determine it."),
    make("div", { class: "scroll", tabindex: 0 }, make("table", {}, table(columns, list))),
  );
}
