// The search for a design, as loopscale.planning does it. Every formula in it is generated from the Python functions
// (formulas.js); what stands here is the loop around them, which a test compares with Python.
import { Cluster, realFlops } from "./cluster.js";
import { DATA } from "./data.js";
import { Refusal, bytes, cardSize, count, filled, fixed, general, labelOf, times, written } from "./quantities.js";
import {
  ARCHITECTURES, COSTS, FORMS, GAINS, LIMITS, STEPS, activeRatio, effective, predictiveHigh, predictiveLow, rangeFactor,
  rangeOutside,
} from "./formulas.js"; // prettier-ignore

const NODE = new Cluster();

// ---- laws ----

// A law file, with what a search looks up many times.
export function preparedLaw(file) {
  const outer = DATA.outers[file.outer];
  const mapping = DATA.mappings[file.mapping];
  if (!outer || !mapping)
    throw new Refusal(`the page has no form for the law ${file.name}`, "law", "plan with the command line instead");
  const names = [...outer.names, ...mapping.names];
  const only = ([low, high]) => (low !== null && low === high ? low : 1);
  return {
    ...file,
    names,
    form: file.form ?? `${outer.title}, ${mapping.title}`,
    eps: file.noise ?? file.rmse,
    c: file.coefficients,
    rows: file.resamples ? file.resamples.map((row) => Object.fromEntries(names.map((n, k) => [n, row[k]]))) : null,
    loops: mapping.loops,
    ratio: mapping.ratio,
    unique: outer.unique,
    embeddings: file.counts === "with-embeddings",
    onlyExperts: outer.experts ? null : only(file.range.experts),
    onlyRecurrence: mapping.loops ? null : Math.trunc(only(file.range.recurrence)),
    basis: file.basis ?? (file.resampled_by || "resampled laws"),
    stated: DATA.axes.every((axis) => !file.range[axis].includes(null)),
    uncertainty:
      file.uncertainty ??
      (file.resamples
        ? `from ${file.resampled_by || `${file.resamples.length} resampled laws`}`
        : file.fitted
          ? "not estimated: the law was fitted without resampling"
          : "not published"),
  };
}

// Repeated tokens count for less, as Muennighoff et al. measured; a law that knows repetition stays as it is.
function withRepetition(law) {
  if (law.unique) return law;
  const R_D = DATA.repetition;
  return {
    ...law,
    outer: `${law.outer}+repetition`,
    unique: true,
    c: { ...law.c, R_D },
    rows: law.rows && law.rows.map((row) => ({ ...row, R_D })),
  };
}

// What the law is evaluated on, in its own units.
class Inputs {
  constructor(law, x, tokens, unique) {
    const extra = law.embeddings ? x.embedding : 0;
    const active = x.active + extra;
    this.N = active / law.units.parameters;
    this.D = 0;
    this.E = x.E;
    this.R = x.R;
    this.m = law.ratio ? activeRatio({ active, total: x.total + extra }) : 1;
    this.loop = law.loops ? x.loop / law.units.parameters : 0;
    this.U = 0;
    this.train(law, tokens, unique);
  }

  train(law, tokens, unique) {
    this.D = tokens / law.units.tokens;
    this.U = Math.min(unique ?? tokens, tokens) / law.units.tokens;
  }
}

export function lossAt(law, c, x) {
  const N = law.loops ? effective(x.N, x.loop, GAINS[law.mapping](c, x.R, x.m)) : x.N;
  return FORMS[law.outer](c, N, x);
}

// ---- budgets ----

const NEUTRAL = {
  flops: Infinity, real_flops: Infinity, max_tokens: Infinity, serve_tokens: 0, context: 0, cache: 0,
  kept_passes: Infinity, kept_window: Infinity,
}; // prettier-ignore

const fieldCalled = (name) => DATA.fields.find((field) => field.name === name);

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

// ---- spaces ----

const rowsCache = new Map();
function rowOf(kind, width, E) {
  const key = `${kind} ${width} ${E}`;
  if (!rowsCache.has(key)) {
    const model = ARCHITECTURES[kind === "continuous" ? "between" : E === 1 ? "dense" : "mixture"];
    const x = { width, E };
    const row = { width, E, model };
    for (const name of ["active", "loop", "total", "embedding", "parameters", "layers", "head"]) row[name] = model[name](x);
    row.used = E === 1 ? 1 : 2;
    row.there = E === 1 ? 1 : 2 * E;
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

const geometric = (low, high, length) =>
  Array.from({ length }, (_, k) =>
    k === 0 ? low : k === length - 1 ? high : 10 ** (Math.log10(low) + ((Math.log10(high) - Math.log10(low)) * k) / (length - 1)),
  );

const spaces = new Map();
// `sizes` are names of rungs, widths or parameter counts, by kind.
function makeSpace(kind, sizes, experts, recurrences, free) {
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
    return makeSpace("sizes", geometric(...DATA.sizes), K, P, []);
  const free = [!rungs && "size", !experts && "experts", !recurrences && "recurrence"].filter(Boolean);
  if (continuous) return makeSpace("continuous", geometric(...DATA.continuous), K, P, free);
  return makeSpace("ladder", rungs ?? Object.keys(DATA.rungs), K, P, free);
}

function extended(space, upward) {
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

// ---- the grid ----

const limitsOf = (b) =>
  LIMITS.filter(
    (limit) => limit.needs.every((name) => b.set[name] !== undefined) && limit.forbids.every((name) => b.set[name] === undefined),
  );

const fieldOf = (limit, b) => (b.set.flops === undefined && b.set.real_flops !== undefined ? limit.otherwise : limit.field);

// One design as formulas read it. Its fields are always the same, in the same order: engines are fast on such objects.
class Candidate {
  constructor(row, R) {
    this.width = row.width;
    this.layers = row.layers;
    this.E = row.E;
    this.active = row.active;
    this.loop = row.loop;
    this.total = row.total;
    this.embedding = row.embedding;
    this.parameters = row.parameters;
    this.head = row.head;
    this.used = row.used;
    this.there = row.there;
    this.model = row.model;
    this.built = row.built;
    this.R = R;
    this.tokens = 1;
    this.real = 0;
    this.kv_bytes = 0;
    this.kv_of_one = 0;
    this.bytes_per_token = 0;
    this.overhead = 1;
    this.inputs = null;
  }

  // `overhead` is what training takes on devices for each FLOP; infinite where it does not fit them.
  static under(row, R, b, overhead) {
    const x = new Candidate(row, R);
    x.overhead = overhead;
    if (b.set.real_flops !== undefined) x.real = x.model ? x.model.real(x) : COSTS.train_flops(x);
    if (b.set.context !== undefined) {
      if (!x.model) throw new Refusal("a model known by its size alone has no KV cache", "context", "leave the context out");
      x.kv_bytes = x.model.kv_bytes(x, b);
      x.kv_of_one = x.model.kv_of_one(x, b);
    }
    x.bytes_per_token = b.set.kept_passes === undefined ? COSTS.bytes_read(x, b) : COSTS.bytes_read_shared(x, b);
    x.tokens = tokensOf(x, b);
    return x;
  }
}

function tokensOf(x, b) {
  if (b.set.tokens !== undefined) return b.set.tokens;
  const { real } = x;
  if (Number.isFinite(x.overhead)) x.real = real * x.overhead;
  const tokens = COSTS.tokens(x, b);
  x.real = real;
  return tokens;
}

const overheadKey = (name, E, R) => `${name} ${E} ${R}`;
const overheadAt = (overheads, space, flat, R) =>
  overheads?.get(overheadKey(space.names[sizeOf(space, flat)], space.rows[Math.floor(flat / space.P)].E, R)) ?? 1;

// Not a field of the budget: set where devices were asked.
const DEVICES = { ...DATA.devicesLimit, need: (x) => (Number.isFinite(x.overhead) ? 1 : 2), cap: () => 1, unit: "times" };

// Losses, gains and limits of every design; arrays run over sizes, experts and passes.
export function evaluate(law, space, b, { eps, rule, overheads }) {
  const length = space.rows.length * space.P;
  const grid = {
    law, space, b, eps, rule, overheads, length, limits: [...(overheads?.size ? [DEVICES] : []), ...limitsOf(b)], designs: new Array(length),
    loss: new Float64Array(length), passGain: new Float64Array(length), expertGain: new Float64Array(length),
    memory: new Float64Array(length), met: new Uint8Array(length), usable: new Uint8Array(length),
  }; // prettier-ignore
  for (let flat = 0; flat < length; flat++) {
    const R = space.recurrences[flat % space.P];
    const x = Candidate.under(space.rows[Math.floor(flat / space.P)], R, b, overheadAt(overheads, space, flat, R));
    x.inputs = new Inputs(law, x, Math.max(x.tokens, 1), b.set.unique_tokens);
    grid.designs[flat] = x;
    grid.memory[flat] = COSTS.memory(x, b);
    grid.met[flat] = meets(grid, x);
  }
  fillLosses(grid, law.c);
  return grid;
}

function meets({ limits, b }, x) {
  if (!(x.tokens >= 1)) return false;
  for (const limit of limits) if (!(limit.need(x, b) <= limit.cap(x, b) * DATA.slack)) return false;
  return true;
}

// The same designs with another compute, which changes their tokens and losses and nothing else.
function spend(grid, b) {
  grid.b = b;
  grid.designs.forEach((x, flat) => {
    x.tokens = tokensOf(x, b);
    x.inputs.train(grid.law, Math.max(x.tokens, 1), b.set.unique_tokens);
    grid.met[flat] = meets(grid, x);
  });
  fillLosses(grid, grid.law.c);
}

function fillLosses(grid, c) {
  const { law, space, b, length, loss, passGain, expertGain, usable, eps, rule, designs, met } = grid;
  const { K, P, recurrences } = space;
  for (let flat = 0; flat < length; flat++)
    loss[flat] = designs[flat].tokens >= 1 ? lossAt(law, c, designs[flat].inputs) : Infinity;
  for (let flat = 0; flat < length; flat++) {
    const p = flat % P;
    const k = Math.floor(flat / P) % K;
    passGain[flat] = p === 0 ? Infinity : (recurrences[p - 1] === recurrences[p] - 1 ? loss[flat - 1] : lossBefore(grid, flat, c)) - loss[flat];
    expertGain[flat] = k === 0 ? Infinity : loss[flat - P] - loss[flat];
    const admissible = Number.isFinite(loss[flat]) && (rule === "loss" || (passGain[flat] >= eps && expertGain[flat] >= eps));
    usable[flat] = admissible && met[flat];
  }
}

// The loss with one pass fewer, where that number of passes is not searched.
function lossBefore({ law, space, b, overheads }, flat, c) {
  const R = space.recurrences[flat % space.P] - 1;
  const x = Candidate.under(space.rows[Math.floor(flat / space.P)], R, b, overheadAt(overheads, space, flat, R));
  return x.tokens >= 1 ? lossAt(law, c, new Inputs(law, x, Math.max(x.tokens, 1), b.set.unique_tokens)) : Infinity;
}

// The usable design of lowest loss; of equal ones that of least memory. -1 where none is left.
function optimum({ usable, loss, memory, length }) {
  let best = -1;
  for (let flat = 0; flat < length; flat++) {
    if (!usable[flat]) continue;
    if (best < 0 || loss[flat] < loss[best] || (loss[flat] === loss[best] && memory[flat] < memory[best])) best = flat;
  }
  return best;
}

const sizeOf = (space, flat) => Math.floor(flat / (space.K * space.P));

function edgesOf(space, flat) {
  const s = sizeOf(space, flat);
  const k = Math.floor(flat / space.P) % space.K;
  const p = flat % space.P;
  const active = Array.from({ length: space.S }, (_, each) => space.rows[each * space.K].active);
  const along = {
    size: [active, s, space.names[s]],
    experts: [space.experts, k, space.experts[k]],
    recurrence: [space.recurrences, p, space.recurrences[p]],
  };
  const found = [];
  for (const [axis, [values, index, value]] of Object.entries(along)) {
    if (values.length === 1) continue;
    const least = Math.min(...values);
    const ends = { high: Math.max(...values), low: axis !== "size" && least === 1 ? -Infinity : least };
    for (const [side, end] of Object.entries(ends))
      if (values[index] === end)
        found.push({ axis, side, value, set_by: space.free.includes(axis) || space.kind === "sizes" ? "search" : "you" });
  }
  return found;
}

function bestDesign(law, space, b, rules) {
  for (;;) {
    const grid = evaluate(law, space, b, rules);
    const pick = optimum(grid);
    const s = sizeOf(space, pick);
    const edge = pick < 0 || (space.S > 1 && (s === 0 || s === space.S - 1));
    const wider = edge ? extended(space, pick >= 0 && s === space.S - 1) : null;
    if (!wider) {
      if (pick < 0) throw nothingFits(grid);
      return [grid, pick];
    }
    space = wider;
  }
}

function nothingFits(grid) {
  const { b, designs, space } = grid;
  for (const limit of grid.limits) {
    const needs = designs.map((x) => limit.need(x, b));
    if (designs.some((x, flat) => needs[flat] <= limit.cap(x, b) * DATA.slack)) continue;
    let flat = 0;
    for (let k = 1; k < needs.length; k++) if (needs[k] < needs[flat]) flat = k;
    const need = writeNeed(limit, limit.amount ? limit.amount(needs[flat]) : needs[flat], 3);
    const empty = limit.empty.replace(/\{(\w+)\}/g, (_, name) => written(DATA.fields.find((field) => field.name === name), b[name]));
    return new Refusal(empty, fieldOf(limit, b), filled(limit.closest, { need, candidate: labelAt(space, flat) }));
  }
  return new Refusal("no candidate meets all limits together", "", "loosen one of them");
}

// ---- designs ----

export function labelAt(space, flat) {
  const row = space.rows[Math.floor(flat / space.P)];
  return labelOf(space.names[sizeOf(space, flat)], row.used, row.there, space.recurrences[flat % space.P]);
}

// How far the law can be trusted at a design: the level alone, for many designs.
export function levelOf(law, x) {
  const at = [x.N * law.units.parameters, x.D * law.units.tokens, x.E, x.R];
  let worst = 1;
  for (let k = 0; k < 4; k++) {
    const [low, high] = law.range[DATA.axes[k]];
    worst = Math.max(worst, rangeFactor(low ?? 0, high ?? Infinity, at[k]));
  }
  const names = Object.keys(DATA.trust);
  const least = law.degenerate.length ? "far" : law.stated ? "inside" : "near";
  const place = names.findIndex((level) => worst <= (DATA.trust[level] ?? Infinity));
  return names[Math.max(place, names.indexOf(least))];
}

export function trustOf(law, x) {
  const at = { size: x.N * law.units.parameters, tokens: x.D * law.units.tokens, experts: x.E, recurrence: x.R };
  const factors = {};
  const reasons = [];
  const extrapolated = [];
  for (const axis of DATA.axes) {
    const [low, high] = law.range[axis];
    const ends = [low ?? 0, high ?? Infinity];
    factors[axis] = rangeFactor(...ends, at[axis]);
    if (rangeOutside(...ends, at[axis])) extrapolated.push(axis);
    if (factors[axis] > 1) reasons.push(outsideText(axis, law.range[axis], at[axis], factors[axis]));
    else if (low === null || high === null) reasons.push(`the law's source does not state the whole fitted range of ${axis}`);
  }
  if (law.unique && rangeOutside(law.range.epochs?.[0] ?? 0, law.range.epochs?.[1] ?? Infinity, x.D / x.U)) extrapolated.push("epochs");
  for (const reason of law.degenerate) reasons.push(`the law is degenerate: ${reason}`);
  return { level: levelOf(law, x), reasons, factors, extrapolated };
}

function outsideText(axis, [low, high], value, factor) {
  const fitted = low === null ? `up to ${count(high)}` : high === null ? `from ${count(low)}` : `${count(low)} to ${count(high)}`;
  const side = low !== null && value < low ? "below" : "past";
  const named = { size: `size ${count(value)}`, experts: `experts E = ${count(value)}`, recurrence: `recurrence R = ${count(value)}` };
  return `${named[axis] ?? `${count(value)} ${axis}`} is ${times(factor)} ${side} the fitted range (${fitted})`;
}

function decadesOutside(law, x) {
  const at = [x.N * law.units.parameters, x.D * law.units.tokens, x.E, x.R];
  const spans = DATA.axes.map((axis) => law.range[axis]);
  if (law.unique) {
    at.push(x.D / x.U);
    spans.push(law.range.epochs ?? [null, null]);
  }
  const decades = at.map((value, k) => Math.log10(rangeFactor(spans[k][0] ?? 0, spans[k][1] ?? Infinity, value)));
  return decades.reduce((sum, each) => sum + Math.min(each, DATA.mostDecades), 0);
}

// NumPy's quantile: linear between the two nearest values.
export function quantile(values, share) {
  const sorted = Float64Array.from(values).sort();
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  const part = at - low;
  const [a, b] = [sorted[low], sorted[Math.min(low + 1, sorted.length - 1)]];
  return part >= 0.5 ? b - (b - a) * (1 - part) : a + (b - a) * part;
}

// The 90% interval of the loss of one design, of a new run where the law knows its spread, else of the law alone; none
// more than 10x beyond the data: how the law alone errs there is not known.
export function intervalOf(law, x) {
  if ((!law.rows && !law.spread) || levelOf(law, x.inputs) === "beyond") return null;
  const losses = law.rows?.map((c) => lossAt(law, c, x.inputs));
  const { basis } = law;
  if (!law.spread) return { low: quantile(losses, 0.05), high: quantile(losses, 0.95), level: 0.9, kind: "law", basis };
  const logs = losses?.map(Math.log);
  const extra = law.embeddings ? x.embedding : 0;
  const y = {
    loss: lossAt(law, law.c, x.inputs),
    quantiles: logs ? [quantile(logs, 0.05), quantile(logs, 0.95)] : [0, 0],
    train_flops: COSTS.train_flops({ active: x.active + extra, loop: x.loop, R: x.R, tokens: Math.max(x.tokens, 1) }),
    decades_outside: decadesOutside(law, x.inputs),
  };
  const spread = { drift: 0, ...law.spread }; // law files of earlier versions have no drift
  return { low: predictiveLow(y, spread), high: predictiveHigh(y, spread), level: 0.9, kind: "predictive", basis };
}

export function designAt(grid, flat, chosen) {
  const { law, space, b } = grid;
  const x = grid.designs[flat];
  const row = space.rows[Math.floor(flat / space.P)];
  const trust = trustOf(law, x.inputs);
  const gain = law.loops ? GAINS[law.mapping](law.c, x.R, x.inputs.m) : 0;
  const [ruled_out_by, verdict] = judged(grid, flat, chosen);
  return {
    flat,
    rung: space.names[sizeOf(space, flat)],
    width: row.width,
    layers: row.layers,
    experts: row.E,
    recurrence: x.R,
    experts_active: row.used,
    experts_total: row.there,
    active_parameters: row.parameters - (row.total - row.active),
    total_parameters: row.parameters,
    active: row.active,
    loop: row.loop,
    total: row.total,
    embedding: row.embedding,
    m: row.active / row.total,
    unrolled: COSTS.unrolled(x, b),
    effective: effective(row.active, row.loop, gain),
    effective_parameters: row.parameters - (row.total - row.active) + effective(row.active, row.loop, gain) - row.active,
    tokens: x.tokens,
    loss: grid.loss[flat],
    train_flops: COSTS.train_flops(x, b),
    real_train_flops: row.model ? COSTS.real_flops({ tokens: x.tokens, real: row.model.real(x) }, b) : null,
    inference_flops: COSTS.inference_flops(x, b),
    weight_bytes: COSTS.weight_bytes(x, b),
    kv_bytes: x.kv_bytes,
    memory: grid.memory[flat],
    bytes_per_token: x.bytes_per_token,
    tokens_per_second: b.set.bandwidth === undefined ? null : b.set.bandwidth / x.bytes_per_token,
    extrapolated: trust.extrapolated,
    trust: trust.level,
    ruled_out_by,
    verdict,
    label: labelAt(space, flat),
  };
}

function judged(grid, flat, chosen) {
  if (flat === chosen) return [null, "chosen"];
  const { space, b, rule, eps, passGain, expertGain, loss } = grid;
  const x = grid.designs[flat];
  for (const limit of grid.limits) {
    const need = limit.need(x, b);
    const cap = limit.cap(x, b);
    if (!(need <= cap * DATA.slack)) return [fieldOf(limit, b), missed(limit, need, cap)];
  }
  if (rule !== "loss") {
    if (!(passGain[flat] >= eps)) return ["pass", `pass ${x.R} ${tooLittle(passGain[flat])}`];
    if (!(expertGain[flat] >= eps)) {
      const at = Math.floor(flat / space.P);
      return ["experts", `${space.rows[at - 1].there} → ${space.rows[at].there} experts ${tooLittle(expertGain[flat])}`];
    }
  }
  const more = loss[flat] - loss[chosen];
  return [null, `loss ${Number.isFinite(more) ? fixed(more, 4) : "inf"} higher`];
}

const tooLittle = (gain) =>
  filled(Math.abs(gain) < DATA.noGain ? STEPS.neither : gain > 0 ? STEPS.gains : STEPS.costs, { gain: Math.abs(gain) });

function writeNeed({ unit }, value, digits) {
  if (unit === "bytes") return bytes(value, digits);
  return unit === "times" ? `${general(value, digits)} times` : `${count(value, digits)} ${unit}`.trim();
}

// One that misses a limit by little gets the digits that show it.
function missed(limit, need, cap) {
  const amount = limit.amount ?? ((value) => value);
  const write = (value, digits) => writeNeed(limit, value, digits);
  const excess = need / cap - 1;
  if (!(excess > 0 && excess < DATA.near)) return limit.excluded.replace("{need}", write(amount(need), 3));
  const digits = Math.max(3, Math.min(9, 1 + Math.ceil(-Math.log10(excess))));
  const side = amount(need) > amount(cap) ? "over" : "short";
  const over = write(Math.abs(amount(need) - amount(cap)), 2);
  return `${limit.excluded.replace("{need}", write(amount(need), digits))}, ${over} ${side}`;
}

// ---- a plan ----

// `values` are the budget's fields as numbers; `options` may choose rungs, experts, recurrences, eps, rule.
export function search(file, values, options = {}) {
  const b = budgetOf(values);
  const [idle] = idleFields(b.set);
  if (idle) {
    const others = fieldCalled(idle).counts_with.map((name) => fieldCalled(name).sentence).join(" or ");
    throw new Refusal(`\`${idle}\` changes nothing alone`, idle, `give ${others} with it`);
  }
  const plain = file.names ? file : preparedLaw(file);
  const space = options.space ?? spaceOf(plain, options);
  const law = b.set.unique_tokens === undefined ? plain : withRepetition(plain);
  const rule = options.rule ?? "paper";
  const eps = rule === "loss" ? 0 : (options.eps ?? law.eps);
  if (eps === null || eps === undefined)
    throw new Refusal(`the law ${law.name} states no fit error`, "eps", "give a minimum gain per step, or choose the lowest loss alone");
  const [grid, chosen] = bestDesign(law, space, b, { eps, rule, overheads: options.overheads });
  return new Found(law, grid, chosen, options);
}

// The best design for so many device-hours, as loopscale.planning.device_search finds it: overheads are computed for
// the designs that may be the best, and those that do not fit the devices are left out, unless there are no others.
export function searchOn(devices, file, values, options) {
  const asked = { ...values, real_flops: realFlops(devices) };
  const settled = (onlyFitting) => {
    const overheads = new Map();
    for (;;) {
      const found = search(file, asked, { ...options, overheads });
      if (!learn(devices.cluster, found, overheads, onlyFitting)) return found;
    }
  };
  let found;
  try {
    found = settled(true);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    found = settled(false);
  }
  return Object.assign(found, { devices });
}

// Adds the overheads of the designs that may be the best; true where the choice has to be made again.
function learn(cluster, found, overheads, onlyFitting) {
  const { grid, law, b } = found;
  let learnt = onlyFitting && leaveOut(cluster, grid.space, overheads);
  let lowest = Infinity;
  for (const flat of found.ranked) {
    if (!grid.usable[flat] || grid.loss[flat] >= lowest) break;
    const x = grid.designs[flat];
    const key = overheadKey(grid.space.names[sizeOf(grid.space, flat)], x.E, x.R);
    const before = overheads.get(key) ?? 1;
    const taken = cluster.overhead(x, x.tokens);
    const overhead = taken.fits || !onlyFitting ? taken.overhead : Infinity;
    if (overhead > before * 1.001) {
      overheads.set(key, overhead);
      learnt = true;
    }
    if (Number.isFinite(overhead)) {
      const tokens = Math.max(x.tokens * Math.min(1, before / overhead), 1);
      lowest = Math.min(lowest, lossAt(law, law.c, new Inputs(law, x, tokens, b.set.unique_tokens)));
    }
  }
  return learnt;
}

// Notes the models that do not fit even without looping; true where there are new ones.
function leaveOut(cluster, space, overheads) {
  const { size } = overheads;
  space.rows.forEach((row, at) => {
    if (!row.built) return;
    const keys = space.recurrences.map((R) => overheadKey(space.names[Math.floor(at / space.K)], row.E, R));
    if (keys.every((key) => overheads.has(key)) || !cluster.exceeds(new Candidate(row, 1))) return;
    for (const key of keys) overheads.set(key, Infinity);
  });
  return overheads.size > size;
}

export class Found {
  constructor(law, grid, chosen, options) {
    Object.assign(this, { law, grid, chosen, options });
  }

  get b() {
    return this.grid.b;
  }

  once(name, make) {
    this.kept ??= {};
    if (!(name in this.kept)) this.kept[name] = make();
    return this.kept[name];
  }

  get choice() {
    return this.once("choice", () => designAt(this.grid, this.chosen, this.chosen));
  }

  get trust() {
    return this.once("trust", () => trustOf(this.law, this.grid.designs[this.chosen].inputs));
  }

  get edges() {
    return this.once("edges", () => edgesOf(this.grid.space, this.chosen));
  }

  get withheld() {
    return this.trust.level === "beyond" || this.law.degenerate.length > 0;
  }

  get interval() {
    return this.once("interval", () => intervalOf(this.law, this.grid.designs[this.chosen]));
  }

  get ranked() {
    return this.once("ranked", () => {
      const { usable, loss, length } = this.grid;
      return Array.from({ length }, (_, flat) => flat).sort((a, b) => usable[b] - usable[a] || loss[a] - loss[b] || a - b);
    });
  }

  get lead() {
    const other = this.ranked.slice(0, 2).find((flat) => flat !== this.chosen && this.grid.usable[flat]);
    return other === undefined ? null : this.grid.loss[other] - this.choice.loss;
  }

  // Training compute with head, attention and padding, also with a loss after every pass; null for bare sizes.
  get real() {
    const x = this.grid.designs[this.chosen];
    if (!x.model) return null;
    return { flops: this.choice.real_train_flops, supervised: x.model.supervised(x) * x.tokens };
  }

  // What training takes on devices: those that were asked about, else a node.
  get training() {
    return this.once("training", () => {
      const cluster = this.devices?.cluster ?? NODE;
      const x = this.grid.designs[this.chosen];
      return { cluster, ...cluster.cost(x, x.tokens, this.choice.real_train_flops ?? this.choice.train_flops) };
    });
  }

  get spent() {
    return this.choice.train_flops + this.choice.inference_flops * this.b.serve_tokens;
  }

  get unspent() {
    if (this.b.set.flops === undefined) return 0;
    const left = this.b.flops - this.spent;
    return left > 1e-6 * this.b.flops ? left : 0;
  }

  design(flat) {
    return designAt(this.grid, flat, this.chosen);
  }

  // One step from the choice along each axis, then the best others.
  rivals(number = 3) {
    const { S, K, P, kind } = this.grid.space;
    const at = [sizeOf(this.grid.space, this.chosen), Math.floor(this.chosen / P) % K, this.chosen % P];
    const stride = this.sizeStride;
    const steps = [2, 1, 0].flatMap((axis) => [-1, 1].map((sign) => at.map((v, k) => (k === axis ? v + sign * (axis === 0 ? stride : 1) : v))));
    const flats = steps
      .filter(([s, k, p]) => s >= 0 && s < S && k >= 0 && k < K && p >= 0 && p < P)
      .map(([s, k, p]) => (s * K + k) * P + p);
    const best = stride === 1 ? this.ranked.slice(0, number + flats.length + 1).filter((flat) => this.grid.usable[flat]) : [];
    const others = best.filter((flat) => flat !== this.chosen && !flats.includes(flat)).slice(0, number);
    return [...flats, ...others].map((flat) => this.design(flat));
  }

  get sizeStride() {
    const { kind, rows, K, S } = this.grid.space;
    if ((kind !== "continuous" && kind !== "sizes") || S < 2) return 1;
    return Math.max(1, Math.round(Math.log(1.5) / Math.log(rows[K].active / rows[0].active)));
  }

  // What each resampled law chooses: the share within eps of its best, and the votes. Slow: asked for when at rest.
  agreement() {
    return this.once("agreement", () => {
      if (!this.law.rows || this.trust.level === "beyond") return null;
      const counts = new Map();
      const grid = { ...this.grid };
      for (const name of ["loss", "passGain", "expertGain"]) grid[name] = new Float64Array(grid.length);
      grid.usable = new Uint8Array(grid.length);
      const tie = (grid.eps || this.law.eps || 0) + 1e-12;
      let close = 0;
      for (const c of this.law.rows) {
        fillLosses(grid, c);
        const pick = optimum(grid);
        if (pick < 0) continue;
        counts.set(pick, (counts.get(pick) ?? 0) + 1);
        if (grid.loss[this.chosen] - grid.loss[pick] <= tie) close += 1;
      }
      const all = this.law.rows.length;
      const votes = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
      return {
        share: close / all,
        laws: all,
        votes: votes.map(([flat, votes]) => ({ flat, design: labelAt(this.grid.space, flat), share: votes / all })),
      };
    });
  }

  // What looser limits would buy, the largest gain first.
  sensitivities() {
    return this.once("sensitivities", () => {
      const rows = [];
      for (const { name, relaxed } of DATA.fields) {
        const cap = this.b.set[name];
        if (cap === undefined || relaxed === null) continue;
        const b = budgetOf({ ...this.b.set, [name]: relaxed * cap });
        const [grid, pick] = bestDesign(this.law, this.grid.space, b, this.grid);
        const saved = this.choice.loss - grid.loss[pick];
        rows.push({ limit: name, factor: relaxed, cap, design: designAt(grid, pick, pick), saved, binds: saved > 1e-6 });
      }
      return rows.sort((a, b) => b.saved - a.saved);
    });
  }

  // The design of lower loss that needs the least more than the limits allow.
  get nextBest() {
    const { grid } = this;
    let best = null;
    for (let flat = 0; flat < grid.length; flat++) {
      const x = grid.designs[flat];
      if (!(grid.loss[flat] < this.choice.loss)) continue;
      if (grid.rule !== "loss" && !(grid.passGain[flat] >= grid.eps && grid.expertGain[flat] >= grid.eps)) continue;
      const factor = Math.max(1, ...grid.limits.map((limit) => limit.need(x, grid.b) / limit.cap(x, grid.b)));
      if (factor > 1 && (!best || factor < best.factor)) best = { flat, factor };
    }
    return best && { ...this.design(best.flat), factor: best.factor };
  }
}

// Sizes for a map where all sizes are allowed: every twelfth, which a pixel cannot tell from all of them.
export function mapSpace(law, options) {
  const space = spaceOf(law, options);
  if (space.kind !== "continuous" && space.kind !== "sizes") return space;
  const [low, high] = space.kind === "continuous" ? [64, DATA.continuous[1] * 4] : [space.sizes[0], space.sizes.at(-1)];
  return makeSpace(space.kind, geometric(low, high, space.kind === "continuous" ? 64 : 400), space.experts, space.recurrences, []);
}

// The best design in every cell of compute and memory; `axis` is the field that runs along compute. Cells are those of
// `search`, but a design is evaluated once for each compute, for all amounts of memory and all spaces that hold it.
export function* mapRows(law, values, options, axis, computes, memories) {
  const b0 = budgetOf({ ...values, memory: memories[0], [axis]: computes[0] });
  const used = b0.set.unique_tokens === undefined ? law : withRepetition(law);
  const rule = options.rule ?? "paper";
  const rules = { rule, eps: rule === "loss" ? 0 : (options.eps ?? law.eps) };
  const first = options.space ?? spaceOf(law, options);
  const caps = memories.map((memory) => memory * DATA.slack);
  const grids = new Map();
  for (const compute of computes) {
    const { memory: _, ...rest } = { ...values, [axis]: compute };
    const b = budgetOf(rest);
    // The best of one size, or of all where a space is not extended, for every amount of memory.
    const bestOf = (name, space) => {
      let grid = grids.get(name);
      if (!grid) {
        grid = evaluate(used, space(), b, rules);
        grid.column = Array.from(grid.memory, (memory) => caps.findIndex((cap) => memory <= cap));
        grids.set(name, grid);
      } else if (grid.b === b) return grid.best;
      else spend(grid, b);
      return (grid.best = bestBy(grid, caps.length));
    };
    const spaces = new Map();
    const bestIn = (space) => {
      if (!spaces.has(space)) {
        const one = (name) => bestOf(name, () => makeSpace("ladder", [name], space.experts, space.recurrences, []));
        spaces.set(space, space.kind === "ladder" ? space.sizes.map(one).reduce((all, more) => all.map((pick, k) => lower(pick, more[k]))) : bestOf("", () => space));
      }
      return spaces.get(space);
    };
    yield memories.map((_, column) => {
      let space = first;
      for (;;) {
        const pick = bestIn(space)[column];
        const s = pick && space.names.indexOf(pick.name);
        const edge = !pick || (space.S > 1 && (s === 0 || s === space.S - 1));
        const wider = edge ? extended(space, s === space.S - 1) : null;
        if (!wider) return pick && (pick.cell ??= cellOf(pick.grid, pick.flat));
        space = wider;
      }
    });
  }
}

// The better of two designs, as `optimum` chooses.
const lower = (a, b) => (!a || (b && (b.loss < a.loss || (b.loss === a.loss && b.memory < a.memory))) ? b : a);

// The best usable design of a grid for each amount of memory; null where none fits.
function bestBy(grid, columns) {
  const best = new Array(columns).fill(null);
  for (let flat = 0; flat < grid.length; flat++) {
    const column = grid.column[flat];
    if (!grid.usable[flat] || column < 0 || best[column]?.loss < grid.loss[flat]) continue;
    best[column] = lower(best[column], { grid, flat, loss: grid.loss[flat], memory: grid.memory[flat], name: grid.space.names[sizeOf(grid.space, flat)], cell: null });
  }
  for (let column = 1; column < columns; column++) best[column] = lower(best[column - 1], best[column]);
  return best;
}

function cellOf(grid, flat) {
  const x = grid.designs[flat];
  const row = grid.space.rows[Math.floor(flat / grid.space.P)];
  const name = grid.space.kind === "ladder" ? grid.space.names[sizeOf(grid.space, flat)] : cardSize(row.parameters);
  return { R: x.R, E: row.E, used: row.used, there: row.there, name, loss: grid.loss[flat], level: levelOf(grid.law, x.inputs) };
}

// One design by hand, "1.0B:8:2" (size, experts for each active one, passes), under the budget of a search, whether or
// not it meets the limits.
export function given(found, text) {
  const [name, E, R] = text.split(":");
  const [experts, recurrence] = [Number(E), Number(R)];
  const fine = name in DATA.extended && experts >= 1 && Number.isInteger(2 * experts) && Number.isInteger(recurrence) && recurrence >= 1 && recurrence <= 1000;
  if (!fine) throw new Refusal(`“${text}” is no design`, "design", "write it like 1.0B:8:2");
  const space = makeSpace("ladder", [name], [experts], [recurrence], []);
  const under = (overheads) => new Found(found.law, evaluate(found.law, space, found.b, { ...found.grid, overheads }), 0, {});
  let one = under();
  if (found.devices) {
    const key = overheadKey(name, experts, recurrence);
    for (let before = 1; ; ) {
      const [x] = one.grid.designs;
      const { overhead } = found.devices.cluster.overhead(x, x.tokens);
      if (overhead <= before * 1.001) break;
      before = overhead;
      one = under(new Map([[key, overhead]]));
    }
    one.devices = found.devices;
  }
  const [by, verdict] = judged(one.grid, 0, -1);
  const misses = by !== null && !DATA.steps.includes(by) ? verdict : null;
  return { design: { ...one.choice, misses }, found: one, misses, difference: one.choice.loss - found.choice.loss };
}

// The loss of one design at other numbers of tokens.
export function lossOver(found, tokens) {
  const x = found.grid.designs[found.chosen];
  return tokens.map((D) => lossAt(found.law, found.law.c, new Inputs(found.law, x, D, found.b.set.unique_tokens)));
}

// The 90% interval at the same numbers of tokens, of the kind that the law has; null where it has none.
export function bandOver(found, tokens) {
  const x = found.grid.designs[found.chosen];
  return tokens.map((D) => {
    const inputs = new Inputs(found.law, x, D, found.b.set.unique_tokens);
    return intervalOf(found.law, Object.assign(new Candidate(x, x.R), { tokens: D, inputs }));
  });
}
