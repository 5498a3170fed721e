// A budget as a search reads it: every field of it that is set, and what changes nothing for the others.
import { DATA } from "./data.js";
import { Refusal } from "./quantities.js";

const NEUTRAL = {
  flops: Infinity, real_flops: Infinity, max_tokens: Infinity, serve_tokens: 0, context: 0, cache: 0,
  kept_passes: Infinity, kept_window: Infinity,
}; // prettier-ignore

export const FIELD = Object.fromEntries(DATA.fields.map((field) => [field.name, field]));

// Fields that change nothing, because none of those that they count with is set.
export const idleFields = (set) =>
  DATA.fields
    .filter(({ name, counts_with: others, default: none }) => others.length && set[name] !== undefined && set[name] !== none && others.every((other) => set[other] === undefined))
    .map(({ name }) => name);

// A budget by field; what is not set gets the value that changes nothing in a formula.
export function budgetOf(values) {
  const set = {};
  for (const field of DATA.fields) {
    const value = values[field.name] ?? field.default;
    if (value !== null && value !== undefined) set[field.name] = value;
  }
  if (set.flops === undefined && set.real_flops === undefined && set.tokens === undefined)
    throw new Refusal("give training compute or training tokens", "flops");
  if (set.tokens !== undefined && set.max_tokens !== undefined)
    throw new Refusal("give fixed training tokens or tokens available, not both", "max_tokens");
  if (set.kept_passes !== undefined && set.kept_window !== undefined)
    throw new Refusal("give passes that keep a cache or positions that they keep, not both", "kept_window");
  if (set.min_speed !== undefined && set.bandwidth === undefined)
    throw new Refusal("a speed is that of a device", "min_speed", "choose a device or give its memory bandwidth");
  return { ...NEUTRAL, ...set, set };
}
