// Losses, gains and limits of every design of a space under one budget.
import { COSTS } from "./formulas.js";
import { Inputs, lossAt } from "./law.js";
import { limitsOf, meets } from "./limits.js";
import { Refusal } from "./quantities.js";
import { rowAt, sizeOf } from "./space.js";

// One design as formulas read it. Its fields are always the same, in the same order: engines are fast on such objects.
export class Candidate {
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

export const overheadKey = (name, E, R) => `${name} ${E} ${R}`;

const overheadAt = (overheads, space, flat, R) =>
  overheads?.get(overheadKey(space.names[sizeOf(space, flat)], rowAt(space, flat).E, R)) ?? 1;

// Losses, gains and limits of every design; arrays run over sizes, experts and passes.
export function evaluate(law, space, b, { eps, rule, overheads }) {
  const length = space.rows.length * space.P;
  const grid = {
    law, space, b, eps, rule, overheads, length, limits: limitsOf(b, overheads), designs: new Array(length),
    loss: new Float64Array(length), passGain: new Float64Array(length), expertGain: new Float64Array(length),
    memory: new Float64Array(length), met: new Uint8Array(length), usable: new Uint8Array(length),
  }; // prettier-ignore
  for (let flat = 0; flat < length; flat++) {
    const R = space.recurrences[flat % space.P];
    const x = Candidate.under(rowAt(space, flat), R, b, overheadAt(overheads, space, flat, R));
    x.inputs = new Inputs(law, x, Math.max(x.tokens, 1), b.set.unique_tokens);
    grid.designs[flat] = x;
    grid.memory[flat] = COSTS.memory(x, b);
    grid.met[flat] = meets(grid, x);
  }
  fillLosses(grid, law.c);
  return grid;
}

// The same designs with another compute, which changes their tokens and losses and nothing else.
export function spend(grid, b) {
  grid.b = b;
  grid.designs.forEach((x, flat) => {
    x.tokens = tokensOf(x, b);
    x.inputs.train(grid.law, Math.max(x.tokens, 1), b.set.unique_tokens);
    grid.met[flat] = meets(grid, x);
  });
  fillLosses(grid, grid.law.c);
}

export function fillLosses(grid, c) {
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
  const x = Candidate.under(rowAt(space, flat), R, b, overheadAt(overheads, space, flat, R));
  return x.tokens >= 1 ? lossAt(law, c, new Inputs(law, x, Math.max(x.tokens, 1), b.set.unique_tokens)) : Infinity;
}
