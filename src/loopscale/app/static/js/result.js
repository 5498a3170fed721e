// The answer under the sentence: its numbers, how far it can be trusted, and why there is none.
import { FIELD } from "./budget.js";
import { DATA } from "./data.js";
import { $, button, coded, make, write } from "./dom.js";
import { term } from "./glossary.js";
import { current, shown } from "./plan.js";
import { bytes, count, daysText, decimals, deviceName, fixed, percent, power } from "./quantities.js";
import { PLACES } from "./sentence.js";
import { set, state } from "./state.js";

export function drawResult({ sure = false } = {}) {
  drawMessage();
  drawNumbers(sure);
  drawTrust();
}

const STAYS = "The last answer stays, greyed.";

function drawMessage() {
  const { problem, withheld } = shown;
  const place = $("#message");
  const key = problem ? problem.message : withheld ? `w ${withheld.answer.choice.label} ${withheld.blocked}` : "";
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!key) return void place.replaceChildren();
  if (problem) return void place.replaceChildren(make("span", {}, ...coded(`${capital(withLabels(problem.message))}. ${STAYS}`)));
  const { answer, blocked } = withheld;
  const why = blocked.includes("extrapolate")
    ? `Too far to answer: ${axesText(answer)}. Train a few runs closer to it first.`
    : `This law is degenerate: ${answer.law.degenerate.join("; ")}.`;
  place.replaceChildren(
    make("span", {}, ...coded(`${why} ${STAYS}`)),
    button("Show it anyway", () => set(Object.fromEntries(blocked.map((name) => [name, "1"])), { control: "anyway" }), { id: "show-anyway" }),
  );
  return undefined;
}
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
// Python names a field of the budget in backquotes; the page has a label for it.
const withLabels = (text) => text.replace(/`(\w+)`/g, (name, field) => (FIELD[field] ? `“${FIELD[field].label}”` : name));

// Axes outside the law's range, in words: "589B tokens; the law saw up to 500B".
function axesText(answer) {
  const { inputs, embedding } = answer.grid.designs[answer.chosen];
  const counted = embedding && !answer.law.embeddings ? "active parameters without embeddings" : "active parameters";
  const words = { size: counted, tokens: "tokens", experts: "experts for each active one", recurrence: "passes" };
  const at = { size: inputs.N * answer.law.units.parameters, tokens: inputs.D * answer.law.units.tokens, experts: inputs.E, recurrence: inputs.R };
  return Object.entries(answer.trust.factors)
    .filter(([, factor]) => factor > 1)
    .map(([axis]) => {
      const [low, high] = answer.law.range[axis];
      const seen = low !== null && at[axis] < low ? `from ${count(low)}` : `up to ${count(high)}`;
      return `${count(at[axis])} ${words[axis]}, the law saw ${seen}`;
    })
    .join("; ");
}

// The answer in numbers: each with its name, which explains itself, and what it rests on.
const STATS = [["loss", "Loss"], ["tokens", "Training tokens"], ["days", "Training time"], ["memory", "Memory"], ["speed", "Speed"]];

function buildStats() {
  $("#loss-line").append(
    ...STATS.map(([name, label]) => make("div", { class: "stat", id: `stat-${name}` }, make("dt", {}, term(name, label)), make("dd", { class: "value", id: name === "loss" ? "loss" : null }), make("dd", { class: "under", id: name === "loss" ? "interval" : null }))),
  ); // prettier-ignore
}

function stat(name, value, under) {
  const place = $(`#stat-${name}`);
  place.hidden = value === "";
  write($(".value", place), value);
  write($(".under", place), under);
}

let uncertainty = null; // while something is dragged, the last one is better than none

function drawNumbers(sure) {
  if (!$("#loss-line").children.length) buildStats();
  const { answer, design } = current();
  const { level } = answer.trust;
  const span = sure ? answer.interval : null;
  const half = span ? (span.high - span.low) / 2 : null;
  const digits = half === null ? (level === "beyond" ? 2 : 3) : decimals(half);
  if (sure) uncertainty = half === null ? null : { digits, text: intervalText(span, half, digits, level) };
  const loss = uncertainty ?? { digits, text: "" };
  const { b } = answer;
  stat("loss", Number.isFinite(design.loss) ? fixed(design.loss, loss.digits) : "–", loss.text);
  stat("tokens", count(design.tokens), `for ${power(design.train_flops)} FLOPs`);
  const { cluster, days, fits: trains } = answer.training;
  stat("days", daysText(days), `on ${count(cluster.devices)} ${deviceName(cluster.name)}${trains ? ` at ${percent(cluster.utilisation)}` : ", but it does not fit them"}`);
  stat("memory", bytes(design.memory), b.set.memory === undefined ? "no limit set" : `of ${bytes(b.memory)}`);
  const fits = b.set.memory === undefined || design.memory <= b.memory * DATA.slack;
  $("#stat-memory").classList.toggle("over", !fits);
  const speed = design.tokens_per_second !== null && fits;
  stat("speed", speed ? `≤ ${count(design.tokens_per_second)}` : "", speed ? `tokens/s ${state.where ? `on ${PLACES[state.where]}` : `at ${bytes(b.bandwidth)}/s`}` : "");
}

function intervalText(span, half, digits, level) {
  const holds = level === "far" ? " if the law's form still holds" : "";
  if (span.kind === "predictive") return `90% of runs: ${fixed(span.low, digits)}–${fixed(span.high, digits)}${holds}`;
  return `± ${fixed(half, digits)}${holds || " for the curve; one run varies more"}`;
}

export const TRUST = { inside: "inside", near: "slightly beyond", far: "far beyond", beyond: "more than 10x beyond" };

// How far the answer lies from the law's data, around a name for their range.
export function trustParts(answer, range) {
  const { law, trust } = answer;
  const outside = axesText(answer);
  if (outside || trust.level === "inside") return [`${capital(TRUST[trust.level])} the `, range, `${outside ? `: ${outside}` : ""}.`];
  return [law.degenerate.length ? `The law is degenerate: ${law.degenerate.join("; ")}.` : "The law's source does not state the whole range of its data."];
}

function drawTrust() {
  const { answer } = current();
  const { level } = answer.trust;
  const parts = trustParts(answer, term("trust", "measured range"));
  const key = parts.map((part) => part.textContent ?? part).join("");
  const place = $("#trust-line");
  if (place.dataset.key === key) return;
  Object.assign(place.dataset, { key, level });
  place.replaceChildren(
    make("span", { class: "dot", "data-level": level, "aria-hidden": "true" }),
    make("span", {}, parts),
    button("How sure?", () => { const part = $("#sure"); part.open = true; part.scrollIntoView({ block: "center" }); $("summary", part).focus(); }, { class: "link" }),
  ); // prettier-ignore
}
