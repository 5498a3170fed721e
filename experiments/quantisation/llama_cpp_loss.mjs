// Prints the mean next-token loss of each sequence in llama.cpp: node llama_cpp_loss.mjs PACKAGES FILE < sequences.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [packages, file] = process.argv.slice(2);
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(`${packages}/node_modules/node-llama-cpp/dist/index.js`));
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: 1 });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ contextSize: 256, flashAttention: false, threads: 1,
  experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" });
const sequence = context.getSequence();
const losses = [];
for (const ids of JSON.parse(readFileSync(0, "utf8"))) {
  const asked = ids.map((id, index) => index + 1 < ids.length
    ? [id, { generateNext: { probabilities: true, options: { temperature: 1, topK: 0, topP: 1, minP: 0 } } }]
    : id);
  const told = await sequence.controlledEvaluate(asked);
  let sum = 0;
  for (let index = 0; index + 1 < ids.length; index++) {
    sum -= Math.log(told[index].next.probabilities.get(ids[index + 1]));
  }
  losses.push(sum / (ids.length - 1));
  await sequence.clearHistory();
}
console.log(JSON.stringify(losses));
process.exit(0);
