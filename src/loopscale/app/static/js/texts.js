// The plan at hand as a command and as Python, as loopscale.app.plan_reply writes them; a test compares the two.
import { FIELD, idleFields } from "./budget.js";
import { DATA } from "./data.js";
import { lawOf } from "./laws.js";
import { amountOf, general, parse } from "./quantities.js";
import { shown } from "./plan.js";
import { state } from "./state.js";

// What differs from the defaults and counts.
function chosen(set) {
  const idle = idleFields(set);
  return DATA.fields.filter(({ name, default: none }) => set[name] !== undefined && set[name] !== none && !idle.includes(name)).map(({ name }) => [name, set[name]]);
}

// As people write it where that reads back as the same number, else with all its digits.
function exact(name, value) {
  const text = amountOf(FIELD[name], value).replace(/[ ,]/g, "");
  try {
    if (parse(FIELD[name], text) === value) return text;
  } catch {
    // written in full
  }
  return String(value);
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
const lawName = () => {
  const law = lawOf(state.law);
  return law?.file ? `${law.name}.json` : (law?.name ?? DATA.law);
};

export function commandText() {
  const { answer, asked } = shown;
  const limits = Object.fromEntries(chosen(answer.b.set));
  const words = [];
  if (state.gpus) {
    delete limits.real_flops;
    words.push(`--gpus ${state.gpus} --device ${state.device || "h100"} --days ${state.days}`);
    if (state.utilisation) words.push(`--utilisation ${state.utilisation}`);
  }
  if (state.where) {
    const preset = DATA.presets.find(({ name }) => name === state.where);
    words.push(`--for ${state.where}`);
    for (const [name, text] of Object.entries(preset.limits)) if (limits[name] === parse(FIELD[name], text)) delete limits[name];
  }
  for (const [name, value] of Object.entries(limits)) words.push(`${FIELD[name].option} ${exact(name, value)}`);
  if (asked.options.rungs) words.push(`--rung ${asked.options.rungs.join()}`);
  if (asked.options.continuous) words.push("--continuous");
  if (asked.options.experts) words.push(`--experts ${asked.options.experts.join()}`);
  if (asked.options.recurrences) words.push(`--recurrence ${asked.options.recurrences.join()}`);
  if (asked.options.eps !== undefined) words.push(`--eps ${asked.options.eps}`);
  if (state.rule === "loss") words.push("--rule loss");
  words.push(`--law ${quoted(lawName())}`);
  if (state.extrapolate) words.push("--extrapolate");
  if (answer.law.degenerate.length) words.push("--allow-degenerate");
  return `loopscale plan ${words.join(" ")}`;
}

const literal = (value) => (value >= 1e15 ? String(value).replace("e+", "e") : Number.isInteger(value) && value >= 1e6 ? general(value, 15).replace("e+", "e") : String(value));

export function pythonText() {
  const { answer, asked } = shown;
  const lines = [];
  let imported = "";
  const { rungs, continuous, experts, recurrences } = asked.options;
  if (rungs || continuous || experts || recurrences) {
    const kind = continuous ? "continuous_space" : "ladder_space";
    const list = (values) => `[${values.map((value) => (typeof value === "string" ? `'${value}'` : value)).join(", ")}]`;
    const parts = [rungs && `rungs=${list(rungs)}`, experts && `experts=${list(experts)}`, recurrences && `recurrences=${list(recurrences)}`].filter(Boolean);
    const free = [!experts && "'experts'", !recurrences && "'recurrence'", !rungs && "'size'"].filter(Boolean);
    if (free.length) parts.push(`free=[${free.join(", ")}]`);
    imported = `from loopscale.architecture import ${kind}\n`;
    lines.push(`space=${kind}(${parts.join(", ")})`);
  }
  for (const [name, value] of chosen(answer.b.set)) if (!state.gpus || name !== "real_flops") lines.push(`${name}=${FIELD[name].write === "bytes" ? `'${exact(name, value)}'` : literal(value)}`);
  if (state.gpus) {
    lines.push(`gpus=${state.gpus}`, `device='${state.device || "h100"}'`, `days=${state.days}`);
    if (state.utilisation) lines.push(`utilisation='${state.utilisation}'`);
  }
  if (asked.options.eps !== undefined) lines.push(`eps=${asked.options.eps}`);
  if (state.rule === "loss") lines.push("rule='loss'");
  lines.push(`law='${lawName()}'`);
  if (state.extrapolate) lines.push("extrapolate=True");
  if (answer.law.degenerate.length) lines.push("allow_degenerate=True");
  return `import loopscale as ls\n${imported}\nbest = ls.plan(\n${lines.map((line) => `    ${line},\n`).join("")})\nprint(best)\n`;
}
