// The user's model (config.json), judged by the server under the same budget.
import { call, server } from "./api.js";
import { coded, make } from "./dom.js";
import { serverLaw } from "./laws.js";
import { item } from "./whatif.js";
import { cardSize, signed } from "./quantities.js";
import { current, requestBody } from "./plan.js";
import { state } from "./state.js";
import { readStored } from "./storage.js";

const ownConfig = () => readStored("config")[0] ?? null;

export async function ownModel() {
  const config = ownConfig();
  if (!config || !server()) return null;
  try {
    const { own } = await call("plan", { body: { ...requestBody(), law: await serverLaw(state.law), config: config.content, extrapolate: true, top: 1 } });
    const difference = own.loss === null ? null : own.loss - current().design.loss;
    return item(config.name, difference === null ? "?" : signed(difference), `${cardSize(own.active_parameters)}: ${own.verdict}`, null, difference);
  } catch (error) {
    return make("div", { class: "whatif" }, make("span", { class: "what" }, config.name), make("span", { class: "with" }, coded(error.message)));
  }
}
