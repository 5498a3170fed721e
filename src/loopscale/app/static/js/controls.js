// The budgets: each a text field, which takes what the command line takes, and a slider.
import { $, $$, make } from "./dom.js";
import { bytes, count, power, significant } from "./format.js";
import { DEFAULTS, set, state } from "./state.js";
import { lawList, lawOf } from "./laws.js";

const CONTEXTS = Array.from({ length: 12 }, (_, k) => 512 * 2 ** k);
export const SLIDERS = [
  { name: "flops", field: "flops", label: "Training compute", unit: "FLOPs", low: 1e18, high: 1e26, write: power },
  {
    name: "memory",
    field: "memory",
    label: "Memory at inference",
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
    label: "Context whose KV cache must fit too",
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
    label: "Training tokens there are",
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
    label: "Tokens served over its life",
    unit: "tokens, paid from compute",
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
    label: "A generated token costs at most",
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

export function buildControls() {
  $("#sliders").replaceChildren(...SLIDERS.map(control));
  $("#law").onchange = (event) => chooseLaw(event.target.value);
  $("#passes").onchange = (event) => set({ passes: event.target.value || DEFAULTS.passes });
  $("#eps").onchange = (event) => set({ eps: event.target.value.trim() });
  $("#rule").onchange = (event) => set({ rule: event.target.value });
  $("#reset").onclick = () => set({ ...DEFAULTS, view: "plan" });
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
    oninput: (event) => change(spec, event.target.value.trim()),
  });
  const slider = make("input", {
    type: "range",
    id: `${id}-slider`,
    min: 0,
    max: spec.steps ? spec.steps.length - 1 : STEPS,
    step: 1,
    "aria-label": `${spec.label}, slider`,
    oninput: (event) => change(spec, slid(spec, Number(event.target.value)), true),
  });
  const toggle =
    spec.none &&
    make("input", {
      type: "checkbox",
      class: "switch",
      "aria-label": `Limit: ${spec.label}`,
      onchange: (event) => change(spec, event.target.checked ? spec.start : "", true),
    });
  return make(
    "div",
    { class: "control", "data-name": spec.name },
    make("div", { class: "row" }, toggle, make("label", { for: id }, spec.label)),
    make("div", { class: "row entry" }, slider, text, make("span", { class: "unit" }, spec.unit)),
    make("p", { class: "said", id: `${id}-said` }),
  );
}

function change(spec, value, rewrite = false) {
  set({ [spec.name]: value });
  show(spec, rewrite);
}

function slid(spec, at) {
  if (spec.steps) return String(spec.steps[at]);
  const value = spec.low * (spec.high / spec.low) ** (at / STEPS);
  return spec.write(Number(value.toPrecision(2)));
}

const place = (spec, value) =>
  spec.steps ? nearest(spec.steps, value) : (STEPS * Math.log(value / spec.low)) / Math.log(spec.high / spec.low);

// A text is left alone while somebody writes in it.
function show(spec, rewrite = true) {
  const row = $(`.control[data-name=${spec.name}]`);
  const [text, slider, toggle] = [$("input[type=text]", row), $("input[type=range]", row), $(".switch", row)];
  const value = state[spec.name];
  if (rewrite || document.activeElement !== text) text.value = value;
  if (toggle) toggle.checked = value !== "";
  row.classList.toggle("off", value === "");
  slider.setAttribute("aria-valuetext", value || spec.none || "");
}

export function showControls() {
  for (const spec of SLIDERS) show(spec);
  fillLaws($("#law"), state.law);
  chips("#rungs", "rungs", showControls.choices.rungs);
  chips("#experts", "experts", showControls.choices.experts.map(String));
  $("#passes").value = state.passes;
  $("#eps").value = state.eps;
  $("#rule").value = state.rule;
  const law = lawOf(state.law);
  $("#law-note").textContent = law
    ? `${law.source ? `${law.source}. ` : ""}${law.form[0].toUpperCase()}${law.form.slice(1)}. ${law.rmse == null ? "States no RMSE" : `RMSE ${significant(law.rmse)}`}${
        law.resamples ? `; ${law.resamples} resampled laws tell how sure the choice is.` : "."
      }`
    : "";
}

// Sliders follow the numbers that the server read from the text.
export function settle(budget) {
  for (const spec of SLIDERS) {
    const slider = $(`#in-${spec.name}-slider`);
    const value = budget[spec.field];
    if (document.activeElement !== slider) slider.value = place(spec, value ?? spec.at);
  }
}

export function blame(error) {
  for (const spec of SLIDERS) {
    const row = $(`.control[data-name=${spec.name}]`);
    const mine = Boolean(error) && (error.field === spec.field || error.message.startsWith(`${spec.field}:`));
    $("input[type=text]", row).setAttribute("aria-invalid", String(mine));
    $(".said", row).textContent = mine ? error.message.replace(/^[a-z_ ]+: /i, "") : "";
  }
}

export function chooseLaw(id) {
  const law = lawOf(id);
  // A law without an RMSE has no eps to judge steps by; the rule that needs none is chosen where all can see it.
  set({ law: id, rule: law && law.rmse == null && !state.eps ? "loss" : "paper" });
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
        title: "All sizes between 256 and 4096 wide, buildable or not",
        onclick: () => set({ continuous: state.continuous ? "" : "1" }),
      },
      "all between",
    ),
  );
  $$(".chip", $(selector))
    .slice(0, -1)
    .forEach((chip) => {
      chip.disabled = state.continuous === "1";
    });
}

function toggleChip(name, value, all, chosen) {
  const now = all.filter((each) => (each === value ? !chosen.includes(each) : chosen.includes(each)));
  if (now.length) set({ [name]: now.length === all.length ? "" : now.join(",") });
}

function nearest(steps, value) {
  const away = steps.map((step) => Math.abs(Math.log(step / value)));
  return away.indexOf(Math.min(...away));
}

// The request that the state stands for.
export function budgetRequest() {
  const body = { law: state.law || undefined };
  for (const spec of SLIDERS) if (state[spec.name]) body[spec.field] = state[spec.name];
  if (body.context) body.context = whole(body.context);
  return body;
}

export function planRequest(charts) {
  const body = { ...budgetRequest(), charts, rule: state.rule };
  if (state.continuous) body.continuous = true;
  else if (state.rungs) body.rungs = state.rungs.split(",");
  if (state.experts) body.experts = state.experts.split(",").map(Number);
  body.recurrences = Array.from({ length: Math.max(1, Math.min(32, Number(state.passes) || 1)) }, (_, k) => k + 1);
  if (state.eps) body.eps = Number.isFinite(Number(state.eps)) ? Number(state.eps) : state.eps;
  return body;
}

const whole = (text) => (Number.isInteger(Number(text)) ? Number(text) : text);
