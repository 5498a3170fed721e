// The designs to choose from: sizes by experts by passes, in that order in every array of a grid.
import { DATA } from "./data.js";
import { ARCHITECTURES, COUNTS, EXPERTS } from "./formulas.js";
import { Refusal, count, labelOf } from "./quantities.js";

const rowsCache = new Map();

function rowOf(kind, width, E) {
  const key = `${kind} ${width} ${E}`;
  if (!rowsCache.has(key)) {
    const model = ARCHITECTURES[kind === "continuous" ? "between" : E === 1 ? "dense" : "mixture"];
    const x = { width, E };
    const row = { width, E, model };
    for (const name of COUNTS) row[name] = model[name](x);
    row.used = EXPERTS.used(x);
    row.there = EXPERTS.there(x);
    row.built = kind === "ladder";
    rowsCache.set(key, row);
  }
  return rowsCache.get(key);
}

function sizeRow(N) {
  return {
    width: null, layers: null, E: 1, active: N, loop: 0, total: N, embedding: 0, parameters: N, head: 0, used: 1,
    there: 1, model: null, built: false,
  }; // prettier-ignore
}

// Ends exactly at `low` and `high`, as NumPy's geomspace does.
export const geomspace = (low, high, length) =>
  Array.from({ length }, (_, k) =>
    k === 0 ? low : k === length - 1 ? high : 10 ** (Math.log10(low) + ((Math.log10(high) - Math.log10(low)) * k) / (length - 1)),
  );

const spaces = new Map();

// `sizes` are names of rungs, widths or parameter counts, by kind.
export function makeSpace(kind, sizes, experts, recurrences, free) {
  const key = `${kind} ${sizes.length > 60 ? [sizes[0], sizes.at(-1), sizes.length] : sizes} ${experts} ${recurrences} ${free}`;
  if (!spaces.has(key)) {
    const names =
      kind === "ladder" ? sizes : kind === "continuous" ? sizes.map((d) => `d${d.toFixed(0)}`) : sizes.map((n) => count(n));
    const rows = sizes.flatMap((each) =>
      experts.map((E) =>
        kind === "sizes" ? sizeRow(each) : rowOf(kind, kind === "ladder" ? DATA.extended[each] : each, E),
      ),
    );
    if (spaces.size > 60) spaces.clear();
    spaces.set(key, { kind, sizes, names, experts, recurrences, free, rows, S: sizes.length, K: experts.length, P: recurrences.length });
  }
  return spaces.get(key);
}

const rising = (values) => [...new Set(values)].sort((a, b) => a - b);

// The designs to choose from. Without a choice, those that suit the law, which a search may extend.
export function spaceOf(law, { rungs, continuous, experts, recurrences } = {}) {
  for (const [field, symbol, only, values] of [
    ["experts", "experts", law.onlyExperts, experts],
    ["passes", "passes", law.onlyRecurrence, recurrences],
  ]) {
    const other = only === null ? undefined : values?.find((value) => value !== only);
    if (other !== undefined)
      throw new Refusal(`the law ${law.name} has no term for ${symbol}, so it cannot answer for ${other}`, field);
  }
  const K = rising(experts ?? (law.onlyExperts === null ? DATA.experts : [law.onlyExperts]));
  const P = rising(recurrences ?? (law.onlyRecurrence === null ? DATA.recurrences : [law.onlyRecurrence]));
  const chosen = rungs || continuous || experts || recurrences;
  if (!chosen && K.length === 1 && K[0] === 1 && P.length === 1 && P[0] === 1)
    return makeSpace("sizes", geomspace(...DATA.sizes), K, P, []);
  const free = [!rungs && "size", !experts && "experts", !recurrences && "recurrence"].filter(Boolean);
  if (continuous) return makeSpace("continuous", geomspace(...DATA.continuous), K, P, free);
  return makeSpace("ladder", rungs ?? Object.keys(DATA.rungs), K, P, free);
}

export function extended(space, upward) {
  if (!space.free.includes("size")) return null;
  let more = [];
  if (space.kind === "ladder") {
    const ladder = Object.keys(DATA.extended);
    const first = ladder.indexOf(space.sizes[0]);
    const next = ladder.indexOf(space.sizes.at(-1)) + 1;
    more = upward ? ladder.slice(next, next + 12) : ladder.slice(0, first);
  } else if (space.kind === "continuous") {
    const [low, high, length] = DATA.continuous;
    const step = Math.log(high / low) / (length - 1);
    const factors = Array.from({ length: Math.floor(length / 2) - 1 }, (_, k) => Math.exp((k + 1) * step));
    const widths = upward
      ? factors.map((f) => space.sizes.at(-1) * f)
      : factors.toReversed().map((f) => space.sizes[0] / f);
    more = widths.filter((width) => width >= 64 && width <= 65536);
  }
  if (!more.length) return null;
  const sizes = upward ? [...space.sizes, ...more] : [...more, ...space.sizes];
  return makeSpace(space.kind, sizes, space.experts, space.recurrences, space.free);
}

// Sizes for a map where all sizes are allowed: every twelfth, which a pixel cannot tell from all of them.
export function mapSpace(law, options) {
  const space = spaceOf(law, options);
  if (space.kind !== "continuous" && space.kind !== "sizes") return space;
  const [low, high] = space.kind === "continuous" ? [64, DATA.continuous[1] * 4] : [space.sizes[0], space.sizes.at(-1)];
  return makeSpace(space.kind, geomspace(low, high, space.kind === "continuous" ? 64 : 400), space.experts, space.recurrences, []);
}

// Which size a design of a grid has, and the counts of its model, which passes do not change.
export const sizeOf = (space, flat) => Math.floor(flat / (space.K * space.P));

// Parameters that a token uses, embeddings included.
export const activeSize = ({ parameters, total, active }) => parameters - total + active;

export const rowAt = (space, flat) => space.rows[Math.floor(flat / space.P)];

export function labelAt(space, flat) {
  const row = rowAt(space, flat);
  return labelOf(space.names[sizeOf(space, flat)], row.used, row.there, space.recurrences[flat % space.P]);
}
