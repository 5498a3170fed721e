// The map: for every compute and memory, how often the best model loops, and which it is. Drag the dot.
import { FIELD } from "./budget.js";
import { $, draw, linked, make, write } from "./dom.js";
import { textOf } from "./fields.js";
import { term } from "./glossary.js";
import { mapRows } from "./map_rows.js";
import { pinnedPlaces } from "./pins.js";
import { current, shown } from "./plan.js";
import { geomspace, mapSpace } from "./space.js";
import { bytes, power, shortName } from "./quantities.js";
import { set, state } from "./state.js";

const COLUMNS = 84;
const ROWS = 60;
const CELL = 12;
const LEFT = 54;
const BOTTOM = 40;
// The drawing is as large as its place, so that its letters are readable on a phone too.
let [W, H] = [640, 400];
export const PLOT = {};
function measure(width, height) {
  [W, H] = [width, height];
  Object.assign(PLOT, { W, H, x: LEFT, y: 6, width: W - LEFT - 8, height: H - BOTTOM - 6 });
  const plot = $("#map-plot");
  $("svg", plot)?.setAttribute("viewBox", `0 0 ${W} ${H}`);
  const canvas = $("canvas", plot);
  if (canvas) Object.assign(canvas.style, { left: `${(100 * PLOT.x) / W}%`, top: `${(100 * PLOT.y) / H}%`, width: `${(100 * PLOT.width) / W}%`, height: `${(100 * PLOT.height) / H}%` });
}
const view = { key: "", cells: null, rows: null, labels: [], trail: [], waiting: [] };

// Calls back when the map is drawn: what can wait should not delay it.
export const afterMap = (work) => ($("#map-plot")?.classList.contains("waiting") ? view.waiting.push(work) : work());

// The ranges of the axes: those of the law's data, and some more on both sides.
function extent(law) {
  const [[sizeLow, sizeHigh], [dataLow, dataHigh]] = [law.range.size, law.range.tokens];
  const low = 6 * (sizeLow ?? 1e8) * (dataLow ?? 1e10);
  const high = 6 * (sizeHigh ?? 1e10) * (dataHigh ?? 1e12);
  const tiny = (sizeHigh ?? 1e10) < 1e7;
  return { compute: [low / 20, high * 400], memory: tiny ? [1e6, 1e9] : [1e8, 2e11] };
}

const axisField = () => (shown.asked.limits.real_flops !== undefined && shown.asked.limits.flops === undefined ? "real_flops" : "flops");

export function drawMap() {
  const { law, limits, options } = shown.asked;
  const axis = axisField();
  const { memory: _, flops: __, real_flops: ___, ...rest } = limits;
  const key = JSON.stringify([law.name, rest, options, axis, shown.own && 0]);
  if (view.key !== key) {
    view.key = key;
    compute(law, { ...rest }, options, axis);
  }
  drawDot();
}

// Rows are computed in slices, so that the page stays quick; the old map stays until the new one is whole.
function compute(law, limits, options, axis) {
  const plot = $("#map-plot");
  const range = extent(law);
  const computes = geomspace(...range.compute, ROWS);
  const memories = geomspace(...range.memory, COLUMNS);
  const work = mapRows(law, limits, { ...options, space: mapSpace(law, options) }, axis, computes, memories);
  const rows = (view.rows = []);
  plot.classList.add("waiting");
  const slice = () => {
    if (view.rows !== rows) return; // another map is wanted by now
    const end = performance.now() + 14;
    do {
      if (rows.length === ROWS) {
        Object.assign(view, { cells: rows, range, axis });
        paint();
        drawDot();
        plot.classList.remove("waiting");
        for (const each of view.waiting.splice(0)) each();
        plot.dataset.drawn = view.key;
        return;
      }
      rows.push(work.next().value);
    } while (performance.now() < end);
    setTimeout(slice);
  };
  setTimeout(slice);
}

const share = (value, [low, high]) => Math.log(value / low) / Math.log(high / low);
const xOf = (memory) => PLOT.x + PLOT.width * Math.min(Math.max(share(memory, view.range.memory), 0), 1);
const yOf = (flops) => PLOT.y + PLOT.height * (1 - Math.min(Math.max(share(flops, view.range.compute), 0), 1));

export function buildMap(width, height) {
  const plot = $("#map-plot");
  if (linked()) for (const id of ["map-plot", "map-legend", "map-readout"]) $(`#${id}`).replaceChildren();
  readColours();
  const svg = draw("svg", { "aria-hidden": "true" });
  const canvas = make("canvas", { width: COLUMNS * CELL, height: ROWS * CELL, "aria-hidden": "true" });
  const handle = make("div", {
    id: "map-dot", class: "dot-handle", tabindex: 0, role: "slider", "aria-label": "Budget on the map: left and right change memory, up and down compute",
    "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 50, onkeydown: byKey,
  }); // prettier-ignore
  plot.prepend(canvas, svg, handle);
  svg.append(draw("g", { class: "contours" }), draw("g", { class: "labels" }), draw("g", { class: "axes" }), draw("g", { class: "trail" }), draw("g", { class: "ghosts" }), draw("g", { class: "you" }));
  measure(width || 640, height || 400);
  new ResizeObserver(() => {
    const { clientWidth, clientHeight } = plot;
    if (!clientWidth || (clientWidth === W && clientHeight === H)) return;
    measure(clientWidth, clientHeight);
    view.trail = [];
    paint();
    if (view.range) drawDot();
  }).observe(plot);
  plot.addEventListener("pointerdown", drag);
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", () => readout(null));
}

// The colours of the theme.
let palette = null;
export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  palette = { R: Array.from({ length: 7 }, (_, k) => colour(`--r${k + 1}`)), ink: colour("--ink"), card: colour("--card"), none: colour("--nothing") };
}
const colourIndex = (R) => (R <= 4 ? R - 1 : R <= 6 ? 4 : R <= 8 ? 5 : 6);

// Whether the sizes on the map have names.
const named = () => shown.answer.grid.space.kind === "ladder";

export function paint() {
  if (!view.cells) return;
  const canvas = $("#map-plot canvas");
  const context = canvas.getContext("2d");
  const [w, h] = [CELL, CELL];
  context.globalAlpha = 1;
  view.cells.forEach((row, i) => {
    // Neighbours of one colour are one rectangle.
    for (let from = 0, to = 0; from < COLUMNS; from = to) {
      const cell = row[from];
      while (to < COLUMNS && row[to]?.R === cell?.R && row[to]?.level === cell?.level) to += 1;
      const place = [from * w, (ROWS - 1 - i) * h, (to - from) * w, h];
      context.fillStyle = cell ? palette.R[colourIndex(cell.R)] : palette.none;
      context.fillRect(...place);
      if (cell?.level !== "beyond") continue;
      context.globalAlpha = 0.3;
      context.fillStyle = palette.card;
      context.fillRect(...place);
      context.globalAlpha = 1;
    }
  });
  // Borders between models: where the size or the number of experts changes.
  const differ = (a, b) => a !== b && (a?.name !== b?.name || a?.there !== b?.there);
  context.strokeStyle = palette.card;
  context.lineWidth = 1.3;
  context.globalAlpha = 0.75;
  context.beginPath();
  for (let i = 0; i < ROWS && named(); i++)
    for (let j = 0; j < COLUMNS; j++) {
      const [x, y] = [j * w, (ROWS - 1 - i) * h];
      const cell = view.cells[i][j];
      if (j && differ(cell, view.cells[i][j - 1])) context.moveTo(x, y), context.lineTo(x, y + h);
      if (i && differ(cell, view.cells[i - 1][j])) context.moveTo(x, y + h), context.lineTo(x + w, y + h);
    }
  context.stroke();
  // Hatched where the best design lies far beyond the law's data.
  context.strokeStyle = palette.ink;
  context.lineWidth = 0.9;
  for (const [level, alpha] of [["far", 0.16], ["beyond", 0.3]]) {
    context.globalAlpha = alpha;
    context.beginPath();
    view.cells.forEach((row, i) =>
      row.forEach((cell, j) => {
        if (cell?.level !== level || (i + j) % 2) return;
        const [x, y] = [j * w, (ROWS - 1 - i) * h];
        context.moveTo(x, y + h);
        context.lineTo(x + w, y);
      }),
    );
    context.stroke();
  }
  drawAxes();
  drawLabels();
  drawContours();
  drawLegend();
  $("#map-plot .first")?.remove();
}

const tens = ([low, high]) => {
  const list = [];
  for (let k = Math.ceil(Math.log10(low)); k <= Math.log10(high); k++) list.push(10 ** k);
  return list;
};

function drawAxes() {
  const { range, axis } = view;
  const group = $("#map-plot .axes");
  group.replaceChildren(
    ...tens(range.memory).filter((value) => W >= 480 || Math.log10(value) % 1 === 0).map((value) => draw("text", { x: xOf(value), y: H - 24, "text-anchor": value >= range.memory[1] * 0.6 ? "end" : value <= range.memory[0] * 1.5 ? "start" : "middle" }, bytes(value))),
    ...tens(range.compute).map((value) => draw("text", { x: LEFT - 6, y: yOf(value) + 4, "text-anchor": "end" }, power(value))),
    draw("text", { x: PLOT.x + PLOT.width / 2, y: H - 3, "text-anchor": "middle", class: "title" }, "memory when it runs →"),
    draw("text", { x: 12, y: PLOT.y + PLOT.height / 2, "text-anchor": "middle", class: "title", transform: `rotate(-90 12 ${PLOT.y + PLOT.height / 2})` }, `${H < 220 ? "" : "training "}compute, ${axis === "flops" ? "" : "real "}FLOPs →`),
  );
}

// The largest regions of one size and number of experts get its name, at the cell of theirs that is nearest to their middle.
function drawLabels() {
  const regions = new Map();
  const cells = named() ? view.cells : []; // without a ladder, sizes differ from cell to cell
  cells.forEach((row, i) =>
    row.forEach((cell, j) => {
      if (!cell) return;
      const name = cell.there === 1 ? `${cell.name} dense` : `${cell.name} ${cell.used}/${cell.there}`;
      const region = regions.get(name) ?? { cells: [], x: 0, y: 0 };
      region.cells.push([j, i]);
      region.x += j;
      region.y += i;
      regions.set(name, region);
    }),
  );
  view.labels = [];
  const least = W < 480 ? 140 : 70;
  for (const [name, { cells, x, y }] of [...regions].sort((a, b) => b[1].cells.length - a[1].cells.length)) {
    if (cells.length < least) break;
    const [mx, my] = [x / cells.length, y / cells.length];
    const [j, i] = cells.reduce((best, each) => (Math.hypot(each[0] - mx, each[1] - my) < Math.hypot(best[0] - mx, best[1] - my) ? each : best));
    const half = name.length * 3.4;
    const cx = Math.min(Math.max(PLOT.x + (PLOT.width * (j + 0.5)) / COLUMNS, PLOT.x + half + 4), PLOT.x + PLOT.width - half - 26);
    const cy = PLOT.y + PLOT.height * (1 - (i + 0.5) / ROWS);
    if (covered(cx, cy, half + 8).length) continue;
    view.labels.push({ cx, cy, half, text: draw("text", { x: cx, y: cy + 4, "text-anchor": "middle" }, name) });
  }
  $("#map-plot .labels").replaceChildren(...view.labels.map(({ text }) => text));
}

// The names that something so wide would cover.
const covered = (x, y, half) => view.labels.filter(({ cx, cy, half: wide }) => Math.abs(cx - x) < half + wide && Math.abs(cy - y) < 18);

// Lines of equal loss, by marching squares over the cells' centres.
function drawContours() {
  const value = (i, j) => view.cells[i][j]?.loss;
  const all = view.cells.flat().filter(Boolean).map((cell) => cell.loss);
  if (!all.length) return void $("#map-plot .contours").replaceChildren();
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const step = [0.02, 0.05, 0.1, 0.2, 0.5, 1].find((each) => (most - least) / each <= 9) ?? 2;
  const point = (i, j) => [PLOT.x + (PLOT.width * (j + 0.5)) / COLUMNS, PLOT.y + PLOT.height * (1 - (i + 0.5) / ROWS)];
  const levels = [];
  for (let level = Math.ceil(least / step) * step; level < most; level += step) levels.push({ level, path: "", last: null });
  for (let i = 0; i + 1 < ROWS; i++)
    for (let j = 0; j + 1 < COLUMNS; j++) {
      const losses = [value(i, j), value(i, j + 1), value(i + 1, j + 1), value(i + 1, j)];
      if (losses.includes(undefined)) continue;
      const [low, high] = [Math.min(...losses), Math.max(...losses)];
      for (const line of levels) {
        if (line.level <= low || line.level > high) continue;
        const corners = [[i, j], [i, j + 1], [i + 1, j + 1], [i + 1, j]];
        const cuts = [];
        for (let k = 0; k < 4; k++) {
          const [a, b] = [losses[k], losses[(k + 1) % 4]];
          if (a < line.level === b < line.level) continue;
          const t = (line.level - a) / (b - a);
          const [p, q] = [point(...corners[k]), point(...corners[(k + 1) % 4])];
          cuts.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
        }
        if (cuts.length !== 2) continue;
        line.path += `M${cuts[0].map((v) => v.toFixed(1))}L${cuts[1].map((v) => v.toFixed(1))}`;
        if (!line.last || cuts[0][0] > line.last[0]) line.last = cuts[0];
      }
    }
  const written = []; // the heights of lines that have room for their number
  for (const { path, last } of levels)
    if (path && last[1] > 20 && last[0] > PLOT.x + PLOT.width * 0.8 && written.every((y) => Math.abs(y - last[1]) >= 12)) written.push(last[1]);
  $("#map-plot .contours").replaceChildren(
    ...levels.filter(({ path }) => path).flatMap((line) => [
      draw("path", { d: line.path }),
      ...(written.includes(line.last[1]) ? [draw("text", { x: Math.min(line.last[0], W - 14), y: line.last[1] - 3, "text-anchor": "end" }, line.level.toFixed(step < 0.1 ? 2 : 1))] : []),
    ]),
  ); // prettier-ignore
  return undefined;
}

function drawLegend() {
  const seen = new Set(view.cells.flat().filter(Boolean).map((cell) => colourIndex(cell.R)));
  const names = ["no loop", "2 passes", "3", "4", "5–6", "7–8", "9 or more"];
  const items = names.map((name, k) => [k, name]).filter(([k]) => seen.has(k));
  const key = ([k, name]) => make("span", { class: "key" }, make("i", { style: `background:var(--r${k + 1})` }), name);
  const loops = shown.answer.law.onlyRecurrence === null;
  const blank = view.cells.some((row) => row.includes(null));
  $("#map-legend").replaceChildren(
    ...(loops ? [make("span", { class: "hint" }, "The best model ", term("loop", "loops")), ...items.map(key)] : []),
    ...(blank ? [make("span", { class: "key" }, make("i", { style: "background:var(--nothing)" }), "no model")] : []),
    make("span", { class: "key" }, make("i", { class: "hatch" }), term("beyond the data", "far beyond the data")),
    make("span", { class: "hint" }, named() ? "1.0B 2/16: a 1.0B model that uses 2 of 16 experts. " : "", "Lines join equal ", term("loss"), "."),
  );
}

// Where the budget stands; without a limit on memory, at what the model needs.
function placeOf({ limits }, design) {
  const flops = limits[view.axis] ?? limits.flops ?? limits.real_flops ?? design.train_flops;
  return [xOf(limits.memory ?? design.memory), yOf(flops)];
}

function drawDot() {
  if (!view.range) return;
  const asked = shown.withheld?.asked ?? shown.asked;
  const { design } = current();
  const [x, y] = placeOf(asked, design);
  const handle = $("#map-dot");
  handle.style.left = `${(100 * x) / W}%`;
  handle.style.top = `${(100 * y) / H}%`;
  handle.textContent = shown.withheld ? "?" : "";
  const memory = asked.limits.memory === undefined ? "any memory" : bytes(asked.limits.memory);
  handle.setAttribute("aria-valuetext", `${power(asked.limits[view.axis] ?? design.train_flops)} FLOPs, ${memory}: ${shortName(design)}`);
  handle.setAttribute("aria-valuenow", Math.round(100 * share(asked.limits.memory ?? design.memory, view.range.memory)));
  const ghosts = pinnedPlaces().map(({ name, limits }) => ({ name, at: placeOf({ limits }, design) }));
  $("#map-plot .ghosts").replaceChildren(
    ...ghosts.map(({ name, at: [gx, gy] }) => draw("g", {}, draw("circle", { cx: gx, cy: gy, r: 6 }), draw("text", { x: gx + 10, y: gy + 4 }, name))),
  );
  const under = new Set([covered(x, y, 12), ...ghosts.map(({ at: [gx, gy] }) => covered(gx + 6, gy, 14))].flat());
  for (const label of view.labels) label.text.classList.toggle("covered", under.has(label));
  const last = view.trail.at(-1);
  if (!last || Math.hypot(last[0] - x, last[1] - y) > 6) view.trail = [...view.trail, [x, y]].slice(-30);
  $("#map-plot .trail").replaceChildren(draw("path", { d: `M${view.trail.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}` }));
  readout(null);
}

function readout(cell) {
  const place = $("#map-readout");
  if (!place.lastElementChild) place.replaceChildren(make("span", { class: "lead" }, "Drag the dot. "), make("span"));
  const { design } = current();
  const name = cell ? (cell.there === 1 ? `${cell.name} dense` : `${cell.name}, ${cell.there} experts`) : null;
  const text = cell
    ? `${name}, ${cell.R === 1 ? "no loop" : `${cell.R} passes`}, loss ${cell.loss.toFixed(3)}${cell.level === "far" || cell.level === "beyond" ? ", far beyond the data" : ""}`
    : shown.problem || shown.withheld ? "No answer here." : `Here: ${shortName(design)}`;
  place.firstElementChild.hidden = Boolean(cell);
  write(place.lastElementChild, text);
}

function at(event) {
  const box = $("#map-plot").getBoundingClientRect();
  const x = (((event.clientX - box.left) / box.width) * W - PLOT.x) / PLOT.width;
  const y = 1 - (((event.clientY - box.top) / box.height) * H - PLOT.y) / PLOT.height;
  return [Math.min(Math.max(x, 0), 1), Math.min(Math.max(y, 0), 1)];
}
const along = (t, [low, high]) => low * (high / low) ** t;

function hover(event) {
  if (!view.cells || event.buttons) return;
  const [x, y] = at(event);
  readout(view.cells[Math.min(Math.floor(y * ROWS), ROWS - 1)]?.[Math.min(Math.floor(x * COLUMNS), COLUMNS - 1)] ?? null);
}

function moved(x, y) {
  const changes = { memory: textOf(FIELD.memory, along(x, view.range.memory)), where: "", design: "" };
  changes[view.axis] = textOf(FIELD.flops, along(y, view.range.compute));
  if (state.gpus) Object.assign(changes, { gpus: "", real_flops: changes[view.axis], flops: "" });
  return changes;
}

function drag(event) {
  if (!view.range || event.button) return;
  const plot = $("#map-plot");
  // A finger on the map scrolls the page; on the dot it drags, and a tap goes there.
  if (event.pointerType === "touch" && event.target.id !== "map-dot") return void plot.addEventListener("click", (tap) => set(moved(...at(tap)), { control: "map" }), { once: true });
  event.preventDefault();
  plot.setPointerCapture(event.pointerId);
  let latest = event;
  let frame = 0;
  const step = () => {
    frame = 0;
    set(moved(...at(latest)), { draft: true });
  };
  const follow = (next) => {
    latest = next;
    frame ||= requestAnimationFrame(step);
  };
  const end = (last) => {
    plot.removeEventListener("pointermove", follow);
    plot.removeEventListener("pointerup", end);
    plot.removeEventListener("pointercancel", end);
    cancelAnimationFrame(frame);
    set(moved(...at(last)), { control: "map" });
    $("#map-dot").focus({ preventScroll: true });
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerup", end);
  plot.addEventListener("pointercancel", end);
  follow(event);
  return undefined;
}

function byKey(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (!step || !view.range) return;
  event.preventDefault();
  const size = event.shiftKey ? 0.05 : 0.0125;
  const asked = shown.withheld?.asked ?? shown.asked;
  const x = share(asked.limits.memory ?? current().design.memory, view.range.memory) + step[0] * size;
  const y = share(asked.limits[view.axis] ?? current().design.train_flops, view.range.compute) + step[1] * size;
  const clamp = (v) => Math.min(Math.max(v, 0), 1);
  const changes = moved(clamp(x), clamp(y));
  if (!step[0]) {
    delete changes.memory;
    if (state.where) delete changes.where;
  }
  if (!step[1]) delete changes[view.axis];
  set(changes, { control: "map" });
}

export const mapCanvas = () => $("#map-plot canvas");
