// One law as a search uses it: read from its file, and evaluated on one design. The formulas are generated.
import { DATA } from "./data.js";
import { FORMS, GAINS, activeRatio, effective } from "./formulas.js";
import { Refusal } from "./quantities.js";

// A law file, with what a search looks up many times.
export function preparedLaw(file) {
  const outer = DATA.outers[file.outer];
  const mapping = DATA.mappings[file.mapping];
  if (!outer || !mapping)
    throw new Refusal(`the page has no form for the law ${file.name}`, "law", "plan with the command line instead");
  const names = [...outer.names, ...mapping.names];
  const only = ([low, high]) => (low !== null && low === high ? low : 1);
  return {
    ...file,
    names,
    form: file.form ?? `${outer.title}, ${mapping.title}`,
    eps: file.noise ?? file.rmse,
    c: file.coefficients,
    rows: file.resamples ? file.resamples.map((row) => Object.fromEntries(names.map((n, k) => [n, row[k]]))) : null,
    loops: mapping.loops,
    ratio: mapping.ratio,
    unique: outer.unique,
    embeddings: file.counts === "with-embeddings",
    onlyExperts: outer.experts ? null : only(file.range.experts),
    onlyRecurrence: mapping.loops ? null : Math.trunc(only(file.range.recurrence)),
    basis: file.basis ?? (file.resampled_by || "resampled laws"),
    stated: DATA.axes.every((axis) => !file.range[axis].includes(null)),
    uncertainty:
      file.uncertainty ??
      (file.resamples
        ? `from ${file.resampled_by || `${file.resamples.length} resampled laws`}`
        : file.fitted
          ? "not estimated: the law was fitted without resampling"
          : "not published"),
  };
}

// Repeated tokens count for less, as Muennighoff et al. measured; a law that knows repetition stays as it is.
export function withRepetition(law) {
  if (law.unique) return law;
  const R_D = DATA.repetition;
  return {
    ...law,
    outer: `${law.outer}+repetition`,
    unique: true,
    c: { ...law.c, R_D },
    rows: law.rows && law.rows.map((row) => ({ ...row, R_D })),
  };
}

// What the law is evaluated on, in its own units.
export class Inputs {
  constructor(law, x, tokens, unique) {
    const extra = law.embeddings ? x.embedding : 0;
    const active = x.active + extra;
    this.N = active / law.units.parameters;
    this.D = 0;
    this.E = x.E;
    this.R = x.R;
    this.m = law.ratio ? activeRatio({ active, total: x.total + extra }) : 1;
    this.loop = law.loops ? x.loop / law.units.parameters : 0;
    this.U = 0;
    this.train(law, tokens, unique);
  }

  train(law, tokens, unique) {
    this.D = tokens / law.units.tokens;
    this.U = Math.min(unique ?? tokens, tokens) / law.units.tokens;
  }
}

export function lossAt(law, c, x) {
  const N = law.loops ? effective(x.N, x.loop, GAINS[law.mapping](c, x.R, x.m)) : x.N;
  return FORMS[law.outer](c, N, x);
}
