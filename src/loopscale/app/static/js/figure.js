// A chart in its card: drawn to the card's width, described as text, and downloadable.
import { drawChart, newTheme, palette } from "./chart.js";
import { $, button, make, write } from "./dom.js";
import { download } from "./download.js";

const drawn = new Map();

// `paint` returns what the chart shows, in the colours of the moment; `about` stands in exported titles.
export function figure(id, paint, data, about = "") {
  drawn.set(id, { paint, data, about });
  const card = document.getElementById(id);
  const host = $(".plot", card);
  if (!host.clientWidth) return; // hidden: drawn when it is shown
  if (!window.d3) return void library().then(() => figure(id, paint, data, about));
  const spec = paint(title(card));
  drawChart(host, spec);
  write($(".hint", card), spec.hint);
  if (!$(".downloads", card)) card.append(downloads(card));
  return undefined;
}

// Only charts of fits and sweeps need d3: it is loaded with the first of them.
let loading = null;
function library() {
  loading ??= new Promise((resolve, reject) => {
    document.head.append(make("script", { src: "vendor/d3.min.js", onload: resolve, onerror: reject }));
  });
  return loading;
}

export function redraw() {
  newTheme();
  for (const [id, { paint, data, about }] of drawn) if (document.getElementById(id)) figure(id, paint, data, about);
}

const title = (card) => $("h3", card).textContent;

function downloads(card) {
  const save = { SVG: saveSvg, PNG: savePng, CSV: saveCsv };
  return make(
    "div",
    { class: "downloads" },
    Object.entries(save).map(([kind, work]) =>
      button(kind, () => work(card), { class: "quiet", "aria-label": `${title(card)}: download as ${kind}` }),
    ),
  );
}

const fileName = (card) => `loopscale-${card.id.replace("chart-", "")}`;

function wrapped(text, width, size) {
  const most = Math.floor(width / (size * 0.56));
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines.map((line) => ({ line, size }));
}

// The drawing by itself: above it its title, budget and law; colours and background written into it.
function standalone(card) {
  const { text, card: ground } = palette();
  const svg = $("svg", $(".plot", card)).cloneNode(true);
  const [width, height] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const lines = [...wrapped(title(card), width - 16, 14), ...wrapped(drawn.get(card.id).about, width - 16, 11)];
  const space = 14 + lines.reduce((sum, { size }) => sum + size + 5, 0);
  const namespace = "http://www.w3.org/2000/svg";
  svg.setAttribute("xmlns", namespace);
  svg.setAttribute("viewBox", `0 ${-space} ${width} ${height + space}`);
  svg.setAttribute("height", height + space);
  const add = (name, attributes, content = "") => {
    const element = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = content;
    return element;
  };
  const parts = [add("rect", { x: 0, y: -space, width, height: height + space, fill: ground })];
  let y = -space + 6;
  for (const { line, size } of lines) {
    y += size + 5;
    parts.push(add("text", { x: 8, y, fill: text, "font-size": size, "font-weight": size > 12 ? 600 : 400 }, line));
  }
  svg.prepend(...parts);
  return { text: new XMLSerializer().serializeToString(svg), width, height: height + space };
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
  const { data } = drawn.get(card.id);
  const names = Object.keys(data[0] ?? {});
  const lines = data.map((row) => names.map((name) => row[name] ?? "").join(","));
  download(`${fileName(card)}.csv`, [names.join(","), ...lines].join("\n") + "\n", "text/csv");
}
