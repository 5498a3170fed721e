// The question and its answer in one sentence. The underlined parts are the form.
import { FIELD } from "./budget.js";
import { DATA } from "./data.js";
import { $, $$, button, coded, make, toast, write } from "./dom.js";
import { fieldRow, showRows } from "./fields.js";
import { ARCHITECTURES } from "./formulas.js";
import { addLaw, lawOf, ownLaws } from "./laws.js";
import { devicesOf, realFlops } from "./cluster.js";
import { current, shown } from "./plan.js";
import { close, popoverButton } from "./popover.js";
import { amountOf, cardSize, deviceName, experts, parse, passes, percent, power } from "./quantities.js";
import { DEFAULTS, DEVICES, set, state } from "./state.js";

// Budgets that stand in the sentence itself; the others are added to it where they are set.
const NAMED = ["flops", "memory", "bits"];
const parts = {};

export function buildSentence() {
  const chip = (name, label, fill) =>
    popoverButton(make("button", { type: "button", class: "chip", id: `chip-${name}` }), label, fill);
  const holder = (element) => make("span", { class: "chip-holder" }, element);
  parts.compute = chip("compute", "Training compute", computePanel);
  parts.place = chip("place", "Where the model runs", placePanel);
  parts.bits = chip("bits", "Bits per weight", bitsPanel);
  parts.extra = make("span", {});
  parts.answer = make("span", { id: "train" });
  $("#sentence").replaceChildren(
    "With ", holder(parts.compute), " to train, and ", holder(parts.place), " at ", holder(parts.bits), parts.extra,
    ", ", parts.answer, ".",
  ); // prettier-ignore
  parts.more = popoverButton(make("button", { type: "button", class: "quiet", id: "more-limits" }, "+ Add a limit"), "More limits", morePanel);
  parts.law = popoverButton(make("button", { type: "button", class: "quiet", id: "chip-law" }), "Scaling law", lawPanel);
  $("#stories").replaceChildren(make("span", { class: "limits" }, holder(parts.more), holder(parts.law)), make("span", { class: "tries" }, ...stories()));
}

function computePanel() {
  const text = (name, label, placeholder, onchange) => make("label", {}, label, make("input", { type: "text", id: `in-${name}`, value: state[name], placeholder, onchange }));
  const device = make(
    "select",
    { id: "in-device", onchange: (event) => set({ device: event.target.value === "h100" ? "" : event.target.value }) },
    Object.keys(DATA.devices).map((name) => make("option", { value: name, selected: name === (state.device || "h100") }, deviceName(name))),
  );
  const note = make("p", { class: "field-note", id: "devices-note" }, devicesText());
  return [
    fieldRow(FIELD.flops),
    make("details", { open: Boolean(state.gpus) }, make("summary", {}, "From GPUs and days"),
      make("div", { class: "pair" }, make("label", {}, "Device", device), text("gpus", "GPUs", DEVICES.gpus, devicesChanged), text("days", "Days", DEVICES.days, devicesChanged), text("utilisation", "Utilisation", "40%", (event) => set({ utilisation: event.target.value.trim() }))),
      note,
      button("Use these devices", () => useDevices({ gpus: $("#in-gpus").value.trim(), days: $("#in-days").value.trim() })),
    ),
  ]; // prettier-ignore
}

// An empty field counts as its placeholder, but without GPUs the compute is not that of devices.
function devicesChanged({ target }) {
  const [gpus, days] = [$("#in-gpus").value.trim(), $("#in-days").value.trim()];
  if (target.id === "in-gpus" && !gpus) set({ gpus: "", days: "" }, { control: "devices" });
  else useDevices({ gpus, days });
}

function useDevices({ gpus, days }) {
  set({ gpus: gpus || DEVICES.gpus, days: days || DEVICES.days }, { control: "devices" });
}

function placePanel() {
  const choices = DATA.presets.map(({ name, limits }) =>
    button([make("b", {}, PLACES[name] ?? name), ` ${amountOf(FIELD.memory, parse(FIELD.memory, limits.memory))} · ${limits.bits} bits`], () => set({ ...EMPTY, ...limits, where: name }, { control: "where" }), {
      class: "choice", "data-place": name, "aria-pressed": String(state.where === name),
    }),
  ); // prettier-ignore
  return [make("div", { class: "choices" }, choices), fieldRow(FIELD.memory), fieldRow(FIELD.context)];
}
export const PLACES = { phone: "a phone", "laptop-16gb": "a laptop", "rtx-4090": "an RTX 4090", "8xh100": "8 H100" };
const EMPTY = { memory: "", context: "", bandwidth: "", bits: "" };

function bitsPanel() {
  return [
    fieldRow(FIELD.bits),
    make("p", { class: "field-note" }, "The predicted loss is that of the trained weights. What rounding them to few bits costs is not in it."),
  ];
}

function morePanel() {
  const rest = DATA.fields.filter(({ name }) => !NAMED.includes(name));
  const groups = [...new Set(rest.map(({ group }) => group))];
  const checks = (name, values, label) =>
    make("fieldset", {}, make("legend", {}, label), make("div", { class: "chips" }, values.map((value) => {
      const list = () => (state[name] ? state[name].split(",") : []);
      return button(String(value), (event) => {
        const now = list().includes(String(value)) ? list().filter((each) => each !== String(value)) : [...list(), String(value)];
        set({ [name]: values.map(String).filter((each) => now.includes(each)).join(), design: "", ...(name === "rungs" && { continuous: "" }) });
        event.target.setAttribute("aria-pressed", String(now.includes(String(value))));
      }, { class: "choice", "aria-pressed": String(list().includes(String(value))) });
    }))); // prettier-ignore
  const box = (name, label, hint) =>
    make("label", { class: "check" }, make("input", { type: "checkbox", id: `in-${name}`, checked: Boolean(state[name]), onchange: (event) => set({ [name]: event.target.checked ? "1" : "" }) }), label, hint ? make("small", {}, hint) : null);
  return [
    ...groups.map((group) => make("details", { open: group === "Memory and serving" }, make("summary", {}, group), rest.filter((field) => field.group === group).map(fieldRow))),
    make("details", {}, make("summary", {}, "Designs to choose from"),
      checks("rungs", Object.keys(DATA.rungs), "Sizes (none chosen: all, and further ones where they help)"),
      box("continuous", "All sizes between the ladder's", ""),
      checks("experts", DATA.experts, "Experts for each active one"),
      make("label", { class: "block" }, "Most passes ", make("input", { type: "number", id: "in-passes", min: 1, max: 32, value: state.passes, placeholder: "10", onchange: (event) => set({ passes: event.target.value }) })),
      make("label", { class: "block" }, "Minimum gain per step, nats ", make("input", { type: "text", id: "in-eps", value: state.eps, placeholder: "the law's fit error", onchange: (event) => set({ eps: event.target.value.trim() }) })),
      make("label", { class: "check" }, make("input", { type: "checkbox", id: "in-rule", checked: state.rule === "loss", onchange: (event) => set({ rule: event.target.checked ? "loss" : "paper" }) }), "Lowest loss alone, however little a step gains"),
    ),
    button("Reset everything", () => { close(); set({ ...DEFAULTS, view: "plan", pins: state.pins }, { control: "reset" }); }, { class: "quiet" }),
  ]; // prettier-ignore
}

function lawPanel(panel) {
  const laws = [...Object.keys(DATA.laws), ...ownLaws().map(({ id }) => id)];
  const about = make("p", { class: "field-note" });
  const describe = () => {
    const law = lawOf(state.law);
    about.textContent = law ? `${law.source || law.form}. ${law.note ?? ""}` : "";
  };
  const select = make(
    "select",
    { id: "law", onchange: (event) => { chooseLaw(event.target.value); describe(); } },
    laws.map((name) => make("option", { value: name === DATA.law ? "" : name, selected: name === (state.law || DATA.law) }, name.replace(/^own-/, "yours: "))),
  ); // prettier-ignore
  const file = make("input", {
    type: "file", id: "law-file", accept: ".json,application/json", hidden: true, "aria-label": "Law file",
    onchange: async (event) => {
      try {
        chooseLaw(addLaw(JSON.parse(await event.target.files[0].text())).id);
        close();
      } catch (error) {
        about.replaceChildren(...coded(error instanceof SyntaxError ? "This file is not JSON." : `${error.message}.`));
      }
    },
  }); // prettier-ignore
  describe();
  return [make("label", { class: "block" }, "Scaling law ", select), about, button("Open a law file…", () => file.click(), { id: "open-law" }), file];
}

// A law's own range may be far from the budgets at hand: they are moved into it, and the page says so.
export function chooseLaw(id, { move = false } = {}) {
  const law = lawOf(id);
  const changes = { law: id === DATA.law ? "" : id, design: "", experts: "", passes: "", rungs: "", extrapolate: "", allow_degenerate: "" };
  if (law && law.eps === null && state.rule === "paper" && !state.eps) changes.rule = "loss";
  if (move && law) {
    const middle = ([low, high]) => Math.sqrt((low ?? high ?? 1e9) * (high ?? low ?? 1e9));
    const flops = 6 * middle(law.range.size) * middle(law.range.tokens);
    // Laws of tiny models are far below the ladder's smallest rung.
    const smallest = ARCHITECTURES.dense.active({ width: Object.values(DATA.extended)[0] });
    const tiny = law.range.size[1] !== null && law.range.size[1] * 10 < smallest;
    Object.assign(changes, { flops: power(flops, 2), gpus: "", memory: "", where: "", bandwidth: "", context: "", view: "plan", continuous: tiny ? "1" : "" });
    toast(`The compute was moved to ${changes.flops} FLOPs, the middle of this law's data, and the memory limit was taken off. Undo brings them back.`);
  }
  set(changes, { control: "law" });
}

function stories() {
  const list = [
    ["A phone", "where=phone"],
    ["A laptop", "where=laptop-16gb"],
    ["8 GPUs, two weeks", "gpus=8&days=14&where=phone"],
    ["Little data", "flops=2e21&unique_tokens=30B"],
    ["Does looping pay?", "flops=2e22&memory=1+GB&bits=4&where=&bandwidth="],
  ]; // prettier-ignore
  const link = ([name, query]) => {
    const values = Object.fromEntries(new URLSearchParams(query));
    const preset = DATA.presets.find((each) => each.name === values.where);
    const changes = { ...DEFAULTS, pins: state.pins, ...(preset && { ...EMPTY, ...preset.limits }), ...values };
    const href = `#${new URLSearchParams({ ...preset?.limits, ...values })}`;
    return make("a", { href, class: "story", onclick: (event) => { event.preventDefault(); set({ ...changes, pins: state.pins }, { control: `story ${name}` }); } }, name); // prettier-ignore
  };
  return [make("span", { class: "hint" }, "Examples"), ...list.map(link), make("button", { type: "button", class: "quiet", id: "tour" }, "What is this?")];
}

// ---- showing ----

export function drawSentence() {
  const { problem, withheld } = shown;
  const text = (name) => {
    try {
      return state[name] ? amountOf(FIELD[name], parse(FIELD[name], state[name])) : "";
    } catch {
      return state[name];
    }
  };
  const devices = state.gpus ? `${state.gpus} ${deviceName(state.device || "h100")} for ${state.days} days` : "";
  const compute = state.flops ? `${text("flops")} FLOPs` : state.real_flops ? `${text("real_flops")} real FLOPs` : state.tokens ? `${text("tokens")} tokens` : "some compute";
  write(parts.compute, devices || compute);
  const memory = text("memory");
  write(parts.place, state.where ? `${memory} on ${PLACES[state.where] ?? state.where}` : memory ? `${memory} of memory` : "any memory");
  write(parts.bits, `${text("bits") || amountOf(FIELD.bits, FIELD.bits.default)} bits`);
  drawExtras(text);
  const fieldChip = { flops: parts.compute, real_flops: parts.compute, gpus: parts.compute, days: parts.compute, memory: parts.place, bits: parts.bits, law: parts.law };
  for (const part of $$(".chip, #more-limits, #chip-law")) part.classList.remove("bad");
  if (problem) (fieldChip[problem.field] ?? parts.more).classList.add("bad");
  write(parts.law, `Law: ${(state.law || DATA.law).replace(/^own-/, "")}`);
  const { answer, design } = current();
  const verb = shown.own ? "you could train" : "train";
  const kind = design.experts_total === 1 ? `a ${cardSize(design.total_parameters)} dense model` : `a ${cardSize(design.active_parameters)} model with ${experts(design)} experts`;
  const loop = design.recurrence === 1 ? "do not loop it" : design.recurrence === 2 ? "loop it twice" : `loop it ${design.recurrence} times`;
  const loops = answer.law.onlyRecurrence === null; // other laws say nothing about passes
  parts.answer.replaceChildren(`${verb} `, make("b", {}, kind), ...(loops ? [" and ", make("b", {}, loop)] : []));
  document.title = problem || withheld ? "loopscale: no answer for this budget" : `${cardSize(design.active_parameters)}, ${passes(design.recurrence)} · loopscale`;
  showRows(problem);
  const note = $("#devices-note");
  if (note) write(note, devicesText());
}

// Limits that are set and not in the sentence, each a way to change it.
function drawExtras(text) {
  const names = DATA.fields.map(({ name }) => name).filter((name) => !NAMED.includes(name) && state[name] && state[name] !== String(FIELD[name].default ?? "") && !(name === "bandwidth" && (state.where || state.bandwidth === DEFAULTS.bandwidth)) && !(name === "real_flops" && !state.flops && !state.gpus) && !(name === "tokens" && !state.flops && !state.gpus));
  const key = names.map((name) => `${name}=${text(name)}`).join();
  if (parts.extra.dataset.key === key) return;
  parts.extra.dataset.key = key;
  parts.extra.replaceChildren(
    ...names.flatMap((name) => [", ", make("span", { class: "chip-holder" }, popoverButton(make("button", { type: "button", class: "chip small", "data-field": name }, `${FIELD[name].sentence} ${text(name)}`), FIELD[name].label, () => [fieldRow(FIELD[name])]))]),
  ); // prettier-ignore
}

function devicesText() {
  try {
    const values = { ...state, gpus: $("#in-gpus")?.value || state.gpus, days: $("#in-days")?.value || state.days };
    const devices = devicesOf(values);
    if (!devices) return "Devices run all that training computes: output head, attention, expert padding, and what is recomputed to fit.";
    return `${power(realFlops(devices))} FLOPs at ${percent(devices.cluster.utilisation)} of the listed rate, with output head, attention, expert padding and what is recomputed to fit.`;
  } catch (error) {
    return `${error.message}.`;
  }
}
