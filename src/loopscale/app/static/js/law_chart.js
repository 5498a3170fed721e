// The fitted law over compute: the runs, the best loss that each compute reaches with its band, and a target to drag.
import { $, coded, make } from "./dom.js";
import { term } from "./glossary.js";
import { keys, plot } from "./plot.js";
import { count, decimals, fixed, power, rows, significant } from "./quantities.js";

const kindOf = ({ experts, recurrence }) => `${experts === 1 ? "dense" : `${experts}x experts`}, ${recurrence === 1 ? "1 pass" : `${recurrence} passes`}`;

export function lawCard({ law, points, curves = [], curves_problem: refused }) {
  const card = make("section", { class: law.degenerate.length ? "card degenerate" : "card", id: "chart-law", "aria-label": "The law" }, make("div", { class: "card-head" }, make("h3", {}, "The law: what more compute would reach")));
  if (!curves.length) {
    card.append(make("p", { class: "note-box" }, coded(`No forecast: ${refused ?? "it was not made with this fit"}.`)));
    return card;
  }
  const host = make("div", { class: "plot" });
  const handle = make("div", { class: "target", id: "target", tabindex: 0, role: "slider", "aria-label": "Compute to forecast", "aria-valuemin": 0 });
  const said = make("p", { id: "forecast-said", "aria-live": "polite" });
  const data = rows(points);
  let kind = curves[0];
  let forecast = rows(kind.rows);
  if (curves.length > 1) {
    const select = make("select", { id: "curve-kind", onchange: (event) => { kind = curves[event.target.value]; forecast = rows(kind.rows); drawn = null; paint(); } }, curves.map((each, k) => make("option", { value: k }, kindOf(each))));
    $(".card-head", card).append(make("p", {}, make("label", {}, "for models with ", select)));
  } // prettier-ignore
  card.append(
    said,
    host,
    keys([["run-key", curves.length > 1 ? "runs of this kind (others are faint)" : "runs"], ["line-key", "forecast by the frontier of the runs"], ["band-key", "90% of runs"], ["dash-key", "by the law alone"], ["beyond-key", "beyond the data"]]),
    make("p", { class: "hint" }, "Drag the target, or use the arrow keys. Both lines are the ", term("frontier"), " of these models, the best size at each compute: by the law as it was fitted, and moved to where the best runs lie."),
  );
  const seen = Math.max(...data.map((d) => d.flops));
  let at = forecast.findIndex((d) => d.flops >= 10 * seen);
  if (at < 0) at = forecast.length - 1;
  let drawn = null;
  const place = () => {
    const d = forecast[at];
    handle.style.left = `${(100 * drawn.X(d.flops)) / drawn.width}%`;
    const half = (d.high - d.low) / 2;
    const digits = decimals(half);
    const far = d.decades > 0.005 ? `${d.decades < 0.05 ? "just" : `${significant(10 ** d.decades, 2)}x`} beyond the data` : "within the data";
    const text = `${power(d.flops)} FLOPs, ${far}: loss ${fixed(d.loss, digits)}, 90% of runs ${fixed(d.low, digits)} to ${fixed(d.high, digits)}, with ${count(d.params)} parameters on ${count(d.tokens)} tokens.${d.decades > 3 ? " Intervals were tested to 1,000x only." : ""}`;
    said.replaceChildren("At ", make("b", {}, text));
    handle.setAttribute("aria-valuenow", at);
    handle.setAttribute("aria-valuemax", forecast.length - 1);
    handle.setAttribute("aria-valuetext", text);
    const mark = $(".mine", host);
    mark.setAttribute("cx", drawn.X(d.flops));
    mark.setAttribute("cy", drawn.Y(d.loss));
  };
  const paint = () => {
    const width = host.clientWidth;
    if (!width || width === drawn?.width) return;
    const sorted = data.map((d) => d.observed).sort((a, b) => a - b);
    const top = sorted[Math.floor(0.985 * (sorted.length - 1))] * 1.02;
    const opacity = Math.max(0.12, Math.min(0.3, 6 / Math.sqrt(data.length)));
    const mine = (d) => d.experts === kind.experts && d.recurrence === kind.recurrence;
    const low = Math.min(...forecast.map((d) => d.low), sorted[0]) * 0.99;
    const result = plot({
      width, height: Math.round(Math.min(380, Math.max(260, width * 0.42))), label: `Loss over training compute, ${data.length} rows and the law`,
      x: { domain: [Math.min(...data.map((d) => d.flops)) / 1.3, forecast.at(-1).flops * 1.1], log: true, label: "training compute, FLOPs", format: power },
      y: { domain: [low, top], label: "loss, nats per token", format: (v) => v.toFixed(1 + (top - low < 2)) },
      shade: [[seen, forecast.at(-1).flops * 1.1]],
      bands: [{ points: forecast.map((d) => ({ x: d.flops, low: d.low, high: d.high })) }],
      lines: [
        { kind: "line faded", points: forecast.filter((d) => d.by_law != null).map((d) => ({ x: d.flops, y: d.by_law })) },
        { points: forecast.map((d) => ({ x: d.flops, y: d.loss })) },
      ],
      dots: [...data.map((d) => ({ x: d.flops, y: d.observed, colour: d.outlier ? "var(--bad)" : mine(d) ? "var(--ink)" : "var(--soft)", opacity: d.outlier ? 1 : mine(d) ? 0.8 : opacity })), { x: forecast[0].flops, y: forecast[0].loss, r: 6, kind: "mine" }],
    }); // prettier-ignore
    drawn = { ...result, width };
    host.replaceChildren(result.element, handle);
    place();
  };
  const move = (next) => {
    at = Math.min(Math.max(next, 0), forecast.length - 1);
    place();
  };
  const follow = (event) => {
    const flops = drawn.inverse(((event.clientX - host.getBoundingClientRect().left) / host.clientWidth) * drawn.width);
    move(forecast.reduce((best, d, k) => (Math.abs(Math.log(d.flops / flops)) < Math.abs(Math.log(forecast[best].flops / flops)) ? k : best), 0));
  };
  host.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" && event.target !== handle) return;
    event.preventDefault();
    host.setPointerCapture(event.pointerId);
    host.addEventListener("pointermove", follow);
    host.addEventListener("pointerup", () => host.removeEventListener("pointermove", follow), { once: true });
    follow(event);
    handle.focus({ preventScroll: true });
  });
  host.addEventListener("click", follow);
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 5, PageDown: -5 }[event.key];
    const end = { Home: 0, End: forecast.length - 1 }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    move(end ?? at + step);
  });
  new ResizeObserver(paint).observe(host);
  return card;
}

// Coefficients in words, each with its 90% interval as a share of its estimate.
export function intervalPlot(value, span, identified) {
  if (!span || !value) return make("span", { class: "hint" }, "–");
  const [W, H, REACH] = [150, 22, 1];
  const share = (v) => Math.min(Math.max((v - value) / Math.abs(value), -REACH), REACH);
  const X = (v) => W / 2 + ((W / 2 - 6) * share(v)) / REACH;
  const beyond = (v) => Math.abs((v - value) / value) > REACH;
  const text = `90% interval from ${percentOf(span[0], value)} to ${percentOf(span[1], value)} of the estimate`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("width", W);
  svg.setAttribute("class", identified === false ? "span unsure" : "span");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", text);
  svg.innerHTML = `<path class="zero" d="M${W / 2} 2V${H - 2}"/><path class="whisker" d="M${X(span[0])} ${H / 2}H${X(span[1])}"/>${span.map((v) => (beyond(v) ? `<path class="whisker" d="M${X(v)} ${H / 2}l${v < value ? 5 : -5} -4m${v < value ? -5 : 5} 4l${v < value ? 5 : -5} 4"/>` : "")).join("")}<circle cx="${W / 2}" cy="${H / 2}" r="3.6"/>`;
  return svg;
}
const percentOf = (v, value) => `${Math.round((100 * v) / value)}%`;
