// A sweep while it runs: its progress, its losses, and the law that is fitted again as points arrive.
import { call, finish } from "./api.js";
import { $, coded, make, problem, sentence, table, writeParts } from "./dom.js";
import { figure } from "./chart.js";
import { fit } from "./fit.js";
import { losses, uncertainty } from "./fit_charts.js";
import { term } from "./glossary.js";
import { counted, percent, rows, significant } from "./quantities.js";
import { set, state } from "./state.js";

const EVERY = 2000;
let shown = -1;

export function buildSweep({ sweep }) {
  $("#sweep-tab").hidden = !sweep;
  if (!sweep) return;
  $("#sweep-title").textContent = `Sweep ${sweep}`;
  $("#sweep-fit").onclick = fitNow;
  setInterval(() => state.view === "sweep" && !document.hidden && updateSweep(), EVERY);
}

async function fitNow() {
  try {
    const csv = await call("sweep.csv");
    set({ view: "fit" });
    await fit(new Blob([csv]), "sweep", {});
  } catch (error) {
    problem($("#sweep-problem"), error);
  }
}

const history = []; // one refit each: how many losses it saw, and the law
let refitting = false;

export async function updateSweep() {
  try {
    const reply = await call(`sweep?laws=${history.flatMap((item) => item.law ?? []).join(",")}`);
    show(reply);
    problem($("#sweep-problem"), null);
    showUncertainty(reply.widths);
    refit(reply);
  } catch (error) {
    problem($("#sweep-problem"), error);
  }
}

// A law is fitted again whenever losses have arrived since the last fit; one fit at a time.
async function refit({ progress, enough }) {
  const count = progress.observations;
  if (!$("#sweep-auto").checked || !enough || refitting || count === history.at(-1)?.count) return;
  refitting = true;
  try {
    const csv = new Blob([await call("sweep.csv")]);
    const { result } = await finish(await call(`fit?name=sweep&resamples=${REFITS}`, { csv }), () => {});
    history.push({ count: result.rows, law: result.law_id, result });
    if (history.length > MOST) history.splice(1, 1);
    problem($("#sweep-fit-problem"), null);
    updateSweep();
  } catch (error) {
    history.push({ count, failed: true });
    problem($("#sweep-fit-problem"), error);
  } finally {
    refitting = false;
  }
}
const REFITS = 30;
const MOST = 50;
// A law whose interval is wider than this share of the loss is not shown as one.
const VAGUE = 0.2;

function showUncertainty(widths) {
  const fits = history.filter((item) => item.law && widths[item.law] != null);
  $("#sweep-fitted").hidden = !fits.length;
  $("#chart-uncertainty").hidden = fits.length < 2;
  if (!fits.length) return;
  const { count, law, result } = fits.at(-1);
  const vague = widths[law] > VAGUE || result.law.degenerate.length;
  const said = vague
    ? coded(notYet(count, result))
    : [`Law of ${counted(count, "loss")}: ${result.form}; `, term("rmse", "RMSE"), ` ${result.law.rmse.toFixed(4)} nats; `, term("band", "90% interval"), ` ${significant(100 * widths[law])}% wide at the median point.`];
  writeParts($("#sweep-fitted"), said);
  $("#sweep-warnings").hidden = !result.warnings.length;
  $("#sweep-warnings").replaceChildren(...result.warnings.map((warning) => make("li", {}, coded(sentence(warning)))));
  const seen = fits.map((item) => ({ count: item.count, width: widths[item.law] }));
  figure("chart-uncertainty", uncertainty(seen), seen, $("#sweep-fitted").textContent);
}

// Three losses for each coefficient are a rule of thumb; which ones they are matters more.
const EACH = 3;
function notYet(count, { coefficients, fixed = [] }) {
  const free = Object.keys(coefficients).length - fixed.length;
  const more = EACH * free - count;
  const enough = more > 0 ? ` A law with ${free} coefficients wants about ${EACH} losses for each: ${more} more may do.` : " More of the same kind will not help.";
  return `Not enough yet: ${counted(count, "loss")} ${count === 1 ? "does" : "do"} not determine a law.${enough} Runs at other sizes, tokens and passes help most; \`loopscale next\` chooses them.`;
}

function show({ progress, text, runs, points, law, enough }) {
  $("#sweep-view").classList.remove("reading");
  $("#sweep-progress").replaceChildren(
    make("progress", { max: 1, value: progress.share, "aria-label": `Progress: ${percent(progress.share)}` }),
    make("p", {}, text),
  );
  const columns = [
    { name: "run", left: true, cell: (d) => d.key },
    { name: "state", left: true, cell: (d) => d.state },
    { name: "done", wide: true, cell: (d) => percent(d.share) },
    { name: "points", cell: (d) => d.points },
    { name: "latest loss", cell: (d) => (d.loss == null ? "–" : d.loss.toFixed(4)) },
    ...(runs.some((d) => d.error) ? [{ name: "problem", left: true, cell: (d) => d.error || "" }] : []),
  ];
  $("#sweep-runs").replaceChildren(...table(columns, runs));
  $("#sweep-fit").disabled = !enough;
  const finished = progress.share === 1;
  $("#sweep-fit").textContent = finished ? "Open the fit" : "Open the fit of the points so far";
  $("#sweep-auto-label").hidden = finished;
  $("#chart-sweep h3").textContent = finished ? "Losses" : "Losses so far";
  writeParts($("#sweep-law"), coded(!finished ? law : `The sweep is finished. ${enough ? "Open its fit, or run `loopscale fit` on the file of the sweep." : law}`));
  const seen = rows(points);
  if (!seen.length || seen.length === shown) return;
  shown = seen.length;
  figure("chart-sweep", losses(seen), seen, text);
}
