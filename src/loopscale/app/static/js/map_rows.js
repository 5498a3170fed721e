// The best design of every cell of the map: the cells of `search`, found together.
import { budgetOf } from "./budget.js";
import { DATA } from "./data.js";
import { evaluate, spend } from "./grid.js";
import { withRepetition } from "./law.js";
import { cardSize } from "./quantities.js";
import { extended, makeSpace, rowAt, sizeOf, spaceOf } from "./space.js";
import { levelOf } from "./trust.js";

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
  const row = rowAt(grid.space, flat);
  const name = grid.space.kind === "ladder" ? grid.space.names[sizeOf(grid.space, flat)] : cardSize(row.parameters);
  return { R: x.R, E: row.E, used: row.used, there: row.there, name, loss: grid.loss[flat], level: levelOf(grid.law, x.inputs) };
}
