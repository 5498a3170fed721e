// Prints the tokens that llama.cpp generates greedily: node llama_cpp.mjs PACKAGES FILE TOKENS < prompts.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [packages, file, count] = process.argv.slice(2);
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(`${packages}/node_modules/node-llama-cpp/dist/index.js`));
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: 1 });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ contextSize: 256, flashAttention: false, threads: 1,
  experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" });
const generated = [];
for (const prompt of JSON.parse(readFileSync(0, "utf8"))) {
  const sequence = context.getSequence();
  const tokens = [];
  for await (const token of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    tokens.push(token);
    if (tokens.length >= Number(count)) break;
  }
  generated.push(tokens);
  sequence.dispose();
}
console.log(JSON.stringify(generated));
process.exit(0);
