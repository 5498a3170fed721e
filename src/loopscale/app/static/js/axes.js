// Axes that charts of fits share.
export function extent(values, margin = 0.05, log = false) {
  const all = values.filter((v) => v != null && Number.isFinite(v));
  const [low, high] = [Math.min(...all), Math.max(...all)];
  if (log) return [low / (high / low || 1) ** margin / 1.0001, high * (high / low || 1) ** margin * 1.0001];
  const room = (high - low || Math.abs(high) * 0.02 || 1) * margin;
  return [low - room, high + room];
}

export const unique = (data, name) =>
  [...new Set(data.map((d) => d[name]))].filter((v) => v != null).sort((a, b) => a - b);

// Powers of ten, or where fewer than three of them are in sight also their two- and fivefold.
export function decades([low, high]) {
  const powers = Array.from({ length: 60 }, (_, k) => 10 ** (k - 10));
  const inside = (ticks) => ticks.filter((v) => v >= low * 0.99 && v <= high * 1.01);
  return inside(powers).length >= 3 ? inside(powers) : inside(powers.flatMap((v) => [v, 2 * v, 5 * v]));
}

export function logAxis(values, axisLabel, format) {
  const domain = extent(values, 0.02, true);
  return { scale: "log", domain, ticks: decades(domain), label: axisLabel, format };
}
