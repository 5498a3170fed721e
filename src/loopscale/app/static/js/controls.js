// The budgets: each a text field, which takes what the command line takes, and a slider.
import { call } from "./api.js";
import { $, $$, make, problem } from "./dom.js";
import { holdAxes } from "./figure.js";
import { bytes, count, power, significant } from "./format.js";
import { explainTerms } from "./glossary.js";
import { lawList, lawOf } from "./laws.js";
import { DEFAULTS, set, state } from "./state.js";

const CONTEXTS = Array.from({ length: 12 }, (_, k) => 512 * 2 ** k);
const TYPING = 600;
export const SLIDERS = [
  {
    name: "flops",
    field: "flops",
    label: "Training compute",
    term: "compute",
    unit: "FLOPs",
    low: 1e18,
    high: 1e26,
    write: power,
  },
  {
    name: "memory",
    field: "memory",
    label: "Memory at inference",
    term: "memory",
    unit: "bytes",
    low: 1e8,
    high: 1e12,
    write: bytes,
    start: "3 GB",
    at: 3e9,
    none: "any",
  },
  {
    name: "bits",
    field: "bits",
    label: "Weights stored in",
    unit: "bits",
    steps: [2, 3, 4, 5, 6, 8, 16, 32],
    write: String,
  },
  {
    name: "context",
    field: "context",
    label: "Include KV cache for a context of",
    unit: "tokens",
    steps: CONTEXTS,
    write: String,
    start: "8192",
    at: 8192,
    none: "no",
  },
  {
    name: "tokens",
    field: "max_tokens",
    label: "Training tokens available",
    unit: "tokens",
    low: 1e9,
    high: 1e15,
    write: count,
    start: "500B",
    at: 5e11,
    none: "any",
  },
  {
    name: "serve",
    field: "serve_tokens",
    label: "Lifetime inference tokens",
    unit: "charged to the compute budget",
    low: 1e9,
    high: 1e16,
    write: count,
    start: "1T",
    at: 1e12,
    none: "none",
  },
  {
    name: "inference",
    field: "inference_flops",
    label: "Max inference FLOPs per token",
    term: "inference",
    unit: "FLOPs",
    low: 1e8,
    high: 1e12,
    write: count,
    start: "2B",
    at: 2e9,
    none: "any",
  },
];
const STEPS = 400;
let choices = null;

export function buildControls(known) {
  choices = known;
  $("#sliders").replaceChildren(...SLIDERS.map(control));
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
    max: spec.steps ? spec.steps.length - 1 : STEPS,
    step: 1,
    "aria-label": `${spec.label}, slider`,
    oninput: (event) => drag(spec, Number(event.target.value)),
    onchange: (event) => drop(spec, Number(event.target.value)),
  });
  const toggle =
    spec.none &&
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
  if (!spec || spec.steps || budget[spec.field] == null) return true;
  return budget[spec.field] >= spec.low && budget[spec.field] <= spec.high;
}

function slid(spec, position) {
  if (spec.steps) return String(spec.steps[position]);
  const value = spec.low * (spec.high / spec.low) ** (position / STEPS);
  return spec.write(Number(value.toPrecision(2)));
}

const position = (spec, value) =>
  spec.steps ? nearest(spec.steps, value) : (STEPS * Math.log(value / spec.low)) / Math.log(spec.high / spec.low);

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

export const showControl = (name) => show(SLIDERS.find((spec) => spec.name === name));

export function showControls() {
  for (const spec of SLIDERS) show(spec);
  fillLaws($("#law"), state.law);
  chips("#rungs", "rungs", choices.rungs);
  chips("#experts", "experts", choices.experts.map(String));
  $("#passes").value = state.passes;
  $("#eps").value = state.eps;
  $("#rule").value = state.rule;
  $("#own-model-name").textContent = state.config ? (JSON.parse(state.config).model_type ?? "config.json") : "";
  $("#drop-config").hidden = !state.config;
  const law = lawOf(state.law);
  $("#law-note").textContent = law ? law.about : "";
}

// Sliders follow the numbers that the server read from the text.
export function settle(budget) {
  for (const spec of SLIDERS) {
    const slider = $(`#in-${spec.name}-slider`);
    const value = budget[spec.field];
    if (document.activeElement !== slider) slider.value = position(spec, value ?? spec.at);
  }
}

const FIELDS = {
  ...Object.fromEntries(SLIDERS.map(({ field, label }) => [field, label])),
  "inference FLOPs": "Max inference FLOPs per token",
  rungs: "Sizes",
  experts: "Experts",
  recurrences: "Max passes",
  eps: "Minimum gain per step",
};

// What is wrong with a plan in the terms of the page: its controls, where the API names fields.
export function inPageTerms(error) {
  if (error.status === 404) error.message = "this law is not in this browser; choose another, or open its file";
  error.message = error.message
    .replace(/^([a-z_]+(?: FLOPs)?)(?:\.\d+)?: /, (whole, field) => (FIELDS[field] ? `${FIELDS[field]}: ` : whole))
    .replace(/^budget: /, "");
  return error;
}

// Puts what is wrong beside the field that it is about; returns whether there is one.
export function blame(error) {
  let placed = false;
  for (const spec of SLIDERS) {
    const row = $(`.control[data-name=${spec.name}]`);
    const mine = Boolean(error) && (error.field === spec.field || error.message.startsWith(`${spec.label}:`));
    $("input[type=text]", row).setAttribute("aria-invalid", String(mine));
    $(".said", row).textContent = mine ? error.message.replace(`${spec.label}: `, "") : "";
    placed ||= mine;
  }
  return placed;
}

export function chooseLaw(id) {
  const law = lawOf(id);
  // A law without an RMSE has no ε to judge steps by; the rule that needs none is chosen, and shown as chosen.
  set({ law: id, extrapolate: "", rule: law && law.rmse == null && !state.eps ? "loss" : "paper" });
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
    select.value = "";
    if (preset) set({ memory: "", context: "", ...preset.limits, where: preset.name });
  };
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
      set({ flops: power(flops) });
    } catch (error) {
      problem($("#compute-problem"), error);
    }
  };
}

// The request that a state stands for: the page's own, or that of a pinned scenario.
export function planRequest(charts, values = state) {
  const body = { law: values.law || undefined, charts, rule: values.rule || undefined };
  for (const spec of SLIDERS) if (values[spec.name]) body[spec.field] = values[spec.name];
  if (values.continuous) body.continuous = true;
  else if (values.rungs) body.rungs = values.rungs.split(",");
  if (values.experts) body.experts = values.experts.split(",").map(Number);
  if (values.passes)
    body.recurrences = Array.from({ length: Math.max(1, Math.min(32, Number(values.passes) || 1)) }, (_, k) => k + 1);
  if (values.eps) body.eps = Number.isFinite(Number(values.eps)) ? Number(values.eps) : values.eps;
  if (values.extrapolate) body.extrapolate = true;
  if (values.design) body.design = values.design;
  if (values.where) body.where = values.where;
  if (values.config) body.config = JSON.parse(values.config);
  return body;
}

export const lawNote = (law) => (law.rmse == null ? "states no RMSE" : `RMSE ${significant(law.rmse)}`);
