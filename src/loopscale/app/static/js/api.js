export class ApiError extends Error {
  constructor(message, status, { field, problem, remedy, overrides = [] } = {}) {
    super(message);
    Object.assign(this, { status, field, problem, remedy, overrides });
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
    throw new ApiError("the server does not answer; start `loopscale app` again, then try once more", 0);
  }
  const text = await reply.text();
  const isJson = (reply.headers.get("content-type") || "").startsWith("application/json");
  if (!reply.ok) {
    const refusal = isJson ? JSON.parse(text) : { error: `the server answered ${reply.status}` };
    throw new ApiError(refusal.error, reply.status, refusal);
  }
  return isJson ? JSON.parse(text) : text;
}

// Keeps an element up to date. While a request is under way, only the newest state that follows is asked for; it is
// asked for before the last answer is drawn, so that server and browser work at the same time.
export function latest(element, ask, show, fail) {
  let running = false;
  let again = false;
  return async function run() {
    again = running;
    if (running) return;
    running = true;
    element.setAttribute("aria-busy", "true");
    let work = () => {};
    try {
      const answer = await ask();
      work = () => show(answer);
    } catch (error) {
      work = () => fail(error);
    }
    running = false;
    const newer = again && run();
    work();
    if (newer) await newer;
    else if (!running) element.removeAttribute("aria-busy");
  };
}

// Wait for the end of a job; `report` gets every state on the way.
export async function finish(job, report) {
  for (let wait = 80; job.state === "waiting" || job.state === "running"; wait = Math.min(wait * 1.3, 500)) {
    report(job);
    await new Promise((resolve) => setTimeout(resolve, wait));
    job = await call(`jobs/${job.id}`);
  }
  report(job);
  if (job.state === "failed") throw new ApiError(job.error, 422);
  return job;
}
