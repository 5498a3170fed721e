// Scenarios: answers that one keeps, to compare them side by side.
import { toast } from "./dom.js";
import { keep, kept } from "./kept.js";
import { DEFAULTS, SCENARIO, parameters, pins, set } from "./state.js";

// A pin holds the scenario as a query, like a link does; `design` fixes one design, else the best one is shown.
export function pin(values, design, name) {
  const query = String(parameters({ ...values, design }, SCENARIO));
  if (pins().some((other) => other.query === query)) return toast("This scenario is pinned already.");
  write([...pins(), { name: named(values, name), query }]);
  return toast("Pinned. The Compare view shows it.");
}

function named(values, name) {
  const budget = ["flops", "memory", "max_tokens"].filter((field) => values[field]).map((field) => values[field]);
  return `${name} (${budget.join(", ")})`;
}

export function unpin(index) {
  write(pins().filter((_, k) => k !== index));
}

export function rename(index, name) {
  write(pins().map((other, k) => (k === index ? { ...other, name } : other)));
}

function write(list) {
  keep("pins", list);
  set({ pins: list.length ? JSON.stringify(list) : "" });
}

export const keptPins = () => {
  const list = kept("pins").filter((item) => typeof item?.query === "string" && typeof item?.name === "string");
  return list.length ? JSON.stringify(list) : "";
};

export const scenarioOf = (query) => ({ ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(query)) });
