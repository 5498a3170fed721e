// The best design of a grid, and of a space that grows where the best lies at its end.
import { evaluate } from "./grid.js";
import { nothingFits } from "./limits.js";
import { extended, sizeOf } from "./space.js";

// The usable design of lowest loss; of equal ones that of least memory. -1 where none is left.
export function optimum({ usable, loss, memory, length }) {
  let best = -1;
  for (let flat = 0; flat < length; flat++) {
    if (!usable[flat]) continue;
    if (best < 0 || loss[flat] < loss[best] || (loss[flat] === loss[best] && memory[flat] < memory[best])) best = flat;
  }
  return best;
}

export function bestDesign(law, space, b, rules) {
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

export function edgesOf(space, flat) {
  const s = sizeOf(space, flat);
  const k = Math.floor(flat / space.P) % space.K;
  const p = flat % space.P;
  const active = Array.from({ length: space.S }, (_, each) => space.rows[each * space.K].active);
  const along = {
    size: [active, s, space.names[s]],
    experts: [space.experts, k, space.experts[k]],
    recurrence: [space.recurrences, p, space.recurrences[p]],
  };
  const edges = [];
  for (const [axis, [values, index, value]] of Object.entries(along)) {
    if (values.length === 1) continue;
    const least = Math.min(...values);
    const ends = { high: Math.max(...values), low: axis !== "size" && least === 1 ? -Infinity : least };
    for (const [side, end] of Object.entries(ends))
      if (values[index] === end)
        edges.push({ axis, side, value, set_by: space.free.includes(axis) || space.kind === "sizes" ? "search" : "you" });
  }
  return edges;
}
