// The devices that train a model, and how long they take, as loopscale.planning.cluster, .job and .layouts compute it.
//
// How it works: a layout says how the devices share a training step. `accumulate` is the number of parts of the batch that
// are computed one after another, `replicas` the number of copies of the weights, `reduce` when gradients are summed over
// devices (after a step, a pass or a block), and `stored` the share of activations that is kept rather than recomputed.
// JOBS of formulas.js, which are generated from Python, give the memory and the seconds of one layout. This file goes
// through the layouts and takes the fastest that fits.
import { DATA } from "./data.js";
import { JOBS, expectedDays, flopsOfHours, hoursOfFlops, sequencesOf, stepSeconds, usableOf } from "./formulas.js";
import { Refusal } from "./quantities.js";

const rounded = (time) => Math.round(100 * Math.log(time));
const divisors = (number) => Array.from({ length: number }, (_, k) => k + 1).filter((part) => number % part === 0);

export class Cluster {
  constructor({ name = "h100", devices = DATA.node, utilisation = DATA.utilisation } = {}) {
    Object.assign(this, { name, devices, utilisation, device: DATA.devices[name] });
  }

  // The fastest layout for a design that fits, else that of least memory; null for a design that cannot be built.
  best(x, tokens) {
    if (!x.built) return null;
    const job = { devices: this.devices, sequences: sequencesOf(tokens, this.devices) };
    const key = `${x.width} ${x.E} ${x.R} ${job.sequences}`;
    this.cache ??= new Map();
    if (!this.cache.has(key)) this.cache.set(key, this.fastest(x, job));
    return this.cache.get(key);
  }

  fastest(x, job) {
    const usable = usableOf(this.device);
    const cost = (reduce, layout) => this.step(x, job, reduce, layout);
    let best = null;
    // Faster, to within a percent; then less work in all; then less memory.
    const better = (a, b) => {
      const [aTime, bTime] = [rounded(stepSeconds(a)), rounded(stepSeconds(b))];
      if (aTime !== bTime) return aTime < bTime;
      const [aWork, bWork] = [a.compute + a.traffic + a.communication, b.compute + b.traffic + b.communication];
      return aWork !== bWork ? aWork < bWork : a.memory < b.memory;
    };
    let least = null;
    for (const shards of divisors(this.devices))
      for (const reduce of DATA.reduces) {
        const replicas = this.devices / shards;
        for (const accumulate of divisors(job.sequences)) {
          const fitted = storeMost((stored) => cost(reduce, { accumulate, replicas, stored }), usable);
          if (fitted && (!best || better(fitted, best))) best = fitted;
        }
        const small = cost(reduce, { accumulate: job.sequences, replicas, stored: 0 });
        if (!least || small.memory < least.memory) least = small;
      }
    return { step: best ?? least, fits: Boolean(best) };
  }

  // How much longer a step takes than its arithmetic without recomputation, at least 1, and whether it fits.
  overhead(x, tokens) {
    const best = this.best(x, tokens);
    if (!best) return { overhead: 1, fits: true };
    const { step, fits } = best;
    return { overhead: Math.max(1, stepSeconds(step) / ((step.plain * step.tokens) / this.devices / this.device.flops)), fits };
  }

  // Whether a design takes more memory than the devices have, however a step of whole batches is shared.
  exceeds(x) {
    const job = { devices: this.devices, sequences: sequencesOf(DATA.longRun, this.devices) };
    this.large ??= new Map();
    const key = `${x.width} ${x.E} ${x.R}`;
    if (!this.large.has(key)) {
      const least = DATA.reduces.map((reduce) => this.step(x, job, reduce, { accumulate: job.sequences, replicas: 1, stored: 0 }).memory);
      this.large.set(key, Math.min(...least) > usableOf(this.device));
    }
    return this.large.get(key);
  }

  step(x, job, reduce, layout) {
    const kind = `${x.E === 1 ? "dense" : "mixture"} ${reduce} ${layout.accumulate === 1 ? "one" : "parts"} ${x.R === 1 ? "once" : "looped"}`;
    return JOBS[kind](x, job, this.device, layout);
  }

  // What training a design takes: days, and whether it fits.
  cost(x, tokens, flops) {
    const best = this.best(x, tokens);
    if (!best) return { days: hoursOfFlops(flops, this.device.flops, this.utilisation) / this.devices / 24, fits: true, memory: null };
    return { days: expectedDays(stepSeconds(best.step), tokens / best.step.tokens, this.utilisation), fits: best.fits, memory: best.step.memory };
  }
}

// Stores as many activations as fit; null where even recomputing all of them does not.
function storeMost(cost, usable) {
  const whole = cost(1);
  if (whole.memory <= usable) return whole;
  const least = cost(0);
  const spare = usable - least.memory;
  if (spare < 0) return null;
  const calls = Math.trunc(spare / (least.block - least.kept / least.calls));
  return calls === 0 ? least : cost(Math.min(1, calls / least.calls));
}

// Devices and their hours, where the compute is given so; else null.
export function devicesOf({ gpus, device, days, utilisation }) {
  if (!gpus) return null;
  const amount = (text, field, what, whole) => {
    const number = Number(String(text).replaceAll(",", ""));
    if (!(Number.isFinite(number) && number > 0 && (!whole || Number.isInteger(number)))) throw new Refusal(`${what} should be a ${whole ? "whole " : ""}number above zero`, field);
    return number;
  };
  const share = utilisation ? Number(utilisation.replace("%", "")) / (utilisation.includes("%") ? 100 : 1) : DATA.utilisation;
  if (!(share > 0 && share <= 1)) throw new Refusal("utilisation should be above 0 and at most 1", "utilisation", "write it like 40%");
  const name = device || "h100";
  if (!DATA.devices[name]) throw new Refusal(`the device ${device} is not known`, "device");
  const devices = amount(gpus, "gpus", "GPUs", true);
  if (devices > 100_000) throw new Refusal("GPUs should be at most 100,000", "gpus");
  return { cluster: clusterOf(name, devices, share), hours: devices * amount(days, "days", "Days") * 24 };
}

// The compute of so many device-hours.
export const realFlops = ({ cluster, hours }) => flopsOfHours(hours, cluster.device.flops, cluster.utilisation);

const clusters = new Map();
function clusterOf(name, devices, utilisation) {
  const key = `${name} ${devices} ${utilisation}`;
  if (clusters.size > 50) clusters.clear();
  if (!clusters.has(key)) clusters.set(key, new Cluster({ name, devices, utilisation }));
  return clusters.get(key);
}
