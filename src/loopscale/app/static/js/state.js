// What the page shows, as a link: everything that differs from the first sight stands behind the #.
import { packLaws, unpackLaws } from "./laws.js";

export const DEFAULTS = {
  view: "plan",
  law: "",
  flops: "5e21",
  memory: "3 GB",
  bits: "4",
  context: "",
  tokens: "",
  serve: "",
  inference: "",
  rungs: "",
  experts: "",
  passes: "10",
  eps: "",
  rule: "paper",
  continuous: "",
  iso: "recurrence",
  cost: "memory",
  table: "rivals",
  lawA: "",
  lawB: "",
  designA: "",
  designB: "",
};
// What a link may say of these; anything else is as if it were not said.
const ALLOWED = {
  view: ["plan", "fit", "compare"],
  rule: ["paper", "loss"],
  iso: ["recurrence", "size", "experts"],
  cost: ["memory", "inference"],
  table: ["rivals", "candidates"],
  continuous: ["", "1"],
};
const LAWS = ["law", "lawA", "lawB"];

export const state = { ...DEFAULTS };
const listeners = new Set();

export const onChange = (listener) => listeners.add(listener);

export function set(changes) {
  Object.assign(state, changes);
  remember();
  for (const listener of listeners) listener(changes);
}

function parameters() {
  const changed = Object.entries(state).filter(([name, value]) => name in DEFAULTS && value !== DEFAULTS[name]);
  return new URLSearchParams(changed.map(([name, value]) => [name, value]));
}

// The address follows the state, a little later: a drag would write it too often.
export function remember() {
  clearTimeout(remember.timer);
  remember.timer = setTimeout(async () => history.replaceState(null, "", await link()), 150);
}

export async function link() {
  const given = parameters();
  const own = await packLaws([...new Set(LAWS.map((name) => state[name]))].filter((id) => id.startsWith("own-")));
  for (const packed of own) given.append("own", packed);
  return `${location.pathname}${given.size ? "#" : ""}${given}`;
}

export async function restore(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const renamed = await unpackLaws(given.getAll("own"));
  Object.assign(state, DEFAULTS);
  for (const [name, value] of given)
    if (name in DEFAULTS && (ALLOWED[name] ?? [value]).includes(value)) state[name] = value;
  for (const name of LAWS) state[name] = renamed.get(state[name]) || state[name];
}
