// Quantities as people write them, like loopscale.core.quantities does on the command line.
const SCALES = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "K"],
];
const BYTES = [
  [1e12, "TB"],
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "kB"],
];

export function significant(value, digits = 3) {
  if (value === 0) return "0";
  const text = Number(value.toPrecision(digits));
  return Math.abs(text) >= 1e15 || Math.abs(text) < 1e-4 ? power(text) : String(text);
}

export function power(value) {
  return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
}

export function count(value, digits = 3) {
  if (value == null) return "–";
  if (Math.abs(value) >= 1e15) return power(value);
  for (const [scale, letter] of SCALES)
    if (Math.abs(value) >= scale) return significant(value / scale, digits) + letter;
  return significant(value, digits);
}

export function bytes(value) {
  for (const [scale, unit] of BYTES) if (value >= scale) return `${significant(value / scale)} ${unit}`;
  return `${value} B`;
}

export function size(value) {
  return value >= 1e8 ? `${(value / 1e9).toFixed(3)}B` : count(value);
}

// As model cards write a size, embeddings included.
export const cardSize = (value) => (value >= 1e8 ? `${(value / 1e9).toFixed(1)}B` : count(value));

export const loss = (value) => (value == null ? "–" : value.toFixed(4));
// The 90% interval of a loss, and of what it is.
const KINDS = { predictive: "for one new run", law: "of the curve, not of a run" };
export const interval = ({ low, high, kind }) => `90% ${KINDS[kind]}: ${loss(low)}–${loss(high)}`;
export const percent = (value) => `${Math.round(100 * value)}%`;
// A design in a few characters, with its experts as it is built.
export const mixture = (d) => (d.experts_total === 1 ? "dense" : `${d.experts_active}/${d.experts_total}`);
export const label = (d) => d.label ?? `${d.rung} ${mixture(d)} R=${d.recurrence}`;
export const experts = (d) => (d.experts_total === 1 ? "dense" : `${d.experts_active} of ${d.experts_total}`);

// Columns of a table, as the server sends them, to rows.
export function rows(columns) {
  const names = Object.keys(columns);
  return names.length ? columns[names[0]].map((_, k) => Object.fromEntries(names.map((n) => [n, columns[n][k]]))) : [];
}
