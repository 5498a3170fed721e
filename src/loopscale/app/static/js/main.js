import { call } from "./api.js";
import { updateCompare } from "./compare.js";
import { buildControls, chooseLaw, planRequest, showControl } from "./controls.js";
import { $, $$, copy, problem, toast } from "./dom.js";
import { redraw } from "./figure.js";
import { buildFit, restoreFit } from "./fit.js";
import { explainTerms } from "./glossary.js";
import { addLaw, loadLaws } from "./laws.js";
import { keptPins } from "./pins.js";
import { askPlan, buildPlan, drawPlan, holdCentre, showPlan, updatePlan } from "./plan.js";
import { commit, describeBudget, link, onChange, restore, set, state } from "./state.js";
import { buildSweep, updateSweep } from "./sweep.js";

// What changes only how an answer is shown needs no new one.
const SHOWN_ONLY = new Set(["cost", "table", "pins", "fit"]);

function refresh(changes = state, { draft = false } = {}) {
  const names = Object.keys(changes);
  holdCentre(draft);
  if (draft && state.view === "plan") {
    for (const name of names) showControl(name);
    return void updatePlan();
  }
  showView();
  if (state.view === "plan") {
    showPlan();
    if (names.every((name) => SHOWN_ONLY.has(name))) drawPlan();
    else updatePlan();
  } else if (state.view === "compare") updateCompare();
  else if (state.view === "sweep") updateSweep();
  else {
    restoreFit();
    redraw();
  }
  return undefined;
}

function showView() {
  for (const main of $$("main")) main.hidden = main.dataset.for !== state.view;
  for (const part of $$("#views button")) {
    if (part.dataset.view === state.view) part.setAttribute("aria-current", "page");
    else part.removeAttribute("aria-current");
  }
}

function buildTop() {
  for (const part of $$("#views button"))
    part.onclick = () => {
      set({ view: part.dataset.view });
      scrollTo(0, 0);
    };
  $("#copy-link").onclick = () => {
    commit();
    copy(new URL(link(), location.href).href, "Link");
  };
  $("#theme").onclick = switchTheme;
  $(".skip").onclick = (event) => {
    event.preventDefault();
    $("#answer").focus();
  };
  $("#open-law").onclick = () => $("#law-file").click();
  $("#law-file").onchange = (event) => openLaw(event.target.files[0]);
  $("#open-config").onclick = () => $("#config-file").click();
  $("#config-file").onchange = (event) => openConfig(event.target.files[0]);
}

function switchTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  redraw();
}

async function openLaw(file) {
  if (!file) return;
  try {
    const law = await addLaw(parsed(await file.text(), file.name));
    chooseLaw(law.id);
    toast(`Planning with ${law.name}.`);
  } catch (error) {
    error.message = error.message.replace(/^law: /, `${file.name}: `);
    problem($("#file-problem"), error);
  }
  $("#law-file").value = "";
}

const LARGEST_CONFIG = 20_000;

async function openConfig(file) {
  if (!file) return;
  $("#config-file").value = "";
  try {
    if (file.size > LARGEST_CONFIG) throw new Error(`${file.name}: a config.json is smaller than 20 kB`);
    const config = parsed(await file.text(), file.name, "choose the config.json of a Transformers model");
    await askPlan({ ...planRequest([]), config }); // a model that cannot be read is refused before it is kept
    set({ config: JSON.stringify(config) });
  } catch (error) {
    error.message = error.message.replace(/^config\.json: /, `${file.name}: `);
    problem($("#file-problem"), error);
  }
}

function parsed(text, name, advice = "a law file comes from `loopscale fit --out` or from the Fit view") {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name}: this is not JSON; ${advice}`);
  }
}

// On a phone the answer scrolls away while one drags a slider; a line at the bottom keeps it in sight.
function watchAnswer() {
  new IntersectionObserver(([entry]) => $("#glance").classList.toggle("shown", !entry.isIntersecting)).observe(
    $("#sentence"),
  );
  $("#glance").onclick = () => $("#answer").scrollIntoView({ behavior: "smooth" });
}

async function start() {
  buildTop();
  const [choices] = await Promise.all([call("choices"), loadLaws()]);
  $("#version").textContent = `loopscale ${choices.version}`;
  describeBudget(choices.budget);
  await restore(location.hash);
  if (!state.pins) state.pins = keptPins();
  buildControls(choices);
  buildPlan();
  buildFit(choices);
  buildSweep(choices);
  explainTerms();
  onChange(() => problem($("#file-problem"), null)); // an answer that arrives late says nothing of the file
  onChange(refresh);
  refresh();
  addEventListener("popstate", async () => {
    await restore(location.hash);
    refresh();
  });
  watchAnswer();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      redraw();
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => problem($("#problem"), error));
