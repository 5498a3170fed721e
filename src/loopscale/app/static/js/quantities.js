// Quantities as people write and read them, as loopscale.core.quantities does; tests hold the two equal.
import { DATA } from "./data.js";

export class Refusal extends Error {
  constructor(problem, field = "", remedy = "") {
    super([problem, remedy].filter(Boolean).join("; "));
    Object.assign(this, { problem, field, remedy });
  }
}

// So many decimals; a number halfway between two goes to the even one, as in Python, where JavaScript rounds up.
export function fixed(value, digits) {
  const shifted = value * 10 ** digits;
  const halfway = Math.abs(shifted % 1) === 0.5 && Number.isInteger(value * 2 ** 24);
  return halfway ? ((2 * Math.round(shifted / 2)) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
}

// Python's "g": so many significant digits, without zeros at the end.
export function general(value, digits) {
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power < -4 || power >= digits) {
    const sign = power < 0 ? "-" : "+";
    return `${trimmed(mantissa)}e${sign}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  return trimmed(fixed(value, Math.max(digits - 1 - power, 0)));
}
const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

export function significant(value, digits = 3) {
  const text = general(value, digits);
  return text.includes("e") && Math.abs(value) >= 1 && Math.abs(value) < 1e4 ? fixed(value, 0) : text;
}

export function power(value, digits = 3) {
  const [mantissa, exponent] = general(value, digits).split("e");
  return exponent === undefined ? mantissa : `${mantissa}e${Number(exponent)}`;
}

const SCALES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]; // prettier-ignore
const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]; // prettier-ignore

export function count(value, digits = 3) {
  if (value == null) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : String(value);
  if (Math.abs(value) >= 1e15) return power(value, digits);
  for (const [scale, letter] of SCALES)
    if (Math.abs(value) >= scale) return significant(value / scale, digits) + letter;
  return significant(value, digits);
}

export function bytes(value, digits = 3) {
  for (const [scale, unit] of BYTES)
    if (Math.abs(value) >= scale) return `${significant(value / scale, digits)} ${unit}`;
  return `${fixed(value, 0)} B`;
}

// A whole number in groups of three digits; the browser's own formats would take 10 ms to load.
export const grouped = (value) => fixed(value, 0).replace(/\B(?=(\d{3})+$)/g, ",");

// How many there are: "1 run", "2 losses".
export const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

export const size = (value) => (value >= 1e8 ? `${fixed(value / 1e9, 3)}B` : count(value));
// As model cards write a size, embeddings included.
export const cardSize = (value) => (value >= 1e8 ? `${fixed(value / 1e9, 1)}B` : count(value));
export const times = (factor) =>
  factor >= 10 ? `${grouped(factor)}x` : `${general(factor, factor >= 1.05 ? 2 : 3)}x`;
export const loss = (value) => (value == null ? "–" : fixed(value, 4));
export const percent = (value) => `${Math.round(100 * value)}%`;
export const signed = (value, digits = 3) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

// How many decimals a value with this uncertainty deserves.
export function decimals(uncertainty) {
  if (!(Number.isFinite(uncertainty) && uncertainty > 0)) return 4;
  const leading = Math.floor(Math.log10(uncertainty));
  const digits = uncertainty / 10 ** leading < 3.55 ? 2 : 1;
  return Math.min(Math.max(digits - 1 - leading, 0), 8);
}

export const experts = (d) => (d.experts_total === 1 ? "dense" : `${d.experts_active} of ${d.experts_total}`);
export const passes = (R) => ({ 1: "not looped", 2: "looped twice" })[R] ?? `looped ${R} times`;
export const labelOf = (name, active, total, R) => `${name} ${total === 1 ? "dense" : `${active}/${total}`} R=${R}`;

// Between the rungs of the ladder, and for laws of size alone, sizes have no name: their parameters serve.
export const sizeName = (d) => (d.width === null || /^d\d/.test(d.rung) ? cardSize(d.active_parameters) : d.rung);

// A design in a few words.
export const shortName = (d) => {
  const made = d.experts_total === 1 ? "dense" : `${experts(d)} experts`;
  return `${sizeName(d)}, ${made}, ${d.recurrence === 1 ? "no loop" : `${d.recurrence} passes`}`;
};

// A value of a budget's field with its unit, as sentences write it.
export function written(field, value) {
  const amount = amountOf(field, value);
  return `${amount} ${field.unit}`.trim();
}
export function amountOf(field, value) {
  if (value == null) return field.none ?? "";
  if (field.write === "power") return power(value);
  if (field.write === "bytes") return `${bytes(value)}${field.per_second ? "/s" : ""}`;
  if (field.write === "bits") return general(value, 6);
  return Number.isInteger(value) && value < 1e6 && field.steps.length ? grouped(value) : count(value);
}

// Fills "{gain:.4f}" in a sentence that Python wrote for any design.
export const filled = (text, values) =>
  text.replace(/\{(\w+)(?::\.(\d)f)?\}/g, (_, name, digits) => (digits ? fixed(values[name], Number(digits)) : values[name]));

const NUMBER = "([0-9][0-9_,]*\\.?[0-9]*(?:e[+-]?[0-9]+)?|\\.[0-9]+(?:e[+-]?[0-9]+)?)";
const COUNT = new RegExp(`^${NUMBER}\\s*([kmbgtp]?)$`, "i");
const MEMORY = new RegExp(`^${NUMBER}\\s*([kmgtp]?)(i?)b?$`, "i");
const WIDTH = /^(?:int|uint|fp|float|bf|nf|mxfp|nvfp|q)?([0-9]+(?:\.[0-9]+)?)(?:\s*-?bits?)?$/i;
const TIMES = { "": 1, k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12, p: 1e15 };
const POWERS = { "": 0, k: 1, m: 2, g: 3, t: 4, p: 5 };
const LARGEST = 1e90;

// Reads what somebody wrote into a field; the unit that stands beside the field may be repeated.
export function parse(field, text) {
  let clean = String(text).trim().replaceAll("\u202f", " ");
  const unit = field.per_second ? "/s" : field.unit;
  if (unit && clean.toLowerCase().endsWith(unit.toLowerCase())) clean = clean.slice(0, -unit.length).trim();
  clean = clean.replace(/(\d)\s+(e[+-]?\d)/i, "$1$2");
  const value = READERS[field.write]?.(clean, field) ?? parseCount(clean, field);
  const whole = field.write === "count" && field.steps.length && field.name !== "min_speed";
  if (whole && (value !== Math.round(value) || value > 1e9))
    throw new Refusal(`“${text}” is not a whole number up to a billion`, field.name, `write it like ${field.example}`);
  if (value < field.least)
    throw new Refusal(`“${text}” should be ${field.least} or more`, field.name, `write it like ${field.example}`);
  if (field.name === "memory" && value < DATA.leastMemory)
    throw new Refusal(`${general(value, 6)} bytes is too little for any model`, field.name, "write a unit, like 16 GB");
  return value;
}

const READERS = {
  bytes: (text, field) => {
    const match = MEMORY.exec(text);
    if (!match) throw refused(text, field);
    return positive(number(match[1]) * (match[3] ? 1024 : 1000) ** POWERS[match[2].toLowerCase()], text, field);
  },
  bits: (text, field) => {
    const named = DATA.weightFormats[text.toLowerCase().replaceAll("-", "_")];
    if (named !== undefined) return named;
    const match = WIDTH.exec(text);
    const bits = match ? Number(match[1]) : Number.NaN;
    if (!(bits >= 1 && bits <= 64)) throw refused(text, field);
    return bits;
  },
};

function parseCount(text, field) {
  const match = COUNT.exec(text);
  if (!match) throw refused(text, field);
  const letter = match[2].toLowerCase();
  const binary = field.name === "context" && { k: 1024, m: 1024 ** 2 }[letter];
  return positive(number(match[1]) * (binary || TIMES[letter]), text, field);
}

const number = (text) => Number(text.replace(/[_,]/g, ""));
const refused = (text, field) =>
  new Refusal(`“${text}” is not a value for this field`, field.name, `write it like ${field.example}`);

function positive(value, text, field) {
  if (!(Number.isFinite(value) && value > 0)) throw new Refusal(`“${text}” should be above zero`, field.name);
  if (value > LARGEST) throw new Refusal(`“${text}” is too large to compute with`, field.name);
  return value;
}

// What training takes on its devices: "14 days on 8 H100".
export const daysText = (days) => (days >= 0.995 ? `${count(days)} ${count(days) === "1" ? "day" : "days"}` : `${count(24 * days)} hours`);
export const trainingText = ({ cluster, days, fits }) => `${daysText(days)} on ${count(cluster.devices)} ${deviceName(cluster.name)}${fits ? "" : ", if it fitted"}`;
export const deviceName = (name) => name.replace(/^rtx/, "RTX ").replace(/^(a|h|gh|b|l|mi|tpu)(?=[-\d])/, (letters) => letters.toUpperCase()).replace(/(gb|pcie)$/, (letters) => letters.toUpperCase());

// Columns of a table, as the server sends them, to rows.
export function rows(columns) {
  const names = Object.keys(columns);
  return names.length ? columns[names[0]].map((_, k) => Object.fromEntries(names.map((n) => [n, columns[n][k]]))) : [];
}
