// The plan: one request for each state, and everything on the page drawn from its answer.
import { call, latest } from "./api.js";
import { bestExperts, bestRecurrence, isoflop, pareto } from "./charts.js";
import { blame, planRequest, settle, showControls } from "./controls.js";
import { $, make, problem, segmented, table } from "./dom.js";
import { download } from "./download.js";
import { figure } from "./figure.js";
import { bytes, count, label, loss, percent, power, rows, size } from "./format.js";
import { resendLaws } from "./laws.js";
import { set, state } from "./state.js";

let answer = null;

export async function askPlan(body) {
  try {
    return await call("plan", { body });
  } catch (error) {
    if (error.status !== 404 || !String(body.law).startsWith("own-")) throw error;
    await resendLaws();
    return call("plan", { body });
  }
}

export const updatePlan = latest($("#plan-view"), async () => {
  try {
    answer = await askPlan(planRequest([state.iso, "designs", "best-recurrence", "best-experts"]));
    settle(answer.plan.budget);
    $("#plan-view").classList.remove("stale");
    problem($("#problem"), null);
    blame(null);
    drawPlan();
  } catch (error) {
    $("#plan-view").classList.add("stale");
    problem($("#problem"), error);
    blame(error);
  }
});

export function drawPlan() {
  if (!answer) return;
  const { plan, words } = answer;
  $("#given").textContent = given(plan.budget);
  $("#sentence").replaceChildren(...emphasised(words.answer));
  $("#glance").textContent = `${label(plan.choice)} · loss ${loss(plan.choice.loss)}`;
  $("#facts").replaceChildren(...facts(plan).map(fact));
  $("#certainty").textContent = `${words.certainty}.`;
  $("#legend").textContent = words.legend;
  document.title = `${label(plan.choice)} · loopscale`;
  drawCharts(answer);
  drawTable();
}

function given(budget) {
  const parts = [`With ${power(budget.flops)} FLOPs of training compute`];
  if (budget.memory)
    parts.push(
      `${bytes(budget.memory)} of memory${budget.context ? ` for weights and a context of ${budget.context}` : ""}`,
    );
  parts.push(`weights in ${budget.bits} bits`);
  if (budget.max_tokens) parts.push(`at most ${count(budget.max_tokens)} tokens to train on`);
  if (budget.serve_tokens) parts.push(`${count(budget.serve_tokens)} tokens to serve`);
  if (budget.inference_flops) parts.push(`at most ${count(budget.inference_flops)} FLOPs a generated token`);
  return `${parts.join(", ")}:`;
}

// The numbers of the sentence stand out; the dagger explains itself.
function emphasised(text) {
  return text
    .split(/(\d[\d.]*(?:e\+?\d+)?[A-Z]?†?)/)
    .map((part, k) =>
      k % 2 ? make("b", { title: part.endsWith("†") ? "outside the range the law was fitted on" : null }, part) : part,
    );
}

function facts({ choice, budget, agreement, lead, eps }) {
  const band = choice.loss_low == null ? "nats per token" : `90%: ${loss(choice.loss_low)} – ${loss(choice.loss_high)}`;
  const memory = choice.weight_bytes + choice.kv_bytes;
  const cache = choice.kv_bytes ? `, ${bytes(choice.kv_bytes)} of it KV cache` : "";
  return [
    { name: "Predicted loss", value: loss(choice.loss), note: band },
    {
      name: "Parameters",
      value: size(choice.total),
      note: `${size(choice.active)} active, worth ${size(choice.effective)}`,
    },
    { name: "Training", value: `${count(choice.tokens)} tokens`, note: `${power(choice.train_flops)} FLOPs` },
    {
      name: "Memory",
      value: bytes(memory),
      note: budget.memory ? `of ${bytes(budget.memory)}${cache}` : `at ${budget.bits} bits${cache}`,
      share: budget.memory && memory / budget.memory,
    },
    {
      name: "Inference",
      value: `${count(choice.inference_flops)} FLOPs`,
      note: budget.inference_flops ? `a token, of ${count(budget.inference_flops)}` : "a generated token",
      share: budget.inference_flops && choice.inference_flops / budget.inference_flops,
    },
    agreement == null
      ? {
          name: "Lead",
          value: lead == null ? "–" : loss(lead),
          note: lead != null && lead < eps ? "below ε: a toss-up" : "over the next design",
        }
      : { name: "Agreement", value: percent(agreement), note: "of resampled laws choose the same", share: agreement },
  ];
}

function fact({ name, value, note, share }) {
  const bar = share
    ? make("meter", { min: 0, max: 1, value: Math.min(share, 1), "aria-label": `${name}: ${percent(share)}` })
    : null;
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), bar, make("dd", { class: "note" }, note));
}

function drawCharts({ plan, charts }) {
  const { choice, budget } = plan;
  const flops = budget.flops ?? choice.train_flops;
  const iso = rows(charts[state.iso] ?? {});
  const along = {
    recurrence: `E=${choice.experts}, one line for each size`,
    size: `E=${choice.experts}, sizes between the rungs too`,
    experts: `R=${choice.recurrence}, one line for each size`,
  };
  if (iso.length)
    figure(
      "chart-isoflop",
      (width) => isoflop(width, iso, state.iso, choice),
      iso,
      `${power(flops)} FLOPs, ${along[state.iso]}. ★ best of its line, ○ outside the fitted range; the ring is the choice.`,
    );
  const designs = rows(charts.designs);
  const limit = state.cost === "memory" ? budget.memory : budget.inference_flops;
  figure(
    "chart-pareto",
    (width) => pareto(width, designs, state.cost, limit),
    designs,
    "No other design beats those on the line in both. Pale dots are ruled out.",
  );
  const R = rows(charts["best-recurrence"]);
  figure(
    "chart-best-recurrence",
    (width) => bestRecurrence(width, R, flops),
    R,
    `E=${choice.experts}, a line for each size${plan.agreement == null ? "" : "; ○ where under 80% of resampled laws agree"}.`,
  );
  const E = rows(charts["best-experts"]);
  figure(
    "chart-best-experts",
    (width) => bestExperts(width, E, budget.memory),
    E,
    `With the best size that fits, a line for each R${plan.agreement == null ? "" : "; ○ where under 80% of resampled laws agree"}.`,
  );
}

const COLUMNS = [
  { name: "size", left: true, cell: (d) => marked(d.rung, d, "size") },
  { name: "E", title: "experts for each active one", cell: (d) => marked(d.experts, d, "experts") },
  { name: "R", title: "passes through the loop", cell: (d) => marked(d.recurrence, d, "recurrence") },
  { name: "active", wide: true, cell: (d) => size(d.active) },
  { name: "tokens", wide: true, cell: (d) => marked(count(d.tokens), d, "tokens") },
  { name: "loss", cell: (d) => loss(d.loss) + (d.extrapolated.length ? "†" : "") },
  { name: "memory", wide: true, cell: (d) => bytes(d.weight_bytes + d.kv_bytes) },
  { name: "FLOPs/token", wide: true, cell: (d) => count(d.inference_flops) },
  { name: "verdict", left: true, cell: (d) => d.verdict },
  {
    name: "",
    wide: true,
    cell: (d) =>
      make(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-label": `Compare ${label(d)} with the choice`,
          onclick: () => set({ view: "compare", designA: "", designB: code(d), lawA: state.law, lawB: state.law }),
        },
        "compare",
      ),
  },
];
const marked = (text, d, axis) => `${text}${d.extrapolated.includes(axis) ? "†" : ""}`;
export const code = (d) => `${d.rung}:${d.experts}:${d.recurrence}`;

function drawTable() {
  const { plan } = answer;
  const listed = state.table === "rivals" ? [plan.choice, ...plan.rivals] : plan.candidates;
  $("#table").replaceChildren(
    ...table(COLUMNS, listed, (d) => ({ class: d.verdict === "chosen" ? "chosen" : d.ruled_out_by ? "out" : null })),
  );
}

export function buildPlan() {
  $("#plan-json").onclick = () =>
    answer && download("plan.json", JSON.stringify(answer.plan, null, 1) + "\n", "application/json");
  $("#plan-csv").onclick = async () => {
    const body = { ...planRequest([]), top: 500 };
    download("designs.csv", await call("plan.csv", { body }), "text/csv");
  };
}

export function showPlan() {
  showControls();
  segmented($("#iso-axis"), state.iso, (iso) => set({ iso }));
  segmented($("#pareto-cost"), state.cost, (cost) => set({ cost }));
  segmented($("#table-mode"), state.table, (mode) => set({ table: mode }));
}
