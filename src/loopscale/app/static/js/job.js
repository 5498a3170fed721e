import { call, finish } from "./api.js";
import { make, problem } from "./dom.js";

// Start a job and show how far it is, with a way to stop it.
export async function runJob(path, request, place) {
  place.hidden = false;
  try {
    return await finish(await call(path, request), (job) => {
      const bar = make("progress", job.total ? { max: job.total, value: job.done } : {});
      bar.setAttribute("aria-label", job.stage);
      const told = job.total ? `${job.stage}: ${job.done} of ${job.total}` : job.stage;
      place.replaceChildren(
        make("p", {}, told),
        bar,
        make("button", { type: "button", onclick: () => call(`jobs/${job.id}`, { method: "DELETE" }) }, "Stop"),
      );
    });
  } finally {
    place.hidden = true;
    place.replaceChildren();
  }
}

// A card that asks for one thing, starts a job with it, and shows what the job found.
export function jobCard({ title, hint, label, field, value, button, path, body, show, draw }) {
  const input = make("input", { type: "text", id: field, value, size: Math.max(14, String(value).length + 2) });
  const place = make("div");
  const progress = make("div", { class: "progress", hidden: true });
  const said = make("p", { class: "problem", role: "alert", hidden: true });
  const start = async () => {
    problem(said, null);
    try {
      const job = await runJob(path, { body: body(input.value.trim()) }, progress);
      if (job.state !== "done") return;
      place.replaceChildren(show(job.result));
      draw?.(job.result);
    } catch (error) {
      problem(said, error);
    }
  };
  return make(
    "section",
    { class: "card" },
    make("h3", {}, title),
    make("p", { class: "hint" }, hint),
    make("div", { class: "row asked" }, make("label", {}, label, " ", input), make("button", { type: "button", id: button.id, onclick: start }, button.text)),
    progress,
    said,
    place,
  );
}
