// The forward of the lab's model: embeddings, one block of weights run once for each pass, head. Tests compare its
// logits with those of PyTorch. Arrays hold one row of `width` numbers for each token.

export function readModel({ config, weights }) {
  const tensors = {};
  for (const [name, { shape, data }] of Object.entries(weights)) {
    const raw = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    tensors[name] = { shape, values: new Float32Array(raw.buffer) };
  }
  return { config, tensors };
}

// x W^T for every row of x.
function linear(x, { shape: [out, width], values }, count) {
  const y = new Float64Array(count * out);
  for (let t = 0; t < count; t++)
    for (let o = 0; o < out; o++) {
      let sum = 0;
      for (let k = 0; k < width; k++) sum += x[t * width + k] * values[o * width + k];
      y[t * out + o] = sum;
    }
  return y;
}

function norm(x, { values }, eps, count) {
  const width = values.length;
  const y = new Float64Array(x.length);
  for (let t = 0; t < count; t++) {
    let squares = 0;
    for (let k = 0; k < width; k++) squares += x[t * width + k] ** 2;
    const scale = 1 / Math.sqrt(squares / width + eps);
    for (let k = 0; k < width; k++) y[t * width + k] = x[t * width + k] * scale * values[k];
  }
  return y;
}

// Rotates queries and keys by their position, half against half of each head.
function rotate(heads, { theta }, count, stride, number, size) {
  const half = size / 2;
  for (let t = 0; t < count; t++)
    for (let n = 0; n < number; n++)
      for (let k = 0; k < half; k++) {
        const angle = t * theta ** ((-2 * k) / size);
        const [at, other] = [t * stride + n * size + k, t * stride + n * size + half + k];
        const [a, b] = [heads[at], heads[other]];
        heads[at] = a * Math.cos(angle) - b * Math.sin(angle);
        heads[other] = b * Math.cos(angle) + a * Math.sin(angle);
      }
}

function attend(qkv, config, count) {
  const { width, heads } = config;
  const size = width / heads;
  const stride = 3 * width;
  rotate(qkv, config, count, stride, 2 * heads, size);
  const y = new Float64Array(count * width);
  for (let n = 0; n < heads; n++)
    for (let t = 0; t < count; t++) {
      const scores = [];
      for (let s = 0; s <= t; s++) {
        let sum = 0;
        for (let k = 0; k < size; k++) sum += qkv[t * stride + n * size + k] * qkv[s * stride + width + n * size + k];
        scores.push(sum / Math.sqrt(size));
      }
      const most = Math.max(...scores);
      const shares = scores.map((score) => Math.exp(score - most));
      const total = shares.reduce((sum, share) => sum + share, 0);
      for (let s = 0; s <= t; s++)
        for (let k = 0; k < size; k++)
          y[t * width + n * size + k] += (shares[s] / total) * qkv[s * stride + 2 * width + n * size + k];
    }
  return y;
}

const add = (x, y) => x.map((value, k) => value + y[k]);

// A SwiGLU block for `count` rows.
function feedForward(x, gateUp, down, count) {
  const both = linear(x, gateUp, count);
  const hidden = down.shape[1];
  const gated = new Float64Array(count * hidden);
  for (let t = 0; t < count; t++)
    for (let k = 0; k < hidden; k++) {
      const gate = both[t * 2 * hidden + k];
      gated[t * hidden + k] = (gate / (1 + Math.exp(-gate))) * both[t * 2 * hidden + hidden + k];
    }
  return linear(gated, down, count);
}

// Every token goes to the `used` experts of the highest score. The bias balances experts: it affects which are chosen,
// not how they are weighted. Returns the output and the experts of each token.
function mixture(x, part, { used, width }, count) {
  const [gateUp, down] = [part("experts.gate_up_proj"), part("experts.down_proj")];
  const there = down.shape[0];
  const expert = ({ shape: [, rows, columns], values }, e) => ({ shape: [rows, columns], values: values.subarray(e * rows * columns, (e + 1) * rows * columns) });
  const scores = linear(x, part("router.weight"), count).map((logit) => 1 / (1 + Math.exp(-logit)));
  const bias = part("router.e_score_correction_bias").values;
  const y = new Float64Array(count * width);
  const chosen = [];
  for (let t = 0; t < count; t++) {
    const mine = scores.subarray(t * there, (t + 1) * there);
    const best = [...mine.keys()].sort((a, b) => mine[b] + bias[b] - mine[a] - bias[a]).slice(0, used);
    const total = best.reduce((sum, e) => sum + mine[e], 0);
    for (const e of best) {
      const out = feedForward(x.subarray(t * width, (t + 1) * width), expert(gateUp, e), expert(down, e), 1);
      for (let k = 0; k < width; k++) y[t * width + k] += (mine[e] / total) * out[k];
    }
    chosen.push(best);
  }
  return [y, chosen];
}

function block(x, model, layer, count) {
  const { config, tensors } = model;
  const part = (name) => tensors[`model.loop.${layer}.${name}.weight`];
  const mixed = attend(linear(norm(x, part("input_layernorm"), config.eps, count), part("qkv_proj"), count), config, count);
  const y = add(x, linear(mixed, part("o_proj"), count));
  const inner = norm(y, part("post_attention_layernorm"), config.eps, count);
  if (config.experts === 1) return [add(y, feedForward(inner, part("mlp.gate_up_proj"), part("mlp.down_proj"), count)), null];
  const [out, chosen] = mixture(inner, (name) => tensors[`model.loop.${layer}.mlp.${name}`], config, count);
  return [add(y, out), chosen];
}

// After each of `passes` passes: the logits, a row for each token, and the experts of each token in the last layer.
export function runLooped(model, ids, passes) {
  const { config, tensors } = model;
  const count = ids.length;
  const table = tensors["model.embed_tokens.weight"].values;
  const input = Float64Array.from({ length: count * config.width }, (_, k) => table[ids[Math.floor(k / config.width)] * config.width + (k % config.width)]);
  const decay = Float64Array.from(tensors["model.injection.rate"].values, (rate) => Math.exp(-Math.exp(rate)));
  const gain = tensors["model.injection.gain"].values;
  const vocabulary = tensors["lm_head.weight"].shape[0];
  const all = [];
  let state = input;
  for (let pass = 0; pass < passes; pass++) {
    state = state.map((value, k) => decay[k % config.width] * value + gain[k % config.width] * input[k]);
    let experts = null;
    for (let layer = 0; layer < config.layers; layer++) [state, experts] = block(state, model, layer, count);
    const logits = linear(norm(state, tensors["model.norm.weight"], config.eps, count), tensors["lm_head.weight"], count);
    all.push({ logits: Array.from({ length: count }, (_, t) => [...logits.slice(t * vocabulary, (t + 1) * vocabulary)]), experts });
  }
  return all;
}
