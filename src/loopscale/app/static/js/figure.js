// A chart in its card: drawn to the card's width, described in words, and downloadable.
import { $, make } from "./dom.js";
import { palette } from "./charts.js";
import { download } from "./download.js";

const drawn = new Map();

export function figure(id, paint, data, hint) {
  const card = document.getElementById(id);
  drawn.set(id, { paint, data, hint });
  const place = $(".plot", card);
  if (!place.clientWidth) return; // hidden: drawn when it is shown
  const svg = paint(place.clientWidth);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title(card)}. ${hint}`);
  place.replaceChildren(svg);
  $(".hint", card).textContent = hint;
  if (!$(".downloads", card)) card.append(downloads(card));
}

export function redraw() {
  for (const [id, { paint, data, hint }] of drawn) if (document.getElementById(id)) figure(id, paint, data, hint);
}

const title = (card) => $("h3", card).textContent;

function downloads(card) {
  const save = { SVG: saveSvg, PNG: savePng, CSV: saveCsv };
  return make(
    "div",
    { class: "downloads" },
    Object.entries(save).map(([kind, work]) =>
      make(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-label": `${title(card)}: download as ${kind}`,
          onclick: () => work(card),
        },
        kind,
      ),
    ),
  );
}

const fileName = (card) => `loopscale-${card.id.replace("chart-", "")}`;

// The drawing by itself: its title above it, colours and background written into it.
function standalone(card) {
  const { text, card: ground } = palette();
  const svg = $("svg", $(".plot", card)).cloneNode(true);
  const [width, height] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const space = "http://www.w3.org/2000/svg";
  svg.setAttribute("xmlns", space);
  svg.setAttribute("viewBox", `0 -30 ${width} ${height + 30}`);
  svg.setAttribute("height", height + 30);
  Object.assign(svg.style, { color: text, fontFamily: "system-ui, sans-serif", fontSize: "12px" });
  const back = document.createElementNS(space, "rect");
  for (const [name, value] of Object.entries({ x: 0, y: -30, width, height: height + 30, fill: ground }))
    back.setAttribute(name, value);
  const heading = document.createElementNS(space, "text");
  for (const [name, value] of Object.entries({ x: 8, y: -12, fill: text, "font-size": 14, "font-weight": 600 }))
    heading.setAttribute(name, value);
  heading.textContent = title(card);
  svg.prepend(back, heading);
  return { text: new XMLSerializer().serializeToString(svg), width, height: height + 30 };
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
  const names = Object.keys(data[0] ?? {}).filter((name) => name !== "series" && name !== "shown");
  const lines = data.map((row) => names.map((name) => row[name] ?? "").join(","));
  download(`${fileName(card)}.csv`, [names.join(","), ...lines].join("\n") + "\n", "text/csv");
}
