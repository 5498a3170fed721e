// One's own sweep: chosen or dropped, its columns shown and mapped, then fitted with progress.
import { call, server } from "./api.js";
import { $, $$, button, coded, make, problem, sentence, table, toast } from "./dom.js";
import { download } from "./download.js";
import { showFit } from "./fit_result.js";
import { runJob } from "./job.js";
import { readStored, writeStored } from "./storage.js";
import { addLaw, lawOf } from "./laws.js";
import { counted } from "./quantities.js";
import { set, state } from "./state.js";

let chosen = null;

export function buildFit({ mappings, outer_laws: outers }) {
  $("#drop").hidden = !server();
  $("#fit-view .needs-server").hidden = server();
  $("#fit-mapping").append(...mappings.map((name) => make("option", { value: name }, name)));
  $("#fit-outer").append(...outers.map((name) => make("option", { value: name }, name)));
  $("#choose-csv").onclick = () => $("#csv-file").click();
  $("#csv-file").onchange = (event) => {
    take(event.target.files[0]);
    event.target.value = "";
  };
  $("#micro-csv").onclick = () => sample("micro.csv", "micro");
  $("#example-csv").onclick = () => sample("example.csv", "simulated");
  $("#template-csv").onclick = async () => {
    try {
      download("loopscale-template.csv", await call("template.csv"), "text/csv");
    } catch (error) {
      problem($("#fit-problem"), error);
    }
  };
  const zone = $("#fit-view");
  for (const kind of ["dragenter", "dragover"])
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      $(".dropzone").classList.add("over");
    });
  zone.addEventListener("dragleave", () => $(".dropzone").classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    $(".dropzone").classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
}

async function sample(path, name) {
  try {
    await fit(new Blob([await call(path)]), name, {});
  } catch (error) {
    problem($("#fit-problem"), error);
  }
}

function take(file) {
  if (!file) return;
  const name =
    file.name
      .replace(/\.csv$/i, "")
      .replace(/[^\w. -]/g, "_")
      .slice(0, 60) || "runs";
  chosen = { file, name, columns: {} };
  preview();
}

// The first rows and what each column is taken for; a drop-down for each field corrects it.
async function preview() {
  const { file, name, columns } = chosen;
  problem($("#fit-problem"), null);
  $("#fit-result").hidden = true;
  const query = new URLSearchParams({ name, columns: JSON.stringify(columns) });
  try {
    const reply = await call(`preview?${query}`, { csv: file });
    $("#preview").hidden = false;
    $("#preview").replaceChildren(...previewParts(reply));
    if (!reply.problem) $("#start-fit").focus();
  } catch (error) {
    $("#preview").hidden = true;
    problem($("#fit-problem"), ofFile(error, name, file));
  }
}

// The server knows a file by the name of its law.
function ofFile(error, name, { name: file }) {
  if (file) error.message = error.message.replace(`${name}: `, `${file}: `);
  return error;
}

function previewParts({ columns, rows, fields, used, count, notes, needs_loop_share: share, problem: wrong }) {
  const pick = (field) =>
    make(
      "label",
      { class: "field" },
      make("span", {}, field.label, field.required ? make("b", {}, " (needed)") : ""),
      make(
        "select",
        {
          id: `column-${field.name}`,
          onchange: (event) => {
            chosen.columns = { ...chosen.columns, [field.name]: event.target.value };
            preview();
          },
        },
        make("option", { value: "" }, "not in the file"),
        ...columns.map((column) => make("option", { value: column, selected: column === field.column }, column)),
      ),
      make("small", {}, field.unit || ""),
    );
  const shown = columns.map((column, k) => ({
    name: column,
    head: [column, make("small", { class: "is" }, !used[column] ? " (not used)" : used[column] === column ? "" : ` = ${used[column]}`)],
    cell: (row) => row[k],
  }));
  return [
    make("h3", {}, `${chosen.file.name}: ${counted(count, "row")}`),
    wrong ? make("p", { class: "problem", role: "alert" }, coded(sentence(wrong))) : null,
    make("div", { class: "fields" }, fields.map(pick)),
    share
      ? make(
          "p",
          { class: "note-box" },
          "Passes vary, so the parameters of the loop block (N_loop) are needed. Choose their column above, or give the share of the active parameters that loops: ",
          make("input", { type: "text", id: "loop-share", value: "85%", size: 6, "aria-label": "Share of the active parameters that loops", "aria-describedby": "share-problem" }),
          make("span", { class: "problem", id: "share-problem", role: "alert", hidden: true }),
        )
      : null,
    notes.length
      ? make(
          "ul",
          { class: "hint" },
          notes.map((note) => make("li", {}, coded(note))),
        )
      : null,
    make(
      "div",
      { class: "scroll", tabindex: 0 },
      make("table", { id: "preview-table" }, make("caption", {}, "The first rows"), table(shown, rows)),
    ),
    make(
      "div",
      { class: "actions" },
      button("Fit a law", () => fit(chosen.file, chosen.name, chosen.columns), {
        id: "start-fit",
        class: "primary",
        disabled: Boolean(wrong),
      }),
      button("Cancel", () => {
        $("#preview").hidden = true;
      }),
    ),
  ].filter(Boolean);
}

export async function fit(content, name, columns) {
  const options = new URLSearchParams({
    name,
    counts: $("#fit-counts").value,
    resamples: $("#fit-resamples").value || 100,
  });
  const share = content === chosen?.file ? $("#loop-share") : null;
  if (share) {
    const value = Number.parseFloat(share.value) / (share.value.includes("%") ? 100 : 1);
    const fine = value > 0 && value <= 1;
    problem($("#share-problem"), fine ? null : new Error(`“${share.value}” is no share; write it like 85%, up to 100%`));
    share.setAttribute("aria-invalid", String(!fine));
    if (!fine) return share.focus();
    options.set("loop_share", value);
  }
  if (Object.keys(columns).length) options.set("columns", JSON.stringify(columns));
  for (const [field, id] of [
    ["mapping", "#fit-mapping"],
    ["outer", "#fit-outer"],
  ])
    if ($(id).value) options.set(field, $(id).value);
  $("#fit-result").hidden = true;
  problem($("#fit-problem"), null);
  busy(true);
  try {
    const job = await runJob(`fit?${options}`, { csv: content }, $("#fit-progress"));
    if (job.state === "cancelled") return toast("The fit was stopped.");
    const law = addLaw(job.result.law);
    writeStored(
      "fits",
      [
        ...readStored("fits").filter((item) => item.law !== law.id),
        { law: law.id, job: { id: job.id, result: job.result } },
      ].slice(-4),
    );
    set({ fit: law.id });
    $("#preview").hidden = true;
    return showFit(job);
  } catch (error) {
    problem($("#fit-problem"), ofFile(error, name, content));
    return $("#fit-problem").scrollIntoView({ block: "nearest" });
  } finally {
    busy(false);
  }
}

// One fit at a time: until it has ended, nothing starts another.
function busy(fitting) {
  for (const part of $$("#start-fit, #micro-csv, #example-csv, #choose-csv")) part.disabled = fitting;
}

// A fit of this browser is shown again after a reload; of another's, the link carries the law alone.
export function restoreFit() {
  if (!state.fit) {
    $("#fit-result").hidden = true;
    return;
  }
  if ($("#fit-result").dataset.law === state.fit) {
    $("#fit-result").hidden = false;
    return;
  }
  const fit = readStored("fits").find((item) => item.law === state.fit);
  if (fit) showFit(fit.job);
  else if (lawOf(state.fit)) toast(`The link carries the law ${lawOf(state.fit).name}, but not the data of its fit.`);
}
