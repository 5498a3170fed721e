// A sweep while it runs: its progress, its losses, and the law fitted to them as points arrive.
import { call } from "./api.js";
import { $, make, problem, table } from "./dom.js";
import { figure } from "./figure.js";
import { fit } from "./fit.js";
import { losses } from "./fit_charts.js";
import { percent, rows } from "./format.js";
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

export async function updateSweep() {
  try {
    show(await call("sweep"));
    problem($("#sweep-problem"), null);
  } catch (error) {
    problem($("#sweep-problem"), error);
  }
}

function show({ progress, text, runs, points, law }) {
  $("#sweep-progress").replaceChildren(
    make("progress", { max: 1, value: progress.share, "aria-label": `Progress: ${percent(progress.share)}` }),
    make("p", {}, text),
  );
  const columns = [
    { name: "run", left: true, cell: (d) => d.key },
    { name: "state", left: true, cell: (d) => d.state },
    { name: "done", cell: (d) => percent(d.share) },
    { name: "points", cell: (d) => d.points },
    { name: "latest loss", cell: (d) => (d.loss == null ? "–" : d.loss.toFixed(4)) },
    { name: "", left: true, cell: (d) => d.error || "" },
  ];
  $("#sweep-runs").replaceChildren(...table(columns, runs));
  $("#sweep-fit").disabled = progress.observations === 0;
  $("#sweep-law").textContent = law;
  const seen = rows(points);
  if (!seen.length || seen.length === shown) return;
  shown = seen.length;
  figure("chart-sweep", (title) => losses(seen, title), seen, text);
}
