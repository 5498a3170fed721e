// How far a law can be trusted at a design, and the interval of its loss there.
import { DATA } from "./data.js";
import { COSTS, predictiveHigh, predictiveLow, rangeFactor, rangeOutside } from "./formulas.js";
import { lossAt } from "./law.js";
import { count, times } from "./quantities.js";

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
function quantile(values, share) {
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
