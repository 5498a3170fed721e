// Everything that the first screen leaves out, folded: alternatives, limits, the command, and how sure the answer is.
import { FIELD } from "./budget.js";
import { DATA } from "./data.js";
import { $, button, captioned, make, sentence, table } from "./dom.js";
import { term } from "./glossary.js";
import { designText } from "./model.js";
import { current, shown } from "./plan.js";
import { bytes, cardSize, count, fixed, percent, power, shortName, signed, size } from "./quantities.js";
import { trustParts } from "./result.js";
import { set } from "./state.js";
import { commandText, pythonText } from "./texts.js";
import { copyMenu, downloadMenu } from "./share.js";

export function drawDetails() {
  const place = $("#details");
  if (!place.children.length) build(place);
  drawAlternatives();
  drawLimits();
  drawTexts();
  drawSure();
}

function build(place) {
  const fold = (id, title) => make("details", { class: "card fold", id, ontoggle: () => drawDetails() }, make("summary", {}, title), make("div", { class: "inside" }));
  place.append(
    fold("alternatives", "Alternatives"),
    fold("limits", "What limits you"),
    fold("texts", "Command, Python and files"),
    fold("sure", "How sure, and by which method"),
  );
}
const inside = (id) => ($(`#${id}`).open ? $(`#${id} .inside`) : null);

function drawAlternatives() {
  const place = inside("alternatives");
  if (!place) return;
  const { answer } = shown;
  const best = answer.choice;
  const rows = [best, ...answer.rivals(6)];
  const columns = [
    { name: "design", left: true, cell: (d) => (answer.grid.space.kind === "ladder" ? button(shortName(d), () => set({ design: d.flat === answer.chosen ? "" : designText(d) }), { class: "link" }) : shortName(d)) },
    { name: "tokens", cell: (d) => count(d.tokens) },
    { name: "loss", cell: (d) => (Number.isFinite(d.loss) ? fixed(d.loss, 4) : "–") },
    { name: "difference", cell: (d) => (d === best || !Number.isFinite(d.loss) ? "" : signed(d.loss - best.loss, 4)) },
    { name: "memory", cell: (d) => bytes(d.memory) },
    { name: "verdict", left: true, cell: (d) => (d === best ? "the best that fits" : d.verdict) },
  ];
  const note = best.extrapolated.length ? "Losses beyond the law's data are extrapolated." : "";
  place.replaceChildren(...captioned(`The best design, its neighbours and the best others. Minus is a lower loss. ${note}`, { id: "table" }, table(columns, rows, (d) => (d === best ? { class: "best" } : {}))));
}

function drawLimits() {
  const place = inside("limits");
  if (!place) return;
  const { answer } = shown;
  const columns = [
    { name: "limit", left: true, cell: (r) => FIELD[r.limit].sentence },
    { name: "now", cell: (r) => valueText(r.limit, r.cap) },
    { name: "loosened", cell: (r) => valueText(r.limit, r.cap * r.factor) },
    { name: "loss", cell: (r) => (r.binds ? signed(-r.saved, 4) : "no lower") },
    { name: "with", left: true, cell: (r) => (r.binds ? shortName(r.design) : "") },
  ];
  const next = answer.nextBest;
  place.replaceChildren(...[
    ...captioned("What each limit would buy if it were loosened. Minus is a lower loss.", { id: "limits-table" }, table(columns, answer.sensitivities())),
    next ? make("p", {}, `The nearest better design, ${shortName(next)} (loss ${fixed(next.loss, 4)}), ${next.verdict}.`) : null,
    answer.unspent ? make("p", {}, `${power(answer.unspent)} FLOPs (${percent(answer.unspent / answer.b.flops)} of the compute) stay unspent.`) : null,
    ...answer.edges.filter(({ set_by: by }) => by === "you").map(({ axis, value }) => make("p", {}, `${DATA.axisText[axis]} ${value} is the last that you allowed; a value beyond it may do better.`)),
  ].filter(Boolean));
}
const valueText = (name, value) => (name.includes("flops") ? power(value) : FIELD[name].write === "bytes" ? bytes(value) : count(value));

function drawTexts() {
  const place = inside("texts");
  if (!place) return;
  const block = (title, text) => make("div", { class: "code" }, make("h4", {}, title), make("pre", { tabindex: 0 }, text));
  place.replaceChildren(
    make("div", { class: "actions" }, copyMenu(), downloadMenu()),
    block("Command line", commandText()),
    block("Python", pythonText()),
  );
}

// How far the choice is ahead of others, and how many refits choose it.
function choiceTexts(answer) {
  const texts = [];
  const agreed = answer.agreement();
  const sizes = answer.tiedSizes;
  if (sizes) texts.push(`Any size from ${cardSize(sizes[0])} to ${cardSize(sizes[1])} is a tie.`);
  else if (answer.lead !== null) {
    const other = `The next design ${answer.grid.rule === "loss" ? "" : "that the rule allows "}is ${fixed(answer.lead, 4)} nats behind`;
    texts.push(answer.lead < answer.grid.eps ? `${other}, less than the smallest gain that counts (${answer.grid.eps}): a tie.` : `${other}.`);
  }
  if (agreed) {
    const votes = agreed.votes.filter(({ flat }) => flat !== answer.chosen).slice(0, 3).map(({ flat, share }) => `${shortName(answer.design(flat))} ${percent(share)}`);
    const own = agreed.votes.find(({ flat }) => flat === answer.chosen)?.share ?? 0;
    // Between the rungs, refits choose neighbouring sizes, which are the same design.
    if (!sizes) texts.push(`${Math.round(own * agreed.laws)} of ${agreed.laws} refits choose this design${votes.length ? ` (others: ${votes.join(", ")})` : ""}.`);
    texts.push(`In ${percent(agreed.share)} of ${sizes ? `${agreed.laws} refits` : "them"} it is within the fit error of the best.`);
  }
  return texts.length ? texts : ["No other design is allowed."];
}

function drawSure() {
  const place = inside("sure");
  if (!place) return;
  const { answer } = current();
  const { law, trust, interval } = answer;
  const d = answer.choice;
  const fact = (name, ...text) => make("div", {}, make("dt", {}, name), make("dd", {}, ...text));
  place.replaceChildren(
    make(
      "dl",
      { class: "facts" },
      fact("Trust", ...trustParts(answer, "range that the law was fitted on")),
      fact("Loss", interval ? `${fixed(d.loss, 4)}, 90% ${interval.kind === "predictive" ? "predictive interval of one run" : "interval of the curve, not of a run,"} ${fixed(interval.low, 4)} to ${fixed(interval.high, 4)}` : `${fixed(d.loss, trust.level === "beyond" ? 2 : 4)}, no interval ${trust.level === "beyond" ? "so far beyond the data" : ""}`),
      fact("Uncertainty", sentence(law.uncertainty)),
      shown.own ? null : fact("Choice", choiceTexts(answer).join(" ")),
      fact("Law", `${law.name}: ${law.form}. ${law.source ?? ""}`),
      fact("Rule", answer.grid.rule === "loss" ? "Lowest loss alone." : `Lowest loss among designs whose last pass and last step in experts each gain at least ${answer.grid.eps} nats.`),
      fact("Size", `${cardSize(d.active_parameters)} active, ${cardSize(d.total_parameters)} in all, embeddings included. ${d.recurrence > 1 ? `As good as ${cardSize(d.effective_parameters)} without looping. ` : ""}The law counts ${size(d.active)} active and ${size(d.total)} stored${law.embeddings ? "" : ", without embeddings"}.`),
      fact("Training", `${power(d.train_flops)} FLOPs by `, term("flops", "6ND"), `${answer.real ? `; ${power(answer.real.flops)} with output head, attention and expert padding` : ""}.`),
      fact("Quantised weights", "What rounding weights to few bits costs is not in the predicted loss."),
    ),
  );
}
