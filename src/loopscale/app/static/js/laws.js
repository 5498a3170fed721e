// The laws one can choose: the published ones, and one's own, which travel inside links.
import { call } from "./api.js";

const known = new Map();
const files = new Map();
export let fallback = "";

export async function loadLaws() {
  const { default: name, laws } = await call("laws");
  fallback = name;
  for (const law of laws) known.set(law.id, law);
}

export const lawOf = (id) => known.get(id || fallback);
export const lawList = () => [...known.values()];

export async function addLaw(file) {
  const summary = await call("laws", { body: file });
  known.set(summary.id, summary);
  files.set(summary.id, file);
  return summary;
}

// The server forgets laws when it restarts; what it answers 404 for is sent again.
export async function resendLaws() {
  for (const file of files.values()) await call("laws", { body: file });
}

export const packLaws = (ids) =>
  Promise.all(
    ids
      .filter((id) => files.has(id))
      .map(async (id) => {
        const file = files.get(id);
        const resamples =
          file.resamples && file.resamples.slice(0, 100).map((row) => row.map((x) => Number(x.toPrecision(7))));
        return `${id}.${await deflated(JSON.stringify({ ...file, ...(resamples ? { resamples } : {}) }))}`;
      }),
  );

export async function unpackLaws(packed) {
  const renamed = new Map();
  for (const each of packed) {
    const dot = each.indexOf(".");
    try {
      const summary = await addLaw(JSON.parse(await inflated(each.slice(dot + 1))));
      renamed.set(each.slice(0, dot), summary.id);
    } catch (error) {
      console.warn("a law in the link could not be read:", error.message);
    }
  }
  return renamed;
}

async function deflated(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const binary = Array.from(raw, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function inflated(text) {
  const raw = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  return new Response(new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}
