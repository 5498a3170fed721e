// One's own sweep: sent, fitted with progress, looked at, and planned with.
import { call, finish } from "./api.js";
import { observed, residuals } from "./charts.js";
import { chooseLaw, planRequest } from "./controls.js";
import { $, make, problem, segmented, table, toast } from "./dom.js";
import { download } from "./download.js";
import { figure } from "./figure.js";
import { count, power, rows, significant } from "./format.js";
import { addLaw } from "./laws.js";
import { set } from "./state.js";

let fitted = null;

export function buildFit({ mappings, outer_laws: outers }) {
  $("#fit-mapping").append(...mappings.map((name) => make("option", { value: name }, name)));
  $("#fit-outer").append(...outers.map((name) => make("option", { value: name }, name)));
  $("#choose-csv").onclick = () => $("#csv-file").click();
  $("#csv-file").onchange = (event) => { take(event.target.files[0]); event.target.value = ""; };
  $("#example-csv").onclick = async () => fit(new Blob([await call("example.csv")]), "simulated");
  const zone = $("#fit-view");
  for (const kind of ["dragenter", "dragover"]) zone.addEventListener(kind, (event) => { event.preventDefault(); $(".dropzone").classList.add("over"); });
  zone.addEventListener("dragleave", () => $(".dropzone").classList.remove("over"));
  zone.addEventListener("drop", (event) => { event.preventDefault(); $(".dropzone").classList.remove("over"); take(event.dataTransfer.files[0]); });
}

function take(file) {
  if (file) fit(file, file.name.replace(/\.csv$/i, "").replace(/[^\w. -]/g, "_").slice(0, 60) || "runs");
}

async function fit(content, name) {
  const options = new URLSearchParams({ name, counts: $("#fit-counts").value, resamples: $("#fit-resamples").value || 100 });
  for (const [field, id] of [["mapping", "#fit-mapping"], ["outer", "#fit-outer"]]) if ($(id).value) options.set(field, $(id).value);
  $("#fit-result").hidden = true;
  problem($("#fit-problem"), null);
  try {
    const job = await run(`fit?${options}`, { csv: content }, $("#fit-progress"));
    if (job.state === "cancelled") return toast("Stopped.");
    await addLaw(job.result.law);
    fitted = job;
    showFit(job.result);
  } catch (error) {
    problem($("#fit-problem"), error);
  }
}

// Start a job and show how far it is, with a way to stop it.
async function run(path, request, place) {
  place.hidden = false;
  try {
    return await finish(await call(path, request), (job) => {
      const bar = make("progress", job.total ? { max: job.total, value: job.done } : {});
      bar.setAttribute("aria-label", job.stage);
      const told = job.total ? `${job.stage}: ${job.done} of ${job.total}` : job.stage;
      place.replaceChildren(make("p", {}, told), bar, make("button", { type: "button", onclick: () => call(`jobs/${job.id}`, { method: "DELETE" }) }, "Stop"));
    });
  } finally {
    place.hidden = true;
    place.replaceChildren();
  }
}

function showFit(result) {
  const place = $("#fit-result");
  place.hidden = false;
  place.replaceChildren(overview(result), pictures(), coefficients(result), heldOut(result), nextRuns());
  const points = rows(result.points);
  figure("chart-observed", (width) => observed(width, points), points, "A law that fits leaves all points on the line.");
  drawResiduals(points, "recurrence");
  $("h2", place).focus();
}

function overview(result) {
  const law = result.law;
  const facts = [["RMSE", `${law.rmse.toFixed(4)} nats`], ["R²", result.r_squared.toFixed(5)], ["Data", `${result.rows} losses of ${result.runs} runs`], ["Search", `${result.agreeing} of ${result.starts} starts agree`]];
  return make("section", { class: "card" },
    make("h2", { tabindex: -1 }, `${law.name}: ${result.form}`),
    make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    result.warnings.length ? make("ul", { class: "warnings" }, result.warnings.map((each) => make("li", {}, each))) : null,
    result.notes.length ? make("p", { class: "hint" }, `Read as: ${result.notes.join("; ")}.`) : null,
    make("div", { class: "actions" },
      make("button", { type: "button", class: "primary", id: "plan-with", onclick: () => { chooseLaw(result.law_id); set({ view: "plan" }); scrollTo(0, 0); } }, "Plan with this law"),
      make("button", { type: "button", onclick: () => download(`${law.name}.json`, JSON.stringify(law, null, 1) + "\n", "application/json") }, "Law (JSON)"),
      make("button", { type: "button", onclick: () => download(`${law.name}.txt`, result.summary + "\n", "text/plain") }, "Summary (text)")));
}

function pictures() {
  const card = (id, title, ...extra) => make("figure", { class: "card chart", id }, make("figcaption", {}, make("h3", {}, title), ...extra), make("div", { class: "plot" }), make("p", { class: "hint" }));
  const axes = ["recurrence", "size", "tokens", "experts"].map((axis) => make("button", { type: "button", "data-value": axis }, { recurrence: "passes" }[axis] || axis));
  return make("div", { class: "charts" }, card("chart-observed", "Predicted against observed"),
    card("chart-residuals", "What is left over", make("div", { class: "segmented", role: "group", "aria-label": "Along which axis", id: "residual-axis" }, axes)));
}

function drawResiduals(points, axis) {
  segmented($("#residual-axis"), axis, (next) => drawResiduals(points, next));
  figure("chart-residuals", (width) => residuals(width, points, axis), points, "A sound fit leaves a level band; a trend means that the form does not fit.");
}

function coefficients(result) {
  const known = new Map(rows(result.identification).map((row) => [row.coefficient, row]));
  const list = Object.entries(result.coefficients).map(([name, value]) => ({ name, value, span: result.intervals?.[name], known: known.get(name) }));
  const columns = [
    { name: "coefficient", left: true, cell: (d) => d.name },
    { name: "estimate", cell: (d) => significant(d.value, 5) },
    { name: "90% interval", cell: (d) => (d.span ? `${significant(d.span[0], 4)} – ${significant(d.span[1], 4)}` : "–") },
    { name: "identified", cell: (d) => (d.known ? (d.known.on_bound ? "on a bound" : d.known.identified ? "yes" : "no") : "held") },
    { name: "meaning (N and D in billions)", left: true, cell: (d) => result.meanings[d.name] },
  ];
  return make("section", { class: "card" }, make("h3", {}, "Coefficients"), make("div", { class: "scroll", tabindex: 0 }, make("table", {}, table(columns, list))));
}

function heldOut(result) {
  const slices = make("input", { type: "text", id: "slices", value: result.slices.join(", "), "aria-describedby": "slices-hint" });
  const [place, progress, said] = [make("div", { class: "scroll", tabindex: 0 }), make("div", { class: "progress", hidden: true }), make("p", { class: "problem", role: "alert", hidden: true })];
  const start = async () => {
    problem(said, null);
    try {
      const hold = slices.value.split(",").map((each) => each.trim()).filter(Boolean);
      const job = await run(`fits/${fitted.id}/compare`, { body: { hold_out: hold } }, progress);
      if (job.state === "done") place.replaceChildren(scores(job.result));
    } catch (error) {
      problem(said, error);
    }
  };
  return make("section", { class: "card" }, make("h3", {}, "Which mapping predicts what it has not seen?"),
    make("label", { class: "block" }, "Rows to hold out", slices),
    make("p", { class: "hint", id: "slices-hint" }, "Like R=8, E=16, N>0.9B, D>400B. Cross-validation by run comes with them."),
    make("div", { class: "actions" }, make("button", { type: "button", id: "compare-mappings", onclick: start }, "Compare mappings")), progress, said, place);
}

function scores(result) {
  const mappings = [...new Set(result.scores.map((score) => score.mapping))];
  const slices = [...new Set(result.scores.map((score) => score.slice))];
  const find = (slice, mapping) => result.scores.find((score) => score.slice === slice && score.mapping === mapping);
  const columns = [{ name: "held out", left: true, cell: (slice) => slice }, { name: "rows (runs)", cell: (slice) => `${find(slice, mappings[0]).rows} (${find(slice, mappings[0]).runs})` },
    ...mappings.map((mapping) => ({ name: mapping, cell: (slice) => {
      const score = find(slice, mapping);
      const sign = score.best ? " ★" : score.low == null || score.low <= 0 ? " ~" : "";
      return make(score.best ? "b" : "span", { title: score.best ? "lowest" : `${score.difference.toFixed(4)} above the lowest` }, score.rmse.toFixed(4) + sign);
    } }))];
  return make("table", { id: "scores" }, make("caption", {}, "Held-out RMSE in nats. ★ lowest, ~ not told apart from it."), table(columns, slices));
}

function nextRuns() {
  const budget = make("input", { type: "text", id: "next-budget", value: "1e21" });
  const [place, progress, said] = [make("div", { class: "scroll", tabindex: 0 }), make("div", { class: "progress", hidden: true }), make("p", { class: "problem", role: "alert", hidden: true })];
  const start = async () => {
    problem(said, null);
    try {
      const { law, ...plan } = planRequest([]);
      const job = await run(`fits/${fitted.id}/next`, { body: { budget: budget.value.trim(), plan } }, progress);
      if (job.state === "done") place.replaceChildren(runsTable(job.result));
    } catch (error) {
      problem(said, error);
    }
  };
  return make("section", { class: "card" }, make("h3", {}, "Which runs would make the plan surest?"),
    make("p", { class: "hint" }, "For the budgets of the Plan view: the runs that shrink the doubt about its choice most per FLOP."),
    make("label", { class: "block" }, "FLOPs for new runs", budget),
    make("div", { class: "actions" }, make("button", { type: "button", id: "choose-runs", onclick: start }, "Choose runs")), progress, said, place);
}

function runsTable(result) {
  const columns = [
    { name: "size", left: true, cell: (d) => d.model }, { name: "E", cell: (d) => String(d.experts) }, { name: "R", cell: (d) => String(d.recurrence) },
    { name: "tokens", cell: (d) => count(d.tokens) }, { name: "FLOPs", cell: (d) => power(d.flops) }, { name: "FLOPs so far", cell: (d) => power(d.cumulative_flops) },
    { name: "standard error after", cell: (d) => d.standard_error.toFixed(5) },
  ];
  const caption = `Standard error of the loss differences to the rivals: ${result.before.toFixed(5)} now, ${result.after.toFixed(5)} after ${result.runs.length} runs.`;
  return make("table", { id: "runs" }, make("caption", {}, caption), table(columns, result.runs));
}
