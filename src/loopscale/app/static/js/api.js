// The server, where the page came from one: it fits, reads configs and follows sweeps.
export const server = () => document.documentElement.dataset.server === "yes";

class ApiError extends Error {
  constructor(message, status, { field, problem, remedy, overrides = [] } = {}) {
    super(message);
    Object.assign(this, { status, field, problem, remedy, overrides });
  }
}

export async function call(path, { body, csv, method } = {}) {
  if (!server()) throw new ApiError("this needs the server: start `loopscale app`, and open the address that it prints", 0);
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
