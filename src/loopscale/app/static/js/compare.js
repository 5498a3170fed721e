// Scenarios side by side: the current answer, and what is pinned; without pins, the runner-up.
import { latest } from "./api.js";
import { scenarios } from "./charts.js";
import { planRequest, toldWithField } from "./controls.js";
import { $, button, make, problem, table } from "./dom.js";
import { figure } from "./figure.js";
import { bytes, cardSize, count, experts, interval, label, loss, power, rows } from "./format.js";
import { lawOf } from "./laws.js";
import { askPlan, runnerUp } from "./plan.js";
import { rename, scenarioOf, unpin } from "./pins.js";
import { pins, set, state } from "./state.js";

// A to Z, then AA, AB, ...
const letter = (k) => (k < 26 ? "" : letter(Math.floor(k / 26) - 1)) + String.fromCharCode(65 + (k % 26));

function listed(current) {
  const first = { name: "current answer", values: { ...state, design: "" } };
  if (pins().length)
    return [first, ...pins().map((pin, index) => ({ name: pin.name, values: scenarioOf(pin.query), index }))];
  const other = runnerUp() || current;
  return other ? [first, { name: `runner-up: ${other.name}`, values: { ...state, design: other.design } }] : [first];
}

async function ask(scenario) {
  const law = lawOf(scenario.values.law);
  if (!law) return { ...scenario, error: new Error("the law of this scenario is not in this browser any more") };
  const body = { ...planRequest(["compute", "recurrence"], scenario.values), law: law.id };
  if (law.rmse == null && !scenario.values.eps) body.rule = "loss";
  try {
    return { ...scenario, law, ...(await askPlan(body)) };
  } catch (error) {
    return { ...scenario, law, error };
  }
}

export const updateCompare = latest(
  $("#compare-view"),
  async () => {
    let current = null;
    if (!pins().length && !runnerUp()) {
      const { plan } = await askPlan(planRequest([]));
      const near = plan.candidates.find((d) => d.verdict !== "chosen" && !d.ruled_out_by) ?? plan.rivals[0];
      current = near && { design: `${near.rung}:${near.experts}:${near.recurrence}`, name: label(near) };
    }
    return Promise.all(listed(current).map((scenario, place) => ask({ ...scenario, place, letter: letter(place) })));
  },
  (answers) => {
    const usable = answers.filter((side) => !side.error);
    const failed = answers.filter((side) => side.error);
    problem(
      $("#compare-problem"),
      failed.length ? new Error(failed.map((side) => `${side.letter} (${side.name}): ${toldWithField(side.error)}`).join("; ")) : null,
    );
    drawSides(answers);
    if (!usable.length) return $("#compare-table").replaceChildren();
    $("#compare-table").replaceChildren(...table(columns(usable), METRICS));
    $("#compare-table").style.setProperty("--sides", usable.length);
    return drawCharts(usable);
  },
  (error) => problem($("#compare-problem"), error),
);

function drawSides(answers) {
  const laws = new Set(answers.filter((side) => side.law).map((side) => side.law.id));
  $("#compare-note").hidden = laws.size < 2;
  $("#sides").replaceChildren(
    ...answers.map((side) =>
      make(
        "li",
        { class: "side", style: `--side: var(--c${side.place % 7})` },
        make("b", {}, side.letter),
        side.index === undefined
          ? make("span", { class: "side-name" }, side.name)
          : make("input", {
              type: "text",
              class: "side-name",
              value: side.name,
              "aria-label": `Name of scenario ${side.letter}`,
              onchange: (event) => rename(side.index, event.target.value.trim() || side.name),
            }),
        side.trust ? make("span", { class: "level", "data-level": side.trust.level }, side.trust.level) : null,
        button("open", () => set({ ...side.values, view: "plan", design: "" }), {
          class: "quiet",
          "aria-label": `Open scenario ${side.letter} in the Plan view`,
        }),
        side.index === undefined
          ? null
          : button("remove", () => unpin(side.index), {
              class: "quiet",
              "aria-label": `Remove scenario ${side.letter}`,
            }),
      ),
    ),
  );
}

const memory = (c) => c.weight_bytes + c.kv_bytes;
const METRICS = [
  { name: "law", of: (side) => side.law.name },
  { name: "design", of: ({ plan }) => label(plan.choice) },
  { name: "predicted loss (nats/token)", value: (c) => c.loss, write: loss, digits: 4 },
  {
    name: "90% interval",
    of: ({ plan }) => (plan.interval ? interval(plan.interval) : "not known"),
  },
  { name: "trust", of: ({ trust }) => trust.title },
  { name: "training tokens", value: (c) => c.tokens, write: count },
  { name: "training FLOPs", value: (c) => c.train_flops, write: power },
  { name: "active parameters", value: (c) => c.active_parameters, write: cardSize },
  { name: "total parameters", value: (c) => c.total_parameters, write: cardSize },
  { name: "experts used", of: ({ plan }) => experts(plan.choice) },
  { name: "as good as, without looping", value: (c) => c.active_parameters + c.effective - c.active, write: cardSize },
  { name: "memory", value: memory, write: bytes },
  { name: "inference FLOPs per token", value: (c) => c.inference_flops, write: count },
  {
    name: "generation, at most",
    of: ({ plan }) => (plan.choice.tokens_per_second == null ? "–" : `${count(plan.choice.tokens_per_second)} tokens/s`),
  },
  { name: "under its budget", of: (side) => side.verdict },
];

const columns = (sides) => [
  { name: "", left: true, class: "metric", cell: (metric) => metric.name },
  ...sides.map((side, k) => ({
    name: side.letter,
    cell: (metric) => {
      const shown = metric.of ? metric.of(side) : metric.write(metric.value(side.plan.choice));
      const change = k && metric.value ? difference(metric, sides[0], side) : "";
      return [make("span", { "data-side": side.letter }, shown), change && make("small", {}, change)].filter(Boolean);
    },
  })),
];

// Against the first scenario. Losses of different laws are on different data and tokenizers: their difference means nothing.
function difference(metric, first, side) {
  const [before, after] = [metric.value(first.plan.choice), metric.value(side.plan.choice)];
  if (metric.digits && first.law.id !== side.law.id) return "other law: not comparable";
  if (before === after) return "same";
  return metric.digits
    ? `${after > before ? "+" : "−"}${Math.abs(after - before).toFixed(metric.digits)}`
    : `× ${(after / before).toPrecision(3)}`;
}

function drawCharts(sides) {
  const names = Object.fromEntries(sides.map((side) => [side.place, side.letter]));
  const all = (kind) =>
    sides.flatMap(({ plan, charts, place: scenario }) =>
      rows(charts[kind] ?? {})
        .filter((d) => kind !== "recurrence" || d.rung === plan.choice.rung)
        .map((d) => ({ ...d, scenario })),
    );
  const about = sides
    .map((side) => `${side.letter}: ${side.sentences.budget} ${label(side.plan.choice)}, law ${side.law.name}, trust: ${side.trust.level}.`)
    .join(" ");
  const flops = sides[0].plan.budget.flops;
  const kinds = [...new Set(sides.map((side) => side.sentences.bands))];
  const bands =
    kinds.length === 1 ? kinds[0] : sides.map((side) => `${side.letter}: ${side.sentences.bands}`).join(" ");
  const over = all("compute");
  if (over.length)
    figure(
      "chart-compare",
      (title) =>
        scenarios(
          over,
          "flops",
          flops,
          names,
          title,
          `Each design as its training compute changes; the dashed line is the first budget. ${bands}`,
        ),
      over,
      about,
    );
  const passes = all("recurrence");
  if (passes.length)
    figure(
      "chart-compare-passes",
      (title) =>
        scenarios(
          passes,
          "recurrence",
          null,
          names,
          title,
          `Each size and its experts at its compute, looped more or less often. ${bands}`,
        ),
      passes,
      about,
    );
}
