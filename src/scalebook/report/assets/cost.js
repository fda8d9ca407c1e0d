// Answers of the cost page from the reader's inputs. The formulas come from the page's data.
(function () {
  "use strict";
  const SCALES = { k: 1e3, m: 1e6, b: 1e9, t: 1e12 };

  function read(text) {
    const match = /^\s*([0-9][0-9,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([kmbt]?)\s*(%?)\s*$/i.exec(text);
    if (!match) return null;
    const value = Number(match[1].replace(/,/g, "")) * (SCALES[match[2].toLowerCase()] || 1);
    return Number.isFinite(value) ? value / (match[3] ? 100 : 1) : null;
  }

  function allowed(name, value) {
    if (value === null) return false;
    return name === "pue" ? value >= 1 : name === "preemption_overhead" ? value >= 0 : value > 0;
  }

  function show(value) {
    if (value === 0) return "0";
    if (value < 1e-3 || value >= 1e15) return value.toExponential(2);
    return value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
  }

  function factor(name, inputs) {
    return name.startsWith("1+") ? 1 + inputs[name.slice(2)] : inputs[name];
  }

  function product(answer, inputs) {
    const over = answer.over.reduce(function (all, name) { return all * factor(name, inputs); },
      answer.constant);
    return answer.under.reduce(function (all, name) { return all / factor(name, inputs); }, over);
  }

  function start(box) {
    const data = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const fields = Array.from(box.querySelectorAll("input[data-input]"));
    const ends = {};

    function calculate() {
      const inputs = {};
      for (const field of fields) {
        const value = field.value.trim() === "" ? null : read(field.value);
        const fits = allowed(field.dataset.input, value);
        field.setAttribute("aria-invalid", field.value.trim() !== "" && !fits ? "true" : "false");
        if (fits) inputs[field.dataset.input] = value;
      }
      for (const answer of data.answers) {
        const row = box.querySelector("tr[data-answer='" + answer.name + "']");
        const missing = answer.over.concat(answer.under)
          .map(function (name) { return name.replace("1+", ""); })
          .filter(function (name) { return !(name in inputs); });
        row.cells[1].textContent = missing.length ? "–" : text(answer, inputs);
        row.cells[4].textContent = missing.length ? "needs " + missing.join(", ") : "";
        for (const cell of [row.cells[1], row.cells[4]]) cell.dataset.value = cell.textContent;
      }
    }

    function text(answer, inputs) {
      const value = product(answer, inputs);
      const found = ["tokens_per_second", "other_tokens_per_second"]
        .filter(function (name) { return ends[name]; });
      if (!found.length) return show(value);
      let values = [inputs];
      for (const name of found) {
        values = values.flatMap(function (one) {
          return ends[name].map(function (end) { return Object.assign({}, one, { [name]: end }); });
        });
      }
      values = values.map(function (one) { return product(answer, one); });
      const low = Math.min.apply(null, values), high = Math.max.apply(null, values);
      return low < high ? show(value) + " (" + show(low) + " to " + show(high) + ")" : show(value);
    }

    function choose(select) {
      const run = data.runs[select.value];
      if (!run) return;
      const before = select.dataset.before;
      const values = before ? { other_tokens_per_second: run.tokens_per_second, other_gpus: run.gpus }
        : Object.assign({ tokens_per_second: run.tokens_per_second, gpus: run.gpus,
          sequence_length: run.sequence_length }, run.stated);
      for (const field of fields) {
        if (field.dataset.input in values) field.value = values[field.dataset.input] || "";
      }
      ends[before + "tokens_per_second"] = run.ends;
      calculate();
    }

    for (const field of fields) {
      field.addEventListener("input", function () {
        delete ends[field.dataset.input]; // a number of the reader's own has no interval of a run
        calculate();
      });
    }
    const selects = Array.from(box.querySelectorAll("select[data-before]"));
    for (const select of selects) {
      select.addEventListener("change", function () { choose(select); });
    }
    selects.forEach(choose);
    calculate();
  }

  function all() { document.querySelectorAll(".sb-cost").forEach(start); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
