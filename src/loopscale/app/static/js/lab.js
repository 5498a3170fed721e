// The lab: tiny trained models run in the page. Their one layer is looped; each pass turns further positions right.
import { $, draw, make, segmented, write } from "./dom.js";
import { term } from "./glossary.js";
import { readModel, runLooped } from "./looped.js";
import { counted, grouped } from "./quantities.js";
import { set, state } from "./state.js";

// Each file is a script, as browsers read no other data from a disk; it is loaded when its model is shown.
const loading = {};
const load = (file, name) =>
  (loading[file] ??= new Promise((resolve, reject) => {
    document.head.append(make("script", { src: file, onload: () => resolve(window[name]), onerror: () => reject(new Error("its file is missing")) }));
  }));
const models = {};
async function modelOf(kind) {
  const data = kind === "experts" ? await load("lab-experts.js", "LOOPSCALE_LAB_EXPERTS") : (await load("lab.js", "LOOPSCALE_LAB")).model;
  return (models[kind] ??= readModel(data));
}

const FIRST = ["231", "213", "312", "132", "321", "231", "213", "132", "312", "231", "321", "213"];
const firstWord = ({ trainedLength }) => FIRST.slice(0, trainedLength).join(" ");
const MOST = 16;

export async function showLab() {
  const place = $("#lab-view");
  if (!place.children.length) build(place);
  segmented($("#lab-model"), state.lab, (lab) => set({ lab, word: "", loops: "" }));
  try {
    const lab = await load("lab.js", "LOOPSCALE_LAB");
    const kind = state.lab;
    const model = await modelOf(kind);
    if (kind === state.lab) run(lab, model);
    if (!$("#two-axes").children.length) $("#two-axes").append(...twoAxes(lab));
  } catch (error) {
    write($("#lab-problem"), `The lab could not be loaded: ${error.message}.`);
  }
}

function build(place) {
  const word = make("input", { type: "text", id: "lab-word", spellcheck: "false", autocomplete: "off", onchange: (event) => set({ word: event.target.value.trim() }) });
  const passes = make("input", { type: "range", id: "lab-passes", min: 1, max: MOST, step: 1, "aria-label": "Passes", oninput: (event) => set({ loops: event.target.value }, { draft: true }), onchange: (event) => set({ loops: event.target.value }) });
  const kinds = [["", "Dense"], ["experts", "With experts"]].map(([kind, text]) => make("button", { type: "button", "data-value": kind }, text));
  place.append(
    make(
      "section",
      { class: "card", "aria-label": "A looped model at work" },
      make("h1", {}, "One layer, looped: its answers pass by pass"),
      make(
        "div",
        { class: "bench" },
        make(
          "div",
          {},
          make("p", {}, "A small trained model runs here, in your browser. Each element of the word is a ", term("permutation"), " of three things. At every position the model names the product of all permutations so far, which takes a step of reasoning for each. Every pass through its one layer lets it get further."),
          make("div", { class: "segmented", id: "lab-model", role: "group", "aria-label": "Model" }, kinds),
          make("p", { id: "lab-about", class: "hint" }),
          make("label", { class: "block", for: "lab-word" }, "The word"),
          make("div", { class: "row" }, word, make("button", { type: "button", id: "lab-random", onclick: random }, "Another word")),
          make("p", { id: "lab-problem", class: "field-note", role: "alert" }),
          make("div", { class: "row" }, make("label", { for: "lab-passes" }, term("passes", "Passes")), passes, make("output", { id: "lab-count" })),
          make("p", { id: "lab-said" }, make("span"), " With ", term("early exit"), ", where an answer that no longer changes is final, the mean position would need ", make("b"), " passes."),
        ),
        make("div", {},
          make("h2", {}, "The answers"),
          make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Answers by pass and position" }, make("table", { id: "lab-grid", class: "lab" })),
          make("p", { class: "hint" }, "Filled: the right product. Each row is one more pass through the same layer."),
        ),
        make("div", { id: "lab-experts", hidden: true },
          make("h2", {}, "Which ", term("experts"), " each pass used"),
          make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Positions that each expert worked on, by pass" }, make("table", { id: "lab-used", class: "lab" })),
          make("p", { class: "hint" }, "The number of positions that each expert worked on; every position uses two."),
        ),
      ),
    ),
    make(
      "section",
      { class: "card", "aria-label": "Two axes" },
      make("h2", {}, "What passes, experts and layers do on two tasks"),
      make("p", {}, "Small models on two tasks: products of permutations, as above (reasoning), and facts to remember (knowledge). Dots are single training runs, one for each ", term("seed"), "; the bar is their mean. The dashed line is ", term("chance"), ". “8x experts” stores eight ", term("experts"), " for each one that works on a token."),
      make("div", { id: "two-axes" }),
    ),
  ); // prettier-ignore
}

async function random() {
  const { words } = await load("lab.js", "LOOPSCALE_LAB");
  const { config } = await modelOf(state.lab);
  set({ word: Array.from({ length: config.trainedLength }, () => words[Math.floor(Math.random() * words.length)]).join(" ") }, { control: "lab word" });
}

function run({ words, products }, model) {
  const { config } = model;
  const weights = Object.values(model.tensors).reduce((sum, { values }) => sum + values.length, 0);
  const layer = config.experts === 1 ? "one layer" : `one layer with ${config.used} of ${config.experts} experts for each position`;
  write($("#lab-about"), `It was trained on words of ${config.trainedLength} elements with about ${config.trained} passes, and has ${layer}, ${grouped(weights)} weights in all.`);
  const text = state.word || firstWord(config);
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
  const passes = runLooped(model, ids, count);
  const predicted = passes.map(({ logits }) => logits.map((row) => row.slice(0, words.length).reduce((best, value, k) => (value > row[best] ? k : best), 0)));
  const right = predicted.map((row) => row.filter((id, t) => id === answers[t]).length);
  const settledAt = answers.map((_, t) => predicted.findIndex((_, r) => predicted.slice(r).every((row) => row[t] === predicted.at(-1)[t])) + 1);
  write($("#lab-said span"), `After ${counted(count, "pass")}, ${right.at(-1)} of ${counted(ids.length, "position")} are right.`);
  write($("#lab-said b"), (settledAt.reduce((a, b) => a + b, 0) / ids.length).toFixed(1));
  const head = (first, names) => make("thead", {}, make("tr", {}, make("th", { scope: "col", class: "left" }, first), names.map((name) => make("th", { scope: "col" }, name))));
  const row = (r, cells) => make("tr", {}, make("th", { scope: "row", class: "left" }, `pass ${r + 1}`), cells);
  const named = (r, t) => (passes[r].experts ? `; experts ${passes[r].experts[t].map((e) => e + 1).join(" and ")}` : "");
  $("#lab-grid").replaceChildren(
    head("word", parts),
    make("tbody", {}, predicted.map((line, r) => row(r, line.map((id, t) => make("td", { class: id === answers[t] ? "right" : "wrong", title: (id === answers[t] ? "right" : `wrong: it is ${words[answers[t]]}`) + named(r, t) }, words[id]))))),
  ); // prettier-ignore
  $("#lab-experts").hidden = config.experts === 1;
  if (config.experts === 1) return;
  const list = Array.from({ length: config.experts }, (_, e) => e);
  const uses = passes.map(({ experts }) => list.map((e) => experts.filter((each) => each.includes(e)).length));
  $("#lab-used").replaceChildren(
    head("expert", list.map((e) => String(e + 1))),
    make("tbody", {}, uses.map((line, r) => row(r, line.map((number) => make("td", { style: `--share:${number / ids.length}` }, String(number)))))),
  ); // prettier-ignore
}

function twoAxes({ runs, cells }) {
  const W = Math.min(600, innerWidth - 70);
  const H = 244;
  return ["reasoning", "knowledge"].map((task) => {
    const mine = runs.filter((row) => row.task === task);
    const X = (share) => 170 + (W - 210) * share;
    const lines = Object.entries(cells).map(([cell, name], k) => {
      const list = mine.filter((row) => row.cell === cell).map(({ accuracy }) => accuracy);
      const y = 34 + 34 * k;
      const mean = list.reduce((a, b) => a + b, 0) / list.length;
      return list.length
        ? draw("g", {}, draw("text", { x: 162, y: y + 4, "text-anchor": "end" }, name), draw("path", { class: "grid", d: `M170 ${y}H${W - 40}` }), draw("path", { class: "line", d: `M${X(mean)} ${y - 9}V${y + 9}` }), ...list.map((share) => draw("circle", { class: "point", cx: X(share), cy: y, r: 4 })), draw("text", { x: W - 34, y: y + 4 }, `${Math.round(100 * mean)}%`))
        : null;
    }); // prettier-ignore
    const chance = mine[0]?.chance ?? 0;
    const seeds = new Set(mine.map(({ seed }) => seed)).size;
    return make("figure", {}, make("figcaption", {}, make("h3", {}, task === "reasoning" ? "Reasoning: words of permutations solved" : "Knowledge: facts recalled"), make("p", { class: "hint" }, `${counted(seeds, "seed")}, ${counted(mine.length, "run")}`)),
      draw("svg", { viewBox: `0 0 ${W} ${H}`, style: `max-width:${W}px`, role: "img", "aria-label": Object.entries(cells).map(([cell, name]) => `${name}: ${mine.filter((row) => row.cell === cell).map(({ accuracy }) => `${Math.round(100 * accuracy)}%`).join(", ")}`).join("; ") },
        draw("path", { class: "guide", d: `M${X(chance)} 14V${H - 16}` }), draw("text", { x: X(chance) + 4, y: 14 }, "chance"), ...lines)); // prettier-ignore
  });
}
