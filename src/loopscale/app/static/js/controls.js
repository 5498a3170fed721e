// The budgets: each a text field, which takes what the command line takes, and a slider.
import { call } from "./api.js";
import { $, $$, make, problem } from "./dom.js";
import { holdAxes } from "./figure.js";
import { bytes, count, power, significant } from "./format.js";
import { explainTerms } from "./glossary.js";
import { lawList, lawOf } from "./laws.js";
import { DEFAULTS, OVERRIDES, set, state } from "./state.js";

const TYPING = 600;
const STEPS = 400;
const WRITERS = { power, count, bytes, bits: String };
let choices = null;

// The controls of the budget, as the server describes its fields.
let fields = [];
export const budgetFields = () => fields;
const byName = (name) => fields.find((field) => field.name === name);

export function buildControls(known) {
  choices = known;
  fields = known.budget;
  $("#sliders").replaceChildren(...fields.filter((field) => !field.more).map(control));
  $("#more-sliders").replaceChildren(...fields.filter((field) => field.more).map(control));
  $("#law").onchange = (event) => chooseLaw(event.target.value);
  $("#passes").onchange = (event) => set({ passes: event.target.value });
  $("#eps").onchange = (event) => set({ eps: event.target.value.trim() });
  $("#rule").onchange = (event) => set({ rule: event.target.value });
  $("#reset").onclick = () => set({ ...DEFAULTS, view: "plan", pins: state.pins });
  $("#drop-config").onclick = () => set({ config: "" });
  buildPresets();
  buildDevices();
  explainTerms($("#controls"));
}

function control(spec) {
  const id = `in-${spec.name}`;
  const text = make("input", {
    type: "text",
    id,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: spec.none,
    "aria-describedby": `${id}-said`,
    oninput: (event) => type(spec, event.target.value.trim()),
    onchange: (event) => enter(spec, event.target.value.trim()),
    onkeydown: (event) => event.key === "Enter" && enter(spec, event.target.value.trim()),
  });
  const slider = make("input", {
    type: "range",
    id: `${id}-slider`,
    min: 0,
    max: spec.steps.length ? spec.steps.length - 1 : STEPS,
    step: 1,
    "aria-label": `${spec.label}, slider`,
    oninput: (event) => drag(spec, Number(event.target.value)),
    onchange: (event) => drop(spec, Number(event.target.value)),
  });
  const toggle =
    spec.none != null &&
    make("input", {
      type: "checkbox",
      class: "switch",
      "aria-label": `Limit: ${spec.label}`,
      onchange: (event) => set({ [spec.name]: event.target.checked ? spec.start : "" }),
    });
  return make(
    "div",
    { class: "control", "data-name": spec.name },
    make(
      "div",
      { class: "row" },
      toggle,
      make("label", { for: id }, spec.label),
      spec.term && make("span", { "data-term": spec.term }, ""),
    ),
    make("div", { class: "row entry" }, slider, text, make("span", { class: "unit" }, spec.unit)),
    make("p", { class: "said", id: `${id}-said` }),
  );
}

function drag(spec, position) {
  holdAxes(true);
  typing.spec = null;
  set({ [spec.name]: slid(spec, position) }, { draft: true });
}

function drop(spec, position) {
  holdAxes(false);
  set({ [spec.name]: slid(spec, position) });
}

// Half a number is a number too, and a wrong one: while somebody types, a value counts once they pause, and only where
// it lies on the slider's scale. Enter, or leaving the field, takes it as it stands.
export const typing = { spec: null };

function type(spec, value) {
  clearTimeout(type.timer);
  type.timer = setTimeout(() => {
    typing.spec = spec;
    set({ [spec.name]: value }, { draft: true });
  }, TYPING);
}

function enter(spec, value) {
  clearTimeout(type.timer);
  typing.spec = null;
  set({ [spec.name]: value });
}

export function plausible(budget) {
  const { spec } = typing;
  if (!spec || spec.steps.length || budget[spec.name] == null) return true;
  return budget[spec.name] >= spec.low && budget[spec.name] <= spec.high;
}

function slid(spec, position) {
  if (spec.steps.length) return String(spec.steps[position]);
  const value = spec.low * (spec.high / spec.low) ** (position / STEPS);
  return WRITERS[spec.write](Number(value.toPrecision(2))) + (spec.per_second ? "/s" : "");
}

const position = (spec, value) =>
  spec.steps.length ? nearest(spec.steps, value) : (STEPS * Math.log(value / spec.low)) / Math.log(spec.high / spec.low);

// A text is left alone while somebody writes in it.
function show(spec) {
  const row = $(`.control[data-name=${spec.name}]`);
  const [text, slider, toggle] = [$("input[type=text]", row), $("input[type=range]", row), $(".switch", row)];
  const value = state[spec.name];
  if (document.activeElement !== text || typing.spec !== spec) text.value = value;
  if (toggle) toggle.checked = value !== "";
  row.classList.toggle("off", value === "");
  slider.setAttribute("aria-valuetext", value || spec.none || "");
}

export const showControl = (name) => byName(name) && show(byName(name));

export function showControls() {
  for (const spec of fields) show(spec);
  fillLaws($("#law"), state.law);
  chips("#rungs", "rungs", choices.rungs);
  chips("#experts", "experts", choices.experts.map(String));
  $("#passes").value = state.passes;
  $("#eps").value = state.eps;
  $("#rule").value = state.rule;
  $("#preset").value = chosenPreset();
  $("#own-model-name").textContent = state.config ? (JSON.parse(state.config).model_type ?? "config.json") : "";
  $("#drop-config").hidden = !state.config;
  const law = lawOf(state.law);
  $("#law-note").textContent = law ? law.about : "";
}

// Sliders follow the numbers that the server read from the text.
export function settle(budget) {
  for (const spec of fields) {
    const slider = $(`#in-${spec.name}-slider`);
    const value = budget[spec.name];
    if (document.activeElement !== slider) slider.value = position(spec, value ?? spec.at);
  }
}

// What the page calls the other fields of a request.
const CONTROLS = {
  rungs: "Sizes",
  experts: "Experts",
  recurrences: "Max passes",
  recurrence: "Max passes",
  eps: "Minimum gain per step",
};
const labelOf = (name) => byName(name)?.label ?? CONTROLS[name];

// What is wrong in the terms of the page: fields of the request stand in backquotes, and the page has labels for them.
export const inPageTerms = (text) => text.replace(/`(\w+)`/g, (quoted, name) => labelOf(name) ?? quoted);

export function told(error) {
  if (error.status === 404) return "this law is not in this browser; choose another, or open its file";
  return inPageTerms([error.problem ?? error.message, error.remedy].filter(Boolean).join("; "));
}

// The same with the control that it is about, for where that is not in sight.
export const toldWithField = (error) =>
  labelOf(error.field) ? `${labelOf(error.field)}: ${told(error)}` : error.field ? error.message : told(error);

// Puts what is wrong beside the control that it is about; returns whether there is one.
export function blame(error) {
  for (const spec of fields) {
    const row = $(`.control[data-name=${spec.name}]`);
    const mine = error?.field === spec.name;
    $("input[type=text]", row).setAttribute("aria-invalid", String(mine));
    $(".said", row).textContent = mine ? told(error) : "";
    if (mine && spec.more) $("#more-limits").open = true;
  }
  return Boolean(error && byName(error.field));
}

export function chooseLaw(id) {
  const law = lawOf(id);
  // A law without an RMSE has no ε to judge steps by; the rule that needs none is chosen, and shown as chosen.
  set({ law: id, extrapolate: "", allow_degenerate: "", rule: law && law.rmse == null && !state.eps ? "loss" : "paper" });
}

export function fillLaws(select, chosen) {
  select.replaceChildren(
    ...lawList().map((law) =>
      make("option", { value: law.id }, law.id.startsWith("own-") ? `${law.name} (your own)` : law.name),
    ),
  );
  select.value = lawOf(chosen)?.id ?? "";
}

function chips(selector, name, all) {
  const chosen = state[name] ? state[name].split(",") : all;
  $(selector).replaceChildren(
    ...all.map((value) =>
      make(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-pressed": String(chosen.includes(value)),
          onclick: () => toggleChip(name, value, all, chosen),
        },
        value,
      ),
    ),
  );
  if (name !== "rungs") return;
  $(selector).append(
    make(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-pressed": String(state.continuous === "1"),
        title: "All widths from 256 to 4096 by the ladder's rules, buildable or not",
        onclick: () => set({ continuous: state.continuous ? "" : "1" }),
      },
      "continuous sizes",
    ),
  );
  for (const chip of $$(".chip", $(selector)).slice(0, -1)) chip.disabled = state.continuous === "1";
}

function toggleChip(name, value, all, chosen) {
  const now = all.filter((other) => (other === value ? !chosen.includes(other) : chosen.includes(other)));
  if (now.length) set({ [name]: now.length === all.length ? "" : now.join(",") });
}

function nearest(steps, value) {
  const away = steps.map((step) => Math.abs(Math.log(step / value)));
  return away.indexOf(Math.min(...away));
}

function buildPresets() {
  const select = $("#preset");
  select.replaceChildren(
    make("option", { value: "" }, "choose…"),
    ...choices.presets.map((preset) => make("option", { value: preset.name }, preset.label)),
  );
  select.onchange = () => {
    const preset = choices.presets.find((other) => other.name === select.value);
    if (preset) set({ ...Object.fromEntries(presetFields().map((name) => [name, ""])), ...preset.limits });
  };
}

const presetFields = () => [...new Set(choices.presets.flatMap((preset) => Object.keys(preset.limits)))];

// The preset whose limits the page has, if it is one.
function chosenPreset() {
  const same = (preset) => presetFields().every((name) => state[name] === (preset.limits[name] ?? ""));
  return choices.presets.find(same)?.name ?? "";
}

const filled = (names) =>
  Object.fromEntries(names.map((name) => [name, $(`#${name}`).value.trim()]).filter(([, value]) => value));

// The device that costs are given for, with its price where one is set.
export const chosenDevice = () => ({ device: $("#device").value, ...filled(["utilisation", "price"]) });

function buildDevices() {
  $("#device").replaceChildren(...choices.devices.map((name) => make("option", { value: name }, name)));
  $("#device").value = choices.devices.includes("h100") ? "h100" : choices.devices[0];
  $("#utilisation").placeholder = choices.utilisation;
  $("#use-compute").onclick = async () => {
    const query = new URLSearchParams({ ...filled(["gpus", "days", "dollars"]), ...chosenDevice() });
    try {
      const { flops, text } = await call(`compute?${query}`);
      problem($("#compute-problem"), null);
      $("#compute-note").textContent = text;
      // Devices run more than 6 N_unroll D: of the two limits, the real one holds.
      set({ flops: power(flops), real_flops: power(flops) });
    } catch (error) {
      problem($("#compute-problem"), error);
    }
  };
}

// The request that a state stands for: the page's own, or that of a pinned scenario.
export function planRequest(charts, values = state) {
  const body = { law: values.law || undefined, charts, rule: values.rule || undefined };
  for (const { name } of fields) if (values[name]) body[name] = values[name];
  if (values.continuous) body.continuous = true;
  else if (values.rungs) body.rungs = values.rungs.split(",");
  if (values.experts) body.experts = values.experts.split(",").map(Number);
  if (values.passes)
    body.recurrences = Array.from({ length: Math.max(1, Math.min(32, Number(values.passes) || 1)) }, (_, k) => k + 1);
  if (values.eps) body.eps = Number.isFinite(Number(values.eps)) ? Number(values.eps) : values.eps;
  for (const name of OVERRIDES) if (values[name]) body[name] = true;
  if (values.design) body.design = values.design;
  if (values.config) body.config = JSON.parse(values.config);
  return body;
}

export const lawNote = (law) => (law.rmse == null ? "states no RMSE" : `RMSE ${significant(law.rmse)}`);
