// A chart in its card: drawn to the card's width, read by pointer and by arrow keys, and downloadable.
import { $, button, draw, make, write } from "./dom.js";
import { download } from "./download.js";
import { keys, plot } from "./plot.js";

const charts = new Map();

// `spec` is what plot.js draws, with `hint`, a text under it, `legend`, and `points`, which are read: each with its
// place, its series and a function `text`. `about` stands in exported files.
export function figure(id, spec, data, about = "") {
  const card = document.getElementById(id);
  const host = $(".plot", card);
  charts.set(id, { spec, data, about, width: 0 });
  write($(".hint", card), spec.hint);
  if (!host.dataset.watched) {
    host.dataset.watched = "yes";
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.before(make("p", { class: "readout", role: "status" }));
    card.append(downloads(card));
    host.addEventListener("pointermove", (event) => read(card, nearestTo(card, event)));
    host.addEventListener("pointerleave", () => read(card, null));
    host.addEventListener("blur", () => read(card, null));
    host.addEventListener("keydown", (event) => step(card, event));
    new ResizeObserver(() => paint(card)).observe(host); // also when a hidden view is shown
  }
  paint(card);
}

function paint(card) {
  const host = $(".plot", card);
  const chart = charts.get(card.id);
  const width = host.clientWidth;
  if (!width || width === chart.width) return;
  const title = $("h3", card).textContent;
  const height = chart.spec.height ?? Math.round(Math.min(320, Math.max(230, width * 0.6)));
  Object.assign(chart, plot({ ...chart.spec, width, height, label: title }), { width, height, current: null });
  chart.element.append(draw("circle", { class: "cursor", r: 0 }));
  host.replaceChildren(chart.element, ...(chart.spec.legend ? [keys(chart.spec.legend)] : []));
  host.setAttribute("aria-label", `${title}. ${chart.spec.hint} Arrow keys read the values.`);
}

function read(card, point) {
  const chart = charts.get(card.id);
  chart.current = point;
  write($(".readout", card), point ? point.text() : "");
  const cursor = $(".cursor", chart.element);
  cursor.setAttribute("r", point ? 6 : 0);
  if (!point) return;
  cursor.setAttribute("cx", chart.X(point.x));
  cursor.setAttribute("cy", chart.Y(point.y));
}

function nearest(points, distance) {
  let [best, least] = [null, Infinity];
  for (const point of points) {
    const away = distance(point);
    if (away < least) [best, least] = [point, away];
  }
  return best;
}

function nearestTo(card, event) {
  const { X, Y, spec, element } = charts.get(card.id);
  const box = element.getBoundingClientRect();
  return nearest(spec.points, (d) => (X(d.x) - event.clientX + box.left) ** 2 + (Y(d.y) - event.clientY + box.top) ** 2);
}

// Left and right along a series, up and down to the next one.
function step(card, event) {
  const { spec: { points }, current: now, X } = charts.get(card.id); // prettier-ignore
  if (event.key === "Escape") return read(card, null);
  const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const across = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!(along || across) || !points.length) return undefined;
  event.preventDefault();
  if (!now) return read(card, points[0]);
  if (along) {
    const row = points.filter((d) => d.series === now.series).sort((a, b) => a.x - b.x);
    return read(card, row[Math.max(0, Math.min(row.length - 1, row.indexOf(now) + along))]);
  }
  const series = [...new Set(points.map((d) => d.series))];
  const next = series[(series.indexOf(now.series) + across + series.length) % series.length];
  return read(card, nearest(points.filter((d) => d.series === next), (d) => Math.abs(X(d.x) - X(now.x)))); // prettier-ignore
}

// ---- files ----

function downloads(card) {
  const save = { SVG: saveSvg, PNG: savePng, CSV: saveCsv };
  const title = $("h3", card).textContent;
  return make("div", { class: "downloads" }, Object.entries(save).map(([kind, work]) => button(kind, () => work(card), { class: "quiet", "aria-label": `${title}: download as ${kind}` }))); // prettier-ignore
}

const fileName = (card) => `loopscale-${card.id.replace("chart-", "")}`;
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight"];

// The drawing by itself: above it its title and what it is of; styles and background written into it.
function standalone(card) {
  const { element, about, width, height } = charts.get(card.id);
  const svg = element.cloneNode(true);
  const copies = [...svg.querySelectorAll("*")];
  [...element.querySelectorAll("*")].forEach((each, k) => {
    const style = getComputedStyle(each);
    copies[k].setAttribute("style", STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const lines = [...wrapped($("h3", card).textContent, width - 16, 14), ...wrapped(about, width - 16, 11)];
  const space = 14 + lines.reduce((sum, { size }) => sum + size + 5, 0);
  let y = 6 - space;
  const texts = lines.map(({ line, size }) => draw("text", { x: 8, y: (y += size + 5), fill: colour("--ink"), "font-size": size, "font-weight": size > 12 ? 600 : 400 }, line));
  svg.prepend(draw("rect", { x: 0, y: -space, width, height: height + space, fill: colour("--card") }), ...texts);
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height: height + space, viewBox: `0 ${-space} ${width} ${height + space}`, "font-family": "system-ui, sans-serif" })) svg.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(svg), width, height: height + space };
}

function wrapped(text, width, size) {
  const most = Math.floor(width / (size * 0.56));
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines.map((line) => ({ line, size }));
}

function saveSvg(card) {
  download(`${fileName(card)}.svg`, standalone(card).text, "image/svg+xml");
}

async function savePng(card) {
  const { text, width, height } = standalone(card);
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await picture.decode();
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
  URL.revokeObjectURL(picture.src);
  canvas.toBlob((blob) => download(`${fileName(card)}.png`, blob, "image/png"));
}

function saveCsv(card) {
  const { data } = charts.get(card.id);
  const names = Object.keys(data[0] ?? {});
  const lines = data.map((row) => names.map((name) => row[name] ?? "").join(","));
  download(`${fileName(card)}.csv`, [names.join(","), ...lines].join("\n") + "\n", "text/csv");
}
