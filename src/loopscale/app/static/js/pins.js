// Scenarios that one keeps: rings on the map, and columns of the Compare view. Two tabs keep one list.
import { realFlops } from "./cluster.js";
import { toast } from "./dom.js";
import { readStored, writeStored } from "./storage.js";
import { current, question, shown } from "./plan.js";
import { shortName } from "./quantities.js";
import { SCENARIO, parameters, pins, scenarioOf, set, state } from "./state.js";

const valid = (list) => list.filter((item) => typeof item?.query === "string" && typeof item?.name === "string");
const merged = (...lists) => [...new Map(valid(lists.flat()).map((item) => [item.query, item])).values()];

export function pin() {
  const query = String(parameters(state, SCENARIO));
  if (pins().some((other) => other.query === query)) return toast("This scenario is pinned already.");
  const budget = [state.gpus ? `${state.gpus} GPUs` : state.flops, state.memory, state.law.replace(/^own-/, "")].filter(Boolean).join(", ");
  const answered = !shown.problem && !shown.withheld; // else the design that is seen is that of another budget
  write(merged(readStored("pins"), pins(), [{ name: answered ? `${shortName(current().design)} (${budget})` : budget, query }]));
  return toast("Pinned: a ring on the map, a column in Compare.");
}

export function unpin(query) {
  write(pins().filter((item) => item.query !== query));
}

function write(list) {
  writeStored("pins", list);
  set({ pins: list.length ? JSON.stringify(list) : "" }, { control: "pins" });
}

// Another tab has pinned or removed something.
addEventListener("storage", (event) => {
  if (event.key !== "loopscale.pins") return;
  const list = valid(readStored("pins"));
  set({ pins: list.length ? JSON.stringify(list) : "" }, { draft: true });
});

export const keptPins = () => {
  const list = valid(readStored("pins"));
  return list.length ? JSON.stringify(list) : "";
};

export function pinnedPlaces() {
  return pins().flatMap(({ query }, k) => {
    try {
      const { limits, devices } = question(scenarioOf(query));
      const real = devices && { real_flops: realFlops(devices) };
      return [{ name: letter(k), limits: { ...limits, ...real } }];
    } catch {
      return [];
    }
  });
}
export const letter = (k) => String.fromCharCode(65 + (k % 26));
