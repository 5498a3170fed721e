// Scenarios side by side: the current one and every pin, each with what differs.
import { FIELD } from "./budget.js";
import { DATA } from "./data.js";
import { $, button, draw, make, table } from "./dom.js";
import { term } from "./glossary.js";
import { letter, unpin } from "./pins.js";
import { blockedBy, find, question } from "./plan.js";
import { extent } from "./plot.js";
import { Refusal, bytes, cardSize, count, experts, fixed, passes, power, trainingText, written } from "./quantities.js";
import { TRUST } from "./result.js";
import { designByHand } from "./search.js";
import { pins, scenarioOf, set, state } from "./state.js";

// Fields of a budget whose explanation has another name.
const WORDS = {
  real_flops: "flops", max_tokens: "tokens", unique_tokens: "tokens", batch: "kv cache", kv_bits: "kv cache", kept_passes: "kv cache",
  kept_window: "kv cache", min_speed: "speed", bandwidth: "speed", cache: "speed", inference_flops: "inference flops", serve_tokens: "inference flops",
}; // prettier-ignore

function sides() {
  const pinned = pins().map(({ name, query }, k) => ({ letter: letter(k), name, values: scenarioOf(query), query }));
  return [{ letter: "now", values: state, query: null }, ...pinned].map((side) => {
    let asked = null;
    try {
      asked = question(side.values);
      const answer = find(asked);
      const blocked = blockedBy(asked, answer, side.values);
      if (blocked.length) return { ...side, asked, problem: blocked.includes("extrapolate") ? "no answer: too far beyond the data" : "no answer: the law is degenerate" };
      const own = side.values.design ? designByHand(answer, side.values.design) : null;
      return { ...side, asked, answer: own?.answer ?? answer, design: own?.design ?? answer.choice };
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return { ...side, asked, problem: error.message.replaceAll("`", "") };
    }
  });
}

export function updateCompare() {
  const list = sides();
  const laws = new Set(list.filter(({ asked }) => asked).map(({ asked }) => asked.law.name));
  $("#compare-note").hidden = laws.size < 2;
  const limit = (name) => (side) => side.asked && (side.asked.limits[name] === undefined ? "–" : written(FIELD[name], side.asked.limits[name]));
  const budget = DATA.fields.map(({ name, sentence }) => [sentence, limit(name), WORDS[name] ?? name]);
  const of = (read) => (side) => side.design && read(side.design, side);
  const facts = [
    ["law", (side) => side.asked?.law.name, "law"],
    ...budget,
    ["design", of((d) => `${cardSize(d.active_parameters)} active, ${cardSize(d.total_parameters)} in all`), "size"],
    ["experts", of((d) => experts(d)), "experts"],
    ["passes", of((d) => passes(d.recurrence)), "passes"],
    ["training tokens", of((d) => count(d.tokens)), "tokens"],
    ["loss", (side) => side.problem ?? fixed(side.design.loss, 3), "loss"],
    ["training time", of((_, { answer }) => trainingText(answer.training)), "days"],
    ["memory needed", of((d) => bytes(d.memory)), "memory"],
    ["generation", of((d) => (d.tokens_per_second === null ? "–" : `at most ${count(d.tokens_per_second)} tokens/s`)), "speed"],
    ["inference FLOPs per token", of((d) => power(d.inference_flops)), "inference flops"],
    ["measured range", of((_, { answer }) => TRUST[answer.trust.level]), "trust"],
  ];
  const always = ["design", "loss"];
  const rows = facts.map(([name, read, word]) => ({ name, word, cells: list.map((side) => String(read(side) ?? "")) })).filter(({ name, cells }) => always.includes(name) || new Set(cells).size > 1);
  const columns = [
    { name: "fact", head: make("span", { class: "unseen" }, "fact"), left: true, cell: ({ name, word }) => (word ? term(word, name) : name) },
    ...list.map((side, k) => ({ name: `side-${k}`, head: [make("b", {}, side.letter), side.query === null ? null : make("span", { class: "side" }, make("small", {}, side.name), make("span", {}, button("open", () => set({ ...scenarioOf(side.query), pins: state.pins, view: "plan" }), { class: "link" }), " ", button("remove", () => unpin(side.query), { class: "link" })))], cell: (row) => row.cells[k] })),
  ];
  $("#compare-empty").hidden = list.length > 1;
  const caption = list.length > 1 ? `${facts.length - rows.length} further facts are the same in all.` : "Nothing is pinned yet.";
  $("#compare-table").replaceChildren(make("caption", {}, caption), ...table(columns, rows));
  drawCharts(list.filter(({ design }) => design));
}

// One panel for each law: losses of different laws have no common scale.
let drawn = [];
let width = 0;
let watch = null;
function drawCharts(list) {
  watch ??= new ResizeObserver(() => {
    if (![0, width].includes($("#compare-view").clientWidth)) drawCharts(drawn); // 0: another view is shown
  });
  watch.observe($("#compare-view"));
  const laws = [...new Set(list.map(({ asked }) => asked.law.name))];
  const place = $("#compare-charts");
  place.hidden = list.length < 2; // one dot is no comparison
  drawn = list;
  width = place.parentElement.clientWidth;
  if (place.hidden) return;
  const panels = laws.map((name) => list.filter(({ asked }) => asked.law.name === name));
  // The letters of a drawing that is scaled down would be too small: it is drawn as wide as its card.
  place.replaceChildren(...panels.map(() => make("figure", { class: "card" })));
  const card = place.firstElementChild;
  const inside = card.clientWidth - 2 * Number.parseFloat(getComputedStyle(card).paddingLeft);
  place.replaceChildren(...panels.map((sides, k) => panel(laws[k], sides, Math.min(620, inside))));
}

function panel(name, list, W) {
  const [left, right, step] = [44, W - 60, 34];
  const [low, high] = extent(list.map(({ design }) => design.loss));
  const X = (loss) => left + ((right - left) * (loss - low)) / (high - low);
  const row = ({ letter: side, query, design }, k) => {
    const y = 20 + step * k;
    return draw("g", {}, draw("text", { x: 0, y: y + 5 }, side), draw("path", { d: `M${left} ${y}H${right}`, class: "grid" }), draw("circle", { cx: X(design.loss), cy: y, r: 6, class: query === null ? "mine" : "point" }), draw("text", { x: right + 10, y: y + 5 }, fixed(design.loss, 3)));
  }; // prettier-ignore
  return make("figure", { class: "card" }, make("figcaption", {}, make("h2", {}, "Loss by ", term("law", name))),
    draw("svg", { viewBox: `0 0 ${W} ${6 + step * list.length}`, style: `max-width:${W}px`, role: "img", "aria-label": list.map(({ letter: side, design }) => `${side} ${fixed(design.loss, 3)}`).join(", ") }, ...list.map(row))); // prettier-ignore
}
