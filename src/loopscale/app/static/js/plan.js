// The Plan view: reads the state, searches, and draws. Where there is no answer, the last one stays.
import { devicesOf } from "./cluster.js";
import { DATA } from "./data.js";
import { drawDetails } from "./details.js";
import { $, announce } from "./dom.js";
import { chosenLaw } from "./laws.js";
import { afterMap, drawMap } from "./map.js";
import { drawModel } from "./model.js";
import { drawMultiples } from "./multiples.js";
import { Refusal, parse } from "./quantities.js";
import { drawResult } from "./result.js";
import { designByHand, search, searchOn } from "./search.js";
import { drawSentence } from "./sentence.js";
import { DEFAULTS, state } from "./state.js";
import { drawWhatIfs } from "./whatif.js";

// What a scenario asks: the law, the budget's fields as numbers, and the designs to choose from.
export function question(values = state) {
  const law = chosenLaw(values.law);
  const limits = {};
  for (const field of DATA.fields) {
    const text = String(values[field.name] ?? "").trim();
    if (text) limits[field.name] = parse(field, text);
  }
  const devices = devicesOf(values);
  if (devices) {
    delete limits.flops;
    delete limits.real_flops;
  }
  const list = (text) => (text ? text.split(",") : undefined);
  const options = { rule: values.rule };
  if (values.rungs) options.rungs = rungsOf(list(values.rungs));
  if (values.continuous) options.continuous = true;
  if (values.experts) options.experts = list(values.experts).map(Number);
  if (values.passes) options.recurrences = Array.from({ length: wholePasses(values.passes) }, (_, k) => k + 1);
  if (values.eps) options.eps = epsOf(values.eps);
  return { law, limits, options, devices };
}

// The answer to a question.
export const find = ({ law, limits, options, devices }) =>
  devices ? searchOn(devices, law, limits, options) : search(law, limits, options);

function rungsOf(names) {
  const unknown = names.find((name) => !(name in DATA.extended));
  if (unknown) throw new Refusal(`${unknown} is no size of the ladder`, "rungs");
  return names;
}

function wholePasses(text) {
  const number = Number(text);
  if (!(Number.isInteger(number) && number >= 1 && number <= 32)) throw new Refusal("passes should be 1 to 32", "passes");
  return number;
}

function epsOf(text) {
  const eps = Number(text);
  if (!(eps >= 0 && eps <= 10)) throw new Refusal(`“${text}” is not a gain of zero or more`, "eps", "write it like 0.004");
  return eps;
}

// What would have to be allowed before this answer is given.
export const blockedBy = ({ law }, answer, values = state) =>
  [
    answer.trust.level === "beyond" && !values.extrapolate && "extrapolate",
    law.degenerate.length && !values.allow_degenerate && "allow_degenerate",
  ].filter(Boolean);

// What the page shows: the last answer, the question that it is to, and why there is none to a newer question.
export const shown = { answer: null, own: null, problem: null, withheld: null, asked: null };

const keyOf = ({ law, limits, options, devices }) =>
  JSON.stringify([law.name, limits, options, devices && [devices.hours, devices.cluster.name, devices.cluster.devices, devices.cluster.utilisation]]);

function update() {
  try {
    const asked = question();
    const key = keyOf(asked);
    if (!shown.answer || shown.key !== key || shown.law !== asked.law) {
      const answer = find(asked);
      if (asked.devices) asked.limits.real_flops = answer.b.real_flops;
      const blocked = blockedBy(asked, answer);
      if (blocked.length) {
        Object.assign(shown, { problem: null, withheld: { answer, blocked, asked } });
        shown.answer ??= firstAnswer(); // a link may lead straight to a withheld answer
        return;
      }
      Object.assign(shown, { answer, asked, key, law: asked.law });
    }
    shown.own = state.design ? designByHand(shown.answer, state.design) : null;
    Object.assign(shown, { problem: null, withheld: null });
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    Object.assign(shown, { problem: error, withheld: null });
    shown.answer ??= firstAnswer();
  }
}

// The answer of the first view, for a link that leads to none.
function firstAnswer() {
  shown.asked = question(DEFAULTS);
  return find(shown.asked);
}

// The design that the page is about: one that was chosen by hand, else the best one.
export const current = () => shown.own ?? { design: shown.answer.choice, answer: shown.answer };

// The question as the server's API takes it, without its law.
export function requestBody() {
  const { limits, options } = shown.asked;
  const body = { ...limits, rule: state.rule };
  for (const name of ["rungs", "continuous", "experts", "recurrences", "eps"]) if (options[name] !== undefined) body[name] = options[name];
  for (const name of ["extrapolate", "allow_degenerate"]) if (state[name]) body[name] = true;
  return body;
}

let later = 0;
// Draws what follows a drag at once, and the rest when the page has come to rest.
export function updatePlan({ draft = false } = {}) {
  document.documentElement.dataset.busy = "true";
  update();
  const stale = Boolean(shown.problem || shown.withheld);
  $("#plan-view").classList.toggle("stale", stale);
  drawSentence();
  drawResult({ sure: !draft });
  drawModel();
  drawMap();
  drawMultiples();
  clearTimeout(later);
  later = setTimeout(settle, draft ? 120 : 0);
}

function settle() {
  drawResult({ sure: true });
  drawMultiples({ sure: true });
  drawDetails();
  announce($("#sentence").textContent);
  afterMap(() => {
    drawWhatIfs();
    delete document.documentElement.dataset.busy;
  });
}
