// The search for a design, as loopscale.planning does it: of all, for devices, or of one by hand. Every formula is
// generated from the Python functions (formulas.js); loops around them are written here and compared with Python in tests.
import { FIELD, budgetOf, idleFields } from "./budget.js";
import { realFlops } from "./cluster.js";
import { DATA } from "./data.js";
import { judged } from "./design.js";
import { Answer } from "./answer.js";
import { Candidate, evaluate, overheadKey } from "./grid.js";
import { Inputs, lossAt, preparedLaw, withRepetition } from "./law.js";
import { bestDesign } from "./optimum.js";
import { Refusal } from "./quantities.js";
import { makeSpace, sizeOf, spaceOf } from "./space.js";

// `values` are the budget's fields as numbers; `options` may choose rungs, experts, recurrences, eps, rule.
export function search(file, values, options = {}) {
  const b = budgetOf(values);
  const [idle] = idleFields(b.set);
  if (idle) {
    const others = FIELD[idle].counts_with.map((name) => FIELD[name].sentence).join(" or ");
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
  return new Answer(law, grid, chosen, options);
}

// The best design for so many device-hours, as loopscale.planning.device_search finds it: overheads are computed for
// the designs that may be the best, and those that do not fit the devices are left out, unless there are no others.
export function searchOn(devices, file, values, options) {
  const asked = { ...values, real_flops: realFlops(devices) };
  const settled = (onlyFitting) => {
    const overheads = new Map();
    for (;;) {
      const answer = search(file, asked, { ...options, overheads });
      if (!learn(devices.cluster, answer, overheads, onlyFitting)) return answer;
    }
  };
  let answer;
  try {
    answer = settled(true);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    answer = settled(false);
  }
  return Object.assign(answer, { devices });
}

// Adds the overheads of the designs that may be the best; true where the choice has to be made again.
function learn(cluster, answer, overheads, onlyFitting) {
  const { grid, law, b } = answer;
  let learnt = onlyFitting && leaveOut(cluster, grid.space, overheads);
  let lowest = Infinity;
  for (const flat of answer.ranked) {
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

// One design by hand, "1.0B:8:2" (size, experts for each active one, passes), under the budget of a search, whether or
// not it meets the limits.
export function designByHand(answer, text) {
  const [name, E, R] = text.split(":");
  const [experts, recurrence] = [Number(E), Number(R)];
  const fine = name in DATA.extended && experts >= 1 && Number.isInteger(2 * experts) && Number.isInteger(recurrence) && recurrence >= 1 && recurrence <= 1000;
  if (!fine) throw new Refusal(`“${text}” is no design`, "design", "write it like 1.0B:8:2");
  const space = makeSpace("ladder", [name], [experts], [recurrence], []);
  const under = (overheads) => new Answer(answer.law, evaluate(answer.law, space, answer.b, { ...answer.grid, overheads }), 0, {});
  let one = under();
  if (answer.devices) {
    const key = overheadKey(name, experts, recurrence);
    for (let before = 1; ; ) {
      const [x] = one.grid.designs;
      const { overhead } = answer.devices.cluster.overhead(x, x.tokens);
      if (overhead <= before * 1.001) break;
      before = overhead;
      one = under(new Map([[key, overhead]]));
    }
    one.devices = answer.devices;
  }
  const [by, verdict] = judged(one.grid, 0, -1);
  const misses = by !== null && !DATA.steps.includes(by) ? verdict : null;
  return { design: { ...one.choice, misses }, answer: one, misses, difference: one.choice.loss - answer.choice.loss };
}
