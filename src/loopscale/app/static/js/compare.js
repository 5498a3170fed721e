// Two laws or two designs side by side, under the same budgets.
import { latest } from "./api.js";
import { sideBySide } from "./charts.js";
import { SLIDERS, fillLaws, planRequest } from "./controls.js";
import { $, make, problem, table } from "./dom.js";
import { figure } from "./figure.js";
import { bytes, count, label, loss, power, rows, size } from "./format.js";
import { lawOf } from "./laws.js";
import { askPlan } from "./plan.js";
import { set, state } from "./state.js";

const SIDES = ["A", "B"];
const PASSES = Array.from({ length: 16 }, (_, k) => k + 1);
let choices = null;

export function buildCompare(known) {
  choices = known;
  $("#sides").replaceChildren(...SIDES.map(side));
}

function side(name) {
  const pick = (what, values, title) =>
    make(
      "label",
      {},
      title,
      make(
        "select",
        { id: `${what}-${name}`, onchange: () => set({ [`design${name}`]: given(name) }) },
        values.map((value) => make("option", { value }, String(value))),
      ),
    );
  return make(
    "fieldset",
    { class: `side side-${name}` },
    make("legend", {}, name),
    make(
      "label",
      {},
      "Law",
      make("select", { id: `law-${name}`, onchange: (event) => set({ [`law${name}`]: event.target.value }) }),
    ),
    make(
      "label",
      {},
      "Design",
      make(
        "select",
        {
          id: `design-${name}`,
          onchange: (event) => set({ [`design${name}`]: event.target.value ? given(name) : "" }),
        },
        make("option", { value: "" }, "the best under the budgets"),
        make("option", { value: "given" }, "a given one"),
      ),
    ),
    make(
      "div",
      { class: "given row", id: `given-${name}` },
      pick("rung", choices.rungs, "size"),
      pick("experts", choices.experts, "E"),
      pick("recurrence", PASSES, "R"),
    ),
  );
}

const given = (name) => ["rung", "experts", "recurrence"].map((what) => $(`#${what}-${name}`).value).join(":");

export function showCompare() {
  const budget = SLIDERS.filter((spec) => state[spec.name]).map(
    (spec) => `${spec.label.toLowerCase()} ${state[spec.name]}`,
  );
  $("#compare-budget").textContent = `${budget.join("; ")}. Change them in the Plan view.`;
  for (const name of SIDES) {
    fillLaws($(`#law-${name}`), state[`law${name}`] || state.law);
    const design = state[`design${name}`];
    $(`#design-${name}`).value = design ? "given" : "";
    $(`#given-${name}`).hidden = !design;
    const parts = (design || "1.0B:8:2").split(":");
    ["rung", "experts", "recurrence"].forEach((what, k) => {
      $(`#${what}-${name}`).value = parts[k];
    });
  }
}

async function ask(name) {
  const law = lawOf(state[`law${name}`] || state.law);
  const body = { ...planRequest(["compute", "recurrence"]), law: law.id };
  if (law.rmse == null && !state.eps) body.rule = "loss";
  const design = state[`design${name}`];
  return {
    name,
    law,
    ...(design ? await askGiven(body, design.split(":")) : { verdict: "chosen", ...(await askPlan(body)) }),
  };
}

// A given design is shown even where a limit rules it out; its verdict comes from a plan over all designs.
async function askGiven(body, [rung, experts, recurrence]) {
  const own = {
    rungs: [rung],
    experts: [Number(experts)],
    recurrences: [Number(recurrence)],
    memory: undefined,
    inference_flops: undefined,
    continuous: undefined,
  };
  const whole = {
    ...body,
    rungs: undefined,
    experts: undefined,
    continuous: undefined,
    recurrences: PASSES,
    charts: [],
    top: 500,
  };
  const [one, looped, all] = await Promise.all([
    askPlan({ ...body, ...own, charts: ["compute"] }),
    askPlan({ ...body, ...own, recurrences: body.recurrences, charts: ["recurrence"] }),
    askPlan(whole),
  ]);
  const judged = all.plan.candidates.find(
    (d) => d.rung === rung && d.experts === Number(experts) && d.recurrence === Number(recurrence),
  );
  return { ...one, verdict: judged?.verdict ?? "–", charts: { ...one.charts, recurrence: looped.charts.recurrence } };
}

export const updateCompare = latest($("#compare-view"), async () => {
  try {
    const found = await Promise.all(SIDES.map(ask));
    problem($("#compare-problem"), null);
    $("#compare-table").replaceChildren(...table(columns(found), METRICS));
    drawCharts(found);
  } catch (error) {
    problem($("#compare-problem"), error);
  }
});

const memory = (c) => c.weight_bytes + c.kv_bytes;
const METRICS = [
  { name: "law", of: (side) => side.law.name },
  { name: "design", of: ({ plan }) => label(plan.choice) },
  { name: "predicted loss (nats/token)", value: (c) => c.loss, write: loss, digits: 4 },
  {
    name: "90% of resampled laws",
    of: ({ plan: { choice } }) =>
      choice.loss_low == null ? "–" : `${loss(choice.loss_low)} – ${loss(choice.loss_high)}`,
  },
  { name: "training tokens", value: (c) => c.tokens, write: count },
  { name: "training FLOPs", value: (c) => c.train_flops, write: power },
  { name: "active parameters", value: (c) => c.active, write: size },
  { name: "total parameters", value: (c) => c.total, write: size },
  { name: "effective parameters", value: (c) => c.effective, write: size },
  { name: "memory", value: memory, write: bytes },
  { name: "FLOPs a generated token", value: (c) => c.inference_flops, write: count },
  { name: "under the budgets", of: (side) => side.verdict },
  { name: "outside the law's range", of: ({ plan }) => plan.choice.extrapolated.join(", ") || "no" },
];

const columns = ([a, b]) => [
  { name: "", left: true, cell: (metric) => metric.name },
  { name: "A", cell: (metric) => shown(metric, a) },
  { name: "B", cell: (metric) => shown(metric, b) },
  { name: "B against A", cell: (metric) => difference(metric, a.plan.choice, b.plan.choice) },
];
const shown = (metric, found) => (metric.of ? metric.of(found) : metric.write(metric.value(found.plan.choice)));

function difference(metric, a, b) {
  if (!metric.value) return "";
  const [before, after] = [metric.value(a), metric.value(b)];
  if (before === after) return "same";
  return metric.digits
    ? `${after > before ? "+" : "−"}${Math.abs(after - before).toFixed(metric.digits)}`
    : `× ${(after / before).toPrecision(3)}`;
}

function drawCharts(found) {
  const all = (kind, keep = () => true) =>
    found.flatMap(({ name, plan, charts }) =>
      rows(charts[kind])
        .filter((d) => keep(d, plan.choice))
        .map((d) => ({ ...d, side: name })),
    );
  const flops = found[0].plan.budget.flops;
  const over = all("compute");
  figure(
    "chart-compare",
    (width) => sideBySide(width, over, "flops", flops),
    over,
    "Each design as its training compute changes; the dashed line is yours.",
  );
  const passes = all("recurrence", (d, choice) => d.rung === choice.rung || !choices.rungs.includes(choice.rung));
  figure(
    "chart-compare-passes",
    (width) => sideBySide(width, passes, "recurrence", null),
    passes,
    "Each size and its experts at this compute, looped more or less often.",
  );
}
