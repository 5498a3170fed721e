import { call } from "./api.js";
import { buildCompare, showCompare, updateCompare } from "./compare.js";
import { buildControls, chooseLaw, showControls } from "./controls.js";
import { $, $$, problem, toast } from "./dom.js";
import { redraw } from "./figure.js";
import { buildFit } from "./fit.js";
import { addLaw, loadLaws } from "./laws.js";
import { buildPlan, drawPlan, showPlan, updatePlan } from "./plan.js";
import { link, onChange, remember, restore, set, state } from "./state.js";

// What only changes how an answer is shown needs no new one.
const SHOWN_ONLY = new Set(["cost", "table"]);

function refresh(changes = state) {
  const names = Object.keys(changes);
  showView();
  if (state.view === "plan") {
    showPlan();
    if (names.every((name) => SHOWN_ONLY.has(name))) drawPlan();
    else updatePlan();
  } else if (state.view === "compare") {
    showCompare();
    updateCompare();
  } else redraw();
}

function showView() {
  for (const main of $$("main")) main.hidden = main.dataset.for !== state.view;
  for (const button of $$("#views button")) {
    if (button.dataset.view === state.view) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
}

function buildTop() {
  for (const button of $$("#views button"))
    button.onclick = () => {
      set({ view: button.dataset.view });
      scrollTo(0, 0);
    };
  $("#copy-link").onclick = copyLink;
  $("#theme").onclick = switchTheme;
  $(".skip").onclick = (event) => {
    event.preventDefault();
    $("#answer").focus();
  };
  $("#open-law").onclick = () => $("#law-file").click();
  $("#law-file").onchange = (event) => openLaw(event.target.files[0]);
}

async function copyLink() {
  const address = new URL(await link(), location.href).href;
  try {
    await navigator.clipboard.writeText(address);
    toast("Link copied: it opens this very state.");
  } catch {
    history.replaceState(null, "", address);
    toast("The address bar holds the link; copy it from there.");
  }
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
    problem($("#problem"), error);
  }
  $("#law-file").value = "";
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name}: this is not JSON; a law file comes from \`loopscale fit --out\` or from the Fit view`);
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
  showControls.choices = choices;
  $("#version").textContent = `loopscale ${choices.version}`;
  await restore(location.hash);
  buildControls();
  buildPlan();
  buildFit(choices);
  buildCompare(choices);
  onChange(refresh);
  refresh();
  addEventListener("hashchange", async (event) => {
    await restore(new URL(event.newURL).hash); // the address itself may have been rewritten since
    remember();
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
