// Words of the trade, explained where they stand: on hover, on focus and on tap, by one note for the whole page.
import { $, make } from "./dom.js";

const TERMS = {
  loss: "How badly a model predicts text that it has not seen: the cross-entropy, in nats per token. Lower is better; 0.01 nats is about 1% in perplexity.",
  nats: "The unit of loss: natural logarithms. One nat is 1.44 bits.",
  interval: "Where nine of ten training runs of this design should end, if the law holds. It counts the noise of a run and the error of the law.",
  band: "The 90% interval of the law's curve. A single training run varies more.",
  tokens: "Pieces of text that the model is trained on. The compute is spent on size, passes and tokens together.",
  flops: "Floating-point operations of the whole training, 6 × parameters that a token uses × tokens. A looped layer counts once for each pass.",
  days: "Training time at 40% of the listed speed, with what the budget's FLOPs leave out: output head, attention, padding of experts, and layers that are computed again to save memory. Choose devices in the sentence above.",
  memory: "What the model needs when it runs: all weights at the chosen bits, embeddings included, and the KV cache where a context is set.",
  bits: "Bits that store one weight. What rounding to few bits costs is not in the predicted loss.",
  speed: "The most tokens a second for one sequence: memory bandwidth divided by the bytes that one token reads. Real programs reach a part of it.",
  law: "A formula for the loss from size, tokens, experts and passes, fitted to measured training runs.",
  trust: "How far the answer lies from the runs that the law was fitted to. Slightly: up to 3× beyond. Far: up to 10×. Farther answers are withheld.",
  size: "Parameters that one token uses in one pass, embeddings included, as model cards count.",
  experts: "A mixture-of-experts layer holds many feed-forward networks, the experts. A router sends each token to a few of them: 2 of 16 means that 16 are stored and 2 compute.",
  passes: "How many times a token runs through the looped layers. They are the same weights each time. One pass is a model without looping.",
  dense: "A model without experts: every weight works on every token.",
  loop: "The middle layers, which run several times. More passes cost compute, but no memory for weights.",
  embeddings: "The table of token vectors, which is also the output layer.",
  "kv cache": "Keys and values of earlier positions, which generation keeps. Each pass has its own.",
  contours: "Lines of equal loss.",
  "beyond the data": "More than 3× outside the range of sizes, tokens, experts or passes that the law was fitted on.",
  rung: "A size of the paper's ladder of models, named after the parameters that a token uses.",
  residuals: "Predicted minus observed logarithm of the loss, one for each row of the data. A law that fits leaves no pattern.",
  rmse: "Root-mean-square error: how far the law misses a typical row of its data, in nats.",
  "r²": "The share of the variance of the losses that the law explains.",
  frontier: "The lowest loss that the law reaches at each training compute, over sizes and tokens.",
  backtest: "The law is fitted without the largest runs, and then predicts them.",
  "held-out test": "Each form of the law is fitted without some rows, and then predicts them. The one with the smallest error generalises best.",
  identified: "Whether the data determine the coefficient. If not, other values fit as well.",
  "inference flops": "Floating-point operations for one generated token: 2 × parameters that it uses, the looped ones once for each pass.",
  context: "How many tokens the model sees at once. Their keys and values are kept in memory while it generates.",
  permutation: "A way to reorder things. 231 puts the first where the second was, the second where the third was, and the third where the first was. Doing one after another gives another permutation, their product.",
  "early exit": "Stopping the passes of a position as soon as its answer no longer changes.",
  seed: "The number that fixes the random start of a training run. Runs that differ only in it show what is chance.",
  chance: "What guessing would reach.",
  starts: "The fit is started from many points. If most end at the same law, it is not a chance result.",
}; // prettier-ignore

// A word with its explanation.
export const term = (name, text = name) =>
  make("button", { type: "button", class: "term", "data-term": name, "aria-describedby": "term-note" }, text);

let shownFor = null;
function place(element) {
  const note = ($("#term-note") ?? document.body.appendChild(make("div", { id: "term-note", role: "tooltip" })));
  shownFor = element;
  note.textContent = TERMS[element.dataset.term];
  note.classList.add("shown");
  const box = element.getBoundingClientRect();
  const width = Math.min(300, innerWidth - 24);
  note.style.width = `${width}px`;
  note.style.left = `${Math.min(Math.max(box.left, 12), innerWidth - width - 12)}px`;
  const below = box.bottom + 8 + note.offsetHeight < innerHeight;
  note.style.top = `${below ? box.bottom + 6 : box.top - note.offsetHeight - 6}px`;
}
function hide() {
  shownFor = null;
  $("#term-note")?.classList.remove("shown");
}
const termOf = (event) => event.target.closest?.("[data-term]");
for (const kind of ["pointerover", "focusin", "click"])
  document.addEventListener(kind, (event) => {
    const element = termOf(event);
    if (element) place(element);
    else if (shownFor && kind !== "focusin") hide();
  });
document.addEventListener("focusout", () => hide());
// Focus may scroll to the word: the note goes with it, as long as it is seen.
addEventListener("scroll", () => {
  const box = shownFor?.getBoundingClientRect();
  if (box) box.bottom < 0 || box.top > innerHeight ? hide() : place(shownFor);
}, { passive: true }); // prettier-ignore
document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
