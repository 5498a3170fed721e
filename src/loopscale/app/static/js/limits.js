// The limits that a budget sets, and the sentences about a design that misses one. Needs and caps are generated.
import { FIELD } from "./budget.js";
import { DATA } from "./data.js";
import { designAt } from "./design.js";
import { LIMITS } from "./formulas.js";
import { Refusal, bytes, count, filled, general, shortName, written } from "./quantities.js";

// Those of the budget, and with `overheads` that of the devices, the hardest first.
export const limitsOf = (b, overheads) => [
  ...(overheads?.size ? [DEVICES] : []),
  ...LIMITS.filter(
    (limit) => limit.needs.every((name) => b.set[name] !== undefined) && limit.forbids.every((name) => b.set[name] === undefined),
  ),
];

export const fieldOf = (limit, b) => (b.set.flops === undefined && b.set.real_flops !== undefined ? limit.otherwise : limit.field);

// Not a field of the budget: set where devices were asked.
const DEVICES = { ...DATA.devicesLimit, need: (x) => (Number.isFinite(x.overhead) ? 1 : 2), cap: () => 1, unit: "times" };

export function meets({ limits, b }, x) {
  if (!(x.tokens >= 1)) return false;
  for (const limit of limits) if (!(limit.need(x, b) <= limit.cap(x, b) * DATA.slack)) return false;
  return true;
}

function writeNeed({ unit }, value, digits) {
  if (unit === "bytes") return bytes(value, digits);
  return unit === "times" ? `${general(value, digits)} times` : `${count(value, digits)} ${unit}`.trim();
}

// One that misses a limit by little gets the digits that show it.
export function missed(limit, need, cap) {
  const amount = limit.amount ?? ((value) => value);
  const write = (value, digits) => writeNeed(limit, value, digits);
  const excess = need / cap - 1;
  if (!(excess > 0 && excess < DATA.near)) return limit.excluded.replace("{need}", write(amount(need), 3));
  const digits = Math.max(3, Math.min(9, 1 + Math.ceil(-Math.log10(excess))));
  const side = amount(need) > amount(cap) ? "over" : "short";
  const over = write(Math.abs(amount(need) - amount(cap)), 2);
  return `${limit.excluded.replace("{need}", write(amount(need), digits))}, ${over} ${side}`;
}

export function nothingFits(grid) {
  const { b, designs } = grid;
  for (const limit of grid.limits) {
    const needs = designs.map((x) => limit.need(x, b));
    if (designs.some((x, flat) => needs[flat] <= limit.cap(x, b) * DATA.slack)) continue;
    let flat = 0;
    for (let k = 1; k < needs.length; k++) if (needs[k] < needs[flat]) flat = k;
    const need = writeNeed(limit, limit.amount ? limit.amount(needs[flat]) : needs[flat], 3);
    const empty = limit.empty.replace(/\{(\w+)\}/g, (_, name) => written(FIELD[name], b[name]));
    return new Refusal(empty, fieldOf(limit, b), filled(limit.closest, { need, candidate: shortName(designAt(grid, flat, -1)) }));
  }
  return new Refusal("no candidate meets all limits together", "", "loosen one of them");
}
