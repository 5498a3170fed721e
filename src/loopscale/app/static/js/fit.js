// One's own sweep: chosen or dropped, sent, and fitted with progress.
import { call } from "./api.js";
import { $, make, problem, toast } from "./dom.js";
import { showFit } from "./fit_result.js";
import { runJob } from "./job.js";
import { addLaw } from "./laws.js";

export function buildFit({ mappings, outer_laws: outers }) {
  $("#fit-mapping").append(...mappings.map((name) => make("option", { value: name }, name)));
  $("#fit-outer").append(...outers.map((name) => make("option", { value: name }, name)));
  $("#choose-csv").onclick = () => $("#csv-file").click();
  $("#csv-file").onchange = (event) => {
    take(event.target.files[0]);
    event.target.value = "";
  };
  $("#micro-csv").onclick = async () => fit(new Blob([await call("micro.csv")]), "micro");
  $("#example-csv").onclick = async () => fit(new Blob([await call("example.csv")]), "simulated");
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

function take(file) {
  if (file)
    fit(
      file,
      file.name
        .replace(/\.csv$/i, "")
        .replace(/[^\w. -]/g, "_")
        .slice(0, 60) || "runs",
    );
}

async function fit(content, name) {
  const options = new URLSearchParams({
    name,
    counts: $("#fit-counts").value,
    resamples: $("#fit-resamples").value || 100,
  });
  for (const [field, id] of [
    ["mapping", "#fit-mapping"],
    ["outer", "#fit-outer"],
  ])
    if ($(id).value) options.set(field, $(id).value);
  $("#fit-result").hidden = true;
  problem($("#fit-problem"), null);
  try {
    const job = await runJob(`fit?${options}`, { csv: content }, $("#fit-progress"));
    if (job.state === "cancelled") return toast("Stopped.");
    await addLaw(job.result.law);
    showFit(job);
  } catch (error) {
    problem($("#fit-problem"), error);
  }
}
