// Terms explained on hover and on focus: what a thing is, its formula where it has one, and its unit.
import { make } from "./dom.js";

const TERMS = {
  E: "Experts per active one: a layer holds E times as many expert weights as one token uses. E = 1 is a dense model.",
  R: "Recurrence: how many times a token passes through the loop block. R = 1 is a model without looping.",
  "R*": "The number of passes that the rule chooses: the last one that lowers the loss by at least ε.",
  "E*": "The number of experts that the rule chooses: the last step that lowers the loss by at least ε.",
  ε: "Minimum gain per step, in nats per token. Unless you set it, the root-mean-square error of the law's fit.",
  active:
    "Parameters that one token uses in one pass, embeddings included, as model cards count. The law counts N_act, without embeddings.",
  total: "Parameters that the model stores, embeddings included, as model cards count. The law counts N_total, without embeddings.",
  experts: "Experts that a token uses in each layer, of those that the layer holds. The law counts E, their ratio.",
  effective: "The size of a model without looping that would reach the same loss: N_eff = N_act + gain(R) × N_loop.",
  loss: "Cross-entropy on held-out text, in nats per token. Lower is better.",
  compute:
    "Training compute in floating-point operations: 6 × N_unroll × D, where N_unroll counts the loop block R times and D is the number of tokens.",
  memory:
    "Bytes at inference: all weights at the chosen bits, embeddings included, and the KV cache where a context is set.",
  inference: "FLOPs to generate one token: 2 × N_unroll.",
  generation:
    "The most tokens a second for one sequence, a roofline: the bytes that one token reads (weights of all passes, output head, KV cache) divided by the memory's bandwidth. Real programs reach a part of it.",
  rung: "A size of the paper's ladder, named after its active parameters with embeddings.",
  trust:
    "How far the answer lies from the data the law was fitted on. Inside: within them. Near: up to 3× beyond. Far: up to 10×. Beyond: farther.",
  agreement: "The share of laws refitted to resampled runs under which this choice is within ε of the best.",
  law: "A formula for the loss from size, tokens, experts and passes, fitted to measured runs.",
  residuals: "Predicted minus observed ln(loss), one for each row of the data.",
};

// Adds the explanation of a term to an element: on hover, on focus, on tap.
export function explain(element, term) {
  if (!element || element.dataset.explained) return;
  element.dataset.explained = "true";
  const id = `term-${term}`;
  element.append(
    make(
      "span",
      { class: "term-holder" },
      make("button", { type: "button", class: "term-mark", "aria-label": `What is ${term}?`, "aria-describedby": id }, "?"),
      make("span", { class: "note-popup", role: "tooltip", id }, TERMS[term]),
    ),
  );
}
