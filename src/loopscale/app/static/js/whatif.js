// What other budgets and designs would give; a click goes there.
import { FIELD } from "./budget.js";
import { $, button, coded, make } from "./dom.js";
import { textOf } from "./fields.js";
import { designText } from "./model.js";
import { ownModel } from "./own.js";
import { devicesOf } from "./cluster.js";
import { current, find, shown } from "./plan.js";
import { Refusal, shortName, signed } from "./quantities.js";
import { set, state } from "./state.js";

let turn = 0;
export function drawWhatIfs() {
  turn += 1;
  const mine = turn;
  const { answer, asked } = shown;
  const place = $("#whatifs");
  // A design that does not fit is no basis for a comparison; the best that fits is.
  const design = shown.own?.misses ? answer.choice : current().design;
  const attempt = (label, change, limits, options, note = () => "", devices = asked.devices) => {
    try {
      const other = find({ law: asked.law, limits: { ...asked.limits, ...limits }, options: { ...asked.options, ...options }, devices });
      if (other.trust.level === "beyond") return item(label, "?", "more than 10x beyond the data", change, null);
      return item(label, signed(other.choice.loss - design.loss), shortName(other.choice), () => change(other.choice), other.choice.loss - design.loss, note(other.choice));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return item(label, "–", error.problem, null, null);
    }
  };
  const items = [];
  const twice = (name, label) => {
    if (asked.limits[name] === undefined) return;
    const value = 2 * asked.limits[name];
    const changes = { [name]: textOf(FIELD[name], value), ...(name === "memory" && { where: "" }), design: "" };
    items.push(attempt(label, () => set(changes, { control: `twice ${name}` }), { [name]: value }));
  };
  twice("memory", "Twice the memory");
  twice("flops", "Twice the compute");
  if (asked.devices) {
    const gpus = String(2 * Number(state.gpus.replaceAll(",", "")));
    items.push(attempt("Twice the GPUs", () => set({ gpus, design: "" }, { control: "twice gpus" }), {}, {}, () => "", devicesOf({ ...state, gpus })));
  } else twice("real_flops", "Twice the compute");
  twice("max_tokens", "Twice the data");
  const ladder = answer.grid.space.kind === "ladder";
  if (answer.law.onlyRecurrence === null && ladder && !state.passes && design.recurrence > 1)
    items.push(attempt("Without the loop", (d) => set({ design: designText(d) }, { control: "no loop" }), {}, { recurrences: [1] }, (d) => faster(d, design)));
  if (answer.law.onlyRecurrence === null && ladder && design.recurrence === 1) {
    const twiceR = attempt("Looped twice", (d) => set({ design: designText(d) }, { control: "loop" }), {}, { recurrences: [2] });
    items.push(twiceR);
  }
  if (answer.law.onlyExperts === null && ladder && !state.experts && design.experts > 1)
    items.push(attempt("A dense model", (d) => set({ design: designText(d) }, { control: "dense" }), {}, { experts: [1] }));
  const bitsCount = asked.limits.memory !== undefined || asked.limits.min_speed !== undefined;
  if (bitsCount && answer.b.bits >= 4)
    items.push(attempt(`${answer.b.bits / 2} bits instead of ${answer.b.bits}`, () => set({ bits: String(answer.b.bits / 2), where: "", design: "" }), { bits: answer.b.bits / 2 }, {}, () => "rounding not counted"));
  place.replaceChildren(...items);
  if (ladder && !state.continuous && !state.rungs) {
    // It takes longer than the others, which keep their places when it comes.
    const label = "A size in between";
    const waiting = item(label, "…", "", null, null);
    waiting.setAttribute("aria-busy", "true");
    place.append(waiting);
    setTimeout(() => mine === turn && waiting.replaceWith(attempt(label, () => set({ continuous: "1", design: "" }), {}, { continuous: true })), 60);
  }
  ownModel().then((own) => own && mine === turn && place.append(own));
}

function faster(other, design) {
  const ratio = design.bytes_per_token / other.bytes_per_token;
  return ratio > 1.05 ? `${ratio.toFixed(1)}x faster to generate` : ratio < 0.95 ? `${(1 / ratio).toFixed(1)}x slower to generate` : "";
}

export function item(label, change, text, go, difference, note = "") {
  const kind = difference === null ? "" : difference < -5e-4 ? "better" : difference > 5e-4 ? "worse" : "same";
  const inside = [make("span", { class: "what" }, label), make("b", { class: kind }, change), make("span", { class: "with" }, coded(text)), note ? make("span", { class: "with" }, note) : null];
  return go ? button(inside, go, { class: "whatif" }) : make("div", { class: "whatif" }, inside);
}

