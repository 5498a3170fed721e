export class ApiError extends Error {
  constructor(message, status, field) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export async function call(path, { body, csv, method } = {}) {
  const sends = body !== undefined || csv !== undefined;
  let reply;
  try {
    reply = await fetch(`api/${path}`, {
      method: method || (sends ? "POST" : "GET"),
      headers: sends ? { "content-type": csv === undefined ? "application/json" : "text/csv" } : {},
      body: csv === undefined ? (sends ? JSON.stringify(body) : undefined) : csv,
    });
  } catch {
    throw new ApiError("the server does not answer; is `loopscale app` still running?", 0);
  }
  const text = await reply.text();
  const isJson = (reply.headers.get("content-type") || "").startsWith("application/json");
  if (!reply.ok) {
    const said = isJson ? JSON.parse(text) : { error: `the server answered ${reply.status}` };
    throw new ApiError(said.error, reply.status, said.field);
  }
  return isJson ? JSON.parse(text) : text;
}

// While one request is under way, only the newest of those that follow is kept: a drag never queues up. Until the last
// one is shown, `place` says that it is busy.
export function latest(place, work) {
  let running = false;
  let again = false;
  return async function run() {
    again = running;
    if (running) return;
    running = true;
    place.setAttribute("aria-busy", "true");
    try {
      await work();
    } finally {
      running = false;
      if (again) run();
      else place.removeAttribute("aria-busy");
    }
  };
}

// Ask after a job until it ends; `tell` hears of every step.
export async function finish(job, tell) {
  for (let wait = 80; job.state === "waiting" || job.state === "running"; wait = Math.min(wait * 1.3, 500)) {
    tell(job);
    await new Promise((resolve) => setTimeout(resolve, wait));
    job = await call(`jobs/${job.id}`);
  }
  tell(job);
  if (job.state === "failed") throw new ApiError(job.error, 422);
  return job;
}
