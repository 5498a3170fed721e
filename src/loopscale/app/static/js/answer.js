// The answer of a search: its choice, how sure that is, and what other limits would give.
import { budgetOf } from "./budget.js";
import { Cluster } from "./cluster.js";
import { DATA } from "./data.js";
import { designAt } from "./design.js";
import { Candidate, fillLosses } from "./grid.js";
import { Inputs, lossAt } from "./law.js";
import { bestDesign, edgesOf, optimum } from "./optimum.js";
import { activeSize, labelAt, sizeOf } from "./space.js";
import { intervalOf, trustOf } from "./trust.js";

const NODE = new Cluster();

export class Answer {
  constructor(law, grid, chosen, options) {
    Object.assign(this, { law, grid, chosen, options });
  }

  get b() {
    return this.grid.b;
  }

  once(name, make) {
    this.cache ??= {};
    if (!(name in this.cache)) this.cache[name] = make();
    return this.cache[name];
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

  // The sizes that are as good as the best one, where sizes are free.
  get tiedSizes() {
    if (this.sizeStride === 1) return null;
    const { space, usable, loss, designs, eps } = this.grid;
    const tie = eps || this.law.eps || 0;
    const { K, P } = space;
    const sizes = [];
    for (let flat = this.chosen % (K * P); flat < loss.length; flat += K * P)
      if (usable[flat] && loss[flat] - this.choice.loss <= tie) sizes.push(activeSize(designs[flat]));
    return [Math.min(...sizes), Math.max(...sizes)];
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

// The loss of one design at other numbers of tokens.
export function lossOver(answer, tokens) {
  const x = answer.grid.designs[answer.chosen];
  return tokens.map((D) => lossAt(answer.law, answer.law.c, new Inputs(answer.law, x, D, answer.b.set.unique_tokens)));
}

// Its 90% interval at another number of tokens, of the kind that the law has; null where it has none.
export function intervalAt(answer, tokens) {
  const x = answer.grid.designs[answer.chosen];
  const inputs = new Inputs(answer.law, x, tokens, answer.b.set.unique_tokens);
  return intervalOf(answer.law, Object.assign(new Candidate(x, x.R), { tokens, inputs }));
}
