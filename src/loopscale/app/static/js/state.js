// What the page shows, as a link: everything that differs from the first view stands behind the #. Each committed change
// is an entry of the browser's history, so that Back undoes it.
import { packedLaw, unpackLaws } from "./laws.js";

// The budget's fields join these when the server has described them.
export const DEFAULTS = {
  view: "plan",
  law: "",
  rungs: "",
  experts: "",
  passes: "",
  eps: "",
  rule: "paper",
  continuous: "",
  extrapolate: "",
  allow_degenerate: "",
  design: "",
  config: "",
  iso: "recurrence",
  cost: "memory",
  table: "rivals",
  fit: "",
  pins: "",
};
const ALLOWED = {
  view: ["plan", "fit", "compare", "sweep"],
  rule: ["paper", "loss"],
  iso: ["recurrence", "size", "experts"],
  cost: ["memory", "inference"],
  table: ["rivals", "candidates"],
  continuous: ["", "1"],
  extrapolate: ["", "1"],
  allow_degenerate: ["", "1"],
};
// What allows an answer that is withheld otherwise.
export const OVERRIDES = ["extrapolate", "allow_degenerate"];
// What makes a scenario: the budget, the law and the design space.
export const SCENARIO = [
  ...["law", "rungs", "experts", "passes", "eps", "rule", "continuous", ...OVERRIDES, "design", "config"],
];

export const state = { ...DEFAULTS };

// Every field of the budget is part of the state, under its own name.
export function describeBudget(fields) {
  for (const { name, first } of fields) {
    DEFAULTS[name] = first;
    SCENARIO.push(name);
  }
  Object.assign(state, DEFAULTS);
}
const listeners = new Set();

export const onChange = (listener) => listeners.add(listener);

// `draft` changes follow a drag or typing; the address changes once one is committed.
export function set(changes, { draft = false } = {}) {
  const before = { ...state };
  Object.assign(state, changes);
  if (!draft) commit();
  for (const listener of listeners) listener(changes, { draft, before });
}

export function commit() {
  const address = link();
  if (address === committed.address) return history.replaceState(null, "", address);
  committed.address = address;
  return history.pushState(null, "", address);
}
const committed = { address: null };

export function parameters(values = state, names = Object.keys(DEFAULTS)) {
  const changed = names.filter((name) => values[name] !== undefined && values[name] !== DEFAULTS[name]);
  return new URLSearchParams(changed.map((name) => [name, values[name]]));
}

export const pins = () => (state.pins ? JSON.parse(state.pins) : []);

function lawsInUse() {
  const named = [state.law, state.fit, ...pins().map((pin) => new URLSearchParams(pin.query).get("law") || "")];
  return [...new Set(named)].filter((id) => id.startsWith("own-"));
}

export function link() {
  const query = parameters();
  for (const id of lawsInUse()) if (packedLaw(id)) query.append("own", packedLaw(id));
  return `${location.pathname}${query.size ? "#" : ""}${query}`;
}

// A model of one's own is kept as the text of its config.json.
export function isObject(text) {
  try {
    return typeof JSON.parse(text) === "object";
  } catch {
    return false;
  }
}

export async function restore(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  await unpackLaws(query.getAll("own"));
  Object.assign(state, DEFAULTS);
  for (const [name, value] of query)
    if (name in DEFAULTS && (ALLOWED[name] ?? [value]).includes(value)) state[name] = value;
  if (!isObject(state.config)) state.config = "";
  try {
    if (!pins().every((pin) => typeof pin.query === "string")) state.pins = "";
  } catch {
    state.pins = "";
  }
  committed.address = link();
}
