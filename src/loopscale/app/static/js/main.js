import { call, server } from "./api.js";
import { updateCompare } from "./compare.js";
import { DATA } from "./data.js";
import { $, $$, afterFrame, linked } from "./dom.js";
import { buildFit, restoreFit } from "./fit.js";
import { showLab } from "./lab.js";
import { loadLaws } from "./laws.js";
import { buildMap, paint, readColours } from "./map.js";
import { buildModel } from "./model.js";
import { keptPins, pin } from "./pins.js";
import { updatePlan } from "./plan.js";
import { buildSentence } from "./sentence.js";
import { openPalette } from "./palette.js";
import { buildRun, updateRun } from "./run.js";
import { shareMenu } from "./share.js";
import { canRedo, canUndo, onChange, restore, set, state } from "./state.js";
import { buildSweep, updateSweep } from "./sweep.js";
import { startTour } from "./tour.js";

function refresh(_, { draft = false } = {}) {
  if (!draft) showView();
  if (state.view === "plan") updatePlan({ draft });
  else if (state.view === "compare") updateCompare();
  else if (state.view === "sweep") updateSweep();
  else if (state.view === "run") updateRun();
  else if (state.view === "lab") showLab();
  else restoreFit();
}

function showView() {
  for (const main of $$("main")) main.hidden = main.dataset.for !== state.view;
  for (const part of $$("#views button")) {
    if (part.dataset.view === state.view) {
      part.setAttribute("aria-current", "page");
      requestAnimationFrame(() => { part.parentElement.scrollLeft = part.offsetLeft - part.parentElement.offsetLeft - 40; }); // prettier-ignore
    } else part.removeAttribute("aria-current");
  }
  $("#undo").disabled = !canUndo();
  $("#redo").disabled = !canRedo();
}

function buildTop() {
  for (const part of $$("#views button"))
    part.onclick = () => {
      set({ view: part.dataset.view });
      scrollTo(0, 0);
    };
  $("#find").onclick = openPalette;
  $("#undo").onclick = () => canUndo() && history.back();
  $("#redo").onclick = () => canRedo() && history.forward();
  $("#share").replaceChildren(shareMenu());
  $("#theme").onclick = switchTheme;
  nameTheme();
  $("#tour").onclick = startTour;
  $("#pin-now").onclick = pin;
  addEventListener("keydown", (event) => {
    const typing = /^(input|textarea|select)$/i.test(event.target.tagName) && event.target.type !== "range";
    if (typing || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
    event.preventDefault();
    if (event.shiftKey ? canRedo() : canUndo()) history[event.shiftKey ? "forward" : "back"]();
  });
}

const dark = () => document.documentElement.dataset.theme === "dark";
function nameTheme() {
  $("#theme").textContent = dark() ? "Light" : "Dark";
  $("#theme").setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
}
function switchTheme() {
  const theme = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // kept for this visit only
  }
  nameTheme();
  readColours();
  paint();
}

function start() {
  loadLaws();
  restore(location.hash, history.state?.entry ?? 0);
  if (!state.pins) state.pins = keptPins();
  $("#version").textContent = `loopscale ${DATA.version}`;
  showView();
  const plot = $("#map-plot");
  const [modelWidth, mapSize] = [$("#drawing").clientWidth, [plot.clientWidth, plot.clientHeight]]; // one layout for both
  buildModel(modelWidth);
  buildMap(...mapSize);
  buildSentence();
  buildTop();
  onChange(refresh);
  // A refusal must be seen wherever one has scrolled to.
  new IntersectionObserver((seen) => $("#message").classList.toggle("afar", !seen.at(-1).isIntersecting)).observe($("#standing"));
  addEventListener("popstate", () => {
    const pinned = state.pins;
    restore(location.hash, history.state?.entry ?? 0);
    if (!state.pins) state.pins = pinned;
    refresh();
  });
  // The first view draws at once; the others need the server.
  updatePlan();
  buildFit({ mappings: Object.keys(DATA.mappings), outer_laws: Object.keys(DATA.outers).filter((name) => DATA.outers[name].listed) });
  if (state.view !== "plan") refresh();
  document.body.inert = false;
  delete document.documentElement.dataset.link;
  document.documentElement.dataset.ready = "true";
  if (server())
    call("choices")
      .then((choices) => {
        buildSweep(choices);
        buildRun(choices);
        showView(); // with the tabs that were hidden
        $("#where-computed").textContent = "computed on your own machine";
      })
      .catch(() => null);
}

// The page's file holds the first view, which is painted before the script draws it anew.
if (linked()) start();
else afterFrame(start);
