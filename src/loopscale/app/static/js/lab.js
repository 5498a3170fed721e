// The lab: a tiny trained model runs in the page. Its one layer is looped; each pass turns further positions right.
import { $, make, write } from "./dom.js";
import { readModel, runLooped } from "./looped.js";
import { draw } from "./model.js";
import { set, state } from "./state.js";

let loading = null;
const load = () =>
  (loading ??= new Promise((resolve, reject) => {
    document.head.append(make("script", { src: "lab.js", onload: () => resolve({ ...window.LOOPSCALE_LAB, model: readModel(window.LOOPSCALE_LAB) }), onerror: reject }));
  }));

const FIRST = "231 213 312 132 321 231 213 132 312 231 321 213";
const MOST = 16;

export async function showLab() {
  const place = $("#lab-view");
  if (!place.children.length) build(place);
  try {
    const lab = await load();
    const weights = Object.values(lab.weights).reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
    write($("#lab-about"), `It was trained on words of 12 with up to ${lab.config.trained} passes, and has one layer, ${weights.toLocaleString("en-US")} weights in all, which runs here, in your browser.`);
    run(lab);
    if (!$("#two-axes").children.length) $("#two-axes").append(...twoAxes(lab));
  } catch (error) {
    write($("#lab-problem"), `The lab could not be loaded: ${error.message ?? "its file is missing"}.`);
  }
}

function build(place) {
  const word = make("input", { type: "text", id: "lab-word", spellcheck: "false", autocomplete: "off", onchange: (event) => set({ word: event.target.value.trim() === FIRST ? "" : event.target.value.trim() }) });
  const passes = make("input", { type: "range", id: "lab-passes", min: 1, max: MOST, step: 1, "aria-label": "Passes", oninput: (event) => set({ loops: event.target.value }, { draft: true }), onchange: (event) => set({ loops: event.target.value }) });
  place.append(
    make(
      "section",
      { class: "card", "aria-label": "A looped model at work" },
      make("h1", {}, "One layer, looped: its answers pass by pass"),
      make("p", {}, "Each element of the word is a permutation of three things: 231 moves 1 to 2, 2 to 3 and 3 to 1. At every position the model must name the product of all permutations so far. ", make("span", { id: "lab-about" })),
      make("label", { class: "block", for: "lab-word" }, "The word"),
      make("div", { class: "row" }, word, make("button", { type: "button", id: "lab-random", onclick: random }, "Another word")),
      make("p", { id: "lab-problem", class: "field-note", role: "alert" }),
      make("div", { class: "row" }, make("label", { for: "lab-passes" }, "Passes"), passes, make("output", { id: "lab-count" })),
      make("p", { id: "lab-said" }),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answers by pass and position" }, make("table", { id: "lab-grid" })),
      make("p", { class: "hint" }, "Filled: the right product. Each row is one more pass through the same layer. Early positions turn right first; later ones need more passes."),
    ),
    make(
      "section",
      { class: "card", "aria-label": "Two axes" },
      make("h2", {}, "What passes, experts and layers do on two tasks"),
      make("p", {}, "Small models on two tasks: words of a group (reasoning) and facts to remember (knowledge). Dots are single training runs, the bar is their mean. Single runs differ by chance: few seeds show no more than a tendency."),
      make("div", { id: "two-axes" }),
    ),
  ); // prettier-ignore
}

async function random() {
  const { words } = await load();
  set({ word: Array.from({ length: 12 }, () => words[Math.floor(Math.random() * words.length)]).join(" ") }, { control: "lab word" });
}

function run({ model, words, products, config }) {
  const text = state.word || FIRST;
  const count = Math.min(Math.max(Math.round(Number(state.loops)) || config.trained, 1), MOST);
  if (document.activeElement !== $("#lab-word")) $("#lab-word").value = text;
  $("#lab-passes").value = count;
  write($("#lab-count"), String(count));
  const parts = text.split(/[\s,]+/).filter(Boolean);
  const wrong = parts.find((part) => !words.includes(part));
  const long = parts.length > 24;
  write($("#lab-problem"), wrong ? `“${wrong}” is no permutation of 1, 2, 3; write ${words.join(", ")}.` : long ? "Up to 24 elements." : "");
  if (wrong || long || !parts.length) return;
  const ids = parts.map((part) => words.indexOf(part));
  const answers = ids.reduce((list, id) => [...list, list.length ? products[list.at(-1)][id] : id], []);
  const said = runLooped(model, ids, count).map((rows) => rows.map((row) => row.slice(0, words.length).reduce((best, value, k) => (value > row[best] ? k : best), 0)));
  const right = said.map((row) => row.filter((id, t) => id === answers[t]).length);
  const settledAt = answers.map((_, t) => said.findIndex((_, r) => said.slice(r).every((row) => row[t] === said.at(-1)[t])) + 1);
  write($("#lab-said"), `After ${count === 1 ? "one pass" : `${count} passes`}, ${right.at(-1)} of ${ids.length} positions are right. With early exit, where an answer that no longer changes is final, the mean position would need ${(settledAt.reduce((a, b) => a + b, 0) / ids.length).toFixed(1)} of them.`);
  $("#lab-grid").replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col", class: "left" }, "word"), parts.map((part) => make("th", { scope: "col" }, part)))),
    make("tbody", {}, said.map((row, r) => make("tr", {}, make("th", { scope: "row", class: "left" }, `pass ${r + 1}`), row.map((id, t) => make("td", { class: id === answers[t] ? "right" : "wrong", title: id === answers[t] ? "right" : `wrong: it is ${words[answers[t]]}` }, words[id]))))),
  ); // prettier-ignore
}

function twoAxes({ runs, cells }) {
  const [W, H] = [460, 244];
  return ["reasoning", "knowledge"].map((task) => {
    const mine = runs.filter((row) => row.task === task);
    const X = (share) => 150 + (W - 190) * share;
    const lines = Object.entries(cells).map(([cell, name], k) => {
      const list = mine.filter((row) => row.cell === cell).map(({ accuracy }) => accuracy);
      const y = 34 + 34 * k;
      const mean = list.reduce((a, b) => a + b, 0) / list.length;
      return list.length
        ? draw("g", {}, draw("text", { x: 142, y: y + 4, "text-anchor": "end" }, name), draw("path", { class: "grid", d: `M150 ${y}H${W - 40}` }), draw("path", { class: "line", d: `M${X(mean)} ${y - 9}V${y + 9}` }), ...list.map((share) => draw("circle", { class: "point", cx: X(share), cy: y, r: 4 })), draw("text", { x: W - 34, y: y + 4 }, `${Math.round(100 * mean)}%`))
        : null;
    }); // prettier-ignore
    const chance = mine[0]?.chance ?? 0;
    const seeds = new Set(mine.map(({ seed }) => seed)).size;
    return make("figure", {}, make("figcaption", {}, make("h3", {}, task === "reasoning" ? "Reasoning: words of S3 solved" : "Knowledge: facts recalled"), make("p", { class: "hint" }, `${seeds} ${seeds === 1 ? "seed" : "seeds"}, ${mine.length} runs`)),
      draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": Object.entries(cells).map(([cell, name]) => `${name}: ${mine.filter((row) => row.cell === cell).map(({ accuracy }) => `${Math.round(100 * accuracy)}%`).join(", ")}`).join("; ") },
        draw("path", { class: "guide", d: `M${X(chance)} 14V${H - 16}` }), draw("text", { x: X(chance) + 4, y: 14 }, "chance"), ...lines)); // prettier-ignore
  });
}
