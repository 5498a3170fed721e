// One design of a grid as people read it: what it is and costs, and why it is or is not the choice.
import { DATA } from "./data.js";
import { COSTS, GAINS, STEPS, activeRatio, effective, effectiveParameters } from "./formulas.js";
import { fieldOf, missed } from "./limits.js";
import { filled, fixed } from "./quantities.js";
import { labelAt, rowAt, sizeOf } from "./space.js";
import { trustOf } from "./trust.js";

export function designAt(grid, flat, chosen) {
  const { law, space, b } = grid;
  const x = grid.designs[flat];
  const row = rowAt(space, flat);
  const trust = trustOf(law, x.inputs);
  const gain = law.loops ? GAINS[law.mapping](law.c, x.R, x.inputs.m) : 0;
  const worth = effective(row.active, row.loop, gain);
  const active_parameters = row.parameters - (row.total - row.active);
  const [ruled_out_by, verdict] = judged(grid, flat, chosen);
  return {
    flat,
    rung: space.names[sizeOf(space, flat)],
    width: row.width,
    layers: row.layers,
    experts: row.E,
    recurrence: x.R,
    experts_active: row.used,
    experts_total: row.there,
    active_parameters,
    total_parameters: row.parameters,
    active: row.active,
    loop: row.loop,
    total: row.total,
    embedding: row.embedding,
    m: activeRatio(row),
    unrolled: COSTS.unrolled(x, b),
    effective: worth,
    effective_parameters: effectiveParameters({ active_parameters, effective: worth, active: row.active }),
    tokens: x.tokens,
    loss: grid.loss[flat],
    train_flops: COSTS.train_flops(x, b),
    real_train_flops: row.model ? COSTS.real_flops({ tokens: x.tokens, real: row.model.real(x) }, b) : null,
    inference_flops: COSTS.inference_flops(x, b),
    weight_bytes: COSTS.weight_bytes(x, b),
    kv_bytes: x.kv_bytes,
    memory: grid.memory[flat],
    bytes_per_token: x.bytes_per_token,
    tokens_per_second: b.set.bandwidth === undefined ? null : b.set.bandwidth / x.bytes_per_token,
    extrapolated: trust.extrapolated,
    trust: trust.level,
    ruled_out_by,
    verdict,
    label: labelAt(space, flat),
  };
}

export function judged(grid, flat, chosen) {
  if (flat === chosen) return [null, "chosen"];
  const { space, b, rule, eps, passGain, expertGain, loss } = grid;
  const x = grid.designs[flat];
  for (const limit of grid.limits) {
    const need = limit.need(x, b);
    const cap = limit.cap(x, b);
    if (!(need <= cap * DATA.slack)) return [fieldOf(limit, b), missed(limit, need, cap)];
  }
  if (rule !== "loss") {
    if (!(passGain[flat] >= eps)) return ["pass", `pass ${x.R} ${tooLittle(passGain[flat])}`];
    if (!(expertGain[flat] >= eps)) {
      const at = Math.floor(flat / space.P);
      return ["experts", `${space.rows[at - 1].there} → ${space.rows[at].there} experts ${tooLittle(expertGain[flat])}`];
    }
  }
  const more = loss[flat] - loss[chosen];
  return [null, `loss ${Number.isFinite(more) ? fixed(more, 4) : "inf"} higher`];
}

const tooLittle = (gain) =>
  filled(Math.abs(gain) < DATA.noGain ? STEPS.neither : gain > 0 ? STEPS.gains : STEPS.costs, { gain: Math.abs(gain) });
