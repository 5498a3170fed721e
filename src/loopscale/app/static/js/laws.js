// The laws one can choose: the published ones, which the page holds, and one's own, which this browser keeps. A link
// names a law; one's own is found again where it was fitted or opened.
import { call, server } from "./api.js";
import { DATA } from "./data.js";
import { readStored, writeStored } from "./storage.js";
import { preparedLaw } from "./law.js";
import { Refusal } from "./quantities.js";

const known = new Map();

export function loadLaws() {
  for (const file of readStored("laws")) {
    try {
      remember(file);
    } catch {
      // a law of an older page
    }
  }
}

function remember(file) {
  const id = `own-${file.name}`;
  const law = preparedLaw(file);
  known.set(id, { ...law, id, file });
  return known.get(id);
}

export function lawOf(id) {
  const name = id || DATA.law;
  if (!known.has(name) && DATA.laws[name]) known.set(name, preparedLaw(DATA.laws[name]));
  return known.get(name);
}
export const ownLaws = () => [...known].filter(([id]) => id.startsWith("own-")).map(([, law]) => law);

export function chosenLaw(id) {
  const law = lawOf(id);
  if (law) return law;
  throw new Refusal(
    `this browser does not have the law ${id.replace(/^own-/, "")}`,
    "law",
    "open its file, or choose a published law",
  );
}

// Takes the content of a law file or of a fit file.
export function addLaw(content) {
  const file = content?.kind === "fit" ? content.law : content;
  if (file?.kind !== "law" || typeof file.coefficients !== "object" || !file.range)
    throw new Refusal("this is not a law file", "law", "save one with `loopscale fit runs.csv --out law.json`");
  const law = remember({ degenerate: [], ...file });
  writeStored("laws", ownLaws().map(({ file: each }) => each).slice(-8));
  return law;
}

// What the server calls a law: it keeps those that it was sent.
export async function serverLaw(id) {
  const law = lawOf(id);
  if (!server() || !law?.file) return id || DATA.law;
  return (await call("laws", { body: law.file })).id;
}
