// A training run while it trains, and when it has ended: losses, the time left, and the loss it will end with.
import { call } from "./api.js";
import { $, coded, make, problem, write, writeParts } from "./dom.js";
import { term } from "./glossary.js";
import { keys, plot } from "./plot.js";
import { count, decimals, fixed, percent, rows } from "./quantities.js";
import { state } from "./state.js";

const EVERY = 2000;
let ended = false;
let last = null;

export function buildRun({ run }) {
  $("#run-tab").hidden = !run;
  if (!run) return;
  write($("#run-title"), `Run ${run}`);
  new ResizeObserver(() => last && paint(last)).observe($("#run-plot"));
  setInterval(() => state.view === "run" && !document.hidden && !ended && updateRun(), EVERY);
}

export async function updateRun() {
  try {
    const reply = await call("run");
    problem($("#run-problem"), null);
    ended = reply.state === "finished";
    show(reply);
  } catch (error) {
    problem($("#run-problem"), error);
  }
}

const time = (seconds) => {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} days`;
};
const STATES = { training: "Training", stopped: "Stopped", finished: "Finished" };

function show(reply) {
  last = reply;
  const { forecast, law } = reply;
  const place = $("#run-view");
  place.dataset.state = reply.state;
  place.classList.remove("reading");
  write($("#run-state"), STATES[reply.state]);
  const share = reply.steps ? reply.step / reply.steps : 0;
  const bar = $("#run-progress");
  bar.value = share;
  bar.setAttribute("aria-label", `Progress: ${percent(share)}`);
  const seen = rows(reply.columns).filter((row) => row.loss !== null);
  const now = seen.at(-1);
  const digits = forecast && decimals((forecast.high - forecast.low) / 2);
  const stats = [
    ["loss", ended ? "Validation loss" : "Training loss", ended ? (reply.validation_loss === null ? "–" : fixed(reply.validation_loss, 4)) : now ? fixed(now.loss, 3) : "–", now ? `step ${count(reply.step)}` : "no step yet"],
    ["tokens", "Progress", percent(share), `${count(reply.step * reply.step_tokens)} of ${count(reply.steps * reply.step_tokens)} tokens`],
    ended ? null : ["days", reply.state === "stopped" ? "Left to train" : "Time left", reply.seconds_left === null ? "–" : time(reply.seconds_left), reply.tokens_per_second ? `${count(reply.tokens_per_second)} tokens/s` : ""],
    forecast ? ["interval", "Will end at", fixed(forecast.final, digits), `${percent(forecast.level)}: ${fixed(forecast.low, digits)}–${fixed(forecast.high, digits)}`] : null,
    law ? ["law", "Law's forecast", fixed(law.loss, 3), `90%: ${fixed(law.low, 3)}–${fixed(law.high, 3)}`] : null,
  ].filter(Boolean); // prettier-ignore
  $("#run-stats").replaceChildren(...stats.map(([name, label, value, under]) => make("div", { class: "stat" }, make("dt", {}, ["loss", "tokens", "interval", "law"].includes(name) ? term(name === "tokens" ? "tokens" : name, label) : label), make("dd", { class: "value" }, value), make("dd", { class: "under" }, under))));
  const resume = reply.state === "stopped" ? " Start the same `loopscale train` command again to resume it." : "";
  writeParts($("#run-said"), coded(ended ? `${reply.text} Next: \`loopscale eval\` on its folder, or \`loopscale forecast\` to compare it with your law.` : forecast ? `The final loss is forecast from the log and the learning-rate schedule.${resume}` : seen.length ? `The log is too short to forecast the end.${resume}` : `No step is logged yet.${resume}`));
  $("#run-alarms").hidden = !reply.alarms.length;
  $("#run-alarms").replaceChildren(...reply.alarms.map(({ text, step }) => make("li", {}, coded(`Step ${count(step)}: ${text}`))));
  paint(reply);
}

function paint(reply) {
  const host = $("#run-plot");
  const width = host.clientWidth;
  const seen = rows(reply.columns).filter((row) => row.loss !== null);
  if (!width) return;
  if (seen.length < 2) return void host.replaceChildren(make("p", { class: "hint" }, "The curve appears with the second logged step."));
  const measured = rows(reply.columns).filter((row) => row.validation_loss !== null && row.validation_loss !== undefined);
  const { forecast, law } = reply;
  const tail = seen.slice(Math.floor(seen.length * 0.02)).map((row) => row.loss);
  const ends = [forecast?.low, forecast?.high, law?.low, law?.high, ...measured.map((row) => row.validation_loss)].filter((v) => v != null);
  const sorted = [...tail].sort((a, b) => a - b);
  const [low, high] = [Math.min(sorted[0], ...ends), Math.max(sorted[Math.floor(0.99 * (sorted.length - 1))], ...ends)];
  const pad = (high - low || 1) * 0.06;
  const end = reply.steps * reply.step_tokens;
  const { element } = plot({
    width, height: Math.round(Math.min(400, Math.max(260, width * 0.42))), label: `Loss over ${seen.length} logged steps, now ${fixed(seen.at(-1).loss, 3)}`,
    x: { domain: [0, end], label: "training tokens", format: (v) => count(v) },
    y: { domain: [low - pad, high + pad], label: "loss, nats per token", format: (v) => v.toFixed(high - low < 0.5 ? 2 : 1) },
    shade: ended ? [] : [[seen.at(-1).tokens, end]],
    bands: forecast ? [{ points: [{ x: seen.at(-1).tokens, low: seen.at(-1).loss, high: seen.at(-1).loss }, { x: end, low: forecast.low, high: forecast.high }] }] : [],
    lines: [
      { points: seen.map((row) => ({ x: row.tokens, y: row.loss })), kind: "line thin" },
      ...(law ? [{ points: [{ x: 0, y: law.loss }, { x: end, y: law.loss }], kind: "line faded" }] : []),
      ...(measured.length > 1 ? [{ points: measured.map((row) => ({ x: row.tokens, y: row.validation_loss })), kind: "line valid" }] : []),
    ],
    dots: [...measured.map((row) => ({ x: row.tokens, y: row.validation_loss, r: 3.4, kind: "valid" })), ...(forecast ? [{ x: end, y: forecast.final, r: 5.5, kind: "mine" }] : [])],
  }); // prettier-ignore
  const legend = [["line-key", "training loss"]];
  if (measured.length) legend.push(["valid-key", "validation loss"]);
  if (forecast) legend.push(["band-key", `forecast, ${percent(forecast.level)}`]);
  if (law) legend.push(["dash-key", "the law's forecast"]);
  if (!ended) legend.push(["beyond-key", "still to train"]);
  host.replaceChildren(element, keys(legend));
  return undefined;
}
