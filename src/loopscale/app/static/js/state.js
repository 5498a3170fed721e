// What the page shows, as a link: everything that differs from the first view stands behind the #. A change is one entry
// of the browser's history; changes of one control within two seconds are one change.
import { DATA } from "./data.js";

const FIRST = Object.fromEntries(DATA.fields.map(({ name, first }) => [name, first]));
// The first view plans for a phone.
const PLACE = DATA.presets[0];
export const DEFAULTS = {
  view: "plan", law: "", rungs: "", experts: "", passes: "", eps: "", rule: "paper", continuous: "", extrapolate: "",
  allow_degenerate: "", design: "", where: PLACE.name, device: "", gpus: "", days: "", utilisation: "", fit: "", pins: "",
  lab: "", word: "", loops: "", ...FIRST, ...PLACE.limits,
}; // prettier-ignore
// Devices that the form suggests; a link with GPUs alone means these days.
export const DEVICES = { gpus: "8", days: "14" };
const ALLOWED = {
  view: ["plan", "fit", "lab", "compare", "sweep", "run"],
  lab: ["", "experts"],
  rule: ["paper", "loss"],
  where: ["", ...DATA.presets.map(({ name }) => name)],
};
// What makes a scenario, which a pin keeps.
export const SCENARIO = Object.keys(DEFAULTS).filter((name) => !["view", "fit", "pins", "lab", "word", "loops"].includes(name));

function sameLimits(limits, values) {
  return Object.entries(limits).every(([name, text]) => values[name] === text);
}

export const state = { ...DEFAULTS };
const listeners = new Set();
export const onChange = (listener) => listeners.add(listener);

const place = { entry: 0, newest: 0, control: "", at: 0, address: null };

// `draft` changes follow a drag; the address changes when it ends. `control` names what was used, so that its changes in
// quick succession are one entry.
export function set(changes, { draft = false, control = Object.keys(changes).join() } = {}) {
  Object.assign(state, changes);
  if (!draft) commit(control);
  for (const listener of listeners) listener(changes, { draft });
}

function commit(control = "") {
  const address = link();
  if (address === place.address) return;
  const now = Date.now();
  const joins = place.entry > 0 && control === place.control && now - place.at < 2000;
  Object.assign(place, { address, control, at: now });
  if (joins) history.replaceState({ entry: place.entry }, "", address);
  else {
    place.entry += 1;
    place.newest = place.entry;
    history.pushState({ entry: place.entry }, "", address);
  }
}

export const canUndo = () => place.entry > 0;
export const canRedo = () => place.entry < place.newest;

export function parameters(values = state, names = Object.keys(DEFAULTS)) {
  const changed = names.filter((name) => values[name] !== undefined && values[name] !== DEFAULTS[name]);
  return new URLSearchParams(changed.map((name) => [name, values[name]]));
}

// Readable: a link may hold these as they are.
const readable = (query) => String(query).replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%2F", "/");

export function link(names = Object.keys(DEFAULTS)) {
  const query = parameters(state, names);
  return `${location.pathname}${location.search}${query.size ? "#" : ""}${readable(query)}`;
}

export const pins = () => (state.pins ? JSON.parse(state.pins) : []);
export const scenarioOf = (query) => ({ ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(query)) });

export function restore(hash, entry = 0) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  Object.assign(state, DEFAULTS);
  for (const [name, value] of query)
    if (name in DEFAULTS && (ALLOWED[name] ?? [value]).includes(value)) state[name] = value;
  // A link that sets its budget was not made for the place of the first view.
  if (!query.has("where") && !sameLimits(PLACE.limits, state)) Object.assign(state, { where: "", bandwidth: query.get("bandwidth") ?? "" });
  if (state.gpus && !state.days) state.days = DEVICES.days;
  try {
    if (!pins().every((pin) => typeof pin.query === "string")) state.pins = "";
  } catch {
    state.pins = "";
  }
  place.entry = entry;
  place.newest = Math.max(place.newest, entry);
  place.control = "";
  place.address = link();
}
