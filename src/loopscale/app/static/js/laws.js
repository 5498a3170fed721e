// The laws one can choose: the published ones, and one's own. One's own are kept in this browser and travel in links.
import { call } from "./api.js";
import { keep, kept } from "./kept.js";

const known = new Map();
const files = new Map();
const packed = new Map();
let fallback = "";

export async function loadLaws() {
  const { default: name, laws } = await call("laws");
  fallback = name;
  for (const law of laws) known.set(law.id, law);
  for (const file of kept("laws")) await addLaw(file).catch(() => null);
}

export const lawOf = (id) => known.get(id || fallback);
export const lawList = () => [...known.values()];
export const packedLaw = (id) => packed.get(id);

// The id follows from the law's content: the same law has the same id in every browser.
export async function addLaw(file) {
  const summary = await call("laws", { body: file });
  known.set(summary.id, summary);
  files.set(summary.id, file);
  packed.set(summary.id, await deflated(JSON.stringify(file)));
  keep("laws", [...files.values()].slice(-8));
  return summary;
}

// The server forgets laws when it restarts; those it answers 404 for are sent again.
export async function resendLaws() {
  for (const file of files.values()) await call("laws", { body: file });
}

export async function unpackLaws(texts) {
  for (const text of texts) {
    try {
      await addLaw(JSON.parse(await inflated(text)));
    } catch (error) {
      console.warn("a law in the link could not be read:", error.message);
    }
  }
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
