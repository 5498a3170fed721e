// Links, files and pictures of what the page shows.
import { call, server } from "./api.js";
import { designAt } from "./design.js";
import { $, $$, copy, make, toast } from "./dom.js";
import { download } from "./download.js";
import { writeStored } from "./storage.js";
import { lawOf, serverLaw } from "./laws.js";
import { PLOT, mapCanvas } from "./map.js";
import { menu } from "./menu.js";
import { pin } from "./pins.js";
import { requestBody, shown } from "./plan.js";
import { SCENARIO, link, set, state } from "./state.js";
import { commandText, pythonText } from "./texts.js";

const here = () => new URL(link([...SCENARIO, "view"]), location.href).href;
const local = () => ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);

export const shareMenu = () =>
  menu("Share ▾", () => [
    ["Copy link", () => copy(here(), "Link", local() ? "It opens on this machine; `loopscale app --export` makes a page that others can open." : lawOf(state.law)?.file ? "It names your law; send the law file with it." : ""), "copy-link"],
    ["Copy embed code", () => copy(`<iframe src="${here()}" width="100%" height="900" style="border:0" title="loopscale"></iframe>`, "Embed code"), "copy-embed"],
    ["Save as image", saveImage, "save-image"],
    ["Pin this scenario", () => pin(), "pin"],
    server() ? ["Compare with your config.json…", chooseConfig, "open-config"] : null,
  ], { id: "share-button", class: "quiet" }); // prettier-ignore

export const copyMenu = () =>
  menu("Copy ▾", () => [
    ["Command", () => copy(commandText(), "Command"), "copy-command"],
    ["Python", () => copy(pythonText(), "Python"), "copy-python"],
    server() ? ["Training file", trainingFile, "copy-config"] : null,
  ], { id: "copy-button" }); // prettier-ignore

export const downloadMenu = () =>
  menu("Download ▾", () => [
    ["All designs (CSV)", designsCsv, "plan-csv"],
    ["Law (JSON)", () => download(`${shown.asked.law.name}.json`, `${JSON.stringify(lawFile(), null, 2)}\n`, "application/json"), "law-json"],
    ["Image (PNG)", saveImage, "image"],
    server() ? ["Plan (JSON)", () => fromServer("plan", "plan.json"), "plan-json"] : null,
    server() ? ["Report (HTML)", () => fromServer("plan.html", "plan.html"), "plan-report"] : null,
  ], { id: "download-button" }); // prettier-ignore

function lawFile() {
  const { file } = shown.asked.law;
  if (file) return file;
  const { names, form, eps, c, rows, loops, ratio, unique, embeddings, onlyExperts, onlyRecurrence, stated, uncertainty, basis, ...rest } = shown.asked.law;
  return rest;
}

const planBody = async () => ({ ...requestBody(), law: await serverLaw(state.law) });

async function fromServer(path, name) {
  try {
    const reply = await call(path, { body: await planBody() });
    download(name, typeof reply === "string" ? reply : `${JSON.stringify(reply.plan, null, 2)}\n`, typeof reply === "string" ? "text/html" : "application/json");
  } catch (error) {
    toast(error.message);
  }
}

async function trainingFile() {
  try {
    const reply = await call("plan", { body: await planBody() });
    copy(reply.copy.config, "Training file");
  } catch (error) {
    toast(error.message);
  }
}

const FACTS = ["rung", "experts", "recurrence", "experts_active", "experts_total", "active_parameters", "total_parameters", "tokens", "loss", "memory", "inference_flops", "train_flops", "trust", "verdict"];

function designsCsv() {
  const { answer } = shown;
  const cell = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const rows = answer.ranked.map((flat) => designAt(answer.grid, flat, answer.chosen));
  download("designs.csv", [FACTS.join(), ...rows.map((row) => FACTS.map((name) => cell(row[name])).join())].join("\n").concat("\n"), "text/csv");
}

function chooseConfig() {
  const input = make("input", { type: "file", accept: ".json,application/json", onchange: async () => {
    try {
      writeStored("config", [{ name: input.files[0].name, content: JSON.parse(await input.files[0].text()) }]);
      set({});
      toast("Your model is among the designs under What if.");
    } catch {
      toast("This file is not JSON.");
    }
  } }); // prettier-ignore
  input.click();
}

// The sentence, the answer and the map on one picture.
function saveImage() {
  const [W, H] = [1200, 630];
  const canvas = make("canvas", { width: W, height: H });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  context.fillStyle = colour("--paper");
  context.fillRect(0, 0, W, H);
  context.fillStyle = colour("--ink");
  context.font = `600 38px ${getComputedStyle($("#sentence")).fontFamily}`;
  let y = wrapped(context, $("#sentence").innerText.replace(/\s+/g, " ").trim(), 50, 74, W - 100, 48);
  context.font = "22px system-ui, sans-serif";
  context.fillStyle = colour("--soft");
  y = wrapped(context, $$(".stat:not([hidden])").map((each) => `${$(".value", each).innerText} ${$(".under", each).innerText}`).slice(0, 4).join(" · "), 50, y + 10, W - 100, 30);
  y = wrapped(context, $("#trust-line").innerText.replace("How sure?", ""), 50, y, W - 100, 30);
  const height = H - y - 60;
  context.imageSmoothingEnabled = false;
  context.drawImage(mapCanvas(), 50, y - 8, W - 100, height);
  const dot = $("#map-dot");
  const [left, top] = [Number.parseFloat(dot.style.left), Number.parseFloat(dot.style.top)];
  context.beginPath();
  context.arc(50 + ((W - 100) * ((left / 100) * PLOT.W - PLOT.x)) / PLOT.width, y - 8 + (height * ((top / 100) * PLOT.H - PLOT.y)) / PLOT.height, 12, 0, 7);
  context.lineWidth = 5;
  context.strokeStyle = colour("--mine");
  context.stroke();
  context.fillStyle = colour("--soft");
  context.font = "20px system-ui, sans-serif";
  context.fillText("right: more memory, up: more training compute; darker: the best model loops more often", 50, H - 26);
  context.textAlign = "right";
  context.fillText("loopscale", W - 50, H - 26);
  canvas.toBlob((blob) => download("loopscale.png", blob, "image/png"), "image/png");
}

function wrapped(context, text, x, y, width, step) {
  let line = "";
  for (const word of text.split(" ")) {
    if (context.measureText(`${line}${word}`).width > width) {
      context.fillText(line, x, y);
      y += step;
      line = "";
    }
    line += `${word} `;
  }
  context.fillText(line, x, y);
  return y + step;
}

