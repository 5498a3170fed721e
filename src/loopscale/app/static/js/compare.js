// Scenarios side by side: the current one and every pin, each with what differs.
import { DATA } from "./data.js";
import { $, button, make, table } from "./dom.js";
import { draw } from "./model.js";
import { letter, unpin } from "./pins.js";
import { find, question } from "./plan.js";
import { given } from "./planner.js";
import { Refusal, bytes, cardSize, count, experts, fixed, passes, power, trainingText, written } from "./quantities.js";
import { pins, scenarioOf, set, state } from "./state.js";

function sides() {
  const list = [{ name: "now", values: state, query: null }, ...pins().map(({ name, query }, k) => ({ name: `${letter(k)}: ${name}`, values: scenarioOf(query), query }))];
  return list.map((side) => {
    try {
      const asked = question(side.values);
      const found = find(asked);
      const own = side.values.design ? given(found, side.values.design) : null;
      return { ...side, asked, found: own?.found ?? found, design: own?.design ?? found.choice };
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return { ...side, problem: error.message };
    }
  });
}

export function updateCompare() {
  const list = sides();
  const laws = new Set(list.filter(({ asked }) => asked).map(({ asked }) => asked.law.name));
  $("#compare-note").hidden = laws.size < 2;
  const limit = (name) => (side) => side.asked && (side.asked.limits[name] === undefined ? "–" : written(DATA.fields.find((field) => field.name === name), side.asked.limits[name]));
  const budget = DATA.fields.map(({ name, sentence }) => [sentence, limit(name)]);
  const of = (read) => (side) => side.design && read(side.design, side);
  const facts = [
    ["law", (side) => side.asked?.law.name],
    ...budget,
    ["design", of((d) => `${cardSize(d.active_parameters)} active, ${cardSize(d.total_parameters)} in all`)],
    ["experts", of((d) => experts(d))],
    ["passes", of((d) => passes(d.recurrence))],
    ["training tokens", of((d) => count(d.tokens))],
    ["loss", of((d, { found }) => (found.trust.level === "beyond" && !state.extrapolate ? "withheld" : fixed(d.loss, 4)))],
    ["training time", of((_, { found }) => trainingText(found.training))],
    ["memory needed", of((d) => bytes(d.memory))],
    ["generation", of((d) => (d.tokens_per_second === null ? "–" : `at most ${count(d.tokens_per_second)} tokens/s`))],
    ["inference FLOPs per token", of((d) => power(d.inference_flops))],
    ["trust", of((_, { found }) => found.trust.level)],
  ];
  const always = ["design", "loss"];
  const rows = facts.map(([name, read]) => ({ name, cells: list.map((side) => side.problem ? (name === "loss" ? side.problem : "") : String(read(side) ?? "")) })).filter(({ name, cells }) => always.includes(name) || new Set(cells).size > 1);
  const columns = [
    { name: "fact", head: make("span", { class: "unseen" }, "fact"), left: true, cell: (row) => row.name },
    ...list.map((side, k) => ({ name: `side-${k}`, head: [side.name, side.query === null ? null : make("span", {}, " ", button("open", () => set({ ...scenarioOf(side.query), pins: state.pins, view: "plan" }), { class: "link" }), " ", button("remove", () => unpin(side.query), { class: "link" }))], cell: (row) => row.cells[k] })),
  ];
  const same = facts.length - rows.length;
  $("#compare-table").replaceChildren(make("caption", {}, `${same} further facts are the same in all.`), ...table(columns, rows));
  drawCharts(list.filter(({ found }) => found));
}

// One panel for each law: losses of different laws have no common scale.
function drawCharts(list) {
  const laws = [...new Set(list.map(({ asked }) => asked.law.name))];
  $("#compare-charts").replaceChildren(...laws.map((name) => panel(name, list.filter(({ asked }) => asked.law.name === name))));
}

function panel(name, list) {
  const [W, H] = [560, 220];
  const losses = list.map(({ design }) => design.loss).filter(Number.isFinite);
  const [low, high] = [Math.min(...losses) - 0.01, Math.max(...losses) + 0.01];
  const X = (loss) => 20 + ((W - 200) * (loss - low)) / (high - low);
  const step = Math.min(34, (H - 50) / list.length);
  return make("figure", { class: "card" }, make("figcaption", {}, make("h2", {}, `Loss by ${name}`)),
    draw("svg", { viewBox: `0 0 ${W} ${40 + step * list.length}`, role: "img", "aria-label": list.map(({ name: side, design }) => `${side} ${fixed(design.loss, 3)}`).join(", ") },
      ...list.flatMap(({ name: side, design }, k) => [
        draw("path", { d: `M20 ${20 + step * k}H${X(design.loss)}`, class: "grid" }),
        draw("circle", { cx: X(design.loss), cy: 20 + step * k, r: 6, class: k ? "point" : "mine" }),
        draw("text", { x: X(design.loss) + 12, y: 24 + step * k, class: "tick" }, `${side.split(":")[0]} ${fixed(design.loss, 3)}`),
      ]))); // prettier-ignore
}
