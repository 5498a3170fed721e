// The plan: one request for each state, and everything on the page drawn from its answer.
import { call, latest } from "./api.js";
import { bestExperts, bestRecurrence, isoflop, pareto } from "./charts.js";
import { blame, inPageTerms, planRequest, plausible, settle, showControls, toldWithField, typing } from "./controls.js";
import { $, $$, announce, button, copy, make, problem, segmented, sentence, table, toast, write } from "./dom.js";
import { download } from "./download.js";
import { figure, moveRule } from "./figure.js";
import { bytes, cardSize, count, experts, interval, label, loss, mixture, percent, power, rows, size } from "./format.js";
import { explainTerms } from "./glossary.js";
import { lawOf, resendLaws } from "./laws.js";
import { pin } from "./pins.js";
import { set, state } from "./state.js";

let answer = null;
const centre = { flops: null };

// While compute is dragged, charts over compute stay where they were when the drag began.
export const holdCentre = (on) => {
  centre.flops = on && answer ? (centre.flops ?? answer.plan.budget.flops) : null;
};

export async function askPlan(body, path = "plan") {
  try {
    return await call(path, { body });
  } catch (error) {
    if (error.status !== 404 || !String(body.law).startsWith("own-")) throw error;
    await resendLaws();
    return call(path, { body });
  }
}

const CHARTS = ["designs", "best-recurrence", "best-experts"];
const WHOLE = 400;
let whole = 0; // when the last whole answer was asked for

// While a control is dragged, the answer and the charts that change with it follow at once; the whole answer, with its
// tables and maps, follows a few times a second and once the control is let go.
function request() {
  const light = centre.flops && answer && !typing.spec && performance.now() - whole < WHOLE;
  if (light)
    return { ...planRequest([state.iso, "designs"]), config: undefined, centre: centre.flops, draft: true };
  whole = performance.now();
  const body = planRequest([state.iso, ...CHARTS]);
  const draft = { centre: centre.flops, top: state.table === "candidates" ? undefined : 1 };
  return centre.flops ? { ...body, ...draft } : body;
}

const merged = (reply) => ({
  ...answer,
  ...reply,
  plan: { ...answer.plan, ...reply.plan },
  sentences: { ...answer.sentences, ...reply.sentences },
  charts: { ...answer.charts, ...reply.charts },
});

export const updatePlan = latest(
  $("#plan-view"),
  () => askPlan(request()),
  (reply) => {
    if (!plausible(reply.plan.budget)) return; // half typed: the last answer stays
    const light = !reply.limits;
    answer = light ? merged(reply) : reply;
    settle(answer.plan.budget);
    fresh(true);
    problem($("#problem"), null);
    blame(null);
    drawPlan(light);
  },
  (error) => {
    if (error.overrides?.length) return withhold(error, planRequest([]));
    if (blame(error) && typing.spec) return undefined; // said beside the control; the last answer stays
    fresh(false);
    return problem($("#problem"), new Error(toldWithField(error)));
  },
);

// Without a current answer, the page shows why, and no old one.
function fresh(is) {
  $("#plan-view").classList.toggle("stale", !is);
  $("#withheld").hidden = true;
  if (is) return;
  $("#trust").hidden = true;
  $("#glance").textContent = "No answer under these limits";
  delete $("#glance").dataset.level;
}

// An answer far beyond the data is not shown until it is asked for.
function withhold(error, body) {
  fresh(false);
  // The budget that was read moves the sliders; nothing else of this answer is shown.
  const anyway = Object.fromEntries(error.overrides.map((name) => [name, true]));
  askPlan({ ...body, ...anyway, draft: true }).then(({ plan }) => settle(plan.budget), () => {});
  problem($("#problem"), null);
  $("#withheld").hidden = false;
  const reason = inPageTerms(error.problem);
  $("#withheld-reason").textContent = sentence(reason);
  withheld.overrides = error.overrides;
  showTrust({ level: "beyond", title: "Answer withheld", reasons: [] });
  $("#glance").textContent = "Answer withheld";
  announce(`Answer withheld. ${reason}`);
}
const withheld = { overrides: [] };

function showTrust({ level, title, reasons }) {
  const banner = $("#trust");
  banner.hidden = false;
  banner.dataset.level = level;
  write($("#trust-title"), title);
  const list = reasons.map(sentence);
  if ($$("#trust-reasons li").map((item) => item.textContent).join("\n") !== list.join("\n"))
    $("#trust-reasons").replaceChildren(...list.map((reason) => make("li", {}, reason)));
  $("#glance").dataset.level = level;
}

export function drawPlan(light = false) {
  if (!answer) return;
  const { plan, sentences, trust } = answer;
  showTrust(trust);
  write($("#given"), sentences.budget);
  write($("#sentence"), sentences.answer);
  write($("#interval"), sentences.interval);
  write($("#edge"), sentences.edge && sentence(sentences.edge));
  write($("#glance"), `${label(plan.choice)} · loss ${loss(plan.choice.loss)} · trust: ${trust.level}`);
  showFacts(facts(plan));
  write($("#certainty"), sentence(sentences.confidence));
  write($("#legend"), sentences.legend);
  if (!light) document.title = `${label(plan.choice)} · loopscale`;
  announce(`${sentences.answer}. ${trust.title}.`);
  drawCharts(light);
  drawMemory();
  if (light) return;
  drawLimits();
  drawTable();
}

function facts({ choice, budget, interval: span, agreement, lead }) {
  return [
    {
      name: "Predicted loss",
      term: "loss",
      value: loss(choice.loss),
      note: span ? interval(span) : "nats per token",
    },
    {
      name: "Total parameters",
      term: "total",
      value: cardSize(choice.total_parameters),
      note: `with embeddings; ${size(choice.total)} as the law counts`,
    },
    {
      name: "Active parameters",
      term: "active",
      value: cardSize(choice.active_parameters),
      note: `with embeddings; ${size(choice.active)} as the law counts`,
    },
    {
      name: "Experts",
      term: "experts",
      value: experts(choice),
      note: choice.experts_total === 1 ? "no experts" : `used by each token; E = ${choice.experts} as the law counts`,
    },
    { name: "Training", value: `${count(choice.tokens)} tokens`, note: `${power(choice.train_flops)} FLOPs` },
    {
      name: "Memory",
      term: "memory",
      value: bytes(choice.weight_bytes + choice.kv_bytes),
      note: choice.kv_bytes ? "weights and KV cache" : "weights",
    },
    {
      name: "Inference",
      term: "inference",
      value: `${count(choice.inference_flops)} FLOPs`,
      note: "per generated token",
    },
    ...(choice.tokens_per_second == null
      ? []
      : [
          {
            name: "Generation",
            term: "generation",
            value: `≤ ${count(choice.tokens_per_second)} tokens/s`,
            note: `one sequence at ${bytes(budget.bandwidth)}/s`,
          },
        ]),
    agreement == null
      ? { name: "Lead", value: lead == null ? "–" : loss(lead), note: "nats below the runner-up" }
      : {
          name: "Agreement",
          term: "agreement",
          value: percent(agreement),
          note: "of resampled laws",
          share: agreement,
        },
  ];
}

// The same facts as before only change their texts.
function showFacts(list) {
  const shown = $$("#facts > div");
  const same = shown.length === list.length && shown.every((element, k) => element.dataset.name === list[k].name);
  if (!same) {
    $("#facts").replaceChildren(...list.map(fact));
    explainTerms($("#facts"));
    return;
  }
  list.forEach(({ name, value, note, share }, k) => {
    write($(".value", shown[k]), value);
    write($(".note", shown[k]), note);
    const meter = $("meter", shown[k]);
    if (meter) Object.assign(meter, { value: share ?? 0, ariaLabel: `${name}: ${percent(share ?? 0)}` });
  });
}

function fact({ name, term, value, note, share }) {
  const bar =
    share != null
      ? make(
          "dd",
          { class: "bar" },
          make("meter", { min: 0, max: 1, value: Math.min(share, 1), "aria-label": `${name}: ${percent(share)}` }),
        )
      : null;
  return make(
    "div",
    { "data-name": name },
    make("dt", { "data-term": term }, name),
    make("dd", { class: "value" }, value),
    bar,
    make("dd", { class: "note" }, note),
  );
}

// Which limits hold the loss up, and what twice as much of each would buy.
function drawLimits() {
  const columns = [
    { name: "limit", left: true, cell: (d) => d.label },
    { name: "used", cell: (d) => d.used },
    {
      name: "share",
      wide: true,
      cell: (d) =>
        d.share == null
          ? ""
          : make("meter", {
              min: 0,
              max: 1,
              value: Math.min(d.share, 1),
              "aria-label": `${d.label}: ${percent(d.share)} used`,
              title: percent(d.share),
            }),
    },
    { name: "binding", cell: (d) => (d.binding ? make("b", {}, "binds") : "no") },
    { name: "if loosened", left: true, cell: (d) => d.text },
  ];
  const { limits, sentences } = answer;
  $("#limits").replaceChildren(
    ...(limits.length ? table(columns, limits, (d) => ({ class: d.binding ? "binds" : null })) : []),
  );
  $("#limits-note").textContent = sentences.prices ? sentence(sentences.prices) : "";
}

function drawMemory() {
  const { memory } = answer;
  const key = JSON.stringify(memory);
  if ($("#memory-bar").dataset.shown === key) return;
  $("#memory-bar").dataset.shown = key;
  const parts = [
    ["weights", "Weights", memory.weights],
    ["embeddings", "Embeddings", memory.embeddings],
    ["cache", "KV cache", memory.cache],
  ].filter(([, , value]) => value > 0);
  const used = parts.reduce((sum, [, , value]) => sum + value, 0);
  const whole = Math.max(memory.limit ?? 0, used);
  const bar = parts.map(([kind, , value]) =>
    make("span", { class: `part ${kind}`, style: `width: ${(100 * value) / whole}%` }),
  );
  const keys = parts.map(([kind, name, value]) => make("li", { class: kind }, `${name} ${bytes(value)}`));
  if (memory.limit)
    keys.push(
      make("li", { class: "free" }, `free ${bytes(Math.max(0, memory.limit - used))} of ${bytes(memory.limit)}`),
    );
  $("#memory-bar").replaceChildren(
    make(
      "div",
      { class: "stack", role: "img", "aria-label": `Memory: ${keys.map((key) => key.textContent).join(", ")}` },
      bar,
    ),
    make("ul", {}, keys),
  );
}

function drawCharts(light) {
  const { plan, charts, sentences, trust } = answer;
  const { choice, budget } = plan;
  const flops = budget.flops ?? choice.train_flops;
  const about = `${sentences.budget} Law ${plan.law}. Trust in the choice: ${trust.level}.`;
  const iso = rows(charts[state.iso] ?? {});
  const fixed = { recurrence: `E=${choice.experts}`, size: `E=${choice.experts}`, experts: `R=${choice.recurrence}` }[
    state.iso
  ];
  if (iso.length) figure("chart-isoflop", (title) => isoflop(iso, state.iso, choice, title, sentences.bands), iso, `${about} ${fixed}.`);
  const designs = rows(charts.designs);
  const limit = state.cost === "memory" ? budget.memory : budget.inference_flops;
  const own = answer.own?.loss == null ? null : answer.own;
  figure("chart-pareto", (title) => pareto(designs, state.cost, limit, title, own, sentences.bands), designs, about);
  if (light) {
    moveRule("chart-best-recurrence", flops);
    moveRule("chart-best-experts", budget.memory);
    return;
  }
  const R = rows(charts["best-recurrence"]);
  const hintR = `E=${choice.experts}, a line for each size.`;
  figure("chart-best-recurrence", (title) => bestRecurrence(R, flops, title, hintR), R, `${about} ${hintR}`);
  const E = rows(charts["best-experts"]);
  const hintE = "With the best size that fits, a line for each number of passes R.";
  figure("chart-best-experts", (title) => bestExperts(E, budget.memory, title, hintE), E, `${about} ${hintE}`);
}

const marked = (text, d, axis) => `${text}${d.extrapolated.includes(axis) ? "†" : ""}`;
const code = (d) => (d.own ? "config" : `${d.rung}:${d.experts}:${d.recurrence}`);
// Each design has its own level of trust, which can differ from that of the choice.
function levelOf(d) {
  return make("span", { class: "level", "data-level": d.trust }, d.trust);
}
const COLUMNS = [
  {
    name: "size",
    left: true,
    title: "a rung of the ladder, by its active parameters with embeddings",
    cell: (d) => marked(d.rung, d, "size"),
  },
  {
    name: "experts",
    head: "MoE",
    title: "experts that a token uses / experts of a layer",
    cell: (d) => marked(mixture(d), d, "experts"),
  },
  { name: "R", title: "passes through the loop", cell: (d) => marked(d.recurrence, d, "recurrence") },
  { name: "active", title: "parameters that a token uses, with embeddings", wide: true, cell: (d) => cardSize(d.active_parameters) },
  { name: "tokens", wide: true, cell: (d) => marked(count(d.tokens), d, "tokens") },
  { name: "loss", cell: (d) => loss(d.loss) + (d.extrapolated.length ? "†" : "") },
  { name: "trust", title: "how far the loss can be trusted", cell: levelOf },
  { name: "memory", wide: true, cell: (d) => bytes(d.weight_bytes + d.kv_bytes) },
  { name: "FLOPs/token", wide: true, cell: (d) => count(d.inference_flops) },
  { name: "verdict", left: true, cell: (d) => (d.own ? `your model: ${d.verdict}` : d.verdict) },
  {
    name: "",
    class: "narrow",
    cell: (d) =>
      button("pin", () => pin(state, code(d), label(d)), {
        class: "quiet",
        "aria-label": `Pin ${label(d)} to compare it`,
      }),
  },
];

function drawTable() {
  const { plan } = answer;
  const own = answer.own ? [answer.own] : [];
  const [first, ...others] = state.table === "rivals" ? [plan.choice, ...plan.rivals] : plan.candidates;
  const listed = [first, ...own, ...others];
  $("#table").replaceChildren(
    ...table(COLUMNS, listed, (d) => ({
      class: d.verdict === "chosen" ? "chosen" : d.own ? "own" : d.ruled_out_by ? "out" : null,
    })),
  );
}

// The best other admissible design, which Compare shows beside the choice unless something is pinned.
export function runnerUp() {
  const other = answer?.plan.candidates.find((d) => d.verdict !== "chosen" && !d.ruled_out_by);
  const near = other ?? answer?.plan.rivals[0];
  return near ? { design: code(near), name: label(near) } : null;
}

export function buildPlan() {
  const actions = {
    "#pin": () => answer && pin(state, state.design, label(answer.plan.choice)),
    "#copy-command": () => answer && copy(answer.copy.command, "Command", lawNeeded()),
    "#copy-python": () => answer && copy(answer.copy.python, "Python", lawNeeded()),
    "#copy-config": () => answer && copy(answer.copy.config, "Training config"),
    "#plan-json": () =>
      answer && download("plan.json", JSON.stringify(answer.plan, null, 1) + "\n", "application/json"),
    "#law-json": saveLaw,
    "#plan-csv": () => fetched("plan.csv", "designs.csv", "text/csv", { top: 500 }),
    "#plan-report": () => fetched("plan.html", "plan.html", "text/html"),
    "#show-anyway": () => set(Object.fromEntries(withheld.overrides.map((name) => [name, "1"]))),
  };
  for (const [selector, work] of Object.entries(actions)) $(selector).onclick = work;
}

// A command names a law of one's own by its file.
const lawNeeded = () => (answer.copy.law_file ? `It reads ${answer.copy.law_file}; Law (JSON) saves it.` : "");

async function saveLaw() {
  try {
    const law = await call(`laws/${encodeURIComponent(lawOf(state.law).id)}`);
    download(`${law.name}.json`, JSON.stringify(law, null, 1) + "\n", "application/json");
  } catch (error) {
    toast(sentence(error.message));
  }
}

async function fetched(path, name, type, more = {}) {
  try {
    download(name, await askPlan({ ...planRequest([]), ...more }, path), type);
  } catch (error) {
    toast(sentence(error.message));
  }
}

export function showPlan() {
  showControls();
  segmented($("#iso-axis"), state.iso, (iso) => set({ iso }));
  segmented($("#pareto-cost"), state.cost, (cost) => set({ cost }));
  segmented($("#table-mode"), state.table, (mode) => set({ table: mode }));
}
