// Controls of the budget: a text field with its unit, a slider, and the message where a value is refused.
import { make, write } from "./dom.js";
import { amountOf, parse } from "./quantities.js";
import { state, set } from "./state.js";

const rows = new Map();
let refused = null;

// A field of the budget as a row; rows follow the state until they are removed from the page.
export function fieldRow(field) {
  const id = `in-${field.name}`;
  const input = make("input", {
    type: "text", id, autocomplete: "off", spellcheck: "false", placeholder: field.none ?? "",
    "aria-describedby": `${id}-note`,
    oninput: () => change(field, input.value, true),
    onchange: () => change(field, input.value, false),
  }); // prettier-ignore
  const slider = make("input", {
    type: "range", min: 0, max: field.steps.length ? field.steps.length - 1 : 1000, step: 1, "aria-label": `${field.label}, slider`,
    oninput: () => change(field, textAt(field, Number(slider.value)), true),
    onchange: () => change(field, textAt(field, Number(slider.value)), false),
  }); // prettier-ignore
  const note = make("p", { class: "field-note", id: `${id}-note` });
  const clear =
    field.none === null
      ? null
      : make("button", { type: "button", class: "quiet clear", onclick: () => change(field, "", false), "aria-label": `${field.label}: no limit` }, "clear");
  const row = make(
    "div",
    { class: "field-row" },
    make("label", { for: id }, field.label),
    make("div", { class: "field-line" }, input, make("span", { class: "unit" }, field.unit), clear),
    slider,
    note,
  );
  rows.set(field.name, { field, row, input, slider, note, clear });
  showRow(rows.get(field.name), refused?.field === field.name ? refused : null);
  return row;
}

function change(field, text, draft) {
  const changes = { [field.name]: text.trim() };
  if (["memory", "bits", "context", "bandwidth"].includes(field.name) && !draft) changes.where = "";
  if (["flops", "real_flops"].includes(field.name)) Object.assign(changes, { gpus: "", days: "" });
  set(changes, { draft, control: field.name });
}

export function showRows(problem) {
  refused = problem;
  for (const [name, item] of rows) {
    if (!item.row.isConnected) rows.delete(name);
    else showRow(item, problem?.field === name ? problem : null);
  }
}

function showRow({ field, input, slider, note, clear, row }, problem) {
  const text = state[field.name] ?? "";
  if (document.activeElement !== input && input.value !== text) input.value = text;
  let value = null;
  try {
    if (text) value = parse(field, text);
  } catch {
    // the message says so
  }
  const at = placeOf(field, value ?? field.at);
  if (document.activeElement !== slider || Number(slider.value) !== at) slider.value = at;
  slider.setAttribute("aria-valuetext", value === null ? (field.none ?? "") : amountOf(field, value));
  row.classList.toggle("unset", !text);
  row.classList.toggle("bad", Boolean(problem));
  if (clear) clear.disabled = !text;
  write(note, problem ? `${problem.message.replaceAll("`", "")}.` : field.about);
  input.setAttribute("aria-invalid", String(Boolean(problem)));
}

function placeOf(field, value) {
  if (field.steps.length) {
    const nearest = field.steps.reduce((best, step, k) => (Math.abs(Math.log(step / value)) < Math.abs(Math.log(field.steps[best] / value)) ? k : best), 0);
    return nearest;
  }
  const share = Math.log(value / field.low) / Math.log(field.high / field.low);
  return Math.round(1000 * Math.min(Math.max(share, 0), 1));
}

function textAt(field, place) {
  return textOf(field, field.steps.length ? field.steps[place] : field.low * (field.high / field.low) ** (place / 1000));
}

// A value with few digits, as a person would write it.
export function textOf(field, value) {
  const rounded = Number(value.toPrecision(field.steps.length ? 6 : 2));
  return amountOf(field, rounded).replaceAll(",", "");
}
