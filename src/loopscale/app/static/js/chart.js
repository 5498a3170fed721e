// One chart: axes, marks and a reader for pointer and keyboard. It is kept between updates, so that dragging a control
// moves marks and leaves the axes alone.
import { make } from "./dom.js";

const MARGIN = { top: 24, right: 62, bottom: 42, left: 56 };
const LABEL_HEIGHT = 13;
const charts = new WeakMap();

// Reading a style makes the browser compute it: once for each theme is enough.
let colours = null;

export function newTheme() {
  colours = null;
}

export function palette() {
  colours ??= read();
  return colours;
}

function read() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    series: [0, 1, 2, 3, 4, 5, 6].map((k) => value(`--c${k}`)),
    text: value("--text"),
    muted: value("--muted"),
    card: value("--card"),
    line: value("--line"),
    shade: value("--shade"),
  };
}

export function drawChart(host, spec, hold = false) {
  if (!charts.has(host)) charts.set(host, new Chart(host));
  charts.get(host).update(spec, hold);
}

export const chartOf = (host) => charts.get(host);

class Chart {
  constructor(host) {
    this.host = host;
    this.svg = window.d3.create("svg").attr("role", "img");
    for (const name of ["shade", "grid", "axes", "rules", "bands", "lines", "dots", "labels", "cursor"])
      this[name] = this.svg.append("g").attr("class", name);
    this.clip = this.svg
      .append("clipPath")
      .attr("id", `clip-${Math.random().toString(36).slice(2)}`)
      .append("rect");
    const clip = `url(#${this.clip.node().parentNode.id})`;
    for (const name of ["shade", "rules", "bands", "lines", "dots"]) this[name].attr("clip-path", clip);
    this.tip = make("div", { class: "tip", role: "status", hidden: true });
    host.replaceChildren(this.svg.node(), this.tip);
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.addEventListener("pointermove", (event) => this.point(event));
    host.addEventListener("pointerleave", () => this.read(null));
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("blur", () => this.read(null));
  }

  update(spec, hold) {
    this.spec = spec;
    this.colours = palette();
    if (!hold || !this.width) this.layout();
    const look = JSON.stringify([this.width, this.colours, spec.x.label, spec.y.label, spec.x.scale, spec.y.scale]);
    const kept = hold && this.domains && look === this.look;
    const domains = { x: spec.x.domain, y: spec.y.domain };
    const wide = (axis) => [
      Math.min(this.domains[axis][0], domains[axis][0]),
      Math.max(this.domains[axis][1], domains[axis][1]),
    ];
    const next = kept ? { x: wide("x"), y: wide("y") } : domains;
    const ticks = JSON.stringify([next, kept ? null : [spec.x.ticks, spec.y.ticks]]);
    const moved = !this.domains || look !== this.look || ticks !== this.ticks;
    Object.assign(this, { domains: next, look, ticks: kept ? this.ticks : ticks });
    this.x = scale(spec.x.scale, next.x, [this.margin.left, this.width - this.margin.right]);
    this.y = scale(spec.y.scale, next.y, [this.height - this.margin.bottom, this.margin.top]);
    if (moved) this.drawAxes();
    this.drawMarks();
    const about = `${spec.title}. ${spec.hint || ""} Arrow keys read the values.`;
    if (this.host.getAttribute("aria-label") !== about) {
      this.host.setAttribute("aria-label", about);
      this.svg.attr("aria-label", spec.title);
    }
    this.read(null);
  }

  layout() {
    this.width = Math.max(240, this.host.clientWidth);
    this.height = Math.max(230, Math.min(300, this.width * 0.62));
    this.margin = { ...MARGIN, ...(this.spec.margin || {}) };
    this.svg
      .attr("width", this.width)
      .attr("height", this.height)
      .attr("viewBox", `0 0 ${this.width} ${this.height}`)
      .attr("font-size", 12)
      .attr("font-family", "system-ui, sans-serif");
    const { top, right, bottom, left } = this.margin;
    this.clip
      .attr("x", left - 1)
      .attr("y", top - 7)
      .attr("width", this.width - left - right + 2)
      .attr("height", this.height - top - bottom + 8);
  }

  drawAxes() {
    const { spec, colours, margin } = this;
    const below = this.height - margin.bottom;
    const xTicks = thinned(inside(spec.x.ticks || this.x.ticks(6), this.domains.x), this.x, 44);
    const yTicks = thinned(inside(spec.y.ticks || this.y.ticks(5), this.domains.y), (v) => -this.y(v), 20);
    const xText = spec.x.format || plain(xTicks);
    const yText = spec.y.format || plain(yTicks);
    rows(this.grid, "line", yTicks)
      .attr("x1", margin.left)
      .attr("x2", this.width - margin.right)
      .attr("y1", this.y)
      .attr("y2", this.y)
      .attr("stroke", colours.line);
    const parts = [
      ...xTicks.map((v) => ({ x: this.x(v), y: below + 16, anchor: "middle", text: xText(v) })),
      ...yTicks.map((v) => ({ x: margin.left - 7, y: this.y(v) + 4, anchor: "end", text: yText(v) })),
      { x: this.width - margin.right, y: this.height - 6, anchor: "end", text: `${spec.x.label} →` },
      { x: 0, y: 11, anchor: "start", text: `↑ ${spec.y.label}` },
    ];
    rows(this.axes, "text", parts)
      .attr("x", (d) => d.x)
      .attr("y", (d) => d.y)
      .attr("text-anchor", (d) => d.anchor)
      .attr("fill", colours.text)
      .text((d) => d.text);
    rows(this.axes, "path", [
      `M${margin.left},${below}H${this.width - margin.right}`,
      ...xTicks.map((v) => `M${this.x(v)},${below}v5`),
    ])
      .attr("d", (d) => d)
      .attr("stroke", colours.muted);
  }

  drawMarks() {
    const { spec, x, y, colours } = this;
    const [left, right] = x.range();
    const at = (v) => Math.max(left, Math.min(right, x(v)));
    rows(this.shade, "rect", spec.shade || [])
      .attr("x", (d) => (d[0] == null ? left : at(d[0])))
      .attr("width", (d) => Math.max(0, (d[1] == null ? right : at(d[1])) - (d[0] == null ? left : at(d[0]))))
      .attr("y", y.range()[1])
      .attr("height", y.range()[0] - y.range()[1])
      .attr("fill", colours.shade);
    const curve = (d) => (d.step ? window.d3.curveStepAfter : window.d3.curveLinear);
    const area = (d) =>
      d3
        .area(
          (p) => x(p.x),
          (p) => y(p.low),
          (p) => y(p.high),
        )
        .curve(curve(d))(d.points);
    rows(this.bands, "path", spec.bands || [])
      .attr("d", area)
      .attr("fill", (d) => d.colour)
      .attr("fill-opacity", 0.17);
    const line = (d) =>
      d3
        .line(
          (p) => x(p.x),
          (p) => y(p.y),
        )
        .curve(curve(d))(d.points);
    rows(this.lines, "path", spec.lines || [])
      .attr("d", line)
      .attr("fill", "none")
      .attr("stroke", (d) => d.colour)
      .attr("stroke-width", (d) => d.width || 1.6)
      .attr("stroke-dasharray", (d) => d.dash || null);
    this.drawRules();
    rows(
      this.dots,
      "path",
      alike(
        (spec.dots || []).filter((d) => d.y != null),
        x,
        y,
      ),
    )
      .attr("d", (d) => d.path)
      .attr("fill", (d) => (d.ring ? "none" : d.hollow ? colours.card : d.colour))
      .attr("fill-opacity", (d) => d.opacity ?? 1)
      .attr("stroke", (d) => (d.ring ? colours.text : d.star ? colours.card : d.hollow ? d.colour : "none"))
      .attr("stroke-width", (d) => (d.ring ? 1.6 : 1));
    this.drawLabels();
  }

  drawRules() {
    const { spec, x, y, colours } = this;
    rows(
      this.rules,
      "line",
      (spec.rules || []).filter((d) => within(d.x, this.domains.x)),
    )
      .attr("x1", (d) => x(d.x))
      .attr("x2", (d) => x(d.x))
      .attr("y1", y.range()[0])
      .attr("y2", y.range()[1])
      .attr("stroke", colours.muted)
      .attr("stroke-dasharray", "3,3");
  }

  // Only the budget's own line moves; lines and axes stay.
  moveRule(at) {
    this.spec.rules = at ? [{ ...this.spec.rules[0], x: at }] : [];
    this.drawRules();
    this.drawLabels();
  }

  drawLabels() {
    const { spec, x, y, colours } = this;
    const ends = apart(
      (spec.lines || []).filter((d) => d.label && d.points.length).map((d) => this.end(d)),
      y.range(),
    );
    const rules = (spec.rules || []).filter((d) => d.label && within(d.x, this.domains.x));
    const labels = [
      ...ends.map((d) => ({
        x: Math.min(d.x + 7, this.width - this.margin.right + 7),
        y: d.y + 4,
        anchor: "start",
        fill: d.colour,
        text: d.label,
        weight: 600,
      })),
      ...rules.map((d) => ({
        x: x(d.x) + (x(d.x) > this.width * 0.7 ? -5 : 5),
        y: this.margin.top + 11,
        anchor: x(d.x) > this.width * 0.7 ? "end" : "start",
        fill: colours.muted,
        text: d.label,
      })),
      ...(spec.notes || []).map((d) => ({
        x: x(d.x) + (x(d.x) > this.width * 0.7 ? -9 : 9),
        y: y(d.y) - 9,
        anchor: x(d.x) > this.width * 0.7 ? "end" : "start",
        fill: colours.text,
        text: d.text,
        weight: 600,
      })),
    ];
    rows(this.labels, "text", labels)
      .attr("x", (d) => d.x)
      .attr("y", (d) => d.y)
      .attr("text-anchor", (d) => d.anchor)
      .attr("fill", (d) => d.fill)
      .attr("font-weight", (d) => d.weight || 400)
      .attr("paint-order", "stroke")
      .attr("stroke", colours.card)
      .attr("stroke-width", 3)
      .text((d) => d.text);
  }

  end(line) {
    const last = line.points.findLast((p) => within(p.x, this.domains.x)) || line.points.at(-1);
    return { x: this.x(last.x), y: this.y(last.y), colour: line.colour, label: line.label };
  }

  point(event) {
    const box = this.svg.node().getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    this.read(nearest(this.spec.points || [], (d) => (this.x(d.x) - px) ** 2 + (this.y(d.y) - py) ** 2));
  }

  key(event) {
    const points = this.spec.points || [];
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 };
    if (event.key === "Escape") return this.read(null);
    if (!(event.key in steps) || !points.length) return undefined;
    event.preventDefault();
    const now = this.current || points.find((d) => d.start) || points[0];
    if (!this.current) return this.read(now);
    const step = steps[event.key];
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const row = points.filter((d) => d.series === now.series).sort((a, b) => a.x - b.x);
      return this.read(row[Math.max(0, Math.min(row.length - 1, row.indexOf(now) + step))]);
    }
    const series = [...new Set(points.map((d) => d.series))];
    const next = series[(series.indexOf(now.series) + step + series.length) % series.length];
    return this.read(
      nearest(
        points.filter((d) => d.series === next),
        (d) => Math.abs(this.x(d.x) - this.x(now.x)),
      ),
    );
  }

  read(point) {
    this.current = point;
    rows(this.cursor, "circle", point ? [point] : [])
      .attr("cx", (d) => this.x(d.x))
      .attr("cy", (d) => this.y(d.y))
      .attr("r", 6)
      .attr("fill", "none")
      .attr("stroke", this.colours.text)
      .attr("stroke-width", 2);
    this.tip.hidden = !point;
    if (!point) return;
    this.tip.textContent = point.text();
    const left = this.x(point.x) > this.width / 2 ? this.x(point.x) - this.tip.offsetWidth - 12 : this.x(point.x) + 12;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - this.tip.offsetWidth, left))}px`;
    this.tip.style.top = `${Math.max(0, Math.min(this.height - this.tip.offsetHeight, this.y(point.y) - this.tip.offsetHeight / 2))}px`;
  }
}

// Dots that look the same are one path: hundreds of elements would take longer to draw than all else.
function alike(dots, x, y) {
  const groups = [];
  for (const dot of dots) {
    const last = groups.at(-1);
    const radius = dot.r || 3;
    const same = last && ["colour", "hollow", "opacity", "r", "star", "ring"].every((name) => last[name] === dot[name]);
    const group = same ? last : { ...dot, path: "" };
    if (!same) groups.push(group);
    const [left, top] = [x(dot.x), y(dot.y)];
    group.path += dot.star
      ? star(left, top, radius)
      : `M${(left - radius).toFixed(1)},${top.toFixed(1)}a${radius},${radius} 0 1,0 ${2 * radius},0a${radius},${radius} 0 1,0 ${-2 * radius},0`;
  }
  return groups;
}

function star(left, top, radius) {
  const corners = Array.from({ length: 10 }, (_, k) => {
    const reach = radius * (k % 2 ? 0.6 : 1.5);
    const angle = (Math.PI * k) / 5 - Math.PI / 2;
    return `${(left + reach * Math.cos(angle)).toFixed(1)},${(top + reach * Math.sin(angle)).toFixed(1)}`;
  });
  return `M${corners.join("L")}Z`;
}

const rows = (group, name, data) => group.selectAll(name).data(data).join(name);
const within = (value, [low, high]) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
const inside = (ticks, domain) => ticks.filter((v) => within(v, domain));

function scale(kind, domain, range) {
  if (kind === "log2") return window.d3.scaleLog().base(2).domain(domain).range(range);
  return (kind === "log" ? window.d3.scaleLog() : window.d3.scaleLinear()).domain(domain).range(range);
}

// Ticks at least `gap` pixels apart.
function thinned(ticks, position, gap) {
  let last = -Infinity;
  return ticks.filter((v) => position(v) - last >= gap && ((last = position(v)), true));
}

// As many digits as tell neighbouring ticks apart.
function plain(ticks) {
  const step = Math.min(...ticks.slice(1).map((v, k) => Math.abs(v - ticks[k])));
  const digits = Number.isFinite(step) && step > 0 ? window.d3.precisionFixed(step) : 2;
  return (v) => v.toFixed(Math.min(digits, 8));
}

// Labels that would cover one another are moved apart, and names of lines that end together are joined.
function apart(ends, [bottom, top]) {
  const joined = [];
  for (const end of ends.sort((a, b) => a.y - b.y)) {
    const same = joined.find((other) => Math.abs(other.y - end.y) < 1 && Math.abs(other.x - end.x) < 1);
    if (same) same.names.push(end.label);
    else joined.push({ ...end, names: [end.label] });
  }
  for (const end of joined) end.label = together(end.names);
  for (let k = 1; k < joined.length; k++) joined[k].y = Math.max(joined[k].y, joined[k - 1].y + LABEL_HEIGHT);
  let limit = bottom;
  for (const end of joined.toReversed()) {
    end.y = Math.max(top, Math.min(end.y, limit));
    limit = end.y - LABEL_HEIGHT;
  }
  return joined;
}

// The names of several lines, as far as there is room beside the plot: "R=1, 2, 4".
function together(names) {
  const start = names[0].slice(0, names[0].indexOf("=") + 1);
  const rest = names.map((name) => (name.startsWith(start) ? name.slice(start.length) : name));
  const text = start + rest.join(", ");
  return names.length < 3 || text.length < 13 ? text : `${names.length} lines`;
}

function nearest(points, distance) {
  let [best, least] = [null, Infinity];
  for (const point of points) {
    const away = distance(point);
    if (away < least) [best, least] = [point, away];
  }
  return best;
}
